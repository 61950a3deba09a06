//! The loop of the service's thread: gather requests, apply them, commit once, then answer and act.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender};
use std::time::Duration;

use gangline_api as api;
use gangline_base::{AttemptNumber, JobId, NodeId, NodeName, Principal, Timestamp};
use gangline_execution::protocol::SupervisorSpec;
use gangline_orchestration::{Decision, Engine, Entry, Event, Refusal};
use tracing::{error, info};

use super::allocations::Allocations;
use super::archives::Archives;
use super::audit::Audit;
use super::batch::{Batch, REQUESTS_PER_BATCH_MAX, Rows};
use super::capacities::Capacities;
use super::clock::{SteadyClock, Stopwatch};
use super::contacts::Contacts;
use super::dataset_caches::ExpectedDatasets;
use super::handle::{Reply, Request};
use super::heal::Healing;
use super::housekeeping::Housekeeping;
use super::known::KnownKeys;
use super::looks::{Look, Looking};
use super::overheads::failure_of;
use super::requests::requests_made;
use super::runtime::Runtimes;
use super::survey::{HasJobs, Surveyed};
use super::troubles::Troubles;
use super::waiting::Changing;
use super::{Error, Options};
use gangline_store::codec::Noted;
use gangline_store::db::{self, Journal, Reader};
use gangline_store::model::{JobRecord, RequestKey};
use gangline_store::ports;

/// The longest time that a stop waits for its snapshot. Without the snapshot, the next start replays more
/// entries.
const LAST_SNAPSHOT_MAX: Duration = Duration::from_secs(20);
/// The longest sleep, and so the longest delay until a timer or a lost supervisor is noticed.
const TICK: Duration = Duration::from_millis(200);
/// Time between two syncs of the journal's anchor, which make it survive a power cut.
const ANCHOR_SYNC_EVERY: Duration = Duration::from_secs(1);
/// The longest time that read-model rows wait for the next commit.
const ROWS_WAIT_MAX: Duration = Duration::from_millis(500);
/// The fewest entries between two snapshots; a start replays about this many.
const ENTRIES_PER_SNAPSHOT: u64 = 10_000;

/// Returns the number of entries after which a snapshot is due. A snapshot holds every live job, so its
/// interval grows with their number: writing snapshots then never takes more than a fixed part of the time,
/// and a start replays about as many entries as it reads jobs.
pub(super) fn entries_per_snapshot(live_jobs: usize) -> u64 {
    u64::try_from(live_jobs).unwrap_or(u64::MAX).max(ENTRIES_PER_SNAPSHOT)
}

/// The service's state, owned by its thread.
pub(super) struct Actor {
    pub(super) options: Options,
    pub(super) engine: Engine,
    pub(super) journal: Journal,
    /// Reads durable state, to look up answers stored under idempotency keys.
    pub(super) reader: Reader,
    /// Records of live jobs, and of jobs that end in the current batch.
    pub(super) records: BTreeMap<JobId, JobRecord>,
    pub(super) rows: Rows,
    /// When each supervisor last reported.
    pub(super) contacts: Contacts,
    pub(super) runtimes: Runtimes,
    pub(super) launches: SyncSender<Vec<SupervisorSpec>>,
    /// Shares whose supervisor the launching thread has not started yet; their silence is expected.
    pub(super) launching: BTreeSet<(JobId, AttemptNumber, NodeName)>,
    /// Gangs that couldn't be started yet, and when to try again.
    pub(super) relaunches: Vec<(Timestamp, Vec<SupervisorSpec>)>,
    pub(super) surveyed: Surveyed,
    /// Attempts of which the launcher's system may say how their allocations ended.
    pub(super) allocations: Allocations,
    /// Whether any job waits or runs, as the surveying thread is told.
    pub(super) has_jobs: HasJobs,
    /// The last fault that checks found on each node.
    pub(super) found: BTreeMap<NodeId, String>,
    /// Queue of operations that may block; `looking` lists the shares for which one is under way.
    pub(super) looks: SyncSender<Look>,
    pub(super) looking: Looking,
    /// Idempotency keys under which an answer may be stored.
    pub(super) known: KnownKeys,
    pub(super) troubles: Troubles,
    pub(super) audit: Audit,
    pub(super) capacities: Capacities,
    pub(super) archives: Archives,
    pub(super) expected: ExpectedDatasets,
    pub(super) rows_since: Option<Timestamp>,
    pub(super) entries_since_snapshot: u64,
    /// The time of the last journal entry before this start.
    pub(super) last_seen: Timestamp,
    /// The state of the thread that writes snapshots and archives records.
    pub(super) housekeeping: Housekeeping,
    pub(super) watched_at: Timestamp,
    pub(super) anchor_synced_at: Timestamp,
    /// When the launcher was last told which gangs wait.
    pub(super) demand_told_at: Timestamp,
}

