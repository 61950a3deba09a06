//! The protocol between control plane and supervisor, version 2: JSON over HTTP, and a spec file at the
//! start.
//!
//! These are wire types: versioned, and separate from the core's types. Reports are **cumulative**:
//! each one holds all that the supervisor knows, so a lost, repeated or late report changes nothing, and a
//! control plane that lost its memory learns everything from the next one. Only metric samples are sent
//! incrementally: they are numbered, and sent until they are acknowledged.
//!
//! Flow: the launcher writes a [`SupervisorSpec`] and starts `gangline supervise SPEC`. The supervisor posts
//! a [`Report`] to `/api/v1/supervisors/report` at once, every `heartbeat_ms`, and at every change; the
//! bearer token is the attempt's own. The answer is [`Orders`]. The supervisor exits after it has reported
//! [`NodeState::Ended`] and received `end_acknowledged`.

pub mod agent;
mod container;
mod datasets;
pub mod metrics;
mod sample;

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use gangline_base::{Bucket, Buckets, Bytes, GpuSeconds, Phase};

pub use agent::AgentSpec;
pub use container::{ContainerSpec, VolumeSpec};
pub use datasets::{CACHE_QUOTA, CacheReport, CachedDataset, DatasetReads};
pub use sample::{Sample, SampleMetric, Silence};

/// The newest version; both sides send it. Version 2 added the epoch.
pub const PROTOCOL_VERSION: u32 = 2;
/// The oldest version that is accepted: the previous release's, so that running jobs outlive an upgrade or a
/// downgrade. A control plane answers a report in the report's own version.
pub const PROTOCOL_VERSION_OLDEST: u32 = 1;

/// Reports whether a report, orders or a spec of this version is accepted.
#[must_use]
pub const fn is_understood(version: u32) -> bool {
    PROTOCOL_VERSION_OLDEST <= version && version <= PROTOCOL_VERSION
}

/// Maximum number of samples in one report; the rest follow in the next.
pub const SAMPLES_PER_REPORT_MAX: usize = 1_000;

/// A time on the wire, in nanoseconds since the Unix epoch.
pub type UnixNanos = u64;

