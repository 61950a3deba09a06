//! The supervisor: one for each node of an attempt. It runs setup and ranks under shims, listens to the
//! ranks, reports to the control plane and carries out its orders.
//!
//! `node_attempt.rs` decides, as a state machine without effects; `shell.rs` has the effects. Ranks of an attempt
//! are started at most once: a second supervisor for a folder exits at once while the first lives, delivers
//! the end if the first has recorded it, and refuses otherwise.
//!
//! Keeps A-13: without the control plane a job runs on, for a bounded time.

mod checkup;
mod claims;
mod clearing;
mod companion;
mod contact;
mod container;
mod courier;
mod dataset_cache;
mod diagnosis;
mod divergence;
mod ending;
mod environment;
mod frames;
mod gpus;
mod hang;
mod identity;
mod input;
mod line;
mod node_attempt;
#[cfg(test)]
mod node_attempt_tests;
mod notice;
mod outbox;
mod outcome;
mod port;
mod rank;
mod readings;
mod report;
mod shell;
mod shims;
mod sockets;
mod stacks;
mod staging;
mod standstill;
mod tracking;

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use gangline_base::Bytes;
use rustix::process::{getpid, set_child_subreaper, setsid};

use crate::cgroup::{AttemptGroup, Limits};
use crate::files::read_bounded;
pub use crate::process::Identity;
use crate::protocol::{PROTOCOL_VERSION, Report, SupervisorSpec, is_understood};
use crate::trouble::is_platforms;

pub(crate) use ending::{EXIT_CODE_FILE, STOPPED, STOPPED_CODE};
use identity::Claim;
pub use identity::IDENTITY_FILE;
pub(crate) use identity::recorded_in;

/// Maximum number of ranks on a node: far above any machine, far below what would exhaust one.
const RANKS_PER_NODE_MAX: u32 = 1_024;
/// Maximum number of nodes in a gang.
const NODES_MAX: u32 = 65_536;

/// Options of a supervisor.
#[derive(Clone, Debug)]
pub struct SuperviseOptions {
    /// The spec file.
    pub spec: PathBuf,
    /// Folder for sockets if the path of the attempt's folder is too long for them.
    pub temporary_folder: PathBuf,
    /// The environment that setup and ranks inherit.
    pub environment: BTreeMap<OsString, OsString>,
    /// Path of the kernel's log if it isn't `/dev/kmsg`: a container may have the host's elsewhere.
    pub kernel_log: Option<PathBuf>,
    /// Whether to make a control group for its processes, where this user may. Unnecessary if a workload
    /// manager has put them in one, since it fences by that.
    pub has_own_group: bool,
}

/// Result of supervising.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Supervised {
    /// The attempt ended and the control plane acknowledged it.
    Delivered,
    /// The attempt ended, but the control plane was away for too long; `end.json` has the report.
    Undelivered,
    /// The ranks could not be started because of a platform error, and the control plane was away for too
    /// long.
    Unable,
    /// Another supervisor is running for this folder.
    Elsewhere,
}

