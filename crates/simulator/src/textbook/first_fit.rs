//! First fit by node index, from scratch at every event, as in Muri's simulator (Zhao et al., SIGCOMM'22).
//!
//! Within one pass accelerators are only taken, so a pass costs little more than its jobs: the first node
//! with a given number free only moves up, and once a gang doesn't fit, neither it nor a larger one fits
//! later.

use gangline_base::NodeId;

/// A floor that is cleared and refilled repeatedly.
#[derive(Clone, Debug)]
pub(crate) struct FirstFit {
    capacity: Vec<u32>,
    /// The accelerators of the largest node, which is the size of "a whole node".
    whole: u32,
    /// The number of nodes of that size.
    whole_nodes: u32,
    free: Vec<u32>,
    /// The number of such nodes that are entirely free.
    idle: u32,
    /// For each number of accelerators, the node before which no node has that many free.
    from: Vec<usize>,
    /// The smallest gang that did not fit in this pass.
    misfit: u32,
}

impl FirstFit {
    /// Creates idle nodes with these numbers of accelerators.
    pub(crate) fn new(capacity: &[u32]) -> Self {
        let whole = capacity.iter().copied().max().unwrap_or(0);
        let idle = count(capacity.iter().filter(|free| **free == whole));
        FirstFit {
            capacity: capacity.to_vec(),
            whole,
            whole_nodes: idle,
            free: capacity.to_vec(),
            idle,
            from: vec![0; whole as usize + 1],
            misfit: u32::MAX,
        }
    }

    /// Begins a pass with every node idle.
    pub(crate) fn clear(&mut self) {
        self.free.copy_from_slice(&self.capacity);
        self.idle = self.whole_nodes;
        self.from.fill(0);
        self.misfit = u32::MAX;
    }

    /// Reports whether a gang of this size fits on one node.
    #[inline]
    pub(crate) fn is_narrow(&self, gpus: u32) -> bool {
        gpus <= self.whole
    }

    /// Reports whether a gang of this size is known not to fit in this pass.
    #[inline]
    pub(crate) fn is_misfit(&self, gpus: u32) -> bool {
        gpus >= self.misfit
    }

    /// Takes the first node with room for the whole gang.
    #[inline]
    pub(crate) fn take_node(&mut self, gpus: u32) -> Option<NodeId> {
        let found = self.first(gpus);
        match found {
            Some(node) => self.take(node, gpus),
            None => self.misfit = self.misfit.min(gpus),
        }
        found.map(node_id)
    }

    /// Takes the first whole idle nodes, and the rest on the first other node with room, into `shares`.
    /// Reports whether there was room; if not, nothing is taken.
    pub(crate) fn take_nodes(&mut self, gpus: u32, shares: &mut Vec<(NodeId, u32)>) -> bool {
        let (nodes, rest) = (gpus / self.whole, gpus % self.whole);
        shares.clear();
        if self.idle < nodes {
            self.misfit = self.misfit.min(gpus);
            return false;
        }
        let whole = self.whole;
        let from = self.from[whole as usize];
        let idle = self.free[from..].iter_mut().zip(from..).filter(|(free, _)| **free == whole);
        for (free, node) in idle.take(nodes as usize) {
            *free = 0;
            shares.push((node_id(node), whole));
            self.from[whole as usize] = node + 1;
        }
        self.idle -= nodes;
        if rest == 0 {
            return true;
        }
        let found = self.first(rest);
        if let Some(node) = found {
            self.take(node, rest);
            shares.push((node_id(node), rest));
        } else {
            self.give_back(shares);
            self.misfit = self.misfit.min(gpus);
        }
        found.is_some()
    }

    /// Returns the first node with at least this many free.
    #[inline]
    fn first(&mut self, gpus: u32) -> Option<usize> {
        // Nodes without room for half of a gang have no room for all of it.
        let from = self.from[gpus as usize].max(self.from[gpus as usize / 2]);
        let skipped = self.free[from..].iter().position(|free| *free >= gpus);
        let found = skipped.map_or(self.free.len(), |skipped| from + skipped);
        self.from[gpus as usize] = found;
        skipped.map(|_| found)
    }

