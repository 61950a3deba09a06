//! Tests of the store as a whole.

mod copies;
mod crash;
mod disk;
mod limits;
mod nodes;
mod oracle;
mod ranges;

use std::path::Path;
use std::time::Duration;

use gangline_base::{AttemptNumber, JobId, NodeName, Step, Timestamp};

use super::head::Limits;
use super::key::{Batch, Row, Scope, Source};
use super::merge::Keep;
use super::query::{Answer, Query};
use super::store::Store;

/// The time at which tests begin.
const BEGIN: Timestamp = Timestamp::from_unix_nanos(1_800_000_000_000_000_000);

fn source(job: u64, rank: u32) -> Source {
    Source {
        scope: Scope::Job(JobId(job)),
        attempt: Some(AttemptNumber(1)),
        node: Some(NodeName::new("n1").expect("a name")),
        rank: Some(rank),
        device: None,
    }
}

/// Rows `first..first + count` of a rank that reports a loss once a second, which is the row's number.
fn losses(job: u64, first: u64, count: u64) -> Batch {
    let row = |number: u64| Row {
        at: BEGIN + Duration::from_secs(number),
        step: Some(Step(number)),
        values: vec![(0, f64::from(u32::try_from(number).expect("small")))],
    };
    let rows = (first..first + count).map(row).collect();
    Batch { source: source(job, 0), first, names: vec!["loss".to_owned()], rows }
}

fn open(folder: &Path) -> Store {
    Store::open(folder, Limits::default(), Keep::default(), BEGIN).expect("a store")
}

fn take(store: &mut Store, batch: Batch) -> u64 {
    let outcome = store.take(&[batch], BEGIN).pop().expect("an outcome");
    outcome.expect("it is stored").next
}

fn ask(store: &Store, query: &Query) -> Answer {
    store.shared().query(query).expect("an answer")
}

fn all(job: u64) -> Query {
    Query::all(Scope::Job(JobId(job)), 1_000_000, 1_000)
}

/// The values of a job's only curve.
fn values(store: &Store, job: u64) -> Vec<f64> {
    let answer = ask(store, &all(job));
    assert!(answer.curves.len() <= 1, "{answer:?}");
    answer.curves.iter().flat_map(|curve| curve.buckets.iter().map(|bucket| bucket.last)).collect()
}

fn numbers(range: std::ops::Range<u32>) -> Vec<f64> {
    range.map(f64::from).collect()
}
