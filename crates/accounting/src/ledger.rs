//! Books one node's share of an attempt. Keeps A-8: the buckets of an entry sum to its allocated wall time
//! times its devices, and their costs sum to its cost, to the nano-GPU-second and the nano-dollar.

use gangline_base::{AttemptNumber, Bucket, Buckets, GpuSeconds, JobId, Money, NodeName, Timestamp};

/// An allocation on one node: devices, period and price. The total that is booked follows from it, never from
/// what the ranks report.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Allocation {
    /// The job.
    pub job: JobId,
    /// The attempt.
    pub attempt: AttemptNumber,
    /// The node.
    pub node: NodeName,
    /// Number of devices held on the node.
    pub devices: u32,
    /// Start of the allocation.
    pub from: Timestamp,
    /// End of the allocation.
    pub to: Timestamp,
    /// Price of a GPU-hour.
    pub price: Money,
}

/// An allocation with its time and cost by bucket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LedgerEntry {
    /// The allocation that is booked.
    pub allocation: Allocation,
    /// Device time by bucket.
    pub buckets: Buckets,
    /// Total cost.
    pub cost: Money,
}

/// The part of an allocation that its supervisor measured: device time by bucket, starting at `from`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Measured {
    before: GpuSeconds,
    buckets: Buckets,
}

/// Books an allocation. `reported` is what the supervisor measured, and since when; none if it never
/// reported.
///
/// Time before the supervisor started is `restart`. Time without a report (from the end of the ranks to the
/// release, or everything if the supervisor was lost) is `idle`. If the clocks disagree and more is reported
/// than was allocated, the excess is taken from the last buckets first (idle, lost work, restart, ...),
/// compute last.
#[must_use]
pub fn book(allocation: Allocation, reported: Option<(Timestamp, Buckets)>) -> LedgerEntry {
    let total = GpuSeconds::of(allocation.devices, allocation.to.since(allocation.from));
    let measured = match reported {
        None => Measured { before: GpuSeconds::ZERO, buckets: Buckets::default() },
        Some((from, buckets)) => {
            Measured { before: GpuSeconds::of(allocation.devices, from.since(allocation.from)), buckets }
        }
    };
    let mut left = total;
    let mut buckets = Buckets::default();
    for (bucket, time) in measured.buckets.iter() {
        let booked = time.min(left);
        buckets[bucket] = booked;
        left = left - booked;
    }
    let launching = measured.before.min(left);
    buckets[Bucket::Restart] = buckets[Bucket::Restart] + launching;
    buckets[Bucket::Idle] = buckets[Bucket::Idle] + (left - launching);
    let cost = allocation.price.per_hour_times(total);
    LedgerEntry { allocation, buckets, cost }
}

impl LedgerEntry {
    /// Returns the cost of each bucket. The costs sum to [`LedgerEntry::cost`]: each is the difference of two
    /// running totals, so no rounding is lost.
    #[must_use]
    pub fn costs(&self) -> Vec<(Bucket, Money)> {
        let mut time = GpuSeconds::ZERO;
        let mut cost = Money::ZERO;
        let mut costs = Vec::with_capacity(Bucket::ALL.len());
        for (bucket, spent) in self.buckets.iter() {
            time = time + spent;
            let running = self.allocation.price.per_hour_times(time);
            costs.push((bucket, running - cost));
            cost = running;
        }
        costs
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const SECOND: u64 = 1_000_000_000;

    fn allocation(devices: u32, seconds: u64) -> Allocation {
        Allocation {
            job: JobId(1),
            attempt: AttemptNumber::FIRST,
            node: NodeName::new("n1").expect("a valid name"),
            devices,
            from: Timestamp::from_unix_nanos(SECOND),
            to: Timestamp::from_unix_nanos(SECOND) + Duration::from_secs(seconds),
            price: Money::from_nano_dollars(2_499_999_999),
        }
    }

    fn reported(times: &[(Bucket, u64)]) -> Buckets {
        let mut buckets = Buckets::default();
        for (bucket, seconds) in times {
            buckets[*bucket] = GpuSeconds::from_nanos(u128::from(seconds * SECOND));
        }
        buckets
    }

    fn check_sums(entry: &LedgerEntry) {
        let held = entry.allocation.to.since(entry.allocation.from);
        assert_eq!(entry.buckets.total(), GpuSeconds::of(entry.allocation.devices, held));
        assert_eq!(entry.costs().into_iter().map(|(_, cost)| cost).sum::<Money>(), entry.cost);
    }

    /// Proves A-8 for reports that fit into the allocation.
    #[test]
    fn unreported_time_is_restart_before_and_idle_after() {
        let began = Timestamp::from_unix_nanos(3 * SECOND);
        let entry = book(allocation(2, 10), Some((began, reported(&[(Bucket::Compute, 9), (Bucket::Restart, 3)]))));
        check_sums(&entry);
        assert_eq!(entry.buckets[Bucket::Compute].to_string(), "9.000");
        assert_eq!(entry.buckets[Bucket::Restart].to_string(), "7.000");
        assert_eq!(entry.buckets[Bucket::Idle].to_string(), "4.000");
    }

    /// Proves A-8 for an allocation without any report.
    #[test]
    fn a_share_without_a_report_is_idle() {
        let entry = book(allocation(8, 5), None);
        check_sums(&entry);
        assert_eq!(entry.buckets[Bucket::Idle], entry.buckets.total());
    }

    /// Proves A-8 for reports that exceed the allocation, as from clocks that disagree.
    #[test]
    fn more_reported_than_held_is_cut_to_what_was_held() {
        let began = Timestamp::from_unix_nanos(0);
        for compute in [0, 1, 5, 40] {
            let buckets = reported(&[(Bucket::Compute, compute), (Bucket::Idle, 30), (Bucket::LostWork, 2)]);
            let entry = book(allocation(1, 10), Some((began, buckets)));
            check_sums(&entry);
            assert_eq!(entry.buckets[Bucket::Compute].nanos(), u128::from(compute.min(10) * SECOND));
        }
    }
}
