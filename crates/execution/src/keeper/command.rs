//! Starting a rank's main process: the leader of a process group of its own, that dies with its keeper.

use std::convert::Infallible;
use std::io;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};

use rustix::process::{Signal, getppid, set_parent_process_death_signal};

use crate::process::{as_pid, own_pid};

/// The running program, even after its file was replaced by an upgrade.
pub(crate) const THIS_PROGRAM: &str = "/proc/self/exe";

/// Why a process could not become the rank.
#[derive(Debug, thiserror::Error)]
pub enum ExecError {
    /// No command was given.
    #[error("run the rank: its command is empty")]
    Empty,
    /// The keeper died before this process was tied to it.
    #[error("run the rank: its keeper is gone")]
    KeeperGone,
    /// The system refused.
    #[error("run the rank")]
    Io(#[from] io::Error),
}

/// Starts `command` by way of `gangline exec-rank`, with its outputs as pipes. Call this on the keeper's main thread: the
/// rank dies with the thread that started it.
pub(super) fn spawn(command: &[String]) -> io::Result<Child> {
    let mut exec = Command::new(THIS_PROGRAM);
    exec.arg0("gangline").arg("exec-rank").arg("--keeper").arg(own_pid().to_string()).arg("--").args(command);
    exec.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    exec.process_group(0).spawn()
}

/// Turns this process into the rank: ties its life to the keeper's and executes the command.
///
/// # Errors
/// [`ExecError`]; it never returns otherwise.
pub fn exec_rank(keeper: u32, command: &[String]) -> Result<Infallible, ExecError> {
    let (program, arguments) = command.split_first().ok_or(ExecError::Empty)?;
    set_parent_process_death_signal(Some(Signal::KILL)).map_err(io::Error::from)?;
    // If the keeper died before that call, no signal will come: then its number is no longer the parent's.
    if getppid() != as_pid(keeper) {
        return Err(ExecError::KeeperGone);
    }
    Err(ExecError::Io(Command::new(program).args(arguments).exec()))
}
