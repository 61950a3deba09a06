//! Random histories with crashes: nothing is lost, repeated or booked twice.

use std::collections::BTreeMap;
use std::time::Duration;

use gangline_base::JobId;
use gangline_execution::launcher::IDENTITY_FILE;
use gangline_execution::protocol::{FaultCause, NodeState, Outcome};
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};

use super::super::DrainWish;
use super::{Supervisor, World, fault, spec};

/// The number of histories tried.
const SEEDS: u64 = 24;
/// The number of steps in each history.
const STEPS: usize = 80;
/// The most further steps, in which supervisors don't linger and no job is submitted, so that every job ends.
const LAST_STEPS_MAX: usize = 400;

pub(super) struct Chaos {
    random: ChaCha8Rng,
    pub(super) world: World,
    supervisors: BTreeMap<(u64, u32, String), Supervisor>,
    pub(super) jobs: Vec<JobId>,
}

impl Chaos {
    pub(super) fn new(seed: u64) -> Chaos {
        let world = World::new(&[("n1", 2), ("n2", 2)]);
        let random = ChaCha8Rng::seed_from_u64(seed);
        Chaos { random, world, supervisors: BTreeMap::new(), jobs: Vec::new() }
    }

    pub(super) fn below(&mut self, limit: u32) -> u32 {
        self.random.next_u32() % limit
    }

    fn launch(&mut self) {
        for spec in self.world.launch() {
            std::fs::create_dir_all(&spec.folder).expect("the folder is writable");
            std::fs::write(spec.folder.join(IDENTITY_FILE), "{}").expect("the folder is writable");
            let key = (spec.job, spec.attempt, spec.node.clone());
            let supervisor = Supervisor::new(&spec, self.world.now);
            assert!(self.supervisors.insert(key.clone(), supervisor).is_none(), "{key:?} was launched twice");
        }
    }

    pub(super) fn step(&mut self) {
        match self.below(12) {
            0 | 1 => {
                let (nodes, slots) = (1 + self.below(2), 1 + self.below(2));
                let mut job = spec("a", nodes, slots);
                job.time_limit = (self.below(4) == 0).then_some(Duration::from_secs(8));
                self.jobs.push(self.world.submit(job));
            }
            2 => {
                let job = JobId(1 + u64::from(self.below(10)));
                // The job may have ended or never existed; then the request is refused.
                let _ = self.world.cancel(job);
            }
            3 => {
                let wish = match self.below(3) {
                    0 => DrainWish::Undo,
                    1 => DrainWish::WhenFree,
                    _ => DrainWish::Within(Duration::from_secs(9)),
                };
                self.world.drain("n2", wish).expect("the node is there");
            }
            4 => self.world.crash_and_restart(),
            5 => {
                self.world.stop();
                self.world.open().expect("the folder opens again");
            }
            6 => {
                let pause = Duration::from_millis(u64::from(self.below(2_000)));
                self.world.pass(pause);
            }
            _ => self.supervise(5, 4),
        }
        // The control plane may crash between a placement and its launch.
        if self.below(3) > 0 {
            self.launch();
        }
    }

    /// Lets one supervisor make a move and report it. With odds of 1 in `ends` the move is its end, with one
    /// of `outcomes` outcomes.
    fn supervise(&mut self, ends: u32, outcomes: u32) {
        let count = u32::try_from(self.supervisors.len()).expect("few");
        if count == 0 {
            return;
        }
        let place = usize::try_from(self.below(count)).expect("small");
        let (key, mut supervisor) =
            self.supervisors.iter().nth(place).map(|(k, s)| (k.clone(), s.clone())).expect("it is there");
        let now = self.world.now;
        let step = supervisor.report.ranks[0].step.unwrap_or(0) + 1;
        let outcome = match self.below(outcomes) {
            0 => Outcome::Succeeded,
            1 => fault(FaultCause::Exit { code: 1 }, now),
            2 => Outcome::Requeue,
            _ => Outcome::Stopped,
        };
        match &supervisor.report.state {
            NodeState::Ended { .. } => {}
            _ if self.below(ends) == 0 => drop(supervisor.ends(now, outcome)),
            _ => drop(supervisor.runs(now).steps(now, step).worked(step * 300_000_000).read(step)),
        }
        let orders = supervisor.tell(&mut self.world);
        if orders.stop.is_some() && !matches!(supervisor.report.state, NodeState::Ended { .. }) {
            supervisor.ends(now, Outcome::Stopped);
        }
        if orders.end_acknowledged {
            self.supervisors.remove(&key);
        } else {
            self.supervisors.insert(key, supervisor);
        }
    }

    /// Lets every job come to its end.
    pub(super) fn end_all(&mut self) {
        self.world.drain("n2", DrainWish::Undo).expect("the node is there");
        for _ in 0..LAST_STEPS_MAX {
            self.launch();
            self.supervise(1, 1);
            self.world.pass(Duration::from_millis(1_100));
            if self.world.actor().engine.jobs().len() == 0 {
                break;
            }
        }
    }

    fn check(&mut self) {
        self.world.actor().engine.check_invariants().expect("the engine is sound");
        assert_eq!(self.world.actor().journal.poison(), None);
    }

    /// Checks that every attempt of every job is booked once and that its buckets sum up.
    fn check_books(&mut self) {
        for job in self.jobs.clone() {
            let (shown, booked) = self.world.stored(job).expect("a job that was promised is there");
            assert!(shown.state.is_final(), "{job} is {:?}", shown.state);
            let mut rows = booked.iter().map(|row| (row.attempt, row.node.clone())).collect::<Vec<_>>();
            let mut shares: Vec<(u32, String)> = Vec::new();
            for attempt in &shown.attempts {
                shares.extend(attempt.shares.iter().map(|share| (attempt.number, share.node.clone())));
            }
            rows.sort();
            shares.sort();
            assert_eq!(rows, shares, "{job}");
            for row in &booked {
                let held = row.to.since(row.from).as_nanos() * u128::from(row.devices);
                assert_eq!(row.nanos.iter().map(|nanos| u128::from(*nanos)).sum::<u128>(), held);
            }
        }
    }
}

/// Proves under random histories with crashes at any point between two requests.
#[test]
fn random_histories_with_crashes_lose_repeat_and_double_book_nothing() {
    for seed in 0..SEEDS {
        let mut chaos = Chaos::new(seed);
        for _ in 0..STEPS {
            chaos.step();
            chaos.check();
        }
        chaos.end_all();
        let state = chaos.world.state();
        assert!(state.jobs.is_empty(), "seed {seed}: {} jobs never ended", state.jobs.len());
        chaos.check_books();
        chaos.world.crash_and_restart();
        assert_eq!(chaos.world.state(), state, "seed {seed}");
        chaos.check_books();
    }
}
