//! How the rest of the control plane talks to the service's thread.

use gangline_base::{Bytes, JobId, JobSpec, NodeName, Submitter, SweepId, SweepSpec};
use gangline_execution::launcher::SurveyedNode;
use gangline_execution::protocol::{Orders, Report, SupervisorSpec};
use gangline_orchestration::Refusal;
use std::collections::BTreeMap;
use std::sync::mpsc::{SyncSender, TrySendError};
use std::time::Duration;
use tokio::sync::oneshot;

use super::keeper::Kept;
use super::known::KnownKeys;
use super::launch::LaunchOutcome;
use super::looks::{Found, ShareKey};
use crate::model::{Removal, RequestKey};
use crate::wire;

/// The longest a caller waits for an answer.
const ANSWER_WAIT_MAX: Duration = Duration::from_secs(30);

/// Why the service didn't do as asked.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The engine refused.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// There never was such a job.
    #[error("there is no {0}")]
    NoJob(JobId),
    /// The job has ended.
    #[error("{0} has already ended")]
    JobEnded(JobId),
    /// There is no such node.
    #[error("there is no node \"{0}\"")]
    NoNode(NodeName),
    /// The journal failed; changes are refused until what is durable has been replayed.
    #[error("the journal can't be written: {cause}")]
    Poisoned {
        /// The first failure.
        cause: String,
    },
    /// What room the journal has left is for the jobs that are there.
    #[error("the journal has {used} of at most {max}, and what is left is kept for the jobs that are there")]
    JournalFull {
        /// What it has.
        used: Bytes,
        /// What it may have.
        max: Bytes,
    },
    /// More requests are waiting than the limit.
    #[error("the control plane is overloaded")]
    Overloaded,
    /// The key was used for another request.
    #[error("the idempotency key \"{0}\" was used for another request")]
    KeyReused(String),
    /// The answer to the change that was made with this key isn't what was stored any more.
    #[error("the answer to idempotency key \"{0}\" is damaged on disk")]
    AnswerDamaged(String),
    /// Whether a request with this key was answered before can't be read.
    #[error("the answers that are kept can't be read: {cause}")]
    Unreadable {
        /// The stable code of the cause.
        code: &'static str,
        /// What failed.
        cause: String,
    },
    /// No answer came in time. A change may still have been made.
    #[error("the control plane did not answer in time; what was asked may still be done")]
    Unanswered,
    /// The node is known from before but not configured any more.
    #[error("node \"{0}\" is not in the configuration any more")]
    NotConfigured(NodeName),
    /// The service is stopping.
    #[error("the control plane is stopping")]
    Stopping,
}

/// What is to become of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DrainWish {
    /// It takes jobs again.
    Undo,
    /// Nothing new starts there; what runs goes on.
    WhenFree,
    /// It goes after this time: what still runs is asked to save and stop just before.
    Within(Duration),
}

pub(super) type Reply<T> = oneshot::Sender<Result<T, Error>>;

/// What can be asked of the service.
pub(super) enum Request {
    /// A change that is made once for its key; anything else is as it is without one.
    Keyed {
        key: RequestKey,
        request: Box<Request>,
    },
    Submit {
        spec: Box<JobSpec>,
        reply: Reply<wire::Answer>,
    },
    DryRun {
        spec: Box<JobSpec>,
        reply: Reply<wire::DryRun>,
    },
    Cancel {
        job: JobId,
        by: Submitter,
        reply: Reply<wire::CancelAnswer>,
    },
    SubmitSweep {
        sweep: Box<SweepSpec>,
        reply: Reply<wire::Answer>,
    },
    DryRunSweep {
        sweep: Box<SweepSpec>,
        reply: Reply<wire::DryRun>,
    },
    CancelSweep {
        sweep: SweepId,
        by: Submitter,
        reply: Reply<wire::CancelSweepAnswer>,
    },
    Drain {
        node: NodeName,
        wish: DrainWish,
        reply: Reply<wire::Node>,
    },
    Explain {
        job: JobId,
        reply: Reply<wire::Explanation>,
    },
    WaitReasons {
        jobs: Vec<JobId>,
        reply: Reply<BTreeMap<JobId, String>>,
    },
    Nodes {
        reply: Reply<wire::NodeList>,
    },
    Queues {
        reply: Reply<wire::QueueList>,
    },
    Health {
        reply: Reply<wire::Health>,
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
    },
    /// Take out what is old; the answer says whether that is durable.
    Remove {
        removals: Vec<Removal>,
        reply: SyncSender<bool>,
    },
    Stop,
}

