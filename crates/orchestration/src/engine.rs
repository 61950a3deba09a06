//! The engine's state machine: queues, whole-gang placement, backfill, drain, cancel, time limits, fault
//! budgets.
//!
//! There are three kinds of function, kept apart: `admit` (here) refuses invalid events, `evolve.rs` changes
//! the state but never decides, so that replay can't decide either, and `decide.rs` and `pass.rs` read
//! the state and decide.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use gangline_base::{AttemptNumber, Bytes, Epoch, JobId, JobSpec, NodeId, NodeName, Timestamp};

use crate::folders::CheckpointFolders;
use crate::held_back::HeldBack;
use crate::job::{Job, ShareState};
use crate::load::{Loads, UserLimits};
use crate::placement::{AdvanceReservation, Caches, Leads, NodeCache, NodeStatus, Outlook};
use crate::queueing::{Ageing, Estimates, OverLimit, QueueIndex, QueueStanding, Queues};
use crate::recovery::Spares;
use crate::sweep::Sweeps;
use crate::{Cluster, Configuration, Decision, Entry, Event, Refusal, SpentBudget, placement};

/// The engine's limits. What was admitted stays even if a limit is lowered later.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// The most jobs waiting at once.
    pub waiting_max: usize,
    /// The most stored bytes of a job, or of a sweep with all its jobs: they must fit into one journal entry.
    pub submission_bytes_max: Bytes,
    /// The most stored bytes of all live jobs together: they must fit into a snapshot.
    pub live_bytes_max: Bytes,
    /// The limits on one user's jobs and stored bytes.
    pub user: UserLimits,
    /// The most nodes known at once.
    pub nodes_max: usize,
    /// The most times a job may be requeued at its own request (exit code 94), as an orphan, or after
    /// SIGTERM to its supervisor.
    pub requeues_max: u32,
    /// The longest pause before the next attempt of a job that repeatedly fails or asks to be requeued
    /// without progress.
    pub backoff_max: Duration,
}

impl Limits {
    /// Limits that accept any submission, for simulations.
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
    /// The epoch of new placements.
    pub(crate) epoch: Epoch,
    pub(crate) cluster: Cluster,
    pub(crate) jobs: BTreeMap<JobId, Job>,
    pub(crate) configuration: Configuration,
    pub(crate) queues: Queues,
    /// Waiting jobs that may not start, outside of their queues.
    pub(crate) held_back: HeldBack,
    /// The budgets that are spent.
    pub(crate) spent_budgets: Vec<SpentBudget>,
    /// Who has waited how long, if the configuration has ageing.
    pub(crate) ageing: Ageing,
    /// The jobs that have waited longest, as of the last pass.
    pub(crate) leads: Leads,
    /// When nodes will have free devices.
    pub(crate) outlook: Outlook,
    /// Expected run times, learned from past jobs.
    pub(crate) estimates: Estimates,
    pub(crate) sweeps: Sweeps,
    /// The load of each user's live jobs.
    pub(crate) loads: Loads,
    pub(crate) folders: CheckpointFolders,
    /// The datasets that nodes have read recently.
    pub(crate) caches: Caches,
    pub(crate) spares: Spares,
    /// Nodes that are about to go away, and when.
    pub(crate) leaving: BTreeMap<NodeId, Timestamp>,
    /// Waiting jobs with a claim.
    pub(crate) claimants: BTreeSet<JobId>,
    /// When to reconsider a job. Stale entries are harmless: they cost one look.
    pub(crate) timers: BTreeSet<(Timestamp, JobId)>,
    /// Jobs whose state changed since the last decision on them.
    pub(crate) attention: BTreeSet<JobId>,
    /// Something changed that could let a waiting job start.
    pub(crate) is_placement_due: bool,
    /// Whether jobs that run may have to stop because of a spent budget.
    pub(crate) is_budget_stop_due: bool,
}