    #[inline]
    fn take(&mut self, node: usize, gpus: u32) {
        let free = &mut self.free[node];
        if *free == self.whole {
            // The search stops at the first idle node, so this one was the first.
            self.idle -= 1;
            self.from[self.whole as usize] = node + 1;
        }
        *free = free.checked_sub(gpus).expect("a node hands out only what it has (A-5)");
    }

    /// Returns whole nodes after a failed attempt.
    fn give_back(&mut self, shares: &[(NodeId, u32)]) {
        let Some((first, _)) = shares.first() else { return };
        for (node, gpus) in shares {
            self.free[node.0 as usize] = *gpus;
        }
        self.from.iter_mut().for_each(|from| *from = (*from).min(first.0 as usize));
        self.idle += count(shares.iter());
    }
}

fn count<T>(items: impl Iterator<Item = T>) -> u32 {
    u32::try_from(items.count()).expect("a cluster has fewer than 2^32 nodes")
}

fn node_id(index: usize) -> NodeId {
    NodeId(u32::try_from(index).expect("a cluster has fewer than 2^32 nodes"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::{Draws, Purpose};

    /// Implements the definition: tries nodes one after the other.
    fn plainly(free: &mut [u32], whole: u32, gpus: u32) -> Option<Vec<(NodeId, u32)>> {
        let mut left = free.to_vec();
        let mut shares = Vec::new();
        let parts = (0..gpus / whole).map(|_| whole).chain((!gpus.is_multiple_of(whole)).then_some(gpus % whole));
        for part in parts {
            let node = left.iter().position(|free| *free >= part)?;
            left[node] -= part;
            shares.push((node_id(node), part));
        }
        free.copy_from_slice(&left);
        Some(shares)
    }

    fn take(floor: &mut FirstFit, gpus: u32) -> Option<Vec<(NodeId, u32)>> {
        if floor.is_misfit(gpus) {
            return None;
        }
        if floor.is_narrow(gpus) {
            return floor.take_node(gpus).map(|node| vec![(node, gpus)]);
        }
        let mut shares = Vec::new();
        floor.take_nodes(gpus, &mut shares).then_some(shares)
    }

    /// Runs one pass over 150 gangs beside the definition. Returns how many fit and how many didn't.
    fn pass(floor: &mut FirstFit, nodes: &[u32], below: &mut impl FnMut(u32) -> u32) -> (u32, u32) {
        floor.clear();
        let (mut free, mut counts) = (nodes.to_vec(), (0, 0));
        for turn in 0..150 {
            let gpus = if turn % 4 == 0 { below(90) } else { below(8) };
            let expected = plainly(&mut free, 8, gpus);
            assert_eq!(take(floor, gpus), expected, "{gpus} accelerators, turn {turn}");
            *(if expected.is_some() { &mut counts.0 } else { &mut counts.1 }) += 1;
        }
        counts
    }

    #[test]
    fn a_pass_places_every_gang_where_a_plain_search_would() {
        let (mut placed, mut refused) = (0, 0);
        for seed in 0..300 {
            let mut draws = Draws::new(seed, Purpose::Limits, 0);
            let mut below =
                |end: u32| (1..).find(|top| draws.uniform() < f64::from(*top) / f64::from(end)).unwrap_or(1);
            let nodes: Vec<u32> = (0..100).map(|node| if seed % 3 == 0 && node % 7 == 0 { 4 } else { 8 }).collect();
            let mut floor = FirstFit::new(&nodes);
            for counts in (0..3).map(|_| pass(&mut floor, &nodes, &mut below)) {
                (placed, refused) = (placed + counts.0, refused + counts.1);
            }
        }
        assert!(placed > 10_000 && refused > 1_000, "{placed} placed and {refused} refused say little");
    }

    #[test]
    fn a_gang_without_room_for_its_rest_leaves_no_trace() {
        let mut floor = FirstFit::new(&[8, 8]);
        assert_eq!(take(&mut floor, 1), Some(vec![(NodeId(0), 1)]));
        assert_eq!(take(&mut floor, 16), None);
        assert_eq!(take(&mut floor, 15), Some(vec![(NodeId(1), 8), (NodeId(0), 7)]));
        floor.clear();
        assert_eq!(take(&mut floor, 4), Some(vec![(NodeId(0), 4)]));
        assert_eq!(take(&mut floor, 13), None);
        assert_eq!(take(&mut floor, 12), Some(vec![(NodeId(1), 8), (NodeId(0), 4)]));
    }
}
