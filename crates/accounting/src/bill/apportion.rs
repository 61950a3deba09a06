//! Divides amounts over time so that the parts of adjoining periods sum exactly.
//!
//! Every amount is the difference of two running totals, each rounded down: what a total gains over a period doesn't
//! depend on how the time before was divided.

use gangline_base::{Bucket, Buckets, Money, Timestamp};

use super::line::Amount;

/// Nanoseconds per hour.
const NANOS_PER_HOUR: i128 = 3_600_000_000_000;

/// Returns what each bucket of an allocation has come to at `at`, in the order of [`Bucket::ALL`]. The allocation runs
/// from the first time of `held` to the second, and its buckets are spread evenly over it: only their sums are known.
pub(super) fn until(
    at: Timestamp,
    held: (Timestamp, Timestamp),
    buckets: &Buckets,
    price: Option<Money>,
) -> [Amount; Bucket::ALL.len()] {
    let length = nanos_between(held.0, held.1);
    let passed = nanos_between(held.0, at).clamp(0, length);
    let mut amounts = [Amount::default(); Bucket::ALL.len()];
    if passed == 0 {
        return amounts;
    }
    let (mut booked, mut time, mut cost) = (0_i128, 0_i128, 0_i128);
    for (amount, (_, spent)) in amounts.iter_mut().zip(buckets.iter()) {
        let spent = i128::try_from(spent.nanos()).unwrap_or(i128::MAX);
        if spent == 0 {
            continue;
        }
        booked += spent;
        let reached = if passed == length { booked } else { booked.saturating_mul(passed) / length };
        let paid = price.map_or(0, |price| cost_of(price, reached));
        amount.quantity = reached - time;
        amount.cost = paid - cost;
        amount.unpriced = if price.is_some() { 0 } else { amount.quantity };
        (time, cost) = (reached, paid);
    }
    amounts
}

/// Returns the amount of `devices` from one time to another, at one price. The cost of one device is the difference of
/// its cost since the epoch, so that it adds up over time and over devices.
pub(super) fn charge(devices: u32, (from, to): (Timestamp, Timestamp), price: Option<Money>) -> Amount {
    let devices = i128::from(devices);
    let nanos = devices * nanos_between(from, to);
    let since_epoch = |at: Timestamp, price| cost_of(price, i128::from(at.unix_nanos()));
    let cost = price.map_or(0, |price| since_epoch(to, price) - since_epoch(from, price));
    Amount { quantity: nanos, cost: devices * cost, unpriced: if price.is_some() { 0 } else { nanos } }
}

/// Returns the part of `whole` that the first `part` of `all` get, rounded down.
pub(super) fn share(whole: i128, part: i128, all: i128) -> i128 {
    if all == 0 { 0 } else { whole.saturating_mul(part) / all }
}

pub(super) fn cost_of(price: Money, nanos: i128) -> i128 {
    i128::from(price.nano_dollars()).saturating_mul(nanos) / NANOS_PER_HOUR
}

/// Returns the nanoseconds between two times; negative if the second is earlier.
pub(super) fn nanos_between(from: Timestamp, to: Timestamp) -> i128 {
    i128::from(to.unix_nanos()) - i128::from(from.unix_nanos())
}
