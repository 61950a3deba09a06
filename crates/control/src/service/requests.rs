//! What an attempt asked of object storage, or a node for a job that waited, noted for bills at the end with the prices of then.

use std::collections::BTreeMap;

use gangline_accounting::LedgerEntry;
use gangline_accounting::bill::RequestRate;
use gangline_base::{NodeName, Timestamp};
use gangline_execution::protocol::DatasetReads;
use gangline_execution::protocol::agent::DatasetFetched;
use gangline_specs::config::{RequestPrice, Storage};
use gangline_store::codec::{ClosedAttempt, DatasetRequests, FetchV1, RequestsMade};
use gangline_store::model::{DatasetReadsRecord, JobRecord};

/// Returns the note on an attempt that has been booked; none if it asked for nothing.
pub(super) fn requests_made(
    record: &JobRecord,
    closed: &ClosedAttempt,
    booked: &[LedgerEntry],
    prices: &Storage,
) -> Option<RequestsMade> {
    let mut sums: BTreeMap<&str, DatasetReads> = BTreeMap::new();
    for (address, reads) in
        closed.shares.iter().filter_map(|share| share.report.as_ref()).flat_map(|report| &report.dataset_reads)
    {
        let sum = sums.entry(address).or_default();
        let DatasetReadsRecord { get, head, list, failed, bytes } = *reads;
        *sum = sum.and(DatasetReads { get, head, list, failed, bytes });
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
        reads: vec![priced(&fetch.dataset, fetch.reads, prices)],
    }
}

fn priced(address: &str, reads: DatasetReads, prices: &Storage) -> DatasetRequests {
    let DatasetReads { get, head, list, failed, bytes } = reads;
    let price = RequestPrice::of(&prices.requests, address).map(|price| rate(price).into());
    DatasetRequests { address: address.to_owned(), get, head, list, failed, bytes, price }
}

fn rate(price: &RequestPrice) -> RequestRate {
    let RequestPrice { address: _, per_thousand, per_thousand_lists, per_unit, unit } = price;
    RequestRate {
        per_thousand: *per_thousand,
        per_thousand_lists: *per_thousand_lists,
        per_unit: *per_unit,
        unit: *unit,
    }
}
