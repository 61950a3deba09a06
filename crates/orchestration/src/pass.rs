//! The scheduling pass: who of those who wait starts now.
//!
//! Queues are served by their standing (`queue.rs`), jobs within one in order. The first job of each lane (kind
//! of accelerator in a pool) that has to wait for devices gets a reservation (`backfill.rs`); those behind it start only beside that. A job that
//! cannot run whatever becomes free (over its queue's limit, too few nodes ready, backing off) reserves nothing.
//! Nothing starves within a queue: the first in line keeps its reservation until it starts.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};
use std::ops::Bound;
use std::sync::Arc;

use gangline_base::{AttemptNumber, GangShape, JobSpec, Lane, NodeId, Timestamp};

use crate::backfill::{Reservation, latest_end};
use crate::cluster::NodeStatus;
use crate::engine::Engine;
use crate::job::{Job, JobState};
use crate::placement::{self, Room};
use crate::queue::{QueueIndex, QueueKey};
use crate::spares::Applicant;
use crate::{Decision, Node, PlaceReason};

/// Searches for room in one pass: Slurm's bf_max_job_test does the same for its backfill.
const SEARCHES_MAX: usize = 10_000;

/// A gang there was no room for, and when the job that asked for it would have ended at the latest.
type Failure = (Arc<JobSpec>, Option<Timestamp>);

/// What a pass has found out so far.
#[derive(Default)]
struct Pass {
    /// Nodes that running jobs are leaving for others.
    claims: Vec<Reservation>,
    reservations: BTreeMap<Lane, Reservation>,
    /// One that ends no earlier, and may use spares no more, fares no better.
    failed: BTreeMap<(u32, u32, bool), Vec<Failure>>,
    cursors: BTreeMap<QueueIndex, QueueKey>,
    searches: usize,
}

impl Pass {
    fn has_failed(&self, job: &Job, end: Option<Timestamp>) -> bool {
        let (spec, alike) = (&job.spec, self.failed.get(&shape_of(job)));
        let ends_no_earlier = |failed: &Option<Timestamp>| match (end, failed) {
            (_, Some(Timestamp::EPOCH)) => true,
            (Some(end), Some(failed)) => end >= *failed,
            (None, _) => true,
            (Some(_), None) => false,
        };
        alike
            .is_some_and(|alike| alike.iter().any(|(other, failed)| other.gang == spec.gang && ends_no_earlier(failed)))
    }

    fn note_failure(&mut self, job: &Job, end: Option<Timestamp>) {
        self.failed.entry(shape_of(job)).or_default().push((job.spec.clone(), end));
    }
}

/// What decides where a job has room, in short: nodes, devices on each, whether spares are not for it.
fn shape_of(job: &Job) -> (u32, u32, bool) {
    let gang = &job.spec.gang;
    (gang.nodes.get(), gang.accelerators_per_node.get(), job.applicant().is_kept_from_spares())
}

/// What a job that starts now has to keep clear of.
pub(crate) struct Beside<'a> {
    /// When it is over at the latest.
    end: Option<Timestamp>,
    /// Nodes it may not use.
    barred: BTreeSet<NodeId>,
    claims: &'a [Reservation],
    reservation: Option<&'a Reservation>,
}

impl Beside<'_> {
    /// How many of a node's free accelerators it may have.
    pub(crate) fn usable(&self, node: &Node) -> u32 {
        if self.barred.contains(&node.id) {
            return 0;
        }
        let held = self.claims.iter().chain(self.reservation).map(|held| held.usable(node, self.end));
        held.min().unwrap_or_else(|| node.free_count())
    }
}

impl Engine {
    pub(crate) fn place_waiting(&mut self, now: Timestamp, decisions: &mut Vec<Decision>) {
        let totals = self.cluster.totals();
        self.place_claimants(now, decisions);
        self.place_recovering(now, decisions);
        let mut pass = Pass { claims: self.live_claims(), ..Pass::default() };
        let standings = self.queues.active().map(|leaf| (self.queues.standing(leaf, now, &totals), leaf));
        let mut leaves: BinaryHeap<_> = standings.map(Reverse).collect();
        let mut open = self.cluster.lanes_with_free();
        while let Some(Reverse((standing, leaf))) = leaves.pop() {
            if open.is_empty() || pass.searches >= SEARCHES_MAX {
                break;
            }
            let current = self.queues.standing(leaf, now, &totals);
            if current != standing {
                leaves.push(Reverse((current, leaf)));
                continue;
            }
            let Some(decision) = self.next_of(now, leaf, &open, &mut pass) else { continue };
            self.evolve_decision(now, &decision);
            decisions.push(decision);
            open = self.cluster.lanes_with_free();
            leaves.push(Reverse((current, leaf)));
        }
        self.claim_for_waiting(now, decisions);
    }

