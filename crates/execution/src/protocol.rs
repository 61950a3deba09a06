//! What the control plane and a supervisor say to each other, version 2: JSON over HTTP, and a spec file at the start.
//!
//! These are wire types: versioned, and not the core's. Reports are **cumulative**: each one holds all that the
//! supervisor knows, so a lost, repeated or late report changes nothing, and a control plane that lost its memory
//! learns everything from the next one. Only metric samples are sent incrementally, numbered, until acknowledged.
//!
//! Flow: the launcher writes a [`SupervisorSpec`] and starts `gangline supervise SPEC`. The supervisor posts a
//! [`Report`] to `/api/v1/supervisors/report` at once, every `heartbeat_ms`, and at every change; the bearer token is the
//! attempt's own. It gets [`Orders`] back. After it has reported [`NodeState::Ended`] and `end_acknowledged` came
//! back, it exits.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use gangline_base::{Bucket, Buckets, GpuSeconds, MetricValue, Phase};

/// The newest version, which both sides send. Version 2 added the epoch.
pub const PROTOCOL_VERSION: u32 = 2;
/// The oldest version that is understood: that of the release before, so that running jobs outlive an upgrade, or its being
/// taken back. A control plane answers a report in the report's own version.
pub const PROTOCOL_VERSION_OLDEST: u32 = 1;

/// Whether a report, orders or a spec of this version is understood; one of another is refused with an error that says so.
#[must_use]
pub const fn is_understood(version: u32) -> bool {
    PROTOCOL_VERSION_OLDEST <= version && version <= PROTOCOL_VERSION
}

/// Most samples in one report; the rest go with the next.
pub const SAMPLES_PER_REPORT_MAX: usize = 1_000;

/// Times on the wire are nanoseconds since the Unix epoch.
pub type UnixNanos = u64;

/// All a supervisor needs to run its node's share of an attempt. Written by the launcher with mode 0600.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SupervisorSpec {
    /// [`PROTOCOL_VERSION`].
    pub version: u32,
    /// The job's number.
    pub job: u64,
    /// Its name, for log lines and titles.
    pub job_name: String,
    /// The attempt, from 1.
    pub attempt: u32,
    /// The epoch in which the attempt was placed ([`gangline_base::Epoch`]); 0 before epochs were recorded.
    #[serde(default)]
    pub epoch: u64,
    /// This node's name.
    pub node: String,
    /// This node's place in the gang, from 0 (torchrun's GROUP_RANK).
    pub node_rank: u32,
    /// Nodes in the gang.
    pub node_count: u32,
    /// Ranks on each node (LOCAL_WORLD_SIZE).
    pub ranks_per_node: u32,
    /// Devices of this node that belong to the job, in rank order.
    pub devices: Vec<u32>,
    /// The accelerator's kind; `cpu` for CPU slots (no CUDA_VISIBLE_DEVICES is set then).
    pub device_kind: String,
    /// The launcher has made as many devices visible as there are `devices`, which ones was its choice: the CUDA_VISIBLE_DEVICES
    /// that the supervisor finds stays.
    #[serde(default)]
    pub keeps_visible_devices: bool,
    /// CPU cores of this node that belong to the job; 0 if it didn't ask.
    #[serde(default)]
    pub cpus: u32,
    /// Memory of this node that belongs to the job, in bytes; 0 if it didn't ask.
    #[serde(default)]
    pub memory_bytes: u64,
    /// How long the job may run; the control plane sees to that.
    #[serde(default)]
    pub time_limit_ms: Option<u64>,
    /// The folder the ranks start in.
    pub workdir: PathBuf,
    /// The job's own environment variables.
    pub envs: BTreeMap<String, String>,
    /// A shell command run once before the ranks.
    pub setup: Option<String>,
    /// The shell command of each rank.
    pub run: String,
    /// The job's checkpoint folder (GANGLINE_CHECKPOINT_DIR).
    pub checkpoint_dir: Option<PathBuf>,
    /// Faults of this job so far (TORCHELASTIC_RESTART_COUNT).
    pub faults: u32,
    /// Its fault budget (TORCHELASTIC_MAX_RESTARTS).
    pub max_faults: u32,
    /// The metric that samples carry, if the job's sweep compares its jobs by one.
    #[serde(default)]
    pub metric: Option<String>,
    /// The highest step an earlier attempt reached: steps up to it are done again and booked as lost work.
    pub high_water_step: u64,
    /// The job goes on from a checkpoint before this step (GANGLINE_RESTORE_BELOW): its numbers went bad after that one.
    #[serde(default)]
    pub restore_below: Option<u64>,
    /// What it was fed up to this step is to be left out (GANGLINE_SKIP_DATA_THROUGH): they went bad there again.
    #[serde(default)]
    pub skip_data_through: Option<u64>,
    /// The attempt's own token.
    pub token: String,
    /// A file with the control plane's URL as its only line, beside its certificates (see [`crate::endpoint`]); read again
    /// for each report.
    pub endpoint_file: PathBuf,
    /// This node's folder of the attempt: logs, exit records, supervisor.json, supervisor.log.
    pub folder: PathBuf,
    /// The host name or address by which the gang's other nodes reach this one.
    pub address: String,
    /// Between two reports.
    pub heartbeat_ms: u64,
    /// Without contact for this long, the supervisor stops its ranks and exits.
    pub orphan_after_ms: u64,
    /// Without a step, a phase or output for this long, the ranks have hung; 0: never; none: learned from the ranks.
    #[serde(default)]
    pub hang_timeout_ms: Option<u64>,
    /// Where a cloud says that the machine is about to go: `aws`, `gcp`, `azure`, a page or a file; none: nobody says.
    #[serde(default)]
    pub notice_source: Option<String>,
    /// A rank's log is bounded: at this size it is rotated once, so twice this is kept.
    pub log_bytes_max: u64,
}

