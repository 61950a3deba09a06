//! Which jobs may be preempted for which: translates the state of queues and jobs into a [`Problem`], and its
//! answer into a claim.
//!
//! If the rules allow it ([`crate::PreemptionRules`]), a waiting job may preempt
//! - running jobs of lower priority in its own queue;
//! - jobs of a queue that holds more than its entitlement (`entitlement.rs`), if the waiting job's queue is
//!   beside that queue and would not exceed its own entitlement with the new gang. Two queues are beside each
//!   other where the paths from the two leaves to the root diverge, as in KAI's reclaim: children of one
//!   parent settle among themselves.
//! - low-priority jobs on spares, if it has lost a node (`spares.rs`), regardless of the other rules;
//! - jobs of equal right in its own queue that have held their devices for long, if an administrator enables
//!   that (`time_slicing.rs`).
//!
//! A queue loses at most what it holds beyond its entitlement. Only if no gangs fit within that, one gang
//! that straddles the line may be taken whole; otherwise a queue with one large gang would keep for ever what
//! it isn't entitled to. Victims of the lowest priority are tried first; among them the cheapest set by lost
//! work is chosen. A job is no victim before its guaranteed run time is over, or while it is already being
//! stopped. Preemption never oscillates: the taking queue then has no more than its entitlement, and a lower
//! priority never preempts a higher one.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use gangline_base::{AcceleratorKind, GpuSeconds, JobId, NodeId, Priority, Timestamp};

use crate::claim::{Claim, ClaimReason, ClaimRight, VictimAlternative};
use crate::cost::RestartCosts;
use crate::engine::Engine;
use crate::job::{Attempt, Job, JobState, devices_of, stop_cost, width_of};
use crate::placement::{Bound, is_ordinary};
use crate::preemption::victim_search::{
    NoVictims, NodeResources, Problem, QueueBound, Resources, VictimSet, Victims, Wanted, find_victims,
};
use crate::queueing::{Entitlement, QueueIndex};
use crate::{Decision, Node, PreemptionRules, Share, StopReason, placement};

/// The most jobs for which victims are searched in one pass.
const CLAIMS_SOUGHT_MAX: usize = 4;

/// The most jobs of a queue that are checked for a right to preempt.
const HEADS_LOOKED_AT_MAX: usize = 8;
/// The most offers to shrink one job by a single node.
const SHRINKS_BY_ONE_MAX: usize = 16;
/// The most offers to shrink one job by several nodes.
const SHRINKS_BY_MORE_MAX: usize = 16;

/// A key for whether a queue below this one exceeds its entitlement to a kind of accelerator.
type Excess = (QueueIndex, AcceleratorKind);

/// The decisions that make a claim, empty if none is possible; or the time at which one may become possible.
pub(crate) type Claimed = Result<Vec<Decision>, Timestamp>;

/// A waiting job's rights to take devices.
pub(crate) struct Rights<'a> {
    leaf: QueueIndex,
    job: &'a Job,
    rules: PreemptionRules,
    /// Queues from the leaf upward that may take back from the queues beside them.
    reclaiming: BTreeMap<QueueIndex, Entitlement>,
    /// Whether the job has lost a node and may take spares.
    is_recovery: bool,
    /// Whether it may take devices from peers that have held them for long.
    shares_time: bool,
}

impl<'a> Rights<'a> {
    /// Creates rights with nothing granted.
    fn none(leaf: QueueIndex, job: &'a Job, rules: PreemptionRules) -> Self {
        Rights { leaf, job, rules, reclaiming: BTreeMap::new(), is_recovery: false, shares_time: false }
    }

    /// Creates the right to devices that peers have held for long.
    pub(crate) fn to_time(leaf: QueueIndex, job: &'a Job, rules: PreemptionRules) -> Self {
        Rights { shares_time: true, ..Rights::none(leaf, job, rules) }
    }
}

/// A running job that may be preempted.
struct Candidate<'a> {
    job: &'a Job,
    attempt: &'a Attempt,
    leaf: QueueIndex,
}

