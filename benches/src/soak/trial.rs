//! One run from its start to its report.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::{Duration, Instant, SystemTime};

use anyhow::{Context as _, Result, bail};
use clap::{Parser, ValueEnum as _};

use super::chaos::Chaos;
use super::jobs::SCRIPT;
use super::oracle::Oracle;
use super::record::Record;
use super::verdict::{Check, Scenario};
use super::world::{Start, World};
use super::{client, scan, watch};
use crate::binary::binary;

/// Clients at a time.
const CLIENTS: u64 = 2;
/// Until all jobs are over once nothing is done to them any more: pauses after faults are at most a minute.
const DRAINED_WITHIN: Duration = Duration::from_secs(240);
/// Until all processes are gone after that.
const GONE_WITHIN: Duration = Duration::from_secs(15);
/// Memory counts from here on, and may grow by so many hundredths in an hour.
const SETTLED_AFTER: Duration = Duration::from_secs(3_600);
const GROWTH_MAX: f64 = 5.0;
/// Memory is judged if it was looked at for so long.
const JUDGED_FROM: Duration = Duration::from_secs(1_800);

/// Options of `soak`.
#[derive(Parser)]
#[command(
    name = "soak",
    about = "Faults of all kinds for as long as one likes; an oracle with a record of its own holds the product to its answers"
)]
struct Options {
    /// How long.
    #[arg(long, default_value_t = 120, value_parser = clap::value_parser!(u64).range(1..=100_000))]
    minutes: u64,
    /// Repeats what is done, in its order [default: by the clock]
    #[arg(long)]
    seed: Option<u64>,
    /// Only these (may be repeated).
    #[arg(long, value_name = "NAME")]
    only: Vec<Scenario>,
    /// All but these (may be repeated).
    #[arg(long, value_name = "NAME")]
    without: Vec<Scenario>,
}

/// What everybody who takes part needs.
#[derive(Debug)]
pub(super) struct Soak {
    pub(super) world: World,
    pub(super) seed: u64,
    pub(super) began: Instant,
    oracle: Mutex<Oracle>,
    /// Samples of the control plane's memory, in KiB.
    pub(super) memory: Mutex<Vec<(Duration, u64)>>,
    /// Closed while nobody may ask.
    gate: RwLock<()>,
    /// Clients send nothing more.
    pub(super) is_quiet: AtomicBool,
    /// Nobody looks any more.
    pub(super) is_over: AtomicBool,
}

impl Soak {
    pub(super) fn oracle(&self) -> MutexGuard<'_, Oracle> {
        self.oracle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Held while something is asked.
    pub(super) fn pass(&self) -> RwLockReadGuard<'_, ()> {
        self.gate.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Held while nobody may ask.
    pub(super) fn close(&self) -> RwLockWriteGuard<'_, ()> {
        self.gate.write().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Runs, and prints what came of it; whether all held.
///
/// # Errors
/// When it can't be run to its end.
pub(crate) fn run(options: &[String]) -> Result<bool> {
    let arguments = std::iter::once("soak").chain(options.iter().map(String::as_str));
    let options = match Options::try_parse_from(arguments) {
        Ok(options) => options,
        Err(error) => {
            error.print().context("print how it is used")?;
            return Ok(!error.use_stderr());
        }
    };
    let seed = options.seed.unwrap_or_else(by_the_clock);
    let root = xtask::environment::target()?.join(format!("soak/{seed}-{}", std::process::id()));
    let program = binary()?;
    println!("{} for {} min at --seed {seed}, in {}", program.display(), options.minutes, root.display());
    let soak = prepare(program, root.clone(), seed)?;
    let ended = take_part(&soak, &options);
    soak.is_over.store(true, Ordering::Relaxed);
    let holds = report(&soak, ended);
    drop(soak);
    if holds {
        std::fs::remove_dir_all(&root).with_context(|| format!("remove {}", root.display()))?;
    } else {
        println!(
            "\nrecord.jsonl, up.log and witness/ are in {0}; the data folder: mount -o loop {0}/disk.img {0}/data",
            root.display()
        );
    }
    Ok(holds)
}

fn by_the_clock() -> u64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |time| time.as_secs())
}

