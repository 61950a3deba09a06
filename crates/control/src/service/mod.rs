//! The control plane's one thread: requests in, engine, journal, answers out.
//!
//! It takes whatever requests have piled up, applies them to the engine, commits all entries and read models with one
//! fsync (group commit), and only then answers and acts. So an answer is a promise, nothing happens that isn't in the
//! journal, and a crash at any point loses only what nobody was told of. If a commit fails it answers with
//! the failure, acts on nothing, and refuses changes until what is durable has been replayed into a new engine;
//! running jobs go on.

mod actor;
mod audit;
mod batch;
mod changes;
mod checkpoints;
mod clock;
mod contacts;
mod epoch;
mod findings;
mod handle;
mod heal;
mod keeper;
mod known;
mod launch;
mod looks;
mod nodes;
mod once;
mod packing;
mod queries;
mod queues;
mod reports;
mod retention;
mod slowness;
mod start;
mod survey;
mod sweeps;
#[cfg(test)]
mod tests;
mod troubles;
mod watch;

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use gangline_base::{Submitter, Timestamp};
use gangline_execution::launcher::Launcher;
use gangline_execution::timeouts::Timeouts;
use gangline_orchestration::{Configuration, Limits};

pub use handle::{DrainWish, Error, Handle};
pub use heal::OnJournalFailure;
pub(crate) use launch::share_folder;
pub use start::{Service, StartError};
pub use survey::SurveyOptions;

use crate::config::{NodeConfig, Retention};
use crate::secret::Secrets;

/// Requests that may wait for the service's thread; senders wait beyond.
pub const REQUESTS_MAX: usize = 4_096;

/// What a service needs.
#[derive(Clone)]
pub struct Options {
    /// The data folder.
    pub folder: PathBuf,
    /// Where the journal is: the data folder, or a folder on a local disk if other machines use the data folder as well.
    pub journal_folder: PathBuf,
    /// The nodes.
    pub nodes: Vec<NodeConfig>,
    /// Nodes are those that the launcher sees instead.
    pub survey: Option<SurveyOptions>,
    /// How the cluster is shared.
    pub sharing: Configuration,
    /// What users may submit.
    pub limits: Limits,
    /// What is removed when.
    pub retention: Retention,
    /// What starts supervisors.
    pub launcher: Arc<dyn Launcher>,
    /// The clock, in nanoseconds since 1970.
    pub clock: fn() -> Timestamp,
    /// On whose behalf requests with the users' token are made.
    pub user: Submitter,
    /// The secrets.
    pub secrets: Secrets,
    /// How the journal is opened.
    pub journal: crate::db::Options,
    /// What is done once the journal can't be written.
    pub on_journal_failure: OnJournalFailure,
    /// Where a cloud says on each node that it is about to go ([`gangline_execution::protocol::SupervisorSpec::notice_source`]).
    pub notice_source: Option<String>,
    /// Times.
    pub timing: Timing,
}

impl fmt::Debug for Options {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Options").field("folder", &self.folder).field("nodes", &self.nodes).finish_non_exhaustive()
    }
}

/// The service's times. Each is a multiple of the one before: a supervisor misses several heartbeats before its
/// lease is over, and loses its ranks only long after that.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timing {
    /// Between a supervisor's reports.
    pub heartbeat: Duration,
    /// Silence after which the launcher is asked whether the supervisor lives.
    pub lease: Duration,
    /// Silence of a control plane after which a supervisor stops its ranks.
    pub orphan_after: Duration,
}

impl Timing {
    /// By the ladder of time-outs.
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
