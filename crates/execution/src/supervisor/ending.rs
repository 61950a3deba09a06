//! The end of an attempt on this node, on the disk: for the next supervisor, and for whoever started this one.

use std::io;
use std::path::Path;
use std::time::Duration;

use gangline_base::Timestamp;

use super::END_FILE;
use super::node_attempt::{NodeAttempt, Stage};
use super::rank::{DO_NOT_RESTART, REQUEUE};
use crate::files::write_durably;
use crate::protocol::{FaultCause, NodeState, Outcome, Report};

/// The file in a share's folder with the exit code by which a workload manager tells how the attempt ended there.
pub(crate) const EXIT_CODE_FILE: &str = "exit-code";
/// The exit code of what was told to stop: as of a process that SIGTERM ended.
pub(crate) const STOPPED_CODE: i32 = 143;
/// Follows that code in the file if it was the control plane who told it.
pub(crate) const STOPPED: &str = "stopped";

/// Records the last report of an attempt.
pub(super) fn record(folder: &Path, report: &Report) -> io::Result<()> {
    if let NodeState::Ended { outcome, .. } = &report.state {
        let by_whom = if *outcome == Outcome::Stopped { format!(" {STOPPED}") } else { String::new() };
        // Only what Slurm says of the end depends on this file.
        let _ = std::fs::write(folder.join(EXIT_CODE_FILE), format!("{}{by_whom}\n", exit_code(outcome)));
    }
    serde_json::to_vec(report).map_err(io::Error::from).and_then(|bytes| write_durably(&folder.join(END_FILE), &bytes))
}

/// Returns the exit code that tells an outcome: that of the rank that failed first, and 128 + N for signal N, as shells have it.
fn exit_code(outcome: &Outcome) -> i32 {
    match outcome {
        Outcome::Succeeded => 0,
        Outcome::DoNotRestart { .. } => DO_NOT_RESTART,
        Outcome::Requeue => REQUEUE,
        Outcome::Stopped | Outcome::Terminated => STOPPED_CODE,
        Outcome::Unable { .. } => 1,
        Outcome::Fault { fault } => match fault.cause {
            FaultCause::Exit { code } | FaultCause::Setup { code } if code != 0 => code & 0xff,
            FaultCause::Signal { signal } => 128 + signal,
            _ => 1,
        },
    }
}

impl NodeAttempt {
    /// Returns when this supervisor gives the control plane up if nothing is heard of it until then. After an end that is on the
    /// disk that may be sooner: nothing is lost then, since the next control plane finds it there.
    pub(super) fn orphaned_at(&self) -> Timestamp {
        let orphaned_at = self.last_contact + Duration::from_millis(self.spec.orphan_after_ms);
        match (&self.stage, self.spec.end_wait_ms) {
            (Stage::Ended(at, _), Some(wait)) if self.is_end_recorded => {
                orphaned_at.min(self.last_contact.max(*at) + Duration::from_millis(wait))
            }
            _ => orphaned_at,
        }
    }

    pub(super) fn is_orphan(&self, now: Timestamp) -> bool {
        now >= self.orphaned_at()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::Fault;

    #[test]
    fn a_failure_has_the_code_of_its_rank() {
        let fault = |cause| Outcome::Fault {
            fault: Fault {
                rank: Some(0),
                cause,
                noticed_at: 0,
                last_sign_of_life: 0,
                diagnosis: None,
                last_lines: Vec::new(),
            },
        };
        assert_eq!(exit_code(&Outcome::Succeeded), 0);
        assert_eq!(exit_code(&fault(FaultCause::Exit { code: 7 })), 7);
        assert_eq!(exit_code(&fault(FaultCause::Signal { signal: 9 })), 137);
        assert_eq!(exit_code(&fault(FaultCause::Hang { silent_ms: 1, limit_ms: 1 })), 1);
        assert_eq!(exit_code(&Outcome::Stopped), 143);
        assert_eq!(exit_code(&Outcome::Requeue), 94);
    }
}
