//! What training cost: the ledger, what running jobs have come to, and what nodes offered, as bills.

mod budgets;
mod forecast;
mod incidents;
mod job;
mod requests;
mod storage;
mod wire;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;

use gangline_accounting::bill::{Biller, Capacity, Held, Line, Period, RequestRate, StorageRate};
use gangline_api::{self as api, Time};
use gangline_base::{Bucket, Buckets, GpuSeconds, JobId, Money, Timestamp};
use gangline_store::codec::CapacityChanged;
use gangline_store::db;
use gangline_store::model::accrued_until;
use gangline_store::model::{Account, Booked, JOBS_PER_PAGE_MAX, JobRecord, Standing, StateRecord, Usage, Wanted};
use gangline_store::ports::Queries as _;

use super::Views;

/// Nanoseconds of an hour.
const HOUR: u64 = 3_600_000_000_000;
/// The name of what belongs to nobody that is known: a job whose record an earlier release removed, or a node whose
/// capacity wasn't recorded yet.
const UNKNOWN: &str = "(unknown)";

/// The group of what all jobs share: its data, and the time of people for faults of nodes.
const PLATFORM: &str = "(platform)";

/// What the groups of a report are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum By {
    /// Queues.
    Queue,
    /// Users.
    User,
    /// Jobs.
    Job,
    /// Names of jobs.
    Name,
    /// Nodes.
    Node,
    /// Kinds of devices.
    Accelerator,
}

impl By {
    /// All of them.
    pub const ALL: [By; 6] = [By::Queue, By::User, By::Job, By::Name, By::Node, By::Accelerator];

    /// Returns the word for it in requests.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            By::Queue => "queue",
            By::User => "user",
            By::Job => "job",
            By::Name => "name",
            By::Node => "node",
            By::Accelerator => "accelerator",
        }
    }
}

impl fmt::Display for By {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A group of a report.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Key {
    Named(String),
    OfJob(JobId),
    Idle,
}

/// Which rows of an export are one.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct RowKey {
    /// The node, the folder of stored data, or the address of a dataset.
    resource: String,
    job: Option<JobId>,
    rate: Rate,
}

/// What a row is charged by; none if it has no price.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Rate {
    Devices(Option<Money>),
    Storage(Option<StorageRate>),
    Requests(RequestRate),
    /// Of an hour of a device beside its price, of a kilowatt-hour, or of a person's hour.
    Unit(Money),
}

/// A booking, or what a running attempt would be booked as.
struct Charge<'a> {
    usage: &'a Usage,
    is_estimated: bool,
}

impl Views {
    /// Returns the bill of a period up to `now`, in groups; with `is_shared`, idle devices are shared by the groups.
    pub fn cost_report(
        &self,
        period: Period,
        by: By,
        is_shared: bool,
        now: Timestamp,
    ) -> Result<api::CostReport, db::Error> {
        let period = until_now(period, now);
        let mut biller: Biller<Key> = self.biller(period)?;
        let mut estimated = BTreeSet::new();
        self.charges(period, |charge| {
            let Usage { job, queue, booked, account } = charge.usage;
            if charge.is_estimated {
                estimated.insert(*job);
            }
            let of_account =
                |text: fn(&Account) -> &String| account.as_deref().map_or(UNKNOWN, |account| text(account));
            let name = match by {
                By::Queue => queue,
                By::User => of_account(|account| &account.user),
                By::Name => of_account(|account| &account.name),
                By::Node => &booked.node,
                By::Accelerator => biller.accelerator(&booked.node, booked.from).map_or(UNKNOWN, |kind| &kind.0),
                By::Job => "",
            };
            let key = if by == By::Job { Key::OfJob(*job) } else { Key::Named(name.to_owned()) };
            let held = held(charge.usage);
            biller.charge(&held, |_, _| key.clone());
            biller.hold(key, &held);
        })?;
        self.stored(period, |measured, time| biller.keep(storage::group_of(measured, by), time, &measured.stored()))?;
        self.asked(period, |made, reads| {
            biller.ask(requests::group_of(made, by), (made.from, made.to), &reads.requests());
        })?;
        self.incidents(period, |at, met| biller.attend(incidents::group_of(met, by), at, &met.incident()))?;
        let mut bill = biller.finish(|node, capacity, _| match by {
            By::Node => Key::Named(node.to_owned()),
            By::Accelerator => Key::Named(capacity.accelerator.0.clone()),
            _ => Key::Idle,
        });
        if is_shared {
            bill.share_out(&Key::Idle);
        }
        Ok(wire::report(&bill, by, is_shared, estimated.len()))
    }