fn prepare(program: PathBuf, root: PathBuf, seed: u64) -> Result<Soak> {
    let world = World::new(program, root)?;
    std::fs::write(world.path("job.bash"), SCRIPT).context("write the jobs' program")?;
    let oracle = Oracle::new(Record::create(&world.path("record.jsonl"))?);
    if let Start::Refused(log) = world.start(&[])? {
        bail!("the control plane doesn't start in a new folder: {log}");
    }
    Ok(Soak {
        world,
        seed,
        began: Instant::now(),
        oracle: Mutex::new(oracle),
        memory: Mutex::default(),
        gate: RwLock::default(),
        is_quiet: AtomicBool::new(false),
        is_over: AtomicBool::new(false),
    })
}

/// Everybody takes part until the time is over and all jobs are.
fn take_part(soak: &Soak, options: &Options) -> Result<()> {
    let may_run = |scenario: Scenario| {
        let is_asked = options.only.is_empty() || options.only.contains(&scenario);
        is_asked && !options.without.contains(&scenario)
    };
    for scenario in Scenario::value_variants().iter().filter(|scenario| !may_run(**scenario)) {
        soak.oracle().verdicts.skips(*scenario, "as asked");
    }
    let disk = soak.world.disk.as_ref().err();
    for scenario in [Scenario::Disk, Scenario::Heal].into_iter().filter(|scenario| may_run(*scenario)) {
        if let Some(why) = disk {
            println!("skipped: {}: {why}", scenario.name());
            soak.oracle().verdicts.skips(scenario, why);
        }
    }
    let mut chaos = Chaos::new(soak, |scenario| may_run(scenario) && (disk.is_none() || scenario != Scenario::Disk));
    std::thread::scope(|scope| {
        let clients: Vec<_> = (1..=CLIENTS).map(|number| scope.spawn(move || client::run(soak, number))).collect();
        let shown = scope.spawn(|| watch::shown(soak));
        scope.spawn(|| watch::processes(soak));
        scope.spawn(|| progress(soak));
        let did = chaos.run(Duration::from_secs(options.minutes * 60), may_run(Scenario::Heal));
        soak.is_quiet.store(true, Ordering::Relaxed);
        chaos.resume(true);
        let sent: Result<Vec<()>> =
            clients.into_iter().map(|client| client.join().unwrap_or_else(|_| bail!("a client panicked"))).collect();
        let ended = did.and_then(|()| sent.map(drop)).and_then(|()| drain(soak, &chaos));
        soak.is_over.store(true, Ordering::Relaxed);
        let shown = shown.join().unwrap_or_else(|_| bail!("who looks on panicked"));
        ended.and(shown)
    })
}

/// Says from time to time how far it is.
fn progress(soak: &Soak) {
    const EVERY: Duration = Duration::from_secs(30);
    let mut said = Instant::now();
    while !soak.is_over.load(Ordering::Relaxed) {
        if said.elapsed() >= EVERY {
            said = Instant::now();
            let (after, counts) = (soak.began.elapsed().as_secs(), soak.oracle().counts);
            let (acknowledged, ended) = (counts.acknowledged, counts.ended);
            eprintln!(
                "after {after} s: {acknowledged} jobs acknowledged, {ended} ended, {} unanswered",
                counts.unknown
            );
        }
        std::thread::sleep(Duration::from_millis(200));
    }
}

