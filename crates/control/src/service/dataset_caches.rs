//! What supervisors say of the caches of datasets on their nodes, for the engine, which places jobs by it.

use gangline_base::{Bytes, NodeId, Timestamp};
use gangline_execution::protocol::{CacheReport, CachedDataset as Reported};
use gangline_orchestration::{CachedDataset, Event, NodeCache};
use tracing::debug;

use super::actor::Actor;
use super::batch::Batch;

impl Actor {
    /// Tells the engine what a node's cache holds, if that has changed. Supervisors repeat it in each report.
    pub(super) fn take_cache(&mut self, now: Timestamp, node: NodeId, cache: Option<CacheReport>, batch: &mut Batch) {
        let Some(CacheReport { folder, datasets }) = cache else { return };
        let held = |Reported { dataset, here_bytes, bytes }| CachedDataset {
            dataset,
            here: Bytes(here_bytes),
            total: Bytes(bytes),
        };
        let cache = NodeCache { folder, datasets: datasets.into_iter().map(held).collect() };
        let known = self.engine.node_caches(node).iter().find(|known| known.folder == cache.folder);
        let is_known = known.map_or(cache.datasets.is_empty(), |known| *known == cache);
        if !is_known && let Err(refusal) = self.apply(now, Event::DatasetsCached { node, cache }, batch) {
            debug!(%node, %refusal, "what a cache holds came too late");
        }
    }
}
