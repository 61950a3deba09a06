//! The quirk of Muri's published simulator, for reproducing its published figures.
//!
//! Iterations are 1.5 % slower than the trace says, and a model's start-up overhead is subtracted from the
//! progress of every interval between two events in which a job runs, preempted or not. Overheads by model
//! and number of accelerators are the profile in Muri's source (Rivendile/Muri, simulator/run_sim.py; Zhao et
//! al., SIGCOMM'22).

use std::time::Duration;

/// Overheads in seconds for 1, 2, 4, 8, 16 and 32 accelerators.
const OVERHEADS: [(&str, [u64; 6]); 8] = [
    ("vgg16", [7, 7, 8, 9, 9, 10]),
    ("vgg19", [7, 7, 8, 9, 10, 10]),
    ("resnet18", [4, 5, 5, 7, 7, 7]),
    ("shufflenet_v2_x1_0", [4, 4, 5, 5, 7, 8]),
    ("bert", [10, 10, 10, 10, 10, 10]),
    ("gpt2", [10, 10, 10, 10, 10, 10]),
    ("a2c", [38, 39, 39, 46, 46, 46]),
    ("dqn", [5, 5, 6, 6, 8, 8]),
];

/// The overhead of models without a profile.
const OTHER: u64 = 10;

/// Returns what a job loses in each interval.
pub(crate) fn overhead(model: &str, gpus: u32) -> Duration {
    let class = (gpus.max(1).ilog2() as usize).min(5);
    let found = OVERHEADS.iter().find(|(name, _)| *name == model);
    Duration::from_secs(found.map_or(OTHER, |(_, seconds)| seconds[class]))
}

/// Returns the stretched duration of a job: 1.5 % longer.
pub(crate) fn stretched(duration: Duration) -> Duration {
    duration + duration * 15 / 1_000
}
