//! The control plane's record of a job: a document in the table `jobs`, version 1.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use gangline_base::{JobId, JobSpec, Money, NodeId, Timestamp};
use gangline_orchestration::{Decision, Engine, Fate, Job, RequeueReason, Rung, Share, StopReason};
use serde::{Deserialize, Serialize};

use super::attempts::excess_attempts;
use super::last_words::LastWords;
use super::parts::{CheckpointsRecord, GangRecord, ProgressRecord, StateRecord};
use super::resume::submission;
use super::retention::RemovedRecord;
use super::straggler::StragglerRecord;
use super::sweep::{BudgetRecord, PointRecord, SweepRecord};
use crate::codec::{PinV1, SpecV1};
use crate::reported::{AllocationRecord, DatasetReadsRecord, FaultCauseRecord, FaultRecord, ReportRecord};

/// The document's version.
const VERSION: u32 = 1;
/// The most lines of history in the document; the journal has all.
const HISTORY_KEPT: usize = 100;

/// Text of a record that was changed because the journal lost entries.
const LOST: &str = "restored from the journal, whose damaged entries were put aside";

/// Text of a record that was made again.
const REMADE: &str = "its record was made again from the journal";

/// Text of a record whose ledger rows are partly lost for good.
const LOST_BOOKINGS: &str = "part of what it cost is lost: the ledger was damaged on disk";

/// A waiting, running or ended job.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct JobRecord {
    /// The version of the stored form.
    pub v: u32,
    /// The job.
    pub id: JobId,
    /// The name in the job file.
    pub name: String,
    /// The queue that the job was submitted to.
    pub queue: String,
    /// The priority, 0 to 1000.
    pub priority: u16,
    /// Who submitted the job.
    pub submitter: String,
    /// When the submission was committed.
    pub submitted_at: Timestamp,
    /// Where the job is in its life.
    pub state: StateRecord,
    /// The reason for the state, as a sentence.
    pub because: String,
    /// When the job ended, if it has.
    pub ended_at: Option<Timestamp>,
    /// The size of the gang.
    pub gang: GangRecord,
    /// Empty if equal to the sweep's, like the next two fields; see [`JobRecord::program`].
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub run: String,
    /// The folder in which the ranks start.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub workdir: String,
    /// The path of the checkpoints as in the job file, if it sets one.
    pub checkpoint_path: Option<String>,
    /// Faults that count against `max_faults`.
    pub faults: u32,
    /// The faults after which the job is given up.
    pub max_faults: u32,
    /// How far training has come.
    pub progress: ProgressRecord,
    /// The highest step that any attempt reached; steps up to it are repeated work.
    pub high_water_step: u64,
    /// The durable checkpoints.
    pub checkpoints: CheckpointsRecord,
    /// Checkpoints saved by ended attempts.
    pub checkpoints_before: CheckpointsRecord,
    /// What attempts that aren't in the document any more asked for of datasets.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub dataset_reads_before: BTreeMap<String, DatasetReadsRecord>,
    /// The attempts that are kept in the document, oldest first.
    pub attempts: Vec<AttemptRecord>,
    /// What happened, oldest first, each with a sentence.
    pub history: Vec<(Timestamp, String)>,
    /// The budget, if the job file sets one.
    #[serde(default)]
    pub budget: Option<BudgetRecord>,
    /// The place in a sweep, if the job belongs to one.
    #[serde(default)]
    pub sweep: Option<PointRecord>,
    /// The rest of its specification, to resume it; none for a sweep's jobs, and in records of earlier releases.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub spec: Option<Box<SpecV1>>,
    /// Data of the job that no retention policy removes.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub pins: BTreeSet<PinV1>,
    /// Data of the job that was removed since it ended.
    #[serde(default, skip_serializing_if = "RemovedRecord::is_nothing")]
    pub removed: RemovedRecord,
    /// Data shared with the other jobs of the sweep, stored in a row of its own.
    #[serde(skip)]
    pub shared: Option<Arc<SweepRecord>>,
}

