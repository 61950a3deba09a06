//! What the books say about the engine's answers: whether a refusal was due, whether a decision was allowed and its
//! reason true, and whether anything was left undecided.

use std::time::Duration;

use gangline_base::{FaultCategory, GangShape, JobId, NodeId, Timestamp};
use gangline_orchestration::{
    Decision, Event, Fate, NodeStatus, PlaceReason, Refusal, RequeueReason, Rung, Share, ShareEnd, ShareState,
    StopReason,
};

use super::shadow::{Holding, Ours, Place, Shadow};
use super::world::{LIMITS, Verdict, ensure};

/// The kinds of refusal, as the shadow expects them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Refused {
    UnknownJob,
    UnknownNode,
    LostNode,
    Stale,
    NeverFits,
    QueueFull,
    ClusterFull,
    Sharing,
    /// The properties have no sweeps, budgets, holds or dependencies, and share their checkpoint folder, which
    /// orchestration's own tests try: never due.
    Sweep,
    /// The properties have no network: never due.
    Network,
}

fn kind_of(refusal: &Refusal) -> Refused {
    match refusal {
        Refusal::UnknownJob(_) => Refused::UnknownJob,
        Refusal::UnknownNode(_) => Refused::UnknownNode,
        Refusal::LostNode(_) => Refused::LostNode,
        Refusal::Stale { .. } => Refused::Stale,
        Refusal::NeverFits(_) => Refused::NeverFits,
        Refusal::QueueFull { .. } => Refused::QueueFull,
        Refusal::ClusterFull { .. } => Refused::ClusterFull,
        Refusal::UnknownQueue { .. } | Refusal::BeyondLimit { .. } | Refusal::Configuration(_) => Refused::Sharing,
        Refusal::Misplaced(_) | Refusal::UnevenSegments { .. } => Refused::Network,
        Refusal::UnknownSweep(_)
        | Refusal::SweepSize { .. }
        | Refusal::SweepPoint { .. }
        | Refusal::TooLarge { .. }
        | Refusal::UserJobs { .. }
        | Refusal::Stored { .. }
        | Refusal::MetricNotDue { .. }
        | Refusal::NoPrice { .. }
        | Refusal::BudgetTooSmall { .. }
        | Refusal::NotWaiting(_)
        | Refusal::FolderTaken { .. }
        | Refusal::TooManyDependencies { .. } => Refused::Sweep,
    }
}

impl Shadow {
    /// An event is refused if and only if it doesn't apply, and for the right reason.
    pub(super) fn judge_answer(&self, event: &Event, outcome: &Result<Vec<Decision>, Refusal>) -> Verdict {
        let given = outcome.as_ref().err().map(kind_of);
        let due = self.refusal_due(event);
        ensure("A-4 a refusal has its reason", given == due, || format!("{event:?}: {given:?} is not {due:?}"))
    }

    fn refusal_due(&self, event: &Event) -> Option<Refused> {
        match event {
            Event::NodeJoined(spec) => {
                let is_known = self.nodes.iter().any(|(known, _)| known.name == spec.name);
                (!is_known && self.nodes.len() >= LIMITS.nodes_max).then_some(Refused::ClusterFull)
            }
            Event::NodeLost { node }
            | Event::NodeObserved { node, .. }
            | Event::NodeFaulty { node }
            | Event::DatasetsCached { node, .. } => self.status(*node).is_none().then_some(Refused::UnknownNode),
            Event::DrainRequested { node, .. } | Event::DrainCancelled { node } => match self.status(*node) {
                None => Some(Refused::UnknownNode),
                Some(NodeStatus::Lost) => Some(Refused::LostNode),
                Some(NodeStatus::Ready | NodeStatus::Suspect | NodeStatus::Draining) => None,
            },
            Event::JobSubmitted(spec) => {
                let wanted = usize::try_from(spec.gang.nodes.get()).expect("a usize holds 32 bits");
                if self.queue().len() >= LIMITS.waiting_max {
                    Some(Refused::QueueFull)
                } else {
                    (self.fitting(&spec.gang, None).len() < wanted).then_some(Refused::NeverFits)
                }
            }
            Event::CancelRequested { job, .. } => (!self.jobs.contains_key(job)).then_some(Refused::UnknownJob),
            Event::ShareStarted { job, attempt, node }
            | Event::ShareEnded { job, attempt, node, .. }
            | Event::StragglerFound { job, attempt, node } => {
                let is_live = self.live_shares().contains(&(*job, *attempt, *node));
                self.stale_unless(*job, is_live)
            }
            Event::CheckpointCommitted { job, attempt, .. } => {
                let holding = self.jobs.get(job).and_then(Ours::holding);
                self.stale_unless(*job, holding.is_some_and(|holding| holding.attempt == *attempt))
            }
            Event::SweepSubmitted(_)
            | Event::SweepCancelRequested { .. }
            | Event::MetricReported { .. }
            | Event::ChangeRequested { .. } => Some(Refused::Sweep),
            Event::Configured(_)
            | Event::BudgetsSpent(_)
            | Event::IdsSkipped { .. }
            | Event::EpochBegan { .. }
            | Event::TimePassed => None,
        }
    }

