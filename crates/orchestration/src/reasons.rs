//! Why waiting jobs are pending, computed for many jobs at once.
//!
//! A listing shows one page of possibly a hundred thousand waiting jobs, on the same thread that schedules.
//! So nothing here visits all jobs: reservations are computed once per flavour, shortages once per gang, and
//! jobs with equal requests in equal positions share one answer.

use std::collections::{BTreeMap, BTreeSet};

use gangline_base::{Flavour, GangShape, JobId, JobSpec, Priority, QueueName, SweepId, Timestamp};

use crate::engine::Engine;
use crate::job::{Job, JobState};
use crate::pass::reserves;
use crate::placement::{AdvanceReservation, Applicant, NodeStatus, Reservation};
use crate::queueing::{HoursSpent, OverLimit, QueueIndex, QueueKey, Span};
use crate::{Blocker, Node, placement};

/// The most holders named in one explanation.
const HOLDERS_NAMED_MAX: usize = 16;

/// A waiting job, or one that would wait if submitted.
pub(crate) struct Candidate<'a> {
    pub(crate) spec: &'a JobSpec,
    pub(crate) is_recovering: bool,
    pub(crate) key: QueueKey,
    pub(crate) not_before: Timestamp,
    pub(crate) sweep: Option<SweepId>,
    /// What keeps it out of its queue.
    pub(crate) held_back: Option<Blocker>,
}

impl<'a> Candidate<'a> {
    /// Returns the candidate for a job; none if the job doesn't wait.
    pub(crate) fn waiting(job: &'a Job) -> Option<Self> {
        let JobState::Queued { not_before, .. } = job.state else { return None };
        let (is_recovering, held_back) = (job.is_recovering, job.held_back_by());
        Some(Candidate { spec: &job.spec, is_recovering, key: job.key(), not_before, sweep: job.sweep, held_back })
    }

    pub(crate) fn applicant(&self) -> Applicant<'a> {
        Applicant { spec: self.spec, is_recovering: self.is_recovering }
    }
}

/// The reservations that a pass would make for one flavour, in the order in which it makes them, with the
/// jobs they are for.
#[derive(Default)]
struct Promised {
    places: Vec<(usize, QueueKey)>,
    reservations: Vec<Reservation>,
}

/// The key by which answers are shared where a gang has room: jobs with the same key have the same answer.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Alike<'a> {
    queue: &'a QueueName,
    gang: &'a GangShape,
    span: Span,
    priority: Priority,
    is_recovering: bool,
    /// The number of reservations ahead of it.
    held: usize,
}

/// Computes why jobs are pending; see the module.
pub(crate) struct Reasons<'a> {
    engine: &'a Engine,
    now: Timestamp,
    /// Leaves in the order in which they are served.
    leaves: Vec<QueueIndex>,
    promised: BTreeMap<Flavour, Promised>,
    lacks: BTreeMap<GangShape, Blocker>,
    alike: BTreeMap<Alike<'a>, Blocker>,
}