/// Everything a supervisor needs to run its node's share of an attempt. The launcher writes it with mode
/// 0600.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SupervisorSpec {
    /// The protocol version, [`PROTOCOL_VERSION`].
    pub version: u32,
    /// The job's number.
    pub job: u64,
    /// The job's name, for log lines and titles.
    pub job_name: String,
    /// The job's queue, by which a launcher's own system may charge it.
    #[serde(default)]
    pub queue: String,
    /// The attempt's number, from 1.
    pub attempt: u32,
    /// The epoch in which the attempt was placed ([`gangline_base::Epoch`]); 0 in specs from before epochs
    /// were recorded.
    #[serde(default)]
    pub epoch: u64,
    /// The name of this node.
    pub node: String,
    /// Index of this node in the gang, from 0 (torchrun's GROUP_RANK).
    pub node_rank: u32,
    /// Number of nodes in the gang.
    pub node_count: u32,
    /// Number of ranks on each node (LOCAL_WORLD_SIZE).
    pub ranks_per_node: u32,
    /// Devices of this node that the job holds, in rank order.
    pub devices: Vec<u32>,
    /// The accelerator's kind; `cpu` for CPU slots, for which CUDA_VISIBLE_DEVICES isn't set.
    pub device_kind: String,
    /// Whether the launcher chose the devices: CUDA_VISIBLE_DEVICES is then left as it is.
    #[serde(default)]
    pub keeps_visible_devices: bool,
    /// CPU cores of this node that the job holds; 0 if it requested none.
    #[serde(default)]
    pub cpus: u32,
    /// Memory of this node that the job holds, in bytes; 0 if it requested none.
    #[serde(default)]
    pub memory_bytes: u64,
    /// Time limit of the job; enforced by the control plane.
    #[serde(default)]
    pub time_limit_ms: Option<u64>,
    /// Working directory of the ranks.
    pub workdir: PathBuf,
    /// The job's own environment variables.
    pub envs: BTreeMap<String, String>,
    /// The container image in which setup and ranks run; none: they run on the node itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub container: Option<ContainerSpec>,
    /// Shell command that runs once before the ranks.
    pub setup: Option<String>,
    /// Shell command of each rank.
    pub run: String,
    /// The job's checkpoint folder (GANGLINE_CHECKPOINT_DIR).
    pub checkpoint_dir: Option<PathBuf>,
    /// Number of the job's faults so far (TORCHELASTIC_RESTART_COUNT).
    pub faults: u32,
    /// The job's fault budget (TORCHELASTIC_MAX_RESTARTS).
    pub max_faults: u32,
    /// The metric to send with samples, if the job belongs to a sweep that compares its jobs by one.
    #[serde(default)]
    pub metric: Option<String>,
    /// The highest step that an earlier attempt reached; repeated steps up to it are booked as lost work.
    pub high_water_step: u64,
    /// Resume from a checkpoint before this step (GANGLINE_RESTORE_BELOW), since the loss diverged at it.
    #[serde(default)]
    pub restore_below: Option<u64>,
    /// Skip the training data up to this step (GANGLINE_SKIP_DATA_THROUGH), since the loss diverged there
    /// repeatedly.
    #[serde(default)]
    pub skip_data_through: Option<u64>,
    /// The attempt's token.
    pub token: String,
    /// A file with the control plane's URL as its only line, next to its certificates (see
    /// [`crate::endpoint`]); read again for each report.
    pub endpoint_file: PathBuf,
    /// This node's folder of the attempt: logs, exit records, supervisor.json, supervisor.log.
    pub folder: PathBuf,
    /// The host name or address by which the gang's other nodes reach this one.
    pub address: String,
    /// Interval between two reports.
    pub heartbeat_ms: u64,
    /// After this long without contact to the control plane, the supervisor stops its ranks and exits.
    pub orphan_after_ms: u64,
    /// Hang time-out: silence without a step, phase or output. 0: never; none: learned from the ranks.
    #[serde(default)]
    pub hang_timeout_ms: Option<u64>,
    /// How long the supervisor waits for a control plane that is away once the attempt's end is on the disk; by default as long
    /// as for one that is away while ranks run. Set where waiting keeps devices from others.
    #[serde(default)]
    pub end_wait_ms: Option<u64>,
    /// Source of the cloud's notice of reclaiming the machine: `aws`, `gcp`, `azure`, a URL or a file.
    #[serde(default)]
    pub notice_source: Option<String>,
    /// If set, the supervisor starts an agent that reads its node while no other agent does. The launcher's own
    /// system has nodes that nobody has installed an agent on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agent: Option<AgentSpec>,
    /// Size at which a rank's log is rotated. One old file is kept, so a log takes at most twice this.
    pub log_bytes_max: u64,
}

/// A supervisor's report: everything it knows.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// The protocol version, [`PROTOCOL_VERSION`].
    pub version: u32,
    /// The job's number.
    pub job: u64,
    /// The attempt's number.
    pub attempt: u32,
    /// The epoch from the spec. A report whose epoch differs from the attempt's is about another attempt of
    /// that number.
    #[serde(default)]
    pub epoch: u64,
    /// The node's name.
    pub node: String,
    /// The supervisor's process id.
    pub supervisor_pid: u32,
    /// Time at which the report was sent.
    pub sent_at: UnixNanos,
    /// Start time of the supervisor.
    pub started_at: UnixNanos,
    /// State of the node's share of the attempt.
    pub state: NodeState,
    /// Reports on the node's ranks.
    pub ranks: Vec<RankReport>,
    /// Device time by bucket, all ranks together, from `started_at` to now (or to the end).
    pub usage: UsageReport,
    /// Times of first occurrences.
    pub marks: Marks,
    /// The last durable checkpoint that a rank announced.
    pub checkpoint: Option<CheckpointReport>,
    /// Number of checkpoints that this node announced in this attempt.
    pub checkpoints: u32,
    /// Total bytes of those checkpoints.
    pub checkpoint_bytes: u64,
    /// Where the gang's ranks will meet; offered by node 0.
    pub rendezvous: Option<Rendezvous>,
    /// The cloud's notice that the machine is about to be taken back, if there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub notice: Option<Notice>,
    /// Faults of the node itself that the supervisor's checks found, and checks that didn't answer.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub findings: Vec<NodeFinding>,
    /// The rank without progress that is nearest to being given up, if any has shown none for a while.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub silence: Option<Silence>,
    /// What the cache of datasets that the ranks use holds, as it was last looked at.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cache: Option<CacheReport>,
    /// What the job's programs asked for of each dataset on this node, by its address, since the attempt started.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub dataset_reads: BTreeMap<String, DatasetReads>,
    /// How much the archives of checkpoints hold that the job's programs on this node have pushed to, by their addresses.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub archives: BTreeMap<String, Bytes>,
    /// Samples, starting with number `samples_from`.
    pub samples: Vec<Sample>,
    /// The number of the first of `samples`. Numbers start at 0 in each attempt.
    pub samples_from: u64,
}

