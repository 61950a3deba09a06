//! A job as the API shows it.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::sweep::{Budget, JobSweep};
use crate::{AgainstPlan, HistoryLine, LastValue, Time};

/// Jobs, newest first.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct JobList {
    /// The jobs.
    pub jobs: Vec<Job>,
    /// Jobs of this part of the list that can't be shown, because what is kept of them is damaged on disk (G0213).
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub damaged: Vec<String>,
    /// Give this as `before` to see older ones; absent at the end.
    pub next: Option<String>,
}

/// Which jobs a list has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum JobStanding {
    /// Jobs that wait or hold devices.
    Live,
    /// Jobs that have ended.
    Ended,
}

/// Where a job stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum JobState {
    /// In its queue.
    Waiting,
    /// It holds its devices, and its ranks are being started.
    Starting,
    /// All its ranks run.
    Running,
    /// It was told to stop, or is being cleaned up.
    Stopping,
    /// It did what it was to do.
    Succeeded,
    /// It failed for good.
    Failed,
    /// A user cancelled it.
    Cancelled,
    /// Its budget was spent, or other jobs of its sweep did better.
    Stopped,
}

impl Progress {
    /// Returns the last loss as users see it, with this many decimals; `nan` if it is no finite number.
    #[must_use]
    pub fn last_loss(&self, decimals: usize) -> Option<String> {
        match (self.loss_not_finite_since, self.loss) {
            (Some(_), _) => Some("nan".to_owned()),
            (None, loss) => loss.map(|loss| format!("{loss:.decimals$}")),
        }
    }
}

impl JobState {
    /// Whether it will never change again.
    #[must_use]
    pub fn is_final(self) -> bool {
        matches!(self, JobState::Succeeded | JobState::Failed | JobState::Cancelled | JobState::Stopped)
    }

    /// The word users see.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            JobState::Waiting => "waiting",
            JobState::Starting => "starting",
            JobState::Running => "running",
            JobState::Stopping => "stopping",
            JobState::Succeeded => "succeeded",
            JobState::Failed => "failed",
            JobState::Cancelled => "cancelled",
            JobState::Stopped => "stopped",
        }
    }
}

/// A job.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Job {
    /// Its id.
    #[schema(examples("job-42"))]
    pub id: String,
    /// Its name.
    pub name: String,
    /// Its queue.
    pub queue: String,
    /// 0 to 1000, higher first.
    pub priority: u16,
    /// Who sent it.
    pub submitter: String,
    /// When.
    pub submitted_at: Time,
    /// Where it stands.
    pub state: JobState,
    /// The last thing decided about it, or what it waits for.
    pub because: String,
    /// What to know about a live job: what it asks for that is counted only, not enforced.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
    /// When it ended.
    pub ended_at: Option<Time>,
    /// The ended job whose work it continues.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub origin: Option<String>,
    /// The devices it asks for.
    pub gang: Gang,
    /// The command of its ranks; in a list of jobs at most 1 KiB of it.
    pub run: String,
    /// The folder they start in; of code from git, the repository's address.
    pub workdir: String,
    /// The copy of the code that they run, if they run one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub code: Option<Code>,
    /// The container image in which setup and ranks run; none: they run on the node itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image: Option<String>,
    /// Where it saves.
    pub checkpoint_path: Option<String>,
    /// Faults so far.
    pub faults: u32,
    /// Faults it may have.
    pub max_faults: u32,
    /// How far it is.
    pub progress: Progress,
    /// How its rate over the last samples compares with its plan's, if its job file has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub plan: Option<AgainstPlan>,
    /// What it saved.
    pub checkpoints: Checkpoints,
    /// What it asked for of remote datasets, as far as its ranks read them by Gangline's loader (measured).
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub dataset_reads: Vec<DatasetReads>,
    /// What it may cost and has, if it has a budget.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub budget: Option<Budget>,
    /// Its place in its sweep, if it belongs to one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sweep: Option<JobSweep>,
    /// Whom it tells when it starts or ends: webhooks without their paths, which are secret.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub notifies: Vec<String>,
    /// Its attempts, oldest first; at most the last 50.
    pub attempts: Vec<Attempt>,
    /// Its recoveries from faults, and from stops after which it went on (drained, preempted, out of time); oldest first.
    pub recoveries: Vec<Recovery>,
    /// Where its GPU-seconds went and what they cost; attempts that have ended (measured).
    pub usage: Usage,
    /// The same of the attempt that holds devices now, up to the last report of its supervisors: estimated, since it is
    /// booked when the attempt ends.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub accrued: Option<Usage>,
    /// The last values of what its ranks report, by name, of its newest attempt; only where one job is asked for.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub metrics: Vec<LastValue>,
    /// Alerts about it that fire now, each as a sentence; only where one job is asked for.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub alerts: Vec<String>,
    /// What was decided about it, oldest first; at most the last 100.
    pub history: Vec<HistoryLine>,
}

