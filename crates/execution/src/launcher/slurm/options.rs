//! What the configuration says of the launcher.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use super::pool::Allocation;
use super::script::JobOptions;
use super::topology::Places;

/// Options of the launcher.
#[derive(Clone)]
pub struct SlurmOptions {
    /// The supervisor's program, at the same path on every node.
    pub program: PathBuf,
    /// The data folder: jobs with a comment below it belong to this control plane.
    pub folder: PathBuf,
    /// The environment of Slurm's programs and of the jobs.
    pub environment: BTreeMap<OsString, OsString>,
    /// Account and partition of the jobs.
    pub job: JobOptions,
    /// Those of the jobs of some queues, in the same partition.
    pub queues: BTreeMap<String, JobOptions>,
    /// Whether gangs have jobs of their own or run in a pool.
    pub allocation: Allocation,
    /// How long a gang may wait in Slurm's queue for nodes that don't come, before it is placed elsewhere.
    pub pending_max: Duration,
    /// The network domains of nodes.
    pub places: Places,
}

impl SlurmOptions {
    /// Returns the options of a queue's jobs.
    pub(super) fn job_of(&self, queue: &str) -> &JobOptions {
        self.queues.get(queue).unwrap_or(&self.job)
    }

    /// Returns all options, with the queue of those that are a queue's.
    pub(super) fn all_jobs(&self) -> impl Iterator<Item = (Option<&str>, &JobOptions)> {
        let of_queues = self.queues.iter().map(|(queue, job)| (Some(queue.as_str()), job));
        std::iter::once((None, &self.job)).chain(of_queues)
    }
}

impl fmt::Debug for SlurmOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SlurmOptions").field("folder", &self.folder).field("job", &self.job).finish_non_exhaustive()
    }
}
