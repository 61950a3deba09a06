//! Counts of the requests that an object store bills, by kind.

#[cfg(feature = "s3")]
use std::sync::atomic::{AtomicU64, Ordering};

/// The requests sent so far, each as often as it was sent: retries, pages of a listing and requests that
/// failed count too. Providers have a price for each kind. Of a folder none are counted.
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

/// Counts requests where they are sent; from any thread.
#[cfg(feature = "s3")]
#[derive(Debug, Default)]
pub(crate) struct Meter([AtomicU64; 5]);

#[cfg(feature = "s3")]
impl Meter {
    pub(crate) fn count(&self, kind: Kind) {
        self.0[kind as usize].fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn requests(&self) -> Requests {
        let of = |kind: Kind| self.0[kind as usize].load(Ordering::Relaxed);
        Requests {
            put: of(Kind::Put),
            get: of(Kind::Get),
            list: of(Kind::List),
            delete: of(Kind::Delete),
            head: of(Kind::Head),
        }
    }
}
