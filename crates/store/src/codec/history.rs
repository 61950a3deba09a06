//! Learned run times, as stored on disk.

use std::time::Duration;

use gangline_base::{QueueName, Submitter, Timestamp};
use gangline_orchestration::{History, Kin, Sample};
use serde::{Deserialize, Serialize};

/// The learned run times of one kind of job.
#[derive(Serialize, Deserialize)]
pub(super) struct HistoryV1 {
    queue: Option<QueueName>,
    submitter: Option<String>,
    name: Option<String>,
    at: Timestamp,
    /// For each job: its run time in nanoseconds, and that as thousandths of its time limit.
    samples: Vec<(u64, Option<u32>)>,
}

/// Returns nanoseconds, at most about 500 years.
pub(super) fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

pub(super) fn history_to_disk((kin, history): &(Kin, History)) -> HistoryV1 {
    HistoryV1 {
        queue: kin.queue.clone(),
        submitter: kin.submitter.as_ref().map(|submitter| submitter.0.clone()),
        name: kin.name.clone(),
        at: history.at,
        samples: history.samples.iter().map(|sample| (nanos(sample.ran), sample.of_limit)).collect(),
    }
}

pub(super) fn history_from_disk(entry: HistoryV1) -> (Kin, History) {
    let sample = |(ran, of_limit)| Sample { ran: Duration::from_nanos(ran), of_limit };
    let kin = Kin { queue: entry.queue, submitter: entry.submitter.map(Submitter), name: entry.name };
    (kin, History { at: entry.at, samples: entry.samples.into_iter().map(sample).collect() })
}
