//! Time limits as users would type them. Traces of GPU clusters have none, so limits are modelled.
//!
//! Users overestimate: the used share of the limit is about uniformly distributed (Mu'alem and Feitelson,
//! TPDS 2001), and limits are a few round values (Tsafrir, Etsion and Feitelson, "Modeling user runtime
//! estimates", JSSPP 2005). So a limit is the true duration divided by a share drawn uniformly from 0.1 to 1,
//! rounded up to the next round value.

use std::time::Duration;

use super::random::{Draws, Purpose};
use super::workload::{TraceJob, Workload};

/// The source of time limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LimitModel {
    /// The trace's limits, where it has them; otherwise none.
    Trace,
    /// The trace's limits, where it has them; otherwise those of the seeded model.
    Users,
}

/// Round values that people type, in minutes.
const ROUND_MINUTES: [u64; 13] = [15, 30, 60, 120, 240, 480, 720, 1_440, 2_880, 4_320, 10_080, 20_160, 43_200];

impl LimitModel {
    pub(crate) fn limits(self, workload: &Workload, seed: u64) -> Vec<Option<Duration>> {
        let model = |(index, job): (u32, &TraceJob)| match (self, job.limit) {
            (_, Some(limit)) => Some(limit.max(job.duration)),
            (LimitModel::Trace, None) => None,
            (LimitModel::Users, None) => Some(typed_limit(job.duration, seed, index)),
        };
        (0..).zip(&workload.jobs).map(model).collect()
    }
}

/// Returns the modelled limit of the job with this index. Never below the duration, since a limit that ended
/// the job would change the trace.
fn typed_limit(duration: Duration, seed: u64, index: u32) -> Duration {
    let used = 0.1 + 0.9 * Draws::new(seed, Purpose::Limits, index).uniform();
    let wanted = duration.div_f64(used).max(duration);
    let round = ROUND_MINUTES.iter().map(|minutes| Duration::from_mins(*minutes));
    let month = Duration::from_mins(ROUND_MINUTES[ROUND_MINUTES.len() - 1]);
    let months = u32::try_from(wanted.as_secs() / month.as_secs()).unwrap_or(u32::MAX - 1);
    round.into_iter().find(|round| *round >= wanted).unwrap_or(month * (months + 1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_are_round_and_never_below_the_duration() {
        for index in 0..1_000 {
            let duration = Duration::from_secs(u64::from(index) * u64::from(index) * 13);
            let limit = typed_limit(duration, 3, index);
            let minutes = limit.as_secs() / 60;
            let is_round = ROUND_MINUTES.contains(&minutes) || minutes.is_multiple_of(43_200);
            assert!(limit >= duration && is_round, "{duration:?}: {limit:?}");
        }
        assert_eq!(typed_limit(Duration::from_hours(6), 3, 9), typed_limit(Duration::from_hours(6), 3, 9));
    }
}
