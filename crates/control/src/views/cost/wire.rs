//! Converts bills into the API's types.

use std::collections::BTreeMap;

use gangline_accounting::bill::{Amount, Bill, Group, Line, StorageRate, Unit};
use gangline_api::{CostGroup, CostLine, CostReport, CostUnitPrice, CostUsage, CostUsageRow, Time};
use gangline_base::{Bucket, Bytes, JobId, Money};
use gangline_store::codec::StorageOwner;

use super::{By, Key, Rate, RowKey};

/// Nanoseconds per second, and its decimals.
const NANO: (u128, usize) = (1_000_000_000, 9);
/// Picojoules per joule, and its decimals.
const PICO: (u128, usize) = (1_000_000_000_000, 12);
/// Bytes of a GiB.
const GIB: u64 = 1 << 30;

pub(super) fn report(bill: &Bill<Key>, by: By, is_shared: bool, estimated_jobs: usize) -> CostReport {
    let name = |key: &Key| match key {
        Key::Named(name) => name.clone(),
        Key::OfJob(job) => job.to_string(),
        Key::Idle => "(idle)".to_owned(),
    };
    let mut groups: Vec<CostGroup> = bill.groups.iter().map(|(key, part)| group(name(key), part)).collect();
    groups.sort_by(|left, right| {
        let cost = right.cost_nano_dollars.cmp(&left.cost_nano_dollars);
        cost.then(right.gpu_seconds.total_cmp(&left.gpu_seconds)).then_with(|| left.name.cmp(&right.name))
    });
    CostReport {
        from: Time(bill.period.from),
        to: Time(bill.period.to),
        by: by.name().to_owned(),
        idle: if is_shared { "shared" } else { "own" }.to_owned(),
        groups,
        total: group("total".to_owned(), &bill.total()),
        capacity_seconds: exact(bill.capacity),
        beyond_capacity_seconds: exact(bill.beyond_capacity),
        capacity_since: bill.capacity_since.map(Time),
        estimated_jobs: u64::try_from(estimated_jobs).unwrap_or(u64::MAX),
    }
}

pub(super) fn group(name: String, group: &Group) -> CostGroup {
    let of = |unit: Unit| group.sum(|line| line.unit() == unit);
    let (devices, storage) = (of(Unit::DeviceTime), of(Unit::ByteTime));
    let (requests, moved) = (of(Unit::Requests), of(Unit::Bytes));
    let (energy, work) = (of(Unit::Energy), of(Unit::Work));
    let all = [devices, storage, requests, moved, of(Unit::ChargedTime), energy, work];
    let held = group.sum(Line::is_held).quantity;
    let useful = group.sum(Line::is_useful).quantity;
    let is_known = useful > 0 || group.sum(|line| line == Line::Held(Bucket::Unreported)).quantity == 0;
    CostGroup {
        name,
        jobs: u64::try_from(group.jobs.len()).unwrap_or(u64::MAX),
        gpu_seconds: seconds(devices.quantity),
        gib_hours: gib_hours(storage.quantity),
        requests: small(requests.quantity),
        bytes_read: small(moved.quantity),
        kilowatt_hours: kilowatt_hours(energy.quantity),
        people_hours: seconds(work.quantity) / 3_600.0,
        cost_nano_dollars: all.into_iter().sum::<Amount>().money().nano_dollars(),
        cost: cost(&all),
        unpriced_gpu_seconds: seconds(devices.unpriced),
        unpriced_gib_hours: gib_hours(storage.unpriced),
        unpriced_requests: small(requests.unpriced),
        unpriced_bytes_read: small(moved.unpriced),
        useful_share: (held > 0 && is_known).then(|| seconds(useful) / seconds(held)),
        lines: lines(group).collect(),
    }
}

/// Returns the lines with any time, in the order of a bill.
pub(super) fn lines(group: &Group) -> impl Iterator<Item = CostLine> + '_ {
    group.lines.iter().map(|(line, amount)| self::line(line, &amount))
}

fn line(line: Line, amount: &Amount) -> CostLine {
    let of = |unit: Unit| Some(amount).filter(|_| line.unit() == unit);
    let (devices, stored) = (of(Unit::DeviceTime).copied().unwrap_or_default(), of(Unit::ByteTime));
    let (requests, moved) = (of(Unit::Requests), of(Unit::Bytes));
    let (charged, energy, work) = (of(Unit::ChargedTime), of(Unit::Energy), of(Unit::Work));
    CostLine {
        line: line.name().to_owned(),
        gpu_seconds: seconds(devices.quantity),
        exact_gpu_seconds: exact(devices.quantity),
        gib_hours: stored.map(|stored| gib_hours(stored.quantity)),
        exact_byte_seconds: stored.map(|stored| exact(stored.quantity)),
        requests: requests.map(|requests| small(requests.quantity)),
        bytes_read: moved.map(|moved| small(moved.quantity)),
        charged_gpu_seconds: charged.map(|charged| exact(charged.quantity)),
        kilowatt_hours: energy.map(|energy| kilowatt_hours(energy.quantity)),
        exact_joules: energy.map(|energy| decimal(energy.quantity, PICO)),
        people_seconds: work.map(|work| exact(work.quantity)),
        cost_nano_dollars: amount.money().nano_dollars(),
        unpriced_gpu_seconds: seconds(devices.unpriced),
        unpriced_gib_hours: stored.map(|stored| gib_hours(stored.unpriced)),
        unpriced_requests: requests.map(|requests| small(requests.unpriced)),
        unpriced_bytes_read: moved.map(|moved| small(moved.unpriced)),
    }
}

