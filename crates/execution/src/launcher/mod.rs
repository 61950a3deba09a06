//! Launchers start supervisors on nodes, and find out whether they live. Slurm words belong in here and nowhere else.

mod fence;
mod local;
mod slurm;

use std::io;
use std::path::{Path, PathBuf};

pub use local::LocalLauncher;
pub use slurm::{InvalidTopology, Places, read_topology};

use crate::protocol::SupervisorSpec;
pub use crate::supervisor::{END_FILE as FINAL_REPORT_FILE, IDENTITY_FILE};

/// How the control plane gets a supervisor onto a node. All calls may block for as long as a process start or a look at
/// the disk takes.
pub trait Launcher: Send + Sync {
    /// Starts the supervisor of `spec`. It outlives the caller. A second call for one spec does no harm.
    ///
    /// # Errors
    /// [`LaunchError`]; then no supervisor runs.
    fn launch(&self, spec: &SupervisorSpec) -> Result<(), LaunchError>;

    /// Whether the supervisor of the attempt in `folder` runs.
    ///
    /// # Errors
    /// [`LaunchError`] if that can't be known now.
    fn is_alive(&self, folder: &Path) -> Result<bool, LaunchError>;

    /// Kills the supervisor of the attempt in `folder` by SIGKILL, and everything else of the attempt on its node, even what
    /// neither supervisor nor keeper could take with it (fencing). What doesn't run is no error.
    ///
    /// # Errors
    /// [`LaunchError`] if something of it may still run; a later call tries again.
    fn kill(&self, folder: &Path) -> Result<(), LaunchError>;
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
    /// The system refused to kill it.
    #[error("kill supervisor {pid}")]
    Kill {
        /// Its process id.
        pid: u32,
        /// Why not.
        source: io::Error,
    },
    /// Processes of the attempt are left although they were killed: they hang in the kernel, or are another user's.
    #[error("kill what an attempt left behind: processes {pids:?} still run")]
    Fence {
        /// Their process ids.
        pids: Vec<u32>,
    },
}
