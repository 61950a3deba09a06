//! The ladder of time-outs, each tied to the one below: whoever waits longer can rely on those who wait for
//! less time having acted. Printed by `gangline show --timeouts`.
//!
//! Other systems configure each of these separately, so they can cross, and nobody can set them right
//! (pytorch/torchtitan#2899, pytorch/torchft#329).

use std::time::Duration;

/// The time-outs. Derived from the heartbeat alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timeouts {
    /// Interval between a supervisor's reports.
    pub heartbeat: Duration,
    /// Silence of a supervisor after which its launcher is asked whether it lives.
    pub silence: Duration,
    /// Minimum silence of a rank that counts as a hang, however short its steps.
    pub step: Duration,
    /// How long a gang's nodes wait for one another.
    pub rendezvous: Duration,
    /// How long ranks run on without the control plane.
    pub lease: Duration,
    /// Silence of a running supervisor after which its launcher kills it.
    pub launcher: Duration,
}

/// One rung of the ladder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timeout {
    /// Its name.
    pub name: &'static str,
    /// Its length.
    pub after: Duration,
    /// Its factor over the rung below; none for the lowest.
    pub times_the_one_below: Option<u32>,
    /// What happens when it expires.
    pub then: &'static str,
}

/// Reports that a control plane accepts in a second: what a tenth of one core handles (`cargo xtask bench
/// recovery --only heartbeats`). Where supervisors would exceed it, they report less often.
const REPORTS_A_SECOND_MAX: u32 = 400;
const SILENCE_TIMES: u32 = 3;
const STEP_TIMES: u32 = 19;
const RENDEZVOUS_TIMES: u32 = 20;
const LEASE_TIMES: u32 = 2;
const LAUNCHER_TIMES: u32 = 2;

impl Timeouts {
    /// The ladder for a heartbeat of half a second.
    pub const DEFAULT: Timeouts = Timeouts::derived(Duration::from_millis(500));

    /// Derives the ladder from a heartbeat.
    #[must_use]
    pub const fn derived(heartbeat: Duration) -> Timeouts {
        let silence = heartbeat.saturating_mul(SILENCE_TIMES);
        let step = silence.saturating_mul(STEP_TIMES);
        let rendezvous = step.saturating_mul(RENDEZVOUS_TIMES);
        let lease = rendezvous.saturating_mul(LEASE_TIMES);
        Timeouts { heartbeat, silence, step, rendezvous, lease, launcher: lease.saturating_mul(LAUNCHER_TIMES) }
    }

    /// Returns the reporting interval for this number of supervisors: the heartbeat, or longer if together
    /// they would report more than 400 times a second.
    #[must_use]
    pub fn heartbeat_of(heartbeat: Duration, supervisors: usize) -> Duration {
        let supervisors = u32::try_from(supervisors).unwrap_or(u32::MAX);
        heartbeat.max(Duration::from_secs(1) / REPORTS_A_SECOND_MAX * supervisors)
    }

    /// Returns the silence that is significant for a supervisor with this reporting interval.
    #[must_use]
    pub fn silence_of(heartbeat: Duration) -> Duration {
        heartbeat.saturating_mul(SILENCE_TIMES)
    }

    /// Returns the rungs, lowest first.
    #[must_use]
    pub fn rungs(&self) -> [Timeout; 6] {
        let rung = |name, after, times, then| Timeout { name, after, times_the_one_below: times, then };
        [
            rung(
                "heartbeat",
                self.heartbeat,
                None,
                "a supervisor reports (less often where more than 200 do: 400 reports a second in all)",
            ),
            rung(
                "silence",
                self.silence,
                Some(SILENCE_TIMES),
                "the launcher is asked whether a silent supervisor lives; if not, its ranks are killed and the gang recovers",
            ),
            rung(
                "step",
                self.step,
                Some(STEP_TIMES),
                "a rank without progress has hung, if five times its longest recent step have passed too (recovery.hang_timeout sets another)",
            ),
            rung(
                "rendezvous",
                self.rendezvous,
                Some(RENDEZVOUS_TIMES),
                "a node whose peers haven't come gives the attempt up",
            ),
            rung(
                "lease",
                self.lease,
                Some(LEASE_TIMES),
                "a supervisor that can't reach the control plane has its ranks save, and stops them",
            ),
            rung(
                "launcher",
                self.launcher,
                Some(LAUNCHER_TIMES),
                "a supervisor that runs but hasn't reported is killed by its launcher, and the gang recovers",
            ),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_rung_is_so_many_times_the_one_below() {
        for timeouts in [Timeouts::DEFAULT, Timeouts::derived(Duration::from_millis(20))] {
            let rungs = timeouts.rungs();
            assert_eq!((rungs[0].after, rungs[0].times_the_one_below), (timeouts.heartbeat, None));
            for pair in rungs.windows(2) {
                let times = pair[1].times_the_one_below.expect("it stands on one");
                assert_eq!(pair[1].after, pair[0].after * times, "{}", pair[1].name);
                assert!(times > 1, "{} is longer than what it counts on", pair[1].name);
            }
        }
    }
}
