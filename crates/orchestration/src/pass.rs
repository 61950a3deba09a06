//! The scheduling pass: which waiting jobs start now.
//!
//! Queues are served by their standing (`queue.rs`), jobs within a queue in order. The first job of each
//! flavour (kind of accelerator in a pool) that has to wait for devices gets a reservation (`backfill.rs`);
//! jobs behind it start only if they don't delay it. A job that could not run whatever became free (over its
//! queue's limit, too few ready nodes, backing off) reserves nothing. The first job of a queue keeps its
//! reservation until it starts; a job that others pass again and again comes first in the end (`overdue.rs`).
//!
//! A pass tries each *request* (`pending.rs`) until it fails, rather than each job; skips queues over a
//! limit; and ends when no requested gang could have room, reservations or not. Starting a job can change the
//! order of queues, so rounds repeat until one decides nothing. Another pass would then decide nothing
//! either, so a restart changes nothing.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};
use std::sync::Arc;

use gangline_base::{AttemptNumber, GangShape, JobId, JobSpec, NodeId, Timestamp};

use crate::engine::Engine;
use crate::job::{Job, JobState};
use crate::placement::{Applicant, Backfill, ByFlavour, NearNodes, NodeStatus, Reservation, Room, latest_end};
use crate::queueing::{QueueIndex, QueueKey, RankPath, Span};
use crate::{Decision, Node, PlaceReason, placement};

/// The most searches for room in one pass, as Slurm limits its backfill by bf_max_job_test.
const SEARCHES_MAX: usize = 10_000;

/// The smallest node count of a large gang. A large gang gets a reservation when its turn comes even if it
/// isn't first in line.
const LARGE_NODES: u32 = 8;
/// The most reservations for large gangs at once, for each flavour.
const LARGE_RESERVATIONS_MAX: usize = 4;

/// What a round has established so far.
#[derive(Default)]
struct Round {
    /// Nodes that running jobs are leaving for claimants.
    claims: Vec<Reservation>,
    /// Reservations by flavour (kind of accelerator in a pool): that of the first waiting job, then those of
    /// large gangs.
    reservations: ByFlavour<Vec<Reservation>>,
    /// The earliest end for which a gang found no room; the earliest possible time if no end would help. A
    /// request that ends at that time or later can't find room either.
    failed: BTreeMap<Arc<GangShape>, Option<Timestamp>>,
    /// Gangs for which too few nodes are ready.
    unable: BTreeSet<Arc<GangShape>>,
    /// Requested gangs that could still have room somewhere.
    hopes: BTreeSet<Arc<GangShape>>,
    /// By queue, the first job of each request that hasn't failed.
    lines: BTreeMap<QueueIndex, BinaryHeap<Reverse<QueueKey>>>,
    /// Gangs for which the current queue is over a limit, with the queue that has the limit.
    over: Vec<(Arc<GangShape>, QueueIndex)>,
    /// The queues still to visit once every gang in `hopes` waits behind a reservation.
    rest: Option<BinaryHeap<Reverse<(RankPath, QueueIndex)>>>,
    /// Queues with nothing left to start.
    done: Vec<QueueIndex>,
    /// Whether a reservation has just been made.
    has_reserved: bool,
    /// Whether a job has started before one ahead of it.
    has_backfilled: bool,
}

impl Round {
    /// Reports whether trying a job is pointless: it would find no room and get no reservation.
    fn is_settled(&self, gang: &GangShape, end: Option<Timestamp>) -> bool {
        let held = self.reservations.get(gang).map_or(0, Vec::len);
        self.has_failed(gang, end) && (self.unable.contains(gang) || !reserves(held.max(1), gang))
    }

    fn has_failed(&self, gang: &GangShape, end: Option<Timestamp>) -> bool {
        match (end, self.failed.get(gang)) {
            (_, None) => false,
            (None, Some(_)) => true,
            (Some(end), Some(failed)) => failed.is_some_and(|failed| end >= failed),
        }
    }

    fn note_failure(&mut self, gang: &GangShape, end: Option<Timestamp>) {
        if end == Some(Timestamp::EPOCH) {
            self.hopes.remove(gang);
        }
        match self.failed.get_mut(gang) {
            // An unknown end counts as the latest.
            Some(failed) => *failed = [*failed, end].into_iter().flatten().min(),
            None => drop(self.failed.insert(Arc::new(gang.clone()), end)),
        }
    }
}

