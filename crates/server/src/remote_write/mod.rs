//! Sends what ranks and agents measure to a receiver of Prometheus' remote write, version 1.0, such as Prometheus itself, Mimir,
//! Thanos or VictoriaMetrics (<https://prometheus.io/docs/specs/prw/remote_write_spec/>).
//!
//! A report's rows are offered once the series store has them. A thread sends them in order, and tries again for as long as
//! the receiver is away or overloaded; what waits is bounded, and the oldest goes first.
//!
//! Keeps: a receiver that is away costs memory within the bound, and delays nothing.

mod queue;
mod wire;

use std::io;
use std::sync::mpsc::{Receiver as Inbox, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{Builder, JoinHandle};
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use gangline_base::with_causes;
use gangline_execution::endpoint::agent;
use gangline_telemetry::series::Batch;
use tracing::{info, warn};

use crate::alerts::authorities;
use queue::{Queue, Sample};

/// Time between two looks at what waits.
const SEND_EVERY: Duration = Duration::from_secs(1);
/// Samples of a request.
const SAMPLES_PER_REQUEST: usize = 5_000;
/// The first and the longest pause before the receiver is tried again.
const RETRY_AFTER: Duration = Duration::from_millis(500);
const RETRY_AFTER_MAX: Duration = Duration::from_secs(30);
/// The longest time of a request.
const REQUEST_MAX: Duration = Duration::from_secs(20);
/// Bytes of a refusal that are read.
const REFUSAL_BYTES_MAX: u64 = 1_000;

/// Where measurements are sent.
#[derive(Clone)]
pub struct Receiver {
    /// The URL.
    pub url: String,
    /// What the header `Authorization` says, if the receiver wants one.
    pub authorization: Option<Authorization>,
    /// Headers of all requests, by name.
    pub headers: Vec<(String, String)>,
    /// Labels that all series get, by name.
    pub labels: Vec<(String, String)>,
}

/// Who sends.
#[derive(Clone)]
pub enum Authorization {
    /// Whoever has this token.
    Token(String),
    /// A user with a password (RFC 7617).
    Basic(String, String),
}

impl Authorization {
    fn header(&self) -> String {
        match self {
            Authorization::Token(token) => format!("Bearer {token}"),
            Authorization::Basic(user, password) => format!("Basic {}", STANDARD.encode(format!("{user}:{password}"))),
        }
    }
}

impl std::fmt::Debug for Receiver {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Receiver").field("url", &self.url).field("labels", &self.labels).finish_non_exhaustive()
    }
}

/// What became of samples so far.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Status {
    /// Samples that the receiver took.
    pub sent: u64,
    /// Samples that were given up: too many waited.
    pub dropped: u64,
    /// Samples of requests that the receiver refused for good.
    pub refused: u64,
    /// Samples that wait.
    pub waiting: u64,
    /// Why the receiver can't be reached now.
    pub failure: Option<String>,
}

#[derive(Debug)]
struct Shared {
    queue: Queue,
    status: Status,
}

/// A handle; cheap to clone. The default sends nothing.
#[derive(Clone, Debug, Default)]
pub struct Handle(Option<Arc<Mutex<Shared>>>);

impl Handle {
    /// Takes the rows of batches to be sent. Waits at most for another caller of this handle.
    pub(crate) fn offer(&self, batches: &[Batch]) {
        let Some(shared) = &self.0 else { return };
        let mut shared = lock(shared);
        for batch in batches {
            let dropped = shared.queue.offer(batch);
            shared.status.dropped += dropped;
        }
    }

    /// Reports whether anything is sent anywhere.
    pub(crate) fn is_used(&self) -> bool {
        self.0.is_some()
    }

    /// Returns what became of samples; none if nothing is sent.
    #[must_use]
    pub fn status(&self) -> Option<Status> {
        let shared = lock(self.0.as_ref()?);
        let waiting = u64::try_from(shared.queue.len()).unwrap_or(u64::MAX);
        Some(Status { waiting: shared.status.waiting + waiting, ..shared.status.clone() })
    }
}

fn lock(shared: &Mutex<Shared>) -> MutexGuard<'_, Shared> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The thread that sends.
#[derive(Debug)]
pub struct Service {
    handle: Handle,
    stop: Sender<()>,
    thread: JoinHandle<()>,
}

impl Service {
    /// Starts the thread.
    ///
    /// # Errors
    /// If it can't be started.
    pub fn start(receiver: Receiver) -> io::Result<Service> {
        let queue = Queue::new(receiver.labels.clone());
        let shared = Arc::new(Mutex::new(Shared { queue, status: Status::default() }));
        let (stop, stopped) = channel();
        let worker =
            Worker { receiver, shared: Arc::clone(&shared), agent: None, on_its_way: Vec::new(), retry_after: None };
        let thread = Builder::new().name("remote-write".to_owned()).spawn(move || worker.run(&stopped))?;
        Ok(Service { handle: Handle(Some(shared)), stop, thread })
    }

    /// Returns a handle.
    #[must_use]
    pub fn handle(&self) -> Handle {
        self.handle.clone()
    }

    /// Sends what waits, if the receiver takes it at once, and ends the thread.
    pub fn stop(self) {
        // Fails only if the thread has ended already.
        let _ = self.stop.send(());
        if self.thread.join().is_err() {
            warn!("the thread of remote write had panicked");
        }
    }
}

