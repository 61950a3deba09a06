//! The state machine of a node's share of an attempt: it takes inputs with a time and returns actions,
//! without effects. First the setup, then the rendezvous, then the ranks, then the end.
//!
//! Keeps A-13 (without contact the job runs on for a bounded time, and then stops), A-8 (through the phase
//! clocks) and A-10 (every wait has a limit).

use std::sync::Arc;
use std::time::Duration;

use gangline_base::{MetricValue, Phase, Step, Timestamp};

use super::input::{Action, Input, Kept};
use super::outbox::Outbox;
use super::outcome::Stop;
use super::rank::{self, EndCause, Ending, Life, Rank};
use super::readings::Readings;
use super::standstill::Standstill;
use crate::protocol::{
    CacheReport, CheckpointReport, Fault, FaultCause, Marks, NodeFinding, Notice, Orders, Outcome, Rendezvous, Sample,
    StopOrder, SupervisorSpec,
};
use crate::rank_protocol::{CheckpointSaved, LOSS, RankMessage, RankOrder};
use crate::shim::{RankEnd, ShimEvent};
use crate::timeouts::Timeouts;
use crate::trouble::Problem;

/// How long the gang's nodes wait for each other: setup on another node may take long.
pub(super) const RENDEZVOUS_WAIT_MAX: Duration = Timeouts::DEFAULT.rendezvous;
/// How long finishing the ranks' saves may take after their end: a full node's state at a slow disk's rate.
const FINISHING_MAX: Duration = Duration::from_secs(10 * 60);
/// How long the supervisor stays after its end for the signal that ends it.
pub(super) const STAY_MAX: Duration = Duration::from_secs(30);
/// Grace of an orphan, and of a supervisor that is told to terminate.
const UNORDERED_GRACE: Duration = Duration::from_secs(30);

/// Stage of the share.
#[derive(Debug)]
pub(super) enum Stage {
    /// The setup command runs.
    Setup,
    /// Waiting for the gang's other nodes until this time.
    Meeting(Timestamp),
    /// The ranks have run since this time.
    Running(Timestamp),
    /// The ranks have ended and their last processes are exiting; the time is the ranks' start, if they ran.
    Clearing(Option<Timestamp>),
    /// The saves that the ranks had begun are being finished; the times are the ranks' start and end.
    Finishing(Timestamp, Timestamp),
    /// The share has ended at this time.
    Ended(Timestamp, Outcome),
}

/// The state machine. `report.rs` makes reports from it.
pub(super) struct NodeAttempt {
    pub(super) spec: Arc<SupervisorSpec>,
    pub(super) started_at: Timestamp,
    pub(super) stage: Stage,
    pub(super) ranks: Vec<Rank>,
    pub(super) stop: Option<Stop>,
    pub(super) node_fault: Option<Fault>,
    /// Why the platform can't run anything here now.
    pub(super) unable: Option<String>,
    pub(super) standstill: Standstill,
    pub(super) marks: Marks,
    pub(super) checkpoint: Option<CheckpointReport>,
    pub(super) checkpoints: u32,
    pub(super) checkpoint_bytes: u64,
    /// Whether ranks copy saves to a place that outlives them.
    pub(super) has_staging: bool,
    /// Address at which the gang's ranks could meet, if this is its first node.
    pub(super) offer: Option<Rendezvous>,
    pub(super) samples: Outbox<Sample>,
    pub(super) readings: Readings,
    last_sampled: Option<Step>,
    pub(super) last_contact: Timestamp,
    /// Whether the end is on the disk, where the next control plane finds it.
    pub(super) is_end_recorded: bool,
    /// A report of the end was sent; only a later answer can acknowledge it.
    end_sent: bool,
    end_acknowledged: bool,
    /// Whether the supervisor must stay after its end for now.
    is_to_stay: bool,
    /// Whether something other than the control plane ended the supervisor.
    pub(super) is_terminated: bool,
    /// A notice that the control plane should get at once.
    pub(super) notice: Option<Notice>,
    /// Faults of the node itself that checks found.
    pub(super) findings: Vec<NodeFinding>,
    /// What the cache of datasets holds, as it was last looked at.
    pub(super) cache: Option<CacheReport>,
    pub(super) has_news: bool,
}

