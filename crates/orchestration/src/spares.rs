//! Spares: nodes that no ordinary job starts on, so that a gang that loses a node goes on whole at once.
//!
//! One pool for each lane (kind of accelerator in a pool of nodes), shared by all its jobs: as many nodes as the
//! administrator says or as the loss rate calls for (`sizing.rs`), and the most that any one running job asks for on top.
//!
//! - Which nodes are spares follows from the state: of the ready ones that no ordinary job holds or has a claim to,
//!   those with least free. So where preemptible work runs (priority `low` and below, which may start on spares), that is the
//!   spare, and what idles beside it stays everybody's. Of idle nodes, those with fewest faults are kept.
//! - A job that recovers from the loss of a node, or leaves one on which it was slow (`eviction.rs`), is not kept from them, is served before the line, and stops preemptible
//!   work there if it has to (`victims.rs`), whatever queue that is in and however short it has run.
//! - Spares never starve a gang: one that could not run beside all of them, were the cluster otherwise empty, is kept from as
//!   many as leave it room. Smaller gangs still are from all.
//!
//! A shared pool instead of one for each job, running other work meanwhile, is what recovery needs at a fraction of the
//! idle nodes (Kokolis et al., HPCA 2025; Bamboo, NSDI 2023, says what redundancy in each job costs).

mod sizing;
#[cfg(test)]
mod tests;

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::time::Duration;

use gangline_base::{AcceleratorKind, GangShape, JobId, JobSpec, Lane, NodeId, Priority, Timestamp};

use crate::cluster::FreePlace;
use crate::engine::Engine;
use crate::job::{Job, JobState};
use crate::lanes::{ByLane, OfLane};
use crate::standing::NodeStatus;
use crate::topology::Domain;
use crate::{Decision, FaultCause, Node, RequeueReason, placement};

pub use sizing::{LossRecord, SPARES_MAX, SpareSizing};

/// Recovering jobs that are looked at before the line in one pass.
const RECOVERIES_MAX: usize = 64;
/// The longest a repair may be said to take.
const REPAIR_MAX: Duration = Duration::from_hours(24 * 365);

/// How many spares are kept of each lane.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SpareRules {
    /// So many nodes, by kind of accelerator, in each pool that has the kind.
    pub nodes: BTreeMap<AcceleratorKind, u32>,
    /// Of the kinds that aren't named, as many as this says; none: no others.
    pub sizing: Option<SpareSizing>,
}

/// Why rules for spares make no sense.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidSpares {
    /// More than are supported.
    #[error("{nodes} spare nodes of {kind} are more than the {SPARES_MAX} there may be")]
    TooMany {
        /// The kind.
        kind: AcceleratorKind,
        /// How many.
        nodes: u32,
    },
    /// None or all of the losses can't be covered.
    #[error(
        "spares have to be enough more often than never and less often than always: write a confidence such as 95%"
    )]
    Confidence,
    /// No such repair.
    #[error("repairing a node takes at least a minute and at most a year: write a repair such as 24h")]
    Repair,
}

impl SpareRules {
    pub(crate) fn check(&self) -> Result<(), InvalidSpares> {
        if let Some((kind, nodes)) = self.nodes.iter().find(|(_, nodes)| **nodes > SPARES_MAX) {
            return Err(InvalidSpares::TooMany { kind: kind.clone(), nodes: *nodes });
        }
        match self.sizing {
            Some(sizing) if !(1..1_000).contains(&sizing.confidence_milli) => Err(InvalidSpares::Confidence),
            Some(sizing) if !(Duration::from_mins(1)..=REPAIR_MAX).contains(&sizing.repair) => {
                Err(InvalidSpares::Repair)
            }
            _ => Ok(()),
        }
    }
}

/// What is known of losses, for a snapshot.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LossHistory {
    /// Up to when.
    pub at: Timestamp,
    /// Of each lane.
    pub lanes: BTreeMap<Lane, LossRecord>,
}

/// How many spares a lane should have, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SparePool {
    /// The lane.
    pub lane: Lane,
    /// Nodes by the rules.
    pub by_rules: u32,
    /// Nodes that a running job asks for on top: the most that any one does.
    pub by_jobs: u32,
    /// The history that `by_rules` follows from; none if the administrator named a number.
    pub losses: Option<LossRecord>,
}

impl SparePool {
    /// Nodes in all.
    #[must_use]
    pub fn wanted(&self) -> u32 {
        self.by_rules.saturating_add(self.by_jobs).min(SPARES_MAX)
    }
}

impl fmt::Display for SparePool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.losses {
            Some(record) => {
                let days = record.node_time.as_secs() / (24 * 3_600);
                write!(f, "{} for the rate of {} loss(es) in {days} node-days", self.by_rules, record.losses)?;
            }
            None => write!(f, "{} configured", self.by_rules)?,
        }
        if self.by_jobs > 0 { write!(f, ", {} for running jobs", self.by_jobs) } else { Ok(()) }
    }
}

