//! The handle through which the rest of the control plane sends requests to the service's thread.

use gangline_api as api;
use gangline_base::{Bytes, EmailAddress, JobId, JobSpec, NodeName, Principal, Submitter, SweepId, SweepSpec};
use gangline_execution::launcher::{GangAllocation, Limited, SurveyedNode};
use gangline_execution::protocol::agent::{DatasetFetched, DatasetWanted};
use gangline_execution::protocol::{CacheReport, NodeFinding, Orders, Report, SupervisorSpec};
use gangline_orchestration::{Configuration, Fate, JobChange, Refusal, SpentBudget};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::mpsc::{SyncSender, TrySendError};
use std::time::Duration;
use tokio::sync::oneshot;

use super::code::CodeInUse;
use super::housekeeping::Kept;
use super::known::KnownKeys;
use super::launch::LaunchOutcome;
use super::looks::{Found, ShareKey};
use crate::retention::shown;
use gangline_store::codec::Noted;
use gangline_store::model::{Removal, RequestKey};

/// The longest time that a caller waits for an answer.
const ANSWER_WAIT_MAX: Duration = Duration::from_secs(30);

/// Why the service refused or failed a request.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The engine refused the request.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// No job with this id was ever submitted.
    #[error("there is no {0}")]
    NoJob(JobId),
    /// The job has ended.
    #[error("{0} has already ended")]
    JobEnded(JobId),
    /// A job after which the job was to run has ended otherwise than the job needs.
    #[error("{0}")]
    DependencyFailed(Fate),
    /// The job hasn't ended, so there is nothing to resume.
    #[error("{0} hasn't ended")]
    NotEnded(JobId),
    /// The job succeeded, and it wasn't said that it is to run again all the same.
    #[error("{0} succeeded, so there is nothing left to resume")]
    Finished(JobId),
    /// No mail server is configured, so the address would never hear of the job.
    #[error("no mail can be sent to {0}: the configuration names no mail server")]
    NoMailServer(EmailAddress),
    /// The job's time limit is longer than the launcher's system lets any job run.
    #[error("a time limit of {} is longer than a job may run: {why} is {}", shown(*asked), shown(*longest))]
    TooLong {
        /// The job's limit.
        asked: Duration,
        /// The longest run.
        longest: Duration,
        /// Who limits it.
        why: String,
    },
    /// The job's gang is larger than the launcher's system lets any be.
    #[error("the job needs {needs} {of}, more than it may have: {why} is {max}")]
    TooLarge {
        /// What the job needs at least.
        needs: u64,
        /// What it needs so much of.
        of: Limited,
        /// The most it may have.
        max: u64,
        /// Who limits it.
        why: String,
    },
    /// Nothing runs containers of the job's image where its ranks would run.
    #[error("the job runs in the image {image}, and {why}")]
    NoContainers {
        /// The image.
        image: String,
        /// What is missing.
        why: String,
    },
    /// The job was submitted to a release that did not keep what a resumption needs.
    #[error("{0} was submitted to an earlier release, which did not keep its job file")]
    NotResumable(JobId),
    /// The job ended so long ago that its record was removed.
    #[error("{0} ended long ago, and its record was removed")]
    Forgotten(JobId),
    /// No node has this name.
    #[error("there is no node \"{0}\"")]
    NoNode(NodeName),
    /// The journal failed; changes are refused until the durable entries have been replayed.
    #[error("the journal can't be written: {cause}")]
    Poisoned {
        /// The first failure of the journal.
        cause: String,
    },
    /// The journal is nearly full: the rest is reserved for existing jobs.
    #[error("the journal has {used} of at most {max}, and what is left is kept for the jobs that are there")]
    JournalFull {
        /// Bytes that the journal holds.
        used: Bytes,
        /// Bytes that the journal may hold at most.
        max: Bytes,
    },
    /// The queue of requests is full.
    #[error("the control plane is overloaded")]
    Overloaded,
    /// The idempotency key was used for another request before.
    #[error("the idempotency key \"{0}\" was used for another request")]
    KeyReused(String),
    /// The answer stored under this idempotency key is damaged on disk.
    #[error("the answer to idempotency key \"{0}\" is damaged on disk")]
    AnswerDamaged(String),
    /// The stored answers can't be read, so it isn't known whether a request with this key was answered
    /// before.
    #[error("the answers that are kept can't be read: {cause}")]
    Unreadable {
        /// The stable error code of the cause.
        code: &'static str,
        /// The failure in words.
        cause: String,
    },
    /// No answer came in time. The change may still have been made.
    #[error("the control plane did not answer in time; what was asked may still be done")]
    Unanswered,
    /// The journal knows the node, but the configuration no longer lists it.
    #[error("node \"{0}\" is not in the configuration any more")]
    NotConfigured(NodeName),
    /// The service is stopping.
    #[error("the control plane is stopping")]
    Stopping,
}

