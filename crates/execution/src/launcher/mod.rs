//! Launchers: they start the supervisors of gangs, tell whether these live, and may know the cluster's nodes.
//! Slurm's vocabulary stays within this module.

mod fence;
mod inherited;
mod local;
pub mod slurm;
mod spec;
mod survey;

use std::path::{Path, PathBuf};
use std::time::Duration;
use std::{fmt, io};

use gangline_base::{AcceleratorKind, GangShape, Timestamp};
pub use inherited::Inherited;
pub use local::LocalLauncher;
pub use slurm::{InvalidTopology, Places, SlurmLauncher, read_topology};
pub use spec::{have_all_succeeded, spec_epoch};
pub use survey::{Openness, SurveyedNode, Taken};

use crate::protocol::SupervisorSpec;
pub use crate::supervisor::{END_FILE as FINAL_REPORT_FILE, IDENTITY_FILE};

/// The time between two surveys of a system that doesn't mind being asked.
pub const SURVEY_INTERVAL: Duration = Duration::from_millis(500);

/// Starts supervisors on nodes for the control plane. All calls may block for as long as a process start, a
/// disk access or a query to the cluster's own batch system takes.
pub trait Launcher: Send + Sync {
    /// Starts the supervisors of a gang, one for each spec: all of an attempt, or those that a crash of the
    /// control plane may have kept from starting. They outlive the caller. Calling it again for a spec is
    /// harmless.
    ///
    /// Returns one result for each spec, in their order; a [`LaunchError`] means that its supervisor doesn't
    /// run.
    fn launch(&self, gang: &[SupervisorSpec]) -> Vec<Result<(), LaunchError>>;

    /// Returns the state of the supervisor of the attempt in `folder`.
    ///
    /// # Errors
    /// [`LaunchError`] if the state can't be determined now.
    fn presence(&self, folder: &Path) -> Result<Presence, LaunchError>;

    /// Fences the attempt in `folder`: kills its supervisor with SIGKILL, and all its other processes on the
    /// node, even those that neither supervisor nor shim could take down. If nothing runs, that is no
    /// error; a supervisor that waits to be started is never started, nor is the rest of its gang.
    ///
    /// # Errors
    /// [`LaunchError`] if a process may still run; a later call tries again.
    fn kill(&self, folder: &Path) -> Result<(), LaunchError>;

    /// Reports whether the supervisor of the attempt in `folder`, whose ranks have ended, must stay until it
    /// is terminated or the rest of its gang has ended. This matters where the launcher's system frees a node
    /// sooner while it still has a process to end there. `is_gang_over`: whether the attempt is over.
    fn stays(&self, folder: &Path, is_gang_over: bool) -> bool {
        let _ = (folder, is_gang_over);
        false
    }

    /// Returns why what a job asks for in `memory` and `cpus` is only counted where it runs, in this image if in one; none if its
    /// processes are held to it, or if that is for the launcher's own system to do.
    fn unenforced(&self, image: Option<&str>) -> Option<&str> {
        let _ = image;
        None
    }

    /// Returns what a node lacks to run a container of this image; none if nothing, or if that shows only on the node.
    fn missing_for_image(&self, image: &str) -> Option<String> {
        let _ = image;
        None
    }

    /// Returns the current nodes if the launcher's own system knows them; none if the configuration lists
    /// them. Called periodically, see [`Launcher::survey_interval`].
    ///
    /// # Errors
    /// [`LaunchError`] if the nodes can't be determined now; the previous result then stays valid.
    fn survey(&self) -> Result<Option<Vec<SurveyedNode>>, LaunchError> {
        Ok(None)
    }

    /// Reports whether a gang, once it is placed, still waits until the launcher's own system allocates its nodes to it. Otherwise
    /// it holds them from its placement to its end.
    fn allocates(&self) -> bool {
        false
    }

    /// Returns which gangs' nodes the launcher's own system has allocated to them, by the gangs' folders, as of the last survey.
    /// Allocations that are over are included as long as that system knows them.
    fn allocations(&self) -> Vec<(PathBuf, GangAllocation)> {
        Vec::new()
    }

    /// Reports whether the launcher asks its own system for the nodes of gangs that wait, and so has to know them.
    fn asks_for_nodes(&self) -> bool {
        false
    }

    /// Takes the gangs that wait for nodes, first in line first, in place of those before. Never blocks.
    fn want(&self, gangs: Vec<WantedGang>) {
        drop(gangs);
    }

    /// Returns the longest that an attempt of a queue's job may run, and who says so; none if nobody limits it.
    fn longest_run(&self, queue: &str) -> Option<(Duration, String)> {
        let _ = queue;
        None
    }

    /// Returns how much a gang of a queue may hold, by each limit of the launcher's own system.
    fn largest_gang(&self, queue: &str) -> Vec<GangLimit> {
        let _ = queue;
        Vec::new()
    }

    /// Returns the time from one survey to the next, as things are now: asked again and again meanwhile. `has_jobs`: whether
    /// any job waits or runs.
    fn survey_interval(&self, has_jobs: bool) -> Duration {
        let _ = has_jobs;
        SURVEY_INTERVAL
    }
}

/// The most that a gang may hold of something.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GangLimit {
    /// What is limited.
    pub of: Limited,
    /// The most of it.
    pub max: u64,
    /// Who limits it.
    pub why: String,
}

/// Something of which a gang holds an amount.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Limited {
    /// Nodes.
    Nodes,
    /// CPU cores.
    Cpus,
    /// GPUs of one kind, or of any.
    Gpus(Option<String>),
}