    fn stale_unless(&self, job: JobId, is_live: bool) -> Option<Refused> {
        if !self.jobs.contains_key(&job) {
            return Some(Refused::UnknownJob);
        }
        (!is_live).then_some(Refused::Stale)
    }

    fn status(&self, node: NodeId) -> Option<NodeStatus> {
        usize::try_from(node.0).ok().and_then(|index| self.nodes.get(index)).map(|(_, status)| *status)
    }

    /// A decision is allowed by the books as they were before it, and says truly why.
    pub(super) fn judge_decision(&self, now: Timestamp, decision: &Decision) -> Verdict {
        let id = decision.job();
        let Some(job) = self.jobs.get(&id) else {
            return ensure("a job ends once", false, || format!("{decision:?}"));
        };
        let why = || format!("{decision:?} for {job:?}");
        match (decision, &job.place) {
            (Decision::Place { attempt, shares, reason, .. }, Place::Waiting { since, not_before }) => {
                let is_next = attempt.0 == job.attempts + 1;
                ensure("a placed job was free to start", is_next && *not_before <= now && !job.is_cancelled, why)?;
                if reason.kept_since.is_some() {
                    return self.judge_in_place(id, job, shares, reason);
                }
                self.judge_order(now, id, shares, reason)?;
                self.judge_shares(id, job, shares, reason.backfills.is_some())?;
                self.judge_place_reason(now.since(*since), id, job, reason)
            }
            (Decision::Stop { attempt, reason, .. }, Place::Holding(holding)) => {
                let is_due = stop_due(now, job, holding) == Some(*reason);
                ensure("A-4 a stop has its reason", is_due && *attempt == holding.attempt, why)
            }
            (Decision::Requeue { attempt, not_before, reason, .. }, Place::Holding(holding)) => {
                let is_due =
                    holding.has_ended() && *attempt == holding.attempt && fate_due(now, job, holding).is_none();
                ensure("a requeue is due", is_due, why)?;
                ensure("a pause doubles up to its limit", *not_before == now + pause_due(job, holding), why)?;
                ensure("A-4 a requeue has its reason", *reason == requeue_due(job, holding, reason), why)?;
                self.judge_remedy(id, job, holding, reason)
            }
            (Decision::End { fate, .. }, Place::Waiting { .. }) => {
                ensure("A-4 an end has its reason", job.is_cancelled && *fate == Fate::Cancelled, why)
            }
            (Decision::End { fate, .. }, Place::Holding(holding)) => {
                let is_due = holding.has_ended() && fate_due(now, job, holding) == Some(*fate);
                ensure("A-4 an end has its reason", is_due, why)
            }
            _ => ensure("a decision fits the job's state", false, why),
        }
    }