/// The state that a drain request wants a node to be in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DrainWish {
    /// The node takes new jobs again.
    Undo,
    /// No new job starts on the node; running jobs go on.
    WhenFree,
    /// The node leaves after this time: jobs that still run there are asked to save and stop just before.
    Within(Duration),
}

/// Which ended job is to be resumed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Resumption {
    /// The ended job.
    pub origin: JobId,
    /// What is to be different.
    pub changes: Vec<JobChange>,
    /// Whether it is resumed even if it succeeded.
    pub again: bool,
    /// Whether it is done again from the beginning, in a folder of checkpoints of its own.
    pub afresh: bool,
    /// Who asks for it.
    pub by: Submitter,
}

pub(super) type Reply<T> = oneshot::Sender<Result<T, Error>>;

/// The requests that the service's thread accepts.
pub(super) enum Request {
    /// A request from outside of the service. A change with an idempotency key is made only once; other requests
    /// ignore the key.
    Asked {
        by: Principal,
        key: Option<RequestKey>,
        request: Box<Request>,
    },
    Submit {
        spec: Box<JobSpec>,
        reply: Reply<api::Answer>,
    },
    DryRun {
        spec: Box<JobSpec>,
        reply: Reply<api::DryRun>,
    },
    Cancel {
        job: JobId,
        by: Submitter,
        reply: Reply<api::CancelAnswer>,
    },
    Change {
        job: JobId,
        changes: Vec<JobChange>,
        by: Submitter,
        reply: Reply<api::ChangeAnswer>,
    },
    Resume {
        resumption: Resumption,
        reply: Reply<api::Submitted>,
    },
    SubmitSweep {
        sweep: Box<SweepSpec>,
        reply: Reply<api::Answer>,
    },
    DryRunSweep {
        sweep: Box<SweepSpec>,
        reply: Reply<api::DryRun>,
    },
    CancelSweep {
        sweep: SweepId,
        by: Submitter,
        reply: Reply<api::CancelSweepAnswer>,
    },
    Drain {
        node: NodeName,
        wish: DrainWish,
        reply: Reply<api::Node>,
    },
    AgentFound {
        node: NodeName,
        finding: NodeFinding,
        reply: Reply<()>,
    },
    AgentCached {
        node: NodeName,
        cache: Option<CacheReport>,
        reply: Reply<Vec<DatasetWanted>>,
    },
    AgentFetched {
        node: NodeName,
        fetched: Vec<DatasetFetched>,
        reply: Reply<()>,
    },
    BudgetsSpent {
        spent: Vec<SpentBudget>,
        reply: Reply<()>,
    },
    Explain {
        job: JobId,
        reply: Reply<api::Explanation>,
    },
    WaitReasons {
        jobs: Vec<JobId>,
        reply: Reply<BTreeMap<JobId, String>>,
    },
    Configure {
        sharing: Box<Configuration>,
        reply: Reply<Vec<String>>,
    },
    Nodes {
        reply: Reply<api::NodeList>,
    },
    Queues {
        reply: Reply<api::QueueList>,
    },
    Health {
        reply: Reply<api::Health>,
    },
    Report {
        report: Box<Report>,
        reply: Reply<Orders>,
    },
    Kept {
        kept: Box<Kept>,
    },
    Launched {
        gang: Vec<(SupervisorSpec, LaunchOutcome)>,
    },
    Looked {
        share: ShareKey,
        found: Found,
    },
    Surveyed {
        survey: Result<Vec<SurveyedNode>, String>,
        /// What that system has allocated to gangs, by the gangs' folders.
        allocations: Vec<(PathBuf, GangAllocation)>,
    },
    /// Which copies of code live jobs need.
    CodeInUse {
        reply: SyncSender<CodeInUse>,
    },
    /// Journals notes for bills; the answer says whether they are durable.
    Note {
        notes: Vec<Noted>,
        reply: SyncSender<bool>,
    },
    /// Removes old rows; the answer says whether the removal is durable.
    Remove {
        removals: Vec<Removal>,
        reply: SyncSender<bool>,
    },
    Stop,
}

