//! What supervisors say of datasets: what the node's cache holds, and what the ranks asked the datasets' stores for.

use serde::{Deserialize, Serialize};

/// The environment variable that says what a job's queue may have of a cache of datasets.
pub const CACHE_QUOTA: &str = gangline_data::QUOTA_VARIABLE;

/// The cache of datasets that the job's ranks use on this node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CacheReport {
    /// Its folder, which tells it from the node's other caches.
    pub folder: String,
    /// What it holds, most bytes first.
    pub datasets: Vec<CachedDataset>,
}

/// What a cache holds of a dataset.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CachedDataset {
    /// The dataset's address.
    pub dataset: String,
    /// Bytes that are in the cache.
    pub here_bytes: u64,
    /// Bytes of the dataset.
    pub bytes: u64,
}

/// What was asked for of a dataset: billed requests, retries included, those that failed, and the bytes that came.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DatasetReads {
    /// Ranges of objects.
    #[serde(default)]
    pub get: u64,
    /// Looks at an object's state.
    #[serde(default)]
    pub head: u64,
    /// Pages of listings.
    #[serde(default)]
    pub list: u64,
    /// Objects, or parts of them, that were written: of an archive of checkpoints.
    #[serde(default)]
    pub put: u64,
    /// Requests that ended with a server error (5xx), which S3 doesn't bill, or without an answer.
    #[serde(default)]
    pub failed: u64,
    /// Bytes that were fetched. What the cache held already isn't among them.
    #[serde(default)]
    pub bytes: u64,
}

impl DatasetReads {
    /// Returns the sums.
    #[must_use]
    pub fn and(self, other: DatasetReads) -> DatasetReads {
        DatasetReads {
            get: self.get + other.get,
            head: self.head + other.head,
            list: self.list + other.list,
            put: self.put + other.put,
            failed: self.failed + other.failed,
            bytes: self.bytes + other.bytes,
        }
    }
}
