//! `gangline up` as a process on a folder of its own, and the command line against it.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use serde_json::Value;

use super::spawned::Folder;
use crate::processes::{self, Signal};

/// What is waited for comes in this time, on a busy machine too.
pub(crate) const PATIENCE: Duration = Duration::from_secs(180);
/// Between two looks that start a process each: they shall not be what is measured.
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// Options of tinygpt for steps that cost little.
const SMALL: &str = "--width 16 --layers 1 --heads 2 --context 16 --batch 2 --corpus-bytes-max 200000 --log-every 100";

/// A control plane with its timing as it comes, at a port that the system chose.
#[derive(Debug)]
pub(crate) struct Product {
    /// Ends with what was started in it. Before it, `up` ends.
    up: Option<Child>,
    /// The command line.
    program: PathBuf,
    /// What runs as the control plane: the same, maybe under another name.
    server: PathBuf,
    options: Vec<String>,
    environment: Vec<(String, String)>,
    pub(crate) folder: Folder,
}

impl Product {
    /// One with these options that isn't up yet.
    ///
    /// # Errors
    /// When no folder can be made.
    pub(crate) fn down(program: PathBuf, options: &[&str]) -> Result<Product> {
        let options = ["--listen", "127.0.0.1:0"].iter().chain(options).map(|option| (*option).to_owned()).collect();
        let server = program.clone();
        Ok(Product { up: None, program, server, options, environment: Vec::new(), folder: Folder::new()? })
    }

    /// One that is up, with these nodes (`a=cpu:4`) and these environment variables.
    ///
    /// # Errors
    /// When it doesn't start.
    pub(crate) fn up(program: PathBuf, node: &str, environment: &[(String, String)]) -> Result<Product> {
        let mut product = Product::down(program, &["--node", node])?;
        product.environment = environment.to_vec();
        product.start()?;
        Ok(product)
    }

    /// Sets an environment variable of what is started from now on.
    pub(crate) fn set(&mut self, name: &str, value: &str) {
        self.environment.push((name.to_owned(), value.to_owned()));
    }

    /// Starts the control plane from this path from now on. Supervisors are started from where the control plane was.
    pub(crate) fn serve_from(&mut self, path: PathBuf) {
        self.server = path;
    }

