//! The end of a node's share of an attempt waits until all the ranks' processes are gone. A killed process
//! holds its memory and devices until the kernel has dismantled it, which takes seconds for a large one and
//! for ever for one that hangs in a driver.
//!
//! Keeps A-5: until then the share hasn't ended, so its devices aren't given away.

use std::thread::sleep;
use std::time::{Duration, Instant};

use gangline_base::Timestamp;
use tokio::sync::mpsc::Sender;

use super::input::{Action, Input};
use super::node_attempt::{NodeAttempt, Stage};
use super::outcome;
use crate::process::{descendants, described, kill_all, own_pid, stat};
use crate::protocol::{FaultCause, NodeFinding, Outcome};
use crate::trouble::Problem;

/// Interval between two checks of what is left. No event tells that a process which isn't a child has gone.
const LOOK_AGAIN: Duration = Duration::from_millis(2);
/// The interval once it takes long.
const LOOK_AGAIN_LATER: Duration = Duration::from_millis(200);
/// A process that is still there this long after it was killed is reported.
const TOLD_AFTER: Duration = Duration::from_secs(30);
/// Maximum number of processes that are reported.
const TOLD_MAX: usize = 8;

/// Kills the remaining processes of ranks and setup, and sends [`Input::Cleared`] once all are gone.
pub(super) fn clear(inputs: &Sender<Input>) {
    let began = Instant::now();
    let mut told = false;
    loop {
        let left = left_behind(&[]);
        if left.is_empty() {
            // The receiver is gone if the supervisor has been told to end.
            let _ = inputs.blocking_send(Input::Cleared);
            return;
        }
        kill_all(&left);
        if !told && began.elapsed() >= TOLD_AFTER {
            told = true;
            let _ = inputs.blocking_send(Input::Remaining(left.into_iter().take(TOLD_MAX).collect()));
        }
        let pause = if began.elapsed() < Duration::from_secs(1) { LOOK_AGAIN } else { LOOK_AGAIN_LATER };
        sleep(pause);
    }
}

/// Returns the living processes of ranks and setup, except those of the `spared` shims. Shims, and thus
/// their children, have sessions of their own; processes that the supervisor starts to check the node are in
/// its own session.
pub(super) fn left_behind(spared: &[u32]) -> Vec<u32> {
    let own = stat(own_pid()).map(|stat| stat.session);
    let is_foreign = |pid: &u32| stat(*pid).is_some_and(|stat| Some(stat.session) != own);
    descendants(own_pid(), spared).into_iter().filter(is_foreign).collect()
}

impl NodeAttempt {
    /// Begins the end: it comes once no process is left.
    pub(super) fn conclude(&mut self) {
        let since = match self.stage {
            Stage::Running(since) => Some(since),
            _ => None,
        };
        self.stage = Stage::Clearing(since);
        self.has_news = true;
    }

    /// Handles that no process is left. Saves that the ranks had begun are finished first, if the ranks ran.
    pub(super) fn cleared(&mut self, now: Timestamp) -> Vec<Action> {
        match self.stage {
            Stage::Clearing(Some(since)) if self.has_staging => {
                self.stage = Stage::Finishing(since, now);
                vec![Action::FinishStaged]
            }
            Stage::Clearing(..) => {
                self.end(now);
                Vec::new()
            }
            _ => Vec::new(),
        }
    }

    /// Handles processes that don't die: the node is faulty, and keeps the job's devices.
    pub(super) fn remaining(&mut self, pids: &[u32]) -> Vec<Action> {
        let left: Vec<String> = pids.iter().map(|pid| described(*pid)).collect();
        let measured = format!(
            "{} can't be killed: still there {} s after SIGKILL; the devices of job-{} stay held until it is gone",
            left.join(", "),
            TOLD_AFTER.as_secs(),
            self.spec.job
        );
        tracing::error!(measured, "processes of the ranks are left");
        self.findings.push(NodeFinding { place: "processes of a job that has ended".to_owned(), measured });
        self.has_news = true;
        Vec::new()
    }

    /// Handles a failed start before any rank ran: a fault of the node, or nobody's.
    pub(super) fn not_started(&mut self, now: Timestamp, problem: Problem) {
        let Problem { message, is_platforms } = problem;
        if is_platforms {
            tracing::error!(message, "this node can't start anything now");
            self.unable = Some(message);
            self.conclude();
        } else {
            self.node_failed(now, FaultCause::Start { message }, Vec::new());
        }
    }

    fn is_stop_ordered(&self) -> bool {
        self.stop.as_ref().is_some_and(|stop| stop.is_ordered)
    }

