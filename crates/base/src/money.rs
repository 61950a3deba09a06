//! Money: integral nano-dollars, so that sums are exact in any order.

use std::fmt;
use std::iter::Sum;
use std::ops::{Add, Sub};
use std::str::FromStr;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::GpuSeconds;

/// Nano-dollars per dollar.
const NANOS_PER_DOLLAR: i64 = 1_000_000_000;
/// Nanoseconds per hour.
const NANOS_PER_HOUR: i128 = 3_600_000_000_000;

/// An amount of US dollars as an integral number of nano-dollars: ±9.2 billion dollars, exact to a billionth.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Money {
    nano_dollars: i64,
}

impl Money {
    /// Zero dollars.
    pub const ZERO: Money = Money { nano_dollars: 0 };

    /// Builds an amount from nano-dollars.
    #[must_use]
    pub const fn from_nano_dollars(nano_dollars: i64) -> Self {
        Money { nano_dollars }
    }

    /// Builds an amount from nano-dollars; the nearest one there is, if they are more than it can hold.
    #[must_use]
    pub fn from_nano_dollars_saturating(nano_dollars: i128) -> Self {
        let nearest = if nano_dollars < 0 { i64::MIN } else { i64::MAX };
        Money { nano_dollars: i64::try_from(nano_dollars).unwrap_or(nearest) }
    }

    /// Returns the amount in nano-dollars.
    #[must_use]
    pub const fn nano_dollars(self) -> i64 {
        self.nano_dollars
    }

    /// Returns the cost of `time` at `self` per GPU-hour, rounded down to a nano-dollar.
    ///
    /// # Panics
    /// If the cost exceeds ±9.2 billion dollars: prices and times are bounded where they enter the system.
    #[must_use]
    pub fn per_hour_times(self, time: GpuSeconds) -> Money {
        let nanos = i128::try_from(time.nanos()).expect("device time fits in 127 bits");
        let cost = i128::from(self.nano_dollars) * nanos / NANOS_PER_HOUR;
        Money { nano_dollars: i64::try_from(cost).expect("a cost stays below 9.2 billion dollars") }
    }
}

impl Money {
    /// Returns the sum, or the maximum amount on overflow.
    #[must_use]
    pub const fn saturating_add(self, other: Money) -> Money {
        Money { nano_dollars: self.nano_dollars.saturating_add(other.nano_dollars) }
    }

    /// Returns what is left after subtracting `other`; zero if `other` is larger.
    #[must_use]
    pub fn less(self, other: Money) -> Money {
        Money { nano_dollars: self.nano_dollars.saturating_sub(other.nano_dollars).max(0) }
    }

    /// Returns `count` times the amount, or the maximum amount on overflow.
    #[must_use]
    pub fn times(self, count: u32) -> Money {
        Money { nano_dollars: self.nano_dollars.saturating_mul(i64::from(count)) }
    }

    /// Returns the cost of `time` at `self` per hour, rounded down to a nano-dollar, or the maximum amount on
    /// overflow.
    #[must_use]
    pub fn for_time(self, time: Duration) -> Money {
        let nanos = i128::try_from(time.as_nanos()).unwrap_or(i128::MAX);
        let cost = i128::from(self.nano_dollars).saturating_mul(nanos) / NANOS_PER_HOUR;
        Money { nano_dollars: i64::try_from(cost).unwrap_or(i64::MAX) }
    }

    /// Returns how long the amount pays for something that costs `price` per hour, rounded down to a
    /// nanosecond; none if that is free.
    #[must_use]
    pub fn pays_for(self, price: Money) -> Option<Duration> {
        let price = i128::from(price.nano_dollars);
        if price <= 0 {
            return None;
        }
        let nanos = i128::from(self.nano_dollars.max(0)) * NANOS_PER_HOUR / price;
        Some(Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX)))
    }
}

impl Add for Money {
    type Output = Money;
    fn add(self, other: Money) -> Money {
        Money { nano_dollars: self.nano_dollars + other.nano_dollars }
    }
}

impl Sub for Money {
    type Output = Money;
    fn sub(self, other: Money) -> Money {
        Money { nano_dollars: self.nano_dollars - other.nano_dollars }
    }
}

impl Sum for Money {
    fn sum<I: Iterator<Item = Money>>(amounts: I) -> Money {
        amounts.fold(Money::ZERO, Add::add)
    }
}

