//! The series store's two threads, and the handle through which the rest of the program uses it.
//!
//! One thread takes batches in, many with one sync, and writes segments; the other merges them. Queries run on the thread
//! that asks. If the folder can't be opened the handle is closed and says why; nothing else is harmed.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, SyncSender, TrySendError, channel, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{Builder, JoinHandle};
use std::time::Duration;

use gangline_base::{NodeName, Timestamp};

use super::error::Error;
use super::head::Limits;
use super::key::{Batch, Scope};
use super::merge::Keep;
use super::query::{Answer, Query};
use super::store::{Damage, Shared, Store};
use crate::lower_priority;

/// Batches that may wait; further ones are refused, and their senders come again.
const WAITING_MAX: usize = 4_096;
/// Batches that share one sync.
const BATCHES_PER_SYNC: usize = 1_024;
/// Nodes that a server is asked about at once: with 80 curves each and a reading every five seconds, five minutes have 240,000 points.
const NODES_PER_QUESTION: usize = 50;
/// Age of the oldest point in the head at which a segment is written.
const FLUSH_AFTER: Duration = Duration::from_secs(10 * 60);
/// Time before a segment that couldn't be written is tried again.
const FLUSH_RETRY: Duration = Duration::from_secs(5);
/// Time between two looks at what is too old.
const MERGE_EVERY: Duration = Duration::from_secs(600);

/// How a store is run.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Limits of memory, names and batches.
    pub limits: Limits,
    /// How long values are kept.
    pub keep: Keep,
    /// Returns the wall-clock time.
    pub clock: fn() -> Timestamp,
}

/// What became of a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stored {
    /// The number of the source's first row that isn't stored.
    pub next: u64,
    /// Number of values that were refused, because their names are too many or not valid.
    pub refused: u64,
}

/// How the store is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Summary {
    /// Segment files.
    pub segments: usize,
    /// Their bytes.
    pub bytes: u64,
    /// Points in them.
    pub points: u64,
    /// Points that are in none yet; they are in the log.
    pub head_points: usize,
    /// What couldn't be read.
    pub damage: Damage,
    /// Values that were refused since the start.
    pub refused: u64,
    /// Why the last batch or segment couldn't be written.
    pub failure: Option<String>,
    /// Why the last query had no answer elsewhere; none if queries aren't answered elsewhere.
    pub elsewhere: Option<Result<(), String>>,
}

type Reply = Box<dyn FnOnce(Result<Stored, Error>) + Send>;

enum Request {
    Take(Box<Batch>, Reply),
    Flush(SyncSender<Result<(), Error>>),
    Stop,
}

#[derive(Debug, Default)]
struct Told {
    refused: u64,
    failure: Option<String>,
}

/// A place with the points that the store was given, which answers queries in its stead.
pub trait Elsewhere: std::fmt::Debug + Send + Sync {
    /// Answers a query; none if it can't.
    fn query(&self, query: &Query) -> Option<Answer>;
    /// Answers a query about each of some nodes, whatever its scope is: what is wanted of all of them is every point of a short time. None
    /// if it can't.
    fn query_nodes(&self, nodes: &[NodeName], query: &Query) -> Option<BTreeMap<NodeName, Answer>>;
    /// Returns why the last query had no answer, if it hadn't.
    fn failure(&self) -> Option<String>;
}

#[derive(Clone, Debug)]
enum Way {
    Open { requests: SyncSender<Request>, shared: Arc<Shared>, told: Arc<Mutex<Told>> },
    Closed { cause: String },
}

impl std::fmt::Debug for Request {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Request")
    }
}

/// A handle to the store; cheap to clone.
#[derive(Clone, Debug)]
pub struct Handle {
    way: Way,
    elsewhere: Option<Arc<dyn Elsewhere>>,
}

/// A running store.
#[derive(Debug)]
pub struct Service {
    handle: Handle,
    taking: JoinHandle<()>,
    merging: JoinHandle<()>,
}

impl Service {
    /// Opens the store in `folder` and starts its threads.
    ///
    /// # Errors
    /// [`Error`] if the folder can't be used; [`Handle::closed`] stands for the store then.
    pub fn start(folder: PathBuf, options: Options) -> Result<Service, Error> {
        let store = Store::open(&folder, options.limits, options.keep, (options.clock)())?;
        let (shared, told) = (store.shared(), Arc::new(Mutex::new(Told::default())));
        let (requests, waiting) = sync_channel(WAITING_MAX);
        let (wake, woken) = channel();
        let thread = |name: &str| Builder::new().name(name.to_owned());
        let of_thread = Error::io("start a thread of the series store in", &folder);
        let merged = Arc::clone(&shared);
        let merging = thread("series-merge").spawn(move || {
            lower_priority();
            merge_all(&merged, options.clock, &woken);
        });
        let merging = match merging {
            Ok(merging) => merging,
            Err(error) => return Err(of_thread(error)),
        };
        let taker = Taker { store, told: Arc::clone(&told), clock: options.clock, wake, retry_at: None };
        let taking = thread("series").spawn(move || {
            lower_priority();
            taker.run(&waiting);
        });
        let taking = taking.map_err(of_thread)?;
        let way = Way::Open { requests, shared, told };
        Ok(Service { handle: Handle { way, elsewhere: None }, taking, merging })
    }

