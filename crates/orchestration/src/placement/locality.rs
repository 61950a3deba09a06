//! Datasets that each node's jobs read recently: among equally good placements, those nodes are preferred
//! that may still have the data in the page cache or on a local disk.
//!
//! This is a guess from history: Quiver (FAST 2020) and Hoard (arXiv 1812.00669) show the value of such a
//! cache, but nodes here don't report theirs. It only breaks ties after everything else placement weighs
//! (tightness, domains, faults), so it doesn't affect a job that names no dataset. Invariant: the two maps
//! agree.

use std::collections::{BTreeMap, BTreeSet};

use gangline_base::NodeId;

use crate::Share;

/// The datasets remembered for a node: those read last.
pub(crate) const DATASETS_REMEMBERED: usize = 8;

/// The datasets that nodes read recently.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Caches {
    /// By node, latest first.
    of_node: BTreeMap<NodeId, Vec<String>>,
    nodes_of: BTreeMap<String, BTreeSet<NodeId>>,
}

impl Caches {
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
            let is_left_nowhere = self.nodes_of.get_mut(&forgotten).is_some_and(|nodes| {
                nodes.remove(&node);
                nodes.is_empty()
            });
            if is_left_nowhere {
                self.nodes_of.remove(&forgotten);
            }
        }
        for dataset in &datasets {
            self.nodes_of.entry(dataset.clone()).or_default().insert(node);
        }
        self.of_node.insert(node, datasets);
    }

    /// Returns the nodes that may have some of these datasets cached.
    pub(crate) fn near(&self, datasets: &BTreeSet<String>) -> CachedDatasets {
        let mut near = CachedDatasets::default();
        for node in datasets.iter().filter_map(|dataset| self.nodes_of.get(dataset)).flatten() {
            *near.0.entry(*node).or_insert(0) += 1;
        }
        near
    }

    /// Returns everything remembered, for a snapshot.
    pub(crate) fn all(&self) -> Vec<(NodeId, Vec<String>)> {
        self.of_node.iter().map(|(node, datasets)| (*node, datasets.clone())).collect()
    }

    pub(crate) fn restore(all: Vec<(NodeId, Vec<String>)>) -> Self {
        let mut caches = Caches::default();
        all.into_iter().for_each(|(node, datasets)| caches.remember(node, datasets));
        caches
    }
}

/// How many of a job's datasets each node may have cached; nodes with none are absent.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct CachedDatasets(BTreeMap<NodeId, u32>);

impl CachedDatasets {
    pub(crate) fn is_nowhere(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn at(&self, node: NodeId) -> u32 {
        self.0.get(&node).copied().unwrap_or(0)
    }

    pub(crate) fn nodes(&self) -> impl Iterator<Item = (NodeId, u32)> {
        self.0.iter().map(|(node, count)| (*node, *count))
    }
}

#[cfg(test)]
mod tests {
    use gangline_base::Bytes;

    use super::*;

    fn named(names: &[&str]) -> BTreeSet<String> {
        names.iter().map(|name| (*name).to_owned()).collect()
    }

    fn on(nodes: &[u32]) -> Vec<Share> {
        let share = |node: &u32| Share { node: NodeId(*node), devices: vec![0], cpus: 0, memory: Bytes(0) };
        nodes.iter().map(share).collect()
    }

    #[test]
    fn nodes_are_known_by_what_their_jobs_read() {
        let mut caches = Caches::default();
        caches.note(&named(&["c4", "pile"]), &on(&[1, 2]));
        caches.note(&named(&["c4"]), &on(&[3]));
        caches.note(&named(&[]), &on(&[4]));
        let near = caches.near(&named(&["c4", "pile", "laion"]));
        assert_eq!([1, 2, 3, 4].map(|node| near.at(NodeId(node))), [2, 2, 1, 0]);
        assert!(caches.near(&named(&["laion"])).is_nowhere() && caches.near(&named(&[])).is_nowhere());
    }

    #[test]
    fn what_was_read_long_ago_is_forgotten_first() {
        let mut caches = Caches::default();
        let names: Vec<String> = (0..=DATASETS_REMEMBERED).map(|number| format!("d{number}")).collect();
        for name in &names {
            caches.note(&named(&[name]), &on(&[1]));
            caches.note(&named(&["d0"]), &on(&[1]));
        }
        let near = |name: &str| caches.near(&named(&[name])).at(NodeId(1));
        assert_eq!((near("d0"), near("d1"), near("d2")), (1, 0, 1), "d0 is read again and again");
        assert!(!caches.nodes_of.contains_key("d1"), "nothing is kept of what no node has");
    }

    #[test]
    fn a_snapshot_gives_the_same_caches() {
        let mut caches = Caches::default();
        for node in 0..20 {
            caches.note(&named(&[&format!("d{}", node % 3), "all"]), &on(&[node % 7]));
        }
        assert_eq!(Caches::restore(caches.all()), caches);
    }
}