impl Engine {
    /// Makes claims for waiting jobs that have a better right to devices.
    pub(crate) fn claim_for_waiting(&mut self, now: Timestamp, decisions: &mut Vec<Decision>) {
        let rules = self.configuration.preemption;
        if rules.reclaim || rules.by_priority || self.spares.has_recovering() {
            for id in self.take_claimants_due(now) {
                let found = self.jobs.get(&id).map_or(Ok(Vec::new()), |job| self.find_claim(now, job));
                self.make_claim(now, id, found, decisions);
            }
        }
        if rules.moves_equals() {
            self.claim_on_equals(now, decisions);
        }
    }

    /// Carries out a claim that was found, or sets a timer for when one may be possible.
    pub(crate) fn make_claim(&mut self, now: Timestamp, id: JobId, found: Claimed, decisions: &mut Vec<Decision>) {
        match found {
            Ok(claimed) => {
                for decision in claimed {
                    self.evolve_decision(now, &decision);
                    decisions.push(decision);
                }
            }
            Err(eligible_at) => {
                self.timers.insert((eligible_at, id));
            }
        }
    }

    pub(crate) fn stop_for(&self, victim: JobId, by: JobId) -> Option<Decision> {
        let attempt = self.jobs.get(&victim)?.attempt()?.number;
        Some(Decision::Stop { job: victim, attempt, reason: StopReason::Preempted { by } })
    }

    /// Returns the first job of each leaf that wants devices, has a right to some, and has no live claim;
    /// best standing first.
    fn take_claimants_due(&mut self, now: Timestamp) -> Vec<JobId> {
        let recovering = self.recovering_due(now).into_iter();
        let mut due: Vec<JobId> =
            recovering.filter(|id| self.jobs.get(id).is_some_and(|job| self.live_claim(job).is_none())).collect();
        let (mut lines, mut known) = (self.queues.seeking(), BTreeMap::new());
        while due.len() < CLAIMS_SOUGHT_MAX
            && let Some(Reverse((_, leaf))) = lines.pop()
        {
            match self.seeker_of(now, leaf) {
                Some(job) if !due.contains(&job) && self.has_victims(leaf, job, &mut known) => due.push(job),
                Some(_) => {}
                None if self.is_sure_of(now, leaf) => self.queues.give_up(leaf),
                None => {}
            }
        }
        due.truncate(CLAIMS_SOUGHT_MAX);
        due
    }

    /// Returns the first few jobs of a queue.
    pub(crate) fn first_in_line(&self, leaf: QueueIndex) -> impl Iterator<Item = &Job> {
        let first = self.queues.pending(leaf).iter().take(HEADS_LOOKED_AT_MAX);
        first.filter_map(|key| self.jobs.get(&key.job))
    }

    /// Returns the first job of a queue, if it has a right and no live claim.
    pub(crate) fn seeker_of(&self, now: Timestamp, leaf: QueueIndex) -> Option<JobId> {
        let job = self.first_in_line(leaf).find(|job| self.may_start(now, leaf, job))?;
        let is_due = self.live_claim(job).is_none() && self.rights(leaf, job).is_some();
        is_due.then_some(job.id)
    }

    /// Reports whether only events that put a queue in the index can give it a right. Time can as well for
    /// jobs that back off, and so can a claim that fails. Queues over a limit are visited again when the
    /// limiting queue holds less.
    pub(crate) fn is_sure_of(&self, now: Timestamp, leaf: QueueIndex) -> bool {
        let backs_off = |job: &Job| matches!(job.state, JobState::Queued { not_before, .. } if not_before > now);
        !self.is_led_at_limit(leaf)
            && self.first_in_line(leaf).all(|job| !backs_off(job) && self.live_claim(job).is_none())
    }

