//! Spares: nodes on which no ordinary job starts, so that a gang that loses a node can restart whole at once.
//!
//! There is one pool of spares per flavour (kind of accelerator in a pool of nodes), shared by all its jobs.
//! Its size is what the administrator configures or what the loss rate requires (`sizing.rs`), plus the most
//! that any one running job requests.
//!
//! - The state determines which nodes are spares: among ready nodes without ordinary jobs or claims,
//!   those with the least free. So a node that runs preemptible work (priority `low` and below, which may
//!   start on spares) is preferred as a spare, and idle nodes stay available to all jobs. Among idle nodes,
//!   those with the fewest faults are kept.
//! - A job that recovers from the loss of a node, or leaves a node on which it was slow (`eviction.rs`), may
//!   use spares, is served before the queues, and may preempt preemptible work there (`victims.rs`), whatever
//!   that work's queue and however short its run time.
//! - Spares never starve a gang: a gang that could not run beside all of them even in an otherwise empty
//!   cluster is only kept from as many as leave it room. Smaller gangs are still kept from all.
//!
//! A shared pool that runs other work meanwhile gives the recovery that one pool per job would, with a
//! fraction of the idle nodes (Kokolis et al., HPCA 2025; Bamboo, NSDI 2023, gives the cost of redundancy in
//! each job).

mod sizing;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::time::Duration;

use gangline_base::{AcceleratorKind, Flavour, GangShape, JobId, NodeId, Timestamp};

use crate::engine::Engine;
use crate::job::{Job, JobState};
use crate::placement::{Applicant, Domain, NodeStatus, is_ordinary};
use crate::{Decision, FaultCause, Node, RequeueReason, placement};

pub use sizing::{LossRecord, SPARES_MAX, SpareSizing};

/// The most recovering jobs served before the queues in one pass.
const RECOVERIES_MAX: usize = 64;
/// The longest repair time that can be configured.
const REPAIR_MAX: Duration = Duration::from_hours(24 * 365);

/// How many spares are kept for each flavour.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SpareRules {
    /// The number of nodes by kind of accelerator, in each pool that has the kind.
    pub nodes: BTreeMap<AcceleratorKind, u32>,
    /// The sizing for kinds without a number; none for no spares of these kinds.
    pub sizing: Option<SpareSizing>,
}

/// Why rules for spares are invalid.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidSpares {
    /// More spares than supported.
    #[error("{nodes} spare nodes of {kind} are more than the {SPARES_MAX} there may be")]
    TooMany {
        /// The kind of accelerator.
        kind: AcceleratorKind,
        /// The number of nodes.
        nodes: u32,
    },
    /// The confidence is not between 0 and 1, exclusive.
    #[error(
        "spares have to be enough more often than never and less often than always: write a confidence such as 95%"
    )]
    Confidence,
    /// The repair time is out of range.
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

/// The history of node losses, for a snapshot.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LossHistory {
    /// The end of the recorded time.
    pub at: Timestamp,
    /// The record of each flavour.
    pub flavours: BTreeMap<Flavour, LossRecord>,
}

/// How many spares a flavour should have, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SparePool {
    /// The flavour.
    pub flavour: Flavour,
    /// The number of nodes by the rules.
    pub by_rules: u32,
    /// The number of additional nodes requested by running jobs: the most that any one requests.
    pub by_jobs: u32,
    /// The history from which `by_rules` follows; none if the administrator configured a number.
    pub losses: Option<LossRecord>,
}

impl SparePool {
    /// Returns the total number of nodes.
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

impl Job {
    /// Reports whether an ordinary job waits to recover from the loss of a node; spares are kept for such
    /// jobs.
    fn awaits_spares(&self) -> bool {
        self.is_recovering && is_ordinary(&self.spec) && matches!(self.state, JobState::Queued { .. })
    }
}

/// Reports whether a requeue reason means that the job lost a node or left a slow one.
pub(crate) fn lost_node(reason: RequeueReason) -> bool {
    let is_loss =
        matches!(reason, RequeueReason::Fault { cause: FaultCause::NodeLost | FaultCause::SupervisorLost, .. });
    is_loss || matches!(reason, RequeueReason::Straggler { .. })
}

/// The loss history, and indices of jobs that concern spares.
#[derive(Clone, Debug, Default)]
pub(crate) struct Spares {
    pub(crate) history: LossHistory,
    /// Running or recovering jobs that request standby nodes.
    standby: BTreeSet<(Flavour, u32, JobId)>,
    /// Jobs for which spares are currently kept.
    recovering: BTreeSet<JobId>,
}

impl Spares {
    /// Updates the indices after a job's state changed.
    pub(crate) fn note(&mut self, job: &Job) {
        self.forget(job);
        if job.spec.spares > 0 && (job.attempt().is_some() || job.awaits_spares()) {
            self.standby.insert((job.spec.gang.flavour(), job.spec.spares, job.id));
        }
        if job.awaits_spares() {
            self.recovering.insert(job.id);
        }
    }

    /// Removes a job that has ended.
    pub(crate) fn forget(&mut self, job: &Job) {
        self.recovering.remove(&job.id);
        if job.spec.spares > 0 {
            self.standby.remove(&(job.spec.gang.flavour(), job.spec.spares, job.id));
        }
    }

    pub(crate) fn has_recovering(&self) -> bool {
        !self.recovering.is_empty()
    }