/// All jobs come to their end, all are looked at once more, all processes go.
fn drain(soak: &Soak, chaos: &Chaos<'_>) -> Result<()> {
    if let Ok(disk) = &soak.world.disk {
        disk.free()?;
    }
    if soak.world.has_ended() {
        chaos.start()?;
    }
    let since = Instant::now();
    while !soak.oracle().outstanding().is_empty() && since.elapsed() < DRAINED_WITHIN {
        std::thread::sleep(Duration::from_millis(200));
    }
    let left = soak.oracle().outstanding();
    if !left.is_empty() {
        let text = format!("{} jobs aren't over {DRAINED_WITHIN:?} after the last fault: {left:?}", left.len());
        soak.oracle().breach(Check::Lost, text);
    }
    let known = soak
        .oracle()
        .jobs
        .iter()
        .filter_map(|(name, job)| Some((name.clone(), job.id.clone().filter(|_| !job.is_lost())?)))
        .collect::<Vec<_>>();
    for (name, id) in known {
        if !watch::show(soak, &name, &id, None)? {
            soak.oracle().breach(Check::Told, format!("{id} can't be shown"));
        }
    }
    soak.world.stop()?;
    let since = Instant::now();
    let mut processes = scan::attempts(&soak.world.data());
    while !processes.is_empty() && since.elapsed() < GONE_WITHIN {
        std::thread::sleep(Duration::from_millis(200));
        processes = scan::attempts(&soak.world.data());
    }
    for process in processes {
        soak.oracle().breach(Check::Orphan, format!("left at the end: {process:?}"));
    }
    Ok(())
}

/// Prints the figures and the verdicts; whether all hold.
fn report(soak: &Soak, ended: Result<()>) -> bool {
    let mut oracle = soak.oracle();
    if ended.is_ok() {
        oracle.close();
    }
    let memory = soak.memory.lock().unwrap_or_else(PoisonError::into_inner);
    let settled: Vec<(Duration, u64)> = memory.iter().copied().filter(|(at, _)| *at >= SETTLED_AFTER).collect();
    let is_judged = settled.len() > 1 && settled[settled.len() - 1].0 - settled[0].0 >= JUDGED_FROM;
    let growth = scan::growth_per_hour(if is_judged { &settled } else { &memory });
    if let Some(growth) = growth.filter(|growth| is_judged && *growth > GROWTH_MAX) {
        oracle.breach(Check::Memory, format!("{growth:.1} % an hour after the first, at most {GROWTH_MAX} %"));
    }
    let counts = oracle.counts;
    let seconds = |nanos: u64| Duration::from_nanos(nanos).as_secs();
    let of = |at: Option<&(Duration, u64)>| at.map_or(0, |(_, kib)| kib / 1_024);
    println!("\n{:<60} {:>8}", "figures, measured", "");
    let line = |what: &str, figure: u64, unit: &str| println!("         {what:<53} {figure:>7} {unit}");
    line("jobs sent", counts.sent, "");
    line("jobs acknowledged", counts.acknowledged, "");
    line("submissions that weren't answered", counts.unknown, "");
    line("submissions refused", counts.refused, "");
    line("cancellations acknowledged", counts.cancelled, "");
    line("jobs that ended", counts.ended, "");
    line("attempts of these", counts.attempts, "");
    line("attempts hit just as they had come to their end", counts.excused, "");
    line("jobs told to be lost", counts.told_lost, "");
    line("device time booked, of jobs untouched by a told loss", seconds(counts.booked_nanos), "s");
    line("device time that witnesses saw", seconds(counts.witnessed_nanos), "s");
    line("control plane's memory at first", of(memory.first()), "MiB");
    line("control plane's memory at last", of(memory.last()), "MiB");
    let growth = growth.map_or_else(|| "unknown".to_owned(), |growth| format!("{growth:.1} %"));
    let from = if is_judged { "after the first hour, at most 5 %" } else { "not judged: the run is short" };
    println!("         growth of its memory an hour: {growth} ({from})");
    oracle.verdicts.print();
    if let Err(error) = &ended {
        println!("\nended early: {error:#}");
    }
    println!("\n{}", if ended.is_ok() && oracle.verdicts.hold() { "all held" } else { "NOT ALL HELD" });
    ended.is_ok() && oracle.verdicts.hold()
}