/// A cloud's notice that the machine is about to be taken back.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Notice {
    /// Text of the notice.
    pub text: String,
    /// Time at which the supervisor found it.
    pub seen_at: UnixNanos,
}

/// A problem of the node itself that a check found.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeFinding {
    /// The check and its subject, such as `gpu gpu 3`.
    pub place: String,
    /// The observation; for a check that hung, how long the supervisor waited.
    pub measured: String,
}

/// State of a node's share of an attempt.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "is")]
pub enum NodeState {
    /// The setup command is running or the rendezvous isn't complete.
    Preparing,
    /// The ranks are running.
    Running {
        /// Start time of the ranks.
        since: UnixNanos,
    },
    /// All processes of the attempt on this node are gone.
    Ended {
        /// Time of the end.
        at: UnixNanos,
        /// The outcome.
        outcome: Outcome,
    },
}

/// Outcome of a node's share of an attempt.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "is")]
pub enum Outcome {
    /// All ranks exited with 0.
    Succeeded,
    /// A rank exited with 93: a restart won't help.
    DoNotRestart {
        /// The rank and its last lines.
        fault: Fault,
    },
    /// A rank exited with 94: it has saved and asks to be requeued.
    Requeue,
    /// A failure: the first by time; others follow from it.
    Fault {
        /// The first failure.
        fault: Fault,
    },
    /// Stopped by an order, or as an orphan, before anything failed.
    Stopped,
    /// Stopped because something other than the control plane told the supervisor to end, before anything
    /// failed.
    Terminated,
    /// The ranks could not be started for a reason that isn't the job's: the node lacks processes, memory,
    /// file descriptors or disk space, for example.
    Unable {
        /// The operating system's error.
        message: String,
    },
}

/// The root cause of a node's failure, as far as the supervisor can tell.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Fault {
    /// The global rank that failed first; none if the setup or the supervisor itself failed.
    pub rank: Option<u32>,
    /// The kind of failure.
    pub cause: FaultCause,
    /// Time at which the supervisor noticed.
    pub noticed_at: UnixNanos,
    /// Time of the rank's last message, log line or (without either) start before the fault: the fault lies
    /// between the two. For a rank that never used the protocol it is the time of its end, since its silence
    /// means nothing.
    pub last_sign_of_life: UnixNanos,
    /// The rank's last log lines, at most ten.
    pub last_lines: Vec<String>,
    /// Diagnosis of the ranks' logs, if it is clear enough.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub diagnosis: Option<Box<Diagnosis>>,
}

/// Why the ranks failed, estimated from their logs (docs/reference/diagnosis.md).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Diagnosis {
    /// Category of the cause.
    pub category: String,
    /// The cause within its category.
    pub subcategory: String,
    /// Confidence from 0 to 1.
    pub confidence: f64,
    /// One sentence on what happened.
    pub summary: String,
    /// What to do about it.
    pub advice: String,
    /// The rank in which the failure began.
    pub rank: Option<u32>,
    /// Whether this cause often follows from another, as a lost connection does: a fault of another node may
    /// be behind it.
    #[serde(default)]
    pub is_consequence: bool,
    /// The log lines that support it, at most three.
    pub evidence: Vec<String>,
}

