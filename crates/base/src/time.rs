//! Points in time. Nothing below the edge reads a clock: `now` is an argument (style 11).

use std::ops::Add;
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// A point in time: nanoseconds since the Unix epoch, up to the year 2554.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Timestamp {
    unix_nanos: u64,
}

impl Timestamp {
    /// The Unix epoch; the simulator's and the tests' beginning of time.
    pub const EPOCH: Timestamp = Timestamp { unix_nanos: 0 };

    /// From nanoseconds since the Unix epoch.
    #[inline]
    #[must_use]
    pub const fn from_unix_nanos(unix_nanos: u64) -> Self {
        Timestamp { unix_nanos }
    }

    /// Nanoseconds since the Unix epoch.
    #[inline]
    #[must_use]
    pub const fn unix_nanos(self) -> u64 {
        self.unix_nanos
    }

    /// The time from `earlier` to `self`; zero if the clock went back in between.
    #[inline]
    #[must_use]
    pub fn since(self, earlier: Timestamp) -> Duration {
        Duration::from_nanos(self.unix_nanos.saturating_sub(earlier.unix_nanos))
    }
}

impl Add<Duration> for Timestamp {
    type Output = Timestamp;

    /// Stops at the end of representable time rather than overflow.
    #[inline]
    fn add(self, duration: Duration) -> Timestamp {
        let nanos = u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
        Timestamp { unix_nanos: self.unix_nanos.saturating_add(nanos) }
    }
}
