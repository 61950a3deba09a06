//! GPU-hours: how much accelerator time a queue may use in a calendar period.
//!
//! What counts is every accelerator (on machines without GPUs, every CPU slot) that jobs in or below the queue
//! hold, from placement to release, as in the ledger. Once a queue has used its hours, nothing in or below it
//! starts before the next period; what runs goes on, and its time counts. Slurm's GrpTRESMins
//! (<https://slurm.schedmd.com/resource_limits.html>) stops running jobs as well, unless it is told to admit
//! only what fits; here a running job loses nothing to a quota.
//!
//! Invariants: integral, so that the sum over placements is exact however often it is brought forward;
//! a period's use is a function of the placements and releases alone. Whether a queue has used its hours
//! is determined at the start of each pass.

use gangline_base::{Day, GpuSeconds, QueueName, Timestamp};

use crate::queueing::queue::{QueueIndex, Queues};
use crate::queueing::usage::Resource;

const NANOS_PER_DAY: u64 = 86_400_000_000_000;
/// Days from a Monday to 1970-01-01, a Thursday.
const THURSDAY: i64 = 3;

/// A calendar period in UTC.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Period {
    /// From midnight to midnight.
    Day,
    /// From Monday to Monday.
    Week,
    /// From the first to the first.
    Month,
}

impl Period {
    /// Returns when the period around a time begins, and when the next one does.
    #[must_use]
    pub fn around(self, now: Timestamp) -> (Timestamp, Timestamp) {
        let days = i64::try_from(now.unix_nanos() / NANOS_PER_DAY).expect("a u64 of nanoseconds is 213,504 days");
        let (from, until) = match self {
            Period::Day => (days, days + 1),
            Period::Week => {
                let monday = days - (days + THURSDAY).rem_euclid(7);
                (monday, monday + 7)
            }
            Period::Month => {
                let (first, next) = Day::from_days_since_epoch(days).month();
                (first.days_since_epoch(), next.days_since_epoch())
            }
        };
        let midnight = |days: i64| {
            let nanos = u64::try_from(days).unwrap_or(0).saturating_mul(NANOS_PER_DAY);
            Timestamp::from_unix_nanos(nanos)
        };
        (midnight(from), midnight(until))
    }

    /// Returns its name.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Period::Day => "day",
            Period::Week => "week",
            Period::Month => "month",
        }
    }
}

/// How much accelerator time a queue may use in each period.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HourQuota {
    /// The time.
    pub limit: GpuSeconds,
    /// The period.
    pub per: Period,
}

/// The accelerator time that a queue has used in a period.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HoursUsed {
    /// When the period began.
    pub from: Timestamp,
    /// The time used until `at`.
    pub used: GpuSeconds,
    /// When the number of devices held last changed.
    pub at: Timestamp,
}

impl HoursUsed {
    /// Brings the use forward; `held` devices were held since.
    fn forward(self, now: Timestamp, held: u32, per: Period) -> HoursUsed {
        let (from, _) = per.around(now);
        let (used, since) =
            if self.from == from { (self.used, self.at) } else { (GpuSeconds::ZERO, self.at.max(from)) };
        HoursUsed { from, used: used + GpuSeconds::of(held, now.since(since)), at: now.max(self.at) }
    }
}

/// A queue's quota and its use of it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Meter {
    quota: HourQuota,
    used: HoursUsed,
    /// The end of the period whose hours were used up, as of the last pass.
    spent_until: Option<Timestamp>,
}

impl Meter {
    pub(super) fn new(quota: HourQuota) -> Self {
        let used = HoursUsed { from: Timestamp::EPOCH, used: GpuSeconds::ZERO, at: Timestamp::EPOCH };
        Meter { quota, used, spent_until: None }
    }

    pub(super) fn forward(&mut self, now: Timestamp, held: u32) {
        self.used = self.used.forward(now, held, self.quota.per);
    }
}

/// A queue that has used its hours.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct HoursSpent {
    pub(crate) queue: QueueName,
    pub(crate) used: GpuSeconds,
    pub(crate) quota: HourQuota,
    /// When the next period begins.
    pub(crate) until: Timestamp,
}

impl Queues {
    /// Returns the accelerators that jobs in and below a queue hold, of any kind.
    fn devices_held(&self, queue: QueueIndex) -> u32 {
        let usages = &self.queues[queue.0].usages.0;
        let of_kind = usages.iter().filter(|(resource, _)| matches!(resource, Resource::Accelerator(_)));
        let held = of_kind.fold(0_u64, |sum, (_, usage)| sum.saturating_add(usage.held));
        u32::try_from(held).unwrap_or(u32::MAX)
    }

    /// Brings a queue's hours forward, before what it holds changes.
    pub(super) fn meter_hours(&mut self, now: Timestamp, queue: QueueIndex) {
        if self.queues[queue.0].hours.is_none() {
            return;
        }
        let held = self.devices_held(queue);
        self.queues[queue.0].hours.iter_mut().for_each(|meter| meter.forward(now, held));
    }

    /// Returns a queue's quota of hours with its use at a time, and when the next period begins.
    pub(crate) fn hours(&self, now: Timestamp, queue: QueueIndex) -> Option<(HourQuota, GpuSeconds, Timestamp)> {
        let meter = self.queues[queue.0].hours.as_ref()?;
        let used = meter.used.forward(now, self.devices_held(queue), meter.quota.per).used;
        Some((meter.quota, used, meter.quota.per.around(now).1))
    }

