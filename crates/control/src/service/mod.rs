//! The control plane's single service thread: takes requests, drives the engine, commits to the journal and
//! answers.
//!
//! The thread applies all queued requests to the engine, commits their entries and read models with one fsync
//! (group commit), and only then answers and acts. An answer is therefore a promise, nothing happens that
//! isn't in the journal, and a crash at any point loses only changes that nobody was told of. If a
//! commit fails, the thread answers with the failure, acts on nothing, and refuses changes until it has
//! replayed the durable entries into a new engine. Running jobs go on.

mod actor;
mod allocations;
mod archives;
mod audit;
mod batch;
mod capacities;
mod changes;
mod checkpoints;
mod clock;
mod code;
mod configure;
mod contacts;
mod dataset_caches;
mod demand;
mod epoch;
mod findings;
mod handle;
mod heal;
mod housekeeping;
mod known;
mod launch;
mod looks;
mod nodes;
mod notify;
mod once;
mod overheads;
mod queries;
mod queues;
mod reports;
mod requests;
mod retention;
mod runtime;
mod slowness;
mod start;
mod storage;
mod survey;
mod sweeps;
#[cfg(test)]
mod tests;
mod troubles;
mod waiting;
mod watch;

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::SyncSender;
use std::time::Duration;

use gangline_base::{Bytes, JobId, Money, QueueName, Submitter, Timestamp};
use gangline_execution::launcher::Launcher;
use gangline_execution::timeouts::Timeouts;
use gangline_orchestration::{Configuration, Limits};
use gangline_specs::config::{Billing, NodeConfig, Retention};

pub use handle::{DrainWish, Error, Handle, Resumption};
pub use heal::OnJournalFailure;
pub use start::{Service, StartError};
pub use survey::SurveyOptions;

use crate::delivery::Courier;
use crate::secret::Secrets;

/// Requests that may wait for the service's thread; when the queue is full, senders block.
pub const REQUESTS_MAX: usize = 4_096;

/// Everything that a service needs to start.
#[derive(Clone)]
pub struct Options {
    /// The data folder.
    pub folder: PathBuf,
    /// The folder of the journal: the data folder, or a folder on a local disk if other machines use the data
    /// folder too.
    pub journal_folder: PathBuf,
    /// The configured nodes.
    pub nodes: Vec<NodeConfig>,
    /// If set, the nodes come from the launcher's survey instead of `nodes`.
    pub survey: Option<SurveyOptions>,
    /// The sharing rules: queues, weights, quotas and prices.
    pub sharing: Configuration,
    /// What queues may have of each cache of datasets.
    pub cache_quotas: BTreeMap<QueueName, Bytes>,
    /// Limits on what users may submit.
    pub limits: Limits,
    /// The retention policy: which data is removed, and after how long.
    pub retention: Retention,
    /// What bills have besides the prices of devices.
    pub billing: Billing,
    /// Starts supervisors.
    pub launcher: Arc<dyn Launcher>,
    /// Returns the wall-clock time.
    pub clock: fn() -> Timestamp,
    /// The submitter recorded for requests that are made with the users' token.
    pub user: Submitter,
    /// The secrets from which tokens are made.
    pub secrets: Secrets,
    /// Options for opening the journal.
    pub journal: gangline_store::db::Options,
    /// What the service does when the journal can't be written.
    pub on_journal_failure: OnJournalFailure,
    /// Where each node finds its cloud's termination notice
    /// ([`gangline_execution::protocol::SupervisorSpec::notice_source`]).
    pub notice_source: Option<String>,
    /// Time between two readings of an agent that a supervisor starts on a node without one; none: supervisors start no agents.
    pub agent_every: Option<Duration>,
    /// Delivers notices of jobs; without it nobody is told.
    pub courier: Option<Courier>,
    /// Takes the id of each job that has ended, once its end is durable. A full channel loses the id.
    pub ended: Option<SyncSender<JobId>>,
    /// Heartbeat, lease and orphan times.
    pub timing: Timing,
}

impl Options {
    /// Returns what a queue's programs are told of their quota in caches of datasets: the queue's own, or that of the nearest queue
    /// above it that has one.
    pub(super) fn cache_quota(&self, queue: &str) -> Option<String> {
        let mut at = Some(queue);
        while let Some(name) = at {
            if let Some((name, bytes)) = self.cache_quotas.iter().find(|(known, _)| known.as_str() == name) {
                return Some(format!("{name}={}", bytes.0));
            }
            let spec = self.sharing.queues.iter().find(|spec| spec.name.as_str() == name);
            at = spec.and_then(|spec| spec.parent.as_ref()).map(QueueName::as_str);
        }
        None
    }

    /// Returns the configured price of a node's accelerator-hour, if it has one.
    pub(super) fn price_of(&self, node: &str) -> Option<Money> {
        self.nodes.iter().find(|configured| configured.name.as_str() == node)?.price_per_hour
    }
}

impl fmt::Debug for Options {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Options").field("folder", &self.folder).field("nodes", &self.nodes).finish_non_exhaustive()
    }
}

/// The service's times. Each is a multiple of the one before: a supervisor misses several heartbeats before
/// its lease expires, and its ranks are stopped only long after that.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timing {
    /// Time between two reports of a supervisor.
    pub heartbeat: Duration,
    /// Silence after which the service asks the launcher whether the supervisor is alive.
    pub lease: Duration,
    /// Time without contact to the control plane after which a supervisor stops its ranks.
    pub orphan_after: Duration,
}

impl Timing {
    /// Derives the times from the common table of time-outs.
    #[must_use]
    pub const fn derived(timeouts: Timeouts) -> Timing {
        Timing { heartbeat: timeouts.heartbeat, lease: timeouts.silence, orphan_after: timeouts.lease }
    }
}

impl Default for Timing {
    fn default() -> Self {
        Timing::derived(Timeouts::DEFAULT)
    }
}