/// A supervisor's report: everything it knows.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// [`PROTOCOL_VERSION`].
    pub version: u32,
    /// The job's number.
    pub job: u64,
    /// The attempt.
    pub attempt: u32,
    /// The epoch that its spec names: a report of another epoch than the attempt's is about another attempt of that number.
    #[serde(default)]
    pub epoch: u64,
    /// The node's name.
    pub node: String,
    /// The supervisor's process id.
    pub supervisor_pid: u32,
    /// When it was sent.
    pub sent_at: UnixNanos,
    /// When the supervisor started.
    pub started_at: UnixNanos,
    /// Where the node's share of the attempt stands.
    pub state: NodeState,
    /// Each rank.
    pub ranks: Vec<RankReport>,
    /// Device time by bucket, all ranks together, from `started_at` to now (or to the end).
    pub usage: UsageReport,
    /// When what happened first.
    pub marks: Marks,
    /// The last durable checkpoint a rank announced.
    pub checkpoint: Option<CheckpointReport>,
    /// Checkpoints announced by this node in this attempt, and their bytes together.
    pub checkpoints: u32,
    /// Bytes of those checkpoints.
    pub checkpoint_bytes: u64,
    /// Node 0 offers where its ranks will meet.
    pub rendezvous: Option<Rendezvous>,
    /// A cloud's notice that the machine is about to go, as it was found.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub notice: Option<Notice>,
    /// What the supervisor's checks found wrong with the node itself: faults of it, and checks that got no answer.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub findings: Vec<NodeFinding>,
    /// Samples from number `samples_from` on.
    pub samples: Vec<Sample>,
    /// The number of the first of `samples`; numbering starts at 0 with each attempt.
    pub samples_from: u64,
}

/// A cloud's notice.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Notice {
    /// Its text.
    pub text: String,
    /// When it was found.
    pub seen_at: UnixNanos,
}

