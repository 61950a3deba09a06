//! Claims: nodes held for a waiting job until its victims have left them.
//!
//! A preemption takes as long as its victims take to save. Until the last one is gone, their nodes are held
//! for the waiting job: otherwise a third job could take them, and the victims would have been stopped in
//! vain. A claim is made by a decision, so the journal contains it; it ends when the job is placed, and is
//! void once none of its victims is stopping any more. `victims.rs` decides who may claim what from whom.

use std::collections::BTreeSet;
use std::fmt;
use std::time::Duration;

use gangline_base::{GpuSeconds, JobId, NodeId, QueueName, Timestamp};

use crate::engine::Engine;
use crate::job::Job;
use crate::placement::Reservation;
use crate::{Decision, StopReason};

/// The nodes that a waiting job is about to get.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claim {
    /// The nodes.
    pub nodes: Vec<NodeId>,
    /// The jobs that are stopped for it.
    pub victims: Vec<JobId>,
    /// When the last victim is gone at the latest, by the grace periods.
    pub until: Timestamp,
}

/// Why these victims were chosen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClaimReason {
    /// The right that the claim is based on.
    pub right: ClaimRight,
    /// The total cost: devices times the work since each victim's last durable checkpoint and its restart.
    /// Estimated.
    pub cost: GpuSeconds,
    /// Whether the search proved that no cheaper set exists.
    pub is_cheapest: bool,
    /// The next best sets.
    pub alternatives: Vec<VictimAlternative>,
}

/// The right by which a job takes devices from running ones.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ClaimRight {
    /// All victims are of lower priority in its own queue.
    Priority,
    /// All victims are of the same priority in its own queue and have held their devices for at least twice
    /// its expected remaining run time.
    TimeShare {
        /// Its expected remaining run time.
        expected: Duration,
    },
    /// All victims have nodes elsewhere to continue on.
    Consolidation,
    /// The job moves to another node to make room for another job.
    Move {
        /// The other job.
        by: JobId,
    },
    /// The job has lost a node: all victims are low-priority jobs on spares.
    Recovery,
    /// The job continues on more nodes, for which no job waits.
    Growth {
        /// The number of nodes before.
        from: u32,
        /// The number of nodes after.
        to: u32,
        /// Its speed after, in thousandths of its speed before.
        speed_milli: u32,
    },
    /// The job continues on fewer nodes, to make room for another job.
    Shrink {
        /// The number of nodes before.
        from: u32,
        /// The number of nodes after.
        to: u32,
        /// The other job.
        by: JobId,
    },
    /// Its queue or an ancestor holds less than its entitlement, and the victims' queues hold more than
    /// theirs.
    Entitlement {
        /// The queue that takes back.
        queue: QueueName,
        /// The devices that queue holds.
        held: u32,
        /// The devices that queue is entitled to.
        entitled: u32,
    },
}

/// Another set of victims that would have made room.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VictimAlternative {
    /// The jobs.
    pub victims: Vec<JobId>,
    /// The estimated cost of stopping them.
    pub cost: GpuSeconds,
}

impl fmt::Display for ClaimRight {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ClaimRight::Priority => f.write_str("by its higher priority"),
            ClaimRight::TimeShare { expected } => {
                let minutes = expected.as_secs().div_ceil(60);
                write!(f, "is expected to take {minutes} min, and who makes room has had twice that")
            }
            ClaimRight::Consolidation => f.write_str("by moves to other nodes"),
            ClaimRight::Move { by } => write!(f, "goes on with another node, to make room for {by}"),
            ClaimRight::Recovery => f.write_str("goes on after the loss of a node"),
            ClaimRight::Growth { from, to, speed_milli } => {
                let (whole, part) = (speed_milli / 1_000, speed_milli % 1_000 / 10);
                write!(f, "grows from {from} to {to} node(s), {whole}.{part:02} times as fast (estimated)")
            }
            ClaimRight::Shrink { from, to, by } => write!(f, "shrinks from {from} to {to} node(s) for {by}"),
            ClaimRight::Entitlement { queue, held, entitled } => {
                write!(f, "queue \"{queue}\" holds {held} of the {entitled} it is entitled to")
            }
        }
    }
}

impl fmt::Display for ClaimReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let proved = if self.is_cheapest { "the least possible" } else { "the least found" };
        write!(f, "{}; costs {} (estimated), {proved}", self.right, hours(self.cost))?;
        for other in &self.alternatives {
            write!(f, "; {} would cost {}", names(&other.victims), hours(other.cost))?;
        }
        Ok(())
    }
}

