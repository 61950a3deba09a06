//! Looks at the node itself: a moment after the start, and when a rank has failed.
//!
//! Ranks never wait for it, and very short attempts are over before the first look. It looks from threads and processes of its own
//! (`checks/`), so what hangs there holds nobody up: the end of a failed attempt waits for a second at most.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::Duration;

use tokio::sync::mpsc::Sender;

use super::SuperviseOptions;
use super::course::Course;
use super::gpus::GpuWatch;
use super::input::{Action, Input};
use crate::cgroup;
use crate::checks::{self, Check, Expectations, Finding, Guard, Verdict, before_start, kernel_faults};
use crate::keeper::THIS_PROGRAM;
use crate::protocol::NodeFinding;

/// From the start to the first look: loading programs and data has the machine to itself, and short attempts have none. PyTorch's
/// import alone takes several seconds where ranks share processors.
const AFTER_START: Duration = Duration::from_secs(10);
/// How far back the kernel's log counts at the first look: what a node had before that was there for earlier attempts to find, and may
/// have been repaired.
const KERNEL_LOG_WINDOW: Duration = Duration::from_secs(10 * 60);
/// What happened so shortly before the start may be why.
const BEFORE_START: Duration = Duration::from_secs(5);
/// How long looks after a failure may take, and how long the end waits for them.
const AFTER_FAILURE_MAX: Duration = Duration::from_secs(2);
const WAIT_MAX: Duration = Duration::from_secs(1);
/// NVIDIA's driver is loaded.
const DRIVER: &str = "/proc/driver/nvidia";

/// Findings that are reported of a node.
const FINDINGS_MAX: usize = 16;

/// What was seen when a rank had failed.
#[derive(Debug, Default)]
pub(super) struct Seen {
    pub(super) findings: Vec<Finding>,
    /// Lines of the kernel's log, and of the GPUs' driver, that say why.
    pub(super) kernel: Vec<u8>,
    /// Processes of this cgroup that the kernel killed for memory since the start. Where several jobs share a cgroup, they may have
    /// been another's.
    pub(super) oom_kills: u64,
}

/// Looks at a node.
pub(super) struct Checkup {
    expectations: Expectations,
    /// Before the start.
    oom_kills: Option<u64>,
    gpus: Option<GpuWatch>,
    after_failure: Option<Receiver<Seen>>,
}

impl Checkup {
    pub(super) fn new(folder: &Path, options: &SuperviseOptions) -> Checkup {
        let standard = Expectations::default();
        let expectations = Expectations {
            folders: vec![folder.to_owned()],
            kernel_log: options.kernel_log.clone().unwrap_or(standard.kernel_log),
            kernel_log_window: KERNEL_LOG_WINDOW,
            ..Expectations::default()
        };
        Checkup { expectations, oom_kills: cgroup::oom_kills(), gpus: None, after_failure: None }
    }

    /// Begins the first look, and to listen to the GPUs' driver.
    pub(super) fn after_start(&mut self, inputs: Sender<Input>) -> io::Result<()> {
        if Path::new(DRIVER).exists() {
            self.gpus = Some(GpuWatch::start(Path::new(THIS_PROGRAM), inputs.clone())?);
        }
        let expectations = self.expectations.clone();
        let look = move || {
            thread::sleep(AFTER_START);
            // Nobody listens if the attempt is over.
            let _ = inputs.blocking_send(Input::Checked(before_start(&guard(), &expectations)));
        };
        thread::Builder::new().name("checkup".to_owned()).spawn(look).map(drop)
    }

    /// Begins a look after a failure, once: `pids` are the ranks', which started so long ago.
    pub(super) fn after_failure(&mut self, pids: Vec<u32>, ran: Duration) {
        if self.after_failure.is_some() {
            return;
        }
        let (sender, receiver) = channel();
        let (expectations, before) = (self.expectations.clone(), self.oom_kills);
        let gpus = self.gpus.as_ref().map(GpuWatch::faults).unwrap_or_default();
        let look = move || {
            let oom_kills = cgroup::oom_kills().zip(before).map_or(0, |(now, before)| now.saturating_sub(before));
            let gpu = checks::named("gpu").filter(|_| Path::new(DRIVER).exists());
            let looks: Vec<&Check> = gpu.into_iter().collect();
            let mut kernel = kernel_faults(&expectations.kernel_log, ran + BEFORE_START, &pids);
            let findings = guard().run(&looks, &expectations, AFTER_FAILURE_MAX, &mut |_| ());
            kernel.extend_from_slice(&gpus.lock().expect("nobody panics while it has this"));
            // Nobody waits any longer.
            let _ = sender.send(Seen { findings, kernel, oom_kills });
        };
        // Without a thread there is nothing to wait for either.
        let started = thread::Builder::new().name("checkup".to_owned()).spawn(look);
        self.after_failure = started.is_ok().then_some(receiver);
    }

    /// What the look after a failure saw, if there was one and it came in time.
    pub(super) fn seen(&mut self) -> Seen {
        let seen = self.after_failure.take().map(|receiver| receiver.recv_timeout(WAIT_MAX));
        seen.and_then(Result::ok).unwrap_or_default()
    }
}

impl Course {
    /// The control plane decides what follows from that, too: whatever a check finds hurts no job that runs.
    pub(super) fn checked(&mut self, findings: Vec<Finding>) -> Vec<Action> {
        for finding in findings.into_iter().filter(|finding| finding.verdict >= Verdict::Failed) {
            let found = NodeFinding { place: finding.place(), measured: finding.measured };
            if self.findings.len() < FINDINGS_MAX && self.findings.iter().all(|known| known.place != found.place) {
                tracing::warn!(found.place, found.measured, "this node has a fault");
                self.findings.push(found);
                self.has_news = true;
            }
        }
        Vec::new()
    }
}

fn guard() -> Guard {
    Guard { program: PathBuf::from(THIS_PROGRAM), timeout: None }
}