/// A copy of code that was taken when a job was submitted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Code {
    /// The copy's content id: jobs with the same one run the same code.
    pub tree: String,
    /// The git commit that it is, or that it differs from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub commit: Option<String>,
    /// Files that differ from the commit.
    pub changed_files: u32,
    /// The folder into which it is unpacked when the job starts; its differences from the commit are beside it, in
    /// `changes.diff`.
    pub folder: String,
}

/// The devices a job asks for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Gang {
    /// Nodes; the least, if it may be resized.
    pub nodes: u32,
    /// The most nodes of a job that may be resized.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nodes_max: Option<u32>,
    /// The kind of accelerator.
    pub accelerator: String,
    /// Accelerators on each node.
    pub accelerators_per_node: u32,
    /// Ranks on each node.
    pub ranks_per_node: u32,
}

/// How far a job is, by its ranks' reports (measured).
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Progress {
    /// Steps finished.
    pub step: Option<u64>,
    /// Steps in all, if the trainer said so.
    pub total_steps: Option<u64>,
    /// The first loss that was reported.
    pub first_loss: Option<f64>,
    /// The last finite loss.
    pub loss: Option<f64>,
    /// The step since which the loss has been NaN or infinite, if it is: then `loss` is from before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub loss_not_finite_since: Option<u64>,
    /// Tokens since the attempt began.
    pub tokens: u64,
    /// Tokens a second over the last samples.
    pub tokens_per_second: Option<f64>,
    /// Steps a second over the last minutes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub steps_per_second: Option<f64>,
}

/// What a job saved, over all its attempts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Checkpoints {
    /// How many.
    pub count: u32,
    /// Their bytes together.
    pub bytes: u64,
    /// The step of the last durable one.
    pub last_step: Option<u64>,
}

/// What a job asked for of a dataset, or of an archive of checkpoints (measured): billed requests, retries included, and the bytes that came. What was in
/// the node's cache already isn't asked for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct DatasetReads {
    /// The address of the dataset, or of the archive.
    pub dataset: String,
    /// Ranges of objects.
    pub get: u64,
    /// Looks at an object's state.
    pub head: u64,
    /// Pages of listings.
    pub list: u64,
    /// Objects, or parts of them, that were written.
    #[serde(default)]
    pub put: u64,
    /// Requests that ended with a server error (5xx), which S3 doesn't bill, or without an answer.
    #[serde(default)]
    pub failed: u64,
    /// Bytes that were fetched.
    pub bytes: u64,
    /// Those of them that came from the region that the node is in, by the configuration.
    #[serde(default)]
    pub in_region_bytes: u64,
    /// Those that came from another region. Of the rest, one of the two regions isn't known.
    #[serde(default)]
    pub cross_region_bytes: u64,
}

/// One allocation of a job.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Attempt {
    /// Which, from 1.
    pub number: u32,
    /// When it got its devices, unless `allocation` says otherwise.
    pub placed_at: Time,
    /// When they were free again, unless `allocation` says otherwise.
    pub ended_at: Option<Time>,
    /// When the system below Gangline (Slurm) allocated its nodes, where that happens after the placement.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub allocation: Option<Allocation>,
    /// Why it was placed then and there.
    pub placed_because: String,
    /// How it ended and what follows.
    pub ended_because: Option<String>,
    /// What failed first, if something did.
    pub fault: Option<Fault>,
    /// Its nodes in rank order.
    pub shares: Vec<Share>,
    /// The rank without progress that is nearest to being given up as hung, in words (measured).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub silence: Option<String>,
    /// Ranks that hold up the others, by the last look (measured).
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub stragglers: Vec<String>,
}

