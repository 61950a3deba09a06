//! Sends reports to the control plane and receives its orders: one blocking request at a time on a separate
//! thread, so that nothing waits for a network. Keeps A-13: any failure here is an answer like any other.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::Duration;

use gangline_base::{Epoch, Timestamp};
use tokio::sync::mpsc;

use crate::endpoint::{ATTEMPT_HEADER, Way, WayError};
use crate::protocol::{Orders, PROTOCOL_VERSION, Report, SupervisorSpec, is_understood};

/// Maximum time of a request, whatever the network does.
const REQUEST_MAX: Duration = Duration::from_secs(5);
/// First delay before a retry after a failure; doubled each time.
const RETRY_AFTER_MIN: Duration = Duration::from_millis(100);
/// Maximum delay before a retry.
const RETRY_AFTER_MAX: Duration = Duration::from_secs(2);
/// Maximum size of an answer.
const ANSWER_BYTES_MAX: u64 = 256 << 10;
/// Path for reports.
const REPORT_PATH: &str = "/api/v1/supervisors/report";

/// The reason a report got no orders.
#[derive(Debug, thiserror::Error)]
pub(super) enum ContactError {
    /// Nobody there can prove to be the control plane.
    #[error(transparent)]
    Way(#[from] WayError),
    /// No answer, or an invalid one.
    #[error("reach the control plane at {url}: {source}")]
    Unreachable { url: String, source: Box<ureq::Error> },
    /// The control plane refused the report.
    #[error("report to the control plane at {url}: it refuses with status {status}")]
    Refused { url: String, status: u16 },
    /// The control plane speaks another version.
    #[error("report to the control plane at {url}: its version is {found}, this program knows {PROTOCOL_VERSION}")]
    Version { url: String, found: u32 },
}

/// The answer to a report.
pub(super) type Answer = Result<Orders, ContactError>;

/// The connection to the control plane, and when to use it.
pub(super) struct Contact {
    reports: SyncSender<Box<Report>>,
    heartbeat: Duration,
    is_under_way: bool,
    next_at: Timestamp,
    /// Delay before the next attempt, after failures since the last answer.
    retry_after: Option<Duration>,
}

impl Contact {
    /// Starts the thread. It ends when this value is dropped, after the request in progress.
    pub(super) fn start(spec: &Arc<SupervisorSpec>, now: Timestamp) -> io::Result<(Self, mpsc::Receiver<Answer>)> {
        let (reports, waiting) = sync_channel(1);
        let (answer, answers) = mpsc::channel(1);
        let line = Line {
            folder: spec.endpoint_file.parent().unwrap_or(Path::new("/")).to_owned(),
            token: spec.token.clone(),
            attempt: format!("{}/{}/{}", spec.job, spec.attempt, Epoch(spec.epoch)),
            open: None,
        };
        let post_all = move || post_all(line, &waiting, &answer);
        std::thread::Builder::new().name("contact".to_owned()).spawn(post_all)?;
        let heartbeat = Duration::from_millis(spec.heartbeat_ms);
        Ok((Contact { reports, heartbeat, is_under_way: false, next_at: now, retry_after: None }, answers))
    }

    /// Reports whether a report is due: at the heartbeat, or at once if there is news; after failures only at
    /// the next retry.
    pub(super) fn is_due(&self, now: Timestamp, has_news: bool) -> bool {
        !self.is_under_way && (now >= self.next_at || (has_news && self.retry_after.is_none()))
    }

    /// Returns when the next report is due without news.
    pub(super) fn deadline(&self) -> Option<Timestamp> {
        (!self.is_under_way).then_some(self.next_at)
    }

    /// Sends a report. Only one is in progress at a time, so there is always room. If the thread died there
    /// is never an answer, and the job ends as an orphan.
    pub(super) fn send(&mut self, report: Report) {
        let _ = self.reports.try_send(Box::new(report));
        self.is_under_way = true;
    }

    /// Handles an answer. Logs the first failure in a row and the recovery from it.
    pub(super) fn answered(&mut self, now: Timestamp, answer: &Answer) {
        self.is_under_way = false;
        match answer {
            Ok(orders) => {
                if self.retry_after.take().is_some() {
                    tracing::info!("the control plane answers again");
                }
                self.next_at = now + orders.report_within_ms.map_or(self.heartbeat, Duration::from_millis);
            }
            Err(error) => {
                let wait = self.retry_after.map_or(RETRY_AFTER_MIN, |before| (before * 2).min(RETRY_AFTER_MAX));
                if self.retry_after.is_none() {
                    tracing::warn!(%error, "no contact with the control plane, the job goes on");
                }
                self.retry_after = Some(wait);
                self.next_at = now + wait;
            }
        }
    }
}

fn post_all(mut line: Line, waiting: &Receiver<Box<Report>>, answers: &mpsc::Sender<Answer>) {
    while let Ok(report) = waiting.recv() {
        let answer = line.post(&report);
        if answers.blocking_send(answer).is_err() {
            return;
        }
    }
}

/// The state of the sending thread.
struct Line {
    /// The control plane's data folder.
    folder: PathBuf,
    token: String,
    attempt: String,
    /// The connection that the last report used.
    open: Option<Way>,
}

impl Line {
    /// Sends one report. After a failure the control plane is looked up again: after a restart it may be
    /// elsewhere, with other certificates. Reports are cumulative, so sending one twice is harmless.
    fn post(&mut self, report: &Report) -> Answer {
        if let Some(way) = self.open.take() {
            let answer = self.post_by(&way, report);
            match &answer {
                Err(ContactError::Unreachable { source, .. }) if matches!(**source, ureq::Error::Timeout(_)) => {
                    return answer;
                }
                Err(ContactError::Unreachable { .. }) => {}
                _ => {
                    self.open = Some(way);
                    return answer;
                }
            }
        }
        let way = Way::find(&self.folder, REQUEST_MAX)?;
        let answer = self.post_by(&way, report);
        self.open = Some(way);
        answer
    }

    fn post_by(&self, way: &Way, report: &Report) -> Answer {
        let url = way.to_string();
        let unreachable = |error| ContactError::Unreachable { url: url.clone(), source: Box::new(error) };
        let request = way.agent.post(format!("{}{REPORT_PATH}", way.url));
        let request = request.header("authorization", format!("Bearer {}", self.token));
        let request = request.header(ATTEMPT_HEADER, &self.attempt);
        let mut response = request.send_json(report).map_err(unreachable)?;
        let status = response.status();
        if !status.is_success() {
            return Err(ContactError::Refused { url, status: status.as_u16() });
        }
        let body = response.body_mut().with_config().limit(ANSWER_BYTES_MAX);
        let orders: Orders = body.read_json().map_err(unreachable)?;
        if !is_understood(orders.version) {
            return Err(ContactError::Version { url, found: orders.version });
        }
        Ok(orders)
    }
}
