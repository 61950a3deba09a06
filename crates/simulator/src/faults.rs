//! Faults: nodes that fail and are repaired, applications that fail, lemon nodes, silent faults that only a
//! time-out detects, and spot nodes that are reclaimed after a notice. All times are exponential, drawn from
//! the seed.
//!
//! Defaults follow published failure statistics. Node faults: 5 per 1,000 node-days, between Llama 3's 3.79
//! (arXiv 2407.21783) and Meta's 6.5 (arXiv 2410.21680). Application faults: 4 in 1,000 GPU-days, so that a
//! job of 128 nodes with 8 GPUs has one in about 6 hours, and a fault of either kind in about 5; Meta measured
//! 8 hours between failures of jobs of that size (ibid.).
//! Lemons: 2 % of nodes with ten times the rate (ibid.). One in eight faults is silent. No source was found
//! for repair times of GPU nodes: 4 hours is a parameter.

use std::str::FromStr;
use std::time::Duration;

use gangline_base::NodeId;

use super::meter::Ending;
use super::parse_span;
use super::policy::{Happening, Place};
use super::progress::Phase;
use super::random::{Draws, Purpose};
use super::workload::JobIndex;
use super::world::{Due, World};

const HOUR: Duration = Duration::from_hours(1);
const DAY: Duration = Duration::from_hours(24);

/// Which faults occur, and how often.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct FaultSpec {
    /// The mean time between faults of one node; none if nodes don't fail.
    pub node_mttf: Option<Duration>,
    /// The mean time to repair a node.
    pub repair: Duration,
    /// The mean time between application faults, per accelerator; none if applications don't fail.
    pub application_mttf: Option<Duration>,
    /// The share of nodes that are lemons.
    pub lemon_share: f64,
    /// The factor by which a lemon fails more often.
    pub lemon_factor: f64,
    /// The share of faults that are silent.
    pub silent_share: f64,
    /// The time after which silent faults are detected.
    pub silent_timeout: Duration,
    /// The share of nodes that are spot nodes.
    pub spot_share: f64,
    /// The time between a spot node's notice and its reclaim.
    pub spot_notice: Duration,
    /// The mean time between the reclaims of one spot node.
    pub spot_mttr: Duration,
}

impl FaultSpec {
    /// Nothing fails.
    pub const NONE: FaultSpec = FaultSpec {
        node_mttf: None,
        repair: HOUR.saturating_mul(4),
        application_mttf: None,
        lemon_share: 0.0,
        lemon_factor: 10.0,
        silent_share: 0.0,
        silent_timeout: Duration::from_mins(30),
        spot_share: 0.0,
        spot_notice: Duration::from_mins(2),
        spot_mttr: DAY,
    };

    /// The published rates of the module's documentation; no spot nodes.
    pub const USUAL: FaultSpec = FaultSpec {
        node_mttf: Some(DAY.saturating_mul(200)),
        application_mttf: Some(DAY.saturating_mul(250)),
        lemon_share: 0.02,
        silent_share: 0.125,
        ..FaultSpec::NONE
    };
}

/// The random draws for faults.
pub(crate) struct Faults {
    spec: FaultSpec,
    seed: u64,
    nodes: Vec<Draws>,
    reclaims: Vec<Option<Draws>>,
    is_lemon: Vec<bool>,
    is_down: Vec<bool>,
}

impl Faults {
    pub(crate) fn new(spec: FaultSpec, seed: u64, nodes: u32) -> Self {
        let is_spot = |node| Draws::new(seed, Purpose::SpotNodes, node).uniform() < spec.spot_share;
        let is_lemon = |node| Draws::new(seed, Purpose::Lemons, node).uniform() < spec.lemon_share;
        let reclaims = |node| is_spot(node).then(|| Draws::new(seed, Purpose::SpotReclaims, node));
        Faults {
            nodes: (0..nodes).map(|node| Draws::new(seed, Purpose::NodeFaults, node)).collect(),
            reclaims: (0..nodes).map(reclaims).collect(),
            is_lemon: (0..nodes).map(is_lemon).collect(),
            is_down: vec![false; nodes as usize],
            spec,
            seed,
        }
    }

    fn next_node_fault(&mut self, node: NodeId) -> Option<Duration> {
        let index = node.0 as usize;
        let factor = if self.is_lemon[index] { self.spec.lemon_factor } else { 1.0 };
        self.spec.node_mttf.map(|mttf| self.nodes[index].exponential(mttf.as_secs_f64() / factor))
    }

    fn next_reclaim(&mut self, node: NodeId) -> Option<Duration> {
        let mean = self.spec.spot_mttr.as_secs_f64();
        self.reclaims[node.0 as usize].as_mut().map(|draws| draws.exponential(mean))
    }

