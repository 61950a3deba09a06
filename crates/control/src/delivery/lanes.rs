//! Which message is tried next: one lane of messages for each destination.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use gangline_base::Timestamp;
use tracing::warn;

use super::{Delivery, Destination, Failure, Message, Timing};

/// Messages that may wait in all lanes together.
const WAITING_MAX: usize = 10_000;

/// The messages to one destination.
#[derive(Debug)]
struct Lane {
    /// Oldest first, each with the time since which it waits.
    messages: VecDeque<(Timestamp, Message)>,
    not_before: Timestamp,
    pause: Duration,
}

/// The messages that wait.
#[derive(Debug)]
pub(super) struct Lanes {
    lanes: BTreeMap<Destination, Lane>,
    waiting: usize,
    timing: Timing,
}

impl Lanes {
    pub(super) fn new(timing: Timing) -> Lanes {
        Lanes { lanes: BTreeMap::new(), waiting: 0, timing }
    }

    /// Adds a message, or drops it if too many wait.
    pub(super) fn add(&mut self, now: Timestamp, Delivery { to, message }: Delivery) {
        if self.waiting >= WAITING_MAX {
            warn!(%to, "a message is dropped: {WAITING_MAX} others wait to be delivered");
            return;
        }
        self.waiting += 1;
        let pause = self.timing.pause;
        let lane = self.lanes.entry(to);
        let lane = lane.or_insert_with(|| Lane { messages: VecDeque::new(), not_before: now, pause });
        lane.messages.push_back((now, message));
    }

    /// Returns when the next message is due; none if none waits.
    pub(super) fn next_due(&self) -> Option<Timestamp> {
        self.lanes.values().map(|lane| lane.not_before).min()
    }

    /// Returns a message that is due.
    pub(super) fn due(&self, now: Timestamp) -> Option<Delivery> {
        let (to, lane) =
            self.lanes.iter().filter(|(_, lane)| lane.not_before <= now).min_by_key(|(_, it)| it.not_before)?;
        let (_, message) = lane.messages.front()?;
        Some(Delivery { to: to.clone(), message: message.clone() })
    }

    /// Takes in how the try of a destination's first message went.
    pub(super) fn tried(&mut self, now: Timestamp, to: &Destination, outcome: Result<(), Failure>) {
        let Some(lane) = self.lanes.get_mut(to) else { return };
        match outcome {
            Ok(()) | Err(Failure::ForGood(_)) => {
                lane.messages.pop_front();
                self.waiting -= 1;
                (lane.not_before, lane.pause) = (now, self.timing.pause);
            }
            Err(Failure::ForNow { pause, .. }) => {
                lane.not_before = now + pause.unwrap_or_default().max(lane.pause).min(self.timing.pause_max);
                lane.pause = (lane.pause * 2).min(self.timing.pause_max);
                let age_max = self.timing.age_max;
                while lane.messages.front().is_some_and(|(since, _)| now.since(*since) >= age_max) {
                    lane.messages.pop_front();
                    self.waiting -= 1;
                    warn!(%to, "a message is given up: it was tried for {} s", age_max.as_secs());
                }
            }
        }
        self.lanes.retain(|_, lane| !lane.messages.is_empty());
    }
}

#[cfg(test)]
mod tests {
    use gangline_base::{EmailAddress, WebhookUrl};
    use serde_json::Value;

    use super::*;

    fn at(seconds: u64) -> Timestamp {
        Timestamp::EPOCH + Duration::from_secs(seconds)
    }

    fn delivery(to: &Destination, subject: &str) -> Delivery {
        let message = Message { subject: subject.to_owned(), text: String::new(), body: Value::Null };
        Delivery { to: to.clone(), message }
    }

    fn subject(lanes: &Lanes, seconds: u64) -> Option<String> {
        lanes.due(at(seconds)).map(|delivery| delivery.message.subject)
    }

    fn later(pause: Option<Duration>) -> Result<(), Failure> {
        Err(Failure::ForNow { cause: String::new(), pause })
    }

    #[test]
    fn a_failing_destination_waits_alone_and_is_tried_ever_more_rarely_until_its_message_is_too_old() {
        let dead = Destination::Webhook(WebhookUrl::new("http://dead/").expect("a URL"));
        let alive = Destination::Email(EmailAddress::new("a@b").expect("an address"));
        let mut lanes = Lanes::new(Timing::default());
        for to in [&dead, &alive] {
            lanes.add(at(0), delivery(to, "first"));
        }
        lanes.add(at(0), delivery(&dead, "second"));
        lanes.tried(at(0), &dead, later(None));
        assert_eq!(lanes.due(at(0)).map(|next| next.to), Some(alive.clone()), "the other one isn't held up");
        lanes.tried(at(0), &alive, Ok(()));
        let mut tries = Vec::new();
        let mut now = 0;
        while let Some(due) = lanes.next_due() {
            now = due.since(Timestamp::EPOCH).as_secs();
            tries.push(now);
            assert!(subject(&lanes, now).is_some());
            lanes.tried(at(now), &dead, later(None));
        }
        assert_eq!(tries[..9], [1, 3, 7, 15, 31, 63, 127, 255, 511]);
        assert!((3_600..3_900).contains(&now), "given up after an hour, at {now} s");
    }

    #[test]
    fn what_is_refused_for_good_makes_room_for_the_next_and_a_receiver_may_ask_for_a_pause() {
        let to = Destination::Webhook(WebhookUrl::new("http://a/").expect("a URL"));
        let mut lanes = Lanes::new(Timing::default());
        for name in ["first", "second"] {
            lanes.add(at(0), delivery(&to, name));
        }
        lanes.tried(at(0), &to, Err(Failure::ForGood("gone".to_owned())));
        assert_eq!(subject(&lanes, 0).as_deref(), Some("second"));
        lanes.tried(at(0), &to, later(Some(Duration::from_secs(40))));
        assert_eq!((subject(&lanes, 39), subject(&lanes, 40).as_deref()), (None, Some("second")));
        lanes.tried(at(40), &to, later(Some(Duration::from_hours(24))));
        assert_eq!(lanes.next_due(), Some(at(340)), "no receiver stops its messages for a day");
    }

    #[test]
    fn no_more_messages_wait_than_the_limit() {
        let to = Destination::Webhook(WebhookUrl::new("http://a/").expect("a URL"));
        let mut lanes = Lanes::new(Timing::default());
        (0..WAITING_MAX + 5).for_each(|_| lanes.add(at(0), delivery(&to, "one")));
        assert_eq!(lanes.waiting, WAITING_MAX);
    }
}
