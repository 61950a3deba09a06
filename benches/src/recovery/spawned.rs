//! A folder and the processes that were started for it; neither outlives the value, nor this process, however that ends.

use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use anyhow::{Context as _, Result};
use xtask::command;

use crate::processes;

/// A temporary folder whose path all processes of an experiment have in their arguments.
#[derive(Debug)]
pub(crate) struct Folder {
    folder: tempfile::TempDir,
    guard: Child,
}

/// What clears up if this process is killed, or interrupted at the terminal: its input ends then.
const GUARD: &str = r#"cat; for turn in 1 2 3; do pkill -KILL -f "$FOLDER"; sleep 0.2; done; rm -rf "$FOLDER""#;

impl Folder {
    /// An empty one.
    ///
    /// # Errors
    /// When it can't be made.
    pub(crate) fn new() -> Result<Folder> {
        let folder = tempfile::Builder::new().prefix("gangline-recovery-").tempdir();
        let folder = folder.context("make a temporary folder")?;
        let mut guard = Command::new("sh");
        // In its own group, an interrupt at the terminal doesn't reach it.
        guard.args(["-c", GUARD]).env("FOLDER", folder.path()).process_group(0);
        let guard = guard.stdin(Stdio::piped()).stdout(Stdio::null()).spawn().context("start what clears up")?;
        Ok(Folder { folder, guard })
    }

    /// Its path.
    pub(crate) fn root(&self) -> &Path {
        self.folder.path()
    }

    /// A path in it.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Starts a program there, whose output goes to a file of it.
    ///
    /// # Errors
    /// When it can't be started.
    pub(crate) fn spawn(&self, program: &mut Command, log: &str) -> Result<Child> {
        let path = self.path(log);
        let file = std::fs::OpenOptions::new().create(true).append(true).open(&path);
        let file = file.with_context(|| format!("open {}", path.display()))?;
        let errors = file.try_clone().with_context(|| format!("open {}", path.display()))?;
        program.current_dir(self.root()).stdin(Stdio::null()).stdout(file).stderr(errors);
        program.spawn().with_context(|| format!("start `{}`", command::line(program)))
    }

    /// What a file holds so far; nothing if it isn't there.
    pub(crate) fn text(&self, name: &str) -> String {
        String::from_utf8_lossy(&std::fs::read(self.path(name)).unwrap_or_default()).into_owned()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // Its work is done here, and sooner. It may be gone already.
        let _ = self.guard.kill();
        let _ = self.guard.wait();
        processes::sweep(self.root());
    }
}
