//! The state machine: queues, whole-gang placement, backfill, drain, cancel, time limits, fault budgets.
//!
//! Three kinds of function, kept apart: `admit` (here) refuses what doesn't apply, `evolve.rs` changes the state and
//! never decides (so that replay can't, A-3), `decide.rs` and `pass.rs` look at the state and decide.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use gangline_base::{AttemptNumber, Bytes, Epoch, JobId, JobSpec, NodeId, NodeName, Timestamp};

use crate::caches::Caches;
use crate::estimate::Estimates;
use crate::job::{Job, ShareState};
use crate::load::{Loads, UserLimits};
use crate::outlook::Outlook;
use crate::queue::{OverLimit, QueueIndex, QueueStanding, Queues};
use crate::spares::Spares;
use crate::standing::NodeStatus;
use crate::sweep::Sweeps;
use crate::{Cluster, Configuration, Decision, Entry, Event, Refusal, placement};

/// Limits of the engine. What was let in once stays, though a limit is lowered later.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Jobs waiting at once.
    pub waiting_max: usize,
    /// What a job, or a sweep with all its jobs, may take where it is stored: one entry of the journal has to hold it.
    pub submission_bytes_max: Bytes,
    /// What all live jobs together may take there: a snapshot has to hold them.
    pub live_bytes_max: Bytes,
    /// What one user may have of both.
    pub user: UserLimits,
    /// Nodes known at once.
    pub nodes_max: usize,
    /// Times a job may ask to be queued again (exit code 94, orphaned) in its life.
    pub requeues_max: u32,
    /// The longest a job that keeps failing, or asking to be queued again, without progress waits before its next attempt.
    pub backoff_max: Duration,
}

impl Limits {
    /// Nothing that is submitted is too much: for simulations.
    pub const UNLIMITED: Limits = Limits {
        waiting_max: usize::MAX,
        submission_bytes_max: Bytes(u64::MAX),
        live_bytes_max: Bytes(u64::MAX),
        user: UserLimits { jobs_max: usize::MAX, bytes_max: Bytes(u64::MAX) },
        nodes_max: 100_000,
        requeues_max: 1_000,
        backoff_max: Duration::from_mins(1),
    };
}

impl Default for Limits {
    fn default() -> Self {
        Limits {
            waiting_max: 200_000,
            submission_bytes_max: Bytes(1 << 20),
            live_bytes_max: Bytes(256 << 20),
            user: UserLimits::default(),
            ..Limits::UNLIMITED
        }
    }
}

/// The scheduler. See the crate's documentation.
#[derive(Clone, Debug)]
pub struct Engine {
    pub(crate) limits: Limits,
    pub(crate) now: Timestamp,
    pub(crate) next_job: u64,
    /// What is placed belongs to it.
    pub(crate) epoch: Epoch,
    pub(crate) cluster: Cluster,
    pub(crate) jobs: BTreeMap<JobId, Job>,
    pub(crate) queues: Queues,
    /// When nodes will have devices free.
    pub(crate) outlook: Outlook,
    /// How long jobs ran.
    pub(crate) estimates: Estimates,
    pub(crate) sweeps: Sweeps,
    /// What users have in here.
    pub(crate) loads: Loads,
    /// What nodes read of late.
    pub(crate) caches: Caches,
    pub(crate) spares: Spares,
    /// Nodes that go, and when.
    pub(crate) leaving: BTreeMap<NodeId, Timestamp>,
    /// Waiting jobs that have a claim.
    pub(crate) claimants: BTreeSet<JobId>,
    /// When to look at a job again; entries may be stale, which costs a look.
    pub(crate) timers: BTreeSet<(Timestamp, JobId)>,
    /// Jobs that something happened to since they were last decided on.
    pub(crate) attention: BTreeSet<JobId>,
    /// Something happened that could let a waiting job start.
    pub(crate) is_placement_due: bool,
}

impl Engine {
    /// An engine without nodes or jobs.
    #[must_use]
    pub fn new(limits: Limits) -> Self {
        Engine {
            limits,
            now: Timestamp::EPOCH,
            next_job: 1,
            epoch: Epoch::default(),
            cluster: Cluster::default(),
            jobs: BTreeMap::new(),
            queues: Queues::new(Configuration::default()),
            outlook: Outlook::default(),
            estimates: Estimates::default(),
            sweeps: Sweeps::default(),
            loads: Loads::default(),
            caches: Caches::default(),
            spares: Spares::default(),
            leaving: BTreeMap::new(),
            claimants: BTreeSet::new(),
            timers: BTreeSet::new(),
            attention: BTreeSet::new(),
            is_placement_due: false,
        }
    }

