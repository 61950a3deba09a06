//! How events and decisions change the state. Nothing here decides, and nothing else changes the state (A-2,
//!

use std::collections::BTreeMap;
use std::num::NonZeroU32;
use std::sync::Arc;

use gangline_base::{AttemptNumber, FaultCategory, JobId, JobSpec, NodeId, Step, SweepId, SweepSpec, Timestamp};

use crate::engine::Engine;
use crate::job::{Attempt, Job, JobState, Rollback, ShareState, gang_of, width_of};
use crate::placement::{NodeCondition, latest_end, latest_end_of};
use crate::queueing::{Queues, held_by};
use crate::recovery::lost_node;
use crate::{
    Configuration, Decision, Event, Fate, FaultCause, RequeueReason, Rung, Share, ShareEnd, StopReason, Sweep,
};

impl Engine {
    pub(crate) fn evolve_event(&mut self, now: Timestamp, event: &Event) {
        match event {
            // Changes nothing, so a tick without decisions needs no journal entry.
            Event::TimePassed => return,
            Event::NodeJoined(spec) => {
                self.observe_nodes(now);
                let held: Vec<_> = self.jobs.values().filter_map(Job::attempt).flat_map(|a| &a.shares).collect();
                let id = self.cluster.join(spec.clone(), &held);
                self.cluster.change_condition(now, id, |_| {});
                self.look_out_anew(id);
                self.is_placement_due = true;
            }
            Event::NodeLost { node } => self.lose_node(now, *node),
            Event::DrainRequested { node, within } => {
                self.cluster.change_condition(now, *node, |condition| condition.is_draining = true);
                self.leave_by(*node, within.map(|within| now + within));
                // The first waiting job may be unable to run now, so it reserves nothing and others may start.
                self.is_placement_due = true;
            }
            Event::DrainCancelled { node } => {
                let trusted = |condition: &mut NodeCondition| {
                    *condition = NodeCondition {
                        is_lost: condition.is_lost,
                        outside: condition.outside,
                        ..NodeCondition::default()
                    }
                };
                self.cluster.change_condition(now, *node, trusted);
                self.leave_by(*node, None);
                self.is_placement_due = true;
            }
            Event::NodeObserved { node, outside } => {
                self.cluster.observe(now, *node, *outside);
                self.look_out_anew(*node);
                self.is_placement_due = true;
            }
            Event::NodeFaulty { node } => self.cluster.count_fault(now, *node, FaultCategory::Hardware),
            Event::DatasetsCached { node, cache } => self.caches.report(*node, cache.clone()),
            Event::BudgetsSpent(spent) => self.evolve_spent_budgets(now, spent),
            Event::StragglerFound { job, node, .. } => self.evict_straggler(now, *job, *node),
            Event::Configured(configuration) => self.configure(now, configuration),
            Event::JobSubmitted(spec) => self.enqueue_new(now, spec.clone(), None),
            Event::SweepSubmitted(sweep) => self.enqueue_sweep(now, sweep),
            Event::SweepCancelRequested { sweep, .. } => {
                let jobs: Vec<JobId> = self.sweep_jobs(*sweep).map(|job| job.id).collect();
                jobs.into_iter().for_each(|job| self.attend(job, |job| job.is_cancelled = true));
            }
            Event::MetricReported { job, step, value, .. } => {
                self.note_metric(*job, *step, *value);
                self.attention.insert(*job);
            }
            Event::CancelRequested { job, .. } => {
                self.attend(*job, |job| job.is_cancelled = true);
            }
            Event::ChangeRequested { job, changes, .. } => self.evolve_changes(now, *job, changes),
            Event::ShareStarted { job, node, .. } => self.set_share(*job, *node, ShareState::Running),
            Event::ShareEnded { job, node, end, .. } => self.set_share(*job, *node, ShareState::Ended(end.clone())),
            Event::IdsSkipped { below } => self.next_job = self.next_job.max(below.0),
            Event::EpochBegan { epoch } => self.epoch = *epoch,
            Event::CheckpointCommitted { job, step, .. } => self.note_checkpoint(now, *job, *step),
        }
        self.now = now;
    }

    fn note_checkpoint(&mut self, now: Timestamp, id: JobId, step: Step) {
        let had_advanced = self.jobs.get(&id).is_some_and(has_advanced);
        self.attend(id, |job| {
            if let Some((attempt, width)) = job.attempt().map(|it| (it.number, width_of(it).get())) {
                job.pace.note(now, width, attempt, step);
            }
            if job.checkpoint < Some(step) {
                (job.checkpoint, job.checkpoint_at) = (Some(step), Some(now));
                job.rollback = job.rollback.filter(|rollback| rollback.until >= Some(step));
            }
        });
        // The job can now be preempted, and a waiting job may depend on that.
        if !had_advanced && self.configuration.preemption.moves_equals() {
            self.is_placement_due = true;
            self.seek_for(id);
        }
    }