    /// A gang stays only if its nodes take jobs, and where that is expected to lose no more or nothing else is free.
    fn judge_remedy(&self, id: JobId, job: &Ours, holding: &Holding, reason: &RequeueReason) -> Verdict {
        let RequeueReason::Fault { remedy, .. } = reason else { return Ok(()) };
        let why = || format!("{id}: {remedy:?} of {holding:?}");
        let is_ready = |node: NodeId| self.status(node) == Some(NodeStatus::Ready);
        let all_ready = holding.shares.iter().all(|(share, _)| is_ready(share.node));
        let may_stay = remedy.in_place.is_some();
        ensure("it stays on nodes that take jobs", !may_stay || all_ready, why)?;
        ensure("a pause isn't spent on devices", !may_stay || pause_due(job, holding).is_zero(), why)?;
        match (remedy.rung, remedy.in_place) {
            (Rung::InPlace, in_place) => ensure("it can stay if it does", in_place.is_some(), why),
            (Rung::Elsewhere, Some(in_place)) => ensure("the cheaper way is taken", remedy.elsewhere < in_place, why),
            (Rung::Elsewhere, None) => Ok(()),
        }
    }

    /// A restart in place: the devices it had until just now, with its limit as before. The head of the line may have been
    /// promised them while the attempt ended; it is back to what it was promised before the fault.
    fn judge_in_place(&self, id: JobId, job: &Ours, shares: &[Share], reason: &PlaceReason) -> Verdict {
        let is_same =
            job.kept.as_ref().is_some_and(|(kept, since)| kept == shares && reason.kept_since == Some(*since));
        let is_free = shares.iter().all(|share| {
            let (free, cpus, memory) = self.free_on(share.node);
            share.devices.iter().all(|device| free.contains(device)) && share.cpus <= cpus && share.memory <= memory
        });
        ensure("A-5 a restart in place takes what was held", is_same && is_free && reason.waited.is_zero(), || {
            format!("{id}: {shares:?} after {:?}", job.kept)
        })
    }

    /// Only the first in line for a kind of accelerator starts, or one that doesn't delay it.
    fn judge_order(&self, now: Timestamp, id: JobId, shares: &[Share], reason: &PlaceReason) -> Verdict {
        let kind = &self.jobs[&id].spec.gang.accelerator;
        let waits_for_it = |other: &JobId| {
            let theirs = &self.jobs[other];
            theirs.spec.gang.accelerator == *kind && self.could_run(now, theirs)
        };
        let first = self.queue().into_iter().take_while(|other| *other != id).find(waits_for_it);
        let is_named = reason.backfills == first;
        ensure("A-4 a backfilled job names the first in line", is_named, || {
            format!("{id} passes {first:?}: {reason:?}")
        })?;
        let Some(first) = first else { return Ok(()) };
        let gang = &self.jobs[&first].spec.gang;
        let before = self.promise(now, gang, None);
        let after = self.promise(now, gang, Some((id, shares)));
        let is_kept = before.is_none_or(|before| after.is_some_and(|after| after <= before));
        ensure("EASY's head is never delayed", is_kept, || format!("{id} delays {first} from {before:?} to {after:?}"))
    }

    /// When a gang could start at the latest by what has a time limit, without and with one more job placed.
    pub(super) fn promise(
        &self,
        now: Timestamp,
        gang: &GangShape,
        more: Option<(JobId, &[Share])>,
    ) -> Option<Timestamp> {
        let mut held: Vec<(Option<Timestamp>, Share)> = Vec::new();
        for job in self.jobs.values() {
            let Some(holding) = job.holding() else { continue };
            let limited = job.spec.time_limit.map(|limit| holding.allocated_at + limit);
            let end = limited.into_iter().chain(holding.stop_at).min();
            let end = end.map(|end| now.max(end + job.spec.checkpoint.grace));
            held.extend(holding.shares.iter().map(|(share, _)| (end, share.clone())));
        }
        if let Some((id, shares)) = more {
            let spec = &self.jobs[&id].spec;
            let end = spec.time_limit.map(|limit| now + limit + spec.checkpoint.grace);
            held.extend(shares.iter().map(|share| (end, share.clone())));
        }
        let mut times: Vec<Timestamp> = held.iter().filter_map(|(end, _)| *end).chain([now]).collect();
        times.sort_unstable();
        let wanted = usize::try_from(gang.nodes.get()).expect("a usize holds 32 bits");
        times.into_iter().find(|time| {
            let is_held = |end: &Option<Timestamp>| end.is_none_or(|end| end > *time);
            let fits = |node: &NodeId| {
                let capacity = &self.nodes[usize::try_from(node.0).expect("a usize holds 32 bits")].0.capacity;
                let here = || held.iter().filter(|(end, share)| share.node == *node && is_held(end)).map(|(_, s)| s);
                let devices = here().flat_map(|share| &share.devices).filter(|d| **d < capacity.accelerators).count();
                let devices = u32::try_from(devices).expect("devices are few");
                let (cpus, memory): (u32, u64) = (here().map(|s| s.cpus).sum(), here().map(|s| s.memory.0).sum());
                capacity.accelerators - devices >= gang.accelerators_per_node.get()
                    && capacity.shared_cpus().saturating_sub(cpus) >= gang.cpus_per_node
                    && capacity.shared_memory().0.saturating_sub(memory) >= gang.memory_per_node.0
            };
            self.fitting(gang, Some(NodeStatus::Ready)).iter().filter(|node| fits(node)).count() >= wanted
        })
    }