    /// Determines which queues have used their hours. Where a new period has begun, jobs may start again.
    pub(super) fn note_hours(&mut self, now: Timestamp) {
        for queue in self.metered.clone() {
            let Some((quota, used, until)) = self.hours(now, queue) else { continue };
            let is_spent = used >= quota.limit;
            let Some(meter) = &mut self.queues[queue.0].hours else { continue };
            let was_spent = std::mem::replace(&mut meter.spent_until, is_spent.then_some(until)).is_some();
            if was_spent && !is_spent {
                self.reopen(queue);
                self.seek_below(queue);
            }
        }
    }

    /// Returns the first queue, from the leaf upward, that had used its hours at the start of the pass.
    pub(crate) fn spent_above(&self, leaf: QueueIndex) -> Option<QueueIndex> {
        if self.metered.is_empty() {
            return None;
        }
        self.path_up(leaf).find(|index| self.queues[index.0].hours.is_some_and(|meter| meter.spent_until.is_some()))
    }

    /// Returns the queue, from the leaf upward, that has used its hours at this time and gets new ones last.
    pub(crate) fn hours_spent(&self, now: Timestamp, leaf: QueueIndex) -> Option<HoursSpent> {
        let spent = self.path_up(leaf).filter_map(|index| {
            let (quota, used, until) = self.hours(now, index).filter(|(quota, used, _)| used >= &quota.limit)?;
            Some(HoursSpent { queue: self.name(index)?.clone(), used, quota, until })
        });
        spent.max_by_key(|spent| spent.until)
    }

    /// Returns when a queue that has used its hours gets new ones; the first of them.
    pub(crate) fn next_hours(&self) -> Option<Timestamp> {
        self.metered.iter().filter_map(|queue| self.queues[queue.0].hours?.spent_until).min()
    }

    /// Returns the hours that queues have used, for a snapshot.
    pub(crate) fn hours_used(&self) -> Vec<(QueueName, HoursUsed)> {
        let used = |queue: &QueueIndex| Some((self.name(*queue)?.clone(), self.queues[queue.0].hours?.used));
        self.metered.iter().filter_map(used).collect()
    }

    /// Restores what was used in queues of the same names and periods; others begin to count now.
    pub(crate) fn set_hours(&mut self, now: Timestamp, used: &[(QueueName, HoursUsed)]) {
        for index in self.metered.clone() {
            let known = used.iter().find(|(name, _)| self.name(index) == Some(name)).map(|(_, used)| *used);
            let Some(meter) = &mut self.queues[index.0].hours else { continue };
            let (from, _) = meter.quota.per.around(now);
            let fresh = HoursUsed { from, used: GpuSeconds::ZERO, at: now };
            meter.used = known.filter(|used| meter.quota.per.around(used.at).0 == used.from).unwrap_or(fresh);
        }
        self.note_hours(now);
    }

    /// Brings all queues' hours forward, before the queues are rebuilt.
    pub(crate) fn meter_all_hours(&mut self, now: Timestamp) {
        self.metered.clone().into_iter().for_each(|queue| self.meter_hours(now, queue));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(text: &str, hours: u64) -> Timestamp {
        let day: Day = text.parse().expect("a day");
        let days = u64::try_from(day.days_since_epoch()).expect("after 1970");
        Timestamp::from_unix_nanos(days * NANOS_PER_DAY + hours * 3_600_000_000_000)
    }

    #[test]
    fn periods_are_those_of_the_calendar() {
        let check = |per: Period, now: Timestamp, from: &str, until: &str| {
            assert_eq!(per.around(now), (at(from, 0), at(until, 0)), "{per:?} {now:?}");
        };
        check(Period::Day, at("2026-11-25", 23), "2026-11-25", "2026-11-26");
        // A Wednesday; a Monday, which begins its week; a Sunday.
        check(Period::Week, at("2026-11-25", 1), "2026-11-23", "2026-11-30");
        check(Period::Week, at("2026-11-23", 0), "2026-11-23", "2026-11-30");
        check(Period::Week, at("2026-11-29", 23), "2026-11-23", "2026-11-30");
        check(Period::Month, at("2026-11-30", 23), "2026-11-01", "2026-12-01");
        check(Period::Month, at("2026-12-01", 0), "2026-12-01", "2027-01-01");
        check(Period::Month, at("2028-02-29", 5), "2028-02-01", "2028-03-01");
        check(Period::Month, Timestamp::EPOCH, "1970-01-01", "1970-02-01");
    }

    #[test]
    fn use_begins_anew_with_a_period_and_looking_twice_is_looking_once() {
        let start = HoursUsed { from: at("2026-11-01", 0), used: GpuSeconds::ZERO, at: at("2026-11-30", 22) };
        let later = start.forward(at("2026-11-30", 23), 4, Period::Month);
        assert_eq!(later.used, GpuSeconds::of(14_400, std::time::Duration::from_secs(1)));
        let (direct, steps) = (start.forward(at("2026-12-01", 3), 4, Period::Month), later);
        assert_eq!(direct, steps.forward(at("2026-12-01", 3), 4, Period::Month));
        assert_eq!(direct.used, GpuSeconds::of(4, std::time::Duration::from_hours(3)), "only what is of the new month");
        // Nothing was held for two months.
        assert_eq!(start.forward(at("2027-02-01", 5), 0, Period::Month).used, GpuSeconds::ZERO);
    }
}