impl NodeAttempt {
    /// Creates the state machine at time `now`. Call [`NodeAttempt::begin`] next.
    pub(super) fn new(spec: Arc<SupervisorSpec>, offer: Option<Rendezvous>, now: Timestamp) -> Self {
        let count = spec.ranks_per_node;
        let devices = u32::try_from(spec.devices.len()).unwrap_or(u32::MAX);
        let new_rank = |local| {
            let number = spec.node_rank * count + local;
            Rank::new(number, rank::devices_of_rank(devices, count, local), &spec, now)
        };
        NodeAttempt {
            started_at: now,
            stage: Stage::Setup,
            ranks: (0..count).map(new_rank).collect(),
            stop: None,
            node_fault: None,
            unable: None,
            standstill: Standstill::default(),
            marks: Marks::default(),
            checkpoint: None,
            checkpoints: 0,
            checkpoint_bytes: 0,
            has_staging: false,
            offer,
            samples: Outbox::new(),
            readings: Readings::of(&spec),
            last_sampled: None,
            last_contact: now,
            is_end_recorded: false,
            end_sent: false,
            end_acknowledged: false,
            is_to_stay: false,
            is_terminated: false,
            notice: None,
            findings: Vec::new(),
            cache: None,
            has_news: true,
            spec,
        }
    }

    /// Returns the first actions.
    pub(super) fn begin(&mut self, now: Timestamp) -> Vec<Action> {
        if self.spec.has_setup() { vec![Action::RunSetup] } else { self.meet(now) }
    }

    /// Handles an input and returns the resulting actions.
    pub(super) fn apply(&mut self, now: Timestamp, input: Input) -> Vec<Action> {
        self.awake(now);
        match input {
            Input::Shim(Kept::Setup, event) => self.setup_said(now, event),
            Input::Shim(Kept::Rank(local), event) => self.shim_said(now, local, event),
            Input::ShimGone(kept, end) => self.shim_gone(now, kept, end),
            Input::Message(local, message) => self.heard(now, local, &message),
            Input::Connected(local) => self.on_rank(local, |rank| rank.connected(now)),
            Input::Disconnected(local) => self.on_rank(local, |rank| rank.connections -= 1),
            Input::Refused(local, count) => self.on_rank(local, |rank| rank.dropped += count),
            Input::Orders(orders) => self.ordered(now, &orders),
            Input::StagedFinished(saved) => self.finished(now, saved),
            Input::Stacks(stacks) => self.stacks_seen(now, &stacks),
            Input::Worked(local, time) => self.on_rank(local, |rank| rank.progress.worked(time)),
            Input::Notice(text) => self.noticed(now, text),
            Input::Checked(findings) => self.checked(findings),
            Input::Cached(cache) => self.cached(cache),
            Input::Terminated => {
                self.is_terminated = true;
                self.stop_in_order(now, UNORDERED_GRACE, "the supervisor was told to terminate")
            }
            Input::Cleared => self.cleared(now),
            Input::Remaining(pids) => self.remaining(&pids),
            Input::Tick => self.passed(now),
        }
    }

    /// Handles a failure of the node rather than of a rank, before any rank ran.
    pub(super) fn node_failed(&mut self, now: Timestamp, cause: FaultCause, last_lines: Vec<String>) {
        let at = now.unix_nanos();
        self.node_fault =
            Some(Fault { rank: None, cause, noticed_at: at, last_sign_of_life: at, last_lines, diagnosis: None });
        self.conclude();
    }

    /// Returns when time alone will change the state.
    pub(super) fn deadline(&self) -> Timestamp {
        let orphaned_at = self.orphaned_at();
        match (&self.stage, &self.stop) {
            (Stage::Ended(..), _) => orphaned_at,
            (Stage::Finishing(_, ended), _) => *ended + FINISHING_MAX,
            // It ends by itself, however long that takes.
            (Stage::Clearing(..), _) => Timestamp::from_unix_nanos(u64::MAX),
            (_, Some(stop)) => stop.deadline(),
            (Stage::Meeting(until), None) => orphaned_at.min(*until),
            (Stage::Running(_), None) => self.standstill_due().map_or(orphaned_at, |at| orphaned_at.min(at)),
            (_, None) => orphaned_at,
        }
    }