    /// Takes in what happened and decides until nothing is left to decide. A `now` before the last one counts as the
    /// last one.
    ///
    /// # Errors
    /// A [`Refusal`] if the event doesn't apply; the state is as before then.
    pub fn apply(&mut self, now: Timestamp, event: &Event) -> Result<Vec<Decision>, Refusal> {
        self.admit(event)?;
        let now = now.max(self.now);
        self.evolve_event(now, event);
        Ok(self.settle(now))
    }

    /// Takes a journal entry back in, deciding nothing. After the last one, `apply` of [`Event::TimePassed`] decides
    /// whatever the crash left undecided. A time before the last one counts as the last one, as it did in `apply`.
    ///
    /// # Errors
    /// A [`Refusal`] if the entry speaks of what was never replayed: the journal isn't this engine's. What was accepted by the
    /// rules and limits of its time is never refused by those of today.
    pub fn replay(&mut self, at: Timestamp, entry: &Entry) -> Result<(), Refusal> {
        let at = at.max(self.now);
        match entry {
            Entry::Event(event) => {
                match self.admit(event) {
                    // The configuration was valid when it was accepted, and the start applies the administrator's file
                    // again in any case.
                    Err(Refusal::Configuration(_)) => return Ok(()),
                    Err(refusal) if !refusal.is_by_rule() => return Err(refusal),
                    _ => self.evolve_event(at, event),
                }
            }
            Entry::Decision(decision) => {
                if !self.jobs.contains_key(&decision.job()) {
                    return Err(Refusal::UnknownJob(decision.job()));
                }
                self.evolve_decision(at, decision);
            }
        }
        Ok(())
    }

    /// The id the next submitted job gets.
    #[must_use]
    pub fn next_job_id(&self) -> JobId {
        JobId(self.next_job)
    }

    /// The time of the last entry.
    #[must_use]
    pub fn now(&self) -> Timestamp {
        self.now
    }

    /// The epoch that what is placed now belongs to.
    #[must_use]
    pub fn epoch(&self) -> Epoch {
        self.epoch
    }

