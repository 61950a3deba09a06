//! Messages to people and programs outside the platform: posted to webhooks, and mailed.
//!
//! [`Courier::send`] only queues, so whoever decides never waits for a receiver. One thread delivers. Messages to one
//! destination are delivered in order; while a destination fails, its messages wait, and those of others don't. A
//! message is tried again for [`Timing::age_max`] and then given up, which is logged. What is queued lives in memory:
//! a restart loses it. Receivers may get a message twice, if an answer was lost.

mod mail;
mod queues;
pub(crate) mod webhook;

use std::fmt;
use std::io;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::thread::Builder;
use std::time::Duration;

use gangline_base::{EmailAddress, Timestamp, WebhookUrl};
use serde_json::Value;
use tracing::{info, warn};

pub use mail::{MailServer, Mailer, Security};
use queues::DeliveryQueues;

/// Messages that may wait for the thread to take them.
const QUEUE_MAX: usize = 1_024;
/// The longest sleep of the thread while nothing is due.
const IDLE_MAX: Duration = Duration::from_secs(60);

/// Where a message goes.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Destination {
    /// It is posted there, as JSON.
    Webhook(WebhookUrl),
    /// It is mailed there, as text.
    Email(EmailAddress),
}

impl fmt::Display for Destination {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Destination::Webhook(url) => url.fmt(f),
            Destination::Email(address) => address.fmt(f),
        }
    }
}

/// A message in both of its forms.
#[derive(Clone, Debug, PartialEq)]
pub struct Message {
    /// The mail's subject, one line.
    pub subject: String,
    /// The mail's text.
    pub text: String,
    /// What is posted.
    pub body: Value,
}

/// A message on its way.
#[derive(Clone, Debug, PartialEq)]
pub struct Delivery {
    /// Where it goes.
    pub to: Destination,
    /// What it says.
    pub message: Message,
}

/// How long messages are tried.
#[derive(Clone, Copy, Debug)]
pub struct Timing {
    /// The pause after a destination's first failure, doubled each time.
    pub pause: Duration,
    /// The longest pause.
    pub pause_max: Duration,
    /// The age at which a message is given up.
    pub age_max: Duration,
    /// The longest time that one try may take.
    pub try_max: Duration,
}

impl Default for Timing {
    fn default() -> Timing {
        Timing {
            pause: Duration::from_secs(1),
            pause_max: Duration::from_mins(5),
            age_max: Duration::from_hours(1),
            try_max: Duration::from_secs(10),
        }
    }
}

/// What a courier needs to start.
#[derive(Clone, Debug)]
pub struct Options {
    /// The server for mail; none if nothing can be mailed.
    pub mail: Option<MailServer>,
    /// How long messages are tried.
    pub timing: Timing,
    /// Returns the wall-clock time.
    pub clock: fn() -> Timestamp,
}

/// Why a try failed.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Failure {
    /// It may go better later; at the soonest after this time, if the receiver says so.
    ForNow { cause: String, pause: Option<Duration> },
    /// It would fail again.
    ForGood(String),
}

/// Takes messages. Cheap to clone; the delivering thread ends with the last one.
#[derive(Clone, Debug)]
pub struct Courier {
    queue: SyncSender<Delivery>,
    has_mail: bool,
}

impl Courier {
    /// Starts the delivering thread.
    ///
    /// # Errors
    /// The thread can't be started, or the mail server's settings can't be used.
    pub fn start(options: Options) -> io::Result<Courier> {
        let (queue, inbox) = sync_channel(QUEUE_MAX);
        let Options { mail, timing, clock } = options;
        let has_mail = mail.is_some();
        let mailer = mail.map(|server| mail::Mailer::new(&server, timing.try_max)).transpose()?;
        let deliverer = Deliverer { poster: webhook::Poster::new(timing.try_max), mailer };
        let run = move || deliver(&inbox, deliverer, (timing, clock));
        Builder::new().name("deliver".to_owned()).spawn(run)?;
        Ok(Courier { queue, has_mail })
    }

    /// Reports whether messages can be mailed.
    #[must_use]
    pub fn has_mail(&self) -> bool {
        self.has_mail
    }

    /// Queues a message, without waiting. When too many wait, it is dropped, which is logged.
    pub fn send(&self, delivery: Delivery) {
        let to = delivery.to.to_string();
        if self.queue.try_send(delivery).is_err() {
            warn!(to, "a message is dropped: {QUEUE_MAX} others wait to be delivered");
        }
    }
}

/// Delivers messages that are due.
struct Deliverer {
    poster: webhook::Poster,
    mailer: Option<mail::Mailer>,
}

impl Deliverer {
    fn try_once(&self, Delivery { to, message }: &Delivery) -> Result<(), Failure> {
        match (to, &self.mailer) {
            (Destination::Webhook(url), _) => self.poster.post(url, &message.body),
            (Destination::Email(address), Some(mailer)) => mailer.mail(address, message),
            (Destination::Email(_), None) => {
                Err(Failure::ForGood("the configuration names no mail server ([smtp])".to_owned()))
            }
        }
    }
}

/// Runs until every courier is gone.
fn deliver(inbox: &Receiver<Delivery>, deliverer: Deliverer, (timing, clock): (Timing, fn() -> Timestamp)) {
    let mut queues = DeliveryQueues::new(timing);
    loop {
        let wait = queues.next_due().map_or(IDLE_MAX, |due| due.since(clock()).min(IDLE_MAX));
        match inbox.recv_timeout(wait) {
            Ok(delivery) => queues.add(clock(), delivery),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return,
        }
        inbox.try_iter().for_each(|delivery| queues.add(clock(), delivery));
        while let Some(delivery) = queues.due(clock()) {
            let to = delivery.to.to_string();
            let outcome = deliverer.try_once(&delivery);
            match &outcome {
                Ok(()) => info!(to, subject = delivery.message.subject, "a message was delivered"),
                Err(Failure::ForNow { cause, .. }) => warn!(to, cause, "a message is not delivered yet"),
                Err(Failure::ForGood(cause)) => warn!(to, cause, "a message is given up: it would be refused again"),
            }
            queues.tried(clock(), &delivery.to, outcome);
        }
    }
}

#[cfg(test)]
pub(crate) mod tests;