    /// Reports whether the supervisor may exit: the control plane has acknowledged the end and there is no
    /// reason to stay, or waiting longer is pointless.
    pub(super) fn is_over(&self, now: Timestamp) -> bool {
        let Stage::Ended(ended, _) = &self.stage else { return false };
        let stays = self.is_to_stay && !self.is_terminated && now < *ended + STAY_MAX;
        self.end_acknowledged && !stays || self.is_orphan(now)
    }

    /// Reports whether the control plane has acknowledged the end.
    pub(super) fn is_acknowledged(&self) -> bool {
        self.end_acknowledged
    }

    /// Notes that everything so far is on its way to the control plane.
    pub(super) fn sent(&mut self) {
        self.has_news = false;
        self.end_sent = matches!(self.stage, Stage::Ended(..));
    }

    /// Reports whether there is news to report at once.
    pub(super) fn has_news(&self) -> bool {
        self.has_news
    }

    fn on_rank(&mut self, local: u32, change: impl FnOnce(&mut Rank)) -> Vec<Action> {
        if let Some(rank) = self.rank_mut(local) {
            change(rank);
        }
        Vec::new()
    }

    fn rank_mut(&mut self, local: u32) -> Option<&mut Rank> {
        self.ranks.get_mut(usize::try_from(local).ok()?)
    }

    /// Starts the rendezvous; a single node skips it.
    fn meet(&mut self, now: Timestamp) -> Vec<Action> {
        self.has_news = true;
        match &self.offer {
            Some(offer) if self.spec.node_count == 1 => self.start_ranks(now, offer.clone()),
            _ => {
                self.stage = Stage::Meeting(now + RENDEZVOUS_WAIT_MAX);
                Vec::new()
            }
        }
    }

    fn start_ranks(&mut self, now: Timestamp, rendezvous: Rendezvous) -> Vec<Action> {
        self.stage = Stage::Running(now);
        self.marks.ranks_started = Some(now.unix_nanos());
        self.has_news = true;
        for rank in &mut self.ranks {
            rank.life = Life::Kept;
            rank.sign_of_life(now);
        }
        vec![Action::StartRanks(rendezvous)]
    }

    fn setup_said(&mut self, now: Timestamp, event: ShimEvent) -> Vec<Action> {
        match event {
            ShimEvent::Started { .. } | ShimEvent::Alive { .. } => Vec::new(),
            ShimEvent::Ended { end, last_lines, .. } => self.setup_ended(now, end, last_lines),
            ShimEvent::NotStarted { message, is_platforms, .. } => {
                self.not_started(now, Problem { message, is_platforms });
                Vec::new()
            }
        }
    }

    fn setup_ended(&mut self, now: Timestamp, end: RankEnd, last_lines: Vec<String>) -> Vec<Action> {
        if !matches!(self.stage, Stage::Setup) {
            return Vec::new();
        }
        let code = match end {
            RankEnd::Exit(code) => code,
            RankEnd::Signal(signal) => 128 + signal,
        };
        if self.stop.is_some() {
            self.conclude();
        } else if code == 0 {
            return self.meet(now);
        } else {
            self.node_failed(now, FaultCause::Setup { code }, last_lines);
        }
        Vec::new()
    }

    fn shim_said(&mut self, now: Timestamp, local: u32, event: ShimEvent) -> Vec<Action> {
        let Some(rank) = self.rank_mut(local).filter(|rank| rank.is_kept()) else {
            return Vec::new();
        };
        let time = |at: u64| Timestamp::from_unix_nanos(at).min(now);
        match event {
            ShimEvent::Started { pid, at } => {
                rank.pid = Some(pid);
                rank.clock.process_started(time(at));
                rank.moved(time(at));
                self.has_news = true;
                Vec::new()
            }
            ShimEvent::Alive { at } => {
                rank.moved(time(at));
                Vec::new()
            }
            ShimEvent::Ended { at, end, last_lines, dropped } => {
                rank.dropped += dropped;
                let cause = EndCause::Process(end);
                self.rank_ended(now, local, Ending { at: time(at), noticed_at: now, cause, last_lines })
            }
            ShimEvent::NotStarted { at, message, is_platforms } => {
                let cause = EndCause::NotStarted(Problem { message, is_platforms });
                self.rank_ended(now, local, Ending { at: time(at), noticed_at: now, cause, last_lines: Vec::new() })
            }
        }
    }

