//! Histories that once broke the engine, as the tests printed them. Each has to pass every check for ever.

use super::action::Action::{self, Drain, Join, Lose, Restart, Submit, Tick, Undrain};
use super::action::{Machine, Shape};
use super::checks::{BOOKS, JOURNAL, LOST_DECISIONS, NOTHING_CHANGES, REASONS};
use super::world::run;

fn holds(history: &[Action]) {
    for check in [BOOKS, JOURNAL, LOST_DECISIONS, NOTHING_CHANGES, REASONS] {
        if let Err(broken) = run(history, check) {
            panic!("{}: {}", broken.property, broken.detail);
        }
    }
}

const SHAPE: Shape = Shape {
    kind: 0,
    nodes: 1,
    per_node: 1,
    cpus: 0,
    gib: 0,
    priority: 500,
    limit_seconds: None,
    max_faults: 1,
    no_progress_limit: 1,
    has_checkpoint: false,
};

/// Once the drained node is gone, the first in line can't run and steps aside; the one behind it was left waiting.
/// Proves A-4: it had no reason to wait.
#[test]
fn a_drain_lets_those_behind_the_first_in_line_start() {
    holds(&[
        Join(Machine { name: 1, kind: 0, accelerators: 8, cpus: 16, gib: 8 }),
        Join(Machine { name: 7, kind: 0, accelerators: 8, cpus: 4, gib: 16 }),
        Submit(Shape { per_node: 2, nodes: 2, ..SHAPE }),
        Submit(Shape { nodes: 2, per_node: 8, priority: 750, ..SHAPE }),
        Submit(Shape { per_node: 2, ..SHAPE }),
        Drain { node: 1 },
    ]);
}

/// The same when a node is lost that ran nothing.
#[test]
fn a_loss_lets_those_behind_the_first_in_line_start() {
    holds(&[
        Join(Machine { name: 0, kind: 0, accelerators: 4, cpus: 16, gib: 64 }),
        Join(Machine { name: 1, kind: 0, accelerators: 4, cpus: 16, gib: 64 }),
        Submit(SHAPE),
        Submit(Shape { nodes: 2, per_node: 4, ..SHAPE }),
        Submit(SHAPE),
        Lose { node: 1 },
    ]);
}

/// A lost node became ready, and got jobs, when its drain was taken back. Proves A-5: gangs run on nodes that are there.
#[test]
fn a_lost_node_is_not_made_ready_by_undraining_it() {
    holds(&[
        Join(Machine { name: 3, kind: 0, accelerators: 1, cpus: 8, gib: 64 }),
        Lose { node: 0 },
        Undrain { node: 0 },
        Drain { node: 0 },
        Submit(SHAPE),
    ]);
}

/// A drained node took jobs again as soon as its agent, or the control plane, was restarted.
#[test]
fn a_drained_node_stays_drained_when_it_joins_again() {
    holds(&[
        Join(Machine { name: 0, kind: 2, accelerators: 4, cpus: 4, gib: 8 }),
        Drain { node: 0 },
        Join(Machine { name: 0, kind: 0, accelerators: 8, cpus: 8, gib: 8 }),
        Submit(SHAPE),
    ]);
}

/// A job was said to have passed fewer jobs than it had. Proves A-4: a reason is true.
#[test]
fn jobs_behind_one_that_waits_are_passed_too() {
    holds(&[
        Join(Machine { name: 1, kind: 2, accelerators: 2, cpus: 16, gib: 64 }),
        Join(Machine { name: 5, kind: 0, accelerators: 1, cpus: 8, gib: 8 }),
        Submit(SHAPE),
        Submit(SHAPE),
        Submit(SHAPE),
        Submit(Shape { kind: 2, per_node: 2, ..SHAPE }),
    ]);
}

/// Entries written by a clock that had gone back gave other times on replay than when they happened. Proves A-3.
#[test]
fn replay_takes_times_as_they_were_taken() {
    holds(&[
        Join(Machine { name: 6, kind: 0, accelerators: 2, cpus: 4, gib: 16 }),
        Restart { snapshot: 0, decisions_lost: 0, clock_back_millis: 5_000 },
        Submit(Shape { limit_seconds: Some(30), ..SHAPE }),
        Restart { snapshot: 0, decisions_lost: 0, clock_back_millis: 0 },
        Tick,
    ]);
}

/// A node came back with fewer cores than were held; each job that ended then freed cores that were not there, and a
/// restored engine counted others. Proves.
#[test]
fn cores_that_a_node_no_longer_has_are_not_freed() {
    holds(&[
        Join(Machine { name: 3, kind: 0, accelerators: 4, cpus: 16, gib: 64 }),
        Submit(Shape { cpus: 8, gib: 32, ..SHAPE }),
        Submit(Shape { cpus: 8, gib: 32, ..SHAPE }),
        Join(Machine { name: 3, kind: 0, accelerators: 4, cpus: 8, gib: 32 }),
        Action::EndAll { job: 0, how: super::action::How::Succeeded },
        Submit(Shape { cpus: 8, gib: 32, ..SHAPE }),
    ]);
}
