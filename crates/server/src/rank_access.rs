//! How long the ranks of an attempt may track: while the attempt holds its devices, and for a while after, in which a client may
//! still send what it had gathered. Their token is good for nothing later, wherever a script has left it.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use gangline_api as api;
use gangline_base::{AttemptNumber, JobId, Timestamp};

use super::{App, try_read};

/// How long the ranks of an ended attempt may still track.
const GRACE: Duration = Duration::from_secs(15 * 60);
/// How long an answer is believed.
const FRESH: Duration = Duration::from_secs(10);
/// The most answers that are kept.
const KNOWN_MAX: usize = 10_000;

/// Whether the ranks of attempts may track, as far as it was looked up lately. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub(super) struct RankAccess {
    known: Arc<Mutex<HashMap<(JobId, AttemptNumber), LookedUp>>>,
}

#[derive(Clone, Copy, Debug)]
struct LookedUp {
    at: Instant,
    is_open: bool,
}

impl RankAccess {
    /// Reports whether the ranks of an attempt may track now. If records can't be read, they may.
    pub(super) async fn is_open(&self, app: &Arc<App>, job: JobId, attempt: AttemptNumber) -> bool {
        if let Some(is_open) = self.known_of(job, attempt) {
            return is_open;
        }
        let found = try_read(app, move |views| views.job(job)).await;
        let Ok(Ok(found)) = found else { return true };
        let now = (app.clock)();
        let is_open = found.is_some_and(|job| is_open(&job.attempts, attempt, now));
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if known.len() >= KNOWN_MAX {
            known.clear();
        }
        known.insert((job, attempt), LookedUp { at: Instant::now(), is_open });
        is_open
    }

    fn known_of(&self, job: JobId, attempt: AttemptNumber) -> Option<bool> {
        let known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        known.get(&(job, attempt)).filter(|found| found.at.elapsed() < FRESH).map(|found| found.is_open)
    }
}

/// Reports whether an attempt holds its devices, or did a short time ago.
fn is_open(attempts: &[api::Attempt], number: AttemptNumber, now: Timestamp) -> bool {
    let Some(attempt) = attempts.iter().find(|attempt| attempt.number == number.0) else { return false };
    attempt.ended_at.is_none_or(|ended| now.since(ended.0) < GRACE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_attempt_tracks_while_it_runs_and_shortly_after() {
        let at = |seconds: u64| Timestamp::from_unix_nanos(seconds * 1_000_000_000);
        let attempt = |number, ended_at: Option<u64>| api::Attempt {
            number,
            placed_at: api::Time(at(1)),
            allocation: None,
            ended_at: ended_at.map(|seconds| api::Time(at(seconds))),
            placed_because: String::new(),
            ended_because: None,
            fault: None,
            shares: Vec::new(),
            silence: None,
            stragglers: Vec::new(),
        };
        let attempts = [attempt(1, Some(100)), attempt(2, None)];
        let check = |number, now| is_open(&attempts, AttemptNumber(number), at(now));
        assert!(check(1, 50) && check(1, 100 + 14 * 60) && !check(1, 100 + 15 * 60));
        assert!(check(2, 1_000_000) && !check(3, 50));
    }
}
