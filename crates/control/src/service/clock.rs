//! Time that goes on when the system's clock is set back: timers, leases and bills run on rather than stand still or shrink.

use std::time::Duration;

use gangline_base::Timestamp;

/// The system's clock, made steady for the length of one run. Set forward, it is followed; set back, it goes on from where
/// it was.
#[derive(Debug, Default)]
pub(super) struct SteadyClock {
    last_read: Timestamp,
    set_back: Duration,
}

impl SteadyClock {
    /// The steady time when the system's clock shows `read`.
    pub(super) fn at(&mut self, read: Timestamp) -> Timestamp {
        self.set_back += self.last_read.since(read);
        self.last_read = read;
        read + self.set_back
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clock_that_is_set_back_goes_on_from_where_it_was() {
        let mut clock = SteadyClock::default();
        let mut shown = Vec::new();
        for read in [100, 110, 50, 60, 60, 10, 11, 500] {
            shown.push(clock.at(Timestamp::from_unix_nanos(read)).unix_nanos());
        }
        assert_eq!(shown, [100, 110, 110, 120, 120, 120, 121, 610]);
    }
}
