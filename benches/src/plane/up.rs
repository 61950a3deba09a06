//! `gangline up` as a process on a folder of its own, on a disk.
//!
//! Where supervisors are simulated it runs under a name that is another program's as soon as it is up: what it starts as a
//! supervisor ends at once then, and reports come from here.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use rustix::fs::{Advice, fadvise, statfs};

use super::client::{Client, Door};
use crate::processes::{self, Signal};
use crate::recovery::simulated::Supervisor;
use crate::recovery::spawned::Folder;

/// What is waited for comes in this time, on a busy machine too.
const PATIENCE: Duration = Duration::from_secs(180);
/// Between two looks whether it is up.
const LOOK_EVERY: Duration = Duration::from_millis(2);
/// A program that ends at once and well.
const NOTHING: &str = "/bin/true";
/// The type of a file system in memory.
const TMPFS: rustix::fs::FsWord = 0x0102_1994;
/// Users may have as many jobs waiting as there can be.
const CONFIGURATION: &str = "[limits]\njobs_per_user = 200000\nbytes_per_user = \"256MiB\"\n";

/// A control plane.
#[derive(Debug)]
pub(super) struct Plane {
    up: Option<Child>,
    program: PathBuf,
    nodes: Vec<String>,
    folder: Folder,
}

impl Plane {
    /// One with nodes of so many slots each; it is up. Supervisors are simulated.
    ///
    /// # Errors
    /// When it doesn't start, or its folder isn't on a disk.
    pub(super) fn start(program: &Path, nodes: u32, slots: u32) -> Result<Plane> {
        let folder = Folder::new()?;
        let status = statfs(folder.root()).context("look at the folder's file system")?;
        anyhow::ensure!(
            status.f_type != TMPFS,
            "{} is in memory: set TMPDIR to a folder on a disk",
            folder.root().display()
        );
        std::fs::create_dir(folder.path("data")).context("make a data folder")?;
        std::fs::write(folder.path("data/gangline.toml"), CONFIGURATION).context("write a configuration")?;
        let nodes = (0..nodes).flat_map(|node| ["--node".to_owned(), format!("n{node}=cpu:{slots}")]).collect();
        let mut plane = Plane { up: None, program: program.to_owned(), nodes, folder };
        plane.restart()?;
        Ok(plane)
    }

    /// Starts it again after [`Plane::kill`]; from the program's start until it says that it is well.
    ///
    /// # Errors
    /// When it ends or doesn't answer.
    pub(super) fn restart(&mut self) -> Result<Duration> {
        // One of an earlier life would be mistaken for this one's.
        let _ = std::fs::remove_file(self.folder.path("data/endpoint"));
        let server = self.folder.path("gangline");
        let _ = std::fs::remove_file(&server);
        // Another file system can't have a link to it.
        if std::fs::hard_link(&self.program, &server).is_err() {
            std::fs::copy(&self.program, &server).context("copy the binary")?;
        }
        let mut command = Command::new(&server);
        command.arg("--data").arg(self.folder.path("data")).args(["up", "--listen", "127.0.0.1:0", "--lease", "60000"]);
        command.args(&self.nodes).env_remove("GANGLINE_URL").env_remove("GANGLINE_TOKEN");
        let began = Instant::now();
        self.up = Some(self.folder.spawn(&mut command, "up.log")?);
        while !self.is_well() {
            let ended = self.up.as_mut().and_then(|up| up.try_wait().ok().flatten());
            let log = || self.folder.text("up.log");
            anyhow::ensure!(ended.is_none() && began.elapsed() < PATIENCE, "gangline up doesn't start: {}", log());
            std::thread::sleep(LOOK_EVERY);
        }
        let took = began.elapsed();
        std::fs::remove_file(&server).context("take the binary's name away")?;
        std::os::unix::fs::symlink(NOTHING, &server).context("put nothing in the supervisors' place")?;
        Ok(took)
    }

    fn is_well(&self) -> bool {
        let asked = self.client().and_then(|mut client| {
            client.get("/api/v1/health")?;
            client.answered()
        });
        asked.is_ok_and(|health| health["status"] == "ok")
    }

