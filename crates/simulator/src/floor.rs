//! Free accelerators by node, for the textbook policies: finds the fullest node with enough free.
//!
//! Nodes with the same free count form a bit set, so that a search reads 64 nodes at once. Placement follows
//! the consolidation of Helios (Hu et al., SC'21): a gang that fits on one node never spreads; a larger one
//! takes whole idle nodes and the rest on one more. Muri's first fit is in `textbook/first_fit`.

use gangline_base::NodeId;

/// What a gang holds: nodes, and the number of accelerators on each.
pub(crate) type Shares = Vec<(NodeId, u32)>;

/// Nodes with the same number of free accelerators.
#[derive(Clone, Debug)]
struct Level {
    bits: Vec<u64>,
    nodes: u32,
}

/// The free accelerators of each node.
#[derive(Clone, Debug)]
pub(crate) struct Floor {
    free: Vec<u32>,
    is_up: Vec<bool>,
    levels: Vec<Level>,
    /// The total free accelerators of nodes that are up.
    free_total: u32,
    capacity: Vec<u32>,
}

impl Floor {
    /// Creates idle nodes with these numbers of accelerators.
    pub(crate) fn new(capacity: &[u32]) -> Self {
        let top = capacity.iter().copied().max().unwrap_or(0);
        let words = capacity.len().div_ceil(64);
        let level = Level { bits: vec![0; words], nodes: 0 };
        let mut floor = Floor {
            free: capacity.to_vec(),
            is_up: vec![true; capacity.len()],
            levels: vec![level; top as usize + 1],
            free_total: capacity.iter().sum(),
            capacity: capacity.to_vec(),
        };
        for (node, free) in capacity.iter().enumerate() {
            floor.levels[*free as usize].insert(node);
        }
        floor
    }

    /// Returns the free accelerators of the nodes that are up.
    pub(crate) fn free_total(&self) -> u32 {
        self.free_total
    }

    /// Returns the accelerators of the largest node, which is the size of "a whole node".
    fn whole(&self) -> u32 {
        u32::try_from(self.levels.len() - 1).expect("a node has fewer than 2^32 accelerators")
    }

    /// Finds where a gang fits now: on the fullest node with room, or on whole idle nodes with the rest on
    /// the emptiest other node; the lowest index among equals (Helios). Takes nothing.
    pub(crate) fn find(&self, gpus: u32) -> Option<Shares> {
        if gpus > self.free_total {
            return None;
        }
        let whole = self.whole();
        if gpus <= whole {
            let node = self.levels[gpus as usize..].iter().find_map(|level| level.iter().next())?;
            return Some(vec![(node_id(node), gpus)]);
        }
        let (nodes, rest) = (gpus / whole, gpus % whole);
        let idle = self.levels.last().filter(|level| level.nodes >= nodes)?;
        let mut shares: Shares = idle.iter().take(nodes as usize).map(|node| (node_id(node), whole)).collect();
        if rest > 0 {
            // The whole nodes are the first ones of the last level, in order.
            let is_taken = |node: usize| shares.binary_search_by_key(&node_id(node), |(node, _)| *node).is_ok();
            let roomy = self.levels[rest as usize..].iter().rev().filter(|level| level.nodes > 0);
            let node = roomy.flat_map(Level::iter).find(|node| !is_taken(*node))?;
            shares.push((node_id(node), rest));
        }
        Some(shares)
    }

    /// Takes accelerators that the caller found free.
    pub(crate) fn take(&mut self, shares: &[(NodeId, u32)]) {
        for (node, gpus) in shares {
            self.set_free(*node, self.free[node.0 as usize] - gpus);
        }
    }

    /// Returns accelerators.
    pub(crate) fn release(&mut self, shares: &[(NodeId, u32)]) {
        for (node, gpus) in shares {
            self.set_free(*node, self.free[node.0 as usize] + gpus);
        }
    }

