//! Finding room for a whole gang (A-5: whole or not at all).
//!
//! Best fit: of the nodes with room, the fullest are taken, so that large holes stay whole for large gangs; ties go to
//! the lower id. Devices are taken from the lowest number up. A gang never shares a node with itself.

use gangline_base::GangShape;

use crate::{Cluster, Node, Share};

/// Room that was found.
pub(crate) struct Room {
    /// One share for each node of the gang.
    pub(crate) shares: Vec<Share>,
    /// Nodes that had room, counted up to [`CANDIDATES_COUNTED_MAX`] beyond those needed.
    pub(crate) candidates: u32,
}

/// Candidates beyond the gang's own that are counted for the reason; the count says "at least" from there.
const CANDIDATES_COUNTED_MAX: usize = 64;

/// Room for the whole gang, or none. `usable` says how many of a node's free accelerators this gang may have: fewer than
/// are free where some are held for a job with a better place in line.
pub(crate) fn find_room(cluster: &Cluster, gang: &GangShape, usable: &dyn Fn(&Node) -> u32) -> Option<Room> {
    let wanted = usize::try_from(gang.nodes.get()).expect("a usize holds 32 bits");
    let is_usable = |node: &&Node| usable(node) >= gang.accelerators_per_node.get();
    let mut candidates = cluster.with_room_for(gang).filter(is_usable).take(wanted + CANDIDATES_COUNTED_MAX);
    let shares: Vec<Share> = candidates.by_ref().take(wanted).map(|node| share_on(node, gang)).collect();
    if shares.len() < wanted {
        return None;
    }
    let count = wanted + candidates.count();
    let mut shares = shares;
    shares.sort_by_key(|share| share.node);
    Some(Room { shares, candidates: u32::try_from(count).unwrap_or(u32::MAX) })
}

fn share_on(node: &Node, gang: &GangShape) -> Share {
    let count = usize::try_from(gang.accelerators_per_node.get()).expect("a usize holds 32 bits");
    Share {
        node: node.id,
        devices: node.free.iter().copied().take(count).collect(),
        cpus: gang.cpus_per_node,
        memory: gang.memory_per_node,
    }
}
