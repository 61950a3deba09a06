//! What requests to object storage cost, and the bytes that came with them.

use gangline_base::{Bytes, Money, Timestamp};

use super::line::Amount;

/// Prices of requests are for so many.
const THOUSAND: i128 = 1_000;

/// Prices of an object store. What has none is not priced; what is free has a price of 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct RequestRate {
    /// What a thousand GET or HEAD requests cost.
    pub per_thousand: Option<Money>,
    /// What a thousand LIST requests cost.
    pub per_thousand_lists: Option<Money>,
    /// What `unit` of read bytes costs.
    pub per_unit: Option<Money>,
    /// The unit: a GB or a GiB. Never 0.
    pub unit: Bytes,
}

impl RequestRate {
    /// Returns the prices of a store without any.
    #[must_use]
    pub const fn none() -> RequestRate {
        RequestRate { per_thousand: None, per_thousand_lists: None, per_unit: None, unit: Bytes(1) }
    }
}

/// Requests that were made in a stretch of time, and the bytes that came with them. Only their sums are known, so they are spread
/// evenly over it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Requests {
    /// GET and HEAD requests.
    pub plain: u64,
    /// LIST requests.
    pub lists: u64,
    /// Bytes that were read.
    pub bytes: Bytes,
    /// Their prices.
    pub rate: RequestRate,
}

impl Requests {
    /// Returns requests, lists and bytes of the time up to `at`. Amounts of adjoining periods are differences of these, so that they sum
    /// exactly.
    pub(super) fn until(&self, at: Timestamp, (from, to): (Timestamp, Timestamp)) -> [Amount; 3] {
        let (length, passed) = (to.since(from).as_nanos(), at.since(from).as_nanos());
        let reached = |count: u64| {
            let reached =
                if passed >= length { u128::from(count) } else { u128::from(count).saturating_mul(passed) / length };
            i128::try_from(reached).unwrap_or(i128::MAX)
        };
        let plain = amount(reached(self.plain), self.rate.per_thousand, THOUSAND);
        let lists = amount(reached(self.lists), self.rate.per_thousand_lists, THOUSAND);
        let moved = amount(reached(self.bytes.0), self.rate.per_unit, i128::from(self.rate.unit.0.max(1)));
        [plain, lists, moved]
    }
}

fn amount(quantity: i128, price: Option<Money>, unit: i128) -> Amount {
    match price {
        Some(price) => {
            let cost = quantity.saturating_mul(i128::from(price.nano_dollars())) / unit;
            Amount { quantity, cost, unpriced: 0 }
        }
        None => Amount { quantity, cost: 0, unpriced: quantity },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn money(text: &str) -> Option<Money> {
        Some(text.parse().expect("a price"))
    }

    /// S3's prices of us-east-1: $0.0004 for 1,000 GETs, $0.005 for 1,000 LISTs, and $0.09 for a GB that leaves (aws.amazon.com/s3/pricing).
    fn s3() -> RequestRate {
        RequestRate {
            per_thousand: money("0.0004"),
            per_thousand_lists: money("0.005"),
            per_unit: money("0.09"),
            unit: Bytes(1_000_000_000),
        }
    }

    fn at(seconds: u64) -> Timestamp {
        Timestamp::from_unix_nanos(seconds * 1_000_000_000)
    }

    #[test]
    fn a_petabyte_in_small_objects_costs_forty_times_that_in_large_ones() {
        let cost = |object_bytes: u64| {
            let plain = 1_000_000_000_000_000 / object_bytes;
            let requests = Requests { plain, lists: 0, bytes: Bytes(0), rate: s3() };
            requests.until(at(1), (at(0), at(1)))[0].money().to_string()
        };
        assert_eq!([cost(4_000_000), cost(100_000)], ["$100.00", "$4000.00"]);
    }

    #[test]
    fn any_division_of_the_time_sums_to_the_whole() {
        let requests = Requests { plain: 1_234_567, lists: 89, bytes: Bytes(98_765_432_109), rate: s3() };
        let held = (at(10), at(110));
        let whole = requests.until(at(1_000), held);
        assert_eq!(whole.map(|amount| amount.quantity), [1_234_567, 89, 98_765_432_109]);
        assert_eq!(whole.map(|amount| amount.cost), [493_826_800, 445_000, 8_888_888_889]);
        let mut before = requests.until(at(0), held);
        assert_eq!(before, [Amount::default(); 3], "nothing has begun");
        let mut sums = [Amount::default(); 3];
        for second in 0..200 {
            let reached = requests.until(at(second), held);
            for (sum, (now, then)) in sums.iter_mut().zip(reached.iter().zip(before)) {
                *sum += *now - then;
            }
            before = reached;
        }
        assert_eq!(sums, whole);
    }

    #[test]
    fn what_has_no_price_is_not_free() {
        let rate = RequestRate { per_thousand: money("0.4"), ..RequestRate::none() };
        let requests = Requests { plain: 1_000, lists: 7, bytes: Bytes(5), rate };
        let amounts = requests.until(at(1), (at(0), at(1)));
        let found = amounts.map(|amount| (amount.quantity, amount.unpriced, amount.cost));
        assert_eq!(found, [(1_000, 0, 400_000_000), (7, 7, 0), (5, 5, 0)]);
    }
}
