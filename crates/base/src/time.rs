//! Points in time. Nothing below the edge reads a clock: `now` is an argument (style 11).

use std::ops::{Add, Sub};
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// A point in time, in nanoseconds since the Unix epoch; ends in the year 2554.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Timestamp {
    unix_nanos: u64,
}

impl Timestamp {
    /// The Unix epoch, where time begins in the simulator and in tests.
    pub const EPOCH: Timestamp = Timestamp { unix_nanos: 0 };

    /// Builds a point in time from nanoseconds since the Unix epoch.
    #[inline]
    #[must_use]
    pub const fn from_unix_nanos(unix_nanos: u64) -> Self {
        Timestamp { unix_nanos }
    }

    /// Returns the nanoseconds since the Unix epoch.
    #[inline]
    #[must_use]
    pub const fn unix_nanos(self) -> u64 {
        self.unix_nanos
    }

    /// Returns the time from `earlier` to `self`; zero if the clock went back in between.
    #[inline]
    #[must_use]
    pub fn since(self, earlier: Timestamp) -> Duration {
        Duration::from_nanos(self.unix_nanos.saturating_sub(earlier.unix_nanos))
    }
}

impl Add<Duration> for Timestamp {
    type Output = Timestamp;

    /// Saturates at the latest representable time instead of overflowing.
    #[inline]
    fn add(self, duration: Duration) -> Timestamp {
        let nanos = u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
        Timestamp { unix_nanos: self.unix_nanos.saturating_add(nanos) }
    }
}

impl Sub<Duration> for Timestamp {
    type Output = Timestamp;

    /// Saturates at the Unix epoch instead of overflowing.
    #[inline]
    fn sub(self, duration: Duration) -> Timestamp {
        let nanos = u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
        Timestamp { unix_nanos: self.unix_nanos.saturating_sub(nanos) }
    }
}
