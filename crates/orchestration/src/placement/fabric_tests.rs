//! The cost of an all-reduce against figures computed by hand, and the placements that follow from it.

use std::collections::BTreeMap;
use std::num::NonZeroU32;

use gangline_base::{Bytes, Level, NodeName, PoolName};

use crate::fixture;
use crate::placement;
use crate::{
    Closeness, Cluster, Configuration, Fabric, FabricKind, InvalidFabric, Location, Node, NodeCapacity, NodeSpec, Share,
};

fn positive(number: u32) -> NonZeroU32 {
    NonZeroU32::new(number).expect("at least one")
}

/// Returns a fabric with 8 x 400 Gbit/s per node and a quarter of that between blocks.
fn fabric() -> Fabric {
    let gbps = [(Level::Node, 3_600), (Level::Rack, 400), (Level::Block, 100)];
    let gbps = gbps.into_iter().map(|(level, gbps)| (level, positive(gbps))).collect();
    Fabric { kind: FabricKind::FatTree, gbps, core_gbps: None, rails: None }
}

fn join(cluster: &mut Cluster, name: &str, places: &[(Level, &str)]) {
    let accelerator = fixture::kind();
    let location: Location = places.iter().map(|(level, name)| (*level, (*name).to_owned())).collect();
    let name = NodeName::new(name).expect("a name");
    let capacity = NodeCapacity { pool: PoolName::default(), accelerator, accelerators: 8, cpus: 0, memory: Bytes(0) };
    cluster.join(NodeSpec { name, capacity, location, layout: Default::default() }, &[]);
}

/// Racks with these numbers of nodes, all in one block.
fn racks(sizes: &[u32], fabric: Option<Fabric>) -> Cluster {
    let mut cluster = Cluster::default();
    cluster.configure(&Configuration { fabric, ..Configuration::default() });
    for (rack, size) in sizes.iter().enumerate() {
        for number in 0..*size {
            join(
                &mut cluster,
                &format!("r{rack}n{number}"),
                &[(Level::Rack, &format!("r{rack}")), (Level::Block, "b")],
            );
        }
    }
    cluster
}

fn place(cluster: &Cluster, nodes: u32) -> (Vec<Share>, Option<Closeness>) {
    let room = placement::find_room(cluster, &fixture::gang(nodes, 8), &Node::free_count).expect("there is room");
    (room.shares, room.closeness)
}

/// Returns how many nodes of each rack were taken.
fn in_racks(cluster: &Cluster, shares: &[Share]) -> Vec<usize> {
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    for share in shares {
        let node = cluster.node(share.node).expect("it is there");
        *counts.entry(node.spec.location.at(Level::Rack).expect("in a rack")).or_insert(0) += 1;
    }
    counts.into_values().collect()
}

#[test]
fn an_all_reduce_costs_what_the_formulas_say() {
    let cluster = racks(&[4, 4], Some(fabric()));
    let check = |nodes: &[usize], expected: f64| {
        let all: Vec<&Node> = cluster.nodes().collect();
        let chosen: Vec<&Node> = nodes.iter().map(|at| all[*at]).collect();
        let shape = fixture::gang(u32::try_from(nodes.len()).expect("few"), 8);
        let cost = fabric().all_reduce(&shape, &chosen);
        assert!((cost / expected - 1.0).abs() < 1e-12, "{nodes:?}: {cost} is not {expected}");
    };
    // One node: a ring over its 8 devices.
    check(&[0], 2.0 * 7.0 / 8.0 / 3_600.0);
    // One rack: a ring over 32 ranks through 8 ports of 400.
    check(&[0, 1, 2, 3], 2.0 * 31.0 / 32.0 / 3_200.0);
    // Two racks: 8 devices, 4 nodes, 2 racks that exchange a quarter for each node: less than a ring at 800.
    let hierarchy = 2.0 * 7.0 / 8.0 / 3_600.0 + 2.0 * 3.0 / 4.0 / 3_200.0 + 2.0 / 2.0 / (4.0 * 800.0);
    assert!(hierarchy < 2.0 * 63.0 / 64.0 / 800.0);
    check(&[0, 1, 2, 3, 4, 5, 6, 7], hierarchy);
    // Three and one: the single node exchanges all of its data, and a ring is no better.
    let uneven: f64 = 2.0 * 7.0 / 8.0 / 3_600.0 + 2.0 * 2.0 / 3.0 / 3_200.0 + 2.0 / 2.0 / 800.0;
    check(&[0, 1, 2, 4], uneven.min(2.0 * 31.0 / 32.0 / 800.0));
}

