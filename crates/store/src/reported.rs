//! What supervisors reported of an attempt, as it is stored in a job's document and in the journal. The wire has
//! types of its own (`execution::protocol`), which `control/src/reported.rs` converts as they come in, so that the
//! protocol may change without the stored form.

use std::collections::BTreeMap;

use gangline_base::{Bucket, Buckets, GpuSeconds, Phase, Timestamp};
use serde::{Deserialize, Serialize};

/// Nanoseconds since the Unix epoch.
pub type UnixNanos = u64;

/// The last report of a share's supervisor.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ReportRecord {
    /// The supervisor's process id.
    pub supervisor_pid: u32,
    /// When the report was sent.
    pub sent_at: UnixNanos,
    /// When the supervisor started.
    pub started_at: UnixNanos,
    /// The share's state.
    pub state: ShareStateRecord,
    /// The node's ranks.
    pub ranks: Vec<RankRecord>,
    /// The devices' time by bucket, from `started_at` to the report or to the end.
    pub usage: UsageRecord,
    /// When the first rank reached each phase.
    pub marks: MarksRecord,
    /// The last durable checkpoint that a rank announced.
    pub checkpoint: Option<SavedRecord>,
    /// The number of checkpoints that this node announced in this attempt.
    pub checkpoints: u32,
    /// The bytes of those checkpoints.
    pub checkpoint_bytes: u64,
    /// Where the gang's ranks meet, as its first node offers it.
    pub rendezvous: Option<RendezvousRecord>,
    /// Faults of the node itself that the supervisor's checks found.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub findings: Vec<FindingRecord>,
    /// The rank without progress that is nearest to being given up, if any has shown none for a while.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub silence: Option<SilenceRecord>,
    /// What the ranks asked for of each dataset, by its address.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub dataset_reads: BTreeMap<String, DatasetReadsRecord>,
}

/// What was asked for of a dataset: billed requests, retries included, those that failed, and the bytes that came.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DatasetReadsRecord {
    /// Ranges of objects.
    pub get: u64,
    /// Looks at an object's state.
    pub head: u64,
    /// Pages of listings.
    pub list: u64,
    /// Objects, or parts of them, that were written.
    #[serde(default, skip_serializing_if = "is_none")]
    pub put: u64,
    /// Requests that ended with a server error or without an answer.
    #[serde(default, skip_serializing_if = "is_none")]
    pub failed: u64,
    /// Bytes that were fetched.
    pub bytes: u64,
    /// Those of them that came from the region that the node is in.
    #[serde(default, skip_serializing_if = "is_none")]
    pub in_region_bytes: u64,
    /// Those that came from another region. Of the rest, one of the two regions isn't known.
    #[serde(default, skip_serializing_if = "is_none")]
    pub cross_region_bytes: u64,
}

impl DatasetReadsRecord {
    /// Returns the sums.
    #[must_use]
    pub const fn and(self, other: DatasetReadsRecord) -> DatasetReadsRecord {
        DatasetReadsRecord {
            get: self.get.saturating_add(other.get),
            head: self.head.saturating_add(other.head),
            list: self.list.saturating_add(other.list),
            put: self.put.saturating_add(other.put),
            failed: self.failed.saturating_add(other.failed),
            bytes: self.bytes.saturating_add(other.bytes),
            in_region_bytes: self.in_region_bytes.saturating_add(other.in_region_bytes),
            cross_region_bytes: self.cross_region_bytes.saturating_add(other.cross_region_bytes),
        }
    }
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes references")]
pub(crate) fn is_none(count: &u64) -> bool {
    *count == 0
}

/// The state of a node's share of an attempt.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "is")]
pub enum ShareStateRecord {
    /// The setup command runs, or the gang's nodes wait for each other.
    Preparing,
    /// The ranks run.
    Running {
        /// When they started.
        since: UnixNanos,
    },
    /// All processes of the attempt on this node are gone.
    Ended {
        /// When the last one ended.
        at: UnixNanos,
        /// How it ended.
        outcome: OutcomeRecord,
    },
}

/// How a node's share of an attempt ended.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "is")]
pub enum OutcomeRecord {
    /// All ranks exited with 0.
    Succeeded,
    /// A rank said that a restart won't help.
    DoNotRestart {
        /// The rank and its last lines.
        fault: FaultRecord,
    },
    /// A rank saved and asked to be queued again.
    Requeue,
    /// A failure: the first by time.
    Fault {
        /// The first failure.
        fault: FaultRecord,
    },
    /// Stopped by an order before anything failed.
    Stopped,
    /// Stopped by something other than the control plane before anything failed.
    Terminated,
    /// The ranks could not be started for a reason that isn't the job's.
    Unable {
        /// The operating system's error.
        message: String,
    },
}

/// The first failure of a node.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct FaultRecord {
    /// The global rank that failed first; none if the setup or the supervisor itself failed.
    pub rank: Option<u32>,
    /// The kind of failure.
    pub cause: FaultCauseRecord,
    /// When it was noticed.
    pub noticed_at: UnixNanos,
    /// The last sign of life before the fault, which lies between the two.
    pub last_sign_of_life: UnixNanos,
    /// The rank's last log lines.
    pub last_lines: Vec<String>,
    /// The diagnosis of the ranks' logs, if it is clear enough.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub diagnosis: Option<Box<DiagnosisRecord>>,
}