    /// Whether a waiting job could run now, on ready nodes that were empty.
    fn could_run(&self, now: Timestamp, job: &Ours) -> bool {
        let Place::Waiting { not_before, .. } = job.place else { return false };
        let wanted = usize::try_from(job.spec.gang.nodes.get()).expect("a usize holds 32 bits");
        not_before <= now && self.fitting(&job.spec.gang, Some(NodeStatus::Ready)).len() >= wanted
    }

    /// A whole gang on ready nodes with room, on the lowest free devices; on the fullest nodes, unless some are held
    /// for the first in line.
    fn judge_shares(&self, id: JobId, job: &Ours, shares: &[Share], is_backfilled: bool) -> Verdict {
        let gang = &job.spec.gang;
        let wanted = usize::try_from(gang.nodes.get()).expect("a usize holds 32 bits");
        let per_node = usize::try_from(gang.accelerators_per_node.get()).expect("a usize holds 32 bits");
        let mut fullest = self.with_room(gang);
        ensure("A-5 a gang is placed on nodes with room", fullest.len() >= wanted, || format!("{id}: {shares:?}"))?;
        if is_backfilled {
            fullest.retain(|node| shares.iter().any(|share| share.node == *node));
        }
        fullest.truncate(wanted);
        fullest.sort_unstable();
        let due: Vec<Share> = fullest
            .into_iter()
            .map(|node| Share {
                node,
                devices: self.free_on(node).0.into_iter().take(per_node).collect(),
                cpus: gang.cpus_per_node,
                memory: gang.memory_per_node,
            })
            .collect();
        ensure("A-5 a gang is placed whole, best fit", shares == due, || format!("{id}: {shares:?} is not {due:?}"))
    }

    fn judge_place_reason(&self, waited: Duration, id: JobId, job: &Ours, given: &PlaceReason) -> Verdict {
        let with_room = u32::try_from(self.with_room(&job.spec.gang).len()).expect("nodes are few");
        let is_counted = match given.backfills {
            None => given.candidates == with_room,
            Some(_) => (job.spec.gang.nodes.get()..=with_room).contains(&given.candidates),
        };
        let is_true = given.waited == waited && is_counted;
        ensure("A-4 a placement has its reason", is_true, || format!("{id}: {given:?} of {with_room}"))
    }

    /// Nothing is left that the state calls for.
    pub(super) fn judge_settled(&self, now: Timestamp) -> Verdict {
        for (id, job) in &self.jobs {
            let is_settled = match &job.place {
                Place::Waiting { .. } => !job.is_cancelled,
                Place::Holding(holding) => !holding.has_ended() && stop_due(now, job, holding).is_none(),
            };
            ensure("what is due is decided", is_settled, || format!("{id} at {now:?}: {job:?}"))?;
        }
        let mut waited_for = Vec::new();
        for id in self.queue() {
            let job = &self.jobs[&id];
            let gang = &job.spec.gang;
            if waited_for.contains(&&gang.accelerator) || !self.could_run(now, job) {
                continue;
            }
            let wanted = usize::try_from(gang.nodes.get()).expect("a usize holds 32 bits");
            let is_blocked = self.with_room(gang).len() < wanted;
            ensure("the first in line starts when it fits", is_blocked, || format!("{id}: {job:?}"))?;
            waited_for.push(&gang.accelerator);
        }
        Ok(())
    }

