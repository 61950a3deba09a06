//! Makes jobs, sweeps and bookings again from the journal's records: replays the engine, and applies each
//! decision by the same function as the service.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use gangline_accounting::LedgerEntry;
use gangline_base::{AttemptNumber, JobId, SweepId, Timestamp};
use gangline_orchestration::{Decision, Engine, Entry, Event, Refusal};

use super::record::JobRecord;
use super::sweep::SweepRecord;
use crate::codec::{ClosedAttempt, Noted, Recorded};

/// Applies records in order.
pub(crate) struct Remake {
    engine: Engine,
    live: BTreeMap<JobId, Remade>,
    group: Group,
    /// Jobs below this one began before the first available record.
    pub known_from: JobId,
}

/// A job as the journal describes it.
#[derive(Debug)]
pub(crate) struct Remade {
    /// The record of the job.
    pub record: JobRecord,
    /// What its attempts are charged for, each with the queue that it waited in before.
    pub booked: Vec<(String, LedgerEntry)>,
    /// Ended attempts whose results the journal lacks, because an earlier release ended them.
    pub unknown: BTreeSet<u32>,
}

/// A completed item.
#[derive(Debug)]
pub(crate) enum Made {
    /// A job.
    Job(Box<Remade>),
    /// A sweep.
    Sweep(Arc<SweepRecord>),
    /// What bills are made of beside the ledger, from a time on.
    Noted(Timestamp, Box<Noted>),
}

/// The engine's decisions on one event. As in the service, they are followed once all of them are applied.
#[derive(Default)]
struct Group {
    decisions: Vec<(Timestamp, Decision)>,
    closed: BTreeMap<(JobId, AttemptNumber), Vec<ClosedAttempt>>,
}

impl Remake {
    /// Starts with the engine's state before the first available record.
    pub(crate) fn new(engine: Engine) -> Remake {
        let known_from = engine.next_job_id();
        Remake { engine, live: BTreeMap::new(), group: Group::default(), known_from }
    }

    /// Applies a record and returns the items that it completes.
    ///
    /// # Errors
    /// A [`Refusal`] if the record doesn't follow from those before it.
    pub(crate) fn take_in(&mut self, at: Timestamp, recorded: Recorded) -> Result<Vec<Made>, Refusal> {
        match recorded {
            Recorded::Closed(closed) => {
                self.group.closed.entry((closed.job, closed.attempt)).or_default().push(*closed);
                Ok(Vec::new())
            }
            Recorded::Noted(noted) => Ok(vec![Made::Noted(at, noted)]),
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

    /// Returns the remaining items at the journal's end, and the engine there.
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

    /// Applies the part of an event that changes records directly, before the engine applies the event.
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
            Event::ChangeRequested { job, changes, by } => {
                self.live.get_mut(job).into_iter().for_each(|job| job.record.note_changes(at, changes, by));
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
            // The job began before the first available record.
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
                let queue = &remade.record.queue;
                remade.booked.extend(booked.into_iter().map(|entry| (queue.clone(), entry)));
            }
            if matches!(decision, Decision::End { .. }) {
                made.extend(self.live.remove(&id).map(|remade| Made::Job(Box::new(remade))));
            }
        }
        made
    }
}