/// A handle to the service; cheap to clone.
#[derive(Clone, Debug)]
pub struct Handle {
    pub(super) requests: SyncSender<Request>,
    /// Idempotency keys under which an answer may be stored.
    pub(super) known: KnownKeys,
    /// The idempotency key for changes made through this handle, if any.
    pub(super) key: Option<RequestKey>,
    /// On whose authority requests are made through this handle.
    pub(super) by: Principal,
}

impl std::fmt::Debug for Request {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Request")
    }
}

impl Handle {
    /// Returns a handle whose change is made once for this key; each repetition gets the same answer.
    #[must_use]
    pub fn keyed(&self, key: Option<RequestKey>) -> Handle {
        Handle { key, ..self.clone() }
    }

    /// Returns a handle whose requests are made on this authority, which the caller has checked. A new handle
    /// has the service's.
    #[must_use]
    pub fn by(&self, principal: Principal) -> Handle {
        Handle { by: principal, ..self.clone() }
    }

    /// Reports whether an answer may be stored under this key; if not, no lookup is needed.
    #[must_use]
    pub fn may_know(&self, key: &RequestKey) -> bool {
        self.known.may_have(key)
    }

    async fn ask<T>(&self, request: impl FnOnce(Reply<T>) -> Request) -> Result<T, Error> {
        let (reply, answer) = oneshot::channel();
        let request = request(reply);
        let request = Request::Asked { by: self.by.clone(), key: self.key.clone(), request: Box::new(request) };
        self.requests.try_send(request).map_err(|error| match error {
            TrySendError::Full(_) => Error::Overloaded,
            TrySendError::Disconnected(_) => Error::Stopping,
        })?;
        match tokio::time::timeout(ANSWER_WAIT_MAX, answer).await {
            Ok(answer) => answer.unwrap_or(Err(Error::Stopping)),
            Err(_) => Err(Error::Unanswered),
        }
    }

    /// Submits a job. When this returns, the job is durable.
    ///
    /// # Errors
    /// [`Error`], as for all other functions of the handle.
    pub async fn submit(&self, spec: JobSpec) -> Result<api::Answer, Error> {
        self.ask(|reply| Request::Submit { spec: Box::new(spec), reply }).await
    }

    /// Returns what would happen to the job if it were submitted now.
    pub async fn dry_run(&self, spec: JobSpec) -> Result<api::DryRun, Error> {
        self.ask(|reply| Request::DryRun { spec: Box::new(spec), reply }).await
    }

    /// Requests that the job be cancelled.
    pub async fn cancel(&self, job: JobId, by: Submitter) -> Result<api::CancelAnswer, Error> {
        self.ask(|reply| Request::Cancel { job, by, reply }).await
    }

    /// Changes a waiting job: makes all the changes or none.
    pub async fn change(&self, job: JobId, changes: Vec<JobChange>, by: Submitter) -> Result<api::ChangeAnswer, Error> {
        self.ask(|reply| Request::Change { job, changes, by, reply }).await
    }

    /// Submits a job that continues the work of an ended one from its checkpoints.
    pub async fn resume(&self, resumption: Resumption) -> Result<api::Submitted, Error> {
        self.ask(|reply| Request::Resume { resumption, reply }).await
    }

