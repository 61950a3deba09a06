//! What supervisors and agents say of the caches of datasets on their nodes, for the engine, which places jobs by it; and what
//! nodes should fetch for jobs that wait.

use std::collections::BTreeMap;
use std::time::Duration;

use gangline_base::{Bytes, JobId, JobSpec, NodeId, NodeName, Timestamp};
use gangline_execution::protocol::agent::{DatasetFetched, DatasetWanted};
use gangline_execution::protocol::{CacheReport, CachedDataset as Reported};
use gangline_orchestration::{CachedDataset, Event, NodeCache};
use tracing::debug;

use super::actor::Actor;
use super::batch::Batch;
use super::handle::Error;
use super::requests::requests_of_fetch;
use super::waiting::unreadable;
use crate::bound::bound_cache;
use gangline_store::codec::{Noted, RequestsMade};
use gangline_store::ports::Queries as _;

/// How long it stands which node should fetch what.
const EXPECTED_FOR: Duration = Duration::from_secs(5);
/// The agent of a node that hasn't asked for so long fetches nothing any more.
const FETCHES_FOR: Duration = Duration::from_mins(2);
/// The most nodes that are named to a user.
const NODES_SHOWN: usize = 3;

/// The datasets that nodes should fetch for jobs that wait, as last looked at.
#[derive(Debug, Default)]
pub(super) struct ExpectedDatasets {
    at: Option<Timestamp>,
    of_node: BTreeMap<NodeId, Vec<(String, JobId)>>,
    /// When the agents that fetch last asked.
    asked_at: BTreeMap<NodeId, Timestamp>,
}

impl Actor {
    /// Takes what a node's agent says of its cache, and returns the datasets that the node should fetch.
    pub(super) fn agent_cached(
        &mut self,
        now: Timestamp,
        (name, mut cache): (&NodeName, Option<CacheReport>),
        batch: &mut Batch,
    ) -> Result<Vec<DatasetWanted>, Error> {
        let node = self.engine.node_id(name).ok_or_else(|| Error::NoNode(name.clone()))?;
        cache.iter_mut().for_each(bound_cache);
        let is_news = cache.is_some();
        self.take_cache(now, node, cache, batch);
        let is_old = self.expected.at.is_none_or(|at| now < at || now.since(at) >= EXPECTED_FOR);
        if is_old || is_news {
            self.expected.at = Some(now);
            self.expected.of_node = self.engine.datasets_expected(now);
        }
        self.expected.asked_at.insert(node, now);
        let wanted = |(dataset, job): &(String, JobId)| {
            let queue = self.records.get(job).map(|record| record.queue.as_str());
            let quota = queue.and_then(|queue| self.options.cache_quota(queue));
            DatasetWanted { dataset: dataset.clone(), job: job.0, quota }
        };
        Ok(self.expected.of_node.get(&node).into_iter().flatten().map(wanted).collect())
    }

    /// Notes for bills what a node's agent asked of object storage for jobs that waited. Agents repeat what may not have been
    /// taken, which is noted once.
    pub(super) fn agent_fetched(
        &mut self,
        now: Timestamp,
        (node, fetched): (&NodeName, Vec<DatasetFetched>),
        batch: &mut Batch,
    ) -> Result<(), Error> {
        for fetch in fetched {
            let record = match self.record_of(JobId(fetch.job)) {
                Ok(record) => record,
                Err(Error::Unreadable { code, cause }) => return Err(Error::Unreadable { code, cause }),
                Err(_) => continue,
            };
            // A node's agent says what jobs pay: only for what they read.
            if !record.spec.as_ref().is_some_and(|spec| spec.datasets().contains(&fetch.dataset)) {
                debug!(%node, job = fetch.job, dataset = fetch.dataset, "a fetch is of no dataset of the job");
                continue;
            }
            let made = requests_of_fetch(&record, node, &fetch, now, &self.options.billing.storage);
            if !self.is_noted(&made)? {
                self.note_for_bills(now, Noted::Requests(made), batch);
            }
        }
        Ok(())
    }

    /// Whether the same fetch was noted before: on disk, or in a row that is about to be.
    fn is_noted(&self, fetch: &RequestsMade) -> Result<bool, Error> {
        let is_it = |made: &RequestsMade| made.job == fetch.job && made.fetch == fetch.fetch;
        let waiting = |(_, noted): &(Timestamp, Noted)| matches!(noted, Noted::Requests(made) if is_it(made));
        if self.rows.noted.iter().any(waiting) {
            return Ok(true);
        }
        Ok(self.reader.requests_of(fetch.job).map_err(unreadable)?.iter().any(is_it))
    }

    /// Says which nodes fetch datasets of a job meanwhile.
    pub(super) fn fetched_meanwhile(&self, now: Timestamp, spec: &JobSpec) -> Option<String> {
        let ExpectedDatasets { of_node, asked_at, .. } = &self.expected;
        let asks = |node: &NodeId| asked_at.get(node).is_some_and(|at| now.since(*at) < FETCHES_FOR);
        let reads = |datasets: &[(String, JobId)]| datasets.iter().any(|(name, _)| spec.datasets.contains(name));
        let nodes = of_node.iter().filter(|(node, datasets)| asks(node) && reads(datasets)).map(|(node, _)| *node);
        let names: Vec<String> = nodes.map(|node| self.node_name(node)).collect();
        match names.len() {
            0 => None,
            count if count <= NODES_SHOWN => {
                Some(format!("meanwhile its datasets are fetched on {}", names.join(", ")))
            }
            count => Some(format!("meanwhile its datasets are fetched on {count} nodes")),
        }
    }

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