/// An attempt of a job.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct AttemptRecord {
    /// The number of the attempt within its job.
    pub number: u32,
    /// When the gang was placed.
    pub placed_at: Timestamp,
    /// When the launcher's own system allocated its nodes; none where the placement does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub allocation: Option<AllocationRecord>,
    /// When the attempt ended, if it has.
    pub ended_at: Option<Timestamp>,
    /// The reason for the placement, as a sentence.
    pub placed_because: String,
    /// The reason for the end, as a sentence, if it has ended.
    pub ended_because: Option<String>,
    /// The earliest fault of any node.
    pub fault: Option<(String, FaultRecord)>,
    /// The nodes of the gang, in the order of their ranks.
    pub shares: Vec<ShareRecord>,
    /// The gang's slow ranks, by the last check.
    #[serde(default)]
    pub stragglers: Vec<StragglerRecord>,
}

/// One node's share of an attempt.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ShareRecord {
    /// The name of the node.
    pub node: String,
    /// The numbers of the devices on the node.
    pub devices: Vec<u32>,
    /// The last report. After the attempt, `last` has the part that is still needed.
    pub report: Option<ReportRecord>,
    /// The last report of the supervisor, if there was one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last: Option<LastWords>,
    /// Samples below this number have been received.
    pub samples_stored: u64,
    /// The price of an accelerator-hour at placement; later price changes don't affect a running attempt.
    #[serde(default)]
    pub price: Option<Money>,
}

impl JobRecord {
    /// Returns the record of a job that has just been submitted.
    pub fn new(id: JobId, spec: &JobSpec, now: Timestamp) -> Self {
        JobRecord {
            run: spec.program.run.clone(),
            workdir: spec.program.workdir.clone(),
            checkpoint_path: spec.checkpoint.path.clone(),
            spec: Some(Box::new(SpecV1::beside_a_record(spec))),
            ..JobRecord::without_program(id, spec, now)
        }
    }

    /// Returns the record of a job that uses its sweep's program.
    pub(super) fn without_program(id: JobId, spec: &JobSpec, now: Timestamp) -> Self {
        let gang = GangRecord {
            nodes: spec.gang.nodes.get(),
            nodes_max: spec.elastic.as_ref().map(|elastic| elastic.nodes_max.get()),
            accelerator: spec.gang.accelerator.0.clone(),
            accelerators_per_node: spec.gang.accelerators_per_node.get(),
            ranks_per_node: spec.gang.ranks_per_node(),
        };
        JobRecord {
            v: VERSION,
            id,
            name: spec.name.clone(),
            queue: spec.queue.to_string(),
            priority: spec.priority.value(),
            submitter: spec.submitter.to_string(),
            submitted_at: now,
            state: StateRecord::Waiting,
            because: "submitted".to_owned(),
            ended_at: None,
            gang,
            run: String::new(),
            workdir: String::new(),
            checkpoint_path: None,
            faults: 0,
            max_faults: spec.recovery.max_faults,
            progress: ProgressRecord::default(),
            high_water_step: 0,
            checkpoints: CheckpointsRecord::default(),
            checkpoints_before: CheckpointsRecord::default(),
            dataset_reads_before: BTreeMap::new(),
            attempts: Vec::new(),
            history: vec![(now, submission(spec))],
            budget: spec.budget.map(|limit| BudgetRecord { limit, ..BudgetRecord::default() }),
            sweep: None,
            spec: None,
            pins: spec.pins.iter().copied().map(PinV1::from).collect(),
            removed: RemovedRecord::default(),
            shared: None,
        }
    }

    /// Returns the current or last attempt.
    pub fn last_attempt(&self) -> Option<&AttemptRecord> {
        self.attempts.last()
    }

    /// Adds a line to the history and shows it as the current reason.
    pub fn note(&mut self, now: Timestamp, text: String) {
        self.because.clone_from(&text);
        self.history.push((now, text));
        let excess = self.history.len().saturating_sub(HISTORY_KEPT);
        self.history.drain(..excess);
    }