/// A handle on the service; cheap to clone.
#[derive(Clone, Debug)]
pub struct Handle {
    pub(super) requests: SyncSender<Request>,
    /// Keys that may have been answered.
    pub(super) known: KnownKeys,
    /// With it, changes are made once.
    pub(super) key: Option<RequestKey>,
}

impl std::fmt::Debug for Request {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Request")
    }
}

impl Handle {
    /// A handle whose change is made once for this key and answered alike each time.
    pub(crate) fn keyed(&self, key: Option<RequestKey>) -> Handle {
        Handle { key, ..self.clone() }
    }

    /// Whether a change may have been answered under this key before; if not, there is nothing to look for.
    pub(crate) fn may_know(&self, key: &RequestKey) -> bool {
        self.known.may_have(key)
    }

    async fn ask<T>(&self, request: impl FnOnce(Reply<T>) -> Request) -> Result<T, Error> {
        let (reply, answer) = oneshot::channel();
        let request = request(reply);
        let request = match &self.key {
            Some(key) => Request::Keyed { key: key.clone(), request: Box::new(request) },
            None => request,
        };
        self.requests.try_send(request).map_err(|error| match error {
            TrySendError::Full(_) => Error::Overloaded,
            TrySendError::Disconnected(_) => Error::Stopping,
        })?;
        match tokio::time::timeout(ANSWER_WAIT_MAX, answer).await {
            Ok(answer) => answer.unwrap_or(Err(Error::Stopping)),
            Err(_) => Err(Error::Unanswered),
        }
    }

    /// Takes a job in; when this returns it is on disk.
    ///
    /// # Errors
    /// [`Error`]; the same for the other functions.
    pub async fn submit(&self, spec: JobSpec) -> Result<wire::Answer, Error> {
        self.ask(|reply| Request::Submit { spec: Box::new(spec), reply }).await
    }

    /// What would become of a job.
    pub async fn dry_run(&self, spec: JobSpec) -> Result<wire::DryRun, Error> {
        self.ask(|reply| Request::DryRun { spec: Box::new(spec), reply }).await
    }

    /// Asks for a job's end.
    pub async fn cancel(&self, job: JobId, by: Submitter) -> Result<wire::CancelAnswer, Error> {
        self.ask(|reply| Request::Cancel { job, by, reply }).await
    }

    /// Takes a sweep in, with all its jobs or not at all.
    pub async fn submit_sweep(&self, sweep: SweepSpec) -> Result<wire::Answer, Error> {
        self.ask(|reply| Request::SubmitSweep { sweep: Box::new(sweep), reply }).await
    }

    /// What would become of a sweep's first job.
    pub async fn dry_run_sweep(&self, sweep: SweepSpec) -> Result<wire::DryRun, Error> {
        self.ask(|reply| Request::DryRunSweep { sweep: Box::new(sweep), reply }).await
    }

    /// Asks for the end of what is left of a sweep.
    pub async fn cancel_sweep(&self, sweep: SweepId, by: Submitter) -> Result<wire::CancelSweepAnswer, Error> {
        self.ask(|reply| Request::CancelSweep { sweep, by, reply }).await
    }

    /// Drains a node, or takes it back into use.
    pub async fn drain(&self, node: NodeName, wish: DrainWish) -> Result<wire::Node, Error> {
        self.ask(|reply| Request::Drain { node, wish, reply }).await
    }

    /// Why a live job waits or runs where it does.
    pub async fn explain(&self, job: JobId) -> Result<wire::Explanation, Error> {
        self.ask(|reply| Request::Explain { job, reply }).await
    }

    /// What each of these jobs waits for; those that don't wait are left out. Nothing is asked for no job.
    pub async fn wait_reasons(&self, jobs: Vec<JobId>) -> Result<BTreeMap<JobId, String>, Error> {
        if jobs.is_empty() {
            return Ok(BTreeMap::new());
        }
        self.ask(|reply| Request::WaitReasons { jobs, reply }).await
    }

    /// The nodes and who holds what.
    pub async fn nodes(&self) -> Result<wire::NodeList, Error> {
        self.ask(|reply| Request::Nodes { reply }).await
    }

    /// The queues that have jobs.
    pub async fn queues(&self) -> Result<wire::QueueList, Error> {
        self.ask(|reply| Request::Queues { reply }).await
    }

    /// How the control plane is.
    pub async fn health(&self) -> Result<wire::Health, Error> {
        self.ask(|reply| Request::Health { reply }).await
    }

    /// A supervisor's report. Its token has been checked.
    pub async fn report(&self, report: Report) -> Result<Orders, Error> {
        self.ask(|reply| Request::Report { report: Box::new(report), reply }).await
    }
}
