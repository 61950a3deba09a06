//! Sends reports to the control plane and receives its orders: one blocking request at a time on a separate
//! thread, so that nothing waits for a network. Keeps A-13: any failure here is an answer like any other.

use std::io;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::Duration;

use gangline_base::Timestamp;
use tokio::sync::mpsc;

use super::line::{ContactError, Line};
use crate::protocol::{Orders, Report, SupervisorSpec, is_understood};

/// First delay before a retry after a failure; doubled each time.
const RETRY_AFTER_MIN: Duration = Duration::from_millis(100);
/// Maximum delay before a retry.
const RETRY_AFTER_MAX: Duration = Duration::from_secs(2);
/// Path for reports.
const REPORT_PATH: &str = "/api/v1/supervisors/report";

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
        let line = Line::of(spec);
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
        let answer = line.post(REPORT_PATH, &report).and_then(understood);
        if answers.blocking_send(answer).is_err() {
            return;
        }
    }
}

fn understood(orders: Orders) -> Answer {
    if is_understood(orders.version) { Ok(orders) } else { Err(ContactError::Version { found: orders.version }) }
}
