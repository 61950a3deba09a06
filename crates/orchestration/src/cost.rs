//! The cost of stopping a job: devices times the time in which they repeat work or stand idle.
//!
//! This is the work since the last durable checkpoint, which is repeated, plus the time to save, to wait for
//! devices, and to restore. Sia (SOSP 2023) charges a restart as lost throughput in the same way; Kueue #477
//! asks for the age of the checkpoint. A job that reports no checkpoint is priced from its start, so not
//! reporting gives no advantage over the truth.

use std::time::Duration;

use gangline_base::{GpuSeconds, Timestamp};

/// A job's downtime when it is stopped and restarted, measured on the job or estimated.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RestartCosts {
    /// The time to write the requested checkpoint.
    pub save: Duration,
    /// The time from its end until it has devices again.
    pub requeue: Duration,
    /// The time from having devices to the first new step.
    pub restore: Duration,
}

/// Returns the cost of stopping a job with `devices` whose last `since_durable` of work is in no checkpoint.
#[must_use]
pub(crate) fn victim_cost(devices: u32, since_durable: Duration, costs: &RestartCosts) -> GpuSeconds {
    let parts = [costs.save, costs.requeue, costs.restore];
    GpuSeconds::of(devices, parts.into_iter().fold(since_durable, Duration::saturating_add))
}

/// Returns how long a job has worked since its newest durable checkpoint, or since the start of its attempt
/// if that attempt has reported none.
#[must_use]
pub(crate) fn since_durable(now: Timestamp, started_at: Timestamp, durable_at: Option<Timestamp>) -> Duration {
    now.since(durable_at.map_or(started_at, |durable_at| durable_at.max(started_at)))
}

#[cfg(test)]
mod tests {
    use super::*;

    const COSTS: RestartCosts =
        RestartCosts { save: Duration::from_secs(5), requeue: Duration::from_secs(3), restore: Duration::from_secs(2) };

    #[test]
    fn a_victim_costs_its_devices_times_lost_work_and_restart() {
        assert_eq!(victim_cost(8, Duration::from_secs(90), &COSTS), GpuSeconds::of(8, Duration::from_secs(100)));
        assert_eq!(victim_cost(0, Duration::from_secs(90), &COSTS), GpuSeconds::ZERO);
        let longest = victim_cost(u32::MAX, Duration::MAX, &COSTS);
        assert_eq!(longest, GpuSeconds::of(u32::MAX, Duration::MAX), "the longest time is not exceeded");
    }

    #[test]
    fn a_job_that_reports_no_checkpoint_is_priced_from_its_start() {
        let at = |seconds: u64| Timestamp::from_unix_nanos(seconds * 1_000_000_000);
        assert_eq!(since_durable(at(100), at(10), None), Duration::from_secs(90));
        assert_eq!(since_durable(at(100), at(10), Some(at(70))), Duration::from_secs(30));
        assert_eq!(since_durable(at(100), at(10), Some(at(5))), Duration::from_secs(90), "saved by an earlier attempt");
        assert_eq!(since_durable(at(100), at(10), Some(at(101))), Duration::ZERO);
    }
}