    /// Applies a decision. `engine` has applied it already, and names the nodes.
    pub fn follow(&mut self, now: Timestamp, decision: &Decision, engine: &Engine) {
        self.follow_budget(now, decision, engine);
        match decision {
            Decision::Place { attempt, shares, reason, .. } => {
                self.begin_attempt(now, attempt.0, share_records(shares, engine), reason.to_string());
            }
            Decision::Claim { claim, reason, .. } => {
                let nodes: Vec<String> = claim.nodes.iter().map(|node| node_name(*node, engine)).collect();
                let victims: Vec<String> = claim.victims.iter().map(JobId::to_string).collect();
                self.note(now, format!("gets {} from {}: {reason}", nodes.join(", "), victims.join(", ")));
            }
            Decision::Stop { reason, .. } => {
                self.state = StateRecord::Stopping;
                // The closing attempt explains a peer's end; the root cause is the better reason to show.
                let text = match reason {
                    StopReason::NodeLeaves { node } => {
                        format!("told to save and stop: {} is about to go", node_name(*node, engine))
                    }
                    StopReason::Straggler { node } => {
                        let name = node_name(*node, engine);
                        format!("told to save and stop: a rank on {name} is slow, and there is room elsewhere")
                    }
                    _ => format!("told to stop: {reason}"),
                };
                if *reason == StopReason::PeerEnded { self.history.push((now, text)) } else { self.note(now, text) }
            }
            Decision::Requeue { not_before, reason, .. } => {
                let pause = not_before.since(now).as_secs();
                let when = if pause > 0 { format!(" after a pause of {pause} s") } else { String::new() };
                let why = match reason {
                    RequeueReason::NodeLeft { node } => {
                        format!("it left {}, which was about to go", node_name(*node, engine))
                    }
                    RequeueReason::Straggler { node } => {
                        format!("it left {}, where a rank was slow", node_name(*node, engine))
                    }
                    _ => reason.to_string(),
                };
                self.close_attempts();
                let keeps = matches!(reason, RequeueReason::Fault { remedy, .. } if remedy.rung == Rung::InPlace);
                self.end_attempt(now, if keeps { why } else { format!("queued again{when}: {why}") });
                self.state = StateRecord::Waiting;
            }
            Decision::End { fate, .. } => {
                self.close_attempts();
                self.end_attempt(now, fate.to_string());
                self.ended_at = Some(now);
                self.state = match fate {
                    Fate::Succeeded => StateRecord::Succeeded,
                    Fate::Cancelled | Fate::DependencyFailed(_) => StateRecord::Cancelled,
                    Fate::BudgetSpent { .. } | Fate::EarlyStop(_) => StateRecord::Stopped,
                    _ => StateRecord::Failed,
                };
            }
        }
        if let Some(job) = engine.job(self.id) {
            self.faults = job.faults;
        } else if let Decision::End { fate: Fate::FaultsExhausted { faults, .. }, .. } = decision {
            self.faults = *faults;
        } else if let Decision::End { fate: Fate::NoProgress { .. } | Fate::NotRetried { .. }, .. } = decision {
            self.faults += 1;
        }
    }

    fn begin_attempt(&mut self, now: Timestamp, number: u32, shares: Vec<ShareRecord>, reason: String) {
        let places: Vec<String> = shares.iter().map(|share| format!("{}{:?}", share.node, share.devices)).collect();
        self.state = StateRecord::Starting;
        self.note(now, format!("attempt {number} placed on {}: {reason}", places.join(" ")));
        let placed_because = reason;
        let (ended_at, ended_because, fault) = (None, None, None);
        self.attempts.push(AttemptRecord {
            number,
            placed_at: now,
            allocation: None,
            ended_at,
            placed_because,
            ended_because,
            fault,
            shares,
            stragglers: Vec::new(),
        });
        let excess = excess_attempts(&self.attempts);
        self.keep_reads_of(excess);
        self.attempts.drain(..excess);
    }

