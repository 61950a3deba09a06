//! Counts of the requests that an object store bills, by kind.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::tally::Tally;

/// The requests sent so far, each as often as it was sent: retries, pages of a listing and refusals (4xx) count
/// too. Providers have a price for each kind. Server errors (5xx), for which S3 has none, are counted apart ("Billing for Amazon S3
/// error responses", docs.aws.amazon.com/AmazonS3/latest/userguide/ErrorCodeBilling.html). Of a folder none are counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Requests {
    /// Objects put.
    pub put: u64,
    /// Ranges of objects read.
    pub get: u64,
    /// Pages of listings.
    pub list: u64,
    /// Deletions; a request that deletes several objects is one.
    pub delete: u64,
    /// Lookups of an object's state.
    pub head: u64,
    /// Requests of any kind that ended with a server error or without an answer, which are in none of the others.
    pub failed: u64,
}

impl Requests {
    /// Returns the sums.
    #[must_use]
    pub const fn and(self, other: Requests) -> Requests {
        Requests {
            put: self.put + other.put,
            get: self.get + other.get,
            list: self.list + other.list,
            delete: self.delete + other.delete,
            head: self.head + other.head,
            failed: self.failed + other.failed,
        }
    }
}

/// A kind of billed request.
#[cfg(feature = "s3")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Put,
    Get,
    List,
    Delete,
    Head,
}

/// The places of what is counted: each kind of request, the requests that failed, and the bytes received.
#[cfg(feature = "s3")]
const FAILED: usize = 5;
const BYTES: usize = 6;
pub(crate) const PLACES: usize = 7;

/// Counts requests below the retries, and the bytes received; from any thread. A request counts from before it is sent: whoever is
/// killed while it waits has asked for it.
#[derive(Debug, Default)]
pub struct Meter {
    counts: [AtomicU64; PLACES],
    tally: Option<Arc<Tally>>,
}

impl Meter {
    /// Notes in a tally, too, what it counts.
    #[must_use]
    pub fn with(tally: Arc<Tally>) -> Meter {
        Meter { tally: Some(tally), ..Meter::default() }
    }

    /// Counts a request that is about to be sent.
    #[cfg(feature = "s3")]
    pub(crate) fn begin(&self, kind: Kind) {
        self.add(&[(kind as usize, 1)]);
    }

    /// Counts a request apart that was begun and answered with this status, or not at all, if that is no answer to pay for.
    #[cfg(feature = "s3")]
    pub(crate) fn end(&self, kind: Kind, status: Option<u16>) {
        if status.is_none_or(|status| status >= 500) {
            self.add(&[(kind as usize, -1), (FAILED, 1)]);
        }
    }

    /// Counts bytes of an answer.
    pub(crate) fn receive(&self, bytes: usize) {
        self.add(&[(BYTES, i64::try_from(bytes).expect("memory has fewer"))]);
    }

    fn add(&self, more: &[(usize, i64)]) {
        for (place, more) in more {
            self.counts[*place].fetch_add(more.cast_unsigned(), Ordering::Relaxed);
        }
        self.tally.iter().for_each(|tally| tally.add(more));
    }

    /// Returns the requests counted so far.
    #[must_use]
    pub fn requests(&self) -> Requests {
        requests_of(&self.counts.each_ref().map(|count| count.load(Ordering::Relaxed)))
    }

    /// Returns the bytes counted so far.
    #[must_use]
    pub fn bytes_received(&self) -> u64 {
        self.counts[BYTES].load(Ordering::Relaxed)
    }
}

/// Returns the requests of counts.
pub(crate) const fn requests_of(counts: &[u64; PLACES]) -> Requests {
    let [put, get, list, delete, head, failed, _] = *counts;
    Requests { put, get, list, delete, head, failed }
}

/// Returns the bytes of counts.
pub(crate) const fn bytes_of(counts: &[u64; PLACES]) -> u64 {
    counts[BYTES]
}
