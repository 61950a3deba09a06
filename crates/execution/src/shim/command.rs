//! Starts a rank's main process: the leader of a process group of its own, which dies with its shim.

use std::convert::Infallible;
use std::ffi::OsString;
use std::fs::File;
use std::io::{self, PipeReader, Read, Write, pipe};
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};

use rustix::io::Errno;
use rustix::process::{Signal, getppid, set_parent_process_death_signal};

use crate::process::{OWNERS_VARIABLE, as_pid, own_pid, owners};

/// The running program, even after an upgrade replaced its file.
pub const THIS_PROGRAM: &str = "/proc/self/exe";

/// How much sooner than others the kernel ends this process where memory runs out.
const OOM_SCORE: &str = "/proc/self/oom_score_adj";

/// The reason a process could not become the rank.
#[derive(Debug, thiserror::Error)]
pub enum ExecError {
    /// No command was given.
    #[error("run the rank: its command is empty")]
    Empty,
    /// The shim died before this process was tied to it.
    #[error("run the rank: its shim is gone")]
    ShimGone,
    /// The system refused.
    #[error("run the rank")]
    Io(#[from] io::Error),
}

/// A rank's main process, and the pipe on which it reports that it can't run the rank's command.
pub(super) struct Spawned {
    pub(super) child: Child,
    complaint: PipeReader,
}

impl Spawned {
    /// Waits until the process runs its command, or has ended.
    ///
    /// # Errors
    /// The system's error if the command can't be run.
    pub(super) fn wait_for_command(&mut self) -> io::Result<()> {
        let mut said = [0; size_of::<i32>()];
        match self.complaint.read_exact(&mut said) {
            Ok(()) => Err(io::Error::from_raw_os_error(i32::from_ne_bytes(said))),
            // The pipe was closed by a successful exec.
            Err(_) => Ok(()),
        }
    }
}

/// Starts `command` by way of `gangline exec-rank`, with its outputs as pipes, and with `input`, if there is one, as its standard
/// input; what it then has a daemon start belongs to this process. Must be called on the shim's main thread: the rank dies with the
/// thread that started it.
pub(super) fn spawn(command: &[OsString], input: Option<&PipeReader>) -> io::Result<Spawned> {
    let (complaint, complains) = pipe()?;
    let mut exec = Command::new(THIS_PROGRAM);
    exec.arg0("gangline").arg("exec-rank").arg("--shim").arg(own_pid().to_string());
    if let Some(input) = input {
        exec.arg("--input").arg(input.as_raw_fd().to_string()).env(OWNERS_VARIABLE, owners());
    }
    exec.arg("--").args(command);
    exec.stdin(complains).stdout(Stdio::piped()).stderr(Stdio::piped());
    Ok(Spawned { child: exec.process_group(0).spawn()?, complaint })
}

/// Makes this process one that the kernel ends before the control plane and its supervisors where memory runs out: a
/// service's `OOMScoreAdjust` is inherited (proc(5), `oom_score_adj`; any process may raise its own).
fn give_up_protection() {
    let score = std::fs::read_to_string(OOM_SCORE).unwrap_or_default();
    if is_protected(&score) {
        // Without the right to do so the rank runs all the same.
        let _ = std::fs::write(OOM_SCORE, "0");
    }
}

fn is_protected(score: &str) -> bool {
    score.trim().parse::<i32>().is_ok_and(|score| score < 0)
}

/// Turns this process into the rank: ties its life to the shim's and executes the command. The command gets no input, or what
/// is open as `input` in the shim. Standard input is a pipe to the shim; if the system refuses, the error's number is written to it.
///
/// # Errors
/// [`ExecError`]; it never returns otherwise.
pub fn exec_rank(shim: u32, input: Option<u32>, command: &[OsString]) -> Result<Infallible, ExecError> {
    let complaint = io::stdin().as_fd().try_clone_to_owned()?;
    let outcome = become_rank(shim, input, command);
    if let Err(ExecError::Io(error)) = &outcome {
        let number = error.raw_os_error().unwrap_or(Errno::IO.raw_os_error());
        // If the shim is gone, nobody needs to know.
        let _ = File::from(complaint).write_all(&number.to_ne_bytes());
    }
    outcome
}

fn become_rank(shim: u32, input: Option<u32>, command: &[OsString]) -> Result<Infallible, ExecError> {
    let (program, arguments) = command.split_first().ok_or(ExecError::Empty)?;
    set_parent_process_death_signal(Some(Signal::KILL)).map_err(io::Error::from)?;
    // If the shim died before that call no signal will come, but it is no longer the parent.
    if getppid() != as_pid(shim) {
        return Err(ExecError::ShimGone);
    }
    give_up_protection();
    let input = match input {
        Some(input) => File::open(format!("/proc/{shim}/fd/{input}"))?.into(),
        None => Stdio::null(),
    };
    Err(ExecError::Io(Command::new(program).args(arguments).stdin(input).exec()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_score_below_zero_protects() {
        assert!(is_protected("-500\n") && is_protected("-1"));
        assert!(!is_protected("0\n") && !is_protected("300") && !is_protected(""));
    }
}