    /// Handles the end of a shim that reported nothing: it was killed. Its rank dies with it, but the
    /// rank's children may not.
    fn shim_gone(&mut self, now: Timestamp, kept: Kept, end: RankEnd) -> Vec<Action> {
        let mut actions = match kept {
            Kept::Setup if matches!(self.stage, Stage::Setup) => self.setup_ended(now, end, Vec::new()),
            Kept::Rank(local) if self.rank_mut(local).is_some_and(|rank| rank.is_kept()) => {
                let cause = EndCause::Process(end);
                self.rank_ended(now, local, Ending { at: now, noticed_at: now, cause, last_lines: Vec::new() })
            }
            _ => return Vec::new(),
        };
        actions.insert(0, Action::KillOrphans);
        actions
    }

    fn rank_ended(&mut self, now: Timestamp, local: u32, ending: Ending) -> Vec<Action> {
        let (is_success, code) = (ending.is_success(), ending.exit_code());
        if let Some(rank) = self.rank_mut(local) {
            match code {
                Some(0 | rank::REQUEUE) => rank.clock.finish(ending.at),
                _ => rank.clock.fail(ending.at),
            }
            rank.life = Life::Ended(ending);
        }
        self.has_news = true;
        if self.ranks.iter().all(|rank| !rank.is_kept()) {
            self.conclude();
            return Vec::new();
        }
        if is_success {
            return Vec::new();
        }
        let stop = if code == Some(rank::REQUEUE) { Stop::after_requeue(now) } else { Stop::after_fault(now) };
        self.merge_stop(now, stop)
    }

    fn finished(&mut self, now: Timestamp, saved: Option<CheckpointSaved>) -> Vec<Action> {
        if matches!(self.stage, Stage::Finishing(..)) {
            saved.into_iter().for_each(|saved| self.saved(now, saved));
            self.end(now);
        }
        Vec::new()
    }

    fn heard(&mut self, now: Timestamp, local: u32, message: &RankMessage) -> Vec<Action> {
        // A rank that has ended may have said more than was read by then.
        self.readings.hear(now, local, message);
        message.checkpoint.into_iter().for_each(|saved| self.saved(now, saved));
        let Some(rank) = self.rank_mut(local).filter(|rank| rank.is_kept()) else { return Vec::new() };
        let was_restoring = rank.phase() == Some(Phase::Restore);
        let had_total = rank.total_steps.is_some();
        rank.hear(message, now);
        let is_restoring = rank.phase() == Some(Phase::Restore);
        self.has_news |= !had_total && message.total_steps.is_some();
        if self.marks.first_step.is_none() {
            let at = Some(now.unix_nanos());
            if is_restoring {
                self.marks.restore_began = self.marks.restore_began.or(at);
            }
            if was_restoring && !is_restoring {
                self.marks.restore_ended = at;
            }
            if message.step.is_some() {
                self.marks.first_step = at;
                self.has_news = true;
            }
        }
        self.sample(now, local, message);
        self.look_for_divergence(now, local)
    }

    /// Adds one sample for each step, from the first rank of this node that reports steps.
    fn sample(&mut self, now: Timestamp, local: u32, message: &RankMessage) {
        let speaker = self.ranks.iter().position(|rank| rank.clock.last_step().is_some());
        let is_speaker = speaker.and_then(|place| u32::try_from(place).ok()) == Some(local);
        if let Some(step) = message.step
            && is_speaker
            && self.last_sampled.is_none_or(|last| step > last)
        {
            self.last_sampled = Some(step);
            let tokens = self.ranks.iter().fold(0_u64, |sum, rank| sum.saturating_add(rank.tokens));
            let metric = self.spec.metric.as_ref().and_then(|name| message.metrics.get(name).copied());
            let metric = metric.map(Into::into);
            let is_diverged = matches!(message.metrics.get(LOSS), Some(MetricValue::Diverged));
            let (at, step, loss) = (now.unix_nanos(), step.0, message.loss);
            self.samples.push(Sample { at, step, loss, tokens, metric, is_diverged });
        }
    }

