//! Jobs that failed for good or had faults within the last hour.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use gangline_api as api;
use gangline_base::{JobId, Timestamp};
use gangline_control::views::{Standing, Views};
use gangline_store::db;
use gangline_telemetry::alerts::{Reading, Signal, Subject};

use super::readings::reading;
use crate::why::sentence;

/// For how long a failure is reported.
const RECENT: Duration = Duration::from_secs(3_600);
/// The newest ended jobs that are looked at: a job may have come and failed between two evaluations.
const NEWEST: u32 = 100;
/// Failed jobs that are remembered.
const FAILED_MAX: usize = 1_000;

/// Jobs that were live at the last evaluation, and those that failed since.
#[derive(Debug, Default)]
pub(super) struct Failures {
    seen: Mutex<Seen>,
}

#[derive(Debug, Default)]
struct Seen {
    live: BTreeSet<JobId>,
    failed: BTreeMap<JobId, (Timestamp, String)>,
}

impl Failures {
    /// Returns what there is to tell, given the jobs that are live now.
    pub(super) fn read(
        &self,
        views: &Views,
        live: &[(JobId, api::Job)],
        now: Timestamp,
    ) -> Result<Vec<Reading>, db::Error> {
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        let ids: BTreeSet<JobId> = live.iter().map(|(id, _)| *id).collect();
        let is_live = |id: &JobId| ids.contains(id);
        for id in std::mem::take(&mut seen.live).into_iter().filter(|id| !is_live(id)) {
            if let Some(job) = views.job(id)? {
                seen.take(id, &job);
            }
        }
        for (id, job) in views.jobs(&Standing::Ended.into(), None, NEWEST)?.jobs {
            seen.take(id, &job);
        }
        // A job that was requeued is live again.
        seen.failed.retain(|id, (at, _)| now.since(*at) < RECENT && !is_live(id));
        while seen.failed.len() > FAILED_MAX {
            seen.failed.pop_first();
        }
        seen.live = ids;
        let failed = seen
            .failed
            .iter()
            .map(|(id, (_, why))| reading(Signal::JobFailed, Subject::Job(*id), Some(why.clone()), 1.0));
        let faults = live.iter().filter_map(|(id, job)| faults(*id, &job.attempts, now));
        Ok(failed.chain(faults).collect())
    }
}

impl Seen {
    fn take(&mut self, id: JobId, job: &api::Job) {
        if let (api::JobState::Failed, Some(ended_at)) = (job.state, job.ended_at) {
            self.failed.insert(id, (ended_at.0, last_fault(&job.attempts).unwrap_or_else(|| job.because.clone())));
        }
    }
}

/// Returns how many attempts of a job ended by a fault within the last hour.
fn faults(id: JobId, attempts: &[api::Attempt], now: Timestamp) -> Option<Reading> {
    let is_recent = |fault: &api::Fault| now.since(fault.noticed_at.0) < RECENT;
    let recent = attempts.iter().filter(|attempt| attempt.fault.as_ref().is_some_and(is_recent)).count();
    let count = u32::try_from(recent).unwrap_or(u32::MAX);
    (count > 0).then(|| reading(Signal::JobFaults, Subject::Job(id), last_fault(attempts), f64::from(count)))
}

/// Returns what the last fault of a job was, by its logs if they say so.
fn last_fault(attempts: &[api::Attempt]) -> Option<String> {
    attempts.iter().rev().find_map(|attempt| attempt.fault.as_ref()).map(sentence)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::why::tests::{at, attempt};

    #[test]
    fn faults_of_the_last_hour_are_counted_with_the_last_one_in_words() {
        let ended = |number: u32, minute: u64| attempt(number, Some((minute * 60, "exited with code 1")));
        let attempts = [ended(1, 1), ended(2, 30), ended(3, 50), attempt(4, None)];
        let count =
            |minute: u64| faults(JobId(3), &attempts, at(minute * 60)).map(|reading| (reading.value, reading.part));
        let said = || Some("rank 2 on n1 exited with code 1".to_owned());
        assert_eq!(count(55), Some((3.0, said())));
        assert_eq!(count(70), Some((2.0, said())));
        assert_eq!(count(120), None);
    }
}
