//! A shim owns one rank: its process group, all its descendants, its log, and the record of its end.
//!
//! One process for each rank, without an async runtime, so that a rank's end can be cleaned up whatever
//! happens to the supervisor. It is a *subreaper*: processes that a rank leaves behind become its children
//! and not init's. Its standard input is the lifeline: the lines `TERM` and `KILL` signal the rank's process
//! group, and the end of input (the supervisor died, even by kill -9) kills everything at once. Its standard
//! output carries [`ShimEvent`]s, one JSON line each.
//!
//! Keeps A-13 (nothing of an attempt outlives its supervisor) and A-10 (the clean-up and the drain have
//! limits).

mod command;
mod container;
mod group;
mod output;

use std::ffi::OsString;
use std::io::{self, BufRead, Write, pipe};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::ExitStatus;
use std::sync::Arc;

use rustix::process::{getpid, set_child_subreaper, setsid};
use serde::{Deserialize, Serialize};

use gangline_base::Timestamp;

use crate::clock::Clock;
pub use crate::container::ContainerRuntime;
use crate::files::write_durably;
use crate::process::{Identity, own_pid};
use crate::protocol::UnixNanos;
use crate::trouble::is_platforms;

pub use command::THIS_PROGRAM;
pub use command::{ExecError, exec_rank};
use group::Group;
use output::Output;

/// Extension of the files in the attempt's folder that identify a rank's shim: the shim's name in earlier releases, which
/// running attempts still use.
pub(crate) const SHIM_EXTENSION: &str = "keeper";

/// Returns the file name of a rank's exit record in the attempt's folder.
pub(crate) fn exit_record(rank: u32) -> String {
    format!("rank-{rank}.exit")
}

/// Options of a shim.
#[derive(Clone, Debug)]
pub struct ShimOptions {
    /// The log file.
    pub log: PathBuf,
    /// Size at which the log is rotated.
    pub log_bytes_max: u64,
    /// Path of the exit record: the last [`ShimEvent`], written durably.
    pub record: PathBuf,
    /// What runs the rank's container, if the command does that.
    pub container: Option<ContainerRuntime>,
    /// The rank's command and arguments.
    pub command: Vec<OsString>,
}

/// An event that a shim writes to its standard output.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "event")]
pub enum ShimEvent {
    /// The rank's main process runs.
    Started {
        /// Id of the process and of its group; in podman's and Docker's containers the shim's own, from which all processes descend.
        pid: u32,
        /// Start time.
        at: UnixNanos,
    },
    /// The rank printed something; sent at most a few times a second.
    Alive {
        /// Time of the output.
        at: UnixNanos,
    },
    /// The rank's main process has ended, and all its descendants are gone.
    Ended {
        /// Time when the main process ended.
        at: UnixNanos,
        /// How it ended.
        end: RankEnd,
        /// The last lines that it printed.
        last_lines: Vec<String>,
        /// Number of lines that are missing from the log.
        dropped: u64,
    },
    /// The rank could not be started.
    NotStarted {
        /// Time of the failure.
        at: UnixNanos,
        /// The operating system's error.
        message: String,
        /// Whether the platform is at fault: it lacks processes, memory or disk space, for example.
        #[serde(default)]
        is_platforms: bool,
    },
}

/// How a process ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RankEnd {
    /// It exited with this code.
    Exit(i32),
    /// A signal killed it.
    Signal(i32),
}

impl From<ExitStatus> for RankEnd {
    fn from(status: ExitStatus) -> Self {
        match (status.code(), status.signal()) {
            (Some(code), _) => RankEnd::Exit(code),
            (None, signal) => RankEnd::Signal(signal.unwrap_or_default()),
        }
    }
}

/// A supervisor's command to a shim, one line each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ShimCommand {
    /// Send SIGTERM to the rank's process group.
    Terminate,
    /// Send SIGKILL to everything.
    Kill,
}

impl ShimCommand {
    /// Returns the command's line.
    #[must_use]
    pub fn line(self) -> &'static str {
        match self {
            ShimCommand::Terminate => "TERM\n",
            ShimCommand::Kill => "KILL\n",
        }
    }
}

/// Maximum length of a line from or to a shim.
pub(crate) const SHIM_LINE_BYTES_MAX: usize = 256 << 10;