impl Limited {
    /// Returns how much of it a gang needs at least.
    #[must_use]
    pub fn needed_by(&self, gang: &GangShape) -> u64 {
        let is_of_cpus = gang.accelerator.0 == AcceleratorKind::CPU;
        match self {
            Limited::Nodes => gang.nodes.get().into(),
            Limited::Cpus => {
                let slots = if is_of_cpus { gang.accelerators_per_node.get() } else { 0 };
                u64::from(gang.nodes.get()) * (u64::from(slots) + u64::from(gang.cpus_per_node))
            }
            Limited::Gpus(kind) if is_of_cpus || kind.as_ref().is_some_and(|kind| *kind != gang.accelerator.0) => 0,
            Limited::Gpus(_) => gang.devices().into(),
        }
    }
}

impl fmt::Display for Limited {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Limited::Nodes => f.write_str("node(s)"),
            Limited::Cpus => f.write_str("CPU core(s)"),
            Limited::Gpus(None) => f.write_str("GPU(s)"),
            Limited::Gpus(Some(kind)) => write!(f, "{kind}"),
        }
    }
}

/// A gang that waits for nodes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WantedGang {
    /// Its job's id, `job-12`.
    pub gang: String,
    /// How many nodes it needs.
    pub nodes: u32,
    /// The kind of its accelerators.
    pub accelerator: String,
    /// How many it needs on each node.
    pub accelerators_per_node: u32,
    /// How long an attempt may run.
    pub time_limit: Option<Duration>,
}

/// The time for which the launcher's own system allocated nodes to a gang, by that system's clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GangAllocation {
    /// When the nodes were allocated; none if the gang was removed from that system's queue before.
    pub from: Option<Timestamp>,
    /// When they were released, if they were.
    pub to: Option<Timestamp>,
    /// That system has stopped the gang's processes for a while, and may let them go on.
    pub is_suspended: bool,
    /// How that system ended the allocation, if it did; none if this launcher asked for the end.
    pub end: Option<AllocationEnd>,
}

/// How the launcher's own system ended a gang's allocation before the gang was done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AllocationEnd {
    /// Somebody cancelled it, perhaps this launcher.
    Cancelled,
    /// It reached that system's time limit.
    TimeLimit,
    /// It made room for others.
    Preempted,
    /// A node failed.
    NodeFailed,
}

/// State of a supervisor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Presence {
    /// Not started yet: its gang waits in the queue of the launcher's own system.
    Waiting {
        /// Time waited so far.
        since: Duration,
        /// Why it waits, in that system's words; empty if unknown.
        why: String,
        /// It has waited for too long for nodes that don't come, so the gang should be placed elsewhere.
        is_overdue: bool,
    },
    /// Running.
    Running,
    /// Gone with all that it started, or [`Launcher::kill`] will see to that.
    Gone,
    /// Never started, and never will be: its gang was removed from the queue of the launcher's own system.
    Withdrawn,
    /// Its node doesn't respond.
    Unreachable,
    /// Ended before it could start anything, for lack of processes, memory, file descriptors or disk space.
    Unable {
        /// Its last log lines, if there was room for them.
        why: String,
    },
}

impl LaunchError {
    /// Reports whether the platform is at fault rather than the job; the same launch may succeed later.
    #[must_use]
    pub fn is_platforms(&self) -> bool {
        match self {
            // A supervisor is the platform's own program, in a folder of the platform's own. What is asked of the launcher's
            // system is the platform's choice too: account, partition and nodes; and so are that system's limits.
            LaunchError::Folder { .. }
            | LaunchError::Start { .. }
            | LaunchError::Unavailable { .. }
            | LaunchError::Refused { .. } => true,
            LaunchError::NotUnderstood { .. }
            | LaunchError::Kill { .. }
            | LaunchError::Fence { .. }
            | LaunchError::Leaving { .. } => false,
        }
    }
}

/// The reason a launcher's call failed.
#[derive(Debug, thiserror::Error)]
pub enum LaunchError {
    /// The attempt's folder, or a file in it, failed.
    #[error("{doing} {path}")]
    Folder {
        /// The operation that failed.
        doing: &'static str,
        /// The path.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// The supervisor's program could not be started.
    #[error("start the supervisor {program}")]
    Start {
        /// The program.
        program: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// The launcher's own system doesn't respond; the request may be repeated later.
    #[error("{system} doesn't answer: {message}")]
    Unavailable {
        /// The system's name.
        system: &'static str,
        /// What happened instead.
        message: String,
    },
    /// The launcher's own system refused the request.
    #[error("{system} refused: {message}")]
    Refused {
        /// The system's name.
        system: &'static str,
        /// The refusal in its words.
        message: String,
    },
    /// The output of the launcher's own system could not be understood.
    #[error("understand what {program} printed: {message}")]
    NotUnderstood {
        /// The program that printed it.
        program: &'static str,
        /// What is wrong with it.
        message: String,
    },
    /// The operating system refused to kill a process.
    #[error("kill supervisor {pid}")]
    Kill {
        /// The process id.
        pid: u32,
        /// The cause.
        source: io::Error,
    },
    /// Processes of the attempt remain although they were killed: they hang in the kernel, or belong to
    /// another user.
    #[error("kill what an attempt left behind: {} can't be killed yet", left.join(", "))]
    Fence {
        /// Their process ids, names and states.
        left: Vec<String>,
    },
    /// The launcher's own system is still ending what is left of the attempt.
    #[error("kill what an attempt left behind: {what}")]
    Leaving {
        /// What is left.
        what: String,
    },
}