impl<'a> Reasons<'a> {
    pub(crate) fn new(engine: &'a Engine, now: Timestamp) -> Self {
        let leaves = engine.leaves_in_order(now);
        let (promised, lacks, alike) = (BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
        Reasons { engine, now, leaves, promised, lacks, alike }
    }

    /// Returns the reservations that the pass would have made before trying this job.
    pub(crate) fn reservations_before(&mut self, candidate: &Candidate<'_>) -> &[Reservation] {
        if self.is_led_by(candidate) {
            return &[];
        }
        let (flavour, own_leaf) = (candidate.spec.gang.flavour(), self.engine.queues.leaf(&candidate.spec.queue));
        let own_place = self.leaves.iter().position(|leaf| *leaf == own_leaf).unwrap_or(self.leaves.len());
        if !self.promised.contains_key(&flavour) {
            let promised = self.promised_in(&flavour);
            self.promised.insert(flavour.clone(), promised);
        }
        let Some(Promised { places, reservations }) = self.promised.get(&flavour) else { return &[] };
        &reservations[..places.partition_point(|place| *place < (own_place, candidate.key))]
    }

    fn promised_in(&self, flavour: &Flavour) -> Promised {
        let mut promised = Promised::default();
        for (place, leaf) in self.leaves.iter().enumerate() {
            let mut after = None;
            while let Some(job) = self.next_reserving(*leaf, flavour, after, promised.places.len()) {
                let reservation = self.engine.reserve(self.now, job.id, &job.spec.gang, &promised.reservations);
                promised.reservations.push(reservation);
                promised.places.push((place, job.key()));
                after = Some(job.key());
            }
        }
        promised
    }

    /// Returns the next job of a leaf that gets a reservation, given the number of existing reservations. The
    /// first is near the front of the queue; after it only large gangs get one, and those are found by an
    /// index.
    fn next_reserving(
        &self,
        leaf: QueueIndex,
        flavour: &Flavour,
        after: Option<QueueKey>,
        held: usize,
    ) -> Option<&'a Job> {
        let engine = self.engine;
        let line = engine.queues.line(leaf);
        let is_next = |job: &&Job| {
            let gang = &job.spec.gang;
            let competes = flavour.accelerator == gang.accelerator && flavour.pool == gang.pool && reserves(held, gang);
            competes && !engine.leads(job) && engine.may_start(self.now, leaf, job) && engine.could_run(&job.spec)
        };
        if held == 0 {
            return line.order().iter().filter_map(|key| engine.jobs.get(&key.job)).find(is_next);
        }
        let first_of = |keys: &'a BTreeSet<QueueKey>| {
            let keys = keys.iter().filter(|key| after.is_none_or(|after| **key > after));
            keys.filter_map(|key| engine.jobs.get(&key.job)).find(is_next)
        };
        line.largest_first()
            .take_while(|(gang, _)| reserves(held, gang))
            .filter_map(|(_, keys)| first_of(keys))
            .min_by_key(|job| job.key())
    }

    /// Returns what keeps a job from starting.
    pub(crate) fn blocker_of(&mut self, candidate: &Candidate<'a>) -> Blocker {
        let (engine, gang) = (self.engine, &candidate.spec.gang);
        if let Some(held_back) = &candidate.held_back {
            return held_back.clone();
        }
        if candidate.not_before > self.now {
            return Blocker::BackingOff { until: candidate.not_before };
        }
        let leaf = engine.queues.leaf(&candidate.spec.queue);
        if let Some(HoursSpent { queue, used, quota, until }) = engine.queues.hours_spent(self.now, leaf) {
            return Blocker::GpuHours { queue, used, quota, until };
        }
        if let Some(OverLimit { queue, held, limit }) = engine.queues.over_limit(leaf, gang) {
            return Blocker::Quota { queue, kind: gang.accelerator.clone(), wanted: gang.devices(), held, limit };
        }
        if let Some(job) = engine.leads_at_limit(leaf, gang) {
            return self.behind_at_limit(job);
        }
        if let Some(full) = engine.sweeps.full(candidate.sweep) {
            return full;
        }
        if !placement::has_room(&engine.cluster, gang, &Node::free_count) {
            return match engine.jobs.get(&candidate.key.job) {
                Some(job) => self.lack_of(job),
                None => self.lack(gang),
            };
        }
        if engine.claimants.contains(&candidate.key.job) || self.is_led_by(candidate) {
            return self.blocker_beside(candidate);
        }
        let alike = Alike {
            queue: &candidate.spec.queue,
            gang,
            span: Span::of(candidate.spec),
            priority: candidate.spec.priority,
            is_recovering: candidate.is_recovering,
            held: self.reservations_before(candidate).len(),
        };
        if let Some(known) = self.alike.get(&alike) {
            return known.clone();
        }
        let blocker = self.blocker_beside(candidate);
        self.alike.insert(alike, blocker.clone());
        blocker
    }

    /// Returns what keeps a job from starting that has room, but on nodes held for others.
    fn blocker_beside(&mut self, candidate: &Candidate<'_>) -> Blocker {
        let (engine, now, applicant) = (self.engine, self.now, candidate.applicant());
        if let Some(first) = engine.configuration.barring(now, candidate.spec).first()
            && engine.room_beside(now, &applicant, &[], &[]).is_none()
        {
            let AdvanceReservation { name, from, until, .. } = (*first).clone();
            return Blocker::Reserved { reservation: name, from, until, is_open: first.is_open(now) };
        }
        let spares = engine.spares_kept_from(now, &applicant);
        if !spares.is_empty() && engine.room_beside(now, &applicant, &[], &[]).is_none() {
            let kept = u32::try_from(spares.len()).unwrap_or(u32::MAX);
            return Blocker::Spares { kept, pool: engine.spare_pool(now, &candidate.spec.gang.flavour()) };
        }
        let claims = engine.claims_beside(candidate.key.job);
        let held = self.reservations_before(candidate);
        if engine.room_beside(now, &applicant, &claims, held).is_some() {
            return Blocker::Nothing;
        }
        let is_in_the_way =
            |held: &&Reservation| engine.room_beside(now, &applicant, &claims, std::slice::from_ref(held)).is_none();
        let first = held.iter().find(is_in_the_way).or(held.first()).or(claims.first());
        let Some((job, starts_by)) = first.map(|held| (held.job, held.at)) else { return Blocker::Nothing };
        let because = engine.jobs.get(&job).map_or(Blocker::Nothing, |first| self.lack_of(first));
        Blocker::Behind { job, starts_by, because: Box::new(because) }
    }

    /// Reports whether the candidate goes before all others because it has waited longest.
    fn is_led_by(&self, candidate: &Candidate<'_>) -> bool {
        self.engine.jobs.get(&candidate.key.job).is_some_and(|job| self.engine.leads(job))
    }

    /// Returns the blocker of a job whose queue holds back until it is below its limit for a leading job.
    fn behind_at_limit(&mut self, job: JobId) -> Blocker {
        let first = self.engine.jobs.get(&job).and_then(Candidate::waiting);
        let because = first.map_or(Blocker::Nothing, |first| self.blocker_of(&first));
        Blocker::Behind { job, starts_by: None, because: Box::new(because) }
    }

    /// Returns what a waiting job lacks, or its live claim.
    fn lack_of(&mut self, job: &Job) -> Blocker {
        match self.engine.live_claim(job) {
            Some(claim) => Blocker::Claimed { victims: claim.victims.clone(), until: claim.until },
            None => self.lack(&job.spec.gang),
        }
    }

    /// Returns what a gang without room lacks.
    fn lack(&mut self, gang: &GangShape) -> Blocker {
        if let Some(known) = self.lacks.get(gang) {
            return known.clone();
        }
        let blocker = self.engine.lack(gang);
        self.lacks.insert(gang.clone(), blocker.clone());
        blocker
    }
}