    /// Returns the rows that exports of a period are made of.
    pub fn cost_usage(&self, period: Period, now: Timestamp) -> Result<api::CostUsage, db::Error> {
        let period = until_now(period, now);
        let mut biller: Biller<RowKey> = self.biller(period)?;
        let (mut jobs, mut kinds) = (BTreeMap::new(), BTreeMap::new());
        self.charges(period, |charge| {
            let usage = charge.usage;
            let held = held(usage);
            let node = usage.booked.node.clone();
            let key = RowKey { resource: node, job: Some(usage.job), rate: Rate::Devices(held.price) };
            biller.charge(&held, |capacity, line| RowKey { rate: Rate::of(capacity, line), ..key.clone() });
            if let Some(kind) = biller.accelerator(&key.resource, held.from.max(period.from)) {
                kinds.insert(key.resource.clone(), kind.0.clone());
            }
            jobs.entry(usage.job).or_insert_with(|| wire::Whose {
                queue: usage.queue.clone(),
                name_and_user: usage.account.as_ref().map(|account| (account.name.clone(), account.user.clone())),
                is_running: charge.is_estimated,
            });
            biller.hold(key, &held);
        })?;
        self.stored(period, |measured, time| storage::add_row(measured, time, &mut biller, &mut jobs))?;
        self.asked(period, |made, reads| requests::add_row(made, reads, &mut biller, &mut jobs))?;
        self.incidents(period, |at, met| incidents::add_row(met, at, &mut biller, &mut jobs))?;
        let offered = std::cell::RefCell::new(kinds);
        let bill = biller.finish(|node, capacity, line| {
            offered.borrow_mut().insert(node.to_owned(), capacity.accelerator.0.clone());
            RowKey { resource: node.to_owned(), job: None, rate: Rate::of(capacity, line) }
        });
        Ok(wire::usage(&bill, &jobs, &offered.into_inner()))
    }

    /// Returns how many devices of each kind jobs held in each hour of a period, from its first whole hour.
    pub fn cost_demand(&self, period: Period, now: Timestamp) -> Result<api::CostDemand, db::Error> {
        let Period { from, to } = until_now(period, now);
        let hours = from.unix_nanos().div_ceil(HOUR)..to.unix_nanos() / HOUR;
        let at = |hour: u64| Timestamp::from_unix_nanos(hour * HOUR);
        let period = Period { from: at(hours.start), to: at(hours.end.max(hours.start)) };
        let mut offered: BTreeMap<String, CapacityChanged> = BTreeMap::new();
        for (_, changed) in self.reader.capacities((period.from, period.to))? {
            offered.insert(changed.node.clone(), changed);
        }
        let empty = vec![0.0; usize::try_from(hours.end.saturating_sub(hours.start)).unwrap_or(0)];
        let mut kinds: BTreeMap<String, (u32, Vec<f64>)> = BTreeMap::new();
        for changed in offered.values() {
            let kind = kinds.entry(changed.accelerator.clone()).or_insert_with(|| (0, empty.clone()));
            kind.0 = kind.0.saturating_add(changed.devices);
        }
        self.charges(period, |charge| {
            let booked = &charge.usage.booked;
            let kind = offered.get(&booked.node).map_or(UNKNOWN, |changed| &changed.accelerator);
            if !kinds.contains_key(kind) {
                kinds.insert(kind.to_owned(), (0, empty.clone()));
            }
            let Some((_, held)) = kinds.get_mut(kind) else { return };
            let (from, to) = (booked.from.max(period.from), booked.to.min(period.to));
            for hour in from.unix_nanos() / HOUR..to.unix_nanos().div_ceil(HOUR) {
                let part = to.min(at(hour + 1)).since(from.max(at(hour))).as_secs_f64() / 3_600.0;
                let index = usize::try_from(hour - hours.start).unwrap_or(usize::MAX);
                held.get_mut(index).into_iter().for_each(|held| *held += f64::from(booked.devices) * part);
            }
        })?;
        let kinds =
            kinds.into_iter().map(|(accelerator, (devices, held))| api::KindDemand { accelerator, devices, held });
        Ok(api::CostDemand { from: Time(period.from), to: Time(period.to), kinds: kinds.collect() })
    }

