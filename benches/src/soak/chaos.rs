//! What is done to the product: kills and stops, a full disk, a damaged journal. What comes next follows from the seed alone;
//! whom it hits, from who is there.

use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng as _, SeedableRng as _};
use serde_json::json;

use super::jobs::{Kind, pick};
use super::scan::{self, Found, Role};
use super::verdict::Scenario;
use super::world::Start;
use super::{Soak, client, damage};
use crate::processes::{self, Signal};

/// The stream of the seed that is chaos's; clients have the lower ones.
const STREAM: u64 = 1_000;
/// How often each comes, relative to the others.
const WEIGHTS: [(Scenario, u64); 11] = [
    (Scenario::Plane, 16),
    (Scenario::Supervisors, 16),
    (Scenario::Shims, 12),
    (Scenario::Ranks, 16),
    (Scenario::Disk, 6),
    (Scenario::Cut, 2),
    (Scenario::FlipLog, 2),
    (Scenario::FlipDatabase, 2),
    (Scenario::FlipAnchor, 2),
    (Scenario::Rollback, 2),
    (Scenario::PutBack, 2),
];
/// The longest pause between two, and how often and how long there is a calm one, in which jobs end.
const PAUSE_MAX: Duration = Duration::from_millis(2_500);
const CALM_ONE_IN: u64 = 30;
const CALM: Duration = Duration::from_secs(15);
/// The longest that the control plane is away, and anything is stopped; both are within what the product bears.
const AWAY_MAX: Duration = Duration::from_millis(2_500);
const STOPPED_MAX: Duration = Duration::from_secs(5);
/// The longest that the disk is full.
const FULL_MAX: Duration = Duration::from_secs(5);
/// Until a control plane whose disk has room again must take jobs by itself.
const HEALED_WITHIN: Duration = Duration::from_secs(30);

/// Who does it.
pub(super) struct Chaos<'a> {
    pub(super) soak: &'a Soak,
    pub(super) random: ChaCha8Rng,
    scenarios: Vec<(Scenario, u64)>,
    /// Stopped processes, and when they go on.
    stopped: Vec<(Instant, Found)>,
    probes: u32,
}

