//! The invariants of the engine's state; the tests check them after every event.

use std::collections::{BTreeMap, BTreeSet};

use gangline_base::{JobId, NodeId, QueueName, SweepId};

use crate::engine::Engine;
use crate::folders::CheckpointFolders;
use crate::job::{Job, JobState, gang_of, nodes_max};
use crate::load::Loads;
use crate::queueing::{QueueIndex, Queues, Resource, held_by};

/// A broken invariant: a bug in the engine.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Violation {
    /// two gangs hold the same device.
    #[error("A-5: device {device} of {node} belongs to {first} and {second}")]
    DoublyHeld {
        /// The node.
        node: NodeId,
        /// The device.
        device: u32,
        /// One holder.
        first: JobId,
        /// The other.
        second: JobId,
    },
    /// a gang holds a different number of nodes or devices than it asked for.
    #[error("A-5: {job} is placed in part")]
    PlacedInPart {
        /// The job.
        job: JobId,
    },
    /// A device is both free and held, or neither.
    #[error("the free devices of {node} are not those that nobody holds")]
    FreeListWrong {
        /// The node.
        node: NodeId,
    },
    /// A queue's books disagree with the jobs in it.
    #[error("what queue \"{queue}\" is booked to hold is not what its jobs hold")]
    QueueBooksWrong {
        /// The queue.
        queue: QueueName,
    },
    /// The booked demand below a queue differs from the sum over the queues in demand.
    #[error("the promises to the queues in demand are not added up rightly")]
    DemandWrong,
    /// More of a sweep's jobs hold devices than its limit, or the count is wrong.
    #[error("the live jobs of {sweep}, or those that hold devices, are more than may be or not what was counted")]
    SweepWrong {
        /// The sweep.
        sweep: SweepId,
    },
    /// A waiting job may preempt others, but its queue isn't in the index of queues that may.
    #[error("the right of {job} is overlooked")]
    RightMissed {
        /// The job.
        job: JobId,
    },
    /// The load of users' live jobs is counted wrongly.
    #[error("what the live jobs of users amount to is counted wrong")]
    LoadWrong,
    /// A waiting job is missing from its queue, or the queue contains a job that doesn't wait.
    #[error("the queue and the state of {job} disagree")]
    QueueWrong {
        /// The job.
        job: JobId,
    },
}

impl Engine {
    /// Checks all invariants. The cost grows with the number of jobs and devices: for tests and diagnosis.
    ///
    /// # Errors
    /// The first [`Violation`] found.
    pub fn check_invariants(&self) -> Result<(), Violation> {
        let held = self.held_devices()?;
        for node in self.cluster.nodes() {
            let of_node = held.get(&node.id);
            let is_held = |device: &u32| of_node.is_some_and(|devices| devices.contains_key(device));
            let unheld = (0..node.spec.capacity.accelerators).filter(|device| !is_held(device));
            let others = usize::try_from(node.condition.outside.accelerators).unwrap_or(usize::MAX);
            let kept = unheld.clone().count().saturating_sub(others);
            let expected: BTreeSet<u32> = unheld.take(kept).collect();
            if node.free != expected {
                return Err(Violation::FreeListWrong { node: node.id });
            }
        }
        for job in self.jobs.values() {
            let is_waiting = matches!(job.state, JobState::Queued { .. });
            let is_in_line = is_waiting && !job.is_held_back();
            let is_wrong = self.queues.contains(&job.spec.queue, &job.key()) != is_in_line
                || self.is_known_as_held_back(job.id) != (is_waiting && job.is_held_back())
                || job.after.iter().any(|it| !self.dependents(it.job).any(|dependent| dependent == job.id));
            if is_wrong {
                return Err(Violation::QueueWrong { job: job.id });
            }
        }
        let gone = self.waiting().into_iter().find(|job| !self.jobs.contains_key(job));
        gone.map_or(Ok(()), |job| Err(Violation::QueueWrong { job }))?;
        self.check_sweeps()?;
        self.check_loads()?;
        let is_missed = |leaf: &QueueIndex| !self.queues.is_seeking(*leaf) && self.seeker_of(self.now, *leaf).is_some();
        if let Some(job) = self.queues.active().find(is_missed).and_then(|leaf| self.seeker_of(self.now, leaf)) {
            return Err(Violation::RightMissed { job });
        }
        self.sharing_missed().map_or(Ok(()), |job| Err(Violation::RightMissed { job }))?;
        self.check_queues()
    }