    /// Returns a handle.
    #[must_use]
    pub fn handle(&self) -> Handle {
        self.handle.clone()
    }

    /// Takes in what waits and ends. What is in the head stays in the log.
    pub fn stop(self) {
        if let Way::Open { requests, .. } = &self.handle.way {
            // Fails only if the thread has ended already.
            let _ = requests.send(Request::Stop);
        }
        for (thread, name) in [(self.taking, "series"), (self.merging, "series-merge")] {
            if thread.join().is_err() {
                tracing::warn!(name, "a thread of the series store had panicked");
            }
        }
    }
}

impl Handle {
    /// Returns the handle of a store that isn't running.
    #[must_use]
    pub fn closed(cause: String) -> Handle {
        Handle { way: Way::Closed { cause }, elsewhere: None }
    }

    /// Returns a handle whose queries are answered elsewhere, and by the store if that can't or has nothing.
    #[must_use]
    pub fn asking(self, elsewhere: Arc<dyn Elsewhere>) -> Handle {
        Handle { elsewhere: Some(elsewhere), ..self }
    }

    /// Takes in a batch. `reply` is called on the store's thread once the batch is durable or refused, and must not block.
    pub fn take(&self, batch: Batch, reply: impl FnOnce(Result<Stored, Error>) + Send + 'static) {
        let requests = match &self.way {
            Way::Open { requests, .. } => requests,
            Way::Closed { cause } => return reply(Err(Error::Closed { cause: cause.clone() })),
        };
        let refused = match requests.try_send(Request::Take(Box::new(batch), Box::new(reply))) {
            Ok(()) => return,
            Err(TrySendError::Full(request)) => (request, Error::Overloaded),
            Err(TrySendError::Disconnected(request)) => (request, stopped()),
        };
        if let (Request::Take(_, reply), error) = refused {
            reply(Err(error));
        }
    }

    /// Answers a query; reads files or asks a server, so it may block.
    ///
    /// # Errors
    /// [`Error`] if a file can't be read or the store is closed.
    pub fn query(&self, query: &Query) -> Result<Answer, Error> {
        let answer = self.elsewhere.as_ref().and_then(|elsewhere| elsewhere.query(query));
        if let Some(answer) = answer.filter(|answer| !answer.curves.is_empty()) {
            return Ok(answer);
        }
        self.query_store(query)
    }

    fn query_store(&self, query: &Query) -> Result<Answer, Error> {
        match &self.way {
            Way::Open { shared, .. } => shared.query(query),
            Way::Closed { cause } => Err(Error::Closed { cause: cause.clone() }),
        }
    }

    /// Answers a query about each of some nodes, as [`Handle::query`] does for one, with one question for many of them where a server is
    /// asked. The query wants every point of a short time; its scope doesn't count.
    ///
    /// # Errors
    /// As [`Handle::query`].
    pub fn query_nodes(&self, nodes: &[NodeName], query: &Query) -> Result<Vec<(NodeName, Answer)>, Error> {
        let mut answers = Vec::with_capacity(nodes.len());
        for some in nodes.chunks(NODES_PER_QUESTION) {
            let elsewhere = self.elsewhere.as_ref().and_then(|elsewhere| elsewhere.query_nodes(some, query));
            let mut found = elsewhere.unwrap_or_default();
            for node in some {
                let known = found.remove(node).filter(|answer| !answer.curves.is_empty());
                let own = || self.query_store(&Query { scope: Scope::Node(node.clone()), ..query.clone() });
                answers.push((node.clone(), known.map_or_else(own, Ok)?));
            }
        }
        Ok(answers)
    }

    /// Writes what is in memory as a segment, without waiting for its size or age.
    ///
    /// # Errors
    /// [`Error`] if that fails; nothing is lost then.
    pub fn flush(&self) -> Result<(), Error> {
        let (reply, answer) = sync_channel(1);
        match &self.way {
            Way::Open { requests, .. } => requests.send(Request::Flush(reply)).map_err(|_| stopped())?,
            Way::Closed { cause } => return Err(Error::Closed { cause: cause.clone() }),
        }
        answer.recv().unwrap_or_else(|_| Err(stopped()))
    }