impl Actor {
    /// Runs until asked to stop. Returns the reason as an error if it ends on its own.
    pub(super) fn run(mut self, requests: &Receiver<Request>) -> Result<(), String> {
        let mut clock = SteadyClock::new((self.options.clock)().max(self.engine.now()));
        let mut watch = Stopwatch::start();
        let mut healing = Healing::default();
        loop {
            let first = match requests.recv_timeout(TICK) {
                Ok(request) => Some(request),
                Err(RecvTimeoutError::Timeout) => None,
                Err(RecvTimeoutError::Disconnected) => break,
            };
            let now = clock.at((self.options.clock)(), watch.elapsed());
            if self.turn(now, first.into_iter().chain(requests.try_iter())) {
                break;
            }
            self = self.survive_failure(now, &mut healing)?;
        }
        self.leave_snapshot(requests, LAST_SNAPSHOT_MAX);
        info!("the control plane has stopped; running jobs go on under their supervisors");
        Ok(())
    }

    /// Runs one round: takes in requests, applies what is due by now, commits and answers. Returns true if a
    /// stop was requested.
    pub(super) fn turn(&mut self, now: Timestamp, requests: impl Iterator<Item = Request>) -> bool {
        let mut batch = Batch::default();
        for request in requests.take(REQUESTS_PER_BATCH_MAX) {
            batch.must_commit |= matches!(request, Request::Stop);
            self.handle(now, request, &mut batch);
            if batch.is_full() {
                break;
            }
        }
        let is_stopping = batch.must_commit;
        self.tick(now, &mut batch);
        self.note_capacities(now, &mut batch);
        self.finish(now, batch);
        self.has_jobs.store(self.engine.jobs().len() > 0, Ordering::Relaxed);
        is_stopping
    }

    fn handle(&mut self, now: Timestamp, request: Request, batch: &mut Batch) {
        let (by, key, request) = match request {
            Request::Asked { by, key, request } => (by, key, *request),
            request => (Principal::Service, None, request),
        };
        batch.by = by;
        self.handle_asked(now, (key, request), batch);
        batch.by = Principal::Service;
    }

    fn handle_asked(&mut self, now: Timestamp, (key, request): (Option<RequestKey>, Request), batch: &mut Batch) {
        match request {
            Request::Submit { spec, reply } => self
                .change(batch, key, reply, |actor, batch| actor.submit(now, *spec, batch).map(api::Answer::Submitted)),
            Request::Cancel { job, by, reply } => {
                self.change(batch, key, reply, |actor, batch| actor.cancel(now, job, by, batch));
            }
            Request::Change { job, changes, by, reply } => {
                self.change(batch, key, reply, |actor, batch| {
                    actor.change_job(now, Changing { job, changes, by }, batch)
                });
            }
            Request::Resume { resumption, reply } => {
                self.change(batch, key, reply, |actor, batch| actor.resume_job(now, resumption, batch));
            }
            Request::SubmitSweep { sweep, reply } => self.change(batch, key, reply, |actor, batch| {
                actor.submit_sweep(now, *sweep, batch).map(api::Answer::SweepSubmitted)
            }),
            Request::CancelSweep { sweep, by, reply } => {
                self.change(batch, key, reply, |actor, batch| actor.cancel_sweep(now, sweep, by, batch));
            }
            Request::DryRunSweep { sweep, reply } => {
                Self::answer_query(batch, reply, self.dry_run_sweep(now, &sweep));
            }
            Request::Drain { node, wish, reply } => {
                self.change(batch, key, reply, |actor, batch| actor.drain(now, &node, wish, batch));
            }
            Request::AgentFound { node, finding, reply } => {
                let taken = self.agent_found(now, &node, &finding, batch);
                Self::answer_query(batch, reply, taken);
            }
            Request::AgentCached { node, cache, reply } => {
                let answer = self.agent_cached(now, (&node, cache), batch);
                Self::answer_query(batch, reply, answer);
            }
            Request::AgentFetched { node, fetched, reply } => {
                let taken = self.agent_fetched(now, (&node, fetched), batch);
                Self::answer_durable(batch, reply, taken);
            }
            Request::BudgetsSpent { spent, reply } => {
                let taken = self.budgets_spent(now, spent, batch);
                Self::answer_query(batch, reply, taken);
            }
            Request::Configure { sharing, reply } => {
                self.change(batch, key, reply, |actor, batch| actor.configure(now, *sharing, batch));
            }
            Request::Report { report, reply } => self.answer_report(now, *report, reply, batch),
            Request::Launched { gang } => self.launched(now, gang, batch),
            Request::Looked { share, found } => self.looked(now, &share, found, batch),
            Request::Surveyed { survey, allocations } => {
                self.surveyed(now, survey, batch);
                self.take_allocations(now, allocations, batch);
            }
            // Whoever asked may have stopped.
            Request::CodeInUse { reply } => drop(reply.send(self.code_in_use())),
            Request::Note { notes, reply } => self.note(now, (notes, reply), batch),
            Request::Remove { removals, reply } => self.remove(removals, reply, batch),
            Request::DryRun { spec, reply } => Self::answer_query(batch, reply, self.dry_run(now, &spec)),
            Request::Explain { job, reply } => Self::answer_query(batch, reply, self.explain(now, job)),
            Request::WaitReasons { jobs, reply } => {
                Self::answer_query(batch, reply, Ok(self.wait_reasons(now, &jobs)));
            }
            Request::Nodes { reply } => Self::answer_query(batch, reply, Ok(self.node_list(now))),
            Request::Queues { reply } => Self::answer_query(batch, reply, Ok(self.queue_list(now))),
            Request::Kept { kept } => self.kept(*kept),
            Request::Health { reply } => Self::answer_query(batch, reply, Ok(self.health())),
            // An asked request can't contain another one, and `turn` handles a stop.
            Request::Asked { .. } | Request::Stop => {}
        }
    }