    /// The next job of a leaf that starts.
    fn next_of(&self, now: Timestamp, leaf: QueueIndex, open: &BTreeSet<Lane>, pass: &mut Pass) -> Option<Decision> {
        let from = pass.cursors.get(&leaf).map_or(Bound::Unbounded, |key| Bound::Excluded(*key));
        for key in self.queues.pending(leaf).range((from, Bound::Unbounded)) {
            pass.cursors.insert(leaf, *key);
            let Some(job) = self.jobs.get(&key.1) else { continue };
            if !open.contains(&job.spec.gang.lane()) || !self.may_start(now, leaf, job) {
                continue;
            }
            if let Some(decision) = self.consider(now, job, pass) {
                return Some(decision);
            }
            if pass.searches >= SEARCHES_MAX {
                return None;
            }
        }
        None
    }

    /// Whether only devices could be in its way.
    pub(crate) fn may_start(&self, now: Timestamp, leaf: QueueIndex, job: &Job) -> bool {
        matches!(job.state, JobState::Queued { not_before, .. } if not_before <= now)
            && self.queues.over_limit(leaf, &job.spec.gang).is_none()
            && self.sweeps.full(job.sweep).is_none()
    }

    /// Whether ready nodes could take it, were they empty.
    pub(crate) fn could_run(&self, spec: &JobSpec) -> bool {
        self.cluster.could_hold(&spec.gang, &[NodeStatus::Ready]) >= spec.gang.nodes.get()
    }

    fn consider(&self, now: Timestamp, job: &Job, pass: &mut Pass) -> Option<Decision> {
        let (gang, end) = (&job.spec.gang, latest_end(&job.spec, now));
        if pass.has_failed(job, end) {
            return None;
        }
        pass.searches += 1;
        let reservation = pass.reservations.get_mut(&gang.lane());
        let is_first = reservation.is_none();
        if let Some(decision) = self.place_beside(now, job, &pass.claims, reservation.as_deref()) {
            if let Decision::Place { shares, .. } = &decision {
                pass.claims.iter_mut().chain(reservation).for_each(|held| held.take(shares, end));
            }
            return Some(decision);
        }
        let is_barred = !self.barring(now, &job.spec).is_empty();
        if is_barred && placement::find_room(&self.cluster, gang, &Node::free_count).is_some() {
            // It waits for a window to end, and holds nothing meanwhile.
            return None;
        }
        // Others may have what this one may not.
        let failed_until = if is_first { Some(Timestamp::EPOCH) } else { end };
        if is_first && self.could_run(&job.spec) {
            pass.reservations.insert(gang.lane(), self.reserve(now, job.id, gang));
        }
        if !is_barred {
            pass.note_failure(job, failed_until);
        }
        None
    }
    /// Places a job on what neither claims nor a reservation hold for others, if there is room.
    pub(crate) fn place_beside(
        &self,
        now: Timestamp,
        job: &Job,
        claims: &[Reservation],
        reservation: Option<&Reservation>,
    ) -> Option<Decision> {
        let JobState::Queued { since, .. } = job.state else { return None };
        let beside = self.beside(now, &job.applicant(), claims, reservation);
        let find = |gang: &GangShape| self.room_for(gang, &beside);
        let room = self.widened(job, find(&job.spec.gang)?, &find);
        let backfills = reservation.map(|held| held.job);
        let Room { shares, candidates, closeness } = room;
        let reason = PlaceReason { waited: now.since(since), backfills, candidates, closeness };
        let attempt = AttemptNumber(job.attempts + 1);
        Some(Decision::Place { job: job.id, attempt, shares, reason })
    }

    /// Room for a job that starts now.
    pub(crate) fn room_beside(
        &self,
        now: Timestamp,
        applicant: &Applicant<'_>,
        claims: &[Reservation],
        reservation: Option<&Reservation>,
    ) -> Option<Room> {
        self.room_for(&applicant.spec.gang, &self.beside(now, applicant, claims, reservation))
    }

    fn room_for(&self, gang: &GangShape, beside: &Beside<'_>) -> Option<Room> {
        placement::find_room(&self.cluster, gang, &|node| beside.usable(node))
    }

    pub(crate) fn beside<'a>(
        &self,
        now: Timestamp,
        applicant: &Applicant<'_>,
        claims: &'a [Reservation],
        reservation: Option<&'a Reservation>,
    ) -> Beside<'a> {
        let (end, barred) = (latest_end(applicant.spec, now), self.barred_nodes(now, applicant));
        Beside { end, barred, claims, reservation }
    }
}
