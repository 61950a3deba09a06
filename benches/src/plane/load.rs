//! What goes on beside what is measured: supervisors that report samples, and users who look at the list.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};

use super::client::{Client, Door};
use super::up::Plane;
use crate::recovery::simulated::Supervisor;

/// Jobs that run, each on a node of its own.
pub(super) const RUNNING: u32 = 5;
/// New samples in each report; at two reports a second of five supervisors, 500 a second.
const SAMPLES_EACH: u64 = 50;
/// Users who look at the list, page by page, and how many jobs a page has.
const LISTERS: usize = 2;
const PAGE: u32 = 100;
/// Pages that a lister reads before it begins again.
const PAGES: usize = 10;
/// Between two pages of a lister.
const LISTER_PAUSE: Duration = Duration::from_millis(50);
/// Between two looks at who is due.
const LOOK_EVERY: Duration = Duration::from_millis(5);

/// What a running job is.
const RUNNING_FILE: &str = "name: running\nresources: {accelerators: \"cpu:1\"}\nrun: train\n";

/// Supervisors that keep their jobs running until this is dropped or stopped.
#[derive(Debug)]
pub(super) struct Running {
    is_over: Arc<AtomicBool>,
    takes_samples: Arc<AtomicBool>,
    thread: Option<JoinHandle<Result<u64>>>,
}

/// Users who look at the list.
#[derive(Debug)]
pub(super) struct Listers {
    is_over: Arc<AtomicBool>,
    threads: Vec<JoinHandle<Result<Vec<Duration>>>>,
}

impl Running {
    /// Submits as many jobs as there are nodes and reports for them.
    ///
    /// # Errors
    /// When one isn't started.
    pub(super) fn start(plane: &Plane) -> Result<Running> {
        let (door, mut client) = (plane.door()?, plane.client()?);
        let file = serde_json::json!({"job_file": RUNNING_FILE, "directory": plane.path("")}).to_string();
        let mut supervisors = Vec::new();
        for _ in 0..RUNNING {
            client.post("/api/v1/jobs", None, &file)?;
            let answer = client.answered()?;
            let job = answer["submitted"]["job"].as_str().context("a submitted job has an id")?;
            supervisors.push(plane.supervisor(job)?);
        }
        let (is_over, takes_samples) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
        let (over, samples) = (Arc::clone(&is_over), Arc::clone(&takes_samples));
        let thread = std::thread::spawn(move || report_all(&door, supervisors, &over, &samples));
        Ok(Running { is_over, takes_samples, thread: Some(thread) })
    }

    /// Whether reports have samples from now on.
    pub(super) fn take_samples(&self, do_so: bool) {
        self.takes_samples.store(do_so, Ordering::Relaxed);
    }

    /// Ends it; how many samples were taken.
    ///
    /// # Errors
    /// When a report was refused.
    pub(super) fn stop(mut self) -> Result<u64> {
        self.is_over.store(true, Ordering::Relaxed);
        let thread = self.thread.take().context("it runs")?;
        thread.join().map_err(|_| anyhow::anyhow!("a thread that reports panicked"))?
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // It ends by itself then.
        self.is_over.store(true, Ordering::Relaxed);
    }
}

fn report_all(
    door: &Door,
    mut supervisors: Vec<Supervisor>,
    is_over: &AtomicBool,
    takes_samples: &AtomicBool,
) -> Result<u64> {
    let mut samples = 0;
    while !is_over.load(Ordering::Relaxed) {
        let (now, each) = (Instant::now(), if takes_samples.load(Ordering::Relaxed) { SAMPLES_EACH } else { 0 });
        for supervisor in supervisors.iter_mut().filter(|supervisor| supervisor.due <= now) {
            supervisor.take_samples(each);
            supervisor.report(&door.address)?;
            samples += each;
        }
        std::thread::sleep(LOOK_EVERY);
    }
    Ok(samples)
}

impl Listers {
    /// Starts them.
    ///
    /// # Errors
    /// When the control plane can't be reached.
    pub(super) fn start(plane: &Plane) -> Result<Listers> {
        let is_over = Arc::new(AtomicBool::new(false));
        let start = |_| {
            let (mut client, over) = (plane.client()?, Arc::clone(&is_over));
            Ok(std::thread::spawn(move || look_at_all(&mut client, &over)))
        };
        let threads = (0..LISTERS).map(start).collect::<Result<_>>()?;
        Ok(Listers { is_over, threads })
    }

    /// Ends them; how long each page took.
    ///
    /// # Errors
    /// When a page was refused.
    pub(super) fn stop(self) -> Result<Vec<Duration>> {
        self.is_over.store(true, Ordering::Relaxed);
        let mut times = Vec::new();
        for thread in self.threads {
            times.extend(thread.join().map_err(|_| anyhow::anyhow!("a lister panicked"))??);
        }
        Ok(times)
    }
}

fn look_at_all(client: &mut Client, is_over: &AtomicBool) -> Result<Vec<Duration>> {
    let mut times = Vec::new();
    while !is_over.load(Ordering::Relaxed) {
        let mut path = format!("/api/v1/jobs?limit={PAGE}");
        for _ in 0..PAGES {
            times.push(client.get(&path)?);
            std::thread::sleep(LISTER_PAUSE);
            let answer = client.answered()?;
            let Some(next) = answer["next"].as_str().filter(|_| !is_over.load(Ordering::Relaxed)) else { break };
            path = format!("/api/v1/jobs?limit={PAGE}&before={next}");
        }
    }
    Ok(times)
}