/// Formats a list of jobs.
pub(crate) fn names(jobs: &[JobId]) -> String {
    let names: Vec<String> = jobs.iter().map(JobId::to_string).collect();
    names.join(", ")
}

/// Formats GPU-seconds as GPU-hours with two decimals, rounded down. Integral, so that every machine prints
/// the same.
fn hours(cost: GpuSeconds) -> String {
    const NANOS_PER_HUNDREDTH: u128 = 36 * 1_000_000_000;
    let hundredths = cost.nanos() / NANOS_PER_HUNDREDTH;
    format!("{}.{:02} GPU-h", hundredths / 100, hundredths % 100)
}

impl Engine {
    /// Returns the claim of a waiting job, while any of its victims is still stopping.
    pub(crate) fn live_claim<'a>(&self, job: &'a Job) -> Option<&'a Claim> {
        let leaves_for_it = |victim: &JobId| {
            let attempt = self.jobs.get(victim).and_then(Job::attempt);
            attempt.is_some_and(|attempt| match attempt.stop {
                Some(StopReason::Preempted { by }) => by == job.id || *victim == job.id,
                // A growing job keeps its own nodes until it restarts; other jobs may use the idle ones
                // meanwhile.
                _ => false,
            })
        };
        job.claim.as_ref().filter(|claim| claim.victims.iter().any(leaves_for_it))
    }

    /// Returns all live claims as reservations of their nodes.
    pub(crate) fn live_claims(&self) -> Vec<Reservation> {
        self.claimants.iter().filter_map(|claimant| self.claim_as_reservation(self.jobs.get(claimant)?)).collect()
    }

    /// Returns the live claims of all other jobs.
    pub(crate) fn claims_beside(&self, job: JobId) -> Vec<Reservation> {
        let others = self.claimants.iter().filter(|claimant| **claimant != job);
        others.filter_map(|claimant| self.claim_as_reservation(self.jobs.get(claimant)?)).collect()
    }

    fn claim_as_reservation(&self, job: &Job) -> Option<Reservation> {
        self.live_claim(job).map(|claim| self.as_reservation(job, claim))
    }

    fn as_reservation(&self, job: &Job, claim: &Claim) -> Reservation {
        let victims = || claim.victims.iter().filter_map(|victim| self.jobs.get(victim)).filter_map(Job::attempt);
        let gang = &job.spec.gang;
        let shares_more = gang.cpus_per_node > 0 || gang.memory_per_node.0 > 0;
        let spare = |node: NodeId| {
            let freed = victims().flat_map(|victim| &victim.shares).filter(|share| share.node == node);
            let freed: usize = freed.map(|share| share.devices.len()).sum();
            let free = self.cluster.node(node).map_or(0, |node| node.free.len());
            let wanted = usize::try_from(gang.accelerators_per_node.get()).expect("a usize holds 32 bits");
            let spare = if shares_more { 0 } else { (free + freed).saturating_sub(wanted) };
            u32::try_from(spare).expect("a node has fewer than 2^32 accelerators")
        };
        let spare = claim.nodes.iter().map(|node| (*node, spare(*node))).collect();
        Reservation::new(job.id, Some(claim.until), spare)
    }

    /// Returns the nodes held by other jobs' live claims.
    pub(crate) fn claimed_nodes_beside(&self, job: JobId) -> BTreeSet<NodeId> {
        let others = self.claimants.iter().filter(|claimant| **claimant != job);
        let claims = others.filter_map(|claimant| self.live_claim(self.jobs.get(claimant)?));
        claims.flat_map(|claim| claim.nodes.iter().copied()).collect()
    }

    /// Starts jobs whose claims have come true before any other job can take the freed nodes. Each respects
    /// all other claims, since a claim without remaining victims is about to be met.
    pub(crate) fn place_claimants(&mut self, now: Timestamp, decisions: &mut Vec<Decision>) {
        for id in self.claimants.clone() {
            let Some(job) = self.jobs.get(&id) else { continue };
            if !self.may_start(now, self.queues.leaf(&job.spec.queue), job) {
                continue;
            }
            let others = self.claimants.iter().filter(|claimant| **claimant != id);
            let waiting = others.filter_map(|claimant| self.jobs.get(claimant)).filter(|job| job.attempt().is_none());
            let claims = waiting.filter_map(|other| Some(self.as_reservation(other, other.claim.as_ref()?)));
            let claims: Vec<Reservation> = claims.collect();
            let Some(decision) = self.place_beside(now, job, &claims, &[]) else { continue };
            self.evolve_decision(now, &decision);
            decisions.push(decision);
        }
    }
}