    pub(crate) fn attend(&mut self, id: JobId, change: impl FnOnce(&mut Job)) {
        if let Some(job) = self.jobs.get_mut(&id) {
            change(job);
            self.attention.insert(id);
        }
    }

    fn set_share(&mut self, id: JobId, node: NodeId, state: ShareState) {
        self.attend(id, |job| {
            if let Some(attempt) = job.attempt_mut()
                && let Some(index) = attempt.share_index(node)
            {
                attempt.states[index] = state;
            }
        });
    }

    /// Recomputes when a node will have what free, after it joined or its external usage changed.
    fn look_out_anew(&mut self, id: NodeId) {
        let Some(node) = self.cluster.node(id) else { return };
        self.outlook.forget(node);
        for (job, attempt) in self.jobs.values().filter_map(|job| Some((job, job.attempt()?))) {
            let end = latest_end_of(&job.spec, attempt);
            for share in attempt.shares.iter().filter(|share| share.node == id) {
                self.outlook.take(node, share, job.id, end);
            }
        }
    }

    fn lose_node(&mut self, now: Timestamp, node: NodeId) {
        self.observe_nodes(now);
        // The departure of a drained node was expected, so it doesn't count as a loss.
        if self.cluster.node(node).is_some_and(|node| !node.condition.is_lost && !node.condition.is_draining) {
            self.cluster.count_fault(now, node, FaultCategory::Unknown);
            self.count_loss(node);
        }
        // A drain with a deadline ends once the node has gone; any other drain ends only when its
        // administrator cancels it.
        let is_due = self.leaving.contains_key(&node);
        let lost = |condition: &mut NodeCondition| {
            (condition.is_lost, condition.is_draining) = (true, condition.is_draining && !is_due)
        };
        self.cluster.change_condition(now, node, lost);
        self.leave_by(node, None);
        let end = ShareEnd::fault(FaultCause::NodeLost, now);
        let has_live_share = |job: &&Job| {
            let index = job.attempt().and_then(|attempt| attempt.share_index(node).map(|i| &attempt.states[i]));
            index.is_some_and(|state| !matches!(state, ShareState::Ended(_)))
        };
        let hit: Vec<JobId> = self.jobs.values().filter(has_live_share).map(|job| job.id).collect();
        for job in hit {
            self.set_share(job, node, ShareState::Ended(end.clone()));
        }
        self.is_placement_due = true;
    }

    fn enqueue_sweep(&mut self, now: Timestamp, spec: &Arc<SweepSpec>) {
        let id = SweepId(self.next_job_id());
        let jobs = u32::try_from(spec.grid.points()).expect("a sweep has at most a thousand jobs");
        let sweep = Sweep { id, jobs, spec: Some(spec.clone()), rules: spec.rules.clone(), rungs: BTreeMap::new() };
        self.loads.sweep_came(&sweep);
        self.sweeps.insert(sweep);
        for _ in 0..jobs {
            self.enqueue_new(now, spec.job.clone(), Some(id));
        }
    }

    fn enqueue_new(&mut self, now: Timestamp, spec: Arc<JobSpec>, sweep: Option<SweepId>) {
        let id = self.next_job_id();
        self.next_job += 1;
        let turn = self.turn_from(now, &spec);
        // The control plane has settled the dependencies on jobs that had ended.
        let after = spec.after.iter().filter(|it| self.jobs.contains_key(&it.job)).copied().collect();
        let mut job = Job { turn, sweep, after, ..Job::submitted(id, spec, now) };
        job.over_budget = self.over_budget(&job);
        self.sweeps.joined(sweep);
        self.loads.job_came(&job, sweep.is_none());
        self.folders.came(id, &job.spec.checkpoint);
        self.jobs.insert(id, job);
        self.line_up(id);
        self.attention.insert(id);
        self.is_placement_due = true;
    }

