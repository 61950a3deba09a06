//! Datasets on nodes: among equally good placements, those nodes are preferred that already hold most bytes of what a job reads.
//!
//! Supervisors report what their node's cache of remote datasets holds ([`CachedDataset`]), which counts by bytes. Of what no
//! cache reports, such as a name for data on a shared file system, it is only known which nodes' jobs read it last, which breaks
//! ties between nodes with equally many bytes: they may still have it in the page cache. Quiver (FAST 2020) and Hoard (arXiv
//! 1812.00669) show the value of such caches. Nearness only breaks ties after everything else placement weighs (tightness,
//! domains, faults), so it doesn't affect a job that names no dataset. Invariant: the two maps of what was read agree,
//! as do those of what is held.

use std::collections::{BTreeMap, BTreeSet};

use gangline_base::{Bytes, NodeId};

use crate::Share;

/// The datasets remembered for a node: those read last.
pub(crate) const DATASETS_REMEMBERED: usize = 8;
/// The most caches of a node that are known: of several users, or jobs with folders of their own.
const CACHES_PER_NODE_MAX: usize = 8;
/// The most datasets of a cache that are known.
pub const CACHED_DATASETS_MAX: usize = 64;

/// What a cache holds of a dataset.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CachedDataset {
    /// The dataset's address, as jobs name it.
    pub dataset: String,
    /// Bytes that are in the cache.
    pub here: Bytes,
    /// Bytes of the dataset.
    pub total: Bytes,
}

/// A cache on a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeCache {
    /// What tells it from the node's other caches: its folder.
    pub folder: String,
    /// What it holds.
    pub datasets: Vec<CachedDataset>,
}

/// The datasets that nodes hold, or read recently.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Caches {
    /// By node, latest first.
    of_node: BTreeMap<NodeId, Vec<String>>,
    nodes_of: BTreeMap<String, BTreeSet<NodeId>>,
    /// By node, the cache that reported last first.
    held: BTreeMap<NodeId, Vec<NodeCache>>,
    /// By dataset, the most bytes that one cache of a node holds.
    holders: BTreeMap<String, BTreeMap<NodeId, Bytes>>,
}

impl Caches {
    /// Records what a node's cache holds. A remote dataset that is in no cache of the node any more is forgotten.
    pub(crate) fn report(&mut self, node: NodeId, mut cache: NodeCache) {
        cache.datasets.truncate(CACHED_DATASETS_MAX);
        let mut caches = self.held.remove(&node).unwrap_or_default();
        for dataset in caches.iter().flat_map(|cache| &cache.datasets) {
            if let Some(nodes) = self.holders.get_mut(&dataset.dataset) {
                nodes.remove(&node);
            }
        }
        self.holders.retain(|_, nodes| !nodes.is_empty());
        caches.retain(|known| known.folder != cache.folder);
        caches.insert(0, cache);
        caches.truncate(CACHES_PER_NODE_MAX);
        self.hold(node, caches);
        let is_gone = |name: &String| name.contains("://") && !self.is_held(node, name);
        let before = self.of_node.get(&node).cloned().unwrap_or_default();
        let (gone, left): (Vec<String>, Vec<String>) = before.into_iter().partition(is_gone);
        gone.iter().for_each(|dataset| self.forget(node, dataset));
        self.remember(node, left);
    }

    /// Returns what a node's caches are known to hold.
    pub(crate) fn at(&self, node: NodeId) -> &[NodeCache] {
        self.held.get(&node).map_or(&[], Vec::as_slice)
    }

    /// Sets what the caches of a node hold that held nothing.
    fn hold(&mut self, node: NodeId, caches: Vec<NodeCache>) {
        for held in caches.iter().flat_map(|cache| &cache.datasets) {
            let most = self.holders.entry(held.dataset.clone()).or_default().entry(node).or_default();
            *most = held.here.max(*most);
        }
        self.held.insert(node, caches);
    }

    fn is_held(&self, node: NodeId, dataset: &str) -> bool {
        self.holders.get(dataset).is_some_and(|nodes| nodes.contains_key(&node))
    }

