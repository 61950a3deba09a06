//! Supervisors' reports, and the orders that answer them.

use std::collections::VecDeque;
use std::ops::Range;
use std::path::PathBuf;
use std::time::Duration;

use gangline_base::{AttemptNumber, JobId, NodeId, NodeName, Step, Timestamp};
use gangline_execution::protocol::{
    CheckpointReport, NodeState, Notice, Orders, Outcome, Rendezvous, Report, StopOrder,
};
use gangline_orchestration::{Attempt, Event, Job, ShareState};
use tracing::{debug, warn};

use super::actor::Actor;
use super::batch::Batch;
use super::handle::Reply;
use super::requests::related;
use super::troubles::Kind;
use crate::bound::bound;
use crate::notice::leaves_at;
use crate::reported::{outcome_as_end, rendezvous, reported};

/// The grace period once everything is saved: the ranks only have to exit.
const SAVED_GRACE: Duration = Duration::from_secs(2);
/// The window over which tokens per second are measured.
const TOKENS_WINDOW: Duration = Duration::from_secs(5);
/// The window over which steps per second are measured: a step may take a minute.
const STEPS_WINDOW: Duration = Duration::from_mins(10);
/// The most points of a window; a large gang reports much more often.
const POINTS_PER_WINDOW: u32 = 50;

/// How fast a job goes.
pub(super) struct Pace {
    tokens: Rate,
    steps: Rate,
}

impl Default for Pace {
    fn default() -> Pace {
        Pace { tokens: Rate::over(TOKENS_WINDOW), steps: Rate::over(STEPS_WINDOW) }
    }
}

/// A count over the last time.
struct Rate {
    window: Duration,
    points: VecDeque<(Timestamp, u64)>,
}

impl Rate {
    fn over(window: Duration) -> Rate {
        Rate { window, points: VecDeque::new() }
    }

    /// Returns the growth per second over the window that ends with this point.
    fn add(&mut self, now: Timestamp, count: u64) -> Option<f64> {
        let is_restart = self.points.back().is_some_and(|(at, before)| count < *before || now < *at);
        if is_restart {
            self.points.clear();
        }
        if self.points.back().is_none_or(|(at, _)| now.since(*at) >= self.window / POINTS_PER_WINDOW) {
            self.points.push_back((now, count));
        }
        while self.points.len() > 2 && self.points.get(1).is_some_and(|(at, _)| now.since(*at) > self.window) {
            self.points.pop_front();
        }
        let (first_at, first) = *self.points.front()?;
        let seconds = now.since(first_at).as_secs_f64();
        let grown = u32::try_from(count - first).unwrap_or(u32::MAX);
        (seconds > 0.0).then(|| f64::from(grown) / seconds)
    }
}

/// The parts of a report that are still needed after the job's record has taken the report.
struct AttemptNews {
    /// Protocol version of the report; orders are given in the same version.
    version: u32,
    state: NodeState,
    checkpoint: Option<CheckpointReport>,
    notice: Option<Notice>,
    rendezvous: Option<Rendezvous>,
    /// The sequence numbers of the report's samples.
    samples: Range<u64>,
}

impl Actor {
    pub(super) fn answer_report(
        &mut self,
        now: Timestamp,
        mut report: Report,
        reply: Reply<Orders>,
        batch: &mut Batch,
    ) {
        bound(&mut report);
        let without_promise = AttemptNews::of(&report).neutral();
        if self.journal.poison().is_some() {
            // Nothing can be stored, so nothing is acknowledged. The answer shows that the control plane
            // lives, so healthy jobs go on.
            let _ = reply.send(Ok(without_promise));
            return;
        }
        let share = (JobId(report.job), AttemptNumber(report.attempt), NodeName::new(&report.node).ok());
        let is_ended = matches!(report.state, NodeState::Ended { .. });
        let orders = self.take_report(now, report, batch);
        let staying = share.2.clone().filter(|_| is_ended).map(|node| self.staying((share.0, share.1, node)));
        let looks = self.looks.clone();
        batch.answers.push(Box::new(move |committed| match (committed, staying) {
            (Ok(()), Some(staying)) => Actor::answer_end(&looks, staying, orders, reply),
            // The supervisor may have given up waiting.
            (Ok(()), None) => drop(reply.send(Ok(orders))),
            (Err(_), _) => drop(reply.send(Ok(without_promise))),
        }));
    }