    /// When to apply [`Event::TimePassed`] at the latest, if anything waits for a time.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Timestamp> {
        let of_job = self.timers.first().map(|(at, _)| *at);
        of_job.into_iter().chain(self.cluster.next_checkup()).min()
    }

    /// A waiting or running job.
    #[must_use]
    pub fn job(&self, id: JobId) -> Option<&Job> {
        self.jobs.get(&id)
    }

    /// Every waiting or running job, by id.
    pub fn jobs(&self) -> impl ExactSizeIterator<Item = &Job> {
        self.jobs.values()
    }

    /// Waiting jobs in the order they are considered: the queue that is served next first, each with all its jobs.
    #[must_use]
    pub fn waiting(&self) -> Vec<JobId> {
        let order = self.leaves_in_order(self.now);
        order.into_iter().flat_map(|leaf| self.queues.pending(leaf)).map(|key| key.job).collect()
    }

    /// Every waiting job, in the order of its queue.
    pub(crate) fn waiting_jobs(&self) -> impl Iterator<Item = &Job> {
        let keys = self.queues.active().flat_map(|leaf| self.queues.pending(leaf));
        keys.filter_map(|key| self.jobs.get(&key.job))
    }

    /// How many jobs wait.
    #[must_use]
    pub fn waiting_count(&self) -> usize {
        self.queues.waiting()
    }

    /// How the cluster is shared.
    #[must_use]
    pub fn configuration(&self) -> &Configuration {
        self.queues.configuration()
    }

    /// Every configured queue with its share, in the order of the configuration.
    #[must_use]
    pub fn queues(&self, now: Timestamp) -> Vec<QueueStanding<'_>> {
        let totals = self.cluster.totals();
        self.queues.standings(now, &totals)
    }

    pub(crate) fn leaves_in_order(&self, now: Timestamp) -> Vec<QueueIndex> {
        let totals = self.cluster.totals();
        let mut leaves: Vec<_> =
            self.queues.active().map(|leaf| (self.queues.standing(leaf, now, &totals), leaf)).collect();
        leaves.sort();
        leaves.into_iter().map(|(_, leaf)| leaf).collect()
    }

    /// The nodes.
    #[must_use]
    pub fn cluster(&self) -> &Cluster {
        &self.cluster
    }

    /// The node with this name.
    #[must_use]
    pub fn node_id(&self, name: &NodeName) -> Option<NodeId> {
        self.cluster.id_of(name)
    }

    fn admit(&self, event: &Event) -> Result<(), Refusal> {
        match event {
            Event::NodeJoined(spec) => {
                let (nodes, is_known) = (self.cluster.nodes().len(), self.cluster.id_of(&spec.name).is_some());
                if !is_known && nodes >= self.limits.nodes_max {
                    return Err(Refusal::ClusterFull { nodes });
                }
                self.cluster.admits(spec)
            }
            Event::NodeLost { node } | Event::NodeObserved { node, .. } | Event::NodeFaulty { node } => {
                self.cluster.node(*node).map(|_| ()).ok_or(Refusal::UnknownNode(*node))
            }
            Event::DrainRequested { node, .. } | Event::DrainCancelled { node } => {
                let status = self.cluster.node(*node).ok_or(Refusal::UnknownNode(*node))?.status;
                if status == NodeStatus::Lost { Err(Refusal::LostNode(*node)) } else { Ok(()) }
            }
            Event::Configured(configuration) => Ok(configuration.check()?),
            Event::JobSubmitted(spec) => self.admit_job(spec),
            Event::SweepSubmitted(sweep) => self.admit_sweep(sweep),
            Event::SweepCancelRequested { sweep, .. } => {
                self.sweeps.get(*sweep).map(|_| ()).ok_or(Refusal::UnknownSweep(*sweep))
            }
            Event::MetricReported { job, attempt, step, .. } => {
                self.admit_share(*job, *attempt, None).and_then(|()| self.admit_metric(*job, *step))
            }
            Event::CancelRequested { job, .. } => self.jobs.get(job).map(|_| ()).ok_or(Refusal::UnknownJob(*job)),
            Event::StragglerFound { job, attempt, node } => self.admit_share(*job, *attempt, Some(*node)),
            Event::ShareStarted { job, attempt, node } => self.admit_share(*job, *attempt, Some(*node)),
            Event::ShareEnded { job, attempt, node, .. } => self.admit_share(*job, *attempt, Some(*node)),
            Event::CheckpointCommitted { job, attempt, .. } => self.admit_share(*job, *attempt, None),
            Event::IdsSkipped { .. } | Event::EpochBegan { .. } | Event::TimePassed => Ok(()),
        }
    }

    pub(crate) fn admit_job(&self, spec: &JobSpec) -> Result<(), Refusal> {
        let waiting = self.queues.waiting();
        if waiting >= self.limits.waiting_max {
            return Err(Refusal::QueueFull { waiting });
        }
        self.admit_load(&spec.submitter, 1, spec.stored_bytes())?;
        self.admit_spec(spec)
    }

    /// Whether what it asks for can be had here at all.
    pub(crate) fn admit_spec(&self, spec: &JobSpec) -> Result<(), Refusal> {
        if !self.queues.takes_jobs(&spec.queue) {
            return Err(Refusal::UnknownQueue { queue: spec.queue.clone(), queues: self.queues.leaf_names() });
        }
        if let Some(OverLimit { queue, limit, .. }) = self.queues.beyond_limit(&spec.queue, &spec.gang) {
            let (kind, wanted) = (spec.gang.accelerator.clone(), spec.gang.devices());
            return Err(Refusal::BeyondLimit { queue, kind, wanted, limit });
        }
        placement::check_segments(&spec.gang)?;
        if self.cluster.could_hold(&spec.gang, &NodeStatus::ANY) < spec.gang.nodes.get() {
            return Err(Refusal::NeverFits(Box::new(self.cluster.fit(&spec.gang))));
        }
        self.admit_budget(spec)
    }

    fn admit_share(&self, job: JobId, attempt: AttemptNumber, node: Option<NodeId>) -> Result<(), Refusal> {
        let stale = Refusal::Stale { job, attempt };
        let current = self.jobs.get(&job).ok_or(Refusal::UnknownJob(job))?.attempt().ok_or(stale.clone())?;
        let is_live = match node {
            None => true,
            Some(node) => current.share_index(node).is_some_and(|i| !matches!(current.states[i], ShareState::Ended(_))),
        };
        if current.number == attempt && is_live { Ok(()) } else { Err(stale) }
    }
}
