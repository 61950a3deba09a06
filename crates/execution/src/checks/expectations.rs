//! What a node is held against.

use std::path::PathBuf;
use std::time::Duration;

use gangline_base::Bytes;
use serde::{Deserialize, Serialize};

/// What is expected of a node, and of the runs that it is for.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Expectations {
    /// Its accelerators; none: whatever it has is right.
    pub accelerators: Option<ExpectedAccelerators>,
    /// Folders that a run writes to: its working directory, its checkpoints.
    pub folders: Vec<PathBuf>,
    /// A node's share of a checkpoint; none: by its accelerators.
    pub checkpoint_bytes: Option<Bytes>,
    /// Nodes of the run that estimates are for.
    pub nodes: u32,
    /// A step of that run.
    pub step: Duration,
    /// Where the kernel says what happened.
    pub kernel_log: PathBuf,
    /// How far back that counts.
    pub kernel_log_window: Duration,
}

/// The accelerators that a node should have.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExpectedAccelerators {
    /// A short kind such as `H100`.
    pub kind: String,
    /// How many.
    pub count: u32,
    /// The memory of each; none: whatever it is.
    pub memory: Option<Bytes>,
}

impl Default for Expectations {
    /// A run of 64 nodes with a step of a second, on any node; a day of the kernel's log.
    fn default() -> Self {
        Expectations {
            accelerators: None,
            folders: Vec::new(),
            checkpoint_bytes: None,
            nodes: 64,
            step: Duration::from_secs(1),
            kernel_log: PathBuf::from("/dev/kmsg"),
            kernel_log_window: Duration::from_secs(24 * 60 * 60),
        }
    }
}

/// A GPU's share of the checkpoint of a model of 70 billion parameters on 64 of them (912 GB, MLPerf Storage 2.0).
const CHECKPOINT_BYTES_PER_GPU: u64 = 14_250_000_000;
/// Of a machine without GPUs: what small models take.
const CHECKPOINT_BYTES_WITHOUT: u64 = 1_000_000_000;

impl Expectations {
    /// A node's share of a checkpoint, by what was said or by how many GPUs it should have.
    pub(super) fn share(&self) -> Bytes {
        let gpus = self.accelerators.as_ref().filter(|accelerators| accelerators.kind != "cpu");
        let by_gpus = gpus.map_or(CHECKPOINT_BYTES_WITHOUT, |gpus| CHECKPOINT_BYTES_PER_GPU * u64::from(gpus.count));
        self.checkpoint_bytes.unwrap_or(Bytes(by_gpus))
    }
}
