//! What no job held of a node.

use std::collections::BTreeMap;

use gangline_base::{AcceleratorKind, Money, Timestamp};

use super::Period;
use super::apportion::nanos_between;
use super::line::Line;
use super::overhead::Overheads;

/// Whether a node takes jobs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum NodeState {
    /// It takes jobs.
    Ready,
    /// It takes none after faults of its own.
    Suspect,
    /// It takes none because an administrator, a cloud or another system wants it empty.
    Draining,
    /// It is gone.
    Lost,
}

/// What a node offers from some time on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Capacity {
    /// Whether it takes jobs.
    pub state: NodeState,
    /// The kind of its devices.
    pub accelerator: AcceleratorKind,
    /// The number of its devices; 0 once it is removed.
    pub devices: u32,
    /// Devices that programs outside Gangline hold.
    pub others: u32,
    /// The price of a device for an hour, if it has one.
    pub price: Option<Money>,
    /// What a device costs beside its price.
    pub overheads: Overheads,
}

impl Capacity {
    const fn idle_line(&self) -> Line {
        match self.state {
            NodeState::Ready => Line::Spare,
            NodeState::Draining => Line::Drained,
            NodeState::Suspect | NodeState::Lost => Line::Broken,
        }
    }
}

/// The capacities of a node, each from its time to the next one's.
#[derive(Clone, Debug, Default)]
pub(super) struct History {
    changes: BTreeMap<Timestamp, Capacity>,
    has_overheads: bool,
}

impl History {
    pub(super) fn change(&mut self, at: Timestamp, capacity: Capacity) {
        self.has_overheads |= !capacity.overheads.is_empty();
        self.changes.insert(at, capacity);
    }

    /// Returns the capacity at a time, if it is known.
    pub(super) fn at(&self, at: Timestamp) -> Option<&Capacity> {
        self.changes.range(..=at).next_back().map(|(_, capacity)| capacity)
    }

    /// Returns the first time at which the capacity is known.
    pub(super) fn since(&self) -> Option<Timestamp> {
        self.changes.keys().next().copied()
    }

    /// Returns the stretches of the period with a known capacity.
    pub(super) fn within(&self, period: Period) -> impl Iterator<Item = ((Timestamp, Timestamp), &Capacity)> {
        let before = self.changes.range(..=period.from).next_back();
        let first = before.map_or(Timestamp::EPOCH, |(at, _)| *at);
        let ends = self.changes.range(first..).skip(1).map(|(at, _)| *at);
        let ends = ends.chain([Timestamp::from_unix_nanos(u64::MAX)]);
        let changes = self.changes.range(first..).take_while(move |(at, _)| **at < period.to);
        let stretches = changes.zip(ends).map(move |((from, capacity), to)| {
            let (from, to) = period.clip(*from, to);
            ((from, to), capacity)
        });
        stretches.filter(|((from, to), _)| from < to)
    }

    /// Returns the stretches of the period in which devices cost something beside their price.
    pub(super) fn with_overheads(&self, period: Period) -> impl Iterator<Item = ((Timestamp, Timestamp), &Capacity)> {
        let history = Some(self).filter(|history| history.has_overheads);
        let stretches = history.into_iter().flat_map(move |history| history.within(period));
        stretches.filter(|(_, capacity)| !capacity.overheads.is_empty())
    }
}

/// How many devices jobs hold of a node, as changes of the number over time.
#[derive(Clone, Debug, Default)]
pub(super) struct Occupancy {
    changes: Vec<(Timestamp, i64)>,
}

impl Occupancy {
    pub(super) fn hold(&mut self, (from, to): (Timestamp, Timestamp), devices: u32) {
        if from < to {
            self.changes.extend([(from, i64::from(devices)), (to, -i64::from(devices))]);
        }
    }

    /// Calls `each` for every stretch of time with one number of devices, in order.
    fn stretches(mut self, period: Period, mut each: impl FnMut((Timestamp, Timestamp), u32)) {
        self.changes.sort_unstable();
        let (mut from, mut held) = (period.from, 0_i64);
        for (at, change) in self.changes {
            let (start, end) = period.clip(from, at);
            if start < end {
                each((start, end), u32::try_from(held).unwrap_or(0));
                from = end;
            }
            held += change;
        }
        if from < period.to {
            each((from, period.to), u32::try_from(held).unwrap_or(0));
        }
    }
}

/// Devices that no job held in a stretch of time.
pub(super) struct Unheld {
    pub(super) line: Line,
    pub(super) devices: u32,
    pub(super) span: (Timestamp, Timestamp),
}

/// Calls `each` with what no job held of a node in the period. Returns the device time that jobs held beyond the capacity
/// that is known.
pub(super) fn unused(
    period: Period,
    history: &History,
    held: Occupancy,
    mut each: impl FnMut(&Capacity, &Unheld),
) -> i128 {
    let time = |devices: u32, (from, to)| i128::from(devices) * nanos_between(from, to);
    let mut capacities = history.within(period).peekable();
    let mut beyond = 0;
    held.stretches(period, |(mut from, to), held| {
        while from < to {
            // The next stretch of known capacity, or none until the end.
            let Some((known, capacity)) = capacities.peek() else {
                beyond += time(held, (from, to));
                return;
            };
            if from < known.0 {
                let end = known.0.min(to);
                beyond += time(held, (from, end));
                from = end;
                continue;
            }
            let span = (from, known.1.min(to));
            beyond += time(held.saturating_sub(capacity.devices), span);
            let free = capacity.devices.saturating_sub(held);
            let others = capacity.others.min(free);
            for (line, devices) in [(Line::Others, others), (capacity.idle_line(), free - others)] {
                if devices > 0 {
                    each(capacity, &Unheld { line, devices, span });
                }
            }
            from = span.1;
            if from >= known.1 {
                capacities.next();
            }
        }
    });
    beyond
}