    /// SIGKILL.
    ///
    /// # Errors
    /// When it isn't up.
    pub(super) fn kill(&mut self) -> Result<()> {
        let mut up = self.up.take().context("the control plane is up")?;
        up.kill().context("kill the control plane")?;
        up.wait().context("wait for the control plane")?;
        Ok(())
    }

    /// Ends it in order.
    ///
    /// # Errors
    /// When it isn't up.
    pub(super) fn stop(&mut self) -> Result<()> {
        let mut up = self.up.take().context("the control plane is up")?;
        processes::signal(up.id(), Signal::TERM)?;
        up.wait().context("wait for the control plane")?;
        Ok(())
    }

    /// Where it answers.
    ///
    /// # Errors
    /// Before it is up.
    pub(super) fn door(&self) -> Result<Door> {
        let endpoint = self.folder.text("data/endpoint");
        let address = endpoint.trim().trim_start_matches("http://").trim_end_matches('/').to_owned();
        anyhow::ensure!(!address.is_empty(), "the control plane has an endpoint");
        Ok(Door { address, token: self.folder.text("data/token") })
    }

    /// A connection to it.
    ///
    /// # Errors
    /// When it isn't up.
    pub(super) fn client(&self) -> Result<Client> {
        self.door()?.connect()
    }

    /// The processor time that it has used so far.
    ///
    /// # Errors
    /// When it isn't up.
    pub(super) fn processor_time(&self) -> Result<Duration> {
        processes::processor_time(self.up.as_ref().context("the control plane is up")?.id())
    }

    /// What it has sent to the disk so far, in bytes.
    ///
    /// # Errors
    /// When it isn't up.
    pub(super) fn bytes_written(&self) -> Result<u64> {
        let pid = self.up.as_ref().context("the control plane is up")?.id();
        let text = std::fs::read_to_string(format!("/proc/{pid}/io")).context("read what was written")?;
        let line = text.lines().find_map(|line| line.strip_prefix("write_bytes: "));
        line.and_then(|bytes| bytes.parse().ok()).context("find what was written")
    }

    /// Entries of its journal.
    ///
    /// # Errors
    /// When it isn't up.
    pub(super) fn entries(&self) -> Result<u64> {
        let mut client = self.client()?;
        client.get("/api/v1/health")?;
        client.answered()?["journal_entries"].as_u64().context("health has the number of entries")
    }

    /// Removes what lies on the disk of jobs that have ended: specs and logs aren't what is measured. What is still written stays.
    pub(super) fn forget_jobs(&self) {
        let _ = std::fs::remove_dir_all(self.folder.path("data/jobs"));
    }

    /// A path in its folder.
    pub(super) fn path(&self, name: &str) -> PathBuf {
        self.folder.path(name)
    }

    /// The supervisors of this job's first attempt, once their specs are there.
    ///
    /// # Errors
    /// When they don't come.
    pub(super) fn supervisor(&self, job: &str) -> Result<Supervisor> {
        let attempt = self.folder.path("data/jobs").join(job).join("attempt-1");
        let began = Instant::now();
        loop {
            let entries = std::fs::read_dir(&attempt).into_iter().flatten().flatten();
            let mut specs = entries.map(|entry| entry.path().join("spec.json")).filter(|spec| spec.is_file());
            // It is put in place whole.
            if let Some(spec) = specs.next() {
                return Supervisor::read(&spec);
            }
            anyhow::ensure!(began.elapsed() < PATIENCE, "{job} isn't started");
            std::thread::sleep(LOOK_EVERY);
        }
    }

    /// Has the system forget what it remembers of the data folder's files, as after a boot.
    ///
    /// # Errors
    /// When a file can't be opened.
    pub(super) fn forget_pages(&self) -> Result<()> {
        for entry in std::fs::read_dir(self.folder.path("data")).context("list the data folder")?.flatten() {
            if entry.file_type().is_ok_and(|kind| kind.is_file()) {
                let file = File::open(entry.path()).with_context(|| format!("open {}", entry.path().display()))?;
                // Only what is on the disk can be forgotten.
                file.sync_all().context("sync a file of the data folder")?;
                fadvise(&file, 0, None, Advice::DontNeed).context("forget a file's pages")?;
            }
        }
        Ok(())
    }
}

impl Drop for Plane {
    fn drop(&mut self) {
        // First, so that nothing is started any more; the folder's end is the end of the rest.
        let _ = self.kill();
    }
}