impl Engine {
    /// Creates an engine without nodes or jobs.
    #[must_use]
    pub fn new(limits: Limits) -> Self {
        Engine {
            limits,
            now: Timestamp::EPOCH,
            next_job: 1,
            epoch: Epoch::default(),
            cluster: Cluster::default(),
            jobs: BTreeMap::new(),
            configuration: Configuration::default(),
            queues: Queues::new(Configuration::default().queueing()),
            held_back: HeldBack::default(),
            spent_budgets: Vec::new(),
            ageing: Ageing::default(),
            leads: Leads::default(),
            outlook: Outlook::default(),
            estimates: Estimates::default(),
            sweeps: Sweeps::default(),
            loads: Loads::default(),
            folders: CheckpointFolders::default(),
            caches: Caches::default(),
            spares: Spares::default(),
            leaving: BTreeMap::new(),
            claimants: BTreeSet::new(),
            timers: BTreeSet::new(),
            attention: BTreeSet::new(),
            is_placement_due: false,
            is_budget_stop_due: false,
        }
    }

    /// Applies an event and decides until no decision is left. A `now` before the last one counts as the last
    /// one.
    ///
    /// # Errors
    /// A [`Refusal`] if the event is invalid in the current state, which is then unchanged.
    pub fn apply(&mut self, now: Timestamp, event: &Event) -> Result<Vec<Decision>, Refusal> {
        self.admit(event)?;
        let now = now.max(self.now);
        self.evolve_event(now, event);
        Ok(self.settle(now))
    }

    /// Applies a journal entry without deciding. After the last entry, call `apply` with
    /// [`Event::TimePassed`] to make the decisions that a crash left open. As in `apply`, a time before the
    /// last one counts as the last one.
    ///
    /// # Errors
    /// A [`Refusal`] if the entry refers to something never replayed, so the journal is not this engine's. An
    /// entry that was accepted by the rules and limits of its time is never refused by today's rules.
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

    /// Returns the id that the next submitted job gets.
    #[must_use]
    pub fn next_job_id(&self) -> JobId {
        JobId(self.next_job)
    }

    /// Returns the time of the last entry.
    #[must_use]
    pub fn now(&self) -> Timestamp {
        self.now
    }

    /// Returns the epoch of placements made now.
    #[must_use]
    pub fn epoch(&self) -> Epoch {
        self.epoch
    }