    /// Returns how the store is.
    #[must_use]
    pub fn summary(&self) -> Summary {
        let elsewhere = self.elsewhere.as_ref().map(|elsewhere| elsewhere.failure().map_or(Ok(()), Err));
        match &self.way {
            Way::Closed { cause } => Summary { failure: Some(cause.clone()), elsewhere, ..Summary::default() },
            Way::Open { shared, told, .. } => {
                let (segments, bytes, points, head_points) = shared.sizes();
                let damage = *shared.damage.read().unwrap_or_else(PoisonError::into_inner);
                let told = told.lock().unwrap_or_else(PoisonError::into_inner);
                let (refused, failure) = (told.refused, told.failure.clone());
                Summary { segments, bytes, points, head_points, damage, refused, failure, elsewhere }
            }
        }
    }
}

fn stopped() -> Error {
    Error::Closed { cause: "it is stopping".to_owned() }
}

/// The thread that takes batches in.
struct Taker {
    store: Store,
    told: Arc<Mutex<Told>>,
    clock: fn() -> Timestamp,
    wake: Sender<()>,
    /// When to try again to write a segment, after a failure.
    retry_at: Option<Timestamp>,
}

impl Taker {
    fn run(mut self, waiting: &Receiver<Request>) {
        loop {
            let first = match waiting.recv_timeout(self.patience()) {
                Ok(request) => Some(request),
                Err(RecvTimeoutError::Timeout) => None,
                Err(RecvTimeoutError::Disconnected) => return,
            };
            let (mut batches, mut others) = (Vec::new(), Vec::new());
            for request in first.into_iter().chain(waiting.try_iter()).take(BATCHES_PER_SYNC) {
                match request {
                    Request::Take(batch, reply) => batches.push((*batch, reply)),
                    other => others.push(other),
                }
            }
            self.take(batches);
            for other in others {
                match other {
                    Request::Flush(reply) => drop(reply.send(self.flush())),
                    _ => return,
                }
            }
            self.flush_if_due();
        }
    }

    fn take(&mut self, batches: Vec<(Batch, Reply)>) {
        if batches.is_empty() {
            return;
        }
        let (batches, replies): (Vec<Batch>, Vec<Reply>) = batches.into_iter().unzip();
        let outcomes = self.store.take(&batches, (self.clock)());
        for (outcome, reply) in outcomes.into_iter().zip(replies) {
            match &outcome {
                Ok(taken) => self.told().refused += taken.refused,
                Err(error) if error.is_passing() => self.tell(Some(error)),
                Err(_) => {}
            }
            if outcome.is_ok() && self.retry_at.is_none() {
                self.tell(None);
            }
            reply(outcome.map(|taken| Stored { next: taken.next, refused: taken.refused }));
        }
    }

    fn told(&self) -> std::sync::MutexGuard<'_, Told> {
        self.told.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes a failure or its end; logs the first in a row.
    fn tell(&self, failure: Option<&Error>) {
        let mut told = self.told();
        match (&told.failure, failure) {
            (None, Some(error)) => tracing::warn!(%error, "the series store can't write; jobs and decisions go on"),
            (Some(_), None) => tracing::info!("the series store writes again"),
            _ => {}
        }
        told.failure = failure.map(|error| gangline_base::with_causes(error));
    }

    /// Returns how long to wait for the next request.
    fn patience(&self) -> Duration {
        let now = (self.clock)();
        let due = self.store.head_since().map(|since| since + FLUSH_AFTER);
        let due = self.retry_at.or(due);
        due.map_or(FLUSH_AFTER, |due| due.since(now)).max(Duration::from_millis(1))
    }

    fn flush_if_due(&mut self) {
        let now = (self.clock)();
        let is_old = self.store.head_since().is_some_and(|since| now.since(since) >= FLUSH_AFTER);
        let may_try = self.retry_at.is_none_or(|at| now >= at);
        if may_try && (is_old || self.store.is_head_full()) {
            // It is told and tried again.
            let _ = self.flush();
        } else if may_try {
            self.retry_at = None;
        }
    }

    fn flush(&mut self) -> Result<(), Error> {
        let flushed = self.store.flush();
        match &flushed {
            Ok(()) => {
                self.retry_at = None;
                self.tell(None);
                // Fails only if the thread has ended.
                let _ = self.wake.send(());
            }
            Err(error) => {
                self.retry_at = Some((self.clock)() + FLUSH_RETRY);
                self.tell(Some(error));
            }
        }
        flushed
    }
}

/// Merges after each segment that was written, and now and then.
fn merge_all(shared: &Shared, clock: fn() -> Timestamp, woken: &Receiver<()>) {
    loop {
        match woken.recv_timeout(MERGE_EVERY) {
            Err(RecvTimeoutError::Disconnected) => return,
            Ok(()) | Err(RecvTimeoutError::Timeout) => {}
        }
        loop {
            match shared.merge(clock()) {
                Ok(true) => {}
                Ok(false) => break,
                Err(error) => {
                    tracing::warn!(%error, "segments of the series store can't be merged yet");
                    break;
                }
            }
        }
    }
}