    fn repair(&mut self, node: NodeId) -> Duration {
        self.nodes[node.0 as usize].exponential(self.spec.repair.as_secs_f64())
    }
}

impl World<'_> {
    pub(crate) fn plan_node_faults(&mut self) {
        for node in (0..u32::try_from(self.capacity.len()).unwrap_or(u32::MAX)).map(NodeId) {
            self.plan_next_of(node);
        }
    }

    fn plan_next_of(&mut self, node: NodeId) {
        if let Some(time) = self.faults.next_node_fault(node) {
            self.plan(self.now + time, Due::NodeFault(node));
        }
        if let Some(time) = self.faults.next_reclaim(node) {
            self.plan(self.now + time, Due::SpotNotice(node));
        }
    }

    /// Draws whether and when this run fails by itself.
    pub(crate) fn plan_application_fault(&mut self, job: JobIndex, run: u32) {
        let Some(mttf) = self.faults.spec.application_mttf else { return };
        let gpus = f64::from(self.gpus(job));
        let draw = Draws::new(self.faults.seed ^ u64::from(run) << 40, Purpose::ApplicationFaults, job.0);
        let after = { draw }.exponential(mttf.as_secs_f64() / gpus);
        let is_silent = self.is_silent(job.0, run);
        let at = self.now + after;
        self.plan(at, if is_silent { Due::Stall(job, run) } else { Due::Fault(job, run) });
    }

    fn is_silent(&self, index: u32, turn: u32) -> bool {
        let seed = self.faults.seed ^ u64::from(turn) << 40;
        Draws::new(seed, Purpose::SilentFaults, index).uniform() < self.faults.spec.silent_share
    }

    /// Stalls a job after an application fault that is detected only by the time-out.
    pub(crate) fn stall_until_found(&mut self, job: JobIndex) {
        self.stall(job);
        let found = Due::Fault(job, self.progress[job.index()].run);
        self.plan(self.now + self.faults.spec.silent_timeout, found);
    }

    /// Stalls a job's work and cancels what was due for its run, above all its end.
    fn stall(&mut self, job: JobIndex) {
        let progress = &mut self.progress[job.index()];
        if let Phase::Running(run) = &mut progress.phase {
            run.stalled_at.get_or_insert(self.now);
            progress.run += 1;
        }
    }

    fn jobs_on(&self, node: NodeId) -> Vec<JobIndex> {
        let is_there = |job: &JobIndex| match self.progress[job.index()].current().map(|run| &run.place) {
            Some(Place::Nodes(shares)) => shares.iter().any(|(at, _)| *at == node),
            Some(Place::Counted) | None => false,
        };
        self.running.iter().copied().filter(is_there).collect()
    }

    pub(crate) fn node_fault(&mut self, node: NodeId, happenings: &mut Vec<Happening>) {
        if self.faults.is_down[node.0 as usize] {
            return;
        }
        let jobs = self.jobs_on(node);
        let turn = u32::try_from(self.now.unix_nanos() >> 32).unwrap_or(0);
        if jobs.is_empty() || !self.is_silent(node.0, turn) {
            self.lose(node, happenings);
            return;
        }
        for job in jobs {
            self.stall(job);
        }
        self.plan(self.now + self.faults.spec.silent_timeout, Due::NodeFound(node));
    }

    pub(crate) fn node_found(&mut self, node: NodeId, happenings: &mut Vec<Happening>) {
        if !self.faults.is_down[node.0 as usize] {
            self.lose(node, happenings);
        }
    }

    /// Fails a node's jobs and starts its repair.
    fn lose(&mut self, node: NodeId, happenings: &mut Vec<Happening>) {
        for job in self.jobs_on(node) {
            self.end_run(job, Ending::Faulted);
            happenings.push(Happening::Failed(job));
        }
        happenings.push(Happening::NodeLost(node));
        self.faults.is_down[node.0 as usize] = true;
        if let Some(recorder) = &mut self.recorder {
            recorder.went_down(node, self.now);
        }
        self.meter.node_losses += 1;
        self.meter.down += self.capacity[node.0 as usize];
        let repair = self.faults.repair(node);
        self.plan(self.now + repair, Due::NodeBack(node));
    }

    /// Handles a spot notice: the node's jobs save before it goes if the notice is long enough. A policy that
    /// follows notices tells them to; otherwise they save by themselves.
    pub(crate) fn spot_notice(&mut self, node: NodeId, happenings: &mut Vec<Happening>) {
        let notice = self.faults.spec.spot_notice;
        self.plan(self.now + notice, Due::SpotReclaim(node));
        if self.follows_notices && !self.faults.is_down[node.0 as usize] {
            happenings.push(Happening::NodeLeaves(node, self.now + notice));
        }
        if self.follows_notices || notice < self.charges.save {
            return;
        }
        for job in self.jobs_on(node) {
            if let Phase::Running(run) = &mut self.progress[job.index()].phase {
                run.saved = run.worked(self.now);
            }
        }
    }

    pub(crate) fn spot_reclaim(&mut self, node: NodeId, happenings: &mut Vec<Happening>) {
        if !self.faults.is_down[node.0 as usize] {
            self.lose(node, happenings);
        }
    }

    pub(crate) fn node_back(&mut self, node: NodeId, happenings: &mut Vec<Happening>) {
        self.faults.is_down[node.0 as usize] = false;
        if let Some(recorder) = &mut self.recorder {
            recorder.came_back(node, self.now);
        }
        self.meter.down -= self.capacity[node.0 as usize];
        happenings.push(Happening::NodeBack(node));
        self.plan_next_of(node);
    }
}