/// What a check found wrong with a node itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeFinding {
    /// The check and what it looked at, such as `gpu gpu 3`.
    pub place: String,
    /// What was seen; of a check that hung, for how long it was waited for.
    pub measured: String,
}

/// Where a node's share of an attempt stands.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "is")]
pub enum NodeState {
    /// Setup is running or the rendezvous isn't complete.
    Preparing,
    /// The ranks run.
    Running {
        /// Since when.
        since: UnixNanos,
    },
    /// All processes of the attempt on this node are gone.
    Ended {
        /// Since when.
        at: UnixNanos,
        /// How it ended.
        outcome: Outcome,
    },
}

/// How a node's share of an attempt ended.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "is")]
pub enum Outcome {
    /// All ranks exited 0.
    Succeeded,
    /// A rank exited 93: restarting won't help.
    DoNotRestart {
        /// Which, and its last words.
        fault: Fault,
    },
    /// A rank exited 94: it has saved and wants to be queued again.
    Requeue,
    /// Something failed; this is the first failure by time, the others follow from it.
    Fault {
        /// The first failure.
        fault: Fault,
    },
    /// Stopped on orders, or as an orphan, before anything failed.
    Stopped,
    /// Stopped because somebody else told the supervisor to end, before anything failed.
    Terminated,
    /// The ranks could not be started for a reason that isn't the job's: this node has no processes, memory, file descriptors or disk
    /// space left for them, say.
    Unable {
        /// The operating system's reason.
        message: String,
    },
}

/// The root cause of a node's failure, as far as the supervisor can see.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Fault {
    /// The global rank that failed first; none if it was the setup or the supervisor itself.
    pub rank: Option<u32>,
    /// What it did.
    pub cause: FaultCause,
    /// When the supervisor noticed.
    pub noticed_at: UnixNanos,
    /// The last message, log line or (without any) start of that rank before: the fault lies between. Of a rank that never
    /// spoke the protocol it is its end: its silence says nothing.
    pub last_sign_of_life: UnixNanos,
    /// The last lines it logged, at most ten.
    pub last_lines: Vec<String>,
    /// What the ranks' logs say of the cause, if they say something clear.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub diagnosis: Option<Box<Diagnosis>>,
}

/// Why the ranks failed, by their logs (docs/diagnosis.md): estimated.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Diagnosis {
    /// One of the diagnosis' categories.
    pub category: String,
    /// The cause itself.
    pub subcategory: String,
    /// From 0 to 1.
    pub confidence: f64,
    /// What happened, in a sentence.
    pub summary: String,
    /// What to do about it.
    pub advice: String,
    /// The rank where it began.
    pub rank: Option<u32>,
    /// It often follows from something else, as a lost connection does: another node's fault may be the cause.
    #[serde(default)]
    pub is_consequence: bool,
    /// The lines that say so, at most three.
    pub evidence: Vec<String>,
}

/// What a failed process did.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "is")]
pub enum FaultCause {
    /// It exited with this code.
    Exit {
        /// The code.
        code: i32,
    },
    /// A signal killed it.
    Signal {
        /// The signal's number.
        signal: i32,
    },
    /// The setup command failed.
    Setup {
        /// Its exit code, or 128 + signal.
        code: i32,
    },
    /// It could not be started.
    Start {
        /// The operating system's reason.
        message: String,
    },
    /// The gang's other nodes didn't come to the rendezvous in time.
    Rendezvous,
    /// The ranks came to a stand.
    Hang {
        /// For how long nothing was seen of the rank.
        silent_ms: u64,
        /// What was allowed, by its steps or its output so far.
        limit_ms: u64,
    },
    /// A rank reported so many steps in a row whose loss was no number.
    NotFinite {
        /// The last of them.
        step: u64,
        /// How many.
        steps: u32,
    },
    /// The supervisor itself was lost with its ranks; only the control plane says so.
    SupervisorLost,
}

