//! The tree of domains against a plain recount, and placements against what they promise, on random clusters.

use std::collections::{BTreeMap, BTreeSet};
use std::num::NonZeroU32;

use gangline_base::{Bytes, GangShape, Level, NodeId, NodeName, PoolName, Segment, Timestamp, TopologyRequest};

use crate::fixture::{self, Dice};
use crate::{Cluster, Location, Node, NodeCapacity, NodeSpec, Refusal, Share, Standing, placement};

fn spec(name: u32, location: Location) -> NodeSpec {
    let capacity = NodeCapacity {
        pool: PoolName::default(),
        accelerator: fixture::kind(),
        accelerators: 8,
        cpus: 64,
        memory: Bytes(0),
    };
    NodeSpec {
        name: NodeName::new(&format!("n{name}")).expect("a name"),
        capacity,
        location,
        layout: Default::default(),
    }
}

/// Racks of so many nodes, blocks of so many racks.
fn cluster(nodes: u32, in_rack: u32, in_block: u32) -> Cluster {
    let mut cluster = Cluster::default();
    for number in 0..nodes {
        let rack = number / in_rack;
        let names = [(Level::Rack, format!("r{rack}")), (Level::Block, format!("b{}", rack / in_block))];
        cluster.join(spec(number, names.into_iter().collect()), &[]);
    }
    cluster
}

fn gang(nodes: u32, devices: u32, topology: TopologyRequest) -> GangShape {
    GangShape { topology, ..fixture::gang(nodes, devices) }
}

fn place(cluster: &Cluster, gang: &GangShape) -> Option<Vec<Share>> {
    placement::find_room(cluster, gang, &Node::free_count).map(|room| room.shares)
}

fn domain(cluster: &Cluster, node: NodeId, level: Level) -> String {
    let node = cluster.node(node).expect("it is there");
    node.spec.location.at(level).unwrap_or_default().to_owned()
}

/// Free nodes of each domain, by looking at every node.
fn recount(cluster: &Cluster, gang: &GangShape, level: Level) -> BTreeMap<String, u32> {
    let mut counts = BTreeMap::new();
    for node in cluster.nodes().filter(|node| node.has_room_for_share_of(gang)) {
        *counts.entry(domain(cluster, node.id, level)).or_insert(0) += 1;
    }
    counts
}

fn check(cluster: &Cluster, gang: &GangShape, placed: Option<&[Share]>) {
    let request = gang.topology;
    let whole = |level: Level, size: u32| {
        recount(cluster, gang, level).values().map(|count| count / size * size).sum::<u32>() >= gang.nodes.get()
    };
    let largest = |level| recount(cluster, gang, level).values().copied().max().unwrap_or(0);
    let fits = match (request.require, request.segment) {
        (Some(level), _) => largest(level) >= gang.nodes.get(),
        (None, Some(segment)) => whole(segment.level, segment.nodes.get()),
        (None, None) => whole(Level::Block, 1),
    };
    assert_eq!(placed.is_some(), fits, "{gang:?}");
    let Some(shares) = placed else { return };
    let nodes: BTreeSet<NodeId> = shares.iter().map(|share| share.node).collect();
    assert_eq!(u32::try_from(nodes.len()), Ok(gang.nodes.get()));
    let domains = |shares: &[Share], level| -> BTreeSet<String> {
        shares.iter().map(|share| domain(cluster, share.node, level)).collect()
    };
    if let Some(level) = request.require {
        assert_eq!(domains(shares, level).len(), 1);
    }
    let is_free = request.require.is_none() && request.segment.is_none() && gang.nodes.get() > 1;
    if is_free && largest(Level::Rack) >= gang.nodes.get() {
        let racks = domains(shares, Level::Rack);
        let counts = recount(cluster, gang, Level::Rack);
        let tightest = counts.values().filter(|count| **count >= gang.nodes.get()).min();
        assert_eq!((racks.len(), counts.get(racks.first().expect("one"))), (1, tightest), "the tightest rack");
    }
    if let Some(segment) = request.segment {
        let size = usize::try_from(segment.nodes.get()).expect("small");
        assert!(shares.chunks(size).all(|chunk| domains(chunk, segment.level).len() == 1), "segments in rank order");
    }
    let order: Vec<String> = shares.iter().map(|share| domain(cluster, share.node, Level::Rack)).collect();
    let runs = 1 + order.windows(2).filter(|pair| pair[0] != pair[1]).count();
    assert_eq!(runs, order.iter().collect::<BTreeSet<_>>().len(), "racks stay together: {order:?}");
}