    /// Begins the bill of a period with what nodes offered.
    fn biller<K: Ord>(&self, period: Period) -> Result<Biller<K>, db::Error> {
        let mut biller = Biller::new(period);
        for (at, changed) in self.reader.capacities((period.from, period.to))? {
            biller.offer(&changed.node, at, changed.capacity());
        }
        Ok(biller)
    }

    /// Passes everything that jobs held in a period to `each`: what is booked, and what running attempts would be booked as
    /// at its end.
    fn charges(&self, period: Period, mut each: impl FnMut(Charge<'_>)) -> Result<(), db::Error> {
        let mut running = BTreeSet::new();
        for record in self.live_records()? {
            let Some(attempt) = record.last_attempt().filter(|attempt| attempt.ended_at.is_none()) else { continue };
            running.insert((record.id, attempt.number));
            for entry in accrued_until(record.id, attempt, period.to) {
                let usage = Usage {
                    job: record.id,
                    queue: record.queue.clone(),
                    booked: Booked::of(&entry),
                    account: Some(Arc::new(Account::of(&record))),
                };
                each(Charge { usage: &usage, is_estimated: true });
            }
        }
        // An attempt may have ended since it was read as a running one.
        self.reader.usage((period.from, period.to), &mut |usage| {
            if !running.contains(&(usage.job, usage.booked.attempt)) {
                each(Charge { usage: &usage, is_estimated: false });
            }
        })
    }

    fn live_records(&self) -> Result<Vec<JobRecord>, db::Error> {
        let (wanted, mut before, mut records) = (Wanted::from(Standing::Live), None, Vec::new());
        loop {
            let listing = self.reader.jobs(&wanted, before, JOBS_PER_PAGE_MAX)?;
            records.extend(listing.jobs.into_iter().map(|(record, _)| record));
            before = listing.last.filter(|_| listing.has_more);
            if before.is_none() {
                return Ok(records);
            }
        }
    }
}

/// Nothing is known of the time after `now`.
fn until_now(Period { from, to }: Period, now: Timestamp) -> Period {
    let to = to.min(now);
    Period { from: from.min(to), to }
}

fn held(usage: &Usage) -> Held<'_> {
    let Usage { job, booked, account, .. } = usage;
    let mut buckets = Buckets::default();
    for (bucket, nanos) in Bucket::ALL.into_iter().zip(booked.nanos) {
        buckets[bucket] = GpuSeconds::from_nanos(u128::from(nanos));
    }
    Held {
        job: *job,
        node: &booked.node,
        devices: booked.devices,
        from: booked.from,
        to: booked.to,
        // The ledger has a price of zero where the node had none.
        price: Some(booked.price).filter(|price| *price != Money::ZERO),
        buckets,
        has_failed: account.as_ref().is_some_and(|account| account.state == StateRecord::Failed),
    }
}

impl Rate {
    /// Returns what a line of a node is charged by.
    fn of(capacity: &Capacity, line: Line) -> Rate {
        capacity.overheads.price_of(line).map_or(Rate::Devices(capacity.price), Rate::Unit)
    }
}