    fn asked(&self, flavour: &Flavour) -> u32 {
        let of_flavour = (flavour.clone(), 0, JobId(0))..=(flavour.clone(), u32::MAX, JobId(u64::MAX));
        self.standby.range(of_flavour).next_back().map_or(0, |(_, nodes, _)| *nodes)
    }
}

impl Engine {
    /// Returns how many spares a flavour should have now, and why.
    #[must_use]
    pub fn spare_pool(&self, now: Timestamp, flavour: &Flavour) -> SparePool {
        let (rules, by_jobs) = (&self.configuration.spares, self.spares.asked(flavour));
        let fixed = rules.nodes.get(&flavour.accelerator).copied();
        let sizing = rules.sizing.filter(|_| fixed.is_none());
        let losses = sizing.map(|_| self.losses_by(now, flavour));
        let sized = sizing.zip(losses).map(|(sizing, losses)| sizing.pool_for(losses, self.present(flavour)));
        SparePool { flavour: flavour.clone(), by_rules: fixed.or(sized).unwrap_or(0), by_jobs, losses }
    }

    /// Returns the current spare nodes of every flavour.
    #[must_use]
    pub fn spare_nodes(&self, now: Timestamp) -> BTreeSet<NodeId> {
        let flavours: BTreeSet<Flavour> = self.present_by_flavour().into_keys().collect();
        flavours.iter().flat_map(|flavour| self.spares_of(now, flavour)).collect()
    }

    /// Returns the spares of a flavour, the first to keep first.
    pub(crate) fn spares_of(&self, now: Timestamp, flavour: &Flavour) -> Vec<NodeId> {
        let rules = &self.configuration.spares;
        if rules.nodes.is_empty() && rules.sizing.is_none() && self.spares.standby.is_empty() {
            return Vec::new();
        }
        let wanted = usize::try_from(self.spare_pool(now, flavour).wanted()).expect("a usize holds 32 bits");
        let claims = self.claimants.iter().filter_map(|claimant| self.jobs.get(claimant)?.claim.as_ref());
        let claimed: BTreeSet<NodeId> = claims.flat_map(|claim| claim.nodes.iter().copied()).collect();
        self.cluster.unheld().of(flavour).filter(|node| !claimed.contains(node)).take(wanted).collect()
    }

    /// Returns the spares on which a job may not start: all, or as many as leave it room in an otherwise
    /// empty cluster.
    pub(crate) fn spares_kept_from(&self, now: Timestamp, applicant: &Applicant<'_>) -> BTreeSet<NodeId> {
        if !applicant.is_kept_from_spares() {
            return BTreeSet::new();
        }
        let gang = &applicant.spec.gang;
        let spares = self.spares_of(now, &gang.flavour());
        let kept = (1..=spares.len()).rev().find(|kept| self.leave_room(&spares[..*kept], gang));
        // A gang that can't run in any case is kept from all spares.
        let kept = kept.or_else(|| (!self.leave_room(&[], gang)).then_some(spares.len()));
        spares.into_iter().take(kept.unwrap_or(0)).collect()
    }

    /// Reports whether a gang could run beside these spares in an otherwise empty cluster.
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

    /// Places jobs that have lost a node before the waiting queues, where spares are kept for them.
    pub(crate) fn place_recovering(&mut self, now: Timestamp, decisions: &mut Vec<Decision>) {
        for id in self.recovering_due(now) {
            let Some(job) = self.jobs.get(&id) else { continue };
            let Some(decision) = self.place_beside(now, job, &self.claims_beside(id), &[]) else { continue };
            self.evolve_decision(now, &decision);
            decisions.push(decision);
        }
    }

    /// Returns jobs that have lost a node and could continue, where spares are kept.
    pub(crate) fn recovering_due(&self, now: Timestamp) -> Vec<JobId> {
        let jobs = self.spares.recovering.iter().filter_map(|id| self.jobs.get(id));
        let due = jobs.filter(|job| {
            self.may_start(now, self.queues.leaf(&job.spec.queue), job)
                && self.spare_pool(now, &job.spec.gang.flavour()).wanted() > 0
        });
        due.map(|job| job.id).take(RECOVERIES_MAX).collect()
    }

    /// Adds the node-time until now, before a node comes or goes.
    pub(crate) fn observe_nodes(&mut self, now: Timestamp) {
        let flavours = self.present_by_flavour().into_keys();
        let observed: Vec<(Flavour, LossRecord)> =
            flavours.map(|flavour| (flavour.clone(), self.losses_by(now, &flavour))).collect();
        self.spares.history.flavours.extend(observed);
        self.spares.history.at = now;
    }

    /// Counts an unannounced node loss.
    pub(crate) fn count_loss(&mut self, node: NodeId) {
        let Some(flavour) = self.cluster.node(node).map(|node| node.spec.capacity.flavour()) else { return };
        let record = self.spares.history.flavours.entry(flavour).or_default();
        record.losses = record.losses.saturating_add(1);
    }

    fn losses_by(&self, now: Timestamp, flavour: &Flavour) -> LossRecord {
        let history = &self.spares.history;
        let record = history.flavours.get(flavour).copied().unwrap_or_default();
        record.after(now.since(history.at), self.present(flavour))
    }

    fn present(&self, flavour: &Flavour) -> u32 {
        self.present_by_flavour().get(flavour).copied().unwrap_or(0)
    }

    /// Returns the number of nodes that aren't lost, by flavour.
    fn present_by_flavour(&self) -> BTreeMap<Flavour, u32> {
        let classes = &self.cluster.topology().root().classes;
        let mut present = BTreeMap::new();
        for ((capacity, _), nodes) in classes.iter().filter(|((_, status), _)| *status != NodeStatus::Lost) {
            *present.entry(capacity.flavour()).or_insert(0) += nodes;
        }
        present
    }
}