    /// Replaces the list of stragglers, notes those that were added or removed, and reports whether anything
    /// changed.
    pub fn slow(&mut self, now: Timestamp, found: Vec<StragglerRecord>) -> bool {
        let Some(attempt) = self.attempts.last_mut() else { return false };
        let before = std::mem::replace(&mut attempt.stragglers, found.clone());
        let is_in = |list: &[StragglerRecord], one: &StragglerRecord| list.iter().any(|other| other.rank == one.rank);
        let new = found.iter().filter(|one| !is_in(&before, one)).map(StragglerRecord::describe);
        let gone = before.iter().filter(|one| !is_in(&found, one));
        let gone = gone.map(|one| format!("rank {} on {} is as fast as its peers again", one.rank, one.node));
        let lines: Vec<String> = new.chain(gone).collect();
        let has_changed = !(found.is_empty() && before.is_empty());
        lines.into_iter().for_each(|line| self.history.push((now, line)));
        has_changed
    }

    /// Shrinks the reports of all attempts, which are booked by now, to the parts that are still needed.
    fn close_attempts(&mut self) {
        self.attempts.iter_mut().flat_map(|attempt| &mut attempt.shares).for_each(ShareRecord::close);
    }

    fn end_attempt(&mut self, now: Timestamp, text: String) {
        if let Some(attempt) = self.attempts.last_mut().filter(|attempt| attempt.ended_at.is_none()) {
            attempt.ended_at = Some(now);
            attempt.ended_because = Some(text.clone());
        }
        self.checkpoints_before = self.checkpoints;
        (self.progress.tokens_per_second, self.progress.steps_per_second) = (None, None);
        // The fault of the attempt has it from here on.
        (self.progress.not_finite_since, self.progress.attempt_from) = (None, None);
        self.note(now, text);
    }

    /// Adds what became known later of an attempt's end.
    pub fn explain_end(&mut self, attempt: u32, text: &str) {
        let ended = self.attempts.iter_mut().rev().find(|one| one.number == attempt);
        if let Some(because) = ended.and_then(|ended| ended.ended_because.as_mut()) {
            because.push_str("; ");
            because.push_str(text);
        }
    }

    /// Records a share's end for a supervisor that can't report it any more.
    pub fn share_failed(&mut self, now: Timestamp, node: &str, cause: FaultCauseRecord) {
        let Some(attempt) = self.attempts.last_mut() else { return };
        let share = attempt.shares.iter().find(|share| share.node == node);
        let last_sign = share.and_then(|share| share.report.as_ref()).map(|report| report.sent_at);
        let fault = FaultRecord {
            rank: None,
            cause,
            noticed_at: now.unix_nanos(),
            last_sign_of_life: last_sign.unwrap_or(attempt.placed_at.unix_nanos()),
            last_lines: Vec::new(),
            diagnosis: None,
        };
        if attempt.fault.is_none() {
            attempt.fault = Some((node.to_owned(), fault));
        }
    }

    /// Sets the prices of the attempt that has just been placed; `price_of` gives a node's price of an accelerator-hour.
    pub fn price_attempt(&mut self, price_of: impl Fn(&str) -> Option<Money>) {
        let shares = self.attempts.last_mut().filter(|attempt| attempt.ended_at.is_none());
        for share in shares.into_iter().flat_map(|attempt| &mut attempt.shares).filter(|share| share.price.is_none()) {
            share.price = price_of(&share.node);
        }
    }

