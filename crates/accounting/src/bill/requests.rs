//! What requests to object storage cost, and the bytes that came with them.

use gangline_base::{Bytes, Money, Timestamp};

use super::line::{Amount, Line};

/// Prices of requests are for so many.
const THOUSAND: i128 = 1_000;

/// Prices of an object store. What has none is not priced; what is free has a price of 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct RequestRate {
    /// What a thousand GET or HEAD requests cost.
    pub per_thousand: Option<Money>,
    /// What a thousand LIST requests cost.
    pub per_thousand_lists: Option<Money>,
    /// What a thousand PUT requests cost.
    pub per_thousand_writes: Option<Money>,
    /// What `unit` of read bytes costs.
    pub per_unit: Option<Money>,
    /// What it costs where the bytes come from another region than the node's.
    pub per_unit_across: Option<Money>,
    /// The unit: a GB or a GiB. Never 0.
    pub unit: Bytes,
}

impl RequestRate {
    /// Returns the prices of a store without any.
    #[must_use]
    pub const fn none() -> RequestRate {
        RequestRate {
            per_thousand: None,
            per_thousand_lists: None,
            per_thousand_writes: None,
            per_unit: None,
            per_unit_across: None,
            unit: Bytes(1),
        }
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
    /// PUT requests.
    pub writes: u64,
    /// Bytes that were read in the node's region, or in one that isn't known.
    pub bytes: Bytes,
    /// Bytes that were read from another region.
    pub cross_region_bytes: Bytes,
    /// Their prices.
    pub rate: RequestRate,
}

impl Requests {
    /// The lines of a bill that requests are in.
    pub(super) const LINES: [Line; 5] =
        [Line::Requests, Line::Lists, Line::Writes, Line::Transfer, Line::CrossRegionTransfer];

    /// Returns the amounts of [`Requests::LINES`] of the time up to `at`. Amounts of adjoining periods are differences of these, so that they sum
    /// exactly.
    pub(super) fn until(&self, at: Timestamp, (from, to): (Timestamp, Timestamp)) -> [Amount; 5] {
        let (length, passed) = (to.since(from).as_nanos(), at.since(from).as_nanos());
        let reached = |count: u64| {
            let reached =
                if passed >= length { u128::from(count) } else { u128::from(count).saturating_mul(passed) / length };
            i128::try_from(reached).unwrap_or(i128::MAX)
        };
        let plain = amount(reached(self.plain), self.rate.per_thousand, THOUSAND);
        let lists = amount(reached(self.lists), self.rate.per_thousand_lists, THOUSAND);
        let writes = amount(reached(self.writes), self.rate.per_thousand_writes, THOUSAND);
        let unit = i128::from(self.rate.unit.0.max(1));
        let moved = amount(reached(self.bytes.0), self.rate.per_unit, unit);
        let moved_across = amount(reached(self.cross_region_bytes.0), self.rate.per_unit_across, unit);
        [plain, lists, writes, moved, moved_across]
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

    /// S3's prices of us-east-1: $0.0004 for 1,000 GETs, $0.005 for 1,000 LISTs, $0.09 for a GB that leaves, and $0.02 for one that goes
    /// to another region (aws.amazon.com/s3/pricing).
    fn s3() -> RequestRate {
        RequestRate {
            per_thousand: money("0.0004"),
            per_thousand_lists: money("0.005"),
            per_thousand_writes: money("0.005"),
            per_unit: money("0.09"),
            per_unit_across: money("0.02"),
            unit: Bytes(1_000_000_000),
        }
    }

    fn nothing() -> Requests {
        Requests {
            plain: 0,
            lists: 0,
            writes: 0,
            bytes: Bytes(0),
            cross_region_bytes: Bytes(0),
            rate: RequestRate::none(),
        }
    }

    fn at(seconds: u64) -> Timestamp {
        Timestamp::from_unix_nanos(seconds * 1_000_000_000)
    }

    #[test]
    fn a_petabyte_in_small_objects_costs_forty_times_that_in_large_ones() {
        let cost = |object_bytes: u64| {
            let plain = 1_000_000_000_000_000 / object_bytes;
            let requests = Requests { plain, rate: s3(), ..nothing() };
            requests.until(at(1), (at(0), at(1)))[0].money().to_string()
        };
        assert_eq!([cost(4_000_000), cost(100_000)], ["$100.00", "$4000.00"]);
    }

    #[test]
    fn any_division_of_the_time_sums_to_the_whole() {
        let (bytes, cross_region_bytes) = (Bytes(98_765_432_109), Bytes(7_000_000_001));
        let requests = Requests { plain: 1_234_567, lists: 89, writes: 3_000, bytes, cross_region_bytes, rate: s3() };
        let held = (at(10), at(110));
        let whole = requests.until(at(1_000), held);
        assert_eq!(whole.map(|amount| amount.quantity), [1_234_567, 89, 3_000, 98_765_432_109, 7_000_000_001]);
        assert_eq!(whole.map(|amount| amount.cost), [493_826_800, 445_000, 15_000_000, 8_888_888_889, 140_000_000]);
        let mut before = requests.until(at(0), held);
        assert_eq!(before, [Amount::default(); 5], "nothing has begun");
        let mut sums = [Amount::default(); 5];
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
        let requests =
            Requests { plain: 1_000, lists: 7, writes: 8, bytes: Bytes(5), cross_region_bytes: Bytes(6), rate };
        let amounts = requests.until(at(1), (at(0), at(1)));
        let found = amounts.map(|amount| (amount.quantity, amount.unpriced, amount.cost));
        assert_eq!(found, [(1_000, 0, 400_000_000), (7, 7, 0), (8, 8, 0), (5, 5, 0), (6, 6, 0)]);
    }
}