    pub(super) fn end(&mut self, now: Timestamp) {
        let outcome = match (self.node_fault.take(), self.unable.take()) {
            (Some(fault), _) => Outcome::Fault { fault },
            (None, Some(message)) => Outcome::Unable { message },
            (None, None) => outcome::of_ranks(&self.ranks, self.stop.as_ref()),
        };
        // Ranks that saved and exited with 94 did so because the supervisor was told to end, which matters more.
        let is_theirs = matches!(outcome, Outcome::Stopped) || outcome == Outcome::Requeue && !self.is_stop_ordered();
        let outcome = if is_theirs && self.is_terminated { Outcome::Terminated } else { outcome };
        tracing::info!(?outcome, "ended");
        self.stage = Stage::Ended(now, outcome);
        self.has_news = true;
    }
}

#[cfg(test)]
mod tests {
    use super::super::node_attempt_tests::{Tested, running};
    use super::*;
    use crate::protocol::NodeState;
    use crate::shim::{RankEnd, ShimEvent};
    use crate::supervisor::input::Kept;

    fn at(millis: u64) -> Timestamp {
        Timestamp::EPOCH + Duration::from_millis(millis)
    }

    fn ended(node_attempt: &mut Tested, millis: u64) {
        let event =
            ShimEvent::Ended { at: at(millis).unix_nanos(), end: RankEnd::Exit(1), last_lines: Vec::new(), dropped: 0 };
        let actions = NodeAttempt::apply(node_attempt, at(millis), Input::Shim(Kept::Rank(0), event));
        assert_eq!(actions, []);
    }

    /// Proves A-5 for a process that doesn't die: the share keeps its devices, and reports why.
    #[test]
    fn an_end_waits_for_the_last_process_and_one_that_stays_is_told() {
        let mut node_attempt = running(1);
        ended(&mut node_attempt, 5);
        let is_running = |node_attempt: &mut Tested, millis| {
            matches!(node_attempt.report(at(millis)).state, NodeState::Running { since: 0 })
                && !node_attempt.is_over(at(millis))
        };
        assert!(is_running(&mut node_attempt, 6));
        assert!(node_attempt.deadline() > at(10_000_000), "nothing ends that wait but the end of the process");
        assert_eq!(
            NodeAttempt::apply(&mut node_attempt, at(200_000), Input::Tick),
            [],
            "an orphan has nothing to stop any more"
        );
        NodeAttempt::apply(&mut node_attempt, at(200_001), Input::Remaining(vec![own_pid()]));
        let finding = node_attempt.report(at(200_001)).findings.remove(0);
        assert!(finding.measured.contains(&own_pid().to_string()) && finding.measured.contains("can't be killed"));
        assert!(is_running(&mut node_attempt, 900_000));
        NodeAttempt::apply(&mut node_attempt, at(900_001), Input::Cleared);
        assert!(matches!(node_attempt.report(at(900_002)).state, NodeState::Ended { at, .. } if at == 900_001_000_000));
    }

    #[test]
    fn what_the_platform_lacks_at_the_start_is_told_apart_from_what_the_job_asked_for() {
        let end = |is_platforms| {
            let mut node_attempt = running(1);
            node_attempt.not_started(at(1), Problem { message: "no room".to_owned(), is_platforms });
            NodeAttempt::apply(&mut node_attempt, at(2), Input::Cleared);
            node_attempt.report(at(3)).state
        };
        let unable = Outcome::Unable { message: "no room".to_owned() };
        assert!(matches!(end(true), NodeState::Ended { outcome, .. } if outcome == unable));
        assert!(matches!(end(false), NodeState::Ended { outcome: Outcome::Fault { .. }, .. }));
    }

    #[test]
    fn a_rank_that_could_not_be_started_for_want_of_processes_is_not_to_blame() {
        let end = |is_platforms| {
            let mut node_attempt = running(1);
            let event = ShimEvent::NotStarted { at: 1, message: "os error 11".to_owned(), is_platforms };
            NodeAttempt::apply(&mut node_attempt, at(1), Input::Shim(Kept::Rank(0), event));
            NodeAttempt::apply(&mut node_attempt, at(2), Input::Cleared);
            node_attempt.report(at(3)).state
        };
        assert!(matches!(end(true), NodeState::Ended { outcome: Outcome::Unable { .. }, .. }));
        assert!(matches!(end(false), NodeState::Ended { outcome: Outcome::Fault { .. }, .. }));
    }

    #[test]
    fn what_the_supervisor_starts_itself_is_not_left_behind_by_a_rank() {
        let mut helper = std::process::Command::new("sleep").arg("60").spawn().expect("sleep starts");
        let mut rank = std::process::Command::new("setsid").args(["sleep", "60"]).spawn().expect("setsid starts");
        while !left_behind(&[]).contains(&rank.id()) {
            std::thread::yield_now();
        }
        assert!(!left_behind(&[]).contains(&helper.id()) && !left_behind(&[rank.id()]).contains(&rank.id()));
        for child in [&mut helper, &mut rank] {
            child.kill().expect("it runs");
            child.wait().expect("it can be reaped");
        }
    }
}
