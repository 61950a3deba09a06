//! A job as the control plane remembers it: a document in the table `jobs`, version 1.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use gangline_base::{JobId, JobSpec, Money, NodeId, Timestamp};
use gangline_execution::protocol::{Fault, FaultCause, Report};
use gangline_orchestration::{Decision, Engine, Fate, Job, RequeueReason, Rung, Share, StopReason};
use serde::{Deserialize, Serialize};

use super::attempts::excess_attempts;
use super::last_words::LastWords;
use super::retention::RemovedRecord;
use super::sweep::{BudgetRecord, PointRecord, SweepRecord};
use crate::codec::PinV1;
use crate::config::NodeConfig;
use crate::wire::{Checkpoints, Gang, JobState, Progress};

/// The version written.
const VERSION: u32 = 1;
/// Lines of history kept in the document; the journal keeps all.
const HISTORY_KEPT: usize = 100;

/// What a record says where the journal lost entries.
const LOST: &str = "restored from the journal, whose damaged entries were put aside";

/// What a record says that was made again.
const REMADE: &str = "its record was made again from the journal";

/// What a record says of which the ledger has lost rows for good.
const LOST_BOOKINGS: &str = "part of what it cost is lost: the ledger was damaged on disk";

/// A job, waiting, running or ended.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct JobRecord {
    pub(crate) v: u32,
    pub(crate) id: JobId,
    pub(crate) name: String,
    pub(crate) queue: String,
    pub(crate) priority: u16,
    pub(crate) submitter: String,
    pub(crate) submitted_at: Timestamp,
    pub(crate) state: JobState,
    pub(crate) because: String,
    pub(crate) ended_at: Option<Timestamp>,
    pub(crate) gang: Gang,
    /// Empty if it is its sweep's, as the two below; see [`JobRecord::program`].
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub(crate) run: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub(crate) workdir: String,
    pub(crate) checkpoint_path: Option<String>,
    pub(crate) faults: u32,
    pub(crate) max_faults: u32,
    pub(crate) progress: Progress,
    /// The highest step any attempt reached: an attempt that does steps up to it does them again.
    pub(crate) high_water_step: u64,
    pub(crate) checkpoints: Checkpoints,
    /// What attempts that are over have saved.
    pub(crate) checkpoints_before: Checkpoints,
    pub(crate) attempts: Vec<AttemptRecord>,
    pub(crate) history: Vec<(Timestamp, String)>,
    #[serde(default)]
    pub(crate) budget: Option<BudgetRecord>,
    #[serde(default)]
    pub(crate) sweep: Option<PointRecord>,
    /// What of it no retention policy removes.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub(crate) pins: BTreeSet<PinV1>,
    /// What was removed of it since it ended.
    #[serde(default, skip_serializing_if = "RemovedRecord::is_nothing")]
    pub(crate) removed: RemovedRecord,
    /// What it shares with the other jobs of its sweep, in a row of its own.
    #[serde(skip)]
    pub(crate) shared: Option<Arc<SweepRecord>>,
}

/// One allocation.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct AttemptRecord {
    pub(crate) number: u32,
    pub(crate) placed_at: Timestamp,
    pub(crate) ended_at: Option<Timestamp>,
    pub(crate) placed_because: String,
    pub(crate) ended_because: Option<String>,
    /// The earliest fault of any node.
    pub(crate) fault: Option<(String, Fault)>,
    pub(crate) shares: Vec<ShareRecord>,
    /// Ranks that hold up the others, by the last look.
    #[serde(default)]
    pub(crate) stragglers: Vec<StragglerRecord>,
}

impl AttemptRecord {
    /// Samples of its curve that have been taken in.
    pub(crate) fn samples_stored(&self) -> u64 {
        self.shares.first().map_or(0, |share| share.samples_stored)
    }
}

/// A rank that holds up the others.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct StragglerRecord {
    pub(crate) rank: u32,
    pub(crate) node: String,
    /// It waits for its data; else it computes for longer.
    pub(crate) is_data: bool,
    /// Its own work in a step, and the median of its peers'.
    pub(crate) own: Duration,
    pub(crate) peers: Duration,
    pub(crate) steps: u64,
}

impl StragglerRecord {
    /// In words, with the evidence.
    pub(crate) fn describe(&self) -> String {
        let (own, peers) = (self.own.as_secs_f64(), self.peers.as_secs_f64());
        let why = if self.is_data { "waits for its data" } else { "computes for longer" };
        let StragglerRecord { rank, node, steps, .. } = self;
        format!(
            "rank {rank} on {node} is slow: {own:.3} s of work a step, its peers {peers:.3} s (measured over {steps} steps); it {why}"
        )
    }
}

