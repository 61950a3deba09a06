//! Stops a node's share of an attempt, and derives its outcome from the ends of its ranks.

use std::time::Duration;

use gangline_base::Timestamp;

use super::rank::{DO_NOT_RESTART, EndCause, Ending, REQUEUE, Rank};
use crate::protocol::Outcome;
use crate::shim::ShimCommand;
use crate::trouble::Problem;

/// How long ranks may take to end after SIGTERM when a peer has failed.
const FAULT_GRACE: Duration = Duration::from_secs(10);
/// How long ranks may take to end after SIGTERM when they hang.
const HANG_GRACE: Duration = Duration::from_secs(2);
/// How long peers may take to end by themselves when a rank has exited to be requeued.
const REQUEUE_WAIT_MAX: Duration = Duration::from_secs(30);
/// A rank that SIGTERM ended this shortly before an ordered stop was ended by the same initiator.
const SAME_BLOW: Duration = Duration::from_secs(1);
/// A rank that was killed this shortly after another failed counts as first. SIGKILL isn't a reaction to a
/// lost peer, but a peer notices a killed rank at once; and on a machine that paused for a moment both ends
/// are seen together, in any order.
const SAME_MOMENT: Duration = Duration::from_millis(500);
/// Interval at which SIGKILL is repeated for processes that can't die at once.
const KILL_AGAIN: Duration = Duration::from_secs(1);

/// A stop in progress.
#[derive(Clone, Debug)]
pub(super) struct Stop {
    /// Whether it is by order (or as an orphan), rather than because a rank ended.
    pub(super) is_ordered: bool,
    /// Ranks that end after this time end because of the stop.
    cutoff: Timestamp,
    terminate_at: Timestamp,
    is_terminated: bool,
    kill_at: Timestamp,
}

impl Stop {
    /// Stops by order: SIGKILL follows after the grace. If any rank of this node is connected to its socket,
    /// ranks are asked first and get SIGTERM only after three quarters of the grace; otherwise they get
    /// SIGTERM at once.
    pub(super) fn in_order(now: Timestamp, grace: Duration, is_connected: bool) -> Self {
        let terminate_at = if is_connected { now + grace / 4 * 3 } else { now };
        Stop { is_ordered: true, cutoff: now, terminate_at, is_terminated: false, kill_at: now + grace }
    }

    /// Stops after a rank failed: the others get SIGTERM now.
    pub(super) fn after_fault(now: Timestamp) -> Self {
        let kill_at = now + FAULT_GRACE;
        Stop { is_ordered: false, cutoff: now, terminate_at: now, is_terminated: false, kill_at }
    }

    /// Stops after a hang: SIGTERM for ranks that can still end cleanly, and a short grace for those that
    /// can't.
    pub(super) fn after_hang(now: Timestamp) -> Self {
        let kill_at = now + HANG_GRACE;
        Stop { is_ordered: false, cutoff: now, terminate_at: now, is_terminated: false, kill_at }
    }

    /// Stops after a rank has saved and exited to be requeued: the others are expected to do the same.
    pub(super) fn after_requeue(now: Timestamp) -> Self {
        let terminate_at = now + REQUEUE_WAIT_MAX;
        let kill_at = terminate_at + FAULT_GRACE;
        Stop { is_ordered: false, cutoff: terminate_at, terminate_at, is_terminated: false, kill_at }
    }

    /// Merges two stops: each part takes effect at the earlier time.
    pub(super) fn merged(self, other: Stop) -> Self {
        Stop {
            is_ordered: self.is_ordered || other.is_ordered,
            cutoff: self.cutoff.min(other.cutoff),
            terminate_at: self.terminate_at.min(other.terminate_at),
            is_terminated: self.is_terminated,
            kill_at: self.kill_at.min(other.kill_at),
        }
    }

    /// Reports whether a rank's end was caused by the stop. Whoever ends everything (`scancel`, systemd, a
    /// container runtime) sends SIGTERM to ranks and supervisor at once, and a rank may be the first to die
    /// of it.
    pub(super) fn has_ended(&self, ending: &Ending) -> bool {
        let is_same_blow = self.is_ordered && ending.is_terminated() && ending.at + SAME_BLOW >= self.cutoff;
        ending.at > self.cutoff || is_same_blow
    }

    /// Returns when the next signal is due.
    pub(super) fn deadline(&self) -> Timestamp {
        if self.is_terminated { self.kill_at } else { self.terminate_at.min(self.kill_at) }
    }

    /// Returns the signal that is due, if any, and counts it as sent.
    pub(super) fn command_due(&mut self, now: Timestamp) -> Option<ShimCommand> {
        if now >= self.kill_at {
            self.is_terminated = true;
            self.kill_at = now + KILL_AGAIN;
            Some(ShimCommand::Kill)
        } else if !self.is_terminated && now >= self.terminate_at {
            self.is_terminated = true;
            Some(ShimCommand::Terminate)
        } else {
            None
        }
    }
}

/// Derives the outcome from the ends of all ranks. The root cause is the first failure by time (then by rank)
/// that the stop didn't cause, or a rank that was killed at the same moment.
pub(super) fn of_ranks(ranks: &[Rank], stop: Option<&Stop>) -> Outcome {
    let endings: Vec<(&Rank, &Ending)> = ranks.iter().filter_map(|rank| Some((rank, rank.ending()?))).collect();
    if !ranks.is_empty() && endings.len() == ranks.len() && endings.iter().all(|(_, ending)| ending.is_success()) {
        return Outcome::Succeeded;
    }
    let failures = endings.iter().filter(|(_, ending)| !ending.is_success());
    let of_their_own = failures.clone().filter(|(_, ending)| stop.is_none_or(|stop| !stop.has_ended(ending)));
    let said = |code: i32| failures.clone().find(|(_, ending)| ending.exit_code() == Some(code));
    let first = of_their_own.min_by_key(|(rank, ending)| (ending.at, rank.number));
    let is_ordered = stop.is_some_and(|stop| stop.is_ordered);
    let is_before =
        |first: &Ending, other: &Ending| !is_ordered && other.is_killed() && other.at <= first.at + SAME_MOMENT;
    if let Some((rank, ending)) = first {
        let killed = failures.clone().find(|(_, other)| is_before(ending, other));
        killed.map_or_else(|| by_code(rank, ending), |(rank, ending)| by_code(rank, ending))
    } else if let Some((rank, ending)) = said(DO_NOT_RESTART).or(said(REQUEUE)) {
        by_code(rank, ending)
    } else {
        Outcome::Stopped
    }
}

fn by_code(rank: &Rank, ending: &Ending) -> Outcome {
    if let EndCause::NotStarted(Problem { message, is_platforms: true }) = &ending.cause {
        return Outcome::Unable { message: message.clone() };
    }
    match ending.exit_code() {
        Some(REQUEUE) => Outcome::Requeue,
        Some(DO_NOT_RESTART) => Outcome::DoNotRestart { fault: rank.fault(ending) },
        _ => Outcome::Fault { fault: rank.fault(ending) },
    }
}