    fn rights<'a>(&self, leaf: QueueIndex, job: &'a Job) -> Option<Rights<'a>> {
        let rules = self.configuration.preemption;
        let kind = &job.spec.gang.accelerator;
        let mut reclaiming = BTreeMap::new();
        for queue in self.queues.path_up(leaf).filter(|queue| rules.reclaim && self.queues.name(*queue).is_some()) {
            let entitlement = self.entitlement(queue, kind);
            let with_gang = entitlement.held.saturating_add(job.spec.gang.devices());
            if with_gang <= entitlement.entitled {
                reclaiming.insert(queue, entitlement);
            }
        }
        let has_lower = self.lower(leaf, job, rules).next().is_some();
        let rights = Rights { reclaiming, ..Rights::none(leaf, job, rules) };
        (has_lower || !rights.reclaiming.is_empty()).then_some(rights)
    }

    /// Reports whether any running job could be preempted by a job with a right. Results per queue are cached
    /// in `known`.
    fn has_victims(&self, leaf: QueueIndex, job: JobId, known: &mut BTreeMap<Excess, bool>) -> bool {
        let Some(rights) = self.jobs.get(&job).and_then(|job| self.rights(leaf, job)) else { return false };
        let kind = &rights.job.spec.gang.accelerator;
        let has_lower = self.lower(leaf, rights.job, rights.rules).next().is_some();
        let parents = || rights.reclaiming.keys().filter_map(|queue| self.queues.parent(*queue));
        has_lower
            || parents().any(|parent| {
                *known.entry((parent, kind.clone())).or_insert_with(|| {
                    let above = self.entitlement(parent, kind).entitled;
                    self.queues.exceeding_below(parent, kind, above).next().is_some()
                })
            })
    }

    /// Returns the running jobs of a leaf that a job may stop because its priority is higher.
    fn lower<'a>(
        &'a self,
        leaf: QueueIndex,
        job: &Job,
        rules: PreemptionRules,
    ) -> impl Iterator<Item = JobId> + use<'a> {
        let lower = self.queues.running_below(leaf, job.spec.priority).filter(move |_| rules.by_priority);
        lower.filter(|id| self.jobs.get(id).is_some_and(|job| job.led_at.is_none()))
    }

    fn entitlement(&self, queue: QueueIndex, kind: &AcceleratorKind) -> Entitlement {
        self.queues.entitlement(queue, kind, self.cluster.total_of(kind))
    }

    /// Reports whether there is room beside what other jobs claim.
    pub(crate) fn has_room(&self, now: Timestamp, job: &Job) -> bool {
        let gang = &job.spec.gang;
        let (claims, spares) = (self.claims_beside(job.id), self.spares_kept_from(now, &job.applicant()));
        let usable = |node: &Node| {
            let beside_claims = claims.iter().map(|claim| claim.usable(node, None)).min();
            if spares.contains(&node.id) { 0 } else { beside_claims.unwrap_or_else(|| node.free_count()) }
        };
        placement::has_room(&self.cluster, gang, &usable)
    }

    /// Returns a claim for a job without room, with all decisions that it involves; or when one may become
    /// possible, if some jobs are still within their guaranteed run time.
    fn find_claim(&self, now: Timestamp, job: &Job) -> Claimed {
        if self.has_room(now, job) {
            return Ok(Vec::new());
        }
        let leaf = self.queues.leaf(&job.spec.queue);
        if let Some(claims) = self.find_recovery(now, leaf, job) {
            return Ok(claims);
        }
        if self.leads.pauses_claims(&job.spec.gang) {
            return Ok(Vec::new());
        }
        self.rights(leaf, job).map_or(Ok(Vec::new()), |rights| self.claim_by(now, &rights))
    }

    /// Returns a claim by a right, taking from the lowest priorities that are enough.
    pub(crate) fn claim_by(&self, now: Timestamp, rights: &Rights<'_>) -> Claimed {
        let (candidates, guaranteed_until) = self.candidates(now, rights);
        let mut priorities: BTreeSet<Priority> = candidates.iter().map(|it| it.job.spec.priority).collect();
        while let Some(highest) = priorities.pop_first() {
            let allowed: Vec<&Candidate<'_>> =
                candidates.iter().filter(|candidate| candidate.job.spec.priority <= highest).collect();
            for is_strict in [true, false] {
                // A job's guaranteed run time is about to end: waiting is better than taking more than the
                // excess.
                if !is_strict && guaranteed_until.is_some() {
                    break;
                }
                let (problem, offers) = self.problem(now, rights, &allowed, is_strict);
                match find_victims(&problem) {
                    Ok(victims) => return Ok(self.claims(now, rights, victims, &offers)),
                    Err(NoVictims::Bounded) => {}
                    Err(NoVictims::TooFewNodes { .. } | NoVictims::Unproven) => break,
                }
            }
        }
        guaranteed_until.map_or(Ok(Vec::new()), Err)
    }

    /// Returns a claim to spares for a job that has lost a node, at the expense of low-priority jobs there.
    fn find_recovery(&self, now: Timestamp, leaf: QueueIndex, job: &Job) -> Option<Vec<Decision>> {
        if !job.is_recovering || !is_ordinary(&job.spec) {
            return None;
        }
        let spares: BTreeSet<NodeId> = self.spares_of(now, &job.spec.gang.flavour()).into_iter().collect();
        let rules = self.configuration.preemption;
        let rights = Rights { is_recovery: true, ..Rights::none(leaf, job, rules) };
        let running = self.jobs.values().filter(|other| !is_ordinary(&other.spec) && !spares.is_empty());
        let running = running.filter_map(|job| Some((job, job.attempt().filter(|attempt| attempt.stop.is_none())?)));
        let there = running.filter(|(_, attempt)| attempt.shares.iter().any(|share| spares.contains(&share.node)));
        let candidates: Vec<Candidate<'_>> =
            there.map(|(job, attempt)| Candidate { job, attempt, leaf: self.queues.leaf(&job.spec.queue) }).collect();
        let (problem, offers) = self.problem(now, &rights, &candidates.iter().collect::<Vec<_>>(), true);
        find_victims(&problem).ok().map(|victims| self.claims(now, &rights, victims, &offers))
    }

    /// Returns the jobs that may be preempted now, and when the first of the others may.
    fn candidates<'a>(&'a self, now: Timestamp, rights: &Rights<'_>) -> (Vec<Candidate<'a>>, Option<Timestamp>) {
        let mut guaranteed_until: Option<Timestamp> = None;
        let mut candidates = Vec::new();
        for leaf in self.leaves_at_risk(rights) {
            for job in self.stoppable(now, rights, leaf).into_iter().filter_map(|id| self.jobs.get(&id)) {
                let Some(attempt) = job.attempt().filter(|attempt| attempt.stop.is_none()) else { continue };
                let until = attempt.placed_at + rights.rules.runtime_min;
                if !job.spec.gang.competes_with(&rights.job.spec.gang) {
                    continue;
                }
                if until > now {
                    guaranteed_until = Some(guaranteed_until.map_or(until, |first| first.min(until)));
                } else {
                    candidates.push(Candidate { job, attempt, leaf });
                }
            }
        }
        candidates.sort_unstable_by_key(|candidate| candidate.job.id);
        (candidates, guaranteed_until)
    }

    /// Returns the leaves whose jobs may be preempted: the job's own, and those below queues that exceed
    /// their entitlement beside a queue, on the path from the job's leaf to the root, that takes back.
    fn leaves_at_risk(&self, rights: &Rights<'_>) -> Vec<QueueIndex> {
        let kind = &rights.job.spec.gang.accelerator;
        let mut leaves = vec![rights.leaf];
        for parent in rights.reclaiming.keys().filter_map(|queue| self.queues.parent(*queue)) {
            let above = self.entitlement(parent, kind).entitled;
            let exceeding = self.queues.exceeding_below(parent, kind, above);
            leaves.extend(exceeding.flat_map(|queue| self.queues.leaves_running(queue)));
        }
        leaves
    }

    /// Returns the jobs of a leaf that the rules allow to be preempted.
    fn stoppable(&self, now: Timestamp, rights: &Rights<'_>, leaf: QueueIndex) -> Vec<JobId> {
        if leaf != rights.leaf {
            return self.queues.running(leaf).collect();
        }
        let lower = self.lower(leaf, rights.job, rights.rules);
        let outrun = rights.shares_time.then(|| self.outrun(now, leaf, rights.job));
        lower.chain(outrun.into_iter().flatten()).collect()
    }

    fn problem(
        &self,
        now: Timestamp,
        rights: &Rights<'_>,
        candidates: &[&Candidate<'_>],
        is_strict: bool,
    ) -> (Problem, Vec<Option<Shrink>>) {
        let gang = &rights.job.spec.gang;
        let largest = candidates.iter().map(|candidate| devices_of(candidate.attempt)).max().unwrap_or(0);
        let beyond = if is_strict { 0 } else { largest.saturating_sub(1) };
        let own: BTreeSet<QueueIndex> = self.queues.path_up(rights.leaf).collect();
        let mut places: BTreeMap<QueueIndex, usize> = BTreeMap::new();
        let mut bounds: Vec<QueueBound> = Vec::new();
        for leaf in candidates.iter().map(|candidate| candidate.leaf).collect::<BTreeSet<_>>() {
            let mut path: Vec<QueueIndex> = self.queues.path_up(leaf).collect();
            path.reverse();
            for queue in path {
                let parent = self.queues.parent(queue).map(|parent| places[&parent]);
                places.entry(queue).or_insert_with(|| {
                    let excess = self.entitlement(queue, &gang.accelerator).excess().saturating_add(beyond);
                    let devices_max = if rights.is_recovery || own.contains(&queue) { u32::MAX } else { excess };
                    bounds.push(QueueBound { parent, devices_max });
                    bounds.len() - 1
                });
            }
        }
        let per_node = Resources {
            devices: gang.accelerators_per_node.get(),
            cpus: gang.cpus_per_node,
            memory: gang.memory_per_node,
        };
        let segment = placement::segment(gang);
        let nodes = segment.map_or(gang.nodes, |segment| segment.nodes).get();
        let mut problem = Problem::new(Wanted { nodes, per_node }, bounds);
        if segment.is_some() {
            problem.cut_into(gang.nodes.get() / nodes);
        }
        for (outer, parts) in self.domains_for(now, rights.job, candidates).into_iter().enumerate() {
            parts.into_iter().for_each(|part| problem.add_domain_within(outer, part));
        }
        let mut offers = Vec::new();
        for Candidate { job, attempt, leaf } in candidates {
            let restart = rights.rules.restart;
            let cost = stop_cost(now, job, attempt, &restart);
            problem.add_offer(job.id, places[leaf], cost, attempt.shares.iter().map(resources_of));
            offers.push(None);
            // A job that shrinks restarts without waiting.
            let cost = stop_cost(now, job, attempt, &RestartCosts { requeue: Duration::ZERO, ..restart });
            for shrink in shrinks(job, attempt) {
                let freed = attempt.shares.iter().filter(|share| !shrink.stays.contains(&share.node));
                problem.add_offer(job.id, places[leaf], cost, freed.map(resources_of));
                offers.push(Some(shrink));
            }
        }
        (problem, offers)
    }

    /// Returns nodes that have room for a share of a gang or may get it from the candidates and that no other
    /// job claimed or reserved; grouped by the domains that would have to hold all of it, and within these by
    /// those that would have to hold a segment.
    fn domains_for(&self, now: Timestamp, job: &Job, candidates: &[&Candidate<'_>]) -> Vec<Vec<Vec<NodeResources>>> {
        let gang = &job.spec.gang;
        let mut claimed = self.claimed_nodes_beside(job.id);
        claimed.extend(self.barred_nodes(now, &job.applicant()));
        let shares = candidates.iter().flat_map(|candidate| &candidate.attempt.shares);
        let held: BTreeSet<NodeId> = shares.map(|share| share.node).collect();
        let held = held.into_iter().filter_map(|node| self.cluster.node(node));
        let held = held.filter(|node| node.takes_shares_of(gang) && !node.has_left_for_share_of(gang));
        let level = placement::segment(gang).map(|segment| segment.level);
        let mut domains: BTreeMap<Bound<'_>, BTreeMap<Option<&str>, Vec<NodeResources>>> = BTreeMap::new();
        for node in self.cluster.with_room_for(gang).chain(held).filter(|node| !claimed.contains(&node.id)) {
            let (devices, cpus, memory) = (node.free_count(), node.free_cpus, node.free_memory);
            let resources = Resources { devices, cpus, memory };
            let part = level.map(|level| node.domain_at(level));
            // A node that names no domain of the level can't be in a segment.
            if let Some(domain) = node.domain_for(gang).filter(|_| part != Some(None)) {
                let parts = domains.entry(domain).or_default();
                parts.entry(part.flatten()).or_default().push(NodeResources { node: node.id, resources });
            }
        }
        domains.into_values().map(|parts| parts.into_values().collect()).collect()
    }

    /// Returns the claim of the waiting job, the claims of shrinking victims to the nodes they keep, and the
    /// victims' stops.
    fn claims(&self, now: Timestamp, rights: &Rights<'_>, found: Victims, offers: &[Option<Shrink>]) -> Vec<Decision> {
        let VictimSet { jobs, offers: taken, cost, nodes, .. } = found.chosen;
        let grace = jobs.iter().filter_map(|victim| self.jobs.get(victim)).map(|victim| victim.spec.checkpoint.grace);
        let until = now + grace.max().unwrap_or_default();
        let is_outside = |victim: &&JobId| {
            self.jobs.get(victim).is_some_and(|victim| self.queues.leaf(&victim.spec.queue) != rights.leaf)
        };
        let outside = jobs.iter().find(is_outside);
        let right = outside.and_then(|_| self.right_to_reclaim(rights)).unwrap_or(ClaimRight::Priority);
        let right = match rights {
            Rights { is_recovery: true, .. } => ClaimRight::Recovery,
            Rights { shares_time: true, job, .. } => ClaimRight::TimeShare { expected: self.expected_yet(job) },
            _ => right,
        };
        // Other ways to shrink the same jobs are not shown as alternatives.
        let alternatives = found.alternatives.into_iter().filter(|other| other.jobs != jobs);
        let alternatives =
            alternatives.map(|other| VictimAlternative { victims: other.jobs, cost: other.cost }).collect();
        let reason = ClaimReason { right, cost, is_cheapest: found.is_exact, alternatives };
        let shrunk = jobs.iter().zip(&taken).filter_map(|(job, offer)| Some((*job, offers[offer.0].as_ref()?)));
        let shrunk = shrunk.map(|(job, Shrink { from, stays })| {
            let to = u32::try_from(stays.len()).unwrap_or(u32::MAX);
            let right = ClaimRight::Shrink { from: *from, to, by: rights.job.id };
            let reason = ClaimReason { right, cost: GpuSeconds::ZERO, is_cheapest: true, alternatives: Vec::new() };
            Decision::Claim { job, claim: Claim { nodes: stays.clone(), victims: vec![job], until }, reason }
        });
        let stops = jobs.iter().filter_map(|victim| self.stop_for(*victim, rights.job.id));
        let others: Vec<Decision> = shrunk.chain(stops).collect();
        let claim = Claim { nodes, victims: jobs, until };
        std::iter::once(Decision::Claim { job: rights.job.id, claim, reason }).chain(others).collect()
    }

    /// Returns the right of the highest queue that takes back.
    fn right_to_reclaim(&self, rights: &Rights<'_>) -> Option<ClaimRight> {
        let path = self.queues.path_up(rights.leaf);
        let (queue, entitlement) = path.filter_map(|queue| Some((queue, rights.reclaiming.get(&queue)?))).last()?;
        let queue = self.queues.name(queue)?.clone();
        Some(ClaimRight::Entitlement { queue, held: entitlement.held, entitled: entitlement.entitled })
    }
}

/// A job that gives up some of its nodes.
struct Shrink {
    from: u32,
    stays: Vec<NodeId>,
}

/// Returns the ways in which an elastic job can shrink: by any one node, or by its last nodes.
fn shrinks(job: &Job, attempt: &Attempt) -> Vec<Shrink> {
    let from = width_of(attempt).get();
    let spare = from.saturating_sub(job.spec.gang.nodes.get());
    if job.spec.elastic.is_none() || spare == 0 {
        return Vec::new();
    }
    let nodes: Vec<NodeId> = attempt.shares.iter().map(|share| share.node).collect();
    let one = (0..nodes.len().min(SHRINKS_BY_ONE_MAX)).map(|gone| {
        let stays = nodes.iter().enumerate().filter(|(place, _)| *place != gone).map(|(_, node)| *node);
        Shrink { from, stays: stays.collect() }
    });
    let several = (2..=usize::try_from(spare).unwrap_or(usize::MAX))
        .map(|gone| Shrink { from, stays: nodes[..nodes.len() - gone].to_vec() });
    one.chain(several.take(SHRINKS_BY_MORE_MAX)).collect()
}

fn resources_of(share: &Share) -> NodeResources {
    let devices = u32::try_from(share.devices.len()).expect("a node has fewer than 2^32 accelerators");
    NodeResources { node: share.node, resources: Resources { devices, cpus: share.cpus, memory: share.memory } }
}
