//! The agent: one for each node, which reads the node and its accelerators, checks it, and sends both to the control plane.
//!
//! It runs whether or not a job does. Sources are read on threads of their own with a deadline, checks in processes of
//! their own, and posts on a thread, so nothing that hangs stops the readings of the rest.
//!
//! A supervisor may start an agent that *stands in*: it reads only while no other agent of its node does, and asks the
//! control plane from time to time whether that is so.
//!
//! Keeps A-10 (readings that can't be sent are bounded, and those dropped are counted) and A-13 (a control plane that is
//! away costs readings and nothing else).

mod backlog;
mod checks;
mod contact;
mod fetcher;
mod sampler;
mod turn;

use std::io;
use std::ops::ControlFlow;
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use gangline_base::{NodeName, Timestamp};
use gangline_telemetry::collectors::Reading;

use crate::protocol::agent::{AGENT_VERSION, AgentFinding, AgentReport};

use backlog::Backlog;
use checks::Checks;
pub use contact::{ContactError, Place};
use contact::{Courier, Posted};
use fetcher::Fetcher;
use sampler::Sampler;

/// Time between two posts, if there is something.
const POST_EVERY: Duration = Duration::from_secs(5);
/// Time before the next post after failures, at most; doubled each time.
const RETRY_AFTER_MAX: Duration = Duration::from_secs(60);

/// A node that the agent reads for. On a machine that stands for several nodes, as in trials, each gets the same readings.
#[derive(Clone)]
pub struct AgentNode {
    /// Its name.
    pub name: NodeName,
    /// The token that lets reports of this node in.
    pub token: String,
}

impl std::fmt::Debug for AgentNode {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("AgentNode").field("name", &self.name).finish_non_exhaustive()
    }
}

/// How the agent runs.
#[derive(Clone, Debug)]
pub struct AgentOptions {
    /// Its nodes; at least one.
    pub nodes: Vec<AgentNode>,
    /// Where the control plane is.
    pub place: Place,
    /// Time between two readings.
    pub every: Duration,
    /// Time between two rounds of checks.
    pub check_every: Duration,
    /// The program whose `check NAME` runs one check, and which fetches datasets: this binary.
    pub program: PathBuf,
    /// The URL of DCGM's exporter, which is read instead of NVML.
    pub exporter: Option<String>,
    /// The kernel's log, if it isn't /dev/kmsg.
    pub kernel_log: Option<PathBuf>,
    /// A site's rules for events of GPUs in the kernel's log, over the built-in ones.
    pub kernel_rules: Option<PathBuf>,
    /// The cache into which `data warm` of the program fetches datasets for jobs that wait; none if they aren't fetched.
    pub cache: Option<PathBuf>,
    /// Whether it reads only while no other agent of its node does.
    pub stands_in: bool,
    /// Returns the wall-clock time.
    pub clock: fn() -> Timestamp,
}

/// Runs the agent until `stop` has something or is gone.
///
/// # Errors
/// If a thread can't be started.
pub fn run(options: AgentOptions, stop: &Receiver<()>) -> io::Result<()> {
    loop {
        if options.stands_in && turn::wait_for(&options, stop)?.is_break() {
            return Ok(());
        }
        if Agent::start(options.clone())?.run(stop).is_break() {
            return Ok(());
        }
    }
}

struct Agent {
    options: AgentOptions,
    started_at: Timestamp,
    sampler: Sampler,
    backlog: Backlog,
    checks: Checks,
    findings: Option<Vec<AgentFinding>>,
    courier: Courier,
    fetcher: Option<Fetcher>,
    next_post: Instant,
    retry_after: Option<Duration>,
    /// Another agent reads this node.
    stands_by: bool,
}

/// Waits for `time`; breaks off if the agent is to end.
fn pause(stop: &Receiver<()>, time: Duration) -> ControlFlow<()> {
    match stop.recv_timeout(time) {
        Err(RecvTimeoutError::Timeout) => ControlFlow::Continue(()),
        Ok(()) | Err(RecvTimeoutError::Disconnected) => ControlFlow::Break(()),
    }
}

impl Agent {
    fn start(options: AgentOptions) -> io::Result<Agent> {
        let started_at = (options.clock)();
        let fetches = options.cache.clone().filter(|_| !options.stands_in);
        Ok(Agent {
            sampler: Sampler::start(options.exporter.as_deref())?,
            backlog: Backlog::starting_at(started_at),
            checks: Checks::start(&options)?,
            findings: None,
            courier: Courier::start(options.nodes.clone(), options.place.clone())?,
            // One that stands in is within a job's limits.
            fetcher: fetches.map(|cache| Fetcher::start(options.program.clone(), cache, options.clock)).transpose()?,
            next_post: Instant::now(),
            retry_after: None,
            stands_by: false,
            started_at,
            options,
        })
    }

    /// Reads until it is to end, or until it stands by for another agent.
    fn run(mut self, stop: &Receiver<()>) -> ControlFlow<()> {
        let mut next = Instant::now();
        while !self.stands_by {
            self.turn();
            // A reading that took too long is skipped, not made up for.
            next = (next + self.options.every).max(Instant::now());
            pause(stop, next.saturating_duration_since(Instant::now()))?;
        }
        ControlFlow::Continue(())
    }

    /// Reads everything once, and sends what waits if it is time to.
    fn turn(&mut self) {
        let mut readings = self.sampler.read();
        let dropped = self.backlog.dropped();
        readings.push(Reading { name: "agent.dropped_rows_total".to_owned(), device: None, value: dropped });
        self.backlog.push((self.options.clock)(), readings);
        self.findings = self.checks.latest().or(self.findings.take());
        if let Some(posted) = self.courier.answer() {
            self.answered(posted);
        }
        if !self.courier.is_under_way() && Instant::now() >= self.next_post {
            self.next_post = Instant::now() + POST_EVERY;
            let report = self.report();
            self.courier.send(report);
        }
    }

    fn report(&mut self) -> AgentReport {
        self.fetcher.iter_mut().for_each(Fetcher::take_news);
        AgentReport {
            version: AGENT_VERSION,
            node: String::new(),
            started_at: self.started_at.unix_nanos(),
            every_ms: u64::try_from(self.options.every.as_millis()).unwrap_or(u64::MAX),
            batches: self.backlog.window(),
            findings: self.findings.clone(),
            hung: self.sampler.hung(),
            cache: self.fetcher.as_mut().and_then(Fetcher::held),
            fetches: self.fetcher.is_some(),
            fetched: self.fetcher.as_mut().map(Fetcher::send_fetched).unwrap_or_default(),
            stands_in: self.options.stands_in,
        }
    }

    /// Takes an answer; says the first failure in a row, and when it is over.
    fn answered(&mut self, posted: Posted) {
        match posted {
            Ok(answer) => {
                self.stands_by = answer.stand_by && self.options.stands_in;
                self.backlog.acknowledge(&answer.stored);
                if let Some(fetcher) = &mut self.fetcher {
                    fetcher.acknowledge();
                    fetcher.want(answer.fetch.clone());
                }
                if self.retry_after.take().is_some() {
                    tracing::info!("the control plane answers again");
                }
            }
            Err(error) => {
                if self.retry_after.is_none() {
                    tracing::warn!(%error, "readings can't be sent, and wait");
                }
                if error.is_final() {
                    self.backlog.give_up();
                }
                let wait = self.retry_after.map_or(POST_EVERY, |before| (before * 2).min(RETRY_AFTER_MAX));
                self.retry_after = Some(wait);
                self.next_post = Instant::now() + wait;
            }
        }
    }
}