/// The reason a supervisor can't run.
#[derive(Debug, thiserror::Error)]
pub enum SuperviseError {
    /// The spec can't be read.
    #[error("read the supervisor's spec {path}")]
    Spec {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// The spec was written by another version.
    #[error("read the supervisor's spec: its version is {found}, this program knows {PROTOCOL_VERSION}")]
    Version {
        /// The spec's version.
        found: u32,
    },
    /// A value in the spec is out of range.
    #[error("read the supervisor's spec: {what} is out of range")]
    Range {
        /// The field.
        what: &'static str,
    },
    /// An earlier supervisor of this attempt died, and its ranks with it; an attempt isn't run twice.
    #[error("supervise {folder}: an earlier supervisor of this attempt died there, start another attempt")]
    Abandoned {
        /// The attempt's folder.
        folder: PathBuf,
    },
    /// The operating system failed an operation on the attempt's folder, or another one that every attempt
    /// needs.
    #[error("supervise: {doing}")]
    Io {
        /// The operation.
        doing: &'static str,
        /// The cause.
        source: io::Error,
    },
}

impl SuperviseError {
    /// Reports whether the platform is at fault: it lacks processes, memory or disk space, for example. The
    /// attempt may be tried again.
    #[must_use]
    pub fn is_platforms(&self) -> bool {
        match self {
            SuperviseError::Spec { source, .. } | SuperviseError::Io { source, .. } => is_platforms(source),
            SuperviseError::Version { .. } | SuperviseError::Range { .. } | SuperviseError::Abandoned { .. } => false,
        }
    }
}

/// Exit code of a supervisor that could not begin because of a platform error; sysexits.h: a temporary
/// failure.
pub const UNABLE_CODE: u8 = 75;

/// The file in an attempt's folder that holds the last report, once the attempt has ended.
pub const END_FILE: &str = "end.json";

/// Supervises an attempt's share to its end. Blocks.
///
/// # Errors
/// [`SuperviseError`] if it can't begin; later failures are outcomes in a report.
pub fn supervise(options: SuperviseOptions) -> Result<Supervised, SuperviseError> {
    let spec = Arc::new(read_spec(&options.spec)?);
    let folder = spec.folder.clone();
    // A session of its own, so that closing a terminal doesn't affect it; a process that leads a group
    // already has that.
    let _ = setsid();
    let claim = match Claim::take(&folder).map_err(io_error("claim the attempt's folder"))? {
        Some(claim) => claim,
        None => return Ok(Supervised::Elsewhere),
    };
    let end = read_end(&folder)?;
    if end.is_none() && claim.was_claimed_before() {
        return Err(SuperviseError::Abandoned { folder });
    }
    claim.sign().map_err(io_error("write supervisor.json"))?;
    set_child_subreaper(Some(getpid())).map_err(|error| io_error("adopt orphans")(error.into()))?;
    let limits = Limits { memory: Bytes(spec.memory_bytes), cpus: spec.cpus };
    let _membership = options.has_own_group.then(|| AttemptGroup::enter(&folder, limits)).flatten();
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(io_error("start the runtime"))?;
    let supervised = match end {
        Some(end) => runtime.block_on(shell::deliver(&spec, end)),
        None => runtime.block_on(shell::run(spec, options)),
    };
    // A report to a control plane that doesn't answer is not waited for.
    runtime.shutdown_background();
    supervised.map_err(io_error("run the ranks"))
}

/// Reads and checks a spec.
fn read_spec(path: &Path) -> Result<SupervisorSpec, SuperviseError> {
    let unreadable = |source| SuperviseError::Spec { path: path.to_owned(), source };
    let bytes = read_bounded(path).map_err(unreadable)?;
    let spec: SupervisorSpec = serde_json::from_slice(&bytes).map_err(|error| unreadable(error.into()))?;
    if !is_understood(spec.version) {
        return Err(SuperviseError::Version { found: spec.version });
    }
    let ranges = [
        ("ranks_per_node", (1..=RANKS_PER_NODE_MAX).contains(&spec.ranks_per_node)),
        ("node_count", (1..=NODES_MAX).contains(&spec.node_count)),
        ("node_rank", spec.node_rank < spec.node_count),
        ("heartbeat_ms", spec.heartbeat_ms > 0),
        ("folder (make it absolute)", spec.folder.is_absolute()),
    ];
    match ranges.into_iter().find(|(_, is_fine)| !is_fine) {
        Some((what, _)) => Err(SuperviseError::Range { what }),
        None => Ok(spec),
    }
}

/// Returns the end that an earlier supervisor recorded, if one did.
fn read_end(folder: &Path) -> Result<Option<Report>, SuperviseError> {
    let doing = "read end.json";
    match read_bounded(&folder.join(END_FILE)) {
        Ok(bytes) => serde_json::from_slice(&bytes).map(Some).map_err(|error| io_error(doing)(error.into())),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(io_error(doing)(error)),
    }
}

fn io_error(doing: &'static str) -> impl FnOnce(io::Error) -> SuperviseError {
    move |source| SuperviseError::Io { doing, source }
}