    /// Records that jobs with these datasets start on these nodes.
    pub(crate) fn note(&mut self, datasets: &BTreeSet<String>, shares: &[Share]) {
        for share in shares.iter().filter(|_| !datasets.is_empty()) {
            let before = self.of_node.remove(&share.node).unwrap_or_default();
            let others = before.into_iter().filter(|dataset| !datasets.contains(dataset));
            self.remember(share.node, datasets.iter().cloned().chain(others).collect());
        }
    }

    /// Sets what is remembered for a node, dropping the oldest datasets beyond the limit.
    fn remember(&mut self, node: NodeId, mut datasets: Vec<String>) {
        for forgotten in datasets.split_off(datasets.len().min(DATASETS_REMEMBERED)) {
            self.forget(node, &forgotten);
        }
        for dataset in &datasets {
            self.nodes_of.entry(dataset.clone()).or_default().insert(node);
        }
        if datasets.is_empty() {
            self.of_node.remove(&node);
        } else {
            self.of_node.insert(node, datasets);
        }
    }

    /// Removes a node from those that read a dataset.
    fn forget(&mut self, node: NodeId, dataset: &str) {
        let is_left_nowhere = self.nodes_of.get_mut(dataset).is_some_and(|nodes| {
            nodes.remove(&node);
            nodes.is_empty()
        });
        if is_left_nowhere {
            self.nodes_of.remove(dataset);
        }
    }

    /// Returns how near the nodes are to these datasets.
    pub(crate) fn near(&self, datasets: &BTreeSet<String>) -> NearNodes {
        let mut near = NearNodes::default();
        for dataset in datasets {
            for (node, held) in self.holders.get(dataset).into_iter().flatten().filter(|(_, held)| held.0 > 0) {
                near.add(*node, Nearness { held: *held, read: 0 });
            }
            for node in self.nodes_of.get(dataset).into_iter().flatten().filter(|node| !self.is_held(**node, dataset)) {
                near.add(*node, Nearness { held: Bytes(0), read: 1 });
            }
        }
        near
    }

    /// Returns all that nodes read recently, for a snapshot.
    pub(crate) fn all(&self) -> Vec<(NodeId, Vec<String>)> {
        self.of_node.iter().map(|(node, datasets)| (*node, datasets.clone())).collect()
    }

    /// Returns all that nodes' caches hold, for a snapshot.
    pub(crate) fn all_held(&self) -> Vec<(NodeId, Vec<NodeCache>)> {
        self.held.iter().map(|(node, caches)| (*node, caches.clone())).collect()
    }

    pub(crate) fn restore(read: Vec<(NodeId, Vec<String>)>, held: Vec<(NodeId, Vec<NodeCache>)>) -> Self {
        let mut caches = Caches::default();
        held.into_iter().for_each(|(node, held)| caches.hold(node, held));
        read.into_iter().for_each(|(node, datasets)| caches.remember(node, datasets));
        caches
    }
}

/// How near a node is to a job's datasets: first by the bytes that its caches hold, then by what its jobs read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Nearness {
    /// Bytes of the datasets in the node's caches.
    pub(crate) held: Bytes,
    /// Datasets, in no cache, that the node's jobs read recently.
    pub(crate) read: u32,
}

impl Nearness {
    pub(crate) fn and(self, other: Nearness) -> Nearness {
        let held = Bytes(self.held.0.saturating_add(other.held.0));
        Nearness { held, read: self.read.saturating_add(other.read) }
    }
}

/// The nodes that hold, or have read, some of a job's datasets.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct NearNodes(BTreeMap<NodeId, Nearness>);

