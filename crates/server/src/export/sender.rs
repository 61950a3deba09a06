//! A thread that sends what waits, in order, and tries again for as long as the receiver is away or overloaded.

use std::io;
use std::sync::mpsc::{Receiver as Inbox, RecvTimeoutError, Sender as Signal, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{Builder, JoinHandle};
use std::time::Duration;

use tracing::{info, warn};

use super::receiver::{Connection, Outcome, Receiver};

/// Time between two looks at what waits.
const SEND_EVERY: Duration = Duration::from_secs(1);
/// The first and the longest pause before the receiver is tried again.
const RETRY_AFTER: Duration = Duration::from_millis(500);
const RETRY_AFTER_MAX: Duration = Duration::from_secs(30);

/// What waits to be sent; bounded.
pub(super) trait Outbox: Send + 'static {
    /// One of what is sent.
    type Item: Send;
    /// What is sent, in messages.
    const WHAT: &'static str;

    /// Takes out what is oldest, as much as a request has.
    fn take(&mut self) -> Vec<Self::Item>;

    /// Returns the request's body and its headers.
    fn encode(&self, items: &[Self::Item]) -> (Vec<u8>, &'static [(&'static str, &'static str)]);
}

/// What became of what was taken out so far.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Sent {
    pub(super) taken: u64,
    /// By the receiver, for good.
    pub(super) refused: u64,
    pub(super) on_its_way: u64,
    pub(super) failure: Option<String>,
}

pub(super) fn lock<T>(shared: &Mutex<T>) -> MutexGuard<'_, T> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The thread.
#[derive(Debug)]
pub(super) struct Sender {
    pub(super) sent: Arc<Mutex<Sent>>,
    stop: Signal<()>,
    thread: JoinHandle<()>,
}

impl Sender {
    pub(super) fn start<O: Outbox>(name: &str, receiver: Receiver, outbox: O) -> io::Result<Sender> {
        let sent = Arc::<Mutex<Sent>>::default();
        let (stop, stopped) = channel();
        let (connection, shared) = (Connection::new(receiver), Arc::clone(&sent));
        let worker = Worker { connection, outbox, sent: shared, on_its_way: Vec::new(), retry_after: None };
        let thread = Builder::new().name(name.to_owned()).spawn(move || worker.run(&stopped))?;
        Ok(Sender { sent, stop, thread })
    }

    /// Sends what waits, if the receiver takes it at once, and ends the thread.
    pub(super) fn stop(self) {
        // Fails only if the thread has ended already.
        let _ = self.stop.send(());
        if self.thread.join().is_err() {
            warn!("a thread that sends had panicked");
        }
    }
}

struct Worker<O: Outbox> {
    connection: Connection,
    outbox: O,
    sent: Arc<Mutex<Sent>>,
    on_its_way: Vec<O::Item>,
    retry_after: Option<Duration>,
}

impl<O: Outbox> Worker<O> {
    fn run(mut self, stopped: &Inbox<()>) {
        loop {
            let pause = self.retry_after.unwrap_or(SEND_EVERY);
            let is_over = stopped.recv_timeout(pause) != Err(RecvTimeoutError::Timeout);
            // A receiver that was away isn't waited for at the end.
            if !(is_over && self.retry_after.is_some()) {
                while self.send_some() {}
            }
            if is_over {
                return;
            }
        }
    }

    /// Sends the next request; whether to go on with another one at once.
    fn send_some(&mut self) -> bool {
        if self.on_its_way.is_empty() {
            self.on_its_way = self.outbox.take();
            lock(&self.sent).on_its_way = u64::try_from(self.on_its_way.len()).unwrap_or(u64::MAX);
        }
        if self.on_its_way.is_empty() {
            return false;
        }
        let (body, headers) = self.outbox.encode(&self.on_its_way);
        let outcome = self.connection.post(&body, headers);
        let (what, url) = (O::WHAT, &self.connection.receiver.url);
        let mut sent = lock(&self.sent);
        let Sent { taken, refused, on_its_way, failure } = &mut *sent;
        match outcome {
            Outcome::Away(why) => {
                if self.retry_after.is_none() {
                    warn!(url, why, what, "the receiver can't be reached, and what is to be sent waits");
                }
                *failure = Some(why);
                self.retry_after = Some(self.retry_after.map_or(RETRY_AFTER, |it| (it * 2).min(RETRY_AFTER_MAX)));
                return false;
            }
            Outcome::Taken => *taken += *on_its_way,
            Outcome::Refused(why) => {
                if *refused == 0 {
                    warn!(url, why, what, "the receiver refused a request, which isn't sent again");
                }
                *refused += *on_its_way;
            }
        }
        if self.retry_after.take().is_some() {
            info!(url, what, "the receiver can be reached again");
        }
        (*on_its_way, *failure) = (0, None);
        self.on_its_way.clear();
        true
    }
}
