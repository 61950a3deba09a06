//! Makes a bill of what jobs held and of what nodes offered.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use gangline_base::{AcceleratorKind, Bucket, Buckets, JobId, Money, Timestamp};

use super::Period;
use super::apportion::{charge, share, until};
use super::line::{Amount, Line, Lines};
use super::overhead::Incident;
use super::requests::Requests;
use super::stored::Stored;
use super::unused::{Capacity, History, Occupancy, Unheld, unused};

/// One node's share of an attempt, as the ledger has it.
#[derive(Clone, Copy, Debug)]
pub struct Held<'a> {
    /// The job.
    pub job: JobId,
    /// The node.
    pub node: &'a str,
    /// Number of devices held on the node.
    pub devices: u32,
    /// Start of the allocation.
    pub from: Timestamp,
    /// End of the allocation, or of what is known of it.
    pub to: Timestamp,
    /// Price of a device for an hour, if it had one.
    pub price: Option<Money>,
    /// Device time by bucket; sums to the allocation.
    pub buckets: Buckets,
    /// Whether the job failed in the end.
    pub has_failed: bool,
}

/// Part of a bill.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Group {
    /// Amounts by line.
    pub lines: Lines,
    /// Jobs that held devices.
    pub jobs: BTreeSet<JobId>,
}

impl Group {
    /// Returns the sum of the lines that `is_wanted` holds for.
    pub fn sum(&self, is_wanted: impl Fn(Line) -> bool) -> Amount {
        self.lines.iter().filter(|(line, _)| is_wanted(*line)).map(|(_, amount)| amount).sum()
    }
}

/// The bill of a period, in groups.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bill<K> {
    /// The period.
    pub period: Period,
    /// The groups.
    pub groups: BTreeMap<K, Group>,
    /// Device time that the nodes offered, in nanoseconds of one device.
    pub capacity: i128,
    /// Device time that jobs held beyond the offered one: before the nodes' capacity was recorded, or by clocks that
    /// disagree.
    pub beyond_capacity: i128,
    /// Since when the capacity of nodes is known; none if it never was.
    pub capacity_since: Option<Timestamp>,
}

impl<K: Ord> Bill<K> {
    /// Returns all groups as one.
    #[must_use]
    pub fn total(&self) -> Group {
        let mut total = Group::default();
        for group in self.groups.values() {
            group.lines.iter().for_each(|(line, amount)| total.lines.add(line, amount));
            total.jobs.extend(&group.jobs);
        }
        total
    }

    /// Adds the lines of the group of idle devices to the other groups, in proportion to the device time that their jobs
    /// held. Without any such time the group stays.
    pub fn share_out(&mut self, idle: &K) {
        let held = |group: &Group| group.sum(Line::is_held).quantity;
        let all: i128 = self.groups.iter().filter(|(key, _)| *key != idle).map(|(_, group)| held(group)).sum();
        if all <= 0 {
            return;
        }
        let Some(shared) = self.groups.remove(idle) else { return };
        let mut before = 0;
        for group in self.groups.values_mut() {
            let after = before + held(group);
            for (line, Amount { quantity, cost, unpriced }) in shared.lines.iter() {
                let part = |whole: i128| share(whole, after, all) - share(whole, before, all);
                group.lines.add(line, Amount { quantity: part(quantity), cost: part(cost), unpriced: part(unpriced) });
            }
            before = after;
        }
    }
}

/// Collects what a bill consists of.
#[derive(Clone, Debug)]
pub struct Biller<K> {
    bill: Bill<K>,
    nodes: BTreeMap<String, (History, Occupancy)>,
}

impl<K: Ord> Biller<K> {
    /// Begins the bill of a period.
    #[must_use]
    pub fn new(period: Period) -> Biller<K> {
        let bill = Bill { period, groups: BTreeMap::new(), capacity: 0, beyond_capacity: 0, capacity_since: None };
        Biller { bill, nodes: BTreeMap::new() }
    }

    /// Adds what a node offers from a time until its next change.
    pub fn offer(&mut self, node: &str, at: Timestamp, capacity: Capacity) {
        self.node(node).0.change(at, capacity);
    }

    /// Returns the kind of a node's devices at a time, if that has been added.
    #[must_use]
    pub fn accelerator(&self, node: &str, at: Timestamp) -> Option<&AcceleratorKind> {
        self.nodes.get(node)?.0.at(at).map(|capacity| &capacity.accelerator)
    }