fn request(random: &mut Dice, nodes: u32) -> TopologyRequest {
    let level = |random: &mut Dice| if random.below(2) == 0 { Level::Rack } else { Level::Block };
    match random.below(4) {
        0 => TopologyRequest { require: Some(level(random)), ..TopologyRequest::default() },
        1 if nodes.is_multiple_of(2) => {
            let segment = Segment { nodes: NonZeroU32::new(2).expect("two"), level: level(random) };
            TopologyRequest { segment: Some(segment), ..TopologyRequest::default() }
        }
        _ => TopologyRequest::default(),
    }
}

/// Proves A-5 for gangs bound by the network, on random clusters that fill, empty, drain and move.
#[test]
fn placements_keep_their_promise_and_counts_equal_a_recount() {
    for seed in 1..200 {
        let mut random = Dice(seed);
        let mut cluster = cluster(24, 4, 3);
        let mut held: Vec<Vec<Share>> = Vec::new();
        for _ in 0..60 {
            let nodes = 1 + random.below(8);
            let topology = request(&mut random, nodes);
            let gang = gang(nodes, [1, 3, 8][usize::try_from(random.below(3)).expect("small")], topology);
            let placed = place(&cluster, &gang);
            check(&cluster, &gang, placed.as_deref());
            placed.iter().flatten().for_each(|share| cluster.take(share));
            held.extend(placed);
            if !held.is_empty() && random.below(2) == 0 {
                let ended = held.swap_remove(usize::try_from(random.below(8)).expect("small") % held.len());
                ended.iter().for_each(|share| cluster.release(share));
            }
            let (node, change) = (NodeId(random.below(24)), random.below(4));
            cluster.change_standing(Timestamp::EPOCH, node, |standing| match change {
                0 => standing.is_draining = true,
                1 => standing.is_lost = true,
                _ => *standing = Standing::default(),
            });
        }
        for devices in 1..=8 {
            let gang = gang(1, devices, TopologyRequest::default());
            let recounted = recount(&cluster, &gang, Level::Rack);
            for nodes in 1..=4 {
                let racks = cluster.topology().domains_with_room_for(Some(Level::Rack), &gang, nodes);
                let racks: Vec<&str> = racks.map(|rack| &*rack.name).collect();
                let fitting = recounted.iter().filter(|(_, room)| **room >= nodes);
                let mut fitting: Vec<(u32, &str)> = fitting.map(|(rack, room)| (*room, rack.as_str())).collect();
                fitting.sort_unstable();
                let tightest: Vec<&str> = fitting.into_iter().map(|(_, rack)| rack).collect();
                assert_eq!(racks, tightest, "racks with {nodes} nodes of {devices} free (seed {seed})");
            }
        }
        assert_eq!(cluster, rebuilt(&cluster, &held.concat()), "the indices follow from the nodes alone (seed {seed})");
    }
}

fn rebuilt(cluster: &Cluster, held: &[Share]) -> Cluster {
    let mut other = Cluster::default();
    let held: Vec<&Share> = held.iter().collect();
    for node in cluster.nodes() {
        let id = other.join(node.spec.clone(), &held);
        other.change_standing(Timestamp::EPOCH, id, |standing| *standing = node.standing);
    }
    other
}

#[test]
fn a_node_that_puts_its_rack_elsewhere_is_refused_unless_it_is_alone_there() {
    let mut cluster = cluster(5, 4, 1);
    let moved = |rack: &str| [(Level::Rack, rack.to_owned()), (Level::Block, "b9".to_owned())].into_iter().collect();
    let message = cluster.admits(&spec(2, moved("r0"))).expect_err("r0 is in b0").to_string();
    assert_eq!(message, "n2 says that rack r0 lies in block b9, but n0 says in block b0");
    let nowhere = spec(7, [(Level::Rack, "r0".to_owned())].into_iter().collect());
    assert!(matches!(cluster.admits(&nowhere), Err(Refusal::Misplaced(_))), "a rack is in a block or isn't");
    assert_eq!(cluster.admits(&spec(4, moved("r1"))), Ok(()), "n4 is alone in r1 and takes it along");
    cluster.join(spec(4, moved("r1")), &[]);
    assert_eq!(cluster, rebuilt(&cluster, &[]));
}