    /// Aligns the record with the engine after a start, and reports whether it changed. Both are committed
    /// together, so the record can only be ahead, and only where damaged journal entries were put aside.
    pub fn align(&mut self, now: Timestamp, job: &Job, engine: &Engine) -> bool {
        let before = self.clone();
        self.attempts.retain(|attempt| attempt.number <= job.attempts);
        self.ended_at = None;
        self.faults = job.faults;
        match job.attempt() {
            None => {
                if self.attempts.last().is_some_and(|attempt| attempt.ended_at.is_none()) {
                    self.end_attempt(now, LOST.to_owned());
                }
                self.state = StateRecord::Waiting;
            }
            Some(attempt) => {
                match self.attempts.last_mut().filter(|last| last.number == attempt.number.0) {
                    None => {
                        let shares = share_records(&attempt.shares, engine);
                        self.begin_attempt(attempt.placed_at, attempt.number.0, shares, LOST.to_owned());
                    }
                    Some(last) if last.ended_at.is_some() => {
                        (last.ended_at, last.ended_because) = (None, None);
                        // The reports of its end are in the lost records, and bookings made from them
                        // couldn't be made again.
                        last.shares.iter_mut().for_each(|share| share.last = None);
                        self.reopen_checkpoints();
                    }
                    Some(_) => {}
                }
                self.state = match self.state {
                    _ if attempt.stop.is_some() => StateRecord::Stopping,
                    same @ (StateRecord::Starting | StateRecord::Running) => same,
                    _ if attempt.is_running() => StateRecord::Running,
                    _ => StateRecord::Starting,
                };
            }
        }
        if *self == before {
            return false;
        }
        if self.because != LOST {
            self.note(now, LOST.to_owned());
        }
        true
    }

    /// Sets the state from the engine alone, because the last reports aren't known.
    pub fn stand_as(&mut self, job: &Job) {
        self.state = match job.attempt() {
            None => StateRecord::Waiting,
            Some(attempt) if attempt.stop.is_some() => StateRecord::Stopping,
            Some(attempt) if attempt.is_running() => StateRecord::Running,
            Some(_) => StateRecord::Starting,
        };
    }

    /// Notes that the record was made again. It lacks what the journal doesn't have, such as the prices of a
    /// running attempt.
    pub fn note_remade(&mut self) {
        let at = self.history.last().map_or(self.submitted_at, |(at, _)| *at);
        self.history.push((at, REMADE.to_owned()));
    }

    /// Reports whether the record was made again, so that its prices have to be set again.
    pub fn lacks_prices(&self) -> bool {
        self.history.iter().rev().take(2).any(|(_, text)| text == REMADE)
    }

    /// Notes that part of the job's cost is lost.
    pub fn note_lost_bookings(&mut self) {
        if !self.has_lost_bookings() {
            let at = self.history.last().map_or(self.submitted_at, |(at, _)| *at);
            self.history.push((at, LOST_BOOKINGS.to_owned()));
        }
    }

    /// Reports whether part of the job's cost is known to be lost; otherwise a missing booking means damage.
    pub fn has_lost_bookings(&self) -> bool {
        self.has_lost() || self.history.iter().any(|(_, text)| text == LOST_BOOKINGS)
    }

    /// Reports whether an accepted loss of journal entries changed the record, so that the journal doesn't
    /// have all of it.
    pub fn has_lost(&self) -> bool {
        self.history.iter().any(|(_, text)| text == LOST)
    }

    /// Subtracts the saves of an attempt that continues after all, because they are counted with it again.
    fn reopen_checkpoints(&mut self) {
        let Some(attempt) = self.attempts.last() else { return };
        let saved = || attempt.shares.iter().map(ShareRecord::saved);
        let before = &mut self.checkpoints_before;
        before.count = saved().fold(before.count, |count, (saved, _)| count.saturating_sub(saved));
        before.bytes = saved().fold(before.bytes, |bytes, (_, saved)| bytes.saturating_sub(saved));
    }
}

fn node_name(node: NodeId, engine: &Engine) -> String {
    engine.cluster().node(node).map_or_else(|| node.to_string(), |node| node.spec.name.to_string())
}

fn share_records(shares: &[Share], engine: &Engine) -> Vec<ShareRecord> {
    let record = |share: &Share| ShareRecord {
        node: node_name(share.node, engine),
        devices: share.devices.clone(),
        report: None,
        last: None,
        samples_stored: 0,
        price: None,
    };
    shares.iter().map(record).collect()
}