    pub(super) fn take_report(&mut self, now: Timestamp, mut report: Report, batch: &mut Batch) -> Orders {
        bound(&mut report);
        let (job, attempt) = (JobId(report.job), AttemptNumber(report.attempt));
        let said = AttemptNews::of(&report);
        let is_its = |current: &&Attempt| current.number == attempt && current.epoch.0 == report.epoch;
        let current = self.engine.job(job).and_then(|job| job.attempt()).filter(is_its);
        let name = NodeName::new(&report.node).ok();
        let node = name.as_ref().and_then(|name| self.engine.node_id(name));
        let place = node.and_then(|node| Some((node, current?.share_index(node)?)));
        let (Some((node, index)), Some(name)) = (place, name) else { return said.stale() };
        let findings = self.new_findings((job, index), &report);
        let cache = report.cache.take();
        let archives = (std::mem::take(&mut report.archives), matches!(report.state, NodeState::Ended { .. }));
        let mut reported = reported(report);
        for (address, reads) in &mut reported.report.dataset_reads {
            *reads = related(&self.options.billing.storage, &name, address, *reads);
        }
        let Some(new) = self.records.get_mut(&job).and_then(|record| record.take_report(index, reported)) else {
            return said.stale();
        };
        if !new.samples.is_empty() {
            self.report_metrics(now, (job, attempt), &new.samples, batch);
            self.rows.hold_back((job, attempt.0, index), new.first);
        }
        self.rows.jobs.insert(job);
        let within = self.contacts.hear(job, name.clone(), now, &self.options.timing);
        if let Some(checkpoint) = said.checkpoint {
            let event = Event::CheckpointCommitted { job, attempt, step: Step(checkpoint.step) };
            self.commit_checkpoint(now, job, event, batch);
        }
        self.take_findings(now, (job, node), &findings, batch);
        self.take_cache(now, node, cache, batch);
        self.take_archives(now, (job, name), archives, batch);
        self.follow_share(now, (job, attempt, node), &said.state, batch);
        self.take_notice(now, (job, node), said.notice.as_ref(), batch);
        Orders { report_within_ms: u64::try_from(within.as_millis()).ok(), ..self.orders((job, attempt, index), &said) }
    }

    /// Updates what depends on all reports of a job, once for all reports since its row was last written.
    pub(super) fn summarise_reports(&mut self, now: Timestamp) {
        for job in self.rows.jobs.clone() {
            let Some(record) = self.records.get_mut(&job).filter(|record| record.is_heard()) else { continue };
            record.summarise();
            record.meter(now, &self.engine);
            self.update_rate(now, job);
            self.look_for_stragglers(now, job);
        }
    }

    /// Drains a node that is about to leave, so that its jobs save just in time and go on elsewhere. The
    /// drain affects every job on the node, so a notice counts only if supervisors were told to look for one;
    /// ranks can't give one.
    fn take_notice(
        &mut self,
        now: Timestamp,
        (job, node): (JobId, NodeId),
        notice: Option<&Notice>,
        batch: &mut Batch,
    ) {
        let Some(notice) = notice.filter(|_| self.engine.leaves_at(node).is_none()) else { return };
        if self.options.notice_source.is_none() {
            debug!(%job, %node, "a notice that no supervisor was told to look for doesn't count");
            return;
        }
        let left = leaves_at(&notice.text, Timestamp::from_unix_nanos(notice.seen_at)).since(now);
        match self.apply(now, Event::DrainRequested { node, within: Some(left) }, batch) {
            Ok(_) => {
                let name = self.node_name(node);
                let text = format!("{name} is about to go, in {} s, by its cloud's notice", left.as_secs());
                self.records.get_mut(&job).into_iter().for_each(|record| record.note(now, text.clone()));
                self.rows.jobs.insert(job);
            }
            Err(refusal) => warn!(%node, %refusal, "a notice could not be taken in"),
        }
    }

    fn update_rate(&mut self, now: Timestamp, job: JobId) {
        let Some(record) = self.records.get_mut(&job) else { return };
        let pace = &mut self.runtimes.of(job).pace;
        record.progress.tokens_per_second = pace.tokens.add(now, record.progress.tokens);
        let steps = record.progress.step.and_then(|step| pace.steps.add(now, step));
        record.progress.steps_per_second = steps.filter(|rate| *rate > 0.0);
    }

    fn commit_checkpoint(&mut self, now: Timestamp, job: JobId, event: Event, batch: &mut Batch) {
        let Event::CheckpointCommitted { step, .. } = event else { return };
        let is_newer = self.engine.job(job).is_some_and(|job| job.checkpoint < Some(step));
        if is_newer && let Err(refusal) = self.apply(now, event, batch) {
            debug!(%job, %refusal, "a checkpoint came too late");
        }
    }

    /// Passes a change of a share's state on to the engine.
    fn follow_share(
        &mut self,
        now: Timestamp,
        (job, attempt, node): (JobId, AttemptNumber, NodeId),
        state: &NodeState,
        batch: &mut Batch,
    ) {
        let known = self.engine.job(job).and_then(|job| job.attempt());
        let known = known.and_then(|attempt| attempt.share_index(node).map(|index| attempt.states[index].clone()));
        let event = match (state, known) {
            (NodeState::Running { .. }, Some(ShareState::Launching)) => Event::ShareStarted { job, attempt, node },
            (NodeState::Ended { outcome, .. }, Some(ShareState::Launching | ShareState::Running)) => {
                Event::ShareEnded { job, attempt, node, end: outcome_as_end(outcome) }
            }
            _ => return,
        };
        if let NodeState::Ended { outcome, .. } = state {
            self.note_termination(now, (job, attempt, node), outcome);
        }
        if let Err(refusal) = self.apply(now, event, batch) {
            warn!(%job, %refusal, "a supervisor's report doesn't fit");
        }
        self.follow_trouble(now, (job, node), state);
        // The reason for waiting no longer applies.
        let has_waited = self.runtimes.of(job).wait.take().is_some();
        let runs = has_waited && matches!(state, NodeState::Running { .. });
        if let Some(record) = self.records.get_mut(&job).filter(|_| runs) {
            record.note(now, "was started".to_owned());
        }
    }

