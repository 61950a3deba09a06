//! What caches of datasets hold, as stored on disk.

use gangline_base::Bytes;
use gangline_orchestration::{CachedDataset, NodeCache};
use serde::{Deserialize, Serialize};

#[derive(Serialize, Deserialize)]
pub(super) struct NodeCacheV1 {
    folder: String,
    datasets: Vec<CachedDatasetV1>,
}

#[derive(Serialize, Deserialize)]
struct CachedDatasetV1 {
    dataset: String,
    here: Bytes,
    total: Bytes,
}

impl From<NodeCache> for NodeCacheV1 {
    fn from(NodeCache { folder, datasets }: NodeCache) -> Self {
        let held = |CachedDataset { dataset, here, total }| CachedDatasetV1 { dataset, here, total };
        NodeCacheV1 { folder, datasets: datasets.into_iter().map(held).collect() }
    }
}

impl From<NodeCacheV1> for NodeCache {
    fn from(NodeCacheV1 { folder, datasets }: NodeCacheV1) -> Self {
        let held = |CachedDatasetV1 { dataset, here, total }| CachedDataset { dataset, here, total };
        NodeCache { folder, datasets: datasets.into_iter().map(held).collect() }
    }
}