/// A job as one that asks for nodes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Applicant<'a> {
    pub(crate) spec: &'a JobSpec,
    /// Its last attempt ended with the loss of a node, or for the slowness of one.
    pub(crate) is_recovering: bool,
}

impl Applicant<'_> {
    /// Whether spares are not for it.
    pub(crate) fn is_kept_from_spares(&self) -> bool {
        is_ordinary(self.spec) && !self.is_recovering
    }
}

impl Job {
    pub(crate) fn applicant(&self) -> Applicant<'_> {
        Applicant { spec: &self.spec, is_recovering: self.is_recovering }
    }

    /// Waits to go on after the loss of a node: of ordinary ones, which spares are kept for.
    fn awaits_spares(&self) -> bool {
        self.is_recovering && is_ordinary(&self.spec) && matches!(self.state, JobState::Queued { .. })
    }
}

/// Whether a job isn't preemptible work, which alone may run on spares.
pub(crate) fn is_ordinary(spec: &JobSpec) -> bool {
    spec.priority > Priority::LOW
}

/// Whether a job queued again for this reason has lost a node, or left a slow one.
pub(crate) fn lost_node(reason: RequeueReason) -> bool {
    let is_loss =
        matches!(reason, RequeueReason::Fault { cause: FaultCause::NodeLost | FaultCause::SupervisorLost, .. });
    is_loss || matches!(reason, RequeueReason::Straggler { .. })
}

/// Ready nodes that no ordinary job holds, by lane, in the order in which they are spares: the fullest first, of those the
/// ones with fewest faults, of those the ones that other jobs would take last.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Unheld(ByLane<BTreeSet<(u32, u32, Reverse<NodeId>)>>);

impl Unheld {
    pub(crate) fn insert(&mut self, lane: &impl OfLane, (free, grade, id): FreePlace) {
        self.0.change(lane, |nodes| nodes.insert((free, grade, Reverse(id))));
    }

    pub(crate) fn remove(&mut self, lane: &impl OfLane, (free, grade, id): FreePlace) {
        self.0.change(lane, |nodes| nodes.remove(&(free, grade, Reverse(id))));
    }

    fn of(&self, lane: &Lane) -> impl Iterator<Item = NodeId> {
        self.0.get(lane).into_iter().flatten().map(|(.., Reverse(id))| *id)
    }
}

/// What the engine keeps of spares: the history, and indices of jobs.
#[derive(Clone, Debug, Default)]
pub(crate) struct Spares {
    pub(crate) history: LossHistory,
    /// Jobs that ask for standby nodes, and run or recover.
    standby: BTreeSet<(Lane, u32, JobId)>,
    /// Jobs that spares are kept for now.
    recovering: BTreeSet<JobId>,
}

impl Spares {
    /// Looks at a job's new state.
    pub(crate) fn note(&mut self, job: &Job) {
        self.forget(job);
        if job.spec.spares > 0 && (job.attempt().is_some() || job.awaits_spares()) {
            self.standby.insert((job.spec.gang.lane(), job.spec.spares, job.id));
        }
        if job.awaits_spares() {
            self.recovering.insert(job.id);
        }
    }

    /// A job is over.
    pub(crate) fn forget(&mut self, job: &Job) {
        self.recovering.remove(&job.id);
        if job.spec.spares > 0 {
            self.standby.remove(&(job.spec.gang.lane(), job.spec.spares, job.id));
        }
    }

    pub(crate) fn has_recovering(&self) -> bool {
        !self.recovering.is_empty()
    }

    fn asked(&self, lane: &Lane) -> u32 {
        let of_lane = (lane.clone(), 0, JobId(0))..=(lane.clone(), u32::MAX, JobId(u64::MAX));
        self.standby.range(of_lane).next_back().map_or(0, |(_, nodes, _)| *nodes)
    }
}

impl Engine {
    /// The spares that a lane should have by now, and why.
    #[must_use]
    pub fn spare_pool(&self, now: Timestamp, lane: &Lane) -> SparePool {
        let (rules, by_jobs) = (&self.queues.configuration().spares, self.spares.asked(lane));
        let fixed = rules.nodes.get(&lane.accelerator).copied();
        let sizing = rules.sizing.filter(|_| fixed.is_none());
        let losses = sizing.map(|_| self.losses_by(now, lane));
        let sized = sizing.zip(losses).map(|(sizing, losses)| sizing.pool_for(losses, self.present(lane)));
        SparePool { lane: lane.clone(), by_rules: fixed.or(sized).unwrap_or(0), by_jobs, losses }
    }

    /// The nodes that are spares now, of every lane.
    #[must_use]
    pub fn spare_nodes(&self, now: Timestamp) -> BTreeSet<NodeId> {
        let lanes: BTreeSet<Lane> = self.present_by_lane().into_keys().collect();
        lanes.iter().flat_map(|lane| self.spares_of(now, lane)).collect()
    }