impl<'a> Chaos<'a> {
    pub(super) fn new(soak: &'a Soak, may_run: impl Fn(Scenario) -> bool) -> Chaos<'a> {
        let mut random = ChaCha8Rng::seed_from_u64(soak.seed);
        random.set_stream(STREAM);
        let scenarios = WEIGHTS.into_iter().filter(|(scenario, _)| may_run(*scenario)).collect();
        Chaos { soak, random, scenarios, stopped: Vec::new(), probes: 0 }
    }

    /// Does one after the other for so long.
    ///
    /// # Errors
    /// When the product can't be brought up any more, or the record can't be written.
    pub(super) fn run(&mut self, time: Duration, heals: bool) -> Result<()> {
        while self.soak.began.elapsed() < time {
            let calm = self.random.next_u64().is_multiple_of(CALM_ONE_IN);
            let pause = if calm { CALM } else { self.below(PAUSE_MAX) };
            std::thread::sleep(pause.min(time.saturating_sub(self.soak.began.elapsed())));
            self.resume(false);
            self.revive()?;
            let Some(scenario) = self.choose() else { continue };
            let outcome = match scenario {
                Scenario::Plane => self.plane()?,
                Scenario::Supervisors => self.supervisors()?,
                Scenario::Shims => self.hit(Role::Shim)?,
                Scenario::Ranks => self.hit(Role::Rank)?,
                Scenario::Disk | Scenario::Heal => self.disk(heals)?,
                damage => damage::run(self, damage)?,
            };
            let mut oracle = self.soak.oracle();
            oracle.record.note("did", &json!({"scenario": scenario.name(), "outcome": outcome}))?;
            oracle.verdicts.ran(scenario, &outcome);
        }
        Ok(())
    }

    /// Lets stopped processes go on: those whose time has come, or all.
    pub(super) fn resume(&mut self, are_all: bool) {
        let now = Instant::now();
        let (due, later) = std::mem::take(&mut self.stopped).into_iter().partition(|(at, _)| are_all || *at <= now);
        self.stopped = later;
        let due: Vec<(Instant, Found)> = due;
        for (_, process) in &due {
            self.soak.oracle().goes_on(&process.job, process.attempt);
            if process.is_alive() {
                // It may have ended since.
                let _ = processes::signal(process.pid, Signal::CONT);
            }
        }
    }

    /// Starts the control plane as after any end of it: nothing may be lost by that.
    ///
    /// # Errors
    /// When it doesn't start.
    pub(super) fn start(&self) -> Result<()> {
        match self.soak.world.start(&[])? {
            Start::Up(log) if damage::told(&log).is_none() => Ok(()),
            Start::Up(log) => {
                self.fail(Scenario::Plane, &format!("an undamaged journal lost something at a start: {log}"));
                Ok(())
            }
            Start::Refused(log) => bail!("the control plane doesn't start on an undamaged journal: {log}"),
        }
    }

    /// A time below that.
    pub(super) fn below(&mut self, limit: Duration) -> Duration {
        let limit = u64::try_from(limit.as_millis()).unwrap_or(u64::MAX).max(1);
        Duration::from_millis(self.random.next_u64() % limit)
    }

    /// A scenario didn't go as it must.
    pub(super) fn fail(&self, scenario: Scenario, text: &str) {
        let mut oracle = self.soak.oracle();
        let after = oracle.record.age();
        oracle.verdicts.failed(scenario, after, text);
    }

    /// A control plane that has ended by itself is started again, which is what a service manager does.
    fn revive(&self) -> Result<()> {
        if !self.soak.world.has_ended() {
            return Ok(());
        }
        let log = std::fs::read_to_string(self.soak.world.path("up.log")).unwrap_or_default();
        let last = log.lines().rev().take(5).collect::<Vec<_>>().join(" | ");
        self.fail(Scenario::Plane, &format!("the control plane ended by itself: {last}"));
        self.start()
    }

    fn choose(&mut self) -> Option<Scenario> {
        let total: u64 = self.scenarios.iter().map(|(_, weight)| weight).sum();
        let mut left = self.random.next_u64() % total.max(1);
        for (scenario, weight) in &self.scenarios {
            if left < *weight {
                return Some(*scenario);
            }
            left -= weight;
        }
        None
    }

    fn plane(&mut self) -> Result<String> {
        let turn = self.random.next_u64() % 4;
        let (away, stopped) = (self.below(AWAY_MAX), self.below(STOPPED_MAX));
        let world = &self.soak.world;
        match turn {
            0 | 1 => {
                world.kill()?;
                damage::keep(world)?;
                std::thread::sleep(away);
                self.start()?;
                Ok("killed".to_owned())
            }
            2 => {
                world.stop()?;
                self.start()?;
                Ok("ended and started".to_owned())
            }
            _ => {
                let Some(pid) = world.pid() else { return Ok("not there".to_owned()) };
                processes::signal(pid, Signal::STOP)?;
                std::thread::sleep(stopped);
                processes::signal(pid, Signal::CONT)?;
                Ok("stopped for a while".to_owned())
            }
        }
    }

    fn supervisors(&mut self) -> Result<String> {
        let away = self.below(AWAY_MAX);
        match self.random.next_u64() % 4 {
            0 => {
                let Some(process) = self.victim(Role::Supervisor) else { return Ok("nobody there".to_owned()) };
                self.soak.world.kill()?;
                self.signal(&process, Signal::KILL);
                std::thread::sleep(away);
                self.start()?;
                Ok("killed with the control plane".to_owned())
            }
            1 => {
                let Some(process) = self.victim(Role::Supervisor) else { return Ok("nobody there".to_owned()) };
                let of_it = |found: &Found| found.role == Role::Shim && found.job == process.job;
                let shims: Vec<Found> = scan::attempts(&self.soak.world.data()).into_iter().filter(of_it).collect();
                self.signal(&process, Signal::KILL);
                shims.iter().for_each(|shim| self.signal(shim, Signal::KILL));
                Ok("killed with their shims".to_owned())
            }
            _ => self.hit(Role::Supervisor),
        }
    }

    /// Kills one of them, or stops it for a while.
    fn hit(&mut self, role: Role) -> Result<String> {
        let (is_kill, stopped) = (!self.random.next_u64().is_multiple_of(3), self.below(STOPPED_MAX));
        let Some(process) = self.victim(role) else { return Ok("nobody there".to_owned()) };
        if is_kill {
            self.signal(&process, Signal::KILL);
            return Ok("killed".to_owned());
        }
        self.signal(&process, Signal::STOP);
        self.stopped.push((Instant::now() + stopped, process));
        Ok("stopped for a while".to_owned())
    }

    fn victim(&mut self, role: Role) -> Option<Found> {
        let found: Vec<Found> = scan::attempts(&self.soak.world.data());
        let of_role: Vec<&Found> = found.iter().filter(|process| process.role == role).collect();
        // Drawn even if nobody is there, so that what follows is the same.
        let place = pick(&mut self.random, of_role.len().max(1));
        of_role.get(place).map(|process| (*process).clone())
    }

    fn signal(&self, process: &Found, signal: Signal) {
        match signal {
            Signal::STOP => self.soak.oracle().stops(&process.job, process.attempt),
            _ => self.soak.oracle().hits(&process.job, process.attempt),
        }
        if process.is_alive() {
            // It may have ended since.
            let _ = processes::signal(process.pid, signal);
        }
    }

    fn disk(&mut self, heals: bool) -> Result<String> {
        let (full, left) = (self.below(FULL_MAX), self.random.next_u64() % (64 << 10));
        let is_killed = self.random.next_u64().is_multiple_of(3);
        let world = &self.soak.world;
        let Ok(disk) = &world.disk else { return Ok("there is none".to_owned()) };
        disk.fill(left)?;
        std::thread::sleep(full);
        let mut is_up = !world.has_ended();
        if is_killed {
            if is_up {
                world.kill()?;
            }
            // A full disk may refuse a start; it may not be why something is lost.
            is_up = matches!(world.start(&[])?, Start::Up(_));
        }
        disk.free()?;
        if !is_up {
            self.start()?;
            return Ok("full and refused, started with room".to_owned());
        }
        if heals {
            return self.healed(left);
        }
        if !self.soak.world.has_ended() {
            self.soak.world.kill()?;
        }
        self.start()?;
        Ok("full, started again with room".to_owned())
    }

    /// Whether a job is taken again, within a while.
    fn healed(&mut self, seed: u64) -> Result<String> {
        let (since, mut random) = (Instant::now(), ChaCha8Rng::seed_from_u64(seed));
        while since.elapsed() < HEALED_WITHIN {
            if self.soak.world.has_ended() {
                self.start()?;
                return Ok("full, ended by itself, started with room".to_owned());
            }
            self.probes += 1;
            let name = format!("probe-{}", self.probes);
            if client::submit(self.soak, &name, Kind::Plain, &mut random)? {
                self.soak.oracle().verdicts.ran(Scenario::Heal, "takes jobs again by itself");
                return Ok("full, healed with room".to_owned());
            }
            std::thread::sleep(Duration::from_millis(500));
        }
        self.fail(Scenario::Heal, &format!("no job is taken {HEALED_WITHIN:?} after the disk has room again"));
        self.soak.oracle().verdicts.ran(Scenario::Heal, "had to be started again");
        self.soak.world.kill()?;
        self.start()?;
        Ok("full, started again with room".to_owned())
    }
}
