//! When each supervisor last reported, and how long its silence is normal.

use std::collections::BTreeMap;
use std::time::Duration;

use gangline_base::{JobId, NodeName, Timestamp};
use gangline_execution::timeouts::Timeouts;

use super::Timing;

/// The supervisors of live attempts.
#[derive(Default)]
pub(super) struct Contacts {
    heard: BTreeMap<(JobId, NodeName), Heard>,
}

struct Heard {
    at: Timestamp,
    /// The time within which the supervisor was told to report again.
    within: Duration,
}

impl Contacts {
    /// Notes that a supervisor reported, or that its silence counts from now for another reason. Returns the
    /// time within which it should report again: the heartbeat, or longer when so many supervisors report
    /// that they would keep the control plane busy.
    pub(super) fn hear(&mut self, job: JobId, node: NodeName, now: Timestamp, timing: &Timing) -> Duration {
        let within = self.heartbeat(timing);
        self.heard.insert((job, node), Heard { at: now, within });
        within
    }

    /// Returns how long a supervisor has been silent, if that is too long. For one that never reported,
    /// silence counts from `otherwise`.
    pub(super) fn silence(
        &self,
        share: &(JobId, NodeName),
        now: Timestamp,
        otherwise: Timestamp,
        timing: &Timing,
    ) -> Option<Duration> {
        let heard = self.heard.get(share);
        let silence = now.since(heard.map_or(otherwise, |heard| heard.at));
        (silence > self.patience(heard, timing)).then_some(silence)
    }

    /// Reports whether any supervisor of the node reported lately.
    pub(super) fn is_heard(&self, node: &NodeName, now: Timestamp, timing: &Timing) -> bool {
        let of_node = self.heard.iter().filter(|((_, name), _)| name == node);
        of_node.into_iter().any(|(_, heard)| now.since(heard.at) <= self.patience(Some(heard), timing))
    }

    /// Starts every supervisor's silence anew.
    pub(super) fn renew(&mut self, now: Timestamp) {
        self.heard.values_mut().for_each(|heard| heard.at = now);
    }

    /// Forgets a job whose attempt is over.
    pub(super) fn forget(&mut self, job: JobId) {
        self.heard.retain(|(of, _), _| *of != job);
    }

    fn heartbeat(&self, timing: &Timing) -> Duration {
        Timeouts::heartbeat_of(timing.heartbeat, self.heard.len())
    }

    /// After a restart the interval that a supervisor was told isn't known; the current one is used instead.
    fn patience(&self, heard: Option<&Heard>, timing: &Timing) -> Duration {
        let told = heard.map_or(Duration::ZERO, |heard| heard.within);
        timing.lease.max(Timeouts::silence_of(told.max(self.heartbeat(timing))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn node(number: usize) -> NodeName {
        NodeName::new(&format!("n{number}")).expect("a name")
    }

    #[test]
    fn many_supervisors_report_less_often_and_may_be_silent_for_longer() {
        let (timing, now) = (Timing::default(), Timestamp::from_unix_nanos(0));
        let mut contacts = Contacts::default();
        for number in 0..200 {
            assert_eq!(contacts.hear(JobId(1), node(number), now, &timing), timing.heartbeat);
        }
        for number in 200..1_000 {
            contacts.hear(JobId(2), node(number), now, &timing);
        }
        assert_eq!(
            contacts.hear(JobId(2), node(999), now, &timing),
            Duration::from_millis(2_500),
            "400 a second in all"
        );
        let silence = |contacts: &Contacts, job, number, at| {
            contacts.silence(&(JobId(job), node(number)), now + at, now, &timing)
        };
        assert_eq!(silence(&contacts, 1, 0, 7 * SECOND), None);
        assert_eq!(silence(&contacts, 1, 0, 8 * SECOND), Some(8 * SECOND));
        assert!(contacts.is_heard(&node(999), now + 7 * SECOND, &timing));
        assert!(!contacts.is_heard(&node(999), now + 8 * SECOND, &timing));
        contacts.forget(JobId(1));
        assert_eq!(silence(&contacts, 2, 999, 7 * SECOND), None, "it was told to report within 2.5 seconds");
        contacts.forget(JobId(2));
        assert_eq!(contacts.hear(JobId(3), node(1), now, &timing), timing.heartbeat);
        assert_eq!(silence(&contacts, 3, 1, 2 * SECOND), Some(2 * SECOND));
        contacts.renew(now + SECOND);
        assert_eq!(silence(&contacts, 3, 1, 2 * SECOND), None);
    }
}
