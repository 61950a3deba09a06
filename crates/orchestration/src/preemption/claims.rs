//! Live claims: nodes held for a waiting job until its victims have left them.
//!
//! A preemption takes as long as its victims take to save. Until the last one is gone, their nodes are held
//! for the waiting job: otherwise a third job could take them, and the victims would have been stopped in
//! vain. A claim is made by a decision, so the journal contains it; it ends when the job is placed, and is
//! void once none of its victims is stopping any more. `victims.rs` decides who may claim what from whom.

use std::collections::BTreeSet;

use gangline_base::{JobId, NodeId, Timestamp};

use crate::claim::Claim;
use crate::engine::Engine;
use crate::job::Job;
use crate::placement::Reservation;
use crate::{Decision, StopReason};

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

    /// Returns all live claims, and what is held for overdue jobs, as reservations of their nodes.
    pub(crate) fn live_claims(&self) -> Vec<Reservation> {
        let claims = self.claimants.iter().filter_map(|claimant| self.claim_as_reservation(self.jobs.get(claimant)?));
        claims.chain(self.leads.held_beside(None).cloned()).collect()
    }

    /// Returns the live claims of all other jobs, and what is held for others that are overdue.
    pub(crate) fn claims_beside(&self, job: JobId) -> Vec<Reservation> {
        let others = self.claimants.iter().filter(|claimant| **claimant != job);
        let claims = others.filter_map(|claimant| self.claim_as_reservation(self.jobs.get(claimant)?));
        claims.chain(self.leads.held_beside(Some(job)).cloned()).collect()
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

    /// Returns the nodes held by other jobs' live claims, or for others that are overdue.
    pub(crate) fn claimed_nodes_beside(&self, job: JobId) -> BTreeSet<NodeId> {
        let others = self.claimants.iter().filter(|claimant| **claimant != job);
        let claims = others.filter_map(|claimant| self.live_claim(self.jobs.get(claimant)?));
        let held = self.leads.held_beside(Some(job)).flat_map(Reservation::nodes);
        claims.flat_map(|claim| claim.nodes.iter().copied()).chain(held).collect()
    }

    /// Starts jobs whose claims have come true before any other job can take the freed nodes. Each respects
    /// all other claims, since a claim without remaining victims is about to be met, and what is held for
    /// overdue jobs.
    pub(crate) fn place_claimants(&mut self, now: Timestamp, decisions: &mut Vec<Decision>) {
        for id in self.claimants.clone() {
            let Some(job) = self.jobs.get(&id) else { continue };
            if !self.may_start(now, self.queues.leaf(&job.spec.queue), job) {
                continue;
            }
            let others = self.claimants.iter().filter(|claimant| **claimant != id);
            let waiting = others.filter_map(|claimant| self.jobs.get(claimant)).filter(|job| job.attempt().is_none());
            let claims = waiting.filter_map(|other| Some(self.as_reservation(other, other.claim.as_ref()?)));
            let claims: Vec<Reservation> = claims.chain(self.leads.held_beside(Some(id)).cloned()).collect();
            let Some(decision) = self.place_beside(now, job, &claims, &[]) else { continue };
            self.evolve_decision(now, &decision);
            decisions.push(decision);
        }
    }
}
