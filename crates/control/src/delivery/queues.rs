//! Which message is tried next: one queue of messages for each destination.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use gangline_base::Timestamp;
use tracing::warn;

use super::{Delivery, Destination, Failure, Message, Timing};

/// Messages that may wait in all queues together.
const WAITING_MAX: usize = 10_000;

/// The messages to one destination.
#[derive(Debug)]
struct DeliveryQueue {
    /// Oldest first, each with the time since which it waits.
    messages: VecDeque<(Timestamp, Message)>,
    not_before: Timestamp,
    pause: Duration,
}

/// The messages that wait.
#[derive(Debug)]
pub(super) struct DeliveryQueues {
    queues: BTreeMap<Destination, DeliveryQueue>,
    waiting: usize,
    timing: Timing,
}

impl DeliveryQueues {
    pub(super) fn new(timing: Timing) -> DeliveryQueues {
        DeliveryQueues { queues: BTreeMap::new(), waiting: 0, timing }
    }

    /// Adds a message, or drops it if too many wait.
    pub(super) fn add(&mut self, now: Timestamp, Delivery { to, message }: Delivery) {
        if self.waiting >= WAITING_MAX {
            warn!(%to, "a message is dropped: {WAITING_MAX} others wait to be delivered");
            return;
        }
        self.waiting += 1;
        let pause = self.timing.pause;
        let queue = self.queues.entry(to);
        let queue = queue.or_insert_with(|| DeliveryQueue { messages: VecDeque::new(), not_before: now, pause });
        queue.messages.push_back((now, message));
    }

    /// Returns when the next message is due; none if none waits.
    pub(super) fn next_due(&self) -> Option<Timestamp> {
        self.queues.values().map(|queue| queue.not_before).min()
    }

    /// Returns a message that is due.
    pub(super) fn due(&self, now: Timestamp) -> Option<Delivery> {
        let (to, queue) =
            self.queues.iter().filter(|(_, queue)| queue.not_before <= now).min_by_key(|(_, it)| it.not_before)?;
        let (_, message) = queue.messages.front()?;
        Some(Delivery { to: to.clone(), message: message.clone() })
    }

    /// Takes in how the try of a destination's first message went.
    pub(super) fn tried(&mut self, now: Timestamp, to: &Destination, outcome: Result<(), Failure>) {
        let Some(queue) = self.queues.get_mut(to) else { return };
        match outcome {
            Ok(()) | Err(Failure::ForGood(_)) => {
                queue.messages.pop_front();
                self.waiting -= 1;
                (queue.not_before, queue.pause) = (now, self.timing.pause);
            }
            Err(Failure::ForNow { pause, .. }) => {
                queue.not_before = now + pause.unwrap_or_default().max(queue.pause).min(self.timing.pause_max);
                queue.pause = (queue.pause * 2).min(self.timing.pause_max);
                let age_max = self.timing.age_max;
                while queue.messages.front().is_some_and(|(since, _)| now.since(*since) >= age_max) {
                    queue.messages.pop_front();
                    self.waiting -= 1;
                    warn!(%to, "a message is given up: it was tried for {} s", age_max.as_secs());
                }
            }
        }
        self.queues.retain(|_, queue| !queue.messages.is_empty());
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

    fn subject(queues: &DeliveryQueues, seconds: u64) -> Option<String> {
        queues.due(at(seconds)).map(|delivery| delivery.message.subject)
    }

    fn later(pause: Option<Duration>) -> Result<(), Failure> {
        Err(Failure::ForNow { cause: String::new(), pause })
    }

    #[test]
    fn a_failing_destination_waits_alone_and_is_tried_ever_more_rarely_until_its_message_is_too_old() {
        let dead = Destination::Webhook(WebhookUrl::new("http://dead/").expect("a URL"));
        let alive = Destination::Email(EmailAddress::new("a@b").expect("an address"));
        let mut queues = DeliveryQueues::new(Timing::default());
        for to in [&dead, &alive] {
            queues.add(at(0), delivery(to, "first"));
        }
        queues.add(at(0), delivery(&dead, "second"));
        queues.tried(at(0), &dead, later(None));
        assert_eq!(queues.due(at(0)).map(|next| next.to), Some(alive.clone()), "the other one isn't held up");
        queues.tried(at(0), &alive, Ok(()));
        let mut tries = Vec::new();
        let mut now = 0;
        while let Some(due) = queues.next_due() {
            now = due.since(Timestamp::EPOCH).as_secs();
            tries.push(now);
            assert!(subject(&queues, now).is_some());
            queues.tried(at(now), &dead, later(None));
        }
        assert_eq!(tries[..9], [1, 3, 7, 15, 31, 63, 127, 255, 511]);
        assert!((3_600..3_900).contains(&now), "given up after an hour, at {now} s");
    }

    #[test]
    fn what_is_refused_for_good_makes_room_for_the_next_and_a_receiver_may_ask_for_a_pause() {
        let to = Destination::Webhook(WebhookUrl::new("http://a/").expect("a URL"));
        let mut queues = DeliveryQueues::new(Timing::default());
        for name in ["first", "second"] {
            queues.add(at(0), delivery(&to, name));
        }
        queues.tried(at(0), &to, Err(Failure::ForGood("gone".to_owned())));
        assert_eq!(subject(&queues, 0).as_deref(), Some("second"));
        queues.tried(at(0), &to, later(Some(Duration::from_secs(40))));
        assert_eq!((subject(&queues, 39), subject(&queues, 40).as_deref()), (None, Some("second")));
        queues.tried(at(40), &to, later(Some(Duration::from_hours(24))));
        assert_eq!(queues.next_due(), Some(at(340)), "no receiver stops its messages for a day");
    }

    #[test]
    fn no_more_messages_wait_than_the_limit() {
        let to = Destination::Webhook(WebhookUrl::new("http://a/").expect("a URL"));
        let mut queues = DeliveryQueues::new(Timing::default());
        (0..WAITING_MAX + 5).for_each(|_| queues.add(at(0), delivery(&to, "one")));
        assert_eq!(queues.waiting, WAITING_MAX);
    }
}