/// Why a fault specification is invalid.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FaultSpecError {
    /// An unknown part.
    #[error(
        "{0:?} is no part of a fault specification; there are node-mttf, repair, app-mttf, lemons, silent and spot"
    )]
    Unknown(String),
    /// A part with an invalid value.
    #[error("{part}={value:?}: {expected}")]
    Value {
        /// The name of the part.
        part: &'static str,
        /// The invalid value.
        value: String,
        /// What was expected instead.
        expected: &'static str,
    },
}

impl FromStr for FaultSpec {
    type Err = FaultSpecError;

    /// `none`, `usual`, or a list such as
    /// `node-mttf=200d,repair=4h,app-mttf=30d,lemons=2%x10,silent=12%:30m,spot=5%:2m:1d`.
    fn from_str(text: &str) -> Result<Self, FaultSpecError> {
        let mut spec = match text {
            "none" => return Ok(FaultSpec::NONE),
            "usual" => return Ok(FaultSpec::USUAL),
            _ => FaultSpec::NONE,
        };
        for part in text.split(',') {
            let (name, value) = part.split_once('=').ok_or_else(|| FaultSpecError::Unknown(part.to_owned()))?;
            spec.set(name, value)?;
        }
        Ok(spec)
    }
}

impl FaultSpec {
    fn set(&mut self, name: &str, value: &str) -> Result<(), FaultSpecError> {
        const SPAN: &str = "expected a time above zero like 30m, 4h or 200d";
        const LEMONS: &str = "expected a share and a factor of at least 1, like 2%x10";
        const SILENT: &str = "expected a share and a time-out, like 12%:30m";
        const SPOT: &str = "expected a share, a notice and perhaps the mean time between reclaims, like 5%:2m:1d";
        let wrong = |part, expected| FaultSpecError::Value { part, value: value.to_owned(), expected };
        let span = |text: &str| parse_span(text).filter(|span| !span.is_zero());
        match name {
            "node-mttf" => self.node_mttf = Some(span(value).ok_or_else(|| wrong("node-mttf", SPAN))?),
            "repair" => self.repair = span(value).ok_or_else(|| wrong("repair", SPAN))?,
            "app-mttf" => self.application_mttf = Some(span(value).ok_or_else(|| wrong("app-mttf", SPAN))?),
            "lemons" => {
                let parse = |(of, factor): (&str, &str)| Some((share(of)?, factor.parse::<f64>().ok()?));
                let found = value.split_once('x').and_then(parse).filter(|(_, factor)| (1.0..=1e6).contains(factor));
                (self.lemon_share, self.lemon_factor) = found.ok_or_else(|| wrong("lemons", LEMONS))?;
            }
            "silent" => {
                let parse = |(of, timeout): (&str, &str)| Some((share(of)?, span(timeout)?));
                let found = value.split_once(':').and_then(parse);
                (self.silent_share, self.silent_timeout) = found.ok_or_else(|| wrong("silent", SILENT))?;
            }
            "spot" => {
                let (of, times) = value.split_once(':').ok_or_else(|| wrong("spot", SPOT))?;
                let (notice, mttr) = times.split_once(':').unwrap_or((times, "1d"));
                self.spot_share = share(of).ok_or_else(|| wrong("spot", SPOT))?;
                self.spot_notice = span(notice).ok_or_else(|| wrong("spot", SPOT))?;
                self.spot_mttr = span(mttr).ok_or_else(|| wrong("spot", SPOT))?;
            }
            _ => return Err(FaultSpecError::Unknown(name.to_owned())),
        }
        Ok(())
    }
}

/// Parses a percentage.
fn share(text: &str) -> Option<f64> {
    let percent = text.strip_suffix('%')?.parse::<f64>().ok()?;
    (0.0..=100.0).contains(&percent).then_some(percent / 100.0)
}