/// What became of a request.
enum Outcome {
    Taken,
    /// Never to be sent again.
    Refused(String),
    /// To be sent again.
    Away(String),
}

struct Worker {
    receiver: Receiver,
    shared: Arc<Mutex<Shared>>,
    /// The client, once there is one; made anew after a failure, since certificates may have changed.
    agent: Option<ureq::Agent>,
    on_its_way: Vec<Sample>,
    retry_after: Option<Duration>,
}

impl Worker {
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
            let mut shared = lock(&self.shared);
            self.on_its_way = shared.queue.take(SAMPLES_PER_REQUEST);
            shared.status.waiting = u64::try_from(self.on_its_way.len()).unwrap_or(u64::MAX);
        }
        if self.on_its_way.is_empty() {
            return false;
        }
        let outcome = self.post(&wire::encode(&self.on_its_way));
        let mut shared = lock(&self.shared);
        let Status { sent, refused, waiting, failure, .. } = &mut shared.status;
        match outcome {
            Outcome::Away(why) => {
                if self.retry_after.is_none() {
                    warn!(url = self.receiver.url, why, "measurements can't be sent, and wait");
                }
                *failure = Some(why);
                self.retry_after = Some(self.retry_after.map_or(RETRY_AFTER, |it| (it * 2).min(RETRY_AFTER_MAX)));
                return false;
            }
            Outcome::Taken => *sent += *waiting,
            Outcome::Refused(why) => {
                if *refused == 0 {
                    warn!(url = self.receiver.url, why, "measurements were refused, and aren't sent again");
                }
                *refused += *waiting;
            }
        }
        if self.retry_after.take().is_some() {
            info!(url = self.receiver.url, "measurements can be sent again");
        }
        (*waiting, *failure) = (0, None);
        self.on_its_way.clear();
        true
    }

    fn post(&mut self, body: &[u8]) -> Outcome {
        let agent = match self.agent.take().map_or_else(|| client(&self.receiver.url), Ok) {
            Ok(agent) => agent,
            Err(why) => return Outcome::Away(why),
        };
        let mut request = agent
            .post(&self.receiver.url)
            .header("content-type", "application/x-protobuf")
            .header("content-encoding", "snappy")
            .header("x-prometheus-remote-write-version", "0.1.0");
        for (name, value) in &self.receiver.headers {
            request = request.header(name, value);
        }
        if let Some(authorization) = &self.receiver.authorization {
            request = request.header("authorization", authorization.header());
        }
        match request.send(body) {
            Err(error) => Outcome::Away(with_causes(&error)),
            Ok(answer) if answer.status().is_success() => {
                self.agent = Some(agent);
                Outcome::Taken
            }
            Ok(mut answer) => {
                let status = answer.status().as_u16();
                let said = answer.body_mut().with_config().limit(REFUSAL_BYTES_MAX).read_to_string();
                let said = format!("it answers with status {status}: {}", said.unwrap_or_default().trim());
                // The specification: 5xx and 429 pass, other refusals don't. A wrong token may be put right.
                if status >= 500 || [401, 403, 429].contains(&status) {
                    Outcome::Away(said)
                } else {
                    Outcome::Refused(said)
                }
            }
        }
    }
}

/// Returns a client for a URL.
fn client(url: &str) -> Result<ureq::Agent, String> {
    let authorities = url.starts_with("https:").then(authorities).transpose()?;
    agent(REQUEST_MAX, authorities.as_deref()).map_err(|error| with_causes(&error))
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead as _, BufReader, Write as _};
    use std::net::TcpListener;

    use gangline_base::{JobId, Timestamp};
    use gangline_telemetry::series::{Row, Scope, Source};

    use super::*;

    #[test]
    fn requests_say_who_sends_and_have_the_headers_of_the_site() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let receiver = Receiver {
            url: format!("http://{}/push", listener.local_addr().expect("it is bound")),
            authorization: Some(Authorization::Basic("1234".to_owned(), "secret".to_owned())),
            headers: vec![("X-Scope-OrgID".to_owned(), "ml".to_owned())],
            labels: Vec::new(),
        };
        assert!(!format!("{receiver:?}").contains("secret"));
        let service = Service::start(receiver).expect("a thread");
        let source = Source { scope: Scope::Job(JobId(1)), attempt: None, node: None, rank: Some(0), device: None };
        let row = Row { at: Timestamp::EPOCH + Duration::from_secs(1), step: None, values: vec![(0, 1.0)] };
        service.handle().offer(&[Batch { source, first: 0, names: vec!["loss".to_owned()], rows: vec![row] }]);
        let (mut stream, _) = listener.accept().expect("it sends");
        let lines = BufReader::new(stream.try_clone().expect("a second handle")).lines().map_while(Result::ok);
        let head: Vec<String> = lines.take_while(|line| !line.is_empty()).map(|line| line.to_lowercase()).collect();
        stream.write_all(b"HTTP/1.1 204 No Content\r\n\r\n").expect("it listens");
        let basic = format!("authorization: basic {}", STANDARD.encode("1234:secret").to_lowercase());
        for line in [basic.as_str(), "x-scope-orgid: ml", "content-encoding: snappy"] {
            assert!(head.iter().any(|said| said == line), "{line}: {head:?}");
        }
        service.stop();
    }
}