/// What a job that starts now must not interfere with.
pub(crate) struct StartLimits<'a> {
    /// When the job ends at the latest.
    end: Option<Timestamp>,
    /// Nodes that the job may not use.
    barred: BTreeSet<NodeId>,
    /// Nodes that may have the job's data cached.
    near: NearNodes,
    claims: &'a [Reservation],
    held: &'a [Reservation],
}

impl StartLimits<'_> {
    /// Returns how many of a node's free accelerators the job may use.
    pub(crate) fn usable(&self, node: &Node) -> u32 {
        if self.barred.contains(&node.id) {
            return 0;
        }
        let held = self.claims.iter().chain(self.held).map(|held| held.usable(node, self.end));
        held.min().unwrap_or_else(|| node.free_count())
    }
}

impl Engine {
    pub(crate) fn place_waiting(&mut self, now: Timestamp, decisions: &mut Vec<Decision>) {
        self.queues.bring_forward(now, self.cluster.totals());
        self.forget_leads();
        self.hold_for_leading(now);
        self.place_claimants(now, decisions);
        self.forget_leads();
        self.place_recovering(now, decisions);
        self.place_leading(now, decisions);
        let mut searches = 0;
        while searches < SEARCHES_MAX && self.place_round(now, &mut searches, decisions) {}
        self.claim_for_waiting(now, decisions);
    }

    /// Runs one round; reports whether another round could decide more.
    fn place_round(&mut self, now: Timestamp, searches: &mut usize, decisions: &mut Vec<Decision>) -> bool {
        let hopes = self.queues.requests().open().filter(|gang| self.has_devices_for(gang)).cloned().collect();
        let mut round = Round { claims: self.live_claims(), hopes, ..Round::default() };
        while *searches < SEARCHES_MAX
            && !round.hopes.is_empty()
            && let Some(leaf) = self.next_line(&mut round)
        {
            let found = self.next_of(now, leaf, &mut round, searches);
            for (gang, by) in std::mem::take(&mut round.over) {
                self.queues.block(leaf, &gang, by);
            }
            let Some(decision) = found else {
                self.queues.put_aside(leaf);
                round.done.push(leaf);
                continue;
            };
            self.evolve_decision(now, &decision);
            decisions.push(decision);
            round.hopes.retain(|gang| self.has_devices_for(gang));
            if let Some(rest) = &mut round.rest {
                rest.push(Reverse((self.queues.kept_standing(leaf), leaf)));
            }
        }
        for leaf in &round.done {
            self.queues.put_back(*leaf);
        }
        round.has_backfilled
    }

    /// Returns the next queue to visit. Once every gang in `hopes` waits behind a reservation, only queues
    /// that request such a gang or could make another reservation are visited.
    fn next_line(&self, round: &mut Round) -> Option<QueueIndex> {
        let held = |gang: &GangShape| round.reservations.get(gang).map_or(0, Vec::len);
        if round.rest.is_none() && round.hopes.iter().any(|gang| held(gang) == 0) {
            return self.queues.first_line();
        }
        let rest = round.rest.get_or_insert_with(|| {
            let requests = self.queues.requests();
            let counts = |gang: &&Arc<GangShape>| round.hopes.contains(*gang) || reserves(held(gang).max(1), gang);
            let lines: BTreeSet<QueueIndex> =
                requests.open().filter(counts).flat_map(|gang| requests.open_lines(gang)).collect();
            let open = lines.into_iter().filter(|line| self.queues.is_looked_at(*line));
            open.map(|line| Reverse((self.queues.kept_standing(line), line))).collect()
        });
        while let Some(Reverse((standing, line))) = rest.pop() {
            if !self.queues.is_looked_at(line) {
                continue;
            }
            let current = self.queues.kept_standing(line);
            if current == standing {
                return Some(line);
            }
            rest.push(Reverse((current, line)));
        }
        None
    }

    /// Reports whether enough nodes, wherever they are, have free devices for a gang.
    fn has_devices_for(&self, gang: &GangShape) -> bool {
        self.cluster.topology().root().with_devices_for(gang) >= gang.nodes.get()
    }

