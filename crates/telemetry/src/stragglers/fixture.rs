//! A gang whose steps are made up: a pipeline without interleaving, of which the tests know what should be found.

use super::operation::{Kind, Operation};
use super::read::Trace;

/// How long a forward and a backward pass take.
const FORWARD: f64 = 1.0;
const BACKWARD: f64 = 2.0;
const TRANSFER: f64 = 0.01;
/// Collectives and the optimizer.
const SHORT: f64 = 0.1;

/// What is made.
#[derive(Clone, Copy)]
pub(super) struct Gang {
    pub(super) ranks: u32,
    pub(super) stages: u32,
    pub(super) microbatches: u32,
    pub(super) steps: i64,
}

pub(super) const SMALL: Gang = Gang { ranks: 4, stages: 2, microbatches: 3, steps: 3 };

impl Gang {
    /// A trace in which the passes of a worker (data-parallel rank and stage) take `factor` times as long.
    pub(super) fn trace(&self, factor: impl Fn(u32, u32) -> f64) -> Trace {
        let mut operations = Vec::new();
        for step in 0..self.steps {
            let ends: Vec<Vec<f64>> =
                (0..self.ranks).map(|rank| self.passes(step, rank, &factor, &mut operations)).collect();
            let stages = 0..usize::try_from(self.stages).unwrap();
            let ready: Vec<f64> = stages.map(|stage| ends.iter().map(|ends| ends[stage]).fold(0.0, f64::max)).collect();
            for (rank, ends) in (0..self.ranks).zip(&ends) {
                (0..self.stages).zip(ends).for_each(|(stage, end)| {
                    self.end((step, rank, stage), *end, &ready, &mut operations);
                });
            }
        }
        Trace::new(operations).unwrap()
    }

    fn operation(&self, kind: Kind, (step, dp_rank, stage): (i64, u32, u32), times: (f64, f64)) -> Operation {
        let has_chunk = kind.is_compute() || kind.is_across_data();
        let (start, end) = times;
        Operation {
            dp_rank,
            stage,
            rank: dp_rank * self.stages + stage,
            step,
            kind,
            start,
            duration: end - start,
            sequence: 0,
            chunk: if has_chunk { 0 } else { -1 },
            global_chunk: if has_chunk { i32::try_from(stage).unwrap() } else { -1 },
            microbatch: -1,
        }
    }

    /// All forward passes, then all backward passes; returns when each stage's last one ended. Transfers wait for both ends.
    fn passes(&self, step: i64, rank: u32, factor: &impl Fn(u32, u32) -> f64, into: &mut Vec<Operation>) -> Vec<f64> {
        let stages = usize::try_from(self.stages).unwrap();
        let mut free = vec![SHORT; stages];
        for stage in 0..self.stages {
            into.push(self.operation(Kind::ParamsAllGather, (step, rank, stage), (0.0, SHORT)));
        }
        let forward: Vec<u32> = (0..self.stages).collect();
        let backward: Vec<u32> = (0..self.stages).rev().collect();
        let ways = [
            (Kind::ForwardCompute, Kind::ForwardReceive, Kind::ForwardSend, forward, FORWARD),
            (Kind::BackwardCompute, Kind::BackwardReceive, Kind::BackwardSend, backward, BACKWARD),
        ];
        for (pass, receive, send, order, duration) in ways {
            let mut sent: Option<(f64, u32)> = None;
            for sequence in 0..self.microbatches {
                for stage in &order {
                    let at = usize::try_from(*stage).unwrap();
                    let transferred = sent.take().filter(|_| *stage != order[0]);
                    into.extend(transferred.into_iter().flat_map(|(ready, sender)| {
                        let begun = free[at];
                        free[at] = ready.max(begun) + TRANSFER;
                        let received = self.operation(receive, (step, rank, *stage), (begun, free[at]));
                        let gone = self.operation(send, (step, rank, sender), (ready, free[at]));
                        [Operation { sequence, ..received }, Operation { sequence, ..gone }]
                    }));
                    let begun = free[at];
                    free[at] += duration * factor(rank, *stage);
                    let mut done = self.operation(pass, (step, rank, *stage), (begun, free[at]));
                    (done.sequence, done.microbatch) = (sequence, i32::try_from(sequence).unwrap());
                    into.push(done);
                    sent = Some((free[at], *stage));
                }
            }
        }
        free
    }

    /// The reduction of gradients, which a stage's ranks begin when they can and end together; their norm, which all do
    /// together; and the optimizer. `ready` is when each stage's last rank can.
    fn end(&self, place: (i64, u32, u32), begun: f64, ready: &[f64], into: &mut Vec<Operation>) {
        let reduced = ready[usize::try_from(place.2).unwrap()] + SHORT;
        let clipped = ready.iter().copied().fold(0.0, f64::max) + 2.0 * SHORT;
        into.push(self.operation(Kind::GradsReduceScatter, place, (begun, reduced)));
        into.push(self.operation(Kind::OptimizerClip, place, (reduced, clipped)));
        into.push(self.operation(Kind::Optimizer, place, (clipped, clipped + SHORT)));
    }
}

/// A trace as CSV.
pub(super) fn csv(trace: &Trace) -> String {
    let mut text = super::read::COLUMNS.join(",") + "\n";
    for operation in trace.operations() {
        let Operation { dp_rank, stage, rank, step, kind, start, duration, sequence, chunk, global_chunk, microbatch } =
            operation;
        text += &format!(
            "{dp_rank},{stage},{rank},{step},{sequence},{chunk},{global_chunk},{microbatch},{start},{duration},{}\n",
            kind.name()
        );
    }
    text
}
