//! What serving would be like: how fast prompts are taken in, and how fast tokens come out.

use super::document::ServingFacts;
use crate::hardware::Cluster;
use crate::search::Candidate;
use crate::units::{Seconds, Volume, real};
use crate::workload::{Task, Workload};

/// Part of the memory's rate that kernels reach which read weights, keys and values once: an assumption, between what attention kernels for
/// single tokens publish and what streaming reaches.
const MEMORY_REACHED: f64 = 0.8;
/// An all-reduce of one token's activations over links: nothing but latency. An assumption for NVLink.
const ALL_REDUCE: Seconds = Seconds::new(10e-6);
/// All-reduces of a layer under tensor parallelism: behind attention and behind the feed-forward work.
const ALL_REDUCES: f64 = 2.0;

/// Figures of serving, if that is the task.
///
/// A token of each sequence needs every weight and all keys and values once: sum over stages of (weights + keys and values) / rate, and the
/// latency of 2 L all-reduces (Pope 2022, arXiv:2211.05102, section 2). With few sequences of a mixture fewer experts are read, so this is the
/// most that it takes. Prompts are a forward pass.
pub(super) fn serving(workload: &Workload, cluster: &Cluster, chosen: &Candidate) -> Option<ServingFacts> {
    if workload.task != Task::Inference {
        return None;
    }
    let read: Volume = chosen.memory.stages.iter().map(|stage| stage.weights + stage.activations).sum();
    let mut each = read / (cluster.accelerator.memory_bandwidth * MEMORY_REACHED);
    if chosen.layout.tensor > 1 {
        each += ALL_REDUCE * (ALL_REDUCES * real(workload.model.layer_count()));
    }
    let prompts = real(workload.sequence * workload.global_batch) / chosen.time.total().get();
    Some(ServingFacts {
        prompt_tokens_per_second: prompts,
        token_seconds: each.get(),
        tokens_per_second: real(workload.global_batch) / each.get(),
    })
}