    pub(crate) fn evolve_decision(&mut self, now: Timestamp, decision: &Decision) {
        self.note_health(now, decision);
        match decision {
            Decision::Place { job, attempt, shares, reason } => {
                if reason.is_overdue {
                    self.jobs.entry(*job).and_modify(|job| job.led_at = Some(now));
                }
                self.evolve_place(now, *job, *attempt, (shares, reason.kept_since.unwrap_or(now)));
            }
            Decision::Claim { job, claim, .. } => {
                if let Some(job) = self.jobs.get_mut(job) {
                    job.claim = Some(claim.clone());
                    self.claimants.insert(job.id);
                }
            }
            Decision::Stop { job, reason, .. } => self.evolve_stop(now, *job, *reason),
            Decision::Requeue { job, not_before, reason, .. } => self.evolve_requeue(now, *job, *not_before, *reason),
            Decision::End { job, fate } => {
                self.release(now, *job);
                self.claimants.remove(job);
                if let Some(job) = self.jobs.remove(job) {
                    self.spares.forget(&job);
                    self.leave_line(&job);
                    if job.attempts > 0 {
                        self.estimates.learn(now, &job.spec, job.ran);
                    }
                    self.loads.job_went(&job, self.sweeps.has_own_spec(&job));
                    self.folders.went(job.id, &job.spec.checkpoint);
                    if let Some(sweep) = self.sweeps.left(job.sweep) {
                        self.loads.sweep_went(&sweep);
                    }
                }
                self.note_end(now, *job, fate.is_success());
                self.is_placement_due = true;
            }
        }
        self.now = now;
    }

    /// Updates the health of the nodes a job ran on, from a decision about the job.
    fn note_health(&mut self, now: Timestamp, decision: &Decision) {
        let Some(attempt) = self.jobs.get(&decision.job()).and_then(Job::attempt) else { return };
        match decision {
            Decision::Requeue { job, reason: RequeueReason::Fault { .. }, .. }
            | Decision::End {
                job,
                fate: Fate::FaultsExhausted { .. } | Fate::NoProgress { .. } | Fate::NotRetried { .. },
            } => self.cluster.note_failure(now, *job, attempt),
            Decision::End { fate: Fate::Succeeded, .. } => self.cluster.note_success(attempt),
            _ => {}
        }
    }

    /// Gives a gang its devices; for its limits, it has held them since `allocated_at`.
    fn evolve_place(
        &mut self,
        now: Timestamp,
        id: JobId,
        number: AttemptNumber,
        (shares, allocated_at): (&[Share], Timestamp),
    ) {
        let epoch = self.epoch;
        let Some(job) = self.jobs.get_mut(&id) else { return };
        self.cluster.count_ordinary(&job.spec, shares, true);
        self.caches.note(&job.spec.datasets, shares);
        let end = latest_end(&job.spec, allocated_at);
        for share in shares {
            self.cluster.take(share);
            if let Some(node) = self.cluster.node(share.node) {
                self.outlook.take(node, share, id, end);
            }
        }
        let width = u32::try_from(shares.len()).ok().and_then(NonZeroU32::new).unwrap_or(job.spec.gang.nodes);
        self.queues.remove(&job.spec, &job.key());
        if let JobState::Queued { since, .. } = job.state {
            self.ageing.remove(&job.spec, job.sweep, (since, id));
        }
        job.led_at.into_iter().for_each(|at| self.ageing.note_start(&job.spec, (at, id)));
        self.queues.take(now, &job.spec.queue, &held_by(&job.spec.gang.of_nodes(width)));
        self.queues.started(&job.spec, job.run(now));
        job.attempts = number.0;
        job.width = Some(width.get());
        (job.claim, job.kept) = (None, None);
        self.claimants.remove(&id);
        job.state = JobState::Allocated(Attempt {
            number,
            epoch,
            placed_at: now,
            allocated_at,
            shares: shares.to_vec(),
            states: vec![ShareState::Launching; shares.len()],
            stop: None,
            stop_at: None,
            straggler: None,
            checkpoint_at_start: job.checkpoint,
        });
        if let Some(limit) = job.spec.time_limit {
            self.timers.insert((allocated_at + limit, id));
        }
        job.account.metered_to = now;
        self.sweeps.took(job.sweep);
        self.spares.note(job);
        self.watch_budget(id);
    }

    fn evolve_stop(&mut self, now: Timestamp, id: JobId, reason: StopReason) {
        let Some(job) = self.jobs.get_mut(&id) else { return };
        let spec = job.spec.clone();
        let Some(attempt) = job.attempt_mut() else { return };
        (attempt.stop, attempt.stop_at) = (Some(reason), Some(now));
        let end = latest_end_of(&spec, attempt);
        for share in &attempt.shares {
            if let Some(node) = self.cluster.node(share.node) {
                self.outlook.release(node, id);
                self.outlook.take(node, share, id, end);
            }
        }
        // A reservation may come true sooner now, which lets other jobs start.
        self.is_placement_due = true;
    }