impl NearNodes {
    pub(crate) fn is_nowhere(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn at(&self, node: NodeId) -> Nearness {
        self.0.get(&node).copied().unwrap_or_default()
    }

    pub(crate) fn nodes(&self) -> impl Iterator<Item = (NodeId, Nearness)> {
        self.0.iter().map(|(node, near)| (*node, *near))
    }

    fn add(&mut self, node: NodeId, near: Nearness) {
        let sum = self.at(node).and(near);
        self.0.insert(node, sum);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(names: &[&str]) -> BTreeSet<String> {
        names.iter().map(|name| (*name).to_owned()).collect()
    }

    fn on(nodes: &[u32]) -> Vec<Share> {
        let share = |node: &u32| Share { node: NodeId(*node), devices: vec![0], cpus: 0, memory: Bytes(0) };
        nodes.iter().map(share).collect()
    }

    fn cache(folder: &str, held: &[(&str, u64)]) -> NodeCache {
        let held = held.iter().map(|(name, here)| CachedDataset {
            dataset: (*name).to_owned(),
            here: Bytes(*here),
            total: Bytes(100),
        });
        NodeCache { folder: folder.to_owned(), datasets: held.collect() }
    }

    #[test]
    fn nodes_are_known_by_what_their_jobs_read() {
        let mut caches = Caches::default();
        caches.note(&named(&["c4", "pile"]), &on(&[1, 2]));
        caches.note(&named(&["c4"]), &on(&[3]));
        caches.note(&named(&[]), &on(&[4]));
        let near = caches.near(&named(&["c4", "pile", "laion"]));
        assert_eq!([1, 2, 3, 4].map(|node| near.at(NodeId(node)).read), [2, 2, 1, 0]);
        assert!(caches.near(&named(&["laion"])).is_nowhere() && caches.near(&named(&[])).is_nowhere());
    }

    #[test]
    fn bytes_in_a_cache_count_before_what_was_read_and_what_is_gone_is_forgotten() {
        let mut caches = Caches::default();
        let wanted = named(&["s3://b/c4", "s3://b/pile", "local"]);
        caches.note(&wanted, &on(&[1, 2]));
        caches.report(NodeId(1), cache("/a", &[("s3://b/c4", 30), ("s3://b/other", 99)]));
        caches.report(NodeId(1), cache("/b", &[("s3://b/c4", 40), ("s3://b/pile", 5)]));
        let near = |node: u32| caches.near(&wanted).at(NodeId(node));
        assert_eq!(near(1), Nearness { held: Bytes(45), read: 1 }, "the fuller of its caches");
        assert_eq!(near(2), Nearness { held: Bytes(0), read: 3 });
        assert!(near(1) > near(2) && near(3) == Nearness::default());
        caches.report(NodeId(1), cache("/b", &[]));
        caches.report(NodeId(2), cache("/a", &[]));
        let near = |node: u32| caches.near(&wanted).at(NodeId(node));
        assert_eq!(near(1), Nearness { held: Bytes(30), read: 1 });
        assert_eq!(near(2), Nearness { held: Bytes(0), read: 1 }, "local may still be there");
    }

    #[test]
    fn a_node_has_a_limited_number_of_caches() {
        let mut caches = Caches::default();
        for number in 0..=CACHES_PER_NODE_MAX {
            caches.report(NodeId(1), cache(&format!("/{number}"), &[("s3://b/c4", number as u64)]));
        }
        let folders: Vec<&str> = caches.at(NodeId(1)).iter().map(|cache| cache.folder.as_str()).collect();
        assert_eq!((folders.len(), folders[0], folders.contains(&"/0")), (CACHES_PER_NODE_MAX, "/8", false));
    }

    #[test]
    fn what_was_read_long_ago_is_forgotten_first() {
        let mut caches = Caches::default();
        let names: Vec<String> = (0..=DATASETS_REMEMBERED).map(|number| format!("d{number}")).collect();
        for name in &names {
            caches.note(&named(&[name]), &on(&[1]));
            caches.note(&named(&["d0"]), &on(&[1]));
        }
        let near = |name: &str| caches.near(&named(&[name])).at(NodeId(1)).read;
        assert_eq!((near("d0"), near("d1"), near("d2")), (1, 0, 1), "d0 is read again and again");
        assert!(!caches.nodes_of.contains_key("d1"), "nothing is kept of what no node has");
    }

    #[test]
    fn a_snapshot_gives_the_same_caches() {
        let mut caches = Caches::default();
        for node in 0..20 {
            caches.note(&named(&[&format!("d{}", node % 3), "all"]), &on(&[node % 7]));
        }
        caches.report(NodeId(3), cache("/a", &[("s3://b/c4", 30)]));
        assert_eq!(Caches::restore(caches.all(), caches.all_held()), caches);
    }
}
