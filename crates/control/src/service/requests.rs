//! What an attempt asked of object storage, or a node for a job that waited, noted for bills at the end with the prices of then.

use std::collections::BTreeMap;

use gangline_accounting::LedgerEntry;
use gangline_accounting::bill::RequestRate;
use gangline_base::{NodeName, Timestamp};
use gangline_execution::protocol::agent::DatasetFetched;
use gangline_specs::config::{RequestPrice, Storage};
use gangline_store::codec::{ClosedAttempt, DatasetRequests, FetchV1, RequestsMade};
use gangline_store::model::{DatasetReadsRecord, JobRecord};

use crate::reported::reads_record;

/// Returns the note on an attempt that has been booked; none if it asked for nothing.
pub(super) fn requests_made(
    record: &JobRecord,
    closed: &ClosedAttempt,
    booked: &[LedgerEntry],
    prices: &Storage,
) -> Option<RequestsMade> {
    let mut sums: BTreeMap<&str, DatasetReadsRecord> = BTreeMap::new();
    for (address, reads) in
        closed.shares.iter().filter_map(|share| share.report.as_ref()).flat_map(|report| &report.dataset_reads)
    {
        let sum = sums.entry(address).or_default();
        *sum = sum.and(*reads);
    }
    let reads: Vec<DatasetRequests> = sums.into_iter().map(|(address, reads)| priced(address, reads, prices)).collect();
    let first = booked.first().filter(|_| !reads.is_empty())?;
    Some(RequestsMade {
        job: record.id,
        attempt: closed.attempt.0,
        fetch: None,
        name: record.name.clone(),
        user: record.submitter.clone(),
        queue: record.queue.clone(),
        from: first.allocation.from,
        to: first.allocation.to,
        reads,
    })
}

/// Returns the note on a fetch of a node's agent. Its times are the node's: none is later than now.
pub(super) fn requests_of_fetch(
    record: &JobRecord,
    node: &NodeName,
    fetch: &DatasetFetched,
    now: Timestamp,
    prices: &Storage,
) -> RequestsMade {
    let from = Timestamp::from_unix_nanos(fetch.from).min(now);
    let reads = related(prices, node, &fetch.dataset, reads_record(fetch.reads));
    RequestsMade {
        job: record.id,
        attempt: 0,
        // By the node's clock, as it is repeated.
        fetch: Some(FetchV1 { node: node.to_string(), began: fetch.from }),
        name: record.name.clone(),
        user: record.submitter.clone(),
        queue: record.queue.clone(),
        from,
        to: Timestamp::from_unix_nanos(fetch.to).min(now).max(from),
        reads: vec![priced(&fetch.dataset, reads, prices)],
    }
}

/// Splits the bytes that a node read by whether the objects are in its region, if both regions are known.
pub(super) fn related(
    storage: &Storage,
    node: &NodeName,
    address: &str,
    reads: DatasetReadsRecord,
) -> DatasetReadsRecord {
    let objects = RequestPrice::of(&storage.requests, address).and_then(|price| price.region.as_deref());
    match storage.regions.of(node).zip(objects) {
        None => reads,
        Some((node, objects)) if node == objects => DatasetReadsRecord { in_region_bytes: reads.bytes, ..reads },
        Some(_) => DatasetReadsRecord { cross_region_bytes: reads.bytes, ..reads },
    }
}

fn priced(address: &str, reads: DatasetReadsRecord, prices: &Storage) -> DatasetRequests {
    let price = RequestPrice::of(&prices.requests, address).map(|price| rate(price).into());
    DatasetRequests { address: address.to_owned(), reads, price }
}

fn rate(price: &RequestPrice) -> RequestRate {
    let RequestPrice {
        address: _,
        per_thousand,
        per_thousand_lists,
        per_thousand_writes,
        per_unit,
        per_unit_across,
        unit,
        region: _,
    } = price;
    RequestRate {
        per_thousand: *per_thousand,
        per_thousand_lists: *per_thousand_lists,
        per_thousand_writes: *per_thousand_writes,
        per_unit: *per_unit,
        per_unit_across: *per_unit_across,
        unit: *unit,
    }
}
