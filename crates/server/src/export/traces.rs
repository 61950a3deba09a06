//! Lives of jobs that have ended, sent as traces.

use std::sync::mpsc::Receiver as Inbox;

use gangline_base::{JobId, with_causes};
use gangline_control::views::Views;
use tracing::warn;

use super::otlp;
use super::sender::Outbox;

/// Jobs of a request.
const JOBS_PER_REQUEST: usize = 50;

/// Jobs whose traces wait.
pub(super) struct Traces {
    pub(super) ended: Inbox<JobId>,
    pub(super) views: Views,
    pub(super) labels: Vec<(String, String)>,
}

impl Outbox for Traces {
    type Item = otlp::Trace;
    const WHAT: &'static str = "traces of jobs";

    fn take(&mut self) -> Vec<otlp::Trace> {
        let life = |job| match self.views.life(job) {
            Ok(spans) => Some(otlp::Trace { job, spans: spans? }),
            Err(error) => {
                warn!(%job, error = with_causes(&error), "its trace can't be made");
                None
            }
        };
        self.ended.try_iter().take(JOBS_PER_REQUEST).filter_map(life).collect()
    }

    fn encode(&self, traces: &[otlp::Trace]) -> (Vec<u8>, &'static [(&'static str, &'static str)]) {
        (otlp::traces(traces, &self.labels), &otlp::HEADERS)
    }
}
