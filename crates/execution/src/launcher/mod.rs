//! Launchers start the supervisors of gangs, find out whether they live, and may know which nodes there are. Slurm words
//! belong in here and nowhere else.

mod fence;
mod inherited;
mod local;
pub mod slurm;
mod spec;
mod survey;

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

pub use inherited::Inherited;
pub use local::LocalLauncher;
pub use slurm::{InvalidTopology, Places, SlurmLauncher, read_topology};
pub use spec::{have_all_succeeded, spec_epoch};
pub use survey::{Openness, SurveyedNode, Taken};

use crate::protocol::SupervisorSpec;
pub use crate::supervisor::{END_FILE as FINAL_REPORT_FILE, IDENTITY_FILE};

/// How the control plane gets supervisors onto nodes. All calls may block for as long as a process start, a look at the disk
/// or a question to the cluster's own batch system takes.
pub trait Launcher: Send + Sync {
    /// Starts the supervisors of a gang, one for each spec: all of an attempt, or those of it that a crash of the control plane
    /// may have kept from being started. They outlive the caller. A second call for a spec does no harm.
    ///
    /// There is an answer for each spec, in their order: a [`LaunchError`] says that its supervisor doesn't run.
    fn launch(&self, gang: &[SupervisorSpec]) -> Vec<Result<(), LaunchError>>;

    /// What has become of the supervisor of the attempt in `folder`.
    ///
    /// # Errors
    /// [`LaunchError`] if that can't be known now.
    fn presence(&self, folder: &Path) -> Result<Presence, LaunchError>;

    /// Kills the supervisor of the attempt in `folder` by SIGKILL, and everything else of the attempt on its node, even what
    /// neither supervisor nor keeper could take with it (fencing). What doesn't run is no error; what waits to be started
    /// never will be, with all of its gang.
    ///
    /// # Errors
    /// [`LaunchError`] if something of it may still run; a later call tries again.
    fn kill(&self, folder: &Path) -> Result<(), LaunchError>;

    /// Whether the supervisor of the attempt in `folder`, whose ranks have ended, is to stay until it is told to terminate or the
    /// others of its gang have ended: where the launcher's system frees nodes sooner on which it still has something to end.
    /// `is_gang_over`: the attempt is.
    fn stays(&self, folder: &Path, is_gang_over: bool) -> bool {
        let _ = (folder, is_gang_over);
        false
    }

    /// The nodes that there are now, if the launcher's own system knows: none if the configuration does. Called again and
    /// again.
    ///
    /// # Errors
    /// [`LaunchError`] if that can't be known now; then all is as it was.
    fn survey(&self) -> Result<Option<Vec<SurveyedNode>>, LaunchError> {
        Ok(None)
    }
}

/// What has become of a supervisor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Presence {
    /// It isn't started yet: its gang waits for its turn in the launcher's own system.
    Waiting {
        /// For how long.
        since: Duration,
        /// What for, in that system's words; empty if that isn't known yet.
        why: String,
        /// That is longer than may be: somebody else was quicker, and the gang is better off elsewhere.
        is_overdue: bool,
    },
    /// It runs.
    Running,
    /// It is gone, and so is what it started, or [`Launcher::kill`] makes sure of that.
    Gone,
    /// It was never started, and won't be: its gang was taken out of the queue of the launcher's own system.
    Withdrawn,
    /// Nobody on its node answers.
    Unreachable,
    /// It ended before it could start anything, for the platform's own want of processes, memory, file descriptors or disk space.
    Unable {
        /// Its last words, if there was room for them.
        why: String,
    },
}

impl LaunchError {
    /// Whether the platform is at fault rather than the job that was to be started: the same may succeed later.
    #[must_use]
    pub fn is_platforms(&self) -> bool {
        match self {
            // A supervisor is the platform's own program, in a folder of the platform's own.
            LaunchError::Folder { .. } | LaunchError::Start { .. } | LaunchError::Unavailable { .. } => true,
            LaunchError::Refused { .. }
            | LaunchError::NotUnderstood { .. }
            | LaunchError::Kill { .. }
            | LaunchError::Fence { .. }
            | LaunchError::Leaving { .. } => false,
        }
    }
}

/// Why a launcher couldn't do it.
#[derive(Debug, thiserror::Error)]
pub enum LaunchError {
    /// The attempt's folder or a file in it.
    #[error("{doing} {path}")]
    Folder {
        /// What was tried.
        doing: &'static str,
        /// The path.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// The supervisor's program.
    #[error("start the supervisor {program}")]
    Start {
        /// The program.
        program: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// The launcher's own system doesn't answer; what it was asked may be asked again later.
    #[error("{system} doesn't answer: {message}")]
    Unavailable {
        /// Which system.
        system: &'static str,
        /// What happened instead.
        message: String,
    },
    /// The launcher's own system refused.
    #[error("{system} refused: {message}")]
    Refused {
        /// Which system.
        system: &'static str,
        /// In its words.
        message: String,
    },
    /// The launcher's own system said what can't be understood.
    #[error("understand what {program} printed: {message}")]
    NotUnderstood {
        /// The program that printed it.
        program: &'static str,
        /// What is wrong with it.
        message: String,
    },
    /// The system refused to kill it.
    #[error("kill supervisor {pid}")]
    Kill {
        /// Its process id.
        pid: u32,
        /// Why not.
        source: io::Error,
    },
    /// Processes of the attempt are left although they were killed: they hang in the kernel, or are another user's.
    #[error("kill what an attempt left behind: {} can't be killed yet", left.join(", "))]
    Fence {
        /// Their process ids, names and states.
        left: Vec<String>,
    },
    /// What is left of it is in the hands of the launcher's own system, which isn't done yet.
    #[error("kill what an attempt left behind: {what}")]
    Leaving {
        /// What is left.
        what: String,
    },
}
