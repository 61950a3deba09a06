//! Checks the node itself: a moment after the start, and when a rank has failed; and starts an agent for the node where the spec asks
//! for one.
//!
//! Ranks never wait for the checks, and very short attempts end before the first. Checks run on threads and
//! in processes of their own (`health/node/`), so a check that hangs delays nobody: the end of a failed
//! attempt waits a second at most.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::Duration;

use tokio::sync::mpsc::Sender;

use super::SuperviseOptions;
use super::companion::Companion;
use super::gpus::GpuWatch;
use super::input::{Action, Input};
use super::node_attempt::NodeAttempt;
use crate::cgroup;
use crate::health::node::{self, Check, Expectations, Guard, before_start, kernel_faults};
use crate::health::{Finding, Verdict};
use crate::protocol::{NodeFinding, SupervisorSpec};
use crate::shim::THIS_PROGRAM;

/// Delay from the start to the first check. Loading programs and data gets the machine to itself (PyTorch's
/// import alone takes several seconds where ranks share processors), and short attempts have no check.
const AFTER_START: Duration = Duration::from_secs(10);
/// How far back the first check reads the kernel's log. Earlier attempts should have found what happened
/// before that, and it may have been repaired.
const KERNEL_LOG_WINDOW: Duration = Duration::from_secs(10 * 60);
/// Events this shortly before the start may be the cause of a failure.
const BEFORE_START: Duration = Duration::from_secs(5);
/// How long checks after a failure may take, and how long the end waits for them.
const AFTER_FAILURE_MAX: Duration = Duration::from_secs(2);
const WAIT_MAX: Duration = Duration::from_secs(1);
/// Present if NVIDIA's driver is loaded.
const DRIVER: &str = "/proc/driver/nvidia";

/// Maximum number of reported findings of a node.
const FINDINGS_MAX: usize = 16;

/// Results of the checks after a failure.
#[derive(Debug, Default)]
pub(super) struct CheckResults {
    pub(super) findings: Vec<Finding>,
    /// Lines of the kernel's log, and of the GPUs' driver, that explain the failure.
    pub(super) kernel: Vec<u8>,
    /// Number of processes of this cgroup that the kernel killed for memory since the start. Where several
    /// jobs share a cgroup, they may have been another job's.
    pub(super) oom_kills: u64,
}

/// Checks a node.
pub(super) struct Checkup {
    expectations: Expectations,
    /// Number of out-of-memory kills before the start.
    oom_kills: Option<u64>,
    gpus: Option<GpuWatch>,
    /// The spec file, if it asks for an agent of the node.
    agent_spec: Option<PathBuf>,
    agent: Option<Companion>,
    after_failure: Option<Receiver<CheckResults>>,
}

impl Checkup {
    pub(super) fn new(spec: &SupervisorSpec, options: &SuperviseOptions) -> Checkup {
        let standard = Expectations::default();
        let expectations = Expectations {
            folders: vec![spec.folder.clone()],
            kernel_log: options.kernel_log.clone().unwrap_or(standard.kernel_log),
            kernel_log_window: KERNEL_LOG_WINDOW,
            ..Expectations::default()
        };
        Checkup {
            expectations,
            oom_kills: cgroup::oom_kills(),
            gpus: None,
            agent_spec: spec.agent.as_ref().map(|_| options.spec.clone()),
            agent: None,
            after_failure: None,
        }
    }

    /// Starts the first check, listening to the GPUs' driver, and the node's agent.
    pub(super) fn after_start(&mut self, inputs: Sender<Input>) -> io::Result<()> {
        if Path::new(DRIVER).exists() {
            self.gpus = Some(GpuWatch::start(Path::new(THIS_PROGRAM), inputs.clone())?);
        }
        if let Some(spec) = &self.agent_spec {
            // Without it the node's readings are missing, and nothing else.
            let started =
                Companion::start(Path::new(THIS_PROGRAM), &["agent", "--for-supervisor", &spec.to_string_lossy()]);
            match started {
                Ok((agent, _)) => self.agent = Some(agent),
                Err(error) => tracing::warn!(%error, "the node's agent can't be started"),
            }
        }
        let expectations = self.expectations.clone();
        let look = move || {
            thread::sleep(AFTER_START);
            // The receiver is gone if the attempt is over.
            let _ = inputs.blocking_send(Input::Checked(before_start(&guard(), &expectations)));
        };
        thread::Builder::new().name("checkup".to_owned()).spawn(look).map(drop)
    }

    /// Starts the checks after a failure, once. `pids` are the ranks' processes, `ran` the time since their
    /// start.
    pub(super) fn after_failure(&mut self, pids: Vec<u32>, ran: Duration) {
        if self.after_failure.is_some() {
            return;
        }
        let (sender, receiver) = channel();
        let (expectations, before) = (self.expectations.clone(), self.oom_kills);
        let gpus = self.gpus.as_ref().map(GpuWatch::faults).unwrap_or_default();
        let look = move || {
            let oom_kills = cgroup::oom_kills().zip(before).map_or(0, |(now, before)| now.saturating_sub(before));
            let gpu = node::named("gpu").filter(|_| Path::new(DRIVER).exists());
            let looks: Vec<&Check> = gpu.into_iter().collect();
            let mut kernel = kernel_faults(&expectations.kernel_log, ran + BEFORE_START, &pids);
            let findings = guard().run(&looks, &expectations, AFTER_FAILURE_MAX, &mut |_| ());
            kernel.extend_from_slice(&gpus.lock().expect("nobody panics while it has this"));
            // The attempt may have stopped waiting.
            let _ = sender.send(CheckResults { findings, kernel, oom_kills });
        };
        // If the thread can't be started there is nothing to wait for.
        let started = thread::Builder::new().name("checkup".to_owned()).spawn(look);
        self.after_failure = started.is_ok().then_some(receiver);
    }

    /// Returns the results of the checks after a failure, if there were any and they came in time.
    pub(super) fn seen(&mut self) -> CheckResults {
        let seen = self.after_failure.take().map(|receiver| receiver.recv_timeout(WAIT_MAX));
        seen.and_then(Result::ok).unwrap_or_default()
    }
}

impl NodeAttempt {
    /// Adds the findings to the report. The control plane decides what follows: a check's finding never hurts
    /// a running job.
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
