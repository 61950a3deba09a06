//! Where jobs that wait will probably run, so that their nodes can fetch what they read before they start.

use std::collections::{BTreeMap, BTreeSet};

use gangline_base::{JobId, NodeId, Timestamp};

use crate::engine::Engine;
use crate::job::Job;

/// The most waiting jobs that are looked at, first in line first.
const JOBS_MAX: usize = 16;
/// The most datasets of a node.
const DATASETS_MAX: usize = 8;

/// Reports whether a dataset's name is the address of a remote one, which caches hold.
fn is_remote(dataset: &str) -> bool {
    dataset.contains("://")
}

impl Engine {
    /// Returns, for each node, the remote datasets of waiting jobs that the node should hold and doesn't hold whole, each with
    /// the first job in line that reads it, in the order of the line. A job's nodes are those on which it could start first, as
    /// known now; two jobs get different nodes where there are enough.
    #[must_use]
    pub fn datasets_expected(&self, now: Timestamp) -> BTreeMap<NodeId, Vec<(String, JobId)>> {
        let mut expected: BTreeMap<NodeId, Vec<(String, JobId)>> = BTreeMap::new();
        let mut others = Vec::new();
        for job in self.next_in_line(now) {
            let gang = &job.spec.gang;
            let mut reserved = self.reserve(now, job.id, gang, &others);
            if !reserved.is_for(gang) {
                reserved = self.reserve(now, job.id, gang, &[]);
            }
            for node in reserved.nodes() {
                let missing = job.spec.datasets.iter().filter(|name| is_remote(name) && !self.holds(node, name));
                let of_node = expected.entry(node).or_default();
                let known: BTreeSet<String> = of_node.iter().map(|(name, _)| name.clone()).collect();
                of_node.extend(missing.filter(|name| !known.contains(*name)).map(|name| (name.clone(), job.id)));
                of_node.truncate(DATASETS_MAX);
            }
            others.push(reserved);
        }
        expected.retain(|_, datasets| !datasets.is_empty());
        expected
    }

    /// Returns waiting jobs in the order in which they would start; none if none of them reads a remote dataset.
    fn next_in_line(&self, now: Timestamp) -> Vec<&Job> {
        let ids = self.leaves_in_order(now).into_iter().flat_map(|leaf| self.queues.pending(leaf)).map(|key| key.job);
        let jobs: Vec<&Job> = ids.filter_map(|id: JobId| self.jobs.get(&id)).take(JOBS_MAX).collect();
        let reads = |job: &&Job| job.spec.datasets.iter().any(|name| is_remote(name));
        if jobs.iter().any(reads) { jobs } else { Vec::new() }
    }

    /// Reports whether a cache of the node holds all of a dataset.
    fn holds(&self, node: NodeId, dataset: &str) -> bool {
        let held = self.node_caches(node).iter().flat_map(|cache| &cache.datasets);
        held.filter(|held| held.dataset == dataset).any(|held| held.total.0 > 0 && held.here >= held.total)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use gangline_base::{Bytes, JobSpec};

    use super::*;
    use crate::sweep_tests::{World, placed, spec};
    use crate::{CachedDataset, Event, NodeCache, ShareEnd};

    fn reading(nodes: u32, datasets: &[&str]) -> JobSpec {
        JobSpec { datasets: datasets.iter().map(|name| (*name).to_owned()).collect(), ..spec(nodes, 1) }
    }

    fn submit(world: &mut World, spec: JobSpec) -> Vec<u64> {
        placed(&world.apply(Event::JobSubmitted(Arc::new(spec))).expect("there is room"))
    }

    fn cached(world: &mut World, node: NodeId, dataset: &str, here: u64) {
        let datasets = vec![CachedDataset { dataset: dataset.to_owned(), here: Bytes(here), total: Bytes(100) }];
        let cache = NodeCache { folder: "/cache".to_owned(), datasets };
        world.apply(Event::DatasetsCached { node, cache }).expect("the node is known");
    }

    fn expected(world: &World) -> Vec<(NodeId, Vec<String>)> {
        let names = |datasets: Vec<(String, JobId)>| datasets.into_iter().map(|(name, _)| name).collect();
        world.engine.datasets_expected(world.now).into_iter().map(|(node, datasets)| (node, names(datasets))).collect()
    }

    #[test]
    fn a_node_fetches_what_the_first_in_line_reads_until_it_is_there() {
        let mut world = World::new(1, 1);
        assert_eq!(submit(&mut world, spec(1, 1)), [1]);
        submit(&mut world, reading(1, &["a name", "s3://b/c4", "s3://b/pile"]));
        submit(&mut world, reading(1, &["s3://b/c4", "s3://b/wiki"]));
        let node = world.engine.cluster().nodes().next().expect("a node").id;
        let all = |names: &[&str]| vec![(node, names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>())];
        assert_eq!(expected(&world), all(&["s3://b/c4", "s3://b/pile", "s3://b/wiki"]));
        cached(&mut world, node, "s3://b/c4", 99);
        assert_eq!(expected(&world), all(&["s3://b/c4", "s3://b/pile", "s3://b/wiki"]), "one byte is missing");
        cached(&mut world, node, "s3://b/c4", 100);
        assert_eq!(expected(&world), all(&["s3://b/pile", "s3://b/wiki"]));
        let jobs: Vec<u64> = world.engine.datasets_expected(world.now)[&node].iter().map(|(_, job)| job.0).collect();
        assert_eq!(jobs, [2, 3]);
        // What runs fetches for itself.
        assert_eq!(placed(&world.end(JobId(1), &ShareEnd::Succeeded)), [2]);
        assert_eq!(expected(&world), all(&["s3://b/wiki"]));
    }

    #[test]
    fn jobs_that_wait_for_different_nodes_have_their_data_fetched_there() {
        let mut world = World::new(3, 1);
        let nodes: Vec<NodeId> = world.engine.cluster().nodes().map(|node| node.id).collect();
        for minutes in [3, 1, 2] {
            let limited = JobSpec { time_limit: Some(Duration::from_mins(minutes)), ..spec(1, 1) };
            submit(&mut world, limited);
        }
        submit(&mut world, reading(1, &["s3://b/first"]));
        submit(&mut world, reading(1, &["s3://b/second"]));
        let on = |node: usize, name: &str| (nodes[node], vec![name.to_owned()]);
        // The second node is free first, then the third.
        assert_eq!(expected(&world), [on(1, "s3://b/first"), on(2, "s3://b/second")]);
    }

    #[test]
    fn without_remote_datasets_nothing_is_expected() {
        let mut world = World::new(1, 1);
        submit(&mut world, spec(1, 1));
        submit(&mut world, reading(1, &["c4"]));
        assert_eq!(expected(&world), []);
    }
}
