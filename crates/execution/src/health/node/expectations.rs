//! The expectations that a node is checked against.

use std::path::PathBuf;
use std::time::Duration;

use gangline_base::Bytes;
use serde::{Deserialize, Serialize};

/// Expectations of a node, and of the runs it is meant for.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Expectations {
    /// Its accelerators; none: any.
    pub accelerators: Option<ExpectedAccelerators>,
    /// Folders that a run writes to: its working directory, its checkpoints.
    pub folders: Vec<PathBuf>,
    /// A node's share of a checkpoint; none: derived from its accelerators.
    pub checkpoint_bytes: Option<Bytes>,
    /// Number of nodes of the run that estimates assume.
    pub nodes: u32,
    /// Step time of that run.
    pub step: Duration,
    /// Path of the kernel's log.
    pub kernel_log: PathBuf,
    /// How far back the kernel's log counts.
    pub kernel_log_window: Duration,
    /// A site's rules for events of GPUs in the kernel's log, over the built-in ones.
    #[serde(default)]
    pub kernel_rules: Option<PathBuf>,
}

/// The accelerators that a node should have.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExpectedAccelerators {
    /// A short kind such as `H100`.
    pub kind: String,
    /// Number of accelerators.
    pub count: u32,
    /// Memory of each; none: any.
    pub memory: Option<Bytes>,
}

impl Default for Expectations {
    /// Assumes a run of 64 nodes with a step of a second, on any node, and a day of the kernel's log.
    fn default() -> Self {
        Expectations {
            accelerators: None,
            folders: Vec::new(),
            checkpoint_bytes: None,
            nodes: 64,
            step: Duration::from_secs(1),
            kernel_log: PathBuf::from("/dev/kmsg"),
            kernel_log_window: Duration::from_secs(24 * 60 * 60),
            kernel_rules: None,
        }
    }
}

/// A GPU's share of the checkpoint of a model of 70 billion parameters on 64 of them (912 GB, MLPerf Storage
/// 2.0).
const CHECKPOINT_BYTES_PER_GPU: u64 = 14_250_000_000;
/// Share of a machine without GPUs: a small model's checkpoint.
const CHECKPOINT_BYTES_WITHOUT: u64 = 1_000_000_000;

impl Expectations {
    /// Returns a node's share of a checkpoint, as given or by the expected number of GPUs.
    pub(super) fn share(&self) -> Bytes {
        let gpus = self.accelerators.as_ref().filter(|accelerators| accelerators.kind != "cpu");
        let by_gpus = gpus.map_or(CHECKPOINT_BYTES_WITHOUT, |gpus| CHECKPOINT_BYTES_PER_GPU * u64::from(gpus.count));
        self.checkpoint_bytes.unwrap_or(Bytes(by_gpus))
    }
}