    /// Adds what a job held, to a group.
    pub fn hold(&mut self, key: K, held: &Held<'_>) {
        let (from, to) = self.bill.period.clip(held.from, held.to);
        if from >= to {
            return;
        }
        self.node(held.node).1.hold((from, to), held.devices);
        let span = (held.from, held.to);
        let [before, after] = [from, to].map(|at| until(at, span, &held.buckets, held.price));
        let group = self.bill.groups.entry(key).or_default();
        // Bookings come by job, so that most are of the job before.
        if group.jobs.last() != Some(&held.job) {
            group.jobs.insert(held.job);
        }
        for ((bucket, before), after) in Bucket::ALL.into_iter().zip(before).zip(after) {
            let line = match Line::Held(bucket) {
                line if held.has_failed && line.may_be_useful() => Line::FailedRun,
                line => line,
            };
            group.lines.add(line, after - before);
        }
    }

    /// Adds what the devices that a job held cost beside their price, to the groups that `key` names by capacity and line. What their
    /// node offers has been added before.
    pub fn charge(&mut self, held: &Held<'_>, key: impl Fn(&Capacity, Line) -> K) {
        let (from, to) = self.bill.period.clip(held.from, held.to);
        let Some((history, _)) = self.nodes.get(held.node).filter(|_| from < to) else { return };
        for (span, capacity) in history.with_overheads(Period { from, to }) {
            for (line, amount) in capacity.overheads.amounts(held.devices, true, span) {
                self.bill.groups.entry(key(capacity, line)).or_default().lines.add(line, amount);
            }
        }
    }

    /// Adds an incident that people looked after, to a group.
    pub fn attend(&mut self, key: K, at: Timestamp, incident: &Incident) {
        if (self.bill.period.from..self.bill.period.to).contains(&at) {
            self.bill.groups.entry(key).or_default().lines.add(Line::People, incident.amount());
        }
    }

    /// Adds data that was stored from one time to another, to a group.
    pub fn keep(&mut self, key: K, (from, to): (Timestamp, Timestamp), stored: &Stored) {
        let (from, to) = self.bill.period.clip(from, to);
        if from < to && stored.bytes.0 > 0 {
            let group = self.bill.groups.entry(key).or_default();
            group.lines.add(stored.line(), stored.amount(Period { from, to }));
        }
    }

    /// Adds requests that were made from one time to another, to a group.
    pub fn ask(&mut self, key: K, (from, to): (Timestamp, Timestamp), requests: &Requests) {
        // What was asked in no time was asked at its beginning.
        let to = to.max(from + Duration::from_nanos(1));
        let period = self.bill.period.clip(from, to);
        if period.0 >= period.1 {
            return;
        }
        let [before, after] = [period.0, period.1].map(|at| requests.until(at, (from, to)));
        let group = self.bill.groups.entry(key).or_default();
        for ((line, before), after) in Requests::LINES.into_iter().zip(before).zip(after) {
            group.lines.add(line, after - before);
        }
    }

    /// Returns the bill without what no job held.
    #[must_use]
    pub fn finish_of_jobs(self) -> Bill<K> {
        self.bill
    }

    /// Adds what no job held, to the groups that `key` names by node, capacity and line, and returns the bill.
    #[must_use]
    pub fn finish(self, key: impl Fn(&str, &Capacity, Line) -> K) -> Bill<K> {
        let Biller { mut bill, nodes } = self;
        let period = bill.period;
        for (node, (history, occupancy)) in nodes {
            let groups = &mut bill.groups;
            bill.beyond_capacity += unused(period, &history, occupancy, |capacity, &Unheld { line, devices, span }| {
                let mut add = |line, amount| {
                    groups.entry(key(&node, capacity, line)).or_default().lines.add(line, amount);
                };
                add(line, charge(devices, span, capacity.price));
                let is_held = line == Line::Others;
                capacity.overheads.amounts(devices, is_held, span).for_each(|(line, amount)| add(line, amount));
            });
            let offered = history.within(period).map(|((from, to), capacity)| {
                i128::from(capacity.devices) * (i128::from(to.unix_nanos()) - i128::from(from.unix_nanos()))
            });
            bill.capacity += offered.sum::<i128>();
            bill.capacity_since = bill.capacity_since.into_iter().chain(history.since()).min();
        }
        bill
    }

    fn node(&mut self, name: &str) -> &mut (History, Occupancy) {
        if !self.nodes.contains_key(name) {
            self.nodes.insert(name.to_owned(), Default::default());
        }
        self.nodes.get_mut(name).expect("it was inserted if it was missing")
    }
}
