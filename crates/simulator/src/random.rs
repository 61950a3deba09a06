//! Seeded random draws. Each depends only on the seed, a purpose and an index (SplitMix64: Steele, Lea and
//! Flood, OOPSLA 2014), so adding a job, a node or a kind of fault leaves every other draw unchanged.

use std::time::Duration;

/// The purposes of draws.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Purpose {
    Limits = 1,
    NodeFaults,
    Lemons,
    ApplicationFaults,
    SilentFaults,
    SpotNodes,
    SpotReclaims,
    Priorities,
    Forecast,
    ForecastDays,
}

/// A stream of random draws.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Draws {
    state: u64,
}

impl Draws {
    pub(crate) fn new(seed: u64, purpose: Purpose, index: u32) -> Self {
        let mut draws = Draws { state: seed ^ (purpose as u64) << 56 ^ u64::from(index) << 8 };
        // Scrambles the initial state, so that streams with neighbouring seeds are unrelated.
        draws.state = draws.bits();
        draws
    }

    fn bits(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.state ^ (self.state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// Returns a number from 0 to less than 1.
    pub(crate) fn uniform(&mut self) -> f64 {
        (self.bits() >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// Returns an exponentially distributed time with this mean in seconds, clamped to the far end of time.
    pub(crate) fn exponential(&mut self, mean_seconds: f64) -> Duration {
        let seconds = -(1.0 - self.uniform()).ln() * mean_seconds;
        Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn draws_have_the_mean_they_say_and_differ_by_purpose_and_index() {
        let mean = |purpose| {
            let draws = (0..20_000).map(|index| Draws::new(7, purpose, index).exponential(100.0).as_secs_f64());
            draws.sum::<f64>() / 20_000.0
        };
        let (lemons, limits) = (mean(Purpose::Lemons), mean(Purpose::Limits));
        assert!((lemons - 100.0).abs() < 3.0 && (limits - 100.0).abs() < 3.0, "{lemons} {limits}");
        assert!(lemons.to_bits() != limits.to_bits(), "two purposes drew the same");
        let mut one = Draws::new(1, Purpose::Lemons, 1);
        assert!((0..1_000).map(|_| one.uniform()).all(|draw| (0.0..1.0).contains(&draw)));
    }
}
