//! The product as its user has it: the control plane as a process, the command line against it, and the folder of both.

use std::fs::{File, OpenOptions};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use serde_json::Value;

use super::disk::Disk;
use crate::processes::{self, Signal};

/// What is waited for comes in this time, on a busy machine too.
pub(super) const PATIENCE: Duration = Duration::from_secs(60);
/// Options of `up`: quick heartbeats, two nodes with room for some jobs at a time.
const OPTIONS: [&str; 12] = [
    "--listen",
    "127.0.0.1:0",
    "--heartbeat",
    "200",
    "--lease",
    "1000",
    "--price",
    "0.04",
    "--node",
    "a=cpu:4",
    "--node",
    "b=cpu:4",
];
/// The size of the data folder's file system. Its image is a sparse file.
const DISK_BYTES: u64 = 4 << 30;

/// What the command line answered.
#[derive(Debug)]
pub(super) enum Answer {
    /// It did as asked.
    Done(Value),
    /// There is no such thing.
    NotFound,
    /// The request is refused, with this code, and nothing was done.
    Refused(String),
    /// It isn't known whether it was done: the control plane is away or in trouble.
    Unknown(String),
}

/// How a start of the control plane went.
#[derive(Debug)]
pub(super) enum Start {
    /// It answers. What it has said so far.
    Up(String),
    /// It ended. What it said.
    Refused(String),
}

/// The product and its folder.
#[derive(Debug)]
pub(super) struct World {
    program: PathBuf,
    root: PathBuf,
    /// None where mounting isn't permitted, with the reason.
    pub(super) disk: Result<Disk, String>,
    up: Mutex<Option<Child>>,
    guard: Child,
}

/// What ends everything if this process is killed, or interrupted at the terminal: its input ends then.
const GUARD: &str = r#"cat; for turn in 1 2 3; do pkill -KILL -f "$FOLDER"; sleep 0.2; done; umount -l "$FOLDER/data""#;

impl World {
    /// Prepares a folder that isn't there yet.
    ///
    /// # Errors
    /// When it can't be made.
    pub(super) fn new(program: PathBuf, root: PathBuf) -> Result<World> {
        std::fs::create_dir_all(root.join("witness")).with_context(|| format!("make {}", root.display()))?;
        let mut guard = Command::new("sh");
        std::os::unix::process::CommandExt::process_group(&mut guard, 0);
        guard
            .args(["-c", GUARD])
            .env("FOLDER", &root)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        let guard = guard.spawn().context("start what clears up")?;
        let disk = Disk::mount(&root.join("disk.img"), &root.join("data"), DISK_BYTES);
        let disk = disk.map_err(|error| format!("{error:#}"));
        Ok(World { program, root, disk, up: Mutex::default(), guard })
    }

    /// A path in the folder.
    pub(super) fn path(&self, name: &str) -> PathBuf {
        self.root.join(name)
    }

    /// The data folder.
    pub(super) fn data(&self) -> PathBuf {
        self.path("data")
    }

    /// The control plane's process, while it is up.
    pub(super) fn pid(&self) -> Option<u32> {
        self.child().as_ref().map(Child::id)
    }

    /// Whether the control plane has ended by itself.
    pub(super) fn has_ended(&self) -> bool {
        self.child().as_mut().is_some_and(|child| !matches!(child.try_wait(), Ok(None)))
    }