    /// Removes a node from searches because it is down.
    pub(crate) fn take_down(&mut self, node: NodeId) {
        let index = node.0 as usize;
        if std::mem::replace(&mut self.is_up[index], false) {
            self.levels[self.free[index] as usize].remove(index);
            self.free_total -= self.free[index];
        }
    }

    /// Brings back a node that was down.
    pub(crate) fn bring_up(&mut self, node: NodeId) {
        let index = node.0 as usize;
        if !std::mem::replace(&mut self.is_up[index], true) {
            self.levels[self.free[index] as usize].insert(index);
            self.free_total += self.free[index];
        }
    }

    fn set_free(&mut self, node: NodeId, free: u32) {
        let index = node.0 as usize;
        let before = std::mem::replace(&mut self.free[index], free);
        assert!(free <= self.capacity[index], "a node gets back only what it handed out");
        if self.is_up[index] {
            self.levels[before as usize].remove(index);
            self.levels[free as usize].insert(index);
            self.free_total = self.free_total - before + free;
        }
    }
}

impl Level {
    fn insert(&mut self, node: usize) {
        self.bits[node / 64] |= 1 << (node % 64);
        self.nodes += 1;
    }

    fn remove(&mut self, node: usize) {
        self.bits[node / 64] &= !(1 << (node % 64));
        self.nodes -= 1;
    }

    fn iter(&self) -> impl Iterator<Item = usize> + '_ {
        self.bits.iter().enumerate().flat_map(|(word, bits)| bits_of(*bits, word))
    }
}

/// Returns the nodes whose bits are set in this word, ascending.
fn bits_of(mut bits: u64, word: usize) -> impl Iterator<Item = usize> {
    std::iter::from_fn(move || {
        let lowest = (bits != 0).then(|| word * 64 + bits.trailing_zeros() as usize)?;
        bits &= bits - 1;
        Some(lowest)
    })
}

fn node_id(index: usize) -> NodeId {
    NodeId(u32::try_from(index).expect("a cluster has fewer than 2^32 nodes"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shares(list: &[(u32, u32)]) -> Shares {
        list.iter().map(|(node, gpus)| (NodeId(*node), *gpus)).collect()
    }

    #[test]
    fn a_small_gang_takes_the_fullest_node() {
        let mut floor = Floor::new(&[8, 8, 8]);
        floor.take(&shares(&[(0, 2), (2, 5)]));
        assert_eq!(floor.find(3), Some(shares(&[(2, 3)])));
        assert_eq!(floor.find(4), Some(shares(&[(0, 4)])));
        assert_eq!(floor.find(8), Some(shares(&[(1, 8)])));
        floor.take(&shares(&[(1, 1)]));
        assert_eq!(floor.find(8), None);
    }

    #[test]
    fn a_large_gang_takes_whole_nodes_and_the_rest_on_the_emptiest() {
        let mut floor = Floor::new(&[8; 70]);
        floor.take(&shares(&[(0, 4)]));
        assert_eq!(floor.find(20), Some(shares(&[(1, 8), (2, 8), (3, 4)])));
        let all_but_first: Shares = (1..70).map(|node| (NodeId(node), 8)).collect();
        assert_eq!(floor.find(69 * 8), Some(all_but_first.clone()));
        assert_eq!(floor.find(69 * 8 + 4), Some([all_but_first, shares(&[(0, 4)])].concat()));
        assert_eq!(floor.find(69 * 8 + 5), None);
    }

    #[test]
    fn a_node_that_is_down_is_found_again_when_it_is_back() {
        let mut floor = Floor::new(&[4, 4]);
        floor.take(&shares(&[(0, 1)]));
        floor.take_down(NodeId(0));
        assert_eq!((floor.free_total(), floor.find(3)), (4, Some(shares(&[(1, 3)]))));
        floor.release(&shares(&[(0, 1)]));
        floor.bring_up(NodeId(0));
        assert_eq!((floor.free_total(), floor.find(4)), (8, Some(shares(&[(0, 4)]))));
    }
}