    /// Starts it and waits until it answers.
    ///
    /// # Errors
    /// When it ends or doesn't answer.
    pub(crate) fn start(&mut self) -> Result<()> {
        // One of an earlier life would be mistaken for this one's.
        let _ = std::fs::remove_file(self.folder.path("data/endpoint"));
        let mut command = self.command(&self.server, &["up"]);
        self.up = Some(self.folder.spawn(command.args(&self.options), "up.log")?);
        let deadline = Instant::now() + PATIENCE;
        while self.ask(&["queues"]).is_err() {
            let ended = self.up.as_mut().and_then(|up| up.try_wait().ok().flatten());
            let log = || self.folder.text("up.log");
            anyhow::ensure!(ended.is_none() && Instant::now() < deadline, "gangline up doesn't start: {}", log());
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(())
    }

    /// SIGKILL for the control plane.
    ///
    /// # Errors
    /// When it isn't up.
    pub(crate) fn kill(&mut self) -> Result<()> {
        let mut up = self.up.take().context("the control plane is up")?;
        up.kill().context("kill the control plane")?;
        up.wait().context("wait for the control plane")?;
        Ok(())
    }

    /// The control plane's process.
    ///
    /// # Errors
    /// When it isn't up.
    pub(crate) fn pid(&self) -> Result<u32> {
        self.up.as_ref().map(Child::id).context("the control plane is up")
    }

    /// Its command line's answer, as JSON.
    ///
    /// # Errors
    /// When it refuses, with its words.
    pub(crate) fn ask(&self, arguments: &[&str]) -> Result<Value> {
        let mut command = self.command(&self.program, &["--json"]);
        command.args(arguments).current_dir(self.folder.root()).stdin(Stdio::null());
        let output = command.output().context("start gangline")?;
        let errors = String::from_utf8_lossy(&output.stderr);
        anyhow::ensure!(output.status.success(), "gangline {} failed: {}", arguments.join(" "), errors.trim());
        serde_json::from_slice(&output.stdout).with_context(|| format!("read what {arguments:?} printed"))
    }

    /// Submits a job file and gives the job's id.
    ///
    /// # Errors
    /// When it is refused.
    pub(crate) fn submit(&self, job_file: &str) -> Result<String> {
        std::fs::write(self.folder.path("job.yaml"), job_file).context("write a job file")?;
        let submitted = self.ask(&["submit", "job.yaml"])?;
        submitted["job"].as_str().map(str::to_owned).context("a submitted job has an id")
    }

    /// A job file that trains with tinygpt and saves every twenty steps, in a folder of that name.
    pub(crate) fn training(&self, name: &str, slots: u32, options: &str) -> String {
        format!(
            "name: {name}\nresources: {{accelerators: \"cpu:{slots}\"}}\nrun: exec '{}' tinygpt {SMALL} --checkpoint-every \
             20 {options}\ncheckpoint: {{path: \"{}\", grace: 5s}}\nrecovery: {{max_faults: 1000}}\n",
            self.program.display(),
            self.folder.path(name).display(),
        )
    }

    /// The job as `show` has it.
    ///
    /// # Errors
    /// When there is none.
    pub(crate) fn job(&self, id: &str) -> Result<Value> {
        self.ask(&["show", id])
    }

    /// Looks at the job until it is so.
    ///
    /// # Errors
    /// When that takes too long, or the job is over before.
    pub(crate) fn until<T>(&self, id: &str, what: &str, is_so: impl Fn(&Value) -> Option<T>) -> Result<T> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let job = self.job(id)?;
            if let Some(found) = is_so(&job) {
                return Ok(found);
            }
            if is_over(&job) || Instant::now() > deadline {
                bail!("{id} isn't where it should be: {what}\n{job:#}");
            }
            std::thread::sleep(LOOK_EVERY);
        }
    }

    /// Cancels a job and waits until it is over.
    ///
    /// # Errors
    /// When it doesn't end.
    pub(crate) fn cancel(&self, id: &str) -> Result<()> {
        self.ask(&["cancel", id])?;
        self.until(id, "it is cancelled", |job| is_over(job).then_some(()))
    }

    fn command(&self, program: &Path, arguments: &[&str]) -> Command {
        let mut command = Command::new(program);
        command.arg("--data").arg(self.folder.path("data")).args(arguments);
        command.env_remove("GANGLINE_URL").env_remove("GANGLINE_TOKEN");
        command.envs(self.environment.iter().map(|(name, value)| (name, value)));
        command
    }
}

impl Drop for Product {
    fn drop(&mut self) {
        // First, so that nothing is started any more; the folder's end is the end of the rest.
        let _ = self.kill();
    }
}

/// Whether the job has ended.
pub(crate) fn is_over(job: &Value) -> bool {
    !["waiting", "starting", "running", "stopping"].iter().any(|state| job["state"] == *state)
}

/// The process of a rank of the job's last attempt.
pub(crate) fn rank_pid(job: &Value, rank: u64) -> Option<u32> {
    let share = &job["attempts"].as_array()?.last()?["shares"][0];
    let found = share["ranks"].as_array()?.iter().find(|entry| entry["rank"] == rank)?;
    u32::try_from(found["pid"].as_u64()?).ok()
}

/// The supervisor of the first node of the job's last attempt.
pub(crate) fn supervisor_pid(job: &Value) -> Option<u32> {
    let attempt = job["attempts"].as_array()?.last()?;
    u32::try_from(attempt["shares"][0]["supervisor_pid"].as_u64()?).ok()
}

/// SIGKILL, and when.
///
/// # Errors
/// When there is no such process.
pub(crate) fn kill(pid: u32) -> Result<std::time::SystemTime> {
    let now = std::time::SystemTime::now();
    processes::signal(pid, Signal::KILL)?;
    Ok(now)
}