    /// Queues the answer to a query until the commit. After a failed commit it is sent all the same.
    fn answer_query<T: Send + 'static>(batch: &mut Batch, reply: Reply<T>, answer: Result<T, Error>) {
        batch.answers.push(Box::new(move |_| {
            // The caller may have given up waiting.
            let _ = reply.send(answer);
        }));
    }

    /// Answers once the batch is on disk.
    fn answer_durable<T: Send + 'static>(batch: &mut Batch, reply: Reply<T>, answer: Result<T, Error>) {
        batch.answers.push(Box::new(move |committed| {
            let _ = reply.send(committed.map_err(Clone::clone).and(answer));
        }));
    }

    fn tick(&mut self, now: Timestamp, batch: &mut Batch) {
        if self.journal.poison().is_some() {
            return;
        }
        if now < self.anchor_synced_at || now.since(self.anchor_synced_at) >= ANCHOR_SYNC_EVERY {
            self.journal.sync_anchor();
            self.anchor_synced_at = now;
        }
        self.relaunch(now, batch);
        self.tell_demand(now);
        self.watch(now);
        self.evict_stragglers(now, batch);
        self.remove_nodes(now, batch);
        if self.engine.next_deadline().is_some_and(|at| at <= now)
            && let Err(refusal) = self.apply(now, Event::TimePassed, batch)
        {
            error!(%refusal, "time could not pass");
        }
    }

    /// Applies an event, journals it with its decisions, and prepares to carry the decisions out.
    pub(super) fn apply(&mut self, now: Timestamp, event: Event, batch: &mut Batch) -> Result<Vec<Decision>, Refusal> {
        let decisions = self.engine.apply(now, &event)?;
        self.capacities.mind(&event);
        if event != Event::TimePassed || !decisions.is_empty() {
            batch.push(now, &Entry::Event(event));
        }
        for decision in &decisions {
            batch.push(now, &Entry::Decision(decision.clone()));
            self.follow(now, decision, batch);
        }
        Ok(decisions)
    }

    /// Updates the record of the decision's job, and queues the launches that follow once the decision is
    /// durable.
    pub(super) fn follow(&mut self, now: Timestamp, decision: &Decision, batch: &mut Batch) {
        let id = decision.job();
        let Some(record) = self.records.get_mut(&id) else {
            error!(job = %id, "a decision is about a job without a record");
            return;
        };
        record.summarise();
        let closed = record.closing(decision);
        if let Some(closed) = &closed {
            batch.push_closed(now, closed);
            self.contacts.forget(id);
            self.archives.forget(id);
            self.runtimes.forget(id);
        }
        let booked = record.follow_and_book(now, decision, &self.engine);
        let asked = closed.and_then(|closed| requests_made(record, &closed, &booked, &self.options.billing.storage));
        let failure = Some(decision).filter(|decision| matches!(decision, Decision::End { .. }));
        let failure = failure.and_then(|_| failure_of(record, self.options.billing.people.as_ref()));
        self.rows.ledger.extend(booked.into_iter().map(|entry| (record.queue.clone(), entry)));
        record.price_attempt(|node| self.options.price_of(node));
        if matches!(decision, Decision::Place { .. }) && self.options.launcher.allocates() {
            record.await_allocation();
        }
        info!(job = %id, "{}", record.because);
        self.rows.jobs.insert(id);
        failure.into_iter().for_each(|failure| self.note_for_bills(now, Noted::Incident(failure), batch));
        asked.into_iter().for_each(|asked| self.note_for_bills(now, Noted::Requests(asked), batch));
        self.tell(now, decision, batch);
        if let Decision::Place { job, attempt, shares, .. } = decision {
            let specs = self.supervisor_specs(*job, *attempt, shares);
            for spec in &specs {
                if let Ok(node) = NodeName::new(&spec.node) {
                    self.contacts.hear(*job, node, now, &self.options.timing);
                }
            }
            batch.launches.push(specs);
        }
    }

    /// Commits the batch if anything in it must be durable, then answers and launches gangs.
    pub(super) fn finish(&mut self, now: Timestamp, batch: Batch) {
        let poison = self.journal.poison().map(|cause| Error::Poisoned { cause: cause.to_owned() });
        let is_due = self.rows_since.is_some_and(|since| now < since || now.since(since) >= ROWS_WAIT_MAX);
        if !self.rows.is_empty() && self.rows_since.is_none() {
            self.rows_since = Some(now);
        }
        let is_waited_for = !self.rows.answers.is_empty() || !self.rows.removals.is_empty();
        let must_commit = batch.must_commit && !self.rows.is_empty() || is_waited_for;
        let needs_commit = !batch.entries.is_empty() || is_due || must_commit;
        let outcome = match poison {
            Some(poison) => Err(poison),
            None if needs_commit => self.commit(now, &batch.entries),
            None => Ok(()),
        };
        for answer in batch.answers {
            answer(outcome.as_ref().copied());
        }
        if outcome.is_ok() {
            for gang in batch.launches {
                self.start_launch(gang);
            }
            batch.notices.into_iter().for_each(|notice| self.send(notice));
            self.tell_ended(&batch.ended);
        }
        if outcome.is_ok() && !needs_commit {
            self.tidy_journal();
        }
        self.keep();
    }

    fn commit(&mut self, now: Timestamp, entries: &[db::Entry]) -> Result<(), Error> {
        self.summarise_reports(now);
        let rows = std::mem::take(&mut self.rows);
        self.rows_since = None;
        let records = &self.records;
        let given_out = JobId(self.engine.next_job_id().0 - 1);
        let jobs: Vec<&JobRecord> = rows.jobs.iter().filter_map(|job| records.get(job)).collect();
        let changes = ports::Changes {
            at: now,
            repairs: &rows.repairs,
            sweeps: &rows.sweeps,
            jobs: &jobs,
            ledger: &rows.ledger,
            noted: &rows.noted,
            answers: &rows.answers,
            removals: &rows.removals,
        };
        let committed = self.journal.commit(ports::Batch { records: entries, given_out, changes });
        for job in &rows.jobs {
            if self.records.get(job).is_some_and(|record| record.state.is_final()) {
                self.records.remove(job);
            }
        }
        self.entries_since_snapshot += u64::try_from(entries.len()).unwrap_or(u64::MAX);
        match committed {
            Ok(_) => Ok(()),
            Err(failure) => {
                let cause = self.journal.poison().unwrap_or_default().to_owned();
                error!(code = failure.code(), cause, "the journal failed: changes are refused, running jobs go on");
                Err(Error::Poisoned { cause })
            }
        }
    }

    /// Frees the database space of archived records and old snapshots while nothing else is due.
    fn tidy_journal(&mut self) {
        if let Err(failure) = self.journal.tidy() {
            let cause = self.journal.poison().unwrap_or_default().to_owned();
            error!(code = failure.code(), cause, "the journal failed: changes are refused, running jobs go on");
        }
    }

    /// Writes a snapshot at once, since tests run without a housekeeper thread.
    #[cfg(test)]
    pub(super) fn snapshot(&mut self) {
        if self.entries_since_snapshot == 0 || self.journal.poison().is_some() {
            return;
        }
        if let Err(failure) =
            self.journal.write_snapshot(&gangline_store::codec::encode_snapshot(&self.engine.snapshot()))
        {
            tracing::warn!(%failure, "no snapshot was written; the next start replays more");
        }
        self.entries_since_snapshot = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_snapshot_of_many_jobs_comes_after_as_many_entries() {
        assert_eq!([0, 10_000, 10_001, 100_000].map(entries_per_snapshot), [10_000, 10_000, 10_001, 100_000]);
    }
}
