//! Counts of the requests that an object store bills, by kind.

#[cfg(feature = "s3")]
use std::sync::atomic::{AtomicU64, Ordering};

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

/// Counts requests below the retries, once each is answered; from any thread. The last count is of those that failed.
#[cfg(feature = "s3")]
#[derive(Debug, Default)]
pub(crate) struct Meter([AtomicU64; 6]);

/// The place of the requests that failed.
#[cfg(feature = "s3")]
const FAILED: usize = 5;

#[cfg(feature = "s3")]
impl Meter {
    /// Counts a request that was answered with this status, or not at all.
    pub(crate) fn count(&self, kind: Kind, status: Option<u16>) {
        let place = if status.is_some_and(|status| status < 500) { kind as usize } else { FAILED };
        self.0[place].fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn requests(&self) -> Requests {
        let of = |kind: Kind| self.0[kind as usize].load(Ordering::Relaxed);
        Requests {
            put: of(Kind::Put),
            get: of(Kind::Get),
            list: of(Kind::List),
            delete: of(Kind::Delete),
            head: of(Kind::Head),
            failed: self.0[FAILED].load(Ordering::Relaxed),
        }
    }
}