    /// After a reservation, drops gangs from `hopes`: if the shortest request for a gang finds no room beside
    /// the reservations, no request for that gang does, in any queue.
    fn drop_hopes(&self, now: Timestamp, round: &mut Round, searches: &mut usize) {
        if !std::mem::take(&mut round.has_reserved) {
            return;
        }
        for gang in round.hopes.clone() {
            let held = round.reservations.get(&*gang).map(Vec::as_slice).unwrap_or_default();
            let Some(shortest) = self.queues.requests().shortest(&gang).filter(|_| !held.is_empty()) else { continue };
            *searches += 1;
            let limits = StartLimits {
                end: shortest.end(now),
                barred: BTreeSet::new(),
                near: NearNodes::default(),
                claims: &round.claims,
                held,
            };
            if !placement::has_room(&self.cluster, &gang, &|node| limits.usable(node)) {
                round.note_failure(&gang, shortest.end(now));
                round.hopes.remove(&gang);
            }
        }
    }

    /// Returns the next job of a leaf that starts.
    fn next_of(&self, now: Timestamp, leaf: QueueIndex, round: &mut Round, searches: &mut usize) -> Option<Decision> {
        let mut heads = round.lines.remove(&leaf).unwrap_or_else(|| self.heads(now, leaf, round));
        let mut found = None;
        while *searches < SEARCHES_MAX
            && found.is_none()
            && !round.hopes.is_empty()
            && let Some(Reverse(key)) = heads.pop()
        {
            let Some(job) = self.jobs.get(&key.job) else { continue };
            let gang = &job.spec.gang;
            let end = latest_end(&job.spec, now);
            if round.is_settled(gang, end) || self.is_over(leaf, gang, round) {
                continue;
            }
            if self.is_due(now, job) {
                *searches += 1;
                found = self.consider(now, job, round);
                self.drop_hopes(now, round, searches);
                if found.is_none() && round.is_settled(gang, end) {
                    continue;
                }
            }
            heads.extend(self.queues.line(leaf).next_alike(&job.spec, &key).map(Reverse));
        }
        round.lines.insert(leaf, heads);
        found
    }

    /// Returns the first job of each request in a queue that hasn't failed.
    fn heads(&self, now: Timestamp, leaf: QueueIndex, round: &mut Round) -> BinaryHeap<Reverse<QueueKey>> {
        let line = self.queues.line(leaf);
        let mut heads = BinaryHeap::new();
        for gang in line.gangs() {
            if self.is_over(leaf, gang, round) {
                continue;
            }
            let open = line.firsts(gang).take_while(|(span, _): &(Span, _)| !round.is_settled(gang, span.end(now)));
            heads.extend(open.map(|(_, key)| Reverse(key)));
        }
        heads
    }

    /// Reports, and notes in the round, whether a queue is over a limit with a gang.
    fn is_over(&self, leaf: QueueIndex, gang: &GangShape, round: &mut Round) -> bool {
        if self.leads_at_limit(leaf, gang).is_some() {
            return true;
        }
        let limited_by = self.queues.limited_by(leaf, gang);
        round.over.extend(limited_by.map(|by| (Arc::new(gang.clone()), by)));
        limited_by.is_some()
    }

    /// Reports whether only a lack of devices could keep the job from starting.
    pub(crate) fn may_start(&self, now: Timestamp, leaf: QueueIndex, job: &Job) -> bool {
        let gang = &job.spec.gang;
        self.is_due(now, job)
            && self.queues.limited_by(leaf, gang).is_none()
            && self.leads_at_limit(leaf, gang).is_none()
    }

    /// Reports whether the job's pause is over and its sweep lets another of its jobs start.
    pub(crate) fn is_due(&self, now: Timestamp, job: &Job) -> bool {
        matches!(job.state, JobState::Queued { not_before, .. } if not_before <= now)
            && !job.is_held_back()
            && self.sweeps.full(job.sweep).is_none()
    }

    /// Reports whether the ready nodes could hold the job if they were empty.
    pub(crate) fn could_run(&self, spec: &JobSpec) -> bool {
        self.could_run_gang(&spec.gang)
    }

    /// Reports whether the ready nodes could hold a gang if they were empty.
    pub(crate) fn could_run_gang(&self, gang: &GangShape) -> bool {
        self.cluster.could_hold(gang, &[NodeStatus::Ready]) >= gang.nodes.get()
    }