    /// Checks that no more jobs of a sweep hold devices than its limit, and that the counts are right.
    fn check_sweeps(&self) -> Result<(), Violation> {
        let mut counted: BTreeMap<SweepId, (u32, u32)> = BTreeMap::new();
        for job in self.jobs.values() {
            if let Some(sweep) = job.sweep {
                let (live, holding) = counted.entry(sweep).or_default();
                *live += 1;
                *holding += u32::from(job.attempt().is_some());
            }
        }
        let booked = self.sweeps.counts();
        let is_beyond = |id: &SweepId| {
            let max_parallel = self.sweeps.get(*id).and_then(|sweep| sweep.rules.max_parallel);
            max_parallel.is_some_and(|max| counted.get(id).is_some_and(|(_, holding)| *holding > max.get()))
        };
        let wrong = booked.keys().chain(counted.keys());
        let wrong = wrong.copied().find(|id| booked.get(id) != counted.get(id) || is_beyond(id));
        wrong.map_or(Ok(()), |sweep| Err(Violation::SweepWrong { sweep }))
    }

    /// Checks that the users' loads equal the sums over their live jobs, and that the folders are those of live jobs.
    fn check_loads(&self) -> Result<(), Violation> {
        let mut counted = Loads::default();
        self.sweeps.all().for_each(|sweep| counted.sweep_came(sweep));
        self.jobs.values().for_each(|job| counted.job_came(job, self.sweeps.has_own_spec(job)));
        let mut folders = CheckpointFolders::default();
        self.jobs.values().for_each(|job| folders.came(job.id, &job.spec.checkpoint));
        if counted == self.loads && folders == self.folders { Ok(()) } else { Err(Violation::LoadWrong) }
    }

    /// Checks that each queue holds what the jobs in and below it hold, within its limit.
    fn check_queues(&self) -> Result<(), Violation> {
        let mut counted = Queues::new(self.configuration.queueing());
        for job in self.jobs.values() {
            let Some(attempt) = job.attempt() else { continue };
            counted.take(self.now, &job.spec.queue, &held_by(&gang_of(&job.spec, attempt)));
        }
        if self.queues.misbooked().is_some() {
            return Err(Violation::DemandWrong);
        }
        for ((spec, booked), (_, expected)) in self.queues.used().zip(counted.used()) {
            let is_same = |resource: &Resource| booked.held(resource) == expected.held(resource);
            if !booked.0.keys().chain(expected.0.keys()).all(is_same) {
                return Err(Violation::QueueBooksWrong { queue: spec.name.clone() });
            }
        }
        Ok(())
    }

    fn held_devices(&self) -> Result<BTreeMap<NodeId, BTreeMap<u32, JobId>>, Violation> {
        let mut held: BTreeMap<NodeId, BTreeMap<u32, JobId>> = BTreeMap::new();
        for job in self.jobs.values() {
            let Some(attempt) = job.attempt() else { continue };
            if !is_placed_whole(job, attempt) {
                return Err(Violation::PlacedInPart { job: job.id });
            }
            let devices = attempt.shares.iter().flat_map(|share| share.devices.iter().map(move |d| (share.node, *d)));
            for (node, device) in devices {
                if let Some(first) = held.entry(node).or_default().insert(device, job.id) {
                    return Err(Violation::DoublyHeld { node, device, first, second: job.id });
                }
            }
        }
        Ok(held)
    }
}

fn is_placed_whole(job: &Job, attempt: &crate::Attempt) -> bool {
    let gang = &job.spec.gang;
    let nodes: BTreeSet<NodeId> = attempt.shares.iter().map(|share| share.node).collect();
    u32::try_from(nodes.len()).is_ok_and(|width| (gang.nodes.get()..=nodes_max(&job.spec).get()).contains(&width))
        && attempt.shares.len() == nodes.len()
        && attempt.states.len() == nodes.len()
        && attempt.shares.iter().all(|s| u32::try_from(s.devices.len()) == Ok(gang.accelerators_per_node.get()))
}