    fn saved(&mut self, now: Timestamp, saved: CheckpointSaved) {
        if self.checkpoint.is_none_or(|last| saved.step.0 > last.step) {
            self.checkpoint = Some(CheckpointReport { step: saved.step.0, bytes: saved.bytes.0, at: now.unix_nanos() });
            self.checkpoints += 1;
            self.checkpoint_bytes = self.checkpoint_bytes.saturating_add(saved.bytes.0);
            self.has_news = true;
        }
    }

    fn ordered(&mut self, now: Timestamp, orders: &Orders) -> Vec<Action> {
        self.last_contact = now;
        let is_progress = self.samples.acknowledge(orders.samples_stored);
        if matches!(self.stage, Stage::Ended(..)) {
            // The last samples are delivered too, as long as the control plane accepts them.
            let is_delivered = self.samples.is_empty() || !is_progress;
            self.end_acknowledged |= orders.end_acknowledged && self.end_sent && is_delivered;
            self.has_news |= !is_delivered;
            self.is_to_stay = orders.stay;
            return Vec::new();
        }
        if let Some(StopOrder { grace_ms, reason }) = &orders.stop {
            return self.stop_in_order(now, Duration::from_millis(*grace_ms), reason);
        }
        match (&self.stage, &orders.rendezvous) {
            (Stage::Meeting(_), Some(rendezvous)) => self.start_ranks(now, rendezvous.clone()),
            _ => Vec::new(),
        }
    }

    /// Saves and stops: tells the ranks at once; SIGTERM and SIGKILL follow as [`Stop::in_order`] describes.
    fn stop_in_order(&mut self, now: Timestamp, grace: Duration, reason: &str) -> Vec<Action> {
        match self.stage {
            Stage::Ended(..) | Stage::Clearing(..) | Stage::Finishing(..) => return Vec::new(),
            Stage::Meeting(_) => {
                self.stop = Some(Stop::in_order(now, grace, false));
                self.conclude();
                return Vec::new();
            }
            Stage::Setup | Stage::Running(_) => {}
        }
        let is_first = self.stop.as_ref().is_none_or(|stop| !stop.is_ordered);
        let is_connected = self.ranks.iter().any(|rank| rank.is_kept() && rank.connections > 0);
        let mut actions = Vec::new();
        if is_first {
            tracing::info!(reason, grace_ms = grace.as_millis(), "stopping the ranks");
            let grace_ms = u64::try_from(grace.as_millis()).unwrap_or(u64::MAX);
            actions.push(Action::Tell(RankOrder::SaveAndStop { grace_ms, reason: reason.to_owned() }));
        }
        actions.extend(self.merge_stop(now, Stop::in_order(now, grace, is_connected)));
        actions
    }

    pub(super) fn merge_stop(&mut self, now: Timestamp, new: Stop) -> Vec<Action> {
        self.stop = Some(match self.stop.take() {
            Some(earlier) => earlier.merged(new),
            None => new,
        });
        self.passed(now)
    }

    fn passed(&mut self, now: Timestamp) -> Vec<Action> {
        match self.stage {
            Stage::Ended(..) | Stage::Clearing(..) => return Vec::new(),
            Stage::Finishing(_, ended) => {
                if now >= ended + FINISHING_MAX {
                    self.end(now);
                }
                return Vec::new();
            }
            Stage::Meeting(until) if now >= until => {
                self.node_failed(now, FaultCause::Rendezvous, Vec::new());
                return Vec::new();
            }
            _ => {}
        }
        if self.stop.is_none() && self.is_orphan(now) {
            return self.stop_in_order(now, UNORDERED_GRACE, "no contact with the control plane for too long");
        }
        if matches!((&self.stage, &self.stop), (Stage::Running(_), None)) {
            return self.look_for_standstill(now);
        }
        match self.stop.as_mut().and_then(|stop| stop.command_due(now)) {
            Some(command) => self.kept().into_iter().map(|kept| Action::Command(kept, command)).collect(),
            None => Vec::new(),
        }
    }

    /// Returns the running shims.
    fn kept(&self) -> Vec<Kept> {
        match self.stage {
            Stage::Setup => vec![Kept::Setup],
            _ => {
                let running = (0..self.spec.ranks_per_node).zip(&self.ranks).filter(|(_, rank)| rank.is_kept());
                running.map(|(local, _)| Kept::Rank(local)).collect()
            }
        }
    }
}
