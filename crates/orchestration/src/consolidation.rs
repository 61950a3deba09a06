//! Consolidation: jobs on part of a node go on elsewhere where that makes whole what a waiting job needs.
//!
//! Small jobs that end at different times leave holes that are enough in sum and too small each; a job of whole nodes then
//! waits beside free devices. Moving a few of the small ones costs each of them a restart. This is the consolidation action
//! of NVIDIA's KAI scheduler, with two rules of ours: only what has saved since it was placed, or within the last hour, moves,
//! so that little is done twice and no job moves for long without coming on; and the moves together must cost no more than a
//! tenth of what the waiting job is expected to use. The first few that wait for each gang are asked (`equals.rs`), so that
//! many of whole nodes first in line don't hide one of half a node that a single move would make room for.
//!
//! Invariants: nobody is moved unless everybody who is has a node to go to, and no two go to the same one (their claims are
//! counted one by one). Movers keep their place in line and have a claim to where they go (`claim.rs`). The search looks at
//! the emptiest nodes alone, so its cost does not grow with the cluster.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use gangline_base::{GangShape, GpuSeconds, JobId, NodeId, Timestamp};

use crate::backfill::Reservation;
use crate::claim::{Claim, ClaimReason, ClaimRight};
use crate::cluster::Bound;
use crate::engine::Engine;
use crate::equals::Gangs;
use crate::evolve::has_advanced;
use crate::job::Job;
use crate::preemption::cost::RestartCosts;
use crate::victims::{devices_of, stop_cost};
use crate::{Decision, Node, placement};

/// Nodes that are looked at beyond those that the gang takes, in each domain.
const NODES_BEYOND_MAX: usize = 32;
/// The moves may cost the inverse of this of what the waiting job is expected to use.
const COST_PART: u32 = 10;

/// Who saved within this time may move though it has not saved since it was placed.
const SAVED_LATELY: Duration = Duration::from_hours(1);

/// A node that could take a share of the gang once some of its jobs have gone elsewhere.
struct Clearing {
    /// Devices that those hold; nothing if it has room as it is.
    moving: u32,
    node: NodeId,
    movers: Vec<JobId>,
}

/// Whether a job has shown that it can save, since it was placed or a short while ago: then little is done twice, and one
/// that fails to save when it is asked to is soon left alone.
fn saves(now: Timestamp, job: &Job) -> bool {
    has_advanced(job) || job.checkpoint_at.is_some_and(|saved| now.since(saved) <= SAVED_LATELY)
}

/// Jobs that move, each with where it goes.
type Moves = Vec<(JobId, NodeId)>;

impl Engine {
    /// A claim for a waiting job to nodes that others leave for other nodes, with theirs; none if that makes no room. Gangs
    /// that no moves make room for, whoever asks, are `hopeless` for the rest of the pass: claims only take away from what
    /// could move.
    pub(crate) fn consolidate(&self, now: Timestamp, job: &Job, hopeless: &mut Gangs) -> Option<Vec<Decision>> {
        let gang = &job.spec.gang;
        if self.cluster.topology().root().free_devices(gang) < gang.devices() || hopeless.contains(gang) {
            return None;
        }
        let clearings = self.clearings(now, job);
        let mut domains: Vec<Option<Bound<'_>>> =
            clearings.iter().map(|clearing| self.domain_of(clearing.node, gang)).collect();
        domains.sort_unstable();
        domains.dedup();
        let mut is_possible = false;
        let found = domains.into_iter().find_map(|domain| {
            let within: Vec<&Clearing> =
                clearings.iter().filter(|clearing| self.domain_of(clearing.node, gang) == domain).collect();
            let (nodes, moves) = self.plan(now, job, &within)?;
            is_possible = true;
            self.moved(now, job, nodes, &moves)
        });
        if !is_possible && self.barred_nodes(now, &job.applicant()).is_empty() {
            hopeless.insert(Arc::new(gang.clone()));
        }
        found
    }

