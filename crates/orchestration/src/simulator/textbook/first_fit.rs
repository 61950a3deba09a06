//! First fit by node index, everything from scratch at every event, as in Muri's simulator (Zhao et al., SIGCOMM'22).
//!
//! Within one pass accelerators are only handed out, so two things hold that make a pass cost little more than its
//! jobs: the first node with so many free only moves up, and what doesn't fit once fits no more, nor does anything
//! larger.

use gangline_base::NodeId;

/// A floor that is cleared and filled again and again.
#[derive(Clone, Debug)]
pub(crate) struct FirstFit {
    capacity: Vec<u32>,
    /// Accelerators of the largest node: what "a whole node" means.
    whole: u32,
    /// Nodes that are whole.
    whole_nodes: u32,
    free: Vec<u32>,
    /// Whole nodes of which all is free.
    idle: u32,
    /// For each number of accelerators, the node before which none has as many free.
    from: Vec<usize>,
    /// The smallest gang that found no place in this pass.
    misfit: u32,
}

impl FirstFit {
    /// Idle nodes with so many accelerators each.
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

    /// Begins a pass: every node is idle again.
    pub(crate) fn clear(&mut self) {
        self.free.copy_from_slice(&self.capacity);
        self.idle = self.whole_nodes;
        self.from.fill(0);
        self.misfit = u32::MAX;
    }

    /// Whether a gang of so many is on one node.
    #[inline]
    pub(crate) fn is_narrow(&self, gpus: u32) -> bool {
        gpus <= self.whole
    }

    /// Whether a gang of so many is known to find no place in this pass.
    #[inline]
    pub(crate) fn is_misfit(&self, gpus: u32) -> bool {
        gpus >= self.misfit
    }

    /// Gives a gang the first node with room for all of it.
    #[inline]
    pub(crate) fn take_node(&mut self, gpus: u32) -> Option<NodeId> {
        let found = self.first(gpus);
        match found {
            Some(node) => self.take(node, gpus),
            None => self.misfit = self.misfit.min(gpus),
        }
        found.map(node_id)
    }

    /// Gives a gang the first whole idle nodes and the rest on the first other node with room, in `shares`. Says whether
    /// there was room; if not, nothing is taken.
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

    /// The first node with at least so many free.
    #[inline]
    fn first(&mut self, gpus: u32) -> Option<usize> {
        // Nodes without room for half have none for this.
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
            // Nobody passes an idle node, so it was the first.
            self.idle -= 1;
            self.from[self.whole as usize] = node + 1;
        }
        *free = free.checked_sub(gpus).expect("a node hands out only what it has (A-5)");
    }

    /// Whole nodes taken in vain.
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
    use crate::simulator::random::{Draws, Purpose};

    /// The definition: nodes one after the other.
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

    /// One pass over 150 gangs, beside the definition. How many found a place, and how many didn't.
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