    /// Starts the control plane, with more options, and waits until it answers or ends.
    ///
    /// # Errors
    /// When it does neither.
    pub(super) fn start(&self, options: &[&str]) -> Result<Start> {
        // One of an earlier life would be mistaken for this one's.
        let _ = std::fs::remove_file(self.data().join("endpoint"));
        let path = self.path("up.log");
        let log = OpenOptions::new().create(true).append(true).open(&path).context("open the control plane's log")?;
        let before = log.metadata().context("look at the control plane's log")?.len();
        let mut command = self.command();
        command.arg("up").args(OPTIONS).args(options).current_dir(&self.root).stdin(Stdio::null());
        command.stdout(Stdio::null()).stderr(log).env("RUST_BACKTRACE", "1");
        *self.child() = Some(command.spawn().context("start the control plane")?);
        let deadline = Instant::now() + PATIENCE;
        while !matches!(self.ask(&["queues"]), Answer::Done(_)) {
            if self.has_ended() {
                *self.child() = None;
                return Ok(Start::Refused(said(&path, before)));
            }
            if Instant::now() > deadline {
                bail!("the control plane neither answers nor ends within {PATIENCE:?}: {}", said(&path, before));
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(Start::Up(said(&path, before)))
    }

    /// SIGKILL for the control plane.
    ///
    /// # Errors
    /// When it isn't up.
    pub(super) fn kill(&self) -> Result<()> {
        let mut child = self.child().take().context("the control plane is up")?;
        child.kill().context("kill the control plane")?;
        child.wait().context("wait for the control plane")?;
        Ok(())
    }

    /// SIGTERM for the control plane, and its end.
    ///
    /// # Errors
    /// When it isn't up, or doesn't end.
    pub(super) fn stop(&self) -> Result<()> {
        let mut child = self.child().take().context("the control plane is up")?;
        processes::signal(child.id(), Signal::TERM)?;
        let deadline = Instant::now() + PATIENCE;
        while child.try_wait().context("look at the control plane")?.is_none() {
            if Instant::now() > deadline {
                child.kill().context("kill the control plane")?;
                child.wait().context("wait for the control plane")?;
                bail!("the control plane didn't end within {PATIENCE:?} of a SIGTERM");
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(())
    }

    /// What the command line says to these arguments.
    pub(super) fn ask(&self, arguments: &[&str]) -> Answer {
        let mut command = self.command();
        command.arg("--json").args(arguments).current_dir(&self.root).stdin(Stdio::null());
        match command.output() {
            Ok(output) => answer(&output),
            Err(error) => Answer::Unknown(format!("start gangline: {error}")),
        }
    }

    fn command(&self) -> Command {
        let mut command = Command::new(&self.program);
        command.arg("--data").arg(self.data());
        command.env_remove("GANGLINE_URL").env_remove("GANGLINE_TOKEN").env_remove("GANGLINE_CERTIFICATE");
        command
    }

    fn child(&self) -> MutexGuard<'_, Option<Child>> {
        self.up.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for World {
    fn drop(&mut self) {
        // What is left was reported; it may have ended by itself.
        let _ = self.kill();
        let _ = self.guard.kill();
        let _ = self.guard.wait();
        processes::sweep(&self.root);
    }
}

/// What a log says after so many bytes, in one line and without what opens the page.
fn said(path: &Path, after: u64) -> String {
    use std::io::{Read as _, Seek as _, SeekFrom};
    let mut text = Vec::new();
    // A log that can't be read says nothing.
    let _ = File::open(path).and_then(|mut file| {
        file.seek(SeekFrom::Start(after))?;
        file.read_to_end(&mut text)
    });
    let text = String::from_utf8_lossy(&text);
    let lines = text.lines().filter(|line| !line.is_empty() && !line.contains("token="));
    lines.collect::<Vec<_>>().join(" | ")
}

fn answer(output: &Output) -> Answer {
    let errors = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    let code = || {
        let last: Value = errors.lines().last().and_then(|line| serde_json::from_str(line).ok()).unwrap_or_default();
        last["error"]["code"].as_str().unwrap_or_default().to_owned()
    };
    match output.status.code() {
        Some(0) => match serde_json::from_slice(&output.stdout) {
            Ok(value) => Answer::Done(value),
            Err(error) => Answer::Unknown(format!("read an answer: {error}")),
        },
        Some(3) => Answer::NotFound,
        Some(2 | 4) => Answer::Refused(format!("{} {errors}", code())),
        _ => Answer::Unknown(format!("{} {errors}", code())),
    }
}
