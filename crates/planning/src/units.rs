//! Quantities of floating point with their units in their types.

use std::cmp::Ordering;
use std::iter::Sum;
use std::marker::PhantomData;
use std::ops::{Add, AddAssign, Div, Mul, Sub};

use gangline_base::Money;

/// An amount of something, measured in `Unit`.
pub struct Quantity<Unit> {
    amount: f64,
    unit: PhantomData<Unit>,
}

/// Unit of [`Flops`]: one multiplication or addition.
#[derive(Debug)]
pub enum Flop {}
/// Unit of [`Volume`]: one byte.
#[derive(Debug)]
pub enum Byte {}
/// Unit of [`Seconds`].
#[derive(Debug)]
pub enum Second {}
/// Unit of [`Dollars`].
#[derive(Debug)]
pub enum Dollar {}
/// So much in each second.
#[derive(Debug)]
pub enum PerSecond<Unit> {
    /// Never made.
    #[doc(hidden)]
    Never(std::convert::Infallible, PhantomData<Unit>),
}

/// Floating-point operations.
pub type Flops = Quantity<Flop>;
/// Bytes, of which a part may be an estimate (so not an integer).
pub type Volume = Quantity<Byte>;
/// US dollars of an estimate; what is billed is [`Money`].
pub type Dollars = Quantity<Dollar>;
/// A duration.
pub type Seconds = Quantity<Second>;
/// Floating-point operations a second.
pub type FlopRate = Quantity<PerSecond<Flop>>;
/// Bytes a second.
pub type Bandwidth = Quantity<PerSecond<Byte>>;

/// Bytes of a GiB.
pub const GIBIBYTE: f64 = 1_073_741_824.0;

impl<Unit> Quantity<Unit> {
    /// Nothing.
    pub const ZERO: Self = Self::new(0.0);

    /// So many of the unit.
    #[must_use]
    pub const fn new(amount: f64) -> Self {
        Quantity { amount, unit: PhantomData }
    }

    /// How many of the unit.
    #[must_use]
    pub const fn get(self) -> f64 {
        self.amount
    }

    /// The greater of two.
    #[must_use]
    pub const fn max(self, other: Self) -> Self {
        Self::new(self.amount.max(other.amount))
    }

    /// The smaller of two.
    #[must_use]
    pub const fn min(self, other: Self) -> Self {
        Self::new(self.amount.min(other.amount))
    }
}

impl Volume {
    /// In GiB (2^30 bytes).
    #[must_use]
    pub fn gib(self) -> f64 {
        self.amount / GIBIBYTE
    }

    /// From GiB (2^30 bytes).
    #[must_use]
    pub const fn from_gib(gib: f64) -> Self {
        Self::new(gib * GIBIBYTE)
    }
}

impl Dollars {
    /// From exact money.
    #[expect(clippy::cast_precision_loss, reason = "an estimate needs no more than 53 bits")]
    #[must_use]
    pub const fn from_money(money: Money) -> Self {
        Self::new(money.nano_dollars() as f64 / 1e9)
    }
}

impl<Unit> Clone for Quantity<Unit> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<Unit> Copy for Quantity<Unit> {}

impl<Unit> Default for Quantity<Unit> {
    fn default() -> Self {
        Self::ZERO
    }
}

impl<Unit> std::fmt::Debug for Quantity<Unit> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.amount.fmt(f)
    }
}

impl<Unit> PartialEq for Quantity<Unit> {
    fn eq(&self, other: &Self) -> bool {
        self.amount == other.amount
    }
}

impl<Unit> PartialOrd for Quantity<Unit> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        self.amount.partial_cmp(&other.amount)
    }
}

impl<Unit> Add for Quantity<Unit> {
    type Output = Self;
    fn add(self, other: Self) -> Self {
        Self::new(self.amount + other.amount)
    }
}

impl<Unit> AddAssign for Quantity<Unit> {
    fn add_assign(&mut self, other: Self) {
        self.amount += other.amount;
    }
}

impl<Unit> Sub for Quantity<Unit> {
    type Output = Self;
    fn sub(self, other: Self) -> Self {
        Self::new(self.amount - other.amount)
    }
}

impl<Unit> Mul<f64> for Quantity<Unit> {
    type Output = Self;
    fn mul(self, factor: f64) -> Self {
        Self::new(self.amount * factor)
    }
}

impl<Unit> Div<f64> for Quantity<Unit> {
    type Output = Self;
    fn div(self, divisor: f64) -> Self {
        Self::new(self.amount / divisor)
    }
}

/// A ratio.
impl<Unit> Div for Quantity<Unit> {
    type Output = f64;
    fn div(self, other: Self) -> f64 {
        self.amount / other.amount
    }
}

/// How long so much takes at such a rate.
impl<Unit> Div<Quantity<PerSecond<Unit>>> for Quantity<Unit> {
    type Output = Seconds;
    fn div(self, rate: Quantity<PerSecond<Unit>>) -> Seconds {
        Seconds::new(self.amount / rate.amount)
    }
}

/// How much comes together at such a rate.
impl<Unit> Mul<Seconds> for Quantity<PerSecond<Unit>> {
    type Output = Quantity<Unit>;
    fn mul(self, time: Seconds) -> Quantity<Unit> {
        Quantity::new(self.amount * time.amount)
    }
}

impl<Unit> Sum for Quantity<Unit> {
    fn sum<I: Iterator<Item = Self>>(items: I) -> Self {
        items.fold(Self::ZERO, Add::add)
    }
}

/// An integer for arithmetic; exact below 2^53, which parameters, tokens and bytes of one device are.
#[expect(clippy::cast_precision_loss, reason = "amounts are below 2^53, or estimates")]
#[must_use]
pub const fn real(count: u64) -> f64 {
    count as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_divided_by_a_rate_is_time_and_back() {
        let time: Seconds = Flops::new(6e12) / FlopRate::new(2e12);
        assert_eq!(time, Seconds::new(3.0));
        assert_eq!(FlopRate::new(2e12) * time, Flops::new(6e12));
        assert_eq!(Volume::from_gib(2.0) / Volume::from_gib(0.5), 4.0);
        assert_eq!([Seconds::new(1.0), Seconds::new(2.0)].into_iter().sum::<Seconds>(), Seconds::new(3.0));
    }
}
