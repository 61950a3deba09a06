//! Books an ended attempt into the ledger: the allocation fixes the total, and the supervisors' reports
//! divide it into buckets.

use gangline_accounting::{Allocation, LedgerEntry, book};
use gangline_base::{AttemptNumber, Buckets, JobId, Money, NodeName, Timestamp};

use super::record::AttemptRecord;

/// Returns what a live attempt would be booked as if it had ended at the last report of its supervisors; nothing before
/// the first report, or once it has ended.
pub fn accrued(job: JobId, attempt: &AttemptRecord) -> Vec<LedgerEntry> {
    let last = attempt.shares.iter().filter_map(|share| share.report.as_ref()).map(|report| report.sent_at).max();
    last.map_or_else(Vec::new, |at| accrued_until(job, attempt, Timestamp::from_unix_nanos(at)))
}

/// Returns what a live attempt would be booked as if it ended at `at`; nothing once it has ended.
pub fn accrued_until(job: JobId, attempt: &AttemptRecord, at: Timestamp) -> Vec<LedgerEntry> {
    if attempt.ended_at.is_some() { Vec::new() } else { book_attempt(job, attempt, at) }
}

/// Returns the ledger entries of an attempt that ends `now`, one for each node. An attempt that never held its devices has
/// entries of no time.
pub(super) fn book_attempt(job: JobId, attempt: &AttemptRecord, now: Timestamp) -> Vec<LedgerEntry> {
    let to = attempt.held_to(now).max(attempt.placed_at);
    let from = attempt.held_from().map_or(to, |from| from.min(to));
    let book_share = |share: &super::ShareRecord| {
        let node = NodeName::new(&share.node).ok()?;
        let allocation = Allocation {
            job,
            attempt: AttemptNumber(attempt.number),
            price: share.price.unwrap_or(Money::ZERO),
            node,
            devices: u32::try_from(share.devices.len()).expect("a node has fewer than 2^32 accelerators"),
            from,
            to,
        };
        let reported = share.usage().map(|(since, usage)| (Timestamp::from_unix_nanos(since), Buckets::from(usage)));
        Some(book(allocation, reported))
    };
    attempt.shares.iter().filter_map(book_share).collect()
}
