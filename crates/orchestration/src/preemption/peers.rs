//! Which waiting jobs get room from jobs of equal right, by time slicing (`time_slicing.rs`) or consolidation
//! (`consolidation.rs`).
//!
//! The first few jobs of each queue are tried, and for moves the first few for each gang, the queue with the
//! best standing first. Only queues are visited in which a job may have run long enough, or that request a
//! gang for which there are enough free devices in total. Invariant: a queue in which a job has run long
//! enough is in the index; a visit that finds none removes the queue until a job has run long enough, its
//! first jobs change, or other jobs run.

use std::cmp::Reverse;
use std::collections::BTreeSet;
use std::sync::Arc;

use gangline_base::{GangShape, JobId, Timestamp};

use crate::Decision;
use crate::engine::Engine;
use crate::job::Job;
use crate::preemption::victims::{Claimed, Rights};
use crate::queueing::{QueueIndex, QueueKey};

/// The most waiting jobs per pass for which peers are asked to make room.
const HEADS_SOUGHT_MAX: usize = 64;

/// The most jobs that are tried for moves among those of one queue with the same gang.
const FIRST_OF_GANG_MAX: usize = 2;

/// A set of gangs.
pub(crate) type Gangs = BTreeSet<Arc<GangShape>>;

impl Engine {
    /// Makes claims for leading jobs on room that peers give up.
    pub(crate) fn claim_on_equals(&mut self, now: Timestamp, decisions: &mut Vec<Decision>) {
        let mut hopeless = Gangs::new();
        for id in self.heads_due(now) {
            let found =
                self.jobs.get(&id).map_or(Ok(Vec::new()), |job| self.find_claim_on_equals(now, job, &mut hopeless));
            self.make_claim(now, id, found, decisions);
        }
    }

    /// Returns the leading jobs of each queue that could take devices from peers now. Other queues are
    /// visited again when one of their jobs can.
    fn heads_due(&mut self, now: Timestamp) -> Vec<JobId> {
        let scattered = self.scattered();
        let mut lines = self.queues.sharing(&scattered);
        let mut due = Vec::new();
        while due.len() < HEADS_SOUGHT_MAX
            && let Some(Reverse((_, leaf))) = lines.pop()
        {
            let heads: Vec<(QueueKey, Option<Timestamp>)> =
                self.heads_of(now, leaf).map(|job| (job.key(), self.shares_from(leaf, job))).collect();
            let can_share = |from: &Option<Timestamp>| from.is_some_and(|from| from <= now);
            if !heads.iter().any(|(_, from)| can_share(from)) && self.is_sure_of_equals(now, leaf) {
                self.queues.share_no_more(leaf);
            }
            let mut asking: BTreeSet<QueueKey> =
                scattered.iter().flat_map(|gang| self.first_of_gang(now, leaf, gang)).collect();
            for (head, from) in heads {
                asking.extend(can_share(&from).then_some(head));
                self.timers.extend(from.filter(|from| *from > now).map(|from| (from, head.job)));
            }
            due.extend(asking.into_iter().map(|key| key.job));
        }
        due.truncate(HEADS_SOUGHT_MAX);
        due
    }

    /// Returns the leading jobs of a queue that lack only devices.
    fn heads_of(&self, now: Timestamp, leaf: QueueIndex) -> impl Iterator<Item = &Job> {
        self.first_in_line(leaf).filter(move |job| self.may_start(now, leaf, job) && self.live_claim(job).is_none())
    }

    /// Returns the first few jobs of a queue that request one gang, whatever is ahead of them: whether moves
    /// make room for one gang says nothing about another.
    fn first_of_gang(&self, now: Timestamp, leaf: QueueIndex, gang: &GangShape) -> impl Iterator<Item = QueueKey> {
        let mut firsts: Vec<QueueKey> = self.queues.line(leaf).firsts(gang).map(|(_, key)| key).collect();
        firsts.sort_unstable();
        let firsts = firsts.into_iter().filter_map(|key| self.jobs.get(&key.job));
        let due = firsts.filter(move |job| self.may_start(now, leaf, job) && self.live_claim(job).is_none());
        due.take(FIRST_OF_GANG_MAX).map(Job::key)
    }

    /// Reports whether only events that put a queue in the index can advance the time at which a job has run
    /// long enough. With too little history in this queue, the end of a job in another queue can too.
    fn is_sure_of_equals(&self, now: Timestamp, leaf: QueueIndex) -> bool {
        self.is_sure_of(now, leaf) && self.first_in_line(leaf).all(|job| self.estimates.rests_on_queue(&job.spec))
    }

    /// Returns gangs that wait although enough devices are free in total, if consolidation is enabled.
    fn scattered(&self) -> Gangs {
        let root = self.cluster.topology().root();
        if !self.configuration.preemption.consolidate {
            return Gangs::new();
        }
        let open = self.queues.requests().open();
        open.filter(|gang| root.free_devices(gang.as_ref()) >= gang.devices()).cloned().collect()
    }

    /// Returns a claim for a leading job without room: to nodes from which other jobs move, or to devices
    /// that peers have held for long.
    fn find_claim_on_equals(&self, now: Timestamp, job: &Job, hopeless: &mut Gangs) -> Claimed {
        let rules = self.configuration.preemption;
        if self.has_room(now, job) || self.leads.pauses_claims(&job.spec.gang) {
            return Ok(Vec::new());
        }
        if let Some(moved) = rules.consolidate.then(|| self.consolidate(now, job, hopeless)).flatten() {
            return Ok(moved);
        }
        let leaf = self.queues.leaf(&job.spec.queue);
        if !rules.share_time {
            return Ok(Vec::new());
        }
        if self.outrun(now, leaf, job).next().is_none() {
            return self.outruns_next(now, leaf, job).map_or(Ok(Vec::new()), Err);
        }
        self.claim_by(now, &Rights::to_time(leaf, job, rules))
    }

    /// Visits a job's queue again.
    pub(crate) fn seek_for(&mut self, job: JobId) {
        if let Some(job) = self.jobs.get(&job) {
            self.queues.seek(self.queues.leaf(&job.spec.queue));
        }
    }

    /// Returns a leading job for which a peer has run long enough although its queue is missing from the
    /// index, for the invariant check.
    pub(crate) fn sharing_missed(&self) -> Option<JobId> {
        let now = self.now;
        let left_out = self.queues.active().filter(|leaf| !self.queues.is_sharing(*leaf));
        let mut heads = left_out.flat_map(|leaf| self.heads_of(now, leaf).map(move |job| (leaf, job)));
        heads.find(|(leaf, job)| self.outrun(now, *leaf, job).next().is_some()).map(|(_, job)| job.id)
    }
}