/// One node's share.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct ShareRecord {
    pub(crate) node: String,
    pub(crate) devices: Vec<u32>,
    /// The last report, without its samples; of an attempt that is over `last` has what is still asked for.
    pub(crate) report: Option<Report>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) last: Option<LastWords>,
    /// Samples below this number have been taken in.
    pub(crate) samples_stored: u64,
    /// What an accelerator-hour cost when it was placed; a price that changes later changes nothing that runs.
    #[serde(default)]
    pub(crate) price: Option<Money>,
}

impl JobRecord {
    pub(crate) fn new(id: JobId, spec: &JobSpec, now: Timestamp) -> Self {
        JobRecord {
            run: spec.program.run.clone(),
            workdir: spec.program.workdir.clone(),
            checkpoint_path: spec.checkpoint.path.clone(),
            ..JobRecord::without_program(id, spec, now)
        }
    }

    /// A job whose program is its sweep's.
    pub(super) fn without_program(id: JobId, spec: &JobSpec, now: Timestamp) -> Self {
        let gang = Gang {
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
            state: JobState::Waiting,
            because: "submitted".to_owned(),
            ended_at: None,
            gang,
            run: String::new(),
            workdir: String::new(),
            checkpoint_path: None,
            faults: 0,
            max_faults: spec.recovery.max_faults,
            progress: Progress::default(),
            high_water_step: 0,
            checkpoints: Checkpoints::default(),
            checkpoints_before: Checkpoints::default(),
            attempts: Vec::new(),
            history: vec![(now, format!("submitted by {}", spec.submitter))],
            budget: spec.budget.map(|limit| BudgetRecord { limit, ..BudgetRecord::default() }),
            sweep: None,
            pins: spec.pins.iter().copied().map(PinV1::from).collect(),
            removed: RemovedRecord::default(),
            shared: None,
        }
    }

    /// The attempt that is or was last.
    pub(crate) fn last_attempt(&self) -> Option<&AttemptRecord> {
        self.attempts.last()
    }

    /// Adds a line to its history and makes it the reason shown.
    pub(crate) fn note(&mut self, now: Timestamp, text: String) {
        self.because.clone_from(&text);
        self.history.push((now, text));
        let excess = self.history.len().saturating_sub(HISTORY_KEPT);
        self.history.drain(..excess);
    }

