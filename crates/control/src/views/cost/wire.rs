//! Converts bills into the API's types.

use std::collections::BTreeMap;
use std::sync::Arc;

use gangline_accounting::bill::{Amount, Bill, Group, Line};
use gangline_api::{CostGroup, CostLine, CostReport, CostUsage, CostUsageRow, Time};
use gangline_base::{Bucket, JobId, Money};
use gangline_store::model::Account;

use super::{By, Key, RowKey};

/// Nanoseconds per second.
const NANOS_PER_SECOND: u128 = 1_000_000_000;

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
    let total = group.sum(|_| true);
    let held = group.sum(|line| !line.is_unheld()).nanos;
    let useful = group.sum(Line::is_useful).nanos;
    let is_known = useful > 0 || group.sum(|line| line == Line::Held(Bucket::Unreported)).nanos == 0;
    CostGroup {
        name,
        jobs: u64::try_from(group.jobs.len()).unwrap_or(u64::MAX),
        gpu_seconds: seconds(total.nanos),
        cost_nano_dollars: total.money().nano_dollars(),
        cost: cost(&total),
        unpriced_gpu_seconds: seconds(total.unpriced),
        useful_share: (held > 0 && is_known).then(|| seconds(useful) / seconds(held)),
        lines: lines(group).collect(),
    }
}

/// Returns the lines with any time, in the order of a bill.
pub(super) fn lines(group: &Group) -> impl Iterator<Item = CostLine> + '_ {
    group.lines.iter().map(|(line, amount)| self::line(line, &amount))
}

fn line(line: Line, amount: &Amount) -> CostLine {
    CostLine {
        line: line.name().to_owned(),
        gpu_seconds: seconds(amount.nanos),
        exact_gpu_seconds: exact(amount.nanos),
        cost_nano_dollars: amount.money().nano_dollars(),
        unpriced_gpu_seconds: seconds(amount.unpriced),
    }
}

/// Returns the cost as text; time without a price isn't free.
fn cost(amount: &Amount) -> String {
    if amount.unpriced > 0 && amount.unpriced == amount.nanos {
        "not priced".to_owned()
    } else {
        amount.money().to_string()
    }
}

/// What is known of a job: its queue, its account, and whether it still runs.
pub(super) type Jobs = BTreeMap<JobId, (String, Option<Arc<Account>>, bool)>;

pub(super) fn usage(bill: &Bill<RowKey>, jobs: &Jobs, kinds: &BTreeMap<String, String>) -> CostUsage {
    let rows = bill.groups.iter().flat_map(|(key, group)| {
        lines(group).map(move |line| {
            let known = key.job.and_then(|job| jobs.get(&job));
            let account = known.and_then(|(_, account, _)| account.as_ref());
            CostUsageRow {
                job: key.job.as_ref().map(JobId::to_string),
                name: account.map(|account| account.name.clone()),
                user: account.map(|account| account.user.clone()),
                queue: known.map(|(queue, ..)| queue.clone()),
                node: key.node.clone(),
                accelerator: kinds.get(&key.node).cloned(),
                line,
                price_nano_dollars_per_hour: key.price.map(Money::nano_dollars),
                is_estimated: known.is_some_and(|(_, _, is_running)| *is_running),
            }
        })
    });
    CostUsage { from: Time(bill.period.from), to: Time(bill.period.to), rows: rows.collect() }
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