/// When the system below Gangline (Slurm) allocated an attempt's nodes, by that system's clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Allocation {
    /// When it allocated the nodes; absent while the gang waits in its queue, or if it never did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<Time>,
    /// When it took them back, if it has said so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub to: Option<Time>,
}

/// One node's share of an attempt.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Share {
    /// The node.
    pub node: String,
    /// The accelerators.
    pub devices: Vec<u32>,
    /// `launching`, `preparing`, `running` or `ended`.
    pub state: String,
    /// Its supervisor's process id.
    pub supervisor_pid: Option<u32>,
    /// Its ranks.
    pub ranks: Vec<Rank>,
}

/// One rank.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Rank {
    /// Its global rank.
    pub rank: u32,
    /// Its process id, while it runs.
    pub pid: Option<u32>,
    /// What it does, by its own report.
    pub phase: Option<String>,
    /// Its last finished step.
    pub step: Option<u64>,
}

/// What failed first.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Fault {
    /// The node.
    pub node: String,
    /// The global rank; absent if it wasn't a rank.
    pub rank: Option<u32>,
    /// What it did.
    pub cause: String,
    /// The code with which the rank, or the setup command, exited; absent if it did not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<i32>,
    /// When it was noticed.
    pub noticed_at: Time,
    /// The last lines the rank logged.
    pub last_lines: Vec<String>,
    /// What the ranks' logs say of the cause; absent if they say nothing clear.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub diagnosis: Option<Diagnosis>,
}

/// Why the ranks failed, by their logs: estimated.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Diagnosis {
    /// The kind of cause: `hardware`, `cuda_oom`, `host_oom`, `nccl_network`, `data_pipeline`, `numerical`, `storage`, `user_code`,
    /// `preemption` or `scheduler_infra`.
    pub category: String,
    /// The cause itself, such as `import_error`.
    pub subcategory: String,
    /// How likely that is right, from 0 to 1.
    pub confidence: f64,
    /// What happened, in a sentence.
    pub summary: String,
    /// What to do about it.
    pub advice: String,
    /// The rank where it began.
    pub rank: Option<u32>,
    /// The lines that say so.
    pub evidence: Vec<String>,
}

/// A recovery in its six phases (measured). One from a stop has neither `detect` nor `cleanup`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Recovery {
    /// The attempt that failed or was stopped.
    pub from_attempt: u32,
    /// The attempt that went on.
    pub to_attempt: u32,
    /// Why it ended.
    pub cause: String,
    /// The phases in order; a phase that hasn't happened is absent.
    pub phases: Vec<RecoveryLine>,
    /// Seconds the job waited in its queue in between; not in the phases.
    pub queued_seconds: f64,
    /// The phases together.
    pub total_seconds: f64,
    /// Whether the first step was made.
    pub is_complete: bool,
}

/// One phase of a recovery.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct RecoveryLine {
    /// detect, cleanup, rendezvous, init, restore or first_step. `detect` is an upper bound: from the last sign of life.
    pub phase: String,
    /// How long it took.
    pub seconds: f64,
}

/// Where GPU-seconds went (measured), and what they cost.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Usage {
    /// Allocated wall time times devices.
    pub gpu_seconds: f64,
    /// The same in nano-GPU-seconds; the buckets sum to it exactly.
    pub gpu_nanoseconds: u64,
    /// What it cost.
    pub cost_nano_dollars: i64,
    /// The cost as text.
    pub cost: String,
    /// Prices that were applied, each with its nodes.
    pub prices: Vec<Price>,
    /// Every bucket.
    pub buckets: Vec<BucketLine>,
    /// Runtime goodput: time in new steps (compute and communication) over allocated time; at least this where some time is
    /// `unreported`. Absent if nothing was allocated, or the ranks reported no steps.
    pub goodput: Option<f64>,
}

/// A price that was applied.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Price {
    /// The node.
    pub node: String,
    /// For each accelerator-hour, in nano-dollars.
    pub nano_dollars_per_hour: i64,
}

/// One bucket.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct BucketLine {
    /// Its name.
    pub bucket: String,
    /// Time in it.
    pub gpu_seconds: f64,
    /// The same in nano-GPU-seconds.
    pub gpu_nanoseconds: u64,
    /// Its cost.
    pub cost_nano_dollars: i64,
}