#[test]
fn a_gang_is_cut_into_equal_parts_only_where_that_is_much_faster() {
    let check = |fabric: Option<Fabric>, sizes: &[u32], nodes: u32, expected: &[usize]| {
        let cluster = racks(sizes, fabric);
        let (shares, _) = place(&cluster, nodes);
        assert_eq!(in_racks(&cluster, &shares), expected, "{nodes} nodes in racks of {sizes:?}");
    };
    check(None, &[7, 6], 8, &[7, 1]);
    check(Some(fabric()), &[7, 6], 8, &[4, 4]);
    let non_blocking =
        Fabric { gbps: [(Level::Node, positive(3_600)), (Level::Block, positive(400))].into(), ..fabric() };
    check(Some(non_blocking), &[7, 6], 8, &[7, 1]);
    check(Some(fabric()), &[7, 6], 6, &[6]);
    check(Some(fabric()), &[6, 3], 8, &[6, 2]);
    check(Some(fabric()), &[6, 3, 3, 3, 3], 12, &[6, 3, 3]);
}

#[test]
fn the_reason_names_the_domain_and_what_it_is_worth() {
    let mut cluster = racks(&[2, 4], Some(fabric()));
    // The fullest nodes are the two of r0; the two emptier ones fit only beside others of r1.
    let (shares, close) = place(&cluster, 4);
    assert_eq!(in_racks(&cluster, &shares), [4]);
    let close = close.expect("the network is known");
    assert_eq!(close.domain, Some((Level::Rack, "r1".to_owned())));
    let text = close.to_string();
    assert!(text.starts_with("in rack r1; all-reduce about ") && text.ends_with("estimated"), "{text}");
    assert!(close.speedup_percent.is_some_and(|percent| percent > 150), "{text}");
    cluster.configure(&Configuration::default());
    assert_eq!(place(&cluster, 4).1.expect("known").to_string(), "in rack r1");
    assert_eq!(place(&cluster, 5).1.expect("known").to_string(), "in block b");
    assert_eq!(place(&cluster, 1).1, None);
}

#[test]
fn racks_mean_nothing_to_a_fabric_of_rails() {
    let gbps = [(Level::Node, 3_600), (Level::RailGroup, 400), (Level::Block, 100)];
    let gbps = gbps.into_iter().map(|(level, gbps)| (level, positive(gbps))).collect();
    let rails = Fabric { kind: FabricKind::RailOptimised, gbps, core_gbps: None, rails: Some(positive(8)) };
    let mut cluster = Cluster::default();
    let place_of = [("s0", "g0", 3), ("s1", "g0", 1), ("s2", "g1", 2)];
    for (rack, group, size) in place_of {
        for number in 0..size {
            let places = [(Level::Rack, rack), (Level::RailGroup, group), (Level::Block, "b")];
            join(&mut cluster, &format!("{rack}n{number}"), &places);
        }
    }
    // By racks: the tightest for two is s2. By rails too, since g1 has just two nodes.
    let domain = |cluster: &Cluster, nodes| place(cluster, nodes).1.and_then(|close| close.domain);
    assert_eq!(domain(&cluster, 3), Some((Level::Rack, "s0".to_owned())));
    cluster.configure(&Configuration { fabric: Some(rails), ..Configuration::default() });
    let (shares, close) = place(&cluster, 4);
    assert_eq!(in_racks(&cluster, &shares), [3, 1]);
    assert_eq!(close.and_then(|close| close.domain), Some((Level::RailGroup, "g0".to_owned())));
    assert_eq!(fabric_cost_of(&cluster, &["s0n0", "s1n0"]), fabric_cost_of(&cluster, &["s0n0", "s0n1"]));
    assert!(fabric_cost_of(&cluster, &["s0n0", "s2n0"]) > 1.5 * fabric_cost_of(&cluster, &["s0n0", "s1n0"]));
}

fn fabric_cost_of(cluster: &Cluster, names: &[&str]) -> f64 {
    let node = |name: &&str| cluster.node(cluster.id_of(&NodeName::new(name).expect("a name")).expect("known"));
    let nodes: Vec<&Node> = names.iter().filter_map(node).collect();
    let shape = fixture::gang(u32::try_from(nodes.len()).expect("few"), 8);
    cluster.fabric().expect("it is configured").all_reduce(&shape, &nodes)
}

#[test]
fn contradictory_bandwidths_are_refused() {
    let check = |change: &dyn Fn(&mut Fabric), expected: &str| {
        let mut fabric = fabric();
        change(&mut fabric);
        let message = fabric.check().expect_err("a refusal").to_string();
        assert!(message.contains(expected), "{message:?} does not say {expected:?}");
    };
    check(&|f| f.gbps.retain(|level, _| *level != Level::Node), "set node_gbps");
    check(&|f| f.gbps.retain(|level, _| *level == Level::Node), "no bandwidth between nodes");
    check(&|f| f.kind = FabricKind::RailOptimised, "needs rail_gbps");
    check(&|f| f.core_gbps = Some(positive(101)), "101 Gbit/s within a cluster, but only 100 within a block");
    let faster = |fabric: &mut Fabric| fabric.gbps.extend([(Level::Block, positive(401))]);
    check(&faster, "401 Gbit/s within a block, but only 400 within a rack");
    let configuration =
        Configuration { fabric: Some(Fabric { gbps: BTreeMap::new(), ..fabric() }), ..Default::default() };
    assert_eq!(configuration.check(), Err(InvalidFabric::NoNode.into()));
}