/// Runs a rank to its end. Returns once all its processes are gone, or the clean-up's time is over.
///
/// # Errors
/// If the shim itself fails; a rank that can't be started is an event and no error.
pub fn keep_rank(options: &ShimOptions) -> io::Result<()> {
    let clock = Clock::start();
    // A session of its own distinguishes the ranks' processes from those that the supervisor starts itself,
    // even when they are exiting and show nothing else any more. A process that leads a group already can't
    // make a session; then it was started by somebody who doesn't rely on that.
    let _ = setsid();
    set_child_subreaper(Some(getpid()))?;
    let (group, output) = match start(options, clock) {
        Ok(started) => started,
        Err(error) => {
            let (message, is_platforms) = (error.to_string(), is_platforms(&error));
            return conclude(options, &ShimEvent::NotStarted { at: nanos(clock.now()), message, is_platforms });
        }
    };
    let end = group.wait_for_main();
    let at = clock.now();
    let end = group.clean_up(end);
    let drained = output.finish();
    let event = ShimEvent::Ended { at: nanos(at), end, last_lines: drained.last_lines, dropped: drained.dropped };
    conclude(options, &event)
}

/// Starts the rank, its log threads and its signalling: all of them, or nothing.
fn start(options: &ShimOptions, clock: Clock) -> io::Result<(Arc<Group>, Output)> {
    sign(&options.record)?;
    let is_daemons = options.container.is_some_and(ContainerRuntime::has_daemon);
    let (input, hold) = if is_daemons { pipe().map(|(input, hold)| (Some(input), Some(hold)))? } else { (None, None) };
    let mut spawned = command::spawn(&options.command, input.as_ref())?;
    let pid = spawned.child.id();
    let (stdout, stderr) = (spawned.child.stdout.take(), spawned.child.stderr.take());
    let group = Arc::new(Group::new(pid, options.container, hold));
    let thread = |name: &str| std::thread::Builder::new().name(name.to_owned());
    let lifeline = Arc::clone(&group);
    let follow = thread("lifeline").spawn(move || follow_orders(&lifeline));
    let admitting = Arc::clone(&group);
    let admit = follow.and_then(|_| thread("container").spawn(move || admitting.admit()));
    let output = admit.and_then(|_| Output::start(&options.log, options.log_bytes_max, clock, (stdout, stderr)));
    match output.and_then(|output| spawned.wait_for_command().map(|()| output)) {
        Ok(output) => {
            // Processes with numbers of their own descend from this one, but not from what runs their container.
            let root = if options.container.is_some_and(ContainerRuntime::is_apart) { own_pid() } else { pid };
            say(&ShimEvent::Started { pid: root, at: nanos(clock.now()) });
            Ok((group, output))
        }
        Err(error) => {
            group.kill();
            let end = group.wait_for_main();
            group.clean_up(end);
            Err(error)
        }
    }
}

/// Records the session of this rank's processes before there are any: a process that is exiting shows nothing
/// else.
fn sign(record: &Path) -> io::Result<()> {
    let identity = serde_json::to_vec(&Identity::own()?).expect("numbers and text are always JSON");
    std::fs::write(record.with_extension(SHIM_EXTENSION), identity)
}

/// Records the rank's end and reports it.
fn conclude(options: &ShimOptions, event: &ShimEvent) -> io::Result<()> {
    let record = serde_json::to_vec(event).expect("an event of numbers and text is always JSON");
    let recorded = write_durably(&options.record, &record);
    say(event);
    recorded
}

/// Sends an event to the supervisor. If the supervisor is gone, the lifeline notices.
fn say(event: &ShimEvent) {
    let mut line = serde_json::to_string(event).expect("an event of numbers and text is always JSON");
    line.push('\n');
    let _ = io::stdout().lock().write_all(line.as_bytes());
}

/// Carries out the supervisor's commands until its pipe is closed, and then kills.
fn follow_orders(group: &Group) {
    for line in io::stdin().lock().lines() {
        match line.as_deref() {
            Ok("TERM") => group.terminate(),
            Ok("KILL") => group.kill(),
            Ok(_) => {}
            Err(_) => break,
        }
    }
    group.kill();
}

fn nanos(at: Timestamp) -> UnixNanos {
    at.unix_nanos()
}