    /// Submits a sweep: all of its jobs or none.
    pub async fn submit_sweep(&self, sweep: SweepSpec) -> Result<api::Answer, Error> {
        self.ask(|reply| Request::SubmitSweep { sweep: Box::new(sweep), reply }).await
    }

    /// Returns what would happen to the sweep's first job if the sweep were submitted now.
    pub async fn dry_run_sweep(&self, sweep: SweepSpec) -> Result<api::DryRun, Error> {
        self.ask(|reply| Request::DryRunSweep { sweep: Box::new(sweep), reply }).await
    }

    /// Requests that the unfinished jobs of a sweep be cancelled.
    pub async fn cancel_sweep(&self, sweep: SweepId, by: Submitter) -> Result<api::CancelSweepAnswer, Error> {
        self.ask(|reply| Request::CancelSweep { sweep, by, reply }).await
    }

    /// Drains a node, or ends its drain.
    pub async fn drain(&self, node: NodeName, wish: DrainWish) -> Result<api::Node, Error> {
        self.ask(|reply| Request::Drain { node, wish, reply }).await
    }

    /// Takes in a fault that a node's agent found, whose token the caller has checked.
    pub async fn agent_found(&self, node: NodeName, finding: NodeFinding) -> Result<(), Error> {
        self.ask(|reply| Request::AgentFound { node, finding, reply }).await
    }

    /// Takes what a node's agent, which fetches datasets, says of the node's cache, and returns those that the node should fetch for
    /// jobs that wait, the most urgent first.
    pub async fn agent_cached(&self, node: NodeName, cache: Option<CacheReport>) -> Result<Vec<DatasetWanted>, Error> {
        self.ask(|reply| Request::AgentCached { node, cache, reply }).await
    }

    /// Notes what a node's agent asked of object storage for jobs that waited. When it is answered it is on disk.
    pub async fn agent_fetched(&self, node: NodeName, fetched: Vec<DatasetFetched>) -> Result<(), Error> {
        self.ask(|reply| Request::AgentFetched { node, fetched, reply }).await
    }

    /// Says which budgets are spent whose jobs then don't begin.
    pub async fn budgets_spent(&self, spent: Vec<SpentBudget>) -> Result<(), Error> {
        self.ask(|reply| Request::BudgetsSpent { spent, reply }).await
    }

    /// Replaces the rules by which the cluster is shared, and returns the names of those that changed.
    pub async fn configure(&self, sharing: Configuration) -> Result<Vec<String>, Error> {
        self.ask(|reply| Request::Configure { sharing: Box::new(sharing), reply }).await
    }

    /// Explains why a live job is pending, or why it runs where it does.
    pub async fn explain(&self, job: JobId) -> Result<api::Explanation, Error> {
        self.ask(|reply| Request::Explain { job, reply }).await
    }

    /// Returns the reason of each pending job among `jobs`. Sends no request if `jobs` is empty.
    pub async fn wait_reasons(&self, jobs: Vec<JobId>) -> Result<BTreeMap<JobId, String>, Error> {
        if jobs.is_empty() {
            return Ok(BTreeMap::new());
        }
        self.ask(|reply| Request::WaitReasons { jobs, reply }).await
    }

    /// Returns the nodes and the jobs that hold their devices.
    pub async fn nodes(&self) -> Result<api::NodeList, Error> {
        self.ask(|reply| Request::Nodes { reply }).await
    }

    /// Returns the queues, configured or with jobs in them.
    pub async fn queues(&self) -> Result<api::QueueList, Error> {
        self.ask(|reply| Request::Queues { reply }).await
    }

    /// Returns the health of the control plane.
    pub async fn health(&self) -> Result<api::Health, Error> {
        self.ask(|reply| Request::Health { reply }).await
    }

    /// Takes in a supervisor's report, whose token the caller has checked, and returns the orders.
    pub async fn report(&self, report: Report) -> Result<Orders, Error> {
        self.ask(|reply| Request::Report { report: Box::new(report), reply }).await
    }
}
