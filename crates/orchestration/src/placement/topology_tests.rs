//! The tree of domains against a plain recount, and placements against their guarantees, on random clusters.

use std::collections::{BTreeMap, BTreeSet};
use std::num::NonZeroU32;

use gangline_base::{Bytes, GangShape, Level, NodeId, NodeName, PoolName, Segment, Timestamp, TopologyRequest};

use crate::fixture::{self, Dice};
use crate::{Cluster, ExternalUsage, Location, Node, NodeCapacity, NodeCondition, NodeSpec, Refusal, Share, placement};

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

/// Builds racks of `in_rack` nodes and blocks of `in_block` racks.
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

/// Counts free nodes of each domain by visiting every node.
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
            cluster.change_condition(Timestamp::EPOCH, node, |condition| match change {
                0 => condition.is_draining = true,
                1 => condition.is_lost = true,
                _ => *condition = NodeCondition::default(),
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
        other.change_condition(Timestamp::EPOCH, id, |condition| *condition = node.condition);
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

/// Searching with shares released gives the same answer as searching a copy without these shares, and leaves
/// the cluster unchanged.
#[test]
fn asking_with_shares_released_equals_asking_a_copy_without_them() {
    for seed in 0..200 {
        let mut dice = Dice(seed);
        let mut cluster = cluster(24, dice.of(&[3, 4]), dice.of(&[2, 3]));
        let mut attempts: Vec<Vec<Share>> = Vec::new();
        for _ in 0..dice.below(12) {
            let require = dice.of(&[None, Some(Level::Rack), Some(Level::Block)]);
            let held = gang(1 + dice.below(4), 1 + dice.below(8), TopologyRequest { require, ..Default::default() });
            let Some(shares) = place(&cluster, &held) else { continue };
            shares.iter().for_each(|share| cluster.take(share));
            attempts.push(shares);
        }
        for _ in 0..dice.below(6) {
            let node = NodeId(dice.below(24));
            let outside = ExternalUsage { accelerators: dice.below(5), ..ExternalUsage::default() };
            match dice.below(3) {
                0 => cluster.observe(Timestamp::EPOCH, node, outside),
                1 => cluster.change_condition(Timestamp::EPOCH, node, |condition| condition.is_draining = true),
                _ => {
                    let mut smaller = cluster.node(node).expect("it is there").spec.clone();
                    smaller.capacity.accelerators = 4;
                    let held: Vec<&Share> = attempts.iter().flatten().collect();
                    cluster.join(smaller, &held);
                }
            }
        }
        for shares in &attempts {
            let require = dice.of(&[None, Some(Level::Rack), Some(Level::Block)]);
            let wanted = gang(1 + dice.below(8), 1 + dice.below(8), TopologyRequest { require, ..Default::default() });
            let mut copy = cluster.clone();
            shares.iter().for_each(|share| copy.release(share));
            let before = cluster.clone();
            assert_eq!(
                cluster.with_released(shares, |free| place(free, &wanted)),
                place(&copy, &wanted),
                "seed {seed}"
            );
            assert_eq!(cluster, before, "seed {seed}");
        }
    }
}