    fn evolve_requeue(&mut self, now: Timestamp, id: JobId, not_before: Timestamp, reason: RequeueReason) {
        self.release(now, id);
        let Some(job) = self.jobs.get(&id) else { return };
        let (turn, over_budget) = (self.turn_again(job, reason), self.over_budget(job));
        let Some(job) = self.jobs.get_mut(&id) else { return };
        let in_place = matches!(reason, RequeueReason::Fault { remedy, .. } if remedy.rung == Rung::InPlace);
        let keeps = in_place && over_budget.is_none();
        (job.turn, job.over_budget) = (turn, over_budget);
        job.kept = job.attempt().filter(|_| keeps).map(Attempt::kept);
        self.attention.extend(keeps.then_some(id));
        let without_progress = faults_without_progress(job);
        match reason {
            RequeueReason::Fault { cause, faults, category, .. } => {
                job.faults = faults;
                job.faults_without_progress = without_progress;
                if category == FaultCategory::Numerical {
                    job.rollback = Some(Rollback::after(job.checkpoint, cause, job.rollback));
                }
            }
            RequeueReason::Asked | RequeueReason::Orphaned | RequeueReason::Terminated => job.requeues += 1,
            RequeueReason::Unable | RequeueReason::Withdrawn | RequeueReason::SharedBudgetSpent => {}
            RequeueReason::Preempted { .. } | RequeueReason::NodeLeft { .. } | RequeueReason::Straggler { .. } => {
                job.preemptions += 1;
            }
            RequeueReason::Resized { .. } => job.resizes += 1,
        }
        if matches!(reason, RequeueReason::Preempted { .. }) {
            job.led_at = None;
        }
        job.is_recovering = lost_node(reason);
        job.state = JobState::Queued { since: now, not_before };
        self.spares.note(job);
        self.line_up(id);
        if not_before > now {
            self.timers.insert((not_before, id));
        }
        self.is_placement_due = true;
    }

    fn release(&mut self, now: Timestamp, id: JobId) {
        self.meter(now, id);
        let Some(job) = self.jobs.get(&id) else { return };
        let Some(attempt) = job.attempt() else { return };
        self.cluster.count_ordinary(&job.spec, &attempt.shares, false);
        for share in &attempt.shares {
            self.cluster.release(share);
            if let Some(node) = self.cluster.node(share.node) {
                self.outlook.release(node, id);
            }
        }
        self.queues.give_back(now, &job.spec.queue, &held_by(&gang_of(&job.spec, attempt)));
        self.queues.ended(&job.spec, job.run(attempt.placed_at));
        job.led_at.into_iter().for_each(|at| self.ageing.note_end(&job.spec, (at, id)));
        self.sweeps.gave_back(job.sweep);
        let ran = now.since(attempt.placed_at);
        if let Some(job) = self.jobs.get_mut(&id) {
            job.ran += ran;
        }
    }

    /// Rebuilds the queues: past use is kept, and what jobs hold and wait for is booked in the new queues.
    fn configure(&mut self, now: Timestamp, configuration: &Configuration) {
        let limited = self.meter_all(now);
        self.queues.meter_all_hours(now);
        let (past, hours) = (self.queues.past(now), self.queues.hours_used());
        self.queues = Queues::new(configuration.queueing());
        self.configuration = configuration.clone();
        self.cluster.configure(configuration);
        self.cluster.review(now);
        self.queues.set_usages(past);
        self.queues.set_hours(now, &hours);
        for job in self.jobs.values().filter(|job| !job.is_held_back()) {
            match &job.state {
                JobState::Queued { .. } => self.queues.insert(&job.spec, job.key()),
                JobState::Allocated(attempt) => {
                    self.queues.take(now, &job.spec.queue, &held_by(&gang_of(&job.spec, attempt)));
                    self.queues.started(&job.spec, job.run(attempt.placed_at));
                }
            }
        }
        self.age_anew();
        for id in limited {
            self.watch_budget(id);
            self.attention.insert(id);
        }
        self.is_placement_due = true;
    }
}

/// Returns the faults in a row without a newer checkpoint, if the current attempt now ends with a fault.
pub(crate) fn faults_without_progress(job: &Job) -> u32 {
    if has_advanced(job) { 0 } else { job.faults_without_progress + 1 }
}

/// Reports whether the current attempt has committed a checkpoint newer than the one it started from.
pub(crate) fn has_advanced(job: &Job) -> bool {
    job.attempt().is_some_and(|attempt| job.checkpoint > attempt.checkpoint_at_start)
}