    /// Takes in a decision. `engine` has it applied already, and names the nodes.
    pub(crate) fn follow(&mut self, now: Timestamp, decision: &Decision, engine: &Engine) {
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
                self.state = JobState::Stopping;
                // A peer's end explains itself when the attempt closes; the root cause is the better reason to show.
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
                self.state = JobState::Waiting;
            }
            Decision::End { fate, .. } => {
                self.close_attempts();
                self.end_attempt(now, fate.to_string());
                self.ended_at = Some(now);
                self.state = match fate {
                    Fate::Succeeded => JobState::Succeeded,
                    Fate::Cancelled => JobState::Cancelled,
                    Fate::BudgetSpent { .. } | Fate::EarlyStop(_) => JobState::Stopped,
                    _ => JobState::Failed,
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
        self.state = JobState::Starting;
        self.note(now, format!("attempt {number} placed on {}: {reason}", places.join(" ")));
        let placed_because = reason;
        let (ended_at, ended_because, fault) = (None, None, None);
        self.attempts.push(AttemptRecord {
            number,
            placed_at: now,
            ended_at,
            placed_because,
            ended_because,
            fault,
            shares,
            stragglers: Vec::new(),
        });
        let excess = excess_attempts(&self.attempts);
        self.attempts.drain(..excess);
    }

    /// Takes in who holds up the others now, and notes who does since the last look and who no longer does; whether anything changed.
    pub(crate) fn slow(&mut self, now: Timestamp, found: Vec<StragglerRecord>) -> bool {
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

    /// What was reported of the attempts there were is known and booked: what is asked for later is kept, in few bytes.
    fn close_attempts(&mut self) {
        self.attempts.iter_mut().flat_map(|attempt| &mut attempt.shares).for_each(ShareRecord::close);
    }

    fn end_attempt(&mut self, now: Timestamp, text: String) {
        if let Some(attempt) = self.attempts.last_mut().filter(|attempt| attempt.ended_at.is_none()) {
            attempt.ended_at = Some(now);
            attempt.ended_because = Some(text.clone());
        }
        self.checkpoints_before = self.checkpoints;
        self.progress.tokens_per_second = None;
        self.note(now, text);
    }

    /// Makes up for a supervisor that can't say any more how its share ended.
    pub(crate) fn share_failed(&mut self, now: Timestamp, node: &str, cause: FaultCause) {
        let Some(attempt) = self.attempts.last_mut() else { return };
        let share = attempt.shares.iter().find(|share| share.node == node);
        let last_sign = share.and_then(|share| share.report.as_ref()).map(|report| report.sent_at);
        let fault = Fault {
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

    /// Fixes the prices of the attempt that has just been placed.
    pub(crate) fn price_attempt(&mut self, nodes: &[NodeConfig]) {
        let shares = self.attempts.last_mut().filter(|attempt| attempt.ended_at.is_none());
        for share in shares.into_iter().flat_map(|attempt| &mut attempt.shares).filter(|share| share.price.is_none()) {
            let node = nodes.iter().find(|node| node.name.as_str() == share.node);
            share.price = node.and_then(|node| node.price_per_hour);
        }
    }

    /// Brings the record in line with the engine after a start; true if it wasn't. They are committed together, so the
    /// record can only be ahead, and only where damaged journal entries were put aside.
    pub(crate) fn align(&mut self, now: Timestamp, job: &Job, engine: &Engine) -> bool {
        let before = self.clone();
        self.attempts.retain(|attempt| attempt.number <= job.attempts);
        self.ended_at = None;
        self.faults = job.faults;
        match job.attempt() {
            None => {
                if self.attempts.last().is_some_and(|attempt| attempt.ended_at.is_none()) {
                    self.end_attempt(now, LOST.to_owned());
                }
                self.state = JobState::Waiting;
            }
            Some(attempt) => {
                match self.attempts.last_mut().filter(|last| last.number == attempt.number.0) {
                    None => {
                        let shares = share_records(&attempt.shares, engine);
                        self.begin_attempt(attempt.placed_at, attempt.number.0, shares, LOST.to_owned());
                    }
                    Some(last) if last.ended_at.is_some() => {
                        (last.ended_at, last.ended_because) = (None, None);
                        // What was said of its end is in the records that are lost, and books made of it couldn't be made again.
                        last.shares.iter_mut().for_each(|share| share.last = None);
                        self.reopen_checkpoints();
                    }
                    Some(_) => {}
                }
                self.state = match self.state {
                    _ if attempt.stop.is_some() => JobState::Stopping,
                    same @ (JobState::Starting | JobState::Running) => same,
                    _ if attempt.is_running() => JobState::Running,
                    _ => JobState::Starting,
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

    /// Where it stands by the engine: what its last reports said isn't known.
    pub(crate) fn stand_as(&mut self, job: &Job) {
        self.state = match job.attempt() {
            None => JobState::Waiting,
            Some(attempt) if attempt.stop.is_some() => JobState::Stopping,
            Some(attempt) if attempt.is_running() => JobState::Running,
            Some(_) => JobState::Starting,
        };
    }

    /// Notes that it was made again. What isn't in the journal is missing: of an attempt that goes on, its prices too.
    pub(crate) fn note_remade(&mut self) {
        let at = self.history.last().map_or(self.submitted_at, |(at, _)| *at);
        self.history.push((at, REMADE.to_owned()));
    }

    /// Whether it was made again, and its prices have to be fixed anew.
    pub(crate) fn lacks_prices(&self) -> bool {
        self.history.iter().rev().take(2).any(|(_, text)| text == REMADE)
    }

    /// Notes that what it cost isn't all known any more.
    pub(crate) fn note_lost_bookings(&mut self) {
        if !self.has_lost_bookings() {
            let at = self.history.last().map_or(self.submitted_at, |(at, _)| *at);
            self.history.push((at, LOST_BOOKINGS.to_owned()));
        }
    }

    /// Whether that is known: else a booking that isn't there is damage.
    pub(crate) fn has_lost_bookings(&self) -> bool {
        self.has_lost() || self.history.iter().any(|(_, text)| text == LOST_BOOKINGS)
    }

    /// Whether an accepted loss of journal entries has changed it: then the journal doesn't know all of it.
    pub(crate) fn has_lost(&self) -> bool {
        self.history.iter().any(|(_, text)| text == LOST)
    }

    /// What the attempt that goes on after all has saved is counted with it again.
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