    fn consider(&self, now: Timestamp, job: &Job, round: &mut Round) -> Option<Decision> {
        if self.leads(job) {
            // It has its nodes, and would have started if it could.
            return None;
        }
        let (gang, end) = (&job.spec.gang, latest_end(&job.spec, now));
        let held = round.reservations.get_or_default(gang);
        if let Some(decision) = self.place_beside(now, job, &round.claims, held) {
            if let Decision::Place { shares, .. } = &decision {
                round.claims.iter_mut().chain(held.iter_mut()).for_each(|held| held.take(shares, end));
            }
            round.has_backfilled |= !held.is_empty();
            return Some(decision);
        }
        let is_barred = !self.configuration.barring(now, &job.spec).is_empty();
        if is_barred && placement::has_room(&self.cluster, gang, &Node::free_count) {
            // The job waits for a window to end and reserves nothing meanwhile.
            return None;
        }
        let has_no_room = held.is_empty() && round.claims.is_empty() || !self.has_devices_for(gang);
        if !self.could_run(&job.spec) {
            round.unable.insert(Arc::new(gang.clone()));
        } else if reserves(held.len(), gang) {
            held.push(self.reserve(now, job.id, gang, held));
            round.has_reserved = true;
        }
        // Spares may be available to other jobs but not to this one.
        let is_kept_out = !self.spares_kept_from(now, &job.applicant()).is_empty() && self.has_devices_for(gang);
        if !is_barred && !is_kept_out {
            round.note_failure(gang, if has_no_room { Some(Timestamp::EPOCH) } else { end });
        }
        None
    }

    /// Places a job on nodes that neither claims nor reservations hold for others, if there is room.
    pub(crate) fn place_beside(
        &self,
        now: Timestamp,
        job: &Job,
        claims: &[Reservation],
        held: &[Reservation],
    ) -> Option<Decision> {
        let JobState::Queued { since, .. } = job.state else { return None };
        let limits = self.limits(now, &job.applicant(), claims, held);
        let find = |gang: &GangShape| self.room_for(gang, &limits);
        let Room { shares, candidates, closeness, held: held_data } = self.widened(job, find(&job.spec.gang)?, &find);
        let backfills = held.first().map(|held| held.job);
        let waited = now.since(since);
        let (kept_since, is_overdue) = (None, false);
        let reason = PlaceReason { waited, backfills, candidates, closeness, kept_since, is_overdue, held_data };
        let attempt = AttemptNumber(job.attempts + 1);
        Some(Decision::Place { job: job.id, attempt, shares, reason })
    }

    /// Finds room for a job that starts now.
    pub(crate) fn room_beside(
        &self,
        now: Timestamp,
        applicant: &Applicant<'_>,
        claims: &[Reservation],
        held: &[Reservation],
    ) -> Option<Room> {
        self.room_for(&applicant.spec.gang, &self.limits(now, applicant, claims, held))
    }

    fn room_for(&self, gang: &GangShape, limits: &StartLimits<'_>) -> Option<Room> {
        placement::find_room_near(&self.cluster, gang, &|node| limits.usable(node), &limits.near)
    }

    /// Returns the nodes that a job may not use now because of reservations or because they are spares.
    pub(crate) fn barred_nodes(&self, now: Timestamp, applicant: &Applicant<'_>) -> BTreeSet<NodeId> {
        let barring = self.configuration.barring(now, applicant.spec);
        let nodes = barring.into_iter().flat_map(|reservation| &reservation.nodes);
        let reserved = nodes.filter_map(|name| self.cluster.id_of(name));
        reserved.chain(self.spares_kept_from(now, applicant)).collect()
    }

    /// Makes the earliest possible reservation for a waiting job, on nodes without other claims and not
    /// promised to `others`.
    pub(crate) fn reserve(&self, now: Timestamp, job: JobId, gang: &GangShape, others: &[Reservation]) -> Reservation {
        let mut closed: Vec<NodeId> = self.claimed_nodes_beside(job).into_iter().collect();
        closed.extend(self.jobs.get(&job).map(|job| self.barred_nodes(now, &job.applicant())).unwrap_or_default());
        Backfill::new(&self.cluster, &self.outlook).reserve(now, (job, gang), closed, others)
    }

    pub(crate) fn limits<'a>(
        &self,
        now: Timestamp,
        applicant: &Applicant<'_>,
        claims: &'a [Reservation],
        held: &'a [Reservation],
    ) -> StartLimits<'a> {
        let (end, barred) = (latest_end(applicant.spec, now), self.barred_nodes(now, applicant));
        let near = self.caches.near(&applicant.spec.datasets);
        StartLimits { end, barred, near, claims, held }
    }
}

/// Reports whether a gang without room gets a reservation, given the number of existing reservations.
pub(crate) fn reserves(held: usize, gang: &GangShape) -> bool {
    let is_large = gang.nodes.get() >= LARGE_NODES;
    held == 0 || is_large && held <= LARGE_RESERVATIONS_MAX
}
