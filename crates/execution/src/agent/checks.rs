//! Checks the node again and again, on a thread of its own.

use std::io;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::thread::Builder;
use std::time::Duration;

use super::AgentOptions;
use crate::health::node::{self, Check, Expectations, Guard};
use crate::health::{Finding, Verdict};
use crate::protocol::agent::{AgentFinding, FINDINGS_MAX};

/// The checks that cost next to nothing.
const CHEAP: [&str; 6] = ["gpu", "kernel-log", "space", "memory", "network", "infiniband"];
/// The longest that a round takes.
const ROUND_MAX: Duration = Duration::from_secs(45);
/// How far back the kernel's log is read: what is older was found by an earlier round, and may have been repaired.
const KERNEL_LOG_WINDOW: Duration = Duration::from_secs(10 * 60);

/// See the module.
#[derive(Debug)]
pub(super) struct Checks {
    found: Receiver<Vec<AgentFinding>>,
    /// The thread ends when this is gone.
    _until: SyncSender<()>,
}

impl Checks {
    pub(super) fn start(options: &AgentOptions) -> io::Result<Checks> {
        let standard = Expectations::default();
        let expectations = Expectations {
            kernel_log: options.kernel_log.clone().unwrap_or(standard.kernel_log),
            kernel_log_window: KERNEL_LOG_WINDOW,
            kernel_rules: options.kernel_rules.clone(),
            ..Expectations::default()
        };
        let guard = Guard { program: options.program.clone(), timeout: None };
        let every = options.check_every;
        let (say, found) = sync_channel(1);
        let (until, ended) = sync_channel::<()>(0);
        let look = move || {
            let checks: Vec<&Check> = CHEAP.iter().filter_map(|name| node::named(name)).collect();
            loop {
                let findings = guard.run(&checks, &expectations, ROUND_MAX, &mut |_| ());
                // A round that nobody has taken yet is as good as this one.
                let _ = say.try_send(problems(findings));
                if ended.recv_timeout(every) != Err(RecvTimeoutError::Timeout) {
                    return;
                }
            }
        };
        Builder::new().name("checks".to_owned()).spawn(look)?;
        Ok(Checks { found, _until: until })
    }

    /// Returns what the last round found, if one has ended since the last call.
    pub(super) fn latest(&self) -> Option<Vec<AgentFinding>> {
        self.found.try_iter().last()
    }
}

/// Returns what somebody should act on, faults first.
fn problems(findings: Vec<Finding>) -> Vec<AgentFinding> {
    let mut problems: Vec<AgentFinding> = Vec::new();
    for finding in findings.into_iter().filter(|finding| finding.verdict.is_problem()) {
        let (place, is_fault) = (finding.place(), finding.verdict >= Verdict::Failed);
        problems.push(AgentFinding { place, measured: finding.measured, is_fault });
    }
    problems.sort_by_key(|problem| !problem.is_fault);
    problems.dedup_by(|one, other| one.place == other.place);
    problems.truncate(FINDINGS_MAX);
    problems
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn faults_come_first_and_what_is_fine_is_not_told() {
        let finding = |place: &str, verdict| Finding { verdict, ..Finding::fine(place, "measured") };
        let found = problems(vec![
            finding("a", Verdict::Fine),
            finding("b", Verdict::Warning),
            finding("c", Verdict::Hung),
            finding("d", Verdict::Unknown),
        ]);
        let told: Vec<(&str, bool)> = found.iter().map(|found| (found.place.trim(), found.is_fault)).collect();
        assert_eq!(told, [("c", true), ("b", false)]);
        let checks: Vec<_> = CHEAP.iter().filter_map(|name| node::named(name)).collect();
        assert!(checks.len() == CHEAP.len() && checks.iter().all(|check| !check.measures), "they only look");
    }
}
