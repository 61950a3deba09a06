//! How a node's share of an attempt is stopped, and how its ranks' ends add up to one outcome.

use std::time::Duration;

use gangline_base::Timestamp;

use super::rank::{DO_NOT_RESTART, EndCause, Ending, REQUEUE, Rank};
use crate::keeper::KeeperCommand;
use crate::protocol::Outcome;
use crate::trouble::Problem;

/// How long ranks may take to end after SIGTERM when a peer has failed.
const FAULT_GRACE: Duration = Duration::from_secs(10);
/// The same when they have come to a stand.
const HANG_GRACE: Duration = Duration::from_secs(2);
/// How long peers may take to end by themselves when a rank has exited to be requeued.
const REQUEUE_WAIT_MAX: Duration = Duration::from_secs(30);
/// A rank that was terminated so shortly before an ordered stop was terminated by who stops it.
const SAME_BLOW: Duration = Duration::from_secs(1);
/// A rank that was killed so shortly after another failed was killed before: nobody dies of SIGKILL because a peer is gone, but a peer
/// notices at once, and on a machine that stood still for a moment both ends are seen together, in any order.
const SAME_MOMENT: Duration = Duration::from_millis(500);
/// SIGKILL is repeated for what can't die at once.
const KILL_AGAIN: Duration = Duration::from_secs(1);

/// A stop in progress.
#[derive(Clone, Debug)]
pub(super) struct Stop {
    /// By order (or as an orphan), rather than because a rank ended.
    pub(super) is_ordered: bool,
    /// Ranks that end after this end because of the stop.
    cutoff: Timestamp,
    terminate_at: Timestamp,
    is_terminated: bool,
    kill_at: Timestamp,
}

impl Stop {
    /// By order: SIGKILL after the grace. Ranks that can hear (any of the gang's here is connected to its socket) are
    /// asked first, and get SIGTERM only after three quarters of it; others get SIGTERM at once.
    pub(super) fn in_order(now: Timestamp, grace: Duration, is_connected: bool) -> Self {
        let terminate_at = if is_connected { now + grace / 4 * 3 } else { now };
        Stop { is_ordered: true, cutoff: now, terminate_at, is_terminated: false, kill_at: now + grace }
    }

    /// A rank failed: the others get SIGTERM now.
    pub(super) fn after_fault(now: Timestamp) -> Self {
        let kill_at = now + FAULT_GRACE;
        Stop { is_ordered: false, cutoff: now, terminate_at: now, is_terminated: false, kill_at }
    }

    /// The ranks came to a stand: SIGTERM for what can still end well, and little patience with what can't.
    pub(super) fn after_hang(now: Timestamp) -> Self {
        let kill_at = now + HANG_GRACE;
        Stop { is_ordered: false, cutoff: now, terminate_at: now, is_terminated: false, kill_at }
    }

    /// A rank has saved and left to be requeued: the others surely do so too.
    pub(super) fn after_requeue(now: Timestamp) -> Self {
        let terminate_at = now + REQUEUE_WAIT_MAX;
        let kill_at = terminate_at + FAULT_GRACE;
        Stop { is_ordered: false, cutoff: terminate_at, terminate_at, is_terminated: false, kill_at }
    }

    /// Two reasons to stop: whatever comes first.
    pub(super) fn merged(self, other: Stop) -> Self {
        Stop {
            is_ordered: self.is_ordered || other.is_ordered,
            cutoff: self.cutoff.min(other.cutoff),
            terminate_at: self.terminate_at.min(other.terminate_at),
            is_terminated: self.is_terminated,
            kill_at: self.kill_at.min(other.kill_at),
        }
    }

    /// Whether a rank ended like this because of it. Who ends everything (`scancel`, systemd, a container's runtime) sends SIGTERM to ranks
    /// and supervisor at once, and a rank may be the first to die of it.
    fn has_ended(&self, ending: &Ending) -> bool {
        let is_same_blow = self.is_ordered && ending.is_terminated() && ending.at + SAME_BLOW >= self.cutoff;
        ending.at > self.cutoff || is_same_blow
    }

    /// When the next signal is due.
    pub(super) fn deadline(&self) -> Timestamp {
        if self.is_terminated { self.kill_at } else { self.terminate_at.min(self.kill_at) }
    }

    /// The signal that is due, if one is; it counts as sent.
    pub(super) fn command_due(&mut self, now: Timestamp) -> Option<KeeperCommand> {
        if now >= self.kill_at {
            self.is_terminated = true;
            self.kill_at = now + KILL_AGAIN;
            Some(KeeperCommand::Kill)
        } else if !self.is_terminated && now >= self.terminate_at {
            self.is_terminated = true;
            Some(KeeperCommand::Terminate)
        } else {
            None
        }
    }
}

/// What the ends of all ranks add up to. The root cause is the first failure by time (then by rank) that the stop didn't
/// cause, or what was killed in the same moment.
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