/// How a process failed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "is")]
pub enum FaultCause {
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
        /// Length of the rank's silence.
        silent_ms: u64,
        /// Length allowed, as set by the job or learned from the rank's steps or output.
        limit_ms: u64,
    },
    /// A rank reported a loss that was NaN or infinite in too many steps in a row.
    NotFinite {
        /// The last of these steps.
        step: u64,
        /// The number of these steps that were reported.
        steps: u32,
        /// The first of these steps.
        #[serde(default)]
        since: Option<u64>,
    },
    /// The supervisor was lost together with its ranks; only the control plane reports this.
    SupervisorLost,
}

/// State of one rank.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RankReport {
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
    /// Time of the last output or socket message.
    pub last_sign_of_life: UnixNanos,
    /// Number of log lines and socket messages that were dropped: too long, malformed, or beyond a limit.
    pub dropped: u64,
    /// Time spent so far, by phase, if the rank reports phases.
    #[serde(default)]
    pub work: Work,
}

/// Work of a rank in an attempt, with its time by phase.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Work {
    /// Number of finished steps.
    pub steps: u64,
    /// Nanoseconds spent computing.
    pub compute_nanos: u64,
    /// Nanoseconds spent waiting for data.
    pub data_nanos: u64,
}

/// Times of first occurrences, for the recovery report.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Marks {
    /// Start of the ranks.
    pub ranks_started: Option<UnixNanos>,
    /// Time when the first rank entered `restore`.
    pub restore_began: Option<UnixNanos>,
    /// Time when the last rank left `restore`.
    pub restore_ended: Option<UnixNanos>,
    /// End of the first step.
    pub first_step: Option<UnixNanos>,
}

/// A durable checkpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CheckpointReport {
    /// The checkpoint's step.
    pub step: u64,
    /// Total bytes of all ranks.
    pub bytes: u64,
    /// Time at which the rank announced it.
    pub at: UnixNanos,
}

/// Address at which the ranks meet.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rendezvous {
    /// MASTER_ADDR.
    pub address: String,
    /// MASTER_PORT.
    pub port: u16,
}

/// Device time by bucket in nano-GPU-seconds, by [`Bucket::name`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct UsageReport(pub BTreeMap<String, u64>);

impl From<&Buckets> for UsageReport {
    fn from(buckets: &Buckets) -> Self {
        let nanos = |time: GpuSeconds| u64::try_from(time.nanos()).unwrap_or(u64::MAX);
        UsageReport(buckets.iter().map(|(bucket, time)| (bucket.name().to_owned(), nanos(time))).collect())
    }
}

impl From<&UsageReport> for Buckets {
    /// Books buckets that this version doesn't know as idle, so that no time is lost.
    fn from(report: &UsageReport) -> Self {
        let mut buckets = Buckets::default();
        for (name, nanos) in &report.0 {
            let bucket = Bucket::from_name(name).unwrap_or(Bucket::Idle);
            buckets[bucket] = buckets[bucket] + GpuSeconds::from_nanos(u128::from(*nanos));
        }
        buckets
    }
}

/// The control plane's answer to a [`Report`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Orders {
    /// The protocol version, [`PROTOCOL_VERSION`].
    pub version: u32,
    /// Order to stop the ranks.
    pub stop: Option<StopOrder>,
    /// Where the ranks meet, once node 0 has offered it.
    pub rendezvous: Option<Rendezvous>,
    /// Samples with lower numbers are stored and needn't be sent again.
    pub samples_stored: u64,
    /// The reported end is stored; the supervisor may exit, unless `stay` is set.
    pub end_acknowledged: bool,
    /// The supervisor must stay after its end for now: the allocation it runs in is released together with
    /// those of the gang's other nodes.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub stay: bool,
    /// The next report is due within this many milliseconds, or earlier if there is news. Longer than the
    /// spec's heartbeat where very many supervisors report; none: the spec's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub report_within_ms: Option<u64>,
}

/// An order to stop the ranks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StopOrder {
    /// Time between the save-and-stop message or SIGTERM and SIGKILL.
    pub grace_ms: u64,
    /// The reason, for the rank and the log.
    pub reason: String,
}