    fn domain_of(&self, node: NodeId, gang: &GangShape) -> Option<Bound<'_>> {
        self.cluster.node(node)?.domain_for(gang)
    }

    /// Nodes that could be cleared, those with least to move first.
    fn clearings(&self, now: Timestamp, job: &Job) -> Vec<Clearing> {
        let gang = &job.spec.gang;
        let mut closed = self.claimed_nodes_beside(job.id);
        closed.extend(self.barred_nodes(now, &job.applicant()));
        let nodes = self.cluster.emptiest_of(gang);
        let nodes = nodes.filter(|node| node.takes_shares_of(gang) && !closed.contains(&node.id));
        let wanted = usize::try_from(gang.nodes.get()).expect("a usize holds 32 bits");
        let looked_at = nodes.take(wanted.saturating_add(NODES_BEYOND_MAX));
        let mut clearings: Vec<Clearing> = looked_at.filter_map(|node| self.clearing(now, gang, node)).collect();
        clearings.sort_by_key(|clearing| (clearing.moving, clearing.node));
        clearings
    }

    /// What has to move from a node so that a share of the gang fits: the smallest job that is enough, or else the largest.
    fn clearing(&self, now: Timestamp, gang: &GangShape, node: &Node) -> Option<Clearing> {
        let lack = gang.accelerators_per_node.get().saturating_sub(node.free_count());
        if lack == 0 {
            return node.has_room_for_share_of(gang).then(|| Clearing { moving: 0, node: node.id, movers: Vec::new() });
        }
        let jobs = self.outlook.holders(node.id).filter_map(|id| self.jobs.get(&id));
        let mut movable: Vec<(u32, JobId)> = jobs.filter_map(|job| Some((self.movable(now, job)?, job.id))).collect();
        movable.sort_unstable();
        let alone = movable.iter().find(|(devices, _)| *devices >= lack).copied();
        let mut clearing = Clearing { moving: 0, node: node.id, movers: Vec::new() };
        for (devices, job) in alone.into_iter().chain(movable.into_iter().rev()) {
            if clearing.moving < lack {
                clearing.moving += devices;
                clearing.movers.push(job);
            }
        }
        // Where as much moves as the gang gets there, nothing is gained.
        let is_gain = clearing.moving >= lack && clearing.moving < gang.accelerators_per_node.get();
        (is_gain && self.has_others_for(gang, node, &clearing.movers)).then_some(clearing)
    }

    /// Whether a node has the cores and the memory for a share of the gang, once these have gone.
    fn has_others_for(&self, gang: &GangShape, node: &Node, movers: &[JobId]) -> bool {
        let shares = movers.iter().filter_map(|mover| self.jobs.get(mover)?.attempt()?.shares.first());
        let (cpus, memory) = shares.fold((node.free_cpus, node.free_memory.0), |(cpus, memory), share| {
            (cpus.saturating_add(share.cpus), memory.saturating_add(share.memory.0))
        });
        cpus >= gang.cpus_per_node && memory >= gang.memory_per_node.0
    }

    /// The devices of a job that may move: one on part of a single node, past its guaranteed time, that has saved.
    fn movable(&self, now: Timestamp, job: &Job) -> Option<u32> {
        let attempt = job.attempt().filter(|attempt| attempt.stop.is_none() && attempt.shares.len() == 1)?;
        let guaranteed_until = attempt.placed_at + self.queues.configuration().preemption.runtime_min;
        // One that is elastic shrinks.
        let may_move = guaranteed_until <= now && saves(now, job) && job.spec.elastic.is_none();
        may_move.then(|| devices_of(attempt))
    }

    /// The nodes that become the gang's, and who goes where; none if not everybody finds a place.
    fn plan(&self, now: Timestamp, job: &Job, clearings: &[&Clearing]) -> Option<(Vec<NodeId>, Moves)> {
        let wanted = usize::try_from(job.spec.gang.nodes.get()).expect("a usize holds 32 bits");
        let claims = self.claims_beside(job.id);
        // Nobody goes where the gang will be, whichever of the nodes with least to move that is.
        let mut taken: BTreeSet<NodeId> = clearings.iter().take(wanted).map(|clearing| clearing.node).collect();
        let (mut nodes, mut moves) = (Vec::new(), Moves::new());
        for clearing in clearings {
            if nodes.len() >= wanted {
                break;
            }
            if moves.iter().any(|(_, to)| *to == clearing.node) {
                continue;
            }
            taken.insert(clearing.node);
            if let Some(found) = self.places_for(now, &clearing.movers, &claims, &taken) {
                taken.extend(found.iter().map(|(_, to)| *to));
                moves.extend(found);
                nodes.push(clearing.node);
            }
        }
        (nodes.len() >= wanted && !moves.is_empty()).then_some((nodes, moves))
    }

    /// A node of its own for each that moves.
    fn places_for(
        &self,
        now: Timestamp,
        movers: &[JobId],
        claims: &[Reservation],
        taken: &BTreeSet<NodeId>,
    ) -> Option<Moves> {
        let mut found = Moves::new();
        for mover in movers {
            let mover = self.jobs.get(mover)?;
            let barred = self.barred_nodes(now, &mover.applicant());
            let usable = |node: &Node| {
                let is_taken = taken.contains(&node.id) || found.iter().any(|(_, to)| *to == node.id);
                let beside_claims = claims.iter().map(|claim| claim.usable(node, None)).min();
                if is_taken || barred.contains(&node.id) {
                    0
                } else {
                    beside_claims.unwrap_or_else(|| node.free_count())
                }
            };
            let room = placement::find_room(&self.cluster, &mover.spec.gang, &usable)?;
            let to = room.shares.first()?.node;
            found.push((mover.id, to));
        }
        Some(found)
    }

    /// The claims and stops of a plan, if it is worth what it costs.
    fn moved(&self, now: Timestamp, job: &Job, nodes: Vec<NodeId>, moves: &Moves) -> Option<Vec<Decision>> {
        let cost = moves.iter().filter_map(|(mover, _)| self.cost_of_move(now, *mover)).sum::<GpuSeconds>();
        if cost > GpuSeconds::of(job.spec.gang.devices(), self.expected_yet(job) / COST_PART) {
            return None;
        }
        let grace = |id: &JobId| self.jobs.get(id).map(|job| job.spec.checkpoint.grace);
        let until = now + moves.iter().filter_map(|(mover, _)| grace(mover)).max().unwrap_or_default();
        let reason = |right, cost| ClaimReason { right, cost, is_cheapest: false, alternatives: Vec::new() };
        let victims = moves.iter().map(|(mover, _)| *mover).collect();
        let right = ClaimRight::Consolidation;
        let claim =
            Decision::Claim { job: job.id, claim: Claim { nodes, victims, until }, reason: reason(right, cost) };
        let there = moves.iter().map(|(mover, to)| Decision::Claim {
            job: *mover,
            claim: Claim { nodes: vec![*to], victims: vec![*mover], until },
            reason: reason(ClaimRight::Move { by: job.id }, GpuSeconds::ZERO),
        });
        let stops = moves.iter().filter_map(|(mover, _)| self.stop_for(*mover, job.id));
        Some(std::iter::once(claim).chain(there).chain(stops).collect())
    }

    fn cost_of_move(&self, now: Timestamp, mover: JobId) -> Option<GpuSeconds> {
        let mover = self.jobs.get(&mover)?;
        let attempt = mover.attempt()?;
        let costs = RestartCosts { requeue: Duration::ZERO, ..self.queues.configuration().preemption.restart };
        Some(stop_cost(now, mover, attempt, &costs))
    }
}
