//! Sends to other systems what the platform knows: what ranks and agents measure, to a receiver of Prometheus' remote write, version
//! 1.0, such as Prometheus itself, Mimir, Thanos or VictoriaMetrics (<https://prometheus.io/docs/specs/prw/remote_write_spec/>), or of
//! OpenTelemetry's protocol (<https://opentelemetry.io/docs/specs/otlp/>); and the lives of jobs that have ended, as
//! OpenTelemetry's traces.
//!
//! A report's rows are offered once the series store has them, and a job once its end is durable. A thread for each sends them in
//! order; what waits is bounded, and the oldest measurements go first.
//!
//! Keeps: a receiver that is away costs memory within the bound, and delays nothing.

mod otlp;
mod queue;
mod receiver;
mod remote_write;
mod samples;
mod sender;
mod traces;

use std::io;
use std::sync::mpsc::Receiver as Inbox;
use std::sync::{Arc, Mutex};

use gangline_base::JobId;
use gangline_control::views::Views;
use gangline_telemetry::series::Batch;

use queue::Queue;
pub(crate) use queue::{Label, METRIC, REPORTED_STEP};
pub use receiver::{Authorization, Receiver};
use samples::{Format, Samples};
use sender::{Sender, Sent, lock};
use traces::Traces;

/// What is sent, and by which protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Measurements, by Prometheus' remote write.
    RemoteWrite,
    /// Measurements, by OpenTelemetry's protocol.
    OtlpMetrics,
    /// Traces of jobs, by OpenTelemetry's protocol.
    OtlpTraces,
}

/// What became of what was to be sent so far: samples, or traces.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Status {
    /// Those that the receiver took.
    pub sent: u64,
    /// Those that were given up: too many waited.
    pub dropped: u64,
    /// Those of requests that the receiver refused for good.
    pub refused: u64,
    /// Those that wait, of traces only those on their way.
    pub waiting: u64,
    /// Why the receiver can't be reached now.
    pub failure: Option<String>,
}

/// A handle; cheap to clone.
#[derive(Clone, Debug)]
pub struct Handle {
    /// What is sent.
    pub kind: Kind,
    sent: Arc<Mutex<Sent>>,
    /// Samples that wait; none if there are traces.
    queue: Option<Arc<Mutex<Queue>>>,
}

impl Handle {
    /// Takes the rows of batches to be sent. Waits at most for another caller of this handle.
    pub(crate) fn offer(&self, batches: &[Batch]) {
        let Some(queue) = &self.queue else { return };
        let mut queue = lock(queue);
        batches.iter().for_each(|batch| queue.offer(batch));
    }

    /// Reports whether measurements are sent.
    pub(crate) fn takes_samples(&self) -> bool {
        self.queue.is_some()
    }

    /// Returns what became of what was to be sent.
    #[must_use]
    pub fn status(&self) -> Status {
        let Sent { taken, refused, on_its_way, failure } = lock(&self.sent).clone();
        let (waiting, dropped) = self.queue.as_ref().map_or((0, 0), |queue| {
            let queue = lock(queue);
            (u64::try_from(queue.len()).unwrap_or(u64::MAX), queue.dropped())
        });
        Status { sent: taken, dropped, refused, waiting: on_its_way + waiting, failure }
    }
}

/// A thread that sends.
#[derive(Debug)]
pub struct Service {
    handle: Handle,
    sender: Sender,
}

impl Service {
    /// Starts to send measurements by Prometheus' remote write.
    ///
    /// # Errors
    /// If the thread can't be started.
    pub fn remote_write(receiver: Receiver) -> io::Result<Service> {
        Service::of_samples(Kind::RemoteWrite, receiver)
    }

    /// Starts to send measurements by OpenTelemetry's protocol.
    ///
    /// # Errors
    /// If the thread can't be started.
    pub fn otlp_metrics(receiver: Receiver) -> io::Result<Service> {
        Service::of_samples(Kind::OtlpMetrics, receiver)
    }

    fn of_samples(kind: Kind, receiver: Receiver) -> io::Result<Service> {
        let (name, format) = match kind {
            Kind::RemoteWrite => ("remote-write", Format::RemoteWrite),
            Kind::OtlpMetrics | Kind::OtlpTraces => ("otlp-metrics", Format::Otlp),
        };
        // OpenTelemetry's requests carry the labels of all series as attributes of the resource.
        let (of_series, of_whole) = match format {
            Format::RemoteWrite => (receiver.labels.clone(), Vec::new()),
            Format::Otlp => (Vec::new(), receiver.labels.clone()),
        };
        let queue = Arc::new(Mutex::new(Queue::new(of_series)));
        let outbox = Samples { queue: Arc::clone(&queue), format, labels: of_whole };
        let sender = Sender::start(name, receiver, outbox)?;
        Ok(Service { handle: Handle { kind, sent: Arc::clone(&sender.sent), queue: Some(queue) }, sender })
    }

    /// Starts to send the lives of jobs that `ended` tells, as traces by OpenTelemetry's protocol.
    ///
    /// # Errors
    /// If the thread can't be started.
    pub fn otlp_traces(receiver: Receiver, ended: Inbox<JobId>, views: Views) -> io::Result<Service> {
        let outbox = Traces { ended, views, labels: receiver.labels.clone() };
        let sender = Sender::start("otlp-traces", receiver, outbox)?;
        Ok(Service { handle: Handle { kind: Kind::OtlpTraces, sent: Arc::clone(&sender.sent), queue: None }, sender })
    }

    /// Returns a handle.
    #[must_use]
    pub fn handle(&self) -> Handle {
        self.handle.clone()
    }

    /// Sends what waits, if the receiver takes it at once, and ends the thread.
    pub fn stop(self) {
        self.sender.stop();
    }
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead as _, BufReader, Write as _};
    use std::net::TcpListener;

    use std::time::Duration;

    use base64::Engine as _;
    use base64::engine::general_purpose::STANDARD;
    use gangline_base::Timestamp;
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
        let service = Service::remote_write(receiver).expect("a thread");
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
