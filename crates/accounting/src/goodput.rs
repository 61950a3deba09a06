//! Goodput of a job, by the two definitions that published figures mix up, and Google's names for the rest of its time.
//!
//! *Runtime goodput* is the part of the time for which a job held devices that went into new steps: compute and exposed
//! communication. *ETTR*, the effective training time ratio, is productive time over all time since the submission, so
//! waiting in the queue lowers it (Kokolis et al., "Revisiting Reliability in Large-Scale Machine Learning Research
//! Clusters", arXiv 2410.21680).

use std::time::Duration;

use gangline_base::{Bucket, Buckets, GpuSeconds, Timestamp};

/// How much of a job's time was productive.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Goodput {
    /// Time since the submission, until the job's end or now.
    pub wall: Duration,
    /// Time of that in which it held devices.
    pub held: Duration,
    /// Time of that between its first devices and the end in which it held none: it had lost them to a fault or a preemption.
    pub recovering: Duration,
    /// Runtime goodput; none if nothing was held, or if the ranks reported no steps.
    pub runtime: Option<f64>,
    /// ETTR; none where the runtime goodput is. Of a gang whose number of devices changed, a second counts by the mean number
    /// held.
    pub ettr: Option<f64>,
}

impl Goodput {
    /// Computes it from a job's device time and the times for which its attempts held devices, oldest first, without overlap.
    #[must_use]
    pub fn of(
        buckets: &Buckets,
        holds: &[(Timestamp, Timestamp)],
        submitted_at: Timestamp,
        until: Timestamp,
    ) -> Goodput {
        let wall = until.since(submitted_at);
        let held = holds.iter().map(|(from, to)| to.since(*from)).sum::<Duration>().min(wall);
        let since_first = holds.first().map_or(Duration::ZERO, |(from, _)| until.since(*from));
        let runtime = runtime(buckets);
        let held_share = if wall.is_zero() { 0.0 } else { held.as_secs_f64() / wall.as_secs_f64() };
        Goodput {
            wall,
            held,
            recovering: since_first.saturating_sub(held),
            runtime,
            ettr: runtime.map(|runtime| runtime * held_share),
        }
    }
}

/// Returns the runtime goodput; none if nothing was held, or if the ranks reported no steps.
#[must_use]
pub fn runtime(buckets: &Buckets) -> Option<f64> {
    let new_steps = buckets[Bucket::Compute] + buckets[Bucket::Communication];
    let is_known = new_steps > GpuSeconds::ZERO || buckets[Bucket::Unreported] == GpuSeconds::ZERO;
    let total = buckets.total();
    (total > GpuSeconds::ZERO && is_known).then(|| float(new_steps.nanos()) / float(total.nanos()))
}

/// Returns the name of Google's `BadputType` for a bucket; none for productive time.
///
/// The names are those of ml-goodput-measurement 0.2.3, `goodput_utils.py`. It has none for waiting for slow ranks, which is
/// a custom event there, and counts communication as productive.
#[must_use]
pub const fn badput_type(bucket: Bucket) -> Option<&'static str> {
    match bucket {
        Bucket::Compute | Bucket::Communication => None,
        Bucket::DataStall => Some("DATA_LOADING_SYNC"),
        Bucket::CheckpointStall => Some("UNPRODUCTIVE_CHECKPOINT_SAVE_TIME"),
        Bucket::StragglerWait => Some("CUSTOM_BADPUT_EVENTS"),
        Bucket::Restart => Some("PROGRAM_STARTUP"),
        Bucket::LostWork => Some("WASTED_PROGRESS_FROM_DISRUPTION"),
        Bucket::Idle | Bucket::Unreported => Some("OTHER"),
    }
}

#[expect(clippy::cast_precision_loss, reason = "ratios need no more than 53 bits")]
fn float(nanos: u128) -> f64 {
    nanos as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Timestamp {
        Timestamp::EPOCH + Duration::from_secs(seconds)
    }

    fn buckets(times: &[(Bucket, u64)]) -> Buckets {
        let mut buckets = Buckets::default();
        for (bucket, seconds) in times {
            buckets[*bucket] = GpuSeconds::from_nanos(u128::from(*seconds) * 1_000_000_000);
        }
        buckets
    }

    #[test]
    fn ettr_counts_the_queue_and_runtime_goodput_does_not() {
        // Two devices, held for 50 s of 100 s in two attempts.
        let times = [(Bucket::Compute, 60), (Bucket::Communication, 20), (Bucket::Restart, 20)];
        let holds = [(at(20), at(50)), (at(70), at(90))];
        let goodput = Goodput::of(&buckets(&times), &holds, at(0), at(100));
        let seconds = [goodput.wall, goodput.held, goodput.recovering].map(|time| time.as_secs());
        assert_eq!(seconds, [100, 50, 30]);
        let close = |value: Option<f64>, expected: f64| value.is_some_and(|value| (value - expected).abs() < 1e-12);
        assert!(close(goodput.runtime, 0.8) && close(goodput.ettr, 0.4), "{goodput:?}");
    }

    #[test]
    fn what_is_not_known_is_not_told() {
        let silent = Goodput::of(&buckets(&[(Bucket::Unreported, 9)]), &[(at(0), at(9))], at(0), at(9));
        assert_eq!((silent.runtime, silent.ettr), (None, None));
        let waits = Goodput::of(&Buckets::default(), &[], at(5), at(9));
        assert_eq!(
            (waits.wall.as_secs(), waits.held, waits.recovering, waits.ettr),
            (4, Duration::ZERO, Duration::ZERO, None)
        );
        let hung = Goodput::of(&buckets(&[(Bucket::Restart, 9)]), &[(at(0), at(9))], at(0), at(9));
        assert_eq!((hung.runtime, hung.ettr), (Some(0.0), Some(0.0)), "it never got to a step");
    }
}
