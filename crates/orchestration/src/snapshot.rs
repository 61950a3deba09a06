//! The engine's state as plain data, for a snapshot in the journal. Indices are derived, not stored.

use std::collections::BTreeMap;

use gangline_base::{Epoch, JobId, NodeId, QueueName, Timestamp};

use crate::engine::{Engine, Limits};
use crate::job::{Job, JobState, gang_of};
use crate::placement::{Caches, NodeCache, NodeCondition, latest_end_of};
use crate::queueing::{Estimates, History, Kin, Queues, held_by};
use crate::{Configuration, HoursUsed, LossHistory, NodeSpec, Refusal, Share, SpentBudget, Sweep, Usages};

/// Everything a new engine needs to continue from this state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Snapshot {
    /// The time of the last entry.
    pub at: Timestamp,
    /// The number of the next job.
    pub next_job: u64,
    /// The epoch of the control plane that took the snapshot.
    pub epoch: Epoch,
    /// The nodes; a node's id is its index in this list.
    pub nodes: Vec<(NodeSpec, NodeCondition)>,
    /// Nodes that are about to go away, and when.
    pub leaving: Vec<(NodeId, Timestamp)>,
    /// Live jobs, by id.
    pub jobs: Vec<Job>,
    /// Sweeps with a live job, by id.
    pub sweeps: Vec<Sweep>,
    /// The configuration.
    pub configuration: Configuration,
    /// What each queue holds and has used; the root queue has no name. Empty in snapshots from before queues
    /// existed: then what jobs hold is booked anew, and past use is zero.
    pub usages: Vec<(Option<QueueName>, Usages)>,
    /// The GPU-hours that queues with a quota of them have used.
    pub hours: Vec<(QueueName, HoursUsed)>,
    /// Past run times, by kind of job.
    pub histories: Vec<(Kin, History)>,
    /// Datasets that each node read recently, the latest first.
    pub datasets: Vec<(NodeId, Vec<String>)>,
    /// What the caches of datasets on each node hold.
    pub caches: Vec<(NodeId, Vec<NodeCache>)>,
    /// The budgets that are spent.
    pub spent_budgets: Vec<SpentBudget>,
    /// How many nodes were lost over which node-time.
    pub losses: LossHistory,
}

impl Engine {
    /// Returns the current state. Engines with equal snapshots behave alike.
    #[must_use]
    pub fn snapshot(&self) -> Snapshot {
        Snapshot {
            at: self.now,
            next_job: self.next_job,
            epoch: self.epoch,
            nodes: self.cluster.nodes().map(|node| (node.spec.clone(), node.condition)).collect(),
            leaving: self.leaving.iter().map(|(node, at)| (*node, *at)).collect(),
            jobs: self.jobs.values().cloned().collect(),
            sweeps: self.sweeps.all().cloned().collect(),
            configuration: self.configuration.clone(),
            usages: self.queues.usages(),
            hours: self.queues.hours_used(),
            histories: self.estimates.histories(),
            datasets: self.caches.all(),
            caches: self.caches.all_held(),
            spent_budgets: self.spent_budgets.clone(),
            losses: self.spares.history.clone(),
        }
    }

    /// Restores an engine from a snapshot. The next `apply` considers every live job.
    ///
    /// # Errors
    /// A [`Refusal`] if a job holds devices on a node that is missing from the snapshot.
    pub fn restore(limits: Limits, snapshot: Snapshot) -> Result<Self, Refusal> {
        let mut engine = Engine::new(limits);
        engine.now = snapshot.at;
        engine.next_job = snapshot.next_job;
        engine.epoch = snapshot.epoch;
        let jobs: BTreeMap<JobId, Job> = snapshot.jobs.into_iter().map(|job| (job.id, job)).collect();
        let shares: Vec<&Share> = jobs.values().filter_map(Job::attempt).flat_map(|a| &a.shares).collect();
        engine.cluster.configure(&snapshot.configuration);
        for (spec, condition) in snapshot.nodes {
            let id = engine.cluster.join(spec, &shares);
            engine.cluster.change_condition(snapshot.at, id, |fresh| *fresh = condition);
        }
        let is_unknown = |node: &NodeId| engine.cluster.node(*node).is_none();
        if let Some(node) = shares.iter().map(|share| share.node).find(is_unknown) {
            return Err(Refusal::UnknownNode(node));
        }
        engine.queues = Queues::new(snapshot.configuration.queueing());
        engine.configuration = snapshot.configuration;
        engine.estimates = Estimates::restore(snapshot.histories);
        let is_booked = !snapshot.usages.is_empty();
        engine.queues.set_usages(snapshot.usages);
        engine.queues.set_hours(snapshot.at, &snapshot.hours);
        for sweep in snapshot.sweeps {
            engine.loads.sweep_came(&sweep);
            engine.sweeps.insert(sweep);
        }
        engine.spares.history = snapshot.losses;
        engine.spent_budgets = snapshot.spent_budgets;
        engine.caches = Caches::restore(snapshot.datasets, snapshot.caches);
        for job in jobs.values() {
            engine.spares.note(job);
            engine.loads.job_came(job, engine.sweeps.has_own_spec(job));
            engine.folders.came(job.id, &job.spec.checkpoint);
            engine.sweeps.joined(job.sweep);
            match &job.state {
                JobState::Queued { not_before, .. } => {
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
                    engine.queues.started(&job.spec, job.run(attempt.placed_at));
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
            if engine.jobs[&id].attempt().is_none() {
                engine.line_up(id);
            }
            engine.watch_budget(id);
        }
        engine.age_anew();
        for (node, at) in snapshot.leaving {
            engine.leave_by(node, Some(at));
        }
        (engine.is_placement_due, engine.is_budget_stop_due) = (true, true);
        Ok(engine)
    }
}
