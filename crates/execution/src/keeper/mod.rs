//! A keeper owns one rank: its process group, everything that descends from it, its log, and the record of its end.
//!
//! One process for each rank, without an async runtime, so that a rank's end can be cleaned up whatever happens to the
//! supervisor. It is a *subreaper*: processes that a rank leaves behind become its children and not init's. Its standard
//! input is the lifeline: the lines `TERM` and `KILL` signal the rank's process group, and the end of input (the
//! supervisor died, even by kill -9) kills all at once. Its standard output carries [`KeeperEvent`]s, a JSON line each.
//!
//! Keeps A-13 (nothing of an attempt outlives its supervisor) and A-10 (the clean-up and the drain have limits).

mod command;
mod group;
mod output;

use std::io::{self, BufRead, Write};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::ExitStatus;
use std::sync::Arc;

use rustix::process::{getpid, set_child_subreaper, setsid};
use serde::{Deserialize, Serialize};

use gangline_base::Timestamp;

use crate::clock::Clock;
use crate::files::write_durably;
use crate::protocol::UnixNanos;
use crate::supervisor::Identity;
use crate::trouble::is_platforms;

pub(crate) use command::THIS_PROGRAM;
pub use command::{ExecError, exec_rank};
use group::Group;
use output::Output;

/// How the files end, in the attempt's folder, that say who keeps a rank.
pub(crate) const KEEPER_EXTENSION: &str = "keeper";

/// The record of a rank's end, in the attempt's folder.
pub(crate) fn exit_record(rank: u32) -> String {
    format!("rank-{rank}.exit")
}

/// What a keeper is to keep.
#[derive(Clone, Debug)]
pub struct KeeperOptions {
    /// The log file.
    pub log: PathBuf,
    /// Where it is rotated.
    pub log_bytes_max: u64,
    /// Where the record of the end goes: the last [`KeeperEvent`], durably.
    pub record: PathBuf,
    /// The rank's command and arguments.
    pub command: Vec<String>,
}

/// What a keeper says on its standard output.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "event")]
pub enum KeeperEvent {
    /// The rank's main process runs.
    Started {
        /// Its process id, and that of its group.
        pid: u32,
        /// When.
        at: UnixNanos,
    },
    /// The rank printed something; at most a few times a second.
    Alive {
        /// When.
        at: UnixNanos,
    },
    /// The rank's main process ended, and all that descended from it is gone.
    Ended {
        /// When the main process ended.
        at: UnixNanos,
        /// How.
        end: RankEnd,
        /// The last lines it printed.
        last_lines: Vec<String>,
        /// Lines that didn't get into the log.
        dropped: u64,
    },
    /// The rank could not be started.
    NotStarted {
        /// When that was clear.
        at: UnixNanos,
        /// The operating system's reason.
        message: String,
        /// It is the platform's own: it lacks processes, memory or disk space, say.
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

/// What a supervisor tells a keeper, a line each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeeperCommand {
    /// SIGTERM to the rank's process group.
    Terminate,
    /// SIGKILL to everything.
    Kill,
}

impl KeeperCommand {
    /// The line that says it.
    #[must_use]
    pub fn line(self) -> &'static str {
        match self {
            KeeperCommand::Terminate => "TERM\n",
            KeeperCommand::Kill => "KILL\n",
        }
    }
}

/// The longest line of a keeper or to it.
pub(crate) const KEEPER_LINE_BYTES_MAX: usize = 256 << 10;

/// Runs a rank to its end. Returns once nothing of it is left (or can't be killed for longer than the clean-up's limit).
///
/// # Errors
/// If the keeper itself can't do its work; a rank that can't be started is an event and no error.
pub fn keep_rank(options: &KeeperOptions) -> io::Result<()> {
    let clock = Clock::start();
    // A session of its own: by it the processes of ranks are told from those that their supervisor starts itself, even when they are
    // about to go and show nothing else any more. One that leads a group already is somebody's who doesn't count on that.
    let _ = setsid();
    set_child_subreaper(Some(getpid()))?;
    let (group, output) = match start(options, clock) {
        Ok(started) => started,
        Err(error) => {
            let (message, is_platforms) = (error.to_string(), is_platforms(&error));
            return conclude(options, &KeeperEvent::NotStarted { at: nanos(clock.now()), message, is_platforms });
        }
    };
    let end = group.wait_for_main();
    let at = clock.now();
    let end = group.clean_up(end);
    let drained = output.finish();
    let event = KeeperEvent::Ended { at: nanos(at), end, last_lines: drained.last_lines, dropped: drained.dropped };
    conclude(options, &event)
}

/// Starts the rank and what looks after it: all of that, or nothing.
fn start(options: &KeeperOptions, clock: Clock) -> io::Result<(Arc<Group>, Output)> {
    sign(&options.record)?;
    let mut spawned = command::spawn(&options.command)?;
    let pid = spawned.child.id();
    let (stdout, stderr) = (spawned.child.stdout.take(), spawned.child.stderr.take());
    let group = Arc::new(Group::new(pid));
    let lifeline = Arc::clone(&group);
    let follow = std::thread::Builder::new().name("lifeline".to_owned()).spawn(move || follow_orders(&lifeline));
    let output = follow.and_then(|_| Output::start(&options.log, options.log_bytes_max, clock, (stdout, stderr)));
    match output.and_then(|output| spawned.wait_for_command().map(|()| output)) {
        Ok(output) => {
            say(&KeeperEvent::Started { pid, at: nanos(clock.now()) });
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

/// Lets others know in which session this rank's processes are, before there are any: what is about to go shows nothing else.
fn sign(record: &Path) -> io::Result<()> {
    let identity = serde_json::to_vec(&Identity::own()?).expect("numbers and text are always JSON");
    std::fs::write(record.with_extension(KEEPER_EXTENSION), identity)
}

/// Records how it ended and says so.
fn conclude(options: &KeeperOptions, event: &KeeperEvent) -> io::Result<()> {
    let record = serde_json::to_vec(event).expect("an event of numbers and text is always JSON");
    let recorded = write_durably(&options.record, &record);
    say(event);
    recorded
}

/// Says something to the supervisor. If it is gone, the lifeline notices that.
fn say(event: &KeeperEvent) {
    let mut line = serde_json::to_string(event).expect("an event of numbers and text is always JSON");
    line.push('\n');
    let _ = io::stdout().lock().write_all(line.as_bytes());
}

/// Carries out the supervisor's commands until it says no more, and then kills.
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