impl fmt::Display for Money {
    /// Writes dollars with two decimals, or below ten cents with four significant digits: `$12.30`,
    /// `$0.0041`, `$0.000008`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sign = if self.nano_dollars < 0 { "-" } else { "" };
        let nanos = self.nano_dollars.unsigned_abs();
        let decimals: usize = match nanos {
            0 => 2,
            1..1_000 => 9,
            1_000..100_000 => 8,
            100_000..10_000_000 => 6,
            10_000_000..100_000_000 => 4,
            _ => 2,
        };
        let dollars_unit = NANOS_PER_DOLLAR.unsigned_abs();
        let exponent = u32::try_from(9 - decimals).expect("at most nine decimals");
        let scale = 10_u64.pow(exponent);
        let rounded = (nanos + scale / 2) / scale * scale;
        let fraction = format!("{:09}", rounded % dollars_unit);
        write!(f, "{sign}${}.{}", rounded / dollars_unit, &fraction[..decimals])
    }
}

/// The error for text that is not an amount of money.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("\"{text}\" is not an amount of dollars: write it as 500, 0.04 or $12.5, with at most nine decimals")]
pub struct InvalidMoney {
    /// The rejected text.
    pub text: String,
}

impl FromStr for Money {
    type Err = InvalidMoney;

    /// Parses a non-negative decimal number of dollars exactly, without converting it to a float.
    fn from_str(text: &str) -> Result<Self, InvalidMoney> {
        let refused = || InvalidMoney { text: text.to_owned() };
        let digits = text.trim().trim_start_matches('$');
        let (whole, fraction) = digits.split_once('.').unwrap_or((digits, ""));
        let is_number = |part: &str| part.bytes().all(|b| b.is_ascii_digit());
        if whole.is_empty() || fraction.len() > 9 || !is_number(whole) || !is_number(fraction) {
            return Err(refused());
        }
        let dollars: i64 = whole.parse().map_err(|_| refused())?;
        let nanos: i64 = format!("{fraction:0<9}").parse().map_err(|_| refused())?;
        let total = dollars.checked_mul(NANOS_PER_DOLLAR).and_then(|d| d.checked_add(nanos));
        total.map(Money::from_nano_dollars).ok_or_else(refused)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dollars_are_read_exactly() {
        let check = |text: &str, nanos: i64| assert_eq!(text.parse(), Ok(Money::from_nano_dollars(nanos)));
        check("500", 500_000_000_000);
        check("$0.04", 40_000_000);
        check("0.000000001", 1);
        for bad in ["", ".", "-1", "1e3", "0.0000000001", "99999999999", "1,5"] {
            assert!(bad.parse::<Money>().is_err(), "{bad:?} was accepted");
        }
    }

    #[test]
    fn what_money_pays_for_costs_no_more_than_it() {
        let check = |money: &str, price: &str, nanos: u64| {
            let (money, price): (Money, Money) = (money.parse().expect("money"), price.parse().expect("a price"));
            let time = money.pays_for(price).expect("it isn't free");
            assert_eq!(time, Duration::from_nanos(nanos));
            assert!(price.for_time(time) <= money && price.for_time(time + Duration::from_micros(10)) >= money);
        };
        check("5", "2.5", 2 * 3_600_000_000_000);
        check("1", "3", 1_200_000_000_000);
        check("0.000001", "7", 514_285);
        assert_eq!(Money::ZERO.pays_for(Money::ZERO), None);
        assert_eq!(Money::ZERO.less("1".parse().expect("money")), Money::ZERO);
        assert_eq!(Money::from_nano_dollars(i64::MAX).for_time(Duration::MAX), Money::from_nano_dollars(i64::MAX));
    }

    #[test]
    fn money_is_shown_with_sensible_digits() {
        let check = |nanos: i64, text: &str| assert_eq!(Money::from_nano_dollars(nanos).to_string(), text);
        check(12_300_000_000, "$12.30");
        check(4_100_000, "$0.004100");
        check(-41_000_000, "-$0.0410");
        check(0, "$0.00");
        check(999_999_999, "$1.00");
    }

    #[test]
    fn an_hour_of_one_gpu_costs_its_price() {
        let price: Money = "2.5".parse().expect("a price");
        assert_eq!(price.per_hour_times(GpuSeconds::from_nanos(3_600_000_000_000)), price);
    }
}
