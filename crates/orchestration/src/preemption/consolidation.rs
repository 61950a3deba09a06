//! Consolidation: jobs on part of a node move elsewhere to free whole nodes for a waiting job.
//!
//! Small jobs that end at different times leave holes that would be enough together but are too small each; a
//! job that needs whole nodes then waits beside free devices. Moving a few small jobs costs each a restart.
//! This is the consolidation action of NVIDIA's KAI scheduler with two extra rules: only a job that has saved
//! since it was placed, or within the last hour, moves, so that little work is repeated and no job moves
//! repeatedly without progress; and the moves together must cost at most a tenth of what the waiting job is
//! expected to use. The first few waiting jobs for each gang are tried (`peers.rs`), so that leading jobs
//! that need many whole nodes don't hide a job that needs half a node and a single move.
//!
//! Invariants: jobs move only if each has a node to go to, and no two go to the same node (their claims are
//! counted one by one). A moving job keeps its place in the queue and has a claim to its destination
//! (`claims.rs`). Only the emptiest nodes are searched, so the cost does not grow with the cluster.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use gangline_base::{GangShape, GpuSeconds, JobId, NodeId, Timestamp};

use crate::claim::{Claim, ClaimReason, ClaimRight};
use crate::cost::RestartCosts;
use crate::engine::Engine;
use crate::evolve::has_advanced;
use crate::job::{Job, devices_of, stop_cost};
use crate::placement::{Bound, Reservation};
use crate::preemption::peers::Gangs;
use crate::{Decision, Node, placement};

/// The most nodes searched in each domain beyond those the gang takes.
const NODES_BEYOND_MAX: usize = 32;
/// The moves may cost at most 1/`COST_PART` of what the waiting job is expected to use.
const COST_PART: u32 = 10;

/// A job that saved within this time may move even if it has not saved since it was placed.
const SAVED_LATELY: Duration = Duration::from_hours(1);

/// A node that could take a share of the gang after some of its jobs have moved.
struct Clearing {
    /// Devices held by the jobs that would move; zero if the node already has room.
    moving: u32,
    node: NodeId,
    movers: Vec<JobId>,
}

/// Reports whether a job has saved since it was placed or recently: then little work is repeated, and a job
/// that fails to save on request is soon exempt.
fn saves(now: Timestamp, job: &Job) -> bool {
    has_advanced(job) || job.checkpoint_at.is_some_and(|saved| now.since(saved) <= SAVED_LATELY)
}

/// Jobs that move, with their destinations.
type Moves = Vec<(JobId, NodeId)>;

impl Engine {
    /// Returns a claim for a waiting job to nodes that other jobs leave, with those jobs' claims; none if
    /// moves make no room. Gangs for which no moves make room are added to `hopeless` for the rest of the
    /// pass, since claims only reduce what could move.
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

    /// Returns nodes that could be cleared, fewest devices to move first.
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

    /// Returns what has to move from a node so that a share of the gang fits: the smallest job that is
    /// enough, else the largest.
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
        // There is no gain if as many devices move as the gang gets.
        let is_gain = clearing.moving >= lack && clearing.moving < gang.accelerators_per_node.get();
        (is_gain && self.has_others_for(gang, node, &clearing.movers)).then_some(clearing)
    }

    /// Reports whether a node has enough cores and memory for a share of the gang once these jobs have moved.
    fn has_others_for(&self, gang: &GangShape, node: &Node, movers: &[JobId]) -> bool {
        let shares = movers.iter().filter_map(|mover| self.jobs.get(mover)?.attempt()?.shares.first());
        let (cpus, memory) = shares.fold((node.free_cpus, node.free_memory.0), |(cpus, memory), share| {
            (cpus.saturating_add(share.cpus), memory.saturating_add(share.memory.0))
        });
        cpus >= gang.cpus_per_node && memory >= gang.memory_per_node.0
    }

    /// Returns the devices of a movable job: one on part of a single node, past its guaranteed run time, that
    /// has saved.
    fn movable(&self, now: Timestamp, job: &Job) -> Option<u32> {
        let attempt = job.attempt().filter(|attempt| attempt.stop.is_none() && attempt.shares.len() == 1)?;
        let guaranteed_until = attempt.placed_at + self.configuration.preemption.runtime_min;
        // An elastic job shrinks instead.
        let may_move = guaranteed_until <= now && saves(now, job) && job.spec.elastic.is_none();
        may_move.then(|| devices_of(attempt))
    }

    /// Returns the nodes for the gang and the moves; none if a job finds no destination.
    fn plan(&self, now: Timestamp, job: &Job, clearings: &[&Clearing]) -> Option<(Vec<NodeId>, Moves)> {
        let wanted = usize::try_from(job.spec.gang.nodes.get()).expect("a usize holds 32 bits");
        let claims = self.claims_beside(job.id);
        // No job moves to a node that the gang may get.
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

    /// Returns a separate destination for each moving job.
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

    /// Returns the claims and stops of a plan, if it is worth its cost.
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
        let costs = RestartCosts { requeue: Duration::ZERO, ..self.configuration.preemption.restart };
        Some(stop_cost(now, mover, attempt, &costs))
    }
}