/// One rank, now.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RankReport {
    /// The global rank.
    pub rank: u32,
    /// Its process id, while it runs.
    pub pid: Option<u32>,
    /// Its phase, if it says so.
    pub phase: Option<Phase>,
    /// The last step it finished.
    pub step: Option<u64>,
    /// The step it will end at, if it says so.
    pub total_steps: Option<u64>,
    /// Tokens since the attempt started.
    pub tokens: u64,
    /// When its output or its socket last said something.
    pub last_sign_of_life: UnixNanos,
    /// Log lines or socket messages that were dropped for being too long, malformed, or beyond a limit.
    pub dropped: u64,
    /// What it spent its time on so far, if it says its phases.
    #[serde(default)]
    pub work: Work,
}

/// What a rank has spent its time on in an attempt, by its phases.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Work {
    /// Steps it finished.
    pub steps: u64,
    /// Nanoseconds of computing.
    pub compute_nanos: u64,
    /// Nanoseconds of waiting for data.
    pub data_nanos: u64,
}

/// First times of things, for the recovery report.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Marks {
    /// The ranks were started.
    pub ranks_started: Option<UnixNanos>,
    /// The first rank said `restore`.
    pub restore_began: Option<UnixNanos>,
    /// The last rank left `restore`.
    pub restore_ended: Option<UnixNanos>,
    /// The first step was finished.
    pub first_step: Option<UnixNanos>,
}

/// A durable checkpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CheckpointReport {
    /// Its step.
    pub step: u64,
    /// Its bytes, all ranks together.
    pub bytes: u64,
    /// When the rank said so.
    pub at: UnixNanos,
}

/// Where the ranks meet.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rendezvous {
    /// MASTER_ADDR.
    pub address: String,
    /// MASTER_PORT.
    pub port: u16,
}

/// One point of the training curves.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Sample {
    /// When the supervisor read it.
    pub at: UnixNanos,
    /// The step.
    pub step: u64,
    /// The loss, if reported and finite.
    pub loss: Option<f64>,
    /// Tokens of this node's ranks since the attempt started.
    pub tokens: u64,
    /// The metric of [`SupervisorSpec::metric`], if it was reported with this step.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metric: Option<SampleMetric>,
}

/// A metric of a sample.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SampleMetric {
    /// The value in billionths.
    Nanos(i64),
    /// Not a number, or infinite.
    Diverged,
}

impl From<MetricValue> for SampleMetric {
    fn from(value: MetricValue) -> Self {
        match value {
            MetricValue::Nanos(nanos) => SampleMetric::Nanos(nanos),
            MetricValue::Diverged => SampleMetric::Diverged,
        }
    }
}

impl From<SampleMetric> for MetricValue {
    fn from(metric: SampleMetric) -> Self {
        match metric {
            SampleMetric::Nanos(nanos) => MetricValue::Nanos(nanos),
            SampleMetric::Diverged => MetricValue::Diverged,
        }
    }
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
    /// Names this version doesn't know are booked as idle rather than lost.
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
    /// [`PROTOCOL_VERSION`].
    pub version: u32,
    /// Stop the ranks.
    pub stop: Option<StopOrder>,
    /// Where the ranks meet, once node 0 has offered it.
    pub rendezvous: Option<Rendezvous>,
    /// Samples below this number are stored and needn't be sent again.
    pub samples_stored: u64,
    /// The reported end is stored; the supervisor may exit, unless it is to stay.
    pub end_acknowledged: bool,
    /// After its end the supervisor stays for now: what it runs in will be ended with those of the gang's other nodes.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub stay: bool,
    /// The next report is due in so many milliseconds, if there is no news before. Longer than the spec's heartbeat where very many
    /// supervisors report; none means the spec's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub report_within_ms: Option<u64>,
}

/// How to stop.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StopOrder {
    /// From the save-and-stop message and SIGTERM to SIGKILL.
    pub grace_ms: u64,
    /// Why, for the rank and the log.
    pub reason: String,
}
