//! Which datasets each node's jobs have read of late: where rooms are equally good, those are taken whose nodes may still have
//! the data in their page cache or on a local disk.
//!
//! A guess from history, as Quiver (FAST 2020) and Hoard (arXiv 1812.00669) show what such a cache is worth but no node
//! reports its own here. It comes after all that placement weighs (tightness, domains, faults) and decides between equals
//! only, so a job that names no dataset is placed as if there were none. Invariant: the two maps say the same.

use std::collections::{BTreeMap, BTreeSet};

use gangline_base::NodeId;

use crate::Share;

/// The datasets that are remembered of a node, those read last.
pub(crate) const DATASETS_REMEMBERED: usize = 8;

/// What nodes read of late.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Caches {
    /// By node, what was read last first.
    of_node: BTreeMap<NodeId, Vec<String>>,
    nodes_of: BTreeMap<String, BTreeSet<NodeId>>,
}

impl Caches {
    /// Jobs with these datasets start on these nodes.
    pub(crate) fn note(&mut self, datasets: &BTreeSet<String>, shares: &[Share]) {
        for share in shares.iter().filter(|_| !datasets.is_empty()) {
            let before = self.of_node.remove(&share.node).unwrap_or_default();
            let others = before.into_iter().filter(|dataset| !datasets.contains(dataset));
            self.remember(share.node, datasets.iter().cloned().chain(others).collect());
        }
    }

    /// Sets what a node remembers, and forgets what is too much.
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

    /// The nodes that may have some of these.
    pub(crate) fn near(&self, datasets: &BTreeSet<String>) -> Near {
        let mut near = Near::default();
        for node in datasets.iter().filter_map(|dataset| self.nodes_of.get(dataset)).flatten() {
            *near.0.entry(*node).or_insert(0) += 1;
        }
        near
    }

    /// All of it, for a snapshot.
    pub(crate) fn all(&self) -> Vec<(NodeId, Vec<String>)> {
        self.of_node.iter().map(|(node, datasets)| (*node, datasets.clone())).collect()
    }

    pub(crate) fn restore(all: Vec<(NodeId, Vec<String>)>) -> Self {
        let mut caches = Caches::default();
        all.into_iter().for_each(|(node, datasets)| caches.remember(node, datasets));
        caches
    }
}

/// How many of a job's datasets each node may have; nodes with none aren't here.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Near(BTreeMap<NodeId, u32>);

impl Near {
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
