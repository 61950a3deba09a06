//! The rate that a plan says a job should reach.

/// A planned rate. It is of one accelerator, so that it holds at any width of an elastic job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PlannedRate {
    /// Thousandths of tokens a second on each accelerator; not zero.
    pub milli_tokens_per_second: u64,
    /// Model FLOPs utilisation at this rate, in thousandths, by whatever definition the plan uses.
    pub mfu_milli: Option<u32>,
}

impl PlannedRate {
    /// The highest rate that is accepted, in tokens a second on each accelerator.
    pub const MAX: f64 = 1e9;

    /// Creates a rate of so many tokens a second on each accelerator. `None` unless it is above 0.0005 and at most
    /// [`Self::MAX`], and the utilisation between 0 and 1.
    #[must_use]
    pub fn new(tokens_per_second: f64, mfu: Option<f64>) -> Option<Self> {
        let is_rate = (0.0005..=Self::MAX).contains(&tokens_per_second);
        let is_part = mfu.is_none_or(|mfu| (0.0..=1.0).contains(&mfu));
        (is_rate && is_part).then(|| PlannedRate {
            milli_tokens_per_second: thousandths(tokens_per_second),
            mfu_milli: mfu.and_then(|mfu| u32::try_from(thousandths(mfu)).ok()),
        })
    }

    /// Returns the rate in tokens a second on each accelerator.
    #[must_use]
    #[expect(clippy::cast_precision_loss, reason = "at most 1e12, which is below 2^53")]
    pub fn tokens_per_second(self) -> f64 {
        self.milli_tokens_per_second as f64 / 1_000.0
    }

    /// Returns the utilisation, as a part of 1.
    #[must_use]
    pub fn mfu(self) -> Option<f64> {
        self.mfu_milli.map(|milli| f64::from(milli) / 1_000.0)
    }
}

/// Rounds to thousandths. The value is between 0 and 1e9.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "the caller has checked the range")]
fn thousandths(value: f64) -> u64 {
    (value * 1_000.0).round() as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_kept_to_the_thousandth_and_absurd_ones_refused() {
        let rate = PlannedRate::new(812.3456, Some(0.43)).expect("a rate");
        assert_eq!((rate.milli_tokens_per_second, rate.mfu_milli), (812_346, Some(430)));
        assert_eq!((rate.tokens_per_second(), rate.mfu()), (812.346, Some(0.43)));
        for (rate, mfu) in
            [(0.0, None), (-1.0, None), (f64::NAN, None), (2e9, None), (1.0, Some(1.1)), (1.0, Some(f64::NAN))]
        {
            assert_eq!(PlannedRate::new(rate, mfu), None, "{rate} {mfu:?}");
        }
    }
}
