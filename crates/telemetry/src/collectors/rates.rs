//! Turns samples into readings: counters become rates.

use std::collections::BTreeMap;
use std::time::Duration;

use super::metric::{Kind, Metric};
use super::source::{Sample, Value};

/// A counter of 32 bits wraps: it was above this part of its range and is now below a quarter of it.
const NEARLY_FULL: u64 = (u32::MAX as u64) / 4 * 3;
const NEARLY_EMPTY: u64 = (u32::MAX as u64) / 4;
/// The most counters whose last values are remembered.
const COUNTERS_MAX: usize = 16_384;

/// A value of a metric, as it is stored.
#[derive(Clone, Debug, PartialEq)]
pub struct Reading {
    /// The metric's name, followed by a dot and the part if it is of one of several.
    pub name: String,
    /// The accelerator's index on its node.
    pub device: Option<u32>,
    /// The value, in the metric's unit.
    pub value: f64,
}

/// What counters said last.
#[derive(Clone, Debug, Default)]
pub struct Rates {
    last: BTreeMap<Key, Last>,
    resets: u64,
    round: u64,
}

type Key = (&'static str, Option<String>, Option<u32>);

#[derive(Clone, Copy, Debug)]
struct Last {
    at: Duration,
    count: u64,
    round: u64,
}

impl Rates {
    /// Returns the readings of samples that were taken at `now`, on a clock that never goes back. A rate needs two
    /// samples, so a counter that is new, or that began anew, has none yet.
    pub fn readings(&mut self, now: Duration, samples: Vec<Sample>) -> Vec<Reading> {
        self.round += 1;
        let readings = samples.into_iter().filter_map(|sample| self.reading(now, sample)).collect();
        // What is gone (a disk, a GPU) is forgotten, so that the memory is bounded by what is there.
        let round = self.round;
        self.last.retain(|_, last| last.round == round);
        readings
    }

    /// Returns how many counters have gone back so far: a driver was reloaded, or a device was reset.
    #[must_use]
    pub fn resets(&self) -> u64 {
        self.resets
    }

    fn reading(&mut self, now: Duration, sample: Sample) -> Option<Reading> {
        let Sample { metric, part, device, value } = sample;
        let value = match value {
            Value::Gauge(value) => value,
            Value::Counter { count, scale } => {
                let key = (metric.name, part.clone(), device);
                let before = self.last.get(&key).copied();
                if before.is_some() || self.last.len() < COUNTERS_MAX {
                    self.last.insert(key, Last { at: now, count, round: self.round });
                }
                self.of_counter(metric, (now, count, scale), before)?
            }
        };
        let name = part.map_or_else(|| metric.name.to_owned(), |part| format!("{}.{part}", metric.name));
        Some(Reading { name, device, value })
    }

    fn of_counter(
        &mut self,
        metric: &Metric,
        (now, count, scale): (Duration, u64, f64),
        before: Option<Last>,
    ) -> Option<f64> {
        let added = before.and_then(|before| added(before.count, count));
        if before.is_some() && added.is_none() {
            self.resets += 1;
        }
        if metric.kind == Kind::Total {
            return Some(float(count) * scale);
        }
        let passed = now.saturating_sub(before?.at).as_secs_f64();
        let rate = (passed > 0.0).then(|| float(added.unwrap_or_default()) * scale / passed);
        let is_ratio = metric.is_ratio();
        // Kernels count ticks a little late: a core is never busier than all of the time.
        rate.filter(|_| added.is_some()).map(|rate| if is_ratio { rate.min(1.0) } else { rate })
    }
}

/// Returns what was counted since; none if the counter has begun anew.
fn added(before: u64, now: u64) -> Option<u64> {
    match now.checked_sub(before) {
        Some(added) => Some(added),
        None if before <= u64::from(u32::MAX) && before > NEARLY_FULL && now < NEARLY_EMPTY => {
            Some(now + (u64::from(u32::MAX) + 1 - before))
        }
        None => None,
    }
}

#[expect(clippy::cast_precision_loss, reason = "a measurement needs no more than 53 bits")]
pub(super) fn float(count: u64) -> f64 {
    count as f64
}

#[cfg(test)]
mod tests {
    use super::super::metric::metric;
    use super::*;

    fn bytes(count: u64) -> Vec<Sample> {
        let received = metric("host.network_receive_bytes_per_second");
        vec![Sample::counter(received, count, 1.0).of_part("eth0")]
    }

    #[test]
    fn a_counter_becomes_a_rate_from_its_second_sample_on() {
        let mut rates = Rates::default();
        assert_eq!(rates.readings(Duration::from_secs(10), bytes(1_000)), []);
        let readings = rates.readings(Duration::from_secs(12), bytes(4_000));
        let name = "host.network_receive_bytes_per_second.eth0".to_owned();
        assert_eq!(readings, [Reading { name, device: None, value: 1_500.0 }]);
        assert_eq!(rates.readings(Duration::from_secs(12), bytes(4_100)), [], "no time has passed");
    }

    #[test]
    fn a_counter_that_wraps_goes_on_and_one_that_goes_back_starts_anew() {
        let mut rates = Rates::default();
        let mut rate = |second, count| rates.readings(Duration::from_secs(second), bytes(count)).pop().map(|r| r.value);
        assert_eq!(rate(1, u64::from(u32::MAX) - 99), None);
        assert_eq!(rate(2, 900), Some(1_000.0), "a counter of 32 bits has wrapped");
        assert_eq!(rate(3, 10), None, "it has begun anew");
        assert_eq!(rate(4, 30), Some(20.0));
        assert_eq!(rates.resets(), 1);
    }

    #[test]
    fn what_is_gone_is_forgotten_and_totals_are_told_at_once() {
        let mut rates = Rates::default();
        rates.readings(Duration::from_secs(1), bytes(1));
        rates.readings(Duration::from_secs(2), Vec::new());
        assert_eq!(rates.readings(Duration::from_secs(3), bytes(2)), [], "the interface came back");
        let kills = vec![Sample::counter(metric("host.oom_kills_total"), 3, 1.0)];
        assert_eq!(rates.readings(Duration::from_secs(4), kills).pop().map(|reading| reading.value), Some(3.0));
    }
}
