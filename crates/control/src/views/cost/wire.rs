//! Converts bills into the API's types.

use std::collections::BTreeMap;

use gangline_accounting::bill::{Amount, Bill, Group, Line, StorageRate};
use gangline_api::{CostGroup, CostLine, CostReport, CostStoragePrice, CostUsage, CostUsageRow, Time};
use gangline_base::{Bucket, JobId, Money};

use super::{By, Key, Rate, RowKey};

/// Nanoseconds per second.
const NANOS_PER_SECOND: u128 = 1_000_000_000;
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
    let (devices, storage) = (group.sum(Line::is_of_devices), group.sum(|line| !line.is_of_devices()));
    let held = group.sum(Line::is_held).nanos;
    let useful = group.sum(Line::is_useful).nanos;
    let is_known = useful > 0 || group.sum(|line| line == Line::Held(Bucket::Unreported)).nanos == 0;
    CostGroup {
        name,
        jobs: u64::try_from(group.jobs.len()).unwrap_or(u64::MAX),
        gpu_seconds: seconds(devices.nanos),
        gib_hours: gib_hours(storage.nanos),
        cost_nano_dollars: (devices + storage).money().nano_dollars(),
        cost: cost(&devices, &storage),
        unpriced_gpu_seconds: seconds(devices.unpriced),
        unpriced_gib_hours: gib_hours(storage.unpriced),
        useful_share: (held > 0 && is_known).then(|| seconds(useful) / seconds(held)),
        lines: lines(group).collect(),
    }
}

/// Returns the lines with any time, in the order of a bill.
pub(super) fn lines(group: &Group) -> impl Iterator<Item = CostLine> + '_ {
    group.lines.iter().map(|(line, amount)| self::line(line, &amount))
}

fn line(line: Line, amount: &Amount) -> CostLine {
    let (devices, bytes) = if line.is_of_devices() { (*amount, None) } else { (Amount::default(), Some(amount)) };
    CostLine {
        line: line.name().to_owned(),
        gpu_seconds: seconds(devices.nanos),
        exact_gpu_seconds: exact(devices.nanos),
        gib_hours: bytes.map(|bytes| gib_hours(bytes.nanos)),
        exact_byte_seconds: bytes.map(|bytes| exact(bytes.nanos)),
        cost_nano_dollars: amount.money().nano_dollars(),
        unpriced_gpu_seconds: seconds(devices.unpriced),
        unpriced_gib_hours: bytes.map(|bytes| gib_hours(bytes.unpriced)),
    }
}

/// Returns the cost as text; what has no price isn't free.
fn cost(devices: &Amount, storage: &Amount) -> String {
    let is_some_unpriced = devices.unpriced > 0 || storage.unpriced > 0;
    if is_some_unpriced && devices.unpriced == devices.nanos && storage.unpriced == storage.nanos {
        "not priced".to_owned()
    } else {
        (*devices + *storage).money().to_string()
    }
}

/// What an export says of a job.
pub(super) struct Whose {
    pub(super) queue: String,
    /// Its name and its user, unless its record is lost.
    pub(super) name_and_user: Option<(String, String)>,
    pub(super) is_running: bool,
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
                line,
                price_nano_dollars_per_hour: device_price(&key.rate).map(Money::nano_dollars),
                storage_price: storage_price(&key.rate),
                is_estimated: known.is_some_and(|whose| whose.is_running),
            }
        })
    });
    CostUsage { from: Time(bill.period.from), to: Time(bill.period.to), rows: rows.collect() }
}

const fn device_price(rate: &Rate) -> Option<Money> {
    match rate {
        Rate::OfDevices(price) => *price,
        Rate::OfStorage(_) => None,
    }
}

fn storage_price(rate: &Rate) -> Option<CostStoragePrice> {
    let Rate::OfStorage(Some(StorageRate { per_month, unit, .. })) = rate else { return None };
    let unit = if unit.0 == GIB { "GiB-Months" } else { "GB-Months" };
    Some(CostStoragePrice { nano_dollars: per_month.nano_dollars(), unit: unit.to_owned() })
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
    let (sign, nanos) = (if nanos < 0 { "-" } else { "" }, nanos.unsigned_abs());
    format!("{sign}{}.{:09}", nanos / NANOS_PER_SECOND, nanos % NANOS_PER_SECOND)
}
