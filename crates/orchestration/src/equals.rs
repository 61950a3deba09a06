//! Who asks for room that equals make: by time sharing (`rotation.rs`) or consolidation (`consolidation.rs`).
//!
//! The first few of each line are asked, and for moves the first few for each gang, the line with the best standing first.
//! Only lines are looked at in which somebody may have run for long enough, or that ask for a gang that all free devices
//! together are enough for. Invariant: a line in which somebody has run for long enough is on the list; a look that finds
//! nobody takes it off until somebody has, its first jobs are others, or others run.

use std::cmp::Reverse;
use std::collections::{BTreeSet, BinaryHeap};
use std::sync::Arc;

use gangline_base::{GangShape, JobId, Timestamp};

use crate::Decision;
use crate::engine::Engine;
use crate::job::Job;
use crate::line::QueueKey;
use crate::queue::{QueueIndex, Queues};
use crate::rank::Standing;
use crate::victims::{Claimed, Rights};

/// Jobs that are looked at in one pass for whether equals make room for them.
const HEADS_SOUGHT_MAX: usize = 64;

/// Of those that ask for the same gang in one line, jobs that are looked at for whether others move for them.
const FIRST_OF_GANG_MAX: usize = 2;

/// Gangs.
pub(crate) type Gangs = BTreeSet<Arc<GangShape>>;

impl Engine {
    /// Makes claims for those first in line that equals make room for.
    pub(crate) fn claim_on_equals(&mut self, now: Timestamp, decisions: &mut Vec<Decision>) {
        let mut hopeless = Gangs::new();
        for id in self.heads_due(now) {
            let found =
                self.jobs.get(&id).map_or(Ok(Vec::new()), |job| self.find_claim_on_equals(now, job, &mut hopeless));
            self.make_claim(now, id, found, decisions);
        }
    }

    /// The first of each line who may take devices from equals: those who could now. The others are looked at again when
    /// they can.
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

    /// The first of a line that only devices are in the way of.
    fn heads_of(&self, now: Timestamp, leaf: QueueIndex) -> impl Iterator<Item = &Job> {
        self.first_in_line(leaf).filter(move |job| self.may_start(now, leaf, job) && self.live_claim(job).is_none())
    }

    /// The first few of a line that ask for one gang, whoever is before them: what moves make room for one gang says nothing
    /// of another.
    fn first_of_gang(&self, now: Timestamp, leaf: QueueIndex, gang: &GangShape) -> impl Iterator<Item = QueueKey> {
        let mut firsts: Vec<QueueKey> = self.queues.line(leaf).firsts(gang).map(|(_, key)| key).collect();
        firsts.sort_unstable();
        let firsts = firsts.into_iter().filter_map(|key| self.jobs.get(&key.job));
        let due = firsts.filter(move |job| self.may_start(now, leaf, job) && self.live_claim(job).is_none());
        due.take(FIRST_OF_GANG_MAX).map(Job::key)
    }

    /// Whether nothing but what puts a line on the list brings forward when somebody has run for long enough: an end in
    /// another queue may, where too few are known of this one.
    fn is_sure_of_equals(&self, now: Timestamp, leaf: QueueIndex) -> bool {
        self.is_sure_of(now, leaf) && self.first_in_line(leaf).all(|job| self.estimates.rests_on_queue(&job.spec))
    }

    /// Gangs that wait though as many devices are free as they take, if jobs move for them.
    fn scattered(&self) -> Gangs {
        let root = self.cluster.topology().root();
        if !self.queues.configuration().preemption.consolidate {
            return Gangs::new();
        }
        let open = self.queues.requests.open();
        open.filter(|gang| root.free_devices(gang.as_ref()) >= gang.devices()).cloned().collect()
    }

    /// A claim for one of the first in line, who has no room: to what others leave for other nodes, or to what equals leave
    /// who have had it for long.
    fn find_claim_on_equals(&self, now: Timestamp, job: &Job, hopeless: &mut Gangs) -> Claimed {
        let rules = self.queues.configuration().preemption;
        if self.has_room(now, job) {
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

    /// Looks at a job's line again.
    pub(crate) fn seek_for(&mut self, job: JobId) {
        if let Some(job) = self.jobs.get(&job) {
            self.queues.seek(self.queues.leaf(&job.spec.queue));
        }
    }

    /// A line that isn't on the list though one of its first has somebody who has run for long enough, for the invariant
    /// check.
    pub(crate) fn sharing_missed(&self) -> Option<JobId> {
        let now = self.now;
        let left_out = self.queues.active().filter(|leaf| !self.queues.is_sharing(*leaf));
        let mut heads = left_out.flat_map(|leaf| self.heads_of(now, leaf).map(move |job| (leaf, job)));
        heads.find(|(leaf, job)| self.outrun(now, *leaf, job).next().is_some()).map(|(_, job)| job.id)
    }
}

impl Queues {
    /// Lines in which somebody may have run for long enough, and those that ask for one of these gangs, the best standing
    /// first.
    fn sharing(&self, gangs: &Gangs) -> BinaryHeap<Reverse<(Standing, QueueIndex)>> {
        let mut lines: BTreeSet<QueueIndex> = self.sharing.clone();
        lines.extend(gangs.iter().flat_map(|gang| self.requests.open_lines(gang)));
        let lines = lines.into_iter().filter(|line| self.is_looked_at(*line));
        lines.map(|line| Reverse((self.kept_standing(line), line))).collect()
    }

    fn is_sharing(&self, leaf: QueueIndex) -> bool {
        self.sharing.contains(&leaf) || !self.is_looked_at(leaf) || !self.configuration().preemption.share_time
    }

    fn share_no_more(&mut self, leaf: QueueIndex) {
        self.sharing.remove(&leaf);
    }
}
