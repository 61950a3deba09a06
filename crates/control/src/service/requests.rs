//! What an attempt asked of object storage, noted for bills at its end with the prices of then.

use std::collections::BTreeMap;

use gangline_accounting::LedgerEntry;
use gangline_accounting::bill::RequestRate;
use gangline_specs::config::{RequestPrice, Storage};
use gangline_store::codec::{ClosedAttempt, DatasetRequests, RequestsMade};
use gangline_store::model::JobRecord;

/// Returns the note on an attempt that has been booked; none if it asked for nothing.
pub(super) fn requests_made(
    record: &JobRecord,
    closed: &ClosedAttempt,
    booked: &[LedgerEntry],
    prices: &Storage,
) -> Option<RequestsMade> {
    let mut sums: BTreeMap<&str, DatasetRequests> = BTreeMap::new();
    for (address, reads) in
        closed.shares.iter().filter_map(|share| share.report.as_ref()).flat_map(|report| &report.dataset_reads)
    {
        let sum = sums.entry(address).or_insert_with(|| DatasetRequests {
            address: address.clone(),
            get: 0,
            head: 0,
            list: 0,
            bytes: 0,
            price: RequestPrice::of(&prices.requests, address).map(|price| rate(price).into()),
        });
        let pairs = [
            (&mut sum.get, reads.get),
            (&mut sum.head, reads.head),
            (&mut sum.list, reads.list),
            (&mut sum.bytes, reads.bytes),
        ];
        pairs.into_iter().for_each(|(sum, more)| *sum = sum.saturating_add(more));
    }
    let reads: Vec<DatasetRequests> = sums.into_values().collect();
    let first = booked.first().filter(|_| !reads.is_empty())?;
    Some(RequestsMade {
        job: record.id,
        attempt: closed.attempt.0,
        name: record.name.clone(),
        user: record.submitter.clone(),
        queue: record.queue.clone(),
        from: first.allocation.from,
        to: first.allocation.to,
        reads,
    })
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