/// Returns the cost as text; what has no price isn't free.
fn cost(amounts: &[Amount]) -> String {
    let is_some_unpriced = amounts.iter().any(|amount| amount.unpriced > 0);
    if is_some_unpriced && amounts.iter().all(|amount| amount.unpriced == amount.quantity) {
        "not priced".to_owned()
    } else {
        amounts.iter().copied().sum::<Amount>().money().to_string()
    }
}

/// Returns a number of requests or bytes.
fn small(quantity: i128) -> i64 {
    i64::try_from(quantity).unwrap_or(i64::MAX)
}

/// What an export says of a job.
pub(super) struct Whose {
    pub(super) queue: String,
    /// Its name and its user, unless its record is lost.
    pub(super) name_and_user: Option<(String, String)>,
    pub(super) is_running: bool,
}

impl Whose {
    /// Returns whose the data or the incidents of a job are, which isn't known to run.
    pub(super) fn of(StorageOwner { job: _, name, user, queue }: &StorageOwner) -> Whose {
        Whose { queue: queue.clone(), name_and_user: Some((name.clone(), user.clone())), is_running: false }
    }
}

/// Whose the rows of an export are.
pub(super) type Jobs = BTreeMap<JobId, Whose>;

pub(super) fn usage(bill: &Bill<RowKey>, jobs: &Jobs, kinds: &BTreeMap<String, String>) -> CostUsage {
    let rows = bill.groups.iter().flat_map(|(key, group)| {
        lines(group).map(move |line| {
            let known = key.job.and_then(|job| jobs.get(&job));
            let account = known.and_then(|whose| whose.name_and_user.as_ref());
            CostUsageRow {
                job: key.job.as_ref().map(JobId::to_string),
                name: account.map(|(name, _)| name.clone()),
                user: account.map(|(_, user)| user.clone()),
                queue: known.map(|whose| whose.queue.clone()),
                node: key.resource.clone(),
                accelerator: kinds.get(&key.resource).cloned(),
                price_nano_dollars_per_hour: device_price(&key.rate).map(Money::nano_dollars),
                unit_price: unit_price(&key.rate, &line.line),
                line,
                is_estimated: known.is_some_and(|whose| whose.is_running),
            }
        })
    });
    CostUsage { from: Time(bill.period.from), to: Time(bill.period.to), rows: rows.collect() }
}

const fn device_price(rate: &Rate) -> Option<Money> {
    match rate {
        Rate::Devices(price) => *price,
        Rate::Storage(_) | Rate::Requests(_) | Rate::Unit(_) => None,
    }
}

/// Returns what a unit of a line costs, if it isn't device time.
fn unit_price(rate: &Rate, line: &str) -> Option<CostUnitPrice> {
    let name_of = |unit: Bytes| if unit.0 == GIB { "GiB" } else { "GB" };
    let (price, unit) = match rate {
        Rate::Devices(_) => return None,
        Rate::Unit(price) if line == Line::Energy.name() => (*price, "Kilowatt-Hours".to_owned()),
        Rate::Unit(price) if line == Line::People.name() => (*price, "Hours".to_owned()),
        Rate::Unit(price) => (*price, "GPU-Hours".to_owned()),
        Rate::Storage(rate) => {
            let StorageRate { per_month, unit, .. } = (*rate)?;
            (per_month, format!("{}-Months", name_of(unit)))
        }
        Rate::Requests(rate) if line == Line::Transfer.name() => (rate.per_unit?, name_of(rate.unit).to_owned()),
        Rate::Requests(rate) if line == Line::CrossRegionTransfer.name() => {
            (rate.per_unit_across?, name_of(rate.unit).to_owned())
        }
        Rate::Requests(rate) => {
            let price = match line {
                line if line == Line::Lists.name() => rate.per_thousand_lists,
                line if line == Line::Writes.name() => rate.per_thousand_writes,
                _ => rate.per_thousand,
            };
            (price?, "1000 Requests".to_owned())
        }
    };
    Some(CostUnitPrice { nano_dollars: price.nano_dollars(), unit })
}

/// Returns nanoseconds of a byte as hours of a GiB.
#[expect(clippy::cast_precision_loss, reason = "the exact figure is beside it")]
fn gib_hours(nanos: i128) -> f64 {
    nanos as f64 / 3.6e12 / GIB as f64
}

#[expect(clippy::cast_precision_loss, reason = "the exact figure is beside it")]
pub(super) fn seconds(nanos: i128) -> f64 {
    nanos as f64 / 1e9
}

/// Returns nanoseconds as seconds with nine decimals.
fn exact(nanos: i128) -> String {
    decimal(nanos, NANO)
}

fn decimal(parts: i128, (whole, decimals): (u128, usize)) -> String {
    let (sign, parts) = (if parts < 0 { "-" } else { "" }, parts.unsigned_abs());
    format!("{sign}{}.{:0decimals$}", parts / whole, parts % whole)
}

/// Returns picojoules as kilowatt-hours.
#[expect(clippy::cast_precision_loss, reason = "the exact figure is beside it")]
fn kilowatt_hours(picojoules: i128) -> f64 {
    picojoules as f64 / 3.6e18
}