    /// Returns what the launcher needs to decide whether a supervisor stays although its ranks have ended.
    fn staying(&self, (job, attempt, node): (JobId, AttemptNumber, NodeName)) -> (PathBuf, bool) {
        let current = self.engine.job(job).and_then(|job| job.attempt()).filter(|current| current.number == attempt);
        let is_live = |state: &ShareState| !matches!(state, ShareState::Ended(_));
        let is_gang_over = !current.is_some_and(|current| current.states.iter().any(is_live));
        (self.share_folder(job, attempt, node.as_str()), is_gang_over)
    }

    /// Marks a node as unwell when ranks can't be started there, until ranks start there again.
    fn follow_trouble(&mut self, now: Timestamp, (job, node): (JobId, NodeId), state: &NodeState) {
        let Ok(name) = NodeName::new(&self.node_name(node)) else { return };
        match state {
            NodeState::Running { .. } => self.troubles.clear(&name, Kind::Ranks),
            NodeState::Ended { outcome: Outcome::Unable { message }, .. } => {
                self.troubles.note(now, &name, Kind::Ranks, format!("ranks can't be started: {message}"));
                let text = format!("could not be started on {name}, through no fault of its own: {message}");
                self.records.get_mut(&job).into_iter().for_each(|record| record.note(now, text.clone()));
            }
            _ => {}
        }
    }

    /// Returns a supervisor's orders, from the state after its report.
    fn orders(&self, (job, attempt, index): (JobId, AttemptNumber, usize), said: &AttemptNews) -> Orders {
        let live = self.engine.job(job);
        let current = live.and_then(|job| job.attempt()).filter(|current| current.number == attempt);
        let stop = live.zip(current).and_then(|(job, attempt)| self.stop_order(job, attempt));
        let record = self.records.get(&job).and_then(|record| record.last_attempt());
        let taken = record.and_then(|attempt| attempt.shares.get(index)).map(|share| share.samples_stored);
        // Samples that wait for their commit are acknowledged by a later answer, since this one may precede
        // the commit.
        let unsaved = self.rows.unsaved.get(&(job, attempt.0, index)).copied();
        let master = record.and_then(|attempt| attempt.shares.first()?.report.as_ref());
        Orders {
            version: said.version,
            stop,
            rendezvous: master.and_then(|report| report.rendezvous.as_ref()).map(rendezvous),
            samples_stored: unsaved.or(taken).unwrap_or(said.samples.start),
            end_acknowledged: matches!(said.state, NodeState::Ended { .. }),
            stay: false,
            report_within_ms: None,
        }
    }
}

impl Actor {
    fn stop_order(&self, job: &Job, attempt: &Attempt) -> Option<StopOrder> {
        let reason = attempt.stop?.to_string();
        let grace_ms = u64::try_from(self.grace_of(job, attempt).as_millis()).unwrap_or(u64::MAX);
        Some(StopOrder { grace_ms, reason })
    }

    /// Returns the time between a stop order and SIGKILL: the job's grace period, or less if one of its nodes
    /// leaves sooner or the requested checkpoint is durable already.
    fn grace_of(&self, job: &Job, attempt: &Attempt) -> Duration {
        let grace = job.spec.checkpoint.grace;
        if attempt.has_saved(job.checkpoint_at) {
            return grace.min(SAVED_GRACE);
        }
        let deadlines = attempt.shares.iter().filter_map(|share| self.engine.leaves_at(share.node));
        let until = |deadline: Timestamp| deadline.since(attempt.stop_at.unwrap_or(deadline));
        deadlines.map(until).min().map_or(grace, |left| left.min(grace))
    }
}

impl AttemptNews {
    fn of(report: &Report) -> AttemptNews {
        let count = u64::try_from(report.samples.len()).unwrap_or(u64::MAX);
        AttemptNews {
            version: report.version,
            state: report.state.clone(),
            checkpoint: report.checkpoint,
            notice: report.notice.clone(),
            rendezvous: report.rendezvous.clone(),
            samples: report.samples_from..report.samples_from.saturating_add(count),
        }
    }

    /// Returns orders to go on, which acknowledge nothing.
    fn neutral(&self) -> Orders {
        Orders {
            version: self.version,
            stop: None,
            rendezvous: self.rendezvous.clone(),
            samples_stored: self.samples.start,
            end_acknowledged: false,
            stay: false,
            report_within_ms: None,
        }
    }

    /// Returns orders for an attempt that is over: stop all its ranks at once, and keep none of its samples.
    fn stale(&self) -> Orders {
        let reason = "the attempt is over".to_owned();
        Orders {
            stop: Some(StopOrder { grace_ms: 0, reason }),
            samples_stored: self.samples.end,
            end_acknowledged: true,
            ..self.neutral()
        }
    }
}