/// Why the ranks failed, estimated from their logs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DiagnosisRecord {
    /// The category of the cause.
    pub category: String,
    /// The cause within its category.
    pub subcategory: String,
    /// The confidence, from 0 to 1.
    pub confidence: f64,
    /// One sentence on what happened.
    pub summary: String,
    /// What to do about it.
    pub advice: String,
    /// The rank in which the failure began.
    pub rank: Option<u32>,
    /// Whether this cause often follows from another.
    #[serde(default)]
    pub is_consequence: bool,
    /// The log lines that support it.
    pub evidence: Vec<String>,
}

/// How a process failed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "is")]
pub enum FaultCauseRecord {
    /// The process exited with this code.
    Exit {
        /// The exit code.
        code: i32,
    },
    /// A signal killed the process.
    Signal {
        /// The signal's number.
        signal: i32,
    },
    /// The setup command failed.
    Setup {
        /// The command's exit code, or 128 + signal.
        code: i32,
    },
    /// The process could not be started.
    Start {
        /// The operating system's error.
        message: String,
    },
    /// The gang's other nodes didn't come to the rendezvous in time.
    Rendezvous,
    /// The ranks hung.
    Hang {
        /// The length of the rank's silence.
        silent_ms: u64,
        /// The length that was allowed.
        limit_ms: u64,
    },
    /// A rank reported a loss that was NaN or infinite in too many steps in a row.
    NotFinite {
        /// The last of these steps.
        step: u64,
        /// The number of these steps.
        steps: u32,
    },
    /// The supervisor was lost together with its ranks.
    SupervisorLost,
}

/// The state of one rank.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RankRecord {
    /// The global rank.
    pub rank: u32,
    /// The process id, while it runs.
    pub pid: Option<u32>,
    /// The current phase, if the rank reports phases.
    pub phase: Option<Phase>,
    /// The last finished step.
    pub step: Option<u64>,
    /// The step at which the rank will end, if it reports one.
    pub total_steps: Option<u64>,
    /// Tokens processed since the attempt started.
    pub tokens: u64,
    /// The time spent so far, by phase, if the rank reports phases.
    #[serde(default)]
    pub work: WorkRecord,
}

/// The work of a rank in an attempt.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct WorkRecord {
    /// The number of finished steps.
    pub steps: u64,
    /// Nanoseconds spent computing.
    pub compute_nanos: u64,
    /// Nanoseconds spent waiting for data.
    pub data_nanos: u64,
}

/// When the first rank reached each phase.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MarksRecord {
    /// Start of the ranks.
    pub ranks_started: Option<UnixNanos>,
    /// When the first rank began to restore.
    pub restore_began: Option<UnixNanos>,
    /// When the last rank had restored.
    pub restore_ended: Option<UnixNanos>,
    /// End of the first step.
    pub first_step: Option<UnixNanos>,
}

/// A durable checkpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SavedRecord {
    /// The checkpoint's step.
    pub step: u64,
    /// The bytes of all ranks.
    pub bytes: u64,
    /// When the rank announced it.
    pub at: UnixNanos,
}

/// Where the ranks meet.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RendezvousRecord {
    /// MASTER_ADDR.
    pub address: String,
    /// MASTER_PORT.
    pub port: u16,
}

/// A fault of a node that a check found.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FindingRecord {
    /// The check and its subject, such as `gpu gpu 3`.
    pub place: String,
    /// The observation.
    pub measured: String,
}

/// A rank that shows no progress.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SilenceRecord {
    /// The global rank.
    pub rank: u32,
    /// Milliseconds since its last sign of progress.
    pub silent_ms: u64,
    /// Milliseconds of silence after which it counts as hung.
    pub limit_ms: u64,
}

/// Device time by bucket in nano-GPU-seconds, by [`Bucket::name`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct UsageRecord(pub BTreeMap<String, u64>);

impl From<&UsageRecord> for Buckets {
    /// Counts buckets that this version doesn't know as idle, so that no time is lost.
    fn from(usage: &UsageRecord) -> Self {
        let mut buckets = Buckets::default();
        for (name, nanos) in &usage.0 {
            let bucket = Bucket::from_name(name).unwrap_or(Bucket::Idle);
            buckets[bucket] = buckets[bucket] + GpuSeconds::from_nanos(u128::from(*nanos));
        }
        buckets
    }
}

/// When the launcher's own system allocated an attempt's nodes, by its clock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct AllocationRecord {
    /// When the nodes were allocated; none while the gang waits in that system's queue, or if it never left it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<Timestamp>,
    /// When they were released, if that is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub to: Option<Timestamp>,
}
