//! What a random history is made of. An action names things by index modulo what exists when it runs, so that any part of
//! a history is a history too (which is what the shrinker needs), and prints as Rust that can be pasted into a test.

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};

/// One step of a history.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Action {
    /// A node joins, comes back, or comes back with another capacity.
    Join(Machine),
    /// A node is lost.
    Lose { node: u32 },
    /// A node is drained.
    Drain { node: u32 },
    /// A drain is taken back.
    Undrain { node: u32 },
    /// A job is submitted.
    Submit(Shape),
    /// The ranks of one share run.
    Start { share: u32 },
    /// One share ends.
    End { share: u32, how: How },
    /// Every share of one job ends.
    EndAll { job: u32, how: How },
    /// A running job commits a checkpoint: 0 is a step before its last one, 1 the same, 2 the next.
    Checkpoint { job: u32, steps: u32 },
    /// A job is cancelled.
    Cancel { job: u32 },
    /// Time goes by and nobody looks.
    Wait { millis: u32 },
    /// Time goes by to the next deadline, and the timer goes off.
    Tick,
    /// The control plane dies and starts again, from a snapshot or the whole journal. The last decisions may not have
    /// reached the journal, and the new machine's clock may be behind.
    Restart { snapshot: u32, decisions_lost: u32, clock_back_millis: u32 },
    /// An attempt that is over is said to have started.
    Late { job: u32 },
    /// Something that makes no sense is said about a job or node.
    Nonsense { which: u32 },
}

/// A node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Machine {
    pub(super) name: u32,
    pub(super) kind: u32,
    pub(super) accelerators: u32,
    pub(super) cpus: u32,
    pub(super) gib: u32,
}

/// A job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Shape {
    pub(super) kind: u32,
    pub(super) nodes: u32,
    pub(super) per_node: u32,
    pub(super) cpus: u32,
    pub(super) gib: u32,
    pub(super) priority: u16,
    pub(super) limit_seconds: Option<u32>,
    pub(super) max_faults: u32,
    pub(super) no_progress_limit: u32,
    pub(super) has_checkpoint: bool,
}

/// How a share ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum How {
    /// Exit code 0.
    Succeeded,
    /// Exit code 93.
    DoNotRestart,
    /// Exit code 94.
    Requeue,
    /// On orders, or as an orphan.
    Stopped,
    /// A fault, noticed so long ago.
    Fault { cause: u32, millis_ago: u32 },
}

/// The seed of a history, spent as it is drawn.
struct Dice(ChaCha8Rng);

impl Dice {
    /// From 0 to `limit - 1`.
    fn below(&mut self, limit: u32) -> u32 {
        self.0.next_u32() % limit
    }

    fn between(&mut self, low: u32, high: u32) -> u32 {
        low + self.below(high - low + 1)
    }

    fn percent(&mut self, chance: u32) -> bool {
        self.below(100) < chance
    }

    fn of<T: Copy>(&mut self, choices: &[T]) -> T {
        let limit = u32::try_from(choices.len()).expect("choices are few");
        choices[usize::try_from(self.below(limit)).expect("a usize holds 32 bits")]
    }
}

/// The history of a seed: a cluster to begin with, then anything.
pub(super) fn history(seed: u64, length: usize) -> Vec<Action> {
    let mut dice = Dice(ChaCha8Rng::seed_from_u64(seed));
    let nodes = dice.between(1, 4);
    let mut actions: Vec<Action> = (0..nodes).map(|name| Action::Join(machine(&mut dice, name))).collect();
    actions.extend((0..length).map(|_| action(&mut dice)));
    actions
}

fn action(dice: &mut Dice) -> Action {
    let (node, job, share) = (dice.below(8), dice.below(64), dice.below(64));
    match dice.below(100) {
        0..4 => Action::Join(machine(dice, node)),
        4..8 => Action::Lose { node },
        8..11 => Action::Drain { node },
        11..13 => Action::Undrain { node },
        13..35 => Action::Submit(shape(dice)),
        35..45 => Action::Start { share },
        45..59 => Action::End { share, how: how(dice) },
        59..73 => Action::EndAll { job, how: how(dice) },
        73..78 => Action::Checkpoint { job, steps: dice.below(3) },
        78..82 => Action::Cancel { job },
        82..87 => Action::Wait { millis: dice.of(&[1, 500, 1_000, 20_000, 120_000]) },
        87..93 => Action::Tick,
        93..96 => restart(dice),
        96 => Action::Late { job },
        _ => Action::Nonsense { which: dice.below(64) },
    }
}

fn restart(dice: &mut Dice) -> Action {
    let clock_back_millis = dice.of(&[0, 0, 0, 1, 5_000]);
    Action::Restart { snapshot: dice.below(256), decisions_lost: dice.below(4), clock_back_millis }
}

fn kind(dice: &mut Dice) -> u32 {
    dice.of(&[0, 0, 0, 0, 1, 2])
}

fn machine(dice: &mut Dice, name: u32) -> Machine {
    let accelerators = dice.of(&[1, 2, 4, 4, 8]);
    Machine { name, kind: kind(dice), accelerators, cpus: dice.of(&[4, 8, 16]), gib: dice.of(&[8, 16, 64]) }
}

fn shape(dice: &mut Dice) -> Shape {
    Shape {
        kind: kind(dice),
        nodes: dice.of(&[1, 1, 1, 2, 2, 3]),
        per_node: dice.of(&[1, 1, 2, 2, 3, 4, 8]),
        cpus: dice.of(&[0, 0, 1, 4, 12]),
        gib: dice.of(&[0, 0, 1, 6, 32]),
        priority: dice.of(&[0, 250, 500, 500, 500, 750, 1_000]),
        limit_seconds: if dice.percent(30) { Some(dice.between(1, 60)) } else { None },
        max_faults: dice.of(&[0, 1, 3, 10]),
        no_progress_limit: dice.between(0, 3),
        has_checkpoint: dice.percent(50),
    }
}

fn how(dice: &mut Dice) -> How {
    match dice.below(12) {
        0..3 => How::Succeeded,
        3 => How::DoNotRestart,
        4..7 => How::Requeue,
        7 => How::Stopped,
        _ => How::Fault { cause: dice.below(64), millis_ago: dice.below(3_000) },
    }
}
