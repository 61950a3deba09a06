//! Readings that wait to be sent, by device.

use std::collections::{BTreeMap, VecDeque};

use gangline_base::{Measured, Timestamp};
use gangline_telemetry::collectors::Reading;

use crate::protocol::agent::{BATCHES_MAX, DeviceBatch};
use crate::protocol::metrics::MetricRow;

/// Rows that wait of a device: an hour at one every five seconds.
const ROWS_MAX: usize = 720;
/// Rows of a device in a report.
const ROWS_PER_REPORT: usize = 60;
/// Names of metrics of a device; readings of further ones are dropped.
const NAMES_MAX: usize = 900;

/// See the module.
#[derive(Debug)]
pub(super) struct Backlog {
    /// The number of the first row of a device that is new.
    start: u64,
    devices: BTreeMap<Option<u32>, Waiting>,
    on_its_way: Vec<(Option<u32>, u64)>,
    dropped: u64,
}

#[derive(Debug)]
struct Waiting {
    first: u64,
    names: BTreeMap<String, u32>,
    rows: VecDeque<MetricRow>,
}

impl Backlog {
    pub(super) fn starting_at(now: Timestamp) -> Backlog {
        let start = now.unix_nanos() / 1_000_000;
        Backlog { start, devices: BTreeMap::new(), on_its_way: Vec::new(), dropped: 0 }
    }

    /// Returns how many rows and readings were dropped so far.
    #[expect(clippy::cast_precision_loss, reason = "nobody drops 2^53 rows")]
    pub(super) fn dropped(&self) -> f64 {
        self.dropped as f64
    }

    /// Adds a row to each device that has readings.
    pub(super) fn push(&mut self, now: Timestamp, readings: Vec<Reading>) {
        let mut rows: BTreeMap<Option<u32>, Vec<(u32, Measured)>> = BTreeMap::new();
        for Reading { name, device, value } in readings {
            if self.devices.len() >= BATCHES_MAX && !self.devices.contains_key(&device) {
                self.dropped += 1;
                continue;
            }
            let first = self.start;
            let waiting = self.devices.entry(device).or_insert_with(|| Waiting::from(first));
            match waiting.place_of(name) {
                Some(place) => rows.entry(device).or_default().push((place, Measured(value))),
                None => self.dropped += 1,
            }
        }
        for (device, values) in rows {
            let Some(waiting) = self.devices.get_mut(&device) else { continue };
            waiting.rows.push_back(MetricRow { at: now.unix_nanos(), step: None, values });
            while waiting.rows.len() > ROWS_MAX {
                waiting.rows.pop_front();
                waiting.first += 1;
                self.dropped += 1;
            }
        }
    }

    /// Returns the oldest rows of each device.
    pub(super) fn window(&mut self) -> Vec<DeviceBatch> {
        let waiting = self.devices.iter().filter(|(_, waiting)| !waiting.rows.is_empty());
        let batch = |(device, waiting): (&Option<u32>, &Waiting)| {
            let mut names = vec![String::new(); waiting.names.len()];
            for (name, place) in &waiting.names {
                names[usize::try_from(*place).expect("it fits in memory")].clone_from(name);
            }
            let rows = waiting.rows.iter().take(ROWS_PER_REPORT).cloned().collect();
            DeviceBatch { device: *device, first: waiting.first, names, rows }
        };
        let batches: Vec<DeviceBatch> = waiting.map(batch).collect();
        let end = |batch: &DeviceBatch| batch.first + u64::try_from(batch.rows.len()).expect("a count fits in 64 bits");
        self.on_its_way = batches.iter().map(|batch| (batch.device, end(batch))).collect();
        batches
    }

    /// Forgets what is stored: for each batch of the last window, rows below this number.
    pub(super) fn acknowledge(&mut self, stored: &[u64]) {
        for ((device, _), next) in std::mem::take(&mut self.on_its_way).into_iter().zip(stored) {
            if let Some(waiting) = self.devices.get_mut(&device) {
                waiting.acknowledge(*next);
            }
        }
    }

    /// Gives up the last window, which the control plane will never take.
    pub(super) fn give_up(&mut self) {
        for (device, end) in std::mem::take(&mut self.on_its_way) {
            if let Some(waiting) = self.devices.get_mut(&device) {
                self.dropped += end.saturating_sub(waiting.first);
                waiting.acknowledge(end);
            }
        }
    }
}

impl Waiting {
    fn from(first: u64) -> Waiting {
        Waiting { first, names: BTreeMap::new(), rows: VecDeque::new() }
    }

    fn place_of(&mut self, name: String) -> Option<u32> {
        let next = u32::try_from(self.names.len()).expect("names are limited");
        if let Some(place) = self.names.get(&name) {
            return Some(*place);
        }
        (self.names.len() < NAMES_MAX).then(|| *self.names.entry(name).or_insert(next))
    }

    /// The store may be ahead of this agent, if an earlier one ran with a clock that was: then numbers go on from there.
    fn acknowledge(&mut self, next: u64) {
        while self.first < next && self.rows.pop_front().is_some() {
            self.first += 1;
        }
        self.first = self.first.max(next);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn at(seconds: u64) -> Timestamp {
        Timestamp::EPOCH + Duration::from_secs(seconds)
    }

    fn reading(name: &str, device: Option<u32>, value: f64) -> Reading {
        Reading { name: name.to_owned(), device, value }
    }

    #[test]
    fn rows_are_sent_by_device_and_again_until_they_are_stored() {
        let mut backlog = Backlog::starting_at(at(7));
        backlog.push(at(7), vec![reading("a", None, 1.0), reading("b", None, 2.0), reading("a", Some(3), 5.0)]);
        backlog.push(at(8), vec![reading("b", None, 3.0)]);
        let window = backlog.window();
        let shape: Vec<_> = window.iter().map(|batch| (batch.device, batch.first, batch.rows.len())).collect();
        assert_eq!(shape, [(None, 7_000, 2), (Some(3), 7_000, 1)]);
        assert_eq!(window[0].names, ["a", "b"]);
        assert_eq!(window[0].rows[1].values, [(1, Measured(3.0))]);
        assert_eq!(backlog.window(), window, "it wasn't answered");
        backlog.acknowledge(&[7_001, 7_001]);
        let window = backlog.window();
        assert_eq!(window.iter().map(|batch| (batch.device, batch.first)).collect::<Vec<_>>(), [(None, 7_001)]);
        // The store has rows of an agent whose clock was ahead.
        backlog.acknowledge(&[9_000]);
        backlog.push(at(9), vec![reading("b", None, 4.0)]);
        assert_eq!(backlog.window()[0].first, 9_000);
    }

    /// Proves A-10 for agents: what waits is bounded, and what is dropped is counted.
    #[test]
    fn what_waits_is_bounded_and_what_is_dropped_is_counted() {
        let mut backlog = Backlog::starting_at(at(0));
        for second in 0..1_000 {
            backlog.push(at(second), vec![reading("a", None, 1.0)]);
        }
        assert_eq!((backlog.window()[0].first, backlog.dropped()), (280, 280.0));
        backlog.push(at(2_000), (0..1_000).map(|name| reading(&format!("m{name}"), Some(1), 0.0)).collect());
        assert_eq!(backlog.dropped(), 380.0, "a hundred names more");
        backlog.push(at(2_001), (0..200).map(|device| reading("a", Some(device), 0.0)).collect());
        assert_eq!(backlog.window().len(), BATCHES_MAX);
        let before = backlog.dropped();
        backlog.give_up();
        assert!(backlog.dropped() > before && backlog.window()[0].first == 340, "sixty rows are given up");
    }
}
