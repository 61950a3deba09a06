//! The engine's state as plain data, for a snapshot in the journal. Indices are derived, not stored.

use std::collections::BTreeMap;

use gangline_base::{Epoch, JobId, NodeId, QueueName, Timestamp};

use crate::backfill::latest_end_of;
use crate::caches::Caches;
use crate::elasticity::gang_of;
use crate::engine::{Engine, Limits};
use crate::estimate::{Estimates, History, Kin};
use crate::job::{Job, JobState};
use crate::queue::Queues;
use crate::share::held_by;
use crate::standing::Standing;
use crate::{Configuration, LossHistory, NodeSpec, Refusal, Share, Sweep, Usages};

/// Everything a new engine needs to go on where another stood.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Snapshot {
    /// The time of the last entry.
    pub at: Timestamp,
    /// The number of the next job.
    pub next_job: u64,
    /// The epoch of the control plane that took it.
    pub epoch: Epoch,
    /// The nodes; a node's id is its place in this list.
    pub nodes: Vec<(NodeSpec, Standing)>,
    /// Nodes that go, and when.
    pub leaving: Vec<(NodeId, Timestamp)>,
    /// Live jobs, by id.
    pub jobs: Vec<Job>,
    /// Sweeps with a live job, by id.
    pub sweeps: Vec<Sweep>,
    /// How the cluster is shared.
    pub configuration: Configuration,
    /// What each queue holds and used; all of them together under no name. Empty in a snapshot from before there were
    /// queues: then what jobs hold is booked anew, and nothing was used.
    pub usages: Vec<(Option<QueueName>, Usages)>,
    /// How long jobs ran, by kind.
    pub histories: Vec<(Kin, History)>,
    /// What nodes read of late, the last first.
    pub datasets: Vec<(NodeId, Vec<String>)>,
    /// How many nodes were lost, in which time.
    pub losses: LossHistory,
}

impl Engine {
    /// The state now. Two engines with equal snapshots behave alike.
    #[must_use]
    pub fn snapshot(&self) -> Snapshot {
        Snapshot {
            at: self.now,
            next_job: self.next_job,
            epoch: self.epoch,
            nodes: self.cluster.nodes().map(|node| (node.spec.clone(), node.standing)).collect(),
            leaving: self.leaving.iter().map(|(node, at)| (*node, *at)).collect(),
            jobs: self.jobs.values().cloned().collect(),
            sweeps: self.sweeps.all().cloned().collect(),
            configuration: self.queues.configuration().clone(),
            usages: self.queues.usages(),
            histories: self.estimates.histories(),
            datasets: self.caches.all(),
            losses: self.spares.history.clone(),
        }
    }

    /// An engine with the state of a snapshot. Every live job gets a look at the next `apply`.
    ///
    /// # Errors
    /// A [`Refusal`] if a job holds devices on a node that the snapshot doesn't have.
    pub fn restore(limits: Limits, snapshot: Snapshot) -> Result<Self, Refusal> {
        let mut engine = Engine::new(limits);
        engine.now = snapshot.at;
        engine.next_job = snapshot.next_job;
        engine.epoch = snapshot.epoch;
        let jobs: BTreeMap<JobId, Job> = snapshot.jobs.into_iter().map(|job| (job.id, job)).collect();
        let shares: Vec<&Share> = jobs.values().filter_map(Job::attempt).flat_map(|a| &a.shares).collect();
        engine.cluster.configure(&snapshot.configuration);
        for (spec, standing) in snapshot.nodes {
            let id = engine.cluster.join(spec, &shares);
            engine.cluster.change_standing(snapshot.at, id, |fresh| *fresh = standing);
        }
        let is_unknown = |node: &NodeId| engine.cluster.node(*node).is_none();
        if let Some(node) = shares.iter().map(|share| share.node).find(is_unknown) {
            return Err(Refusal::UnknownNode(node));
        }
        engine.queues = Queues::new(snapshot.configuration);
        engine.estimates = Estimates::restore(snapshot.histories);
        let is_booked = !snapshot.usages.is_empty();
        engine.queues.set_usages(snapshot.usages);
        for sweep in snapshot.sweeps {
            engine.loads.sweep_came(&sweep);
            engine.sweeps.insert(sweep);
        }
        engine.spares.history = snapshot.losses;
        engine.caches = Caches::restore(snapshot.datasets);
        for job in jobs.values() {
            engine.spares.note(job);
            engine.loads.job_came(job, engine.sweeps.has_own_spec(job.sweep));
            engine.sweeps.joined(job.sweep);
            match &job.state {
                JobState::Queued { not_before, .. } => {
                    engine.queues.insert(job);
                    engine.timers.insert((*not_before, job.id));
                }
                JobState::Allocated(attempt) => {
                    engine.timers.extend(job.spec.time_limit.map(|limit| (attempt.allocated_at + limit, job.id)));
                    let end = latest_end_of(&job.spec, attempt);
                    for share in &attempt.shares {
                        let node = engine.cluster.node(share.node);
                        node.into_iter().for_each(|node| engine.outlook.take(node, share, job.id, end));
                    }
                    engine.sweeps.took(job.sweep);
                    engine.cluster.recount_ordinary(&job.spec, &attempt.shares);
                    engine.queues.started(attempt.placed_at, job);
                    if !is_booked {
                        engine.queues.take(snapshot.at, &job.spec.queue, &held_by(&gang_of(&job.spec, attempt)));
                    }
                }
            }
            engine.claimants.extend(job.claim.is_some().then_some(job.id));
            engine.attention.insert(job.id);
        }
        engine.jobs = jobs;
        for id in engine.jobs.keys().copied().collect::<Vec<_>>() {
            engine.watch_budget(id);
        }
        for (node, at) in snapshot.leaving {
            engine.leave_by(node, Some(at));
        }
        engine.is_placement_due = true;
        Ok(engine)
    }
}