impl Engine {
    fn lack(&self, gang: &GangShape) -> Blocker {
        let ready = self.cluster.could_hold(gang, &[NodeStatus::Ready]);
        if ready < gang.nodes.get() {
            let names = |status| {
                let nodes = self.cluster.nodes().filter(move |node| node.status == status);
                nodes.filter(|n| n.could_hold_share_of(gang)).map(|n| n.spec.name.clone()).collect()
            };
            let (draining, lost) = (names(NodeStatus::Draining), names(NodeStatus::Lost));
            let suspect = names(NodeStatus::Suspect);
            return Blocker::NodesUnavailable { wanted: gang.clone(), ready, draining, lost, suspect };
        }
        let nodes_with_room = self.cluster.with_room_for(gang).count();
        if gang.topology.constrains() && nodes_with_room >= usize::try_from(gang.nodes.get()).unwrap_or(usize::MAX) {
            let best = placement::most_in_one(&self.cluster, gang, &|domain| domain.with_devices_for(gang)).into();
            return Blocker::Topology { wanted: gang.clone(), best, nodes_with_room };
        }
        let (mut free_accelerators, mut holders) = (0, BTreeSet::<JobId>::new());
        let competes = |node: &&Node| node.status == NodeStatus::Ready && node.spec.capacity.is_for(gang);
        for node in self.cluster.nodes().filter(competes) {
            free_accelerators += node.free_count();
            for holder in self.outlook.holders(node.id) {
                holders.insert(holder);
                if holders.len() > HOLDERS_NAMED_MAX {
                    holders.pop_last();
                }
            }
        }
        let holders = holders.into_iter().collect();
        Blocker::NotEnoughFree { wanted: gang.clone(), nodes_with_room, free_accelerators, holders }
    }
}