    /// When, after `now`, something will be due without anything happening.
    pub(super) fn deadline(&self, now: Timestamp) -> Option<Timestamp> {
        let of_job = |job: &Ours| match &job.place {
            Place::Waiting { not_before, .. } => Some(*not_before),
            Place::Holding(holding) if holding.stop.is_some() => None,
            Place::Holding(holding) => job.spec.time_limit.map(|limit| holding.allocated_at + limit),
        };
        self.jobs.values().filter_map(of_job).filter(|at| *at > now).min()
    }
}

fn stop_due(now: Timestamp, job: &Ours, holding: &Holding) -> Option<StopReason> {
    let has_failed = holding.ends().any(|end| *end != ShareEnd::Succeeded);
    if holding.stop.is_some() || holding.shares.iter().all(|(_, state)| matches!(state, ShareState::Ended(_))) {
        None
    } else if job.is_cancelled {
        Some(StopReason::Cancelled)
    } else if let Some(limit) = job.spec.time_limit.filter(|limit| now >= holding.allocated_at + *limit) {
        Some(StopReason::TimeLimit(limit))
    } else {
        has_failed.then_some(StopReason::PeerEnded)
    }
}

/// How a job whose attempt is over ends; none if it is queued again.
fn fate_due(now: Timestamp, job: &Ours, holding: &Holding) -> Option<Fate> {
    if holding.ends().all(|end| *end == ShareEnd::Succeeded) {
        Some(Fate::Succeeded)
    } else if job.is_cancelled {
        Some(Fate::Cancelled)
    } else if matches!(holding.stop, Some(StopReason::TimeLimit(_))) {
        Some(Fate::TimedOut)
    } else if holding.ends().any(|end| *end == ShareEnd::DoNotRestart) {
        Some(Fate::DoNotRestart)
    } else if let Some((cause, category)) = holding.root_cause() {
        let (faults, in_a_row) = (job.faults + 1, job.faults_in_a_row_with_this());
        if faults > job.spec.recovery.max_faults {
            Some(Fate::FaultsExhausted { cause, faults })
        } else if in_a_row >= job.spec.recovery.no_progress_limit.max(1) {
            Some(Fate::NoProgress { cause, faults: in_a_row })
        } else {
            let repeats = matches!(category, FaultCategory::UserCode | FaultCategory::CudaOom | FaultCategory::HostOom);
            let ran_long = job.checkpoint.is_none() && now.since(holding.placed_at) >= Duration::from_mins(10);
            (repeats && in_a_row > 0 && !ran_long).then_some(Fate::NotRetried { cause, category })
        }
    } else {
        (job.requeues >= LIMITS.requeues_max).then_some(Fate::RequeuesExhausted { requeues: job.requeues })
    }
}

/// How long a job that is queued again stays out: it grows with every time that nothing new was saved.
fn pause_due(job: &Ours, holding: &Holding) -> Duration {
    let in_a_row = job.faults_in_a_row_with_this();
    let has_asked = holding.ends().any(|end| *end == ShareEnd::Requeue);
    let doublings = match holding.root_cause() {
        Some(_) => in_a_row.checked_sub(2),
        None => (has_asked && in_a_row > 0).then_some(job.requeues),
    };
    let longest = LIMITS.backoff_max;
    let doubled = |times| (0..times).fold(Duration::from_secs(1), |pause, _| longest.min(pause * 2)).min(longest);
    doublings.map_or(Duration::ZERO, doubled)
}

/// Why a job waits again; how it goes on after a fault is taken from the decision, and judged apart.
fn requeue_due(job: &Ours, holding: &Holding, given: &RequeueReason) -> RequeueReason {
    match (holding.root_cause(), given) {
        (Some((cause, category)), RequeueReason::Fault { remedy, .. }) => {
            let (faults, max_faults) = (job.faults + 1, job.spec.recovery.max_faults);
            RequeueReason::Fault { cause, category, faults, max_faults, remedy: *remedy }
        }
        _ if holding.ends().any(|end| *end == ShareEnd::Requeue) => RequeueReason::Asked,
        _ => RequeueReason::Orphaned,
    }
}
