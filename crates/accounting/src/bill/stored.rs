//! What stored data costs: bytes over time, at a price for a unit of bytes and a month.

use gangline_base::{Bytes, Money, Timestamp};

use super::Period;
use super::line::{Amount, Line};

/// Pico-dollars of a nano-dollar.
const PICO: i128 = 1_000;
/// Nanoseconds of an hour.
const NANOS_PER_HOUR: i128 = 3_600_000_000_000;

/// What data is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum StorageClass {
    /// A job's checkpoints.
    Checkpoints,
    /// Checkpoints in an archive.
    Archives,
    /// Logs of jobs.
    Logs,
    /// The control plane's own: journal, read models, copies of code, metrics.
    Platform,
}

/// The price of storage. Providers differ in both units: Amazon S3 charges for GiB (which it calls GB) and for the hours of
/// each month, others for 10^9 bytes or for months of 730 hours.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct StorageRate {
    /// What `unit` costs for a month.
    pub per_month: Money,
    /// The unit: a GB or a GiB. Never 0.
    pub unit: Bytes,
    /// The hours of a month. Never 0.
    pub month_hours: u32,
}

impl StorageRate {
    /// Returns what so many bytes cost for an hour, in pico-dollars, rounded down.
    #[must_use]
    pub fn pico_dollars_per_hour(&self, bytes: Bytes) -> i128 {
        let per_month = i128::from(bytes.0).saturating_mul(i128::from(self.per_month.nano_dollars()) * PICO);
        per_month / (i128::from(self.unit.0.max(1)) * i128::from(self.month_hours.max(1)))
    }
}

/// Data that is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stored {
    /// What it is for.
    pub class: StorageClass,
    /// Its size on the disk.
    pub bytes: Bytes,
    /// The price, if it has one.
    pub price: Option<StorageRate>,
}

impl Stored {
    pub(super) const fn line(&self) -> Line {
        Line::Stored(self.class)
    }

    /// Returns the amount from one time to another. Its cost is the difference of the cost since the epoch, so that the
    /// amounts of adjoining periods sum exactly.
    pub(super) fn amount(&self, period: Period) -> Amount {
        let since_epoch = |at: Timestamp| i128::from(at.unix_nanos());
        let nanos = i128::from(self.bytes.0) * (since_epoch(period.to) - since_epoch(period.from));
        let Some(price) = self.price else { return Amount { quantity: nanos, cost: 0, unpriced: nanos } };
        let rate = price.pico_dollars_per_hour(self.bytes);
        let cost = |at| rate.saturating_mul(since_epoch(at)) / (PICO * NANOS_PER_HOUR);
        Amount { quantity: nanos, cost: cost(period.to) - cost(period.from), unpriced: 0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn price(per_month: &str, unit: u64, month_hours: u32) -> StorageRate {
        StorageRate { per_month: per_month.parse().expect("a price"), unit: Bytes(unit), month_hours }
    }

    fn hours(count: u64) -> Timestamp {
        Timestamp::from_unix_nanos(count * 3_600_000_000_000)
    }

    /// The example of "Amazon S3 FAQs", section Billing: 100 GiB for 15 days and 100 TiB for
    /// 16 days of March are 42,259,901,212,262,400 byte-hours, which are 52,900 GiB-months of 744 hours.
    #[test]
    fn byte_hours_are_the_months_of_the_providers_example() {
        let gib = 1_u64 << 30;
        let march = price("0.023", gib, 744);
        let amount = |bytes: u64, days: u64| {
            let stored = Stored { class: StorageClass::Checkpoints, bytes: Bytes(bytes), price: Some(march) };
            stored.amount(Period { from: hours(0), to: hours(24 * days) })
        };
        let both = amount(100 * gib, 15) + amount(100 * 1024 * gib, 16);
        assert_eq!(both.quantity / NANOS_PER_HOUR, 42_259_901_212_262_400);
        let months = both.quantity / NANOS_PER_HOUR / i128::from(gib) / 744;
        assert_eq!(months, 52_900);
        let expected = 52_900.0 * 0.023;
        assert!((both.cost as f64 / 1e9 - expected).abs() < 0.01, "{}", both.money());
    }

    /// Months of 720 hours: E2E Networks' example, 250 GB at 5 a month for 360 hours, is 625; CoreWeave's file storage at 0.11 a month is
    /// 0.000153 an hour.
    #[test]
    fn months_of_720_hours_are_those_of_the_providers_examples() {
        let of = |per_month: &str, bytes: u64, count: u64| {
            let price = Some(price(per_month, 1_000_000_000, 720));
            let stored = Stored { class: StorageClass::Checkpoints, bytes: Bytes(bytes), price };
            stored.amount(Period { from: hours(0), to: hours(count) }).money().to_string()
        };
        assert_eq!(of("5", 250_000_000_000, 360), "$625.00");
        assert_eq!(of("0.11", 1_000_000_000_000, 1), "$0.15");
        let pico_dollars = price("0.11", 1_000_000_000, 720).pico_dollars_per_hour(Bytes(1_000_000_000));
        assert_eq!(format!("{:.6}", pico_dollars as f64 / 1e12), "0.000153");
    }

    #[test]
    fn a_gigabyte_is_not_a_gibibyte() {
        let of = |unit| price("0.10", unit, 730).pico_dollars_per_hour(Bytes(1 << 40));
        let ratio = of(1_000_000_000) as f64 / of(1 << 30) as f64;
        assert!((ratio - 1.073_741_824).abs() < 1e-9, "{ratio}");
    }

    #[test]
    fn data_without_a_price_is_not_free() {
        let stored = Stored { class: StorageClass::Logs, bytes: Bytes(7), price: None };
        let amount = stored.amount(Period { from: hours(1), to: hours(2) });
        assert_eq!((amount.cost, amount.unpriced), (0, 7 * NANOS_PER_HOUR));
    }
}