    /// The spares of a lane, the first to keep first.
    pub(crate) fn spares_of(&self, now: Timestamp, lane: &Lane) -> Vec<NodeId> {
        let rules = &self.queues.configuration().spares;
        if rules.nodes.is_empty() && rules.sizing.is_none() && self.spares.standby.is_empty() {
            return Vec::new();
        }
        let wanted = usize::try_from(self.spare_pool(now, lane).wanted()).expect("a usize holds 32 bits");
        let claims = self.claimants.iter().filter_map(|claimant| self.jobs.get(claimant)?.claim.as_ref());
        let claimed: BTreeSet<NodeId> = claims.flat_map(|claim| claim.nodes.iter().copied()).collect();
        self.cluster.unheld().of(lane).filter(|node| !claimed.contains(node)).take(wanted).collect()
    }

    /// The spares that a job may not start on: all, or as many as leave it room in an otherwise empty cluster.
    pub(crate) fn spares_kept_from(&self, now: Timestamp, applicant: &Applicant<'_>) -> BTreeSet<NodeId> {
        if !applicant.is_kept_from_spares() {
            return BTreeSet::new();
        }
        let gang = &applicant.spec.gang;
        let spares = self.spares_of(now, &gang.lane());
        let kept = (1..=spares.len()).rev().find(|kept| self.leave_room(&spares[..*kept], gang));
        // One that can't run in any case is nobody to make way for.
        let kept = kept.or_else(|| (!self.leave_room(&[], gang)).then_some(spares.len()));
        spares.into_iter().take(kept.unwrap_or(0)).collect()
    }

    /// Whether a gang could run beside these spares, were the cluster otherwise empty.
    fn leave_room(&self, spares: &[NodeId], gang: &GangShape) -> bool {
        let is_in = |domain: &Domain, node: &Node| {
            domain.level.is_none_or(|level| node.spec.location.at(level) == Some(&*domain.name))
        };
        let room = |domain: &Domain| {
            let nodes = spares.iter().filter_map(|id| self.cluster.node(*id));
            let fitting = nodes.filter(|node| node.could_hold_share_of(gang) && is_in(domain, node)).count();
            let fitting = u32::try_from(fitting).unwrap_or(u32::MAX);
            domain.could_hold(gang, &[NodeStatus::Ready]).saturating_sub(fitting)
        };
        placement::most_in_one(&self.cluster, gang, &room).nodes >= gang.nodes.get()
    }

    /// Places jobs that have lost a node before those in line, where spares are kept for them.
    pub(crate) fn place_recovering(&mut self, now: Timestamp, decisions: &mut Vec<Decision>) {
        for id in self.recovering_due(now) {
            let Some(job) = self.jobs.get(&id) else { continue };
            let Some(decision) = self.place_beside(now, job, &self.claims_beside(id), &[]) else { continue };
            self.evolve_decision(now, &decision);
            decisions.push(decision);
        }
    }

    /// Jobs that have lost a node and could go on, where spares are kept.
    pub(crate) fn recovering_due(&self, now: Timestamp) -> Vec<JobId> {
        let jobs = self.spares.recovering.iter().filter_map(|id| self.jobs.get(id));
        let due = jobs.filter(|job| {
            self.may_start(now, self.queues.leaf(&job.spec.queue), job)
                && self.spare_pool(now, &job.spec.gang.lane()).wanted() > 0
        });
        due.map(|job| job.id).take(RECOVERIES_MAX).collect()
    }

    /// Books the time that nodes were there until now; before one comes or goes.
    pub(crate) fn observe_nodes(&mut self, now: Timestamp) {
        let lanes = self.present_by_lane().into_keys();
        let observed: Vec<(Lane, LossRecord)> = lanes.map(|lane| (lane.clone(), self.losses_by(now, &lane))).collect();
        self.spares.history.lanes.extend(observed);
        self.spares.history.at = now;
    }

    /// Counts a loss that nobody announced.
    pub(crate) fn count_loss(&mut self, node: NodeId) {
        let Some(lane) = self.cluster.node(node).map(|node| node.spec.capacity.lane()) else { return };
        let record = self.spares.history.lanes.entry(lane).or_default();
        record.losses = record.losses.saturating_add(1);
    }

    fn losses_by(&self, now: Timestamp, lane: &Lane) -> LossRecord {
        let history = &self.spares.history;
        let record = history.lanes.get(lane).copied().unwrap_or_default();
        record.after(now.since(history.at), self.present(lane))
    }

    fn present(&self, lane: &Lane) -> u32 {
        self.present_by_lane().get(lane).copied().unwrap_or(0)
    }

    /// Nodes that aren't lost.
    fn present_by_lane(&self) -> BTreeMap<Lane, u32> {
        let classes = &self.cluster.topology().root().classes;
        let mut present = BTreeMap::new();
        for ((capacity, _), nodes) in classes.iter().filter(|((_, status), _)| *status != NodeStatus::Lost) {
            *present.entry(capacity.lane()).or_insert(0) += nodes;
        }
        present
    }
}
