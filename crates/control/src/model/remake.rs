//! Jobs, sweeps and bookings made again from the journal's records: the engine is replayed, and each decision is followed by the very
//! function that the service follows it with.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use gangline_accounting::LedgerEntry;
use gangline_base::{AttemptNumber, JobId, SweepId, Timestamp};
use gangline_orchestration::{Decision, Engine, Entry, Event, Refusal};

use super::record::JobRecord;
use super::sweep::SweepRecord;
use crate::codec::{ClosedAttempt, Recorded};

/// Follows records in order.
pub(crate) struct Remake {
    engine: Engine,
    live: BTreeMap<JobId, Remade>,
    group: Group,
    /// Jobs below this one began before the first record that is there.
    pub(crate) known_from: JobId,
}

/// A job as the journal has it.
#[derive(Debug)]
pub(crate) struct Remade {
    pub(crate) record: JobRecord,
    pub(crate) booked: Vec<LedgerEntry>,
    /// Attempts that ended without the journal saying what they came to: an earlier release ended them.
    pub(crate) unknown: BTreeSet<u32>,
}

/// What was made whole.
#[derive(Debug)]
pub(crate) enum Made {
    Job(Box<Remade>),
    Sweep(Arc<SweepRecord>),
}

/// What the engine decided of one event: as in the service, it is followed once all of it is applied.
#[derive(Default)]
struct Group {
    decisions: Vec<(Timestamp, Decision)>,
    closed: BTreeMap<(JobId, AttemptNumber), Vec<ClosedAttempt>>,
}

impl Remake {
    /// From the engine's state before the first record that is there.
    pub(crate) fn new(engine: Engine) -> Remake {
        let known_from = engine.next_job_id();
        Remake { engine, live: BTreeMap::new(), group: Group::default(), known_from }
    }

    /// Follows a record, and returns what it ends.
    ///
    /// # Errors
    /// A [`Refusal`] if it can't follow those before it.
    pub(crate) fn take_in(&mut self, at: Timestamp, recorded: Recorded) -> Result<Vec<Made>, Refusal> {
        match recorded {
            Recorded::Closed(closed) => {
                self.group.closed.entry((closed.job, closed.attempt)).or_default().push(*closed);
                Ok(Vec::new())
            }
            Recorded::Engine(entry) => match *entry {
                Entry::Event(event) => {
                    let mut made = self.follow_group();
                    made.extend(self.begin(at, &event));
                    self.engine.replay(at, &Entry::Event(event))?;
                    Ok(made)
                }
                Entry::Decision(decision) => {
                    let entry = Entry::Decision(decision.clone());
                    self.engine.replay(at, &entry)?;
                    self.group.decisions.push((at, decision));
                    Ok(Vec::new())
                }
            },
        }
    }

    /// What is left at the journal's end, and the engine there.
    pub(crate) fn finish(mut self) -> (Engine, Vec<Made>) {
        let mut made = self.follow_group();
        for remade in std::mem::take(&mut self.live).into_values() {
            let mut remade = remade;
            if let Some(job) = self.engine.job(remade.record.id) {
                remade.record.stand_as(job);
            }
            made.push(Made::Job(Box::new(remade)));
        }
        (self.engine, made)
    }

    /// What an event says of a job's record by itself; the engine hasn't taken it in yet.
    fn begin(&mut self, at: Timestamp, event: &Event) -> Option<Made> {
        let id = self.engine.next_job_id();
        match event {
            Event::JobSubmitted(spec) => self.add(JobRecord::new(id, spec, at)),
            Event::SweepSubmitted(sweep) => {
                let (shared, records) = SweepRecord::with_jobs(SweepId(id), sweep, at);
                records.into_iter().for_each(|record| self.add(record));
                return Some(Made::Sweep(shared));
            }
            Event::CancelRequested { job, by } => {
                self.live.get_mut(job).into_iter().for_each(|job| job.record.note_cancel(at, by));
            }
            Event::SweepCancelRequested { sweep, by } => {
                for job in self.engine.sweep_jobs(*sweep) {
                    let live = self.live.get_mut(&job.id);
                    live.into_iter().for_each(|job| job.record.note_sweep_cancel(at, *sweep, by));
                }
            }
            Event::MetricReported { job, step, value, .. } => {
                self.live.get_mut(job).into_iter().for_each(|job| job.record.note_metric(*step, *value));
            }
            _ => {}
        }
        None
    }

    fn add(&mut self, record: JobRecord) {
        self.live.insert(record.id, Remade { record, booked: Vec::new(), unknown: BTreeSet::new() });
    }

    fn follow_group(&mut self) -> Vec<Made> {
        let mut group = std::mem::take(&mut self.group);
        let mut made = Vec::new();
        for (at, decision) in group.decisions {
            let id = decision.job();
            // One that began before the first record that is there.
            let Some(remade) = self.live.get_mut(&id) else { continue };
            if let Some(attempt) = remade.record.ending(&decision).map(|attempt| attempt.number) {
                let closed = group.closed.remove(&(id, AttemptNumber(attempt))).unwrap_or_default();
                if closed.is_empty() {
                    remade.unknown.insert(attempt);
                }
                closed.into_iter().for_each(|closed| remade.record.take_closed(closed));
            }
            let booked = remade.record.follow_and_book(at, &decision, &self.engine);
            if remade.record.last_attempt().is_some_and(|attempt| !remade.unknown.contains(&attempt.number)) {
                remade.booked.extend(booked);
            }
            if matches!(decision, Decision::End { .. }) {
                made.extend(self.live.remove(&id).map(|remade| Made::Job(Box::new(remade))));
            }
        }
        made
    }
}
