//! Sends metrics to the control plane, on a thread of its own: beside the reports, never before them.
//!
//! Keeps A-13: a control plane that is away, or too old to take metrics, costs metrics and nothing else.

use std::io;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::time::Duration;

use gangline_base::Timestamp;
use tokio::sync::mpsc;

use super::line::{ContactError, Line};
use crate::protocol::SupervisorSpec;
use crate::protocol::metrics::{METRICS_PATH, METRICS_VERSION, MetricAnswer, MetricReport};

/// Time between two posts.
const POST_EVERY: Duration = Duration::from_secs(1);
/// Time before the next post after a failure, at most; doubled each time.
const RETRY_AFTER_MAX: Duration = Duration::from_secs(30);

/// What became of a post.
pub(super) type Posted = Result<MetricAnswer, ContactError>;

/// The thread, and when to use it.
pub(super) struct Courier {
    reports: SyncSender<Box<MetricReport>>,
    is_under_way: bool,
    next_at: Timestamp,
    retry_after: Option<Duration>,
}

impl Courier {
    /// Starts the thread. It ends when this value is dropped, after the request in progress.
    pub(super) fn start(spec: &SupervisorSpec, now: Timestamp) -> io::Result<(Self, mpsc::Receiver<Posted>)> {
        let (reports, waiting) = sync_channel::<Box<MetricReport>>(1);
        let (answer, answers) = mpsc::channel(1);
        let mut line = Line::of(spec);
        let post_all = move || {
            while let Ok(report) = waiting.recv() {
                let posted = line.post(METRICS_PATH, &report).and_then(understood);
                if answer.blocking_send(posted).is_err() {
                    return;
                }
            }
        };
        std::thread::Builder::new().name("metrics".to_owned()).spawn(post_all)?;
        Ok((Courier { reports, is_under_way: false, next_at: now, retry_after: None }, answers))
    }

    /// Reports whether metrics that wait should be sent now.
    pub(super) fn is_due(&self, now: Timestamp) -> bool {
        !self.is_under_way && now >= self.next_at
    }

    /// Reports whether a post is on its way.
    pub(super) fn is_under_way(&self) -> bool {
        self.is_under_way
    }

    /// Returns when metrics that wait are due.
    pub(super) fn deadline(&self) -> Option<Timestamp> {
        (!self.is_under_way).then_some(self.next_at)
    }

    /// Sends a report; only one is in progress at a time, so there is room.
    pub(super) fn send(&mut self, now: Timestamp, report: MetricReport) {
        let _ = self.reports.try_send(Box::new(report));
        self.is_under_way = true;
        self.next_at = now + POST_EVERY;
    }

    /// Takes an answer. Returns whether the control plane will never take these metrics. Logs the first failure in a row.
    pub(super) fn answered(&mut self, now: Timestamp, posted: &Posted) -> bool {
        self.is_under_way = false;
        let Err(error) = posted else {
            self.retry_after = None;
            return false;
        };
        if self.retry_after.is_none() {
            tracing::warn!(%error, "metrics can't be sent, the job goes on");
        }
        let wait = self.retry_after.map_or(POST_EVERY, |before| (before * 2).min(RETRY_AFTER_MAX));
        self.retry_after = Some(wait);
        self.next_at = now + wait;
        matches!(error, ContactError::Refused { status: 400 | 413 | 422, .. })
    }
}

fn understood(answer: MetricAnswer) -> Posted {
    let found = answer.version;
    if found == METRICS_VERSION { Ok(answer) } else { Err(ContactError::Version { found }) }
}