    /// Returns when to apply [`Event::TimePassed`] at the latest, if anything is waiting for a time.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Timestamp> {
        let of_job = self.timers.first().map(|(at, _)| *at);
        of_job.into_iter().chain(self.cluster.next_checkup()).chain(self.queues.next_hours()).min()
    }

    /// Returns a waiting or running job.
    #[must_use]
    pub fn job(&self, id: JobId) -> Option<&Job> {
        self.jobs.get(&id)
    }

    /// Returns every waiting or running job, by id.
    pub fn jobs(&self) -> impl ExactSizeIterator<Item = &Job> {
        self.jobs.values()
    }

    /// Returns waiting jobs in the order in which they are considered: queue by queue, the next served first.
    #[must_use]
    pub fn waiting(&self) -> Vec<JobId> {
        let order = self.leaves_in_order(self.now);
        order.into_iter().flat_map(|leaf| self.queues.pending(leaf)).map(|key| key.job).collect()
    }

    /// Returns every waiting job, in the order of its queue.
    pub(crate) fn waiting_jobs(&self) -> impl Iterator<Item = &Job> {
        let keys = self.queues.active().flat_map(|leaf| self.queues.pending(leaf));
        keys.filter_map(|key| self.jobs.get(&key.job))
    }

    /// Returns the number of waiting jobs, with those that are held back.
    #[must_use]
    pub fn waiting_count(&self) -> usize {
        self.queues.waiting() + self.held_back_count()
    }

    /// Returns the current configuration.
    #[must_use]
    pub fn configuration(&self) -> &Configuration {
        &self.configuration
    }

    /// Returns every configured queue with its share, in configuration order.
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

    /// Returns the cluster's nodes.
    #[must_use]
    pub fn cluster(&self) -> &Cluster {
        &self.cluster
    }

    /// Returns the reservation with an open window that contains a node.
    #[must_use]
    pub fn reservation_on(&self, now: Timestamp, node: &NodeName) -> Option<&AdvanceReservation> {
        self.configuration.reservation_on(now, node)
    }

    /// Returns the id of the node with this name.
    #[must_use]
    pub fn node_id(&self, name: &NodeName) -> Option<NodeId> {
        self.cluster.id_of(name)
    }

    /// Returns what the caches of datasets on a node are known to hold.
    #[must_use]
    pub fn node_caches(&self, node: NodeId) -> &[NodeCache] {
        self.caches.at(node)
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
            Event::NodeLost { node }
            | Event::NodeObserved { node, .. }
            | Event::NodeFaulty { node }
            | Event::DatasetsCached { node, .. } => {
                self.cluster.node(*node).map(|_| ()).ok_or(Refusal::UnknownNode(*node))
            }
            Event::DrainRequested { node, .. } | Event::DrainCancelled { node } => {
                let status = self.cluster.node(*node).ok_or(Refusal::UnknownNode(*node))?.status;
                if status == NodeStatus::Lost { Err(Refusal::LostNode(*node)) } else { Ok(()) }
            }
            Event::Configured(configuration) => Ok(configuration.check()?),
            Event::BudgetsSpent(_) => Ok(()),
            Event::JobSubmitted(spec) => self.admit_job(spec),
            Event::SweepSubmitted(sweep) => self.admit_sweep(sweep),
            Event::SweepCancelRequested { sweep, .. } => {
                self.sweeps.get(*sweep).map(|_| ()).ok_or(Refusal::UnknownSweep(*sweep))
            }
            Event::MetricReported { job, attempt, step, .. } => {
                self.admit_share(*job, *attempt, None).and_then(|()| self.admit_metric(*job, *step))
            }
            Event::CancelRequested { job, .. } => self.jobs.get(job).map(|_| ()).ok_or(Refusal::UnknownJob(*job)),
            Event::ChangeRequested { job, changes, .. } => self.admit_changes(*job, changes),
            Event::StragglerFound { job, attempt, node } => self.admit_share(*job, *attempt, Some(*node)),
            Event::ShareStarted { job, attempt, node } => self.admit_share(*job, *attempt, Some(*node)),
            Event::ShareEnded { job, attempt, node, .. } => self.admit_share(*job, *attempt, Some(*node)),
            Event::CheckpointCommitted { job, attempt, .. } => self.admit_share(*job, *attempt, None),
            Event::IdsSkipped { .. } | Event::EpochBegan { .. } | Event::TimePassed => Ok(()),
        }
    }

    pub(crate) fn admit_job(&self, spec: &JobSpec) -> Result<(), Refusal> {
        let waiting = self.waiting_count();
        if waiting >= self.limits.waiting_max {
            return Err(Refusal::QueueFull { waiting });
        }
        self.admit_load(&spec.submitter, 1, spec.stored_bytes())?;
        self.admit_folder(spec)?;
        self.admit_spec(spec)
    }

    /// Checks that no other live job saves into the job's checkpoint folder.
    pub(crate) fn admit_folder(&self, spec: &JobSpec) -> Result<(), Refusal> {
        let taken = self.folders.in_the_way(spec);
        taken.map_or(Ok(()), |(folder, holder)| Err(Refusal::FolderTaken { folder, holder }))
    }

    /// Checks whether this cluster could ever run the job.
    pub(crate) fn admit_spec(&self, spec: &JobSpec) -> Result<(), Refusal> {
        Self::admit_dependencies(spec)?;
        self.admit_queue(spec)?;
        placement::check_segments(&spec.gang)?;
        if self.cluster.could_hold(&spec.gang, &NodeStatus::ANY) < spec.gang.nodes.get() {
            return Err(Refusal::NeverFits(Box::new(self.cluster.fit(&spec.gang))));
        }
        self.admit_budget(spec)
    }

    /// Checks whether the job's queue exists and may ever hold the job.
    pub(crate) fn admit_queue(&self, spec: &JobSpec) -> Result<(), Refusal> {
        if !self.queues.takes_jobs(&spec.queue) {
            return Err(Refusal::UnknownQueue { queue: spec.queue.clone(), queues: self.queues.leaf_names() });
        }
        if let Some(OverLimit { queue, limit, .. }) = self.queues.beyond_limit(&spec.queue, &spec.gang) {
            let (kind, wanted) = (spec.gang.accelerator.clone(), spec.gang.devices());
            return Err(Refusal::BeyondLimit { queue, kind, wanted, limit });
        }
        Ok(())
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
