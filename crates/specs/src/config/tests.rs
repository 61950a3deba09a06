//! Tests of configuration files: nodes, their places, and what is refused.

use super::*;

#[test]
fn a_file_becomes_nodes_with_prices() {
    let text = "listen = '127.0.0.1:0'\n[[node]]\nname = 'a'\naccelerators = 'H100:8'\nmemory = '2TiB'\nprice_per_accelerator_hour = '2.49'";
    let config = Config::parse(text).expect("a sound file");
    assert_eq!(config.nodes[0].capacity.accelerators, 8);
    assert!(config.nodes[0].capacity.pool.is_default());
    let serving = Config::parse(&text.replace("memory = '2TiB'", "pool = 'inference'")).expect("a sound file");
    assert_eq!(serving.nodes[0].capacity.pool.as_str(), "inference");
    assert_eq!(config.nodes[0].price_per_hour.map(Money::nano_dollars), Some(2_490_000_000));
}

#[test]
fn nodes_that_do_not_say_where_they_are_are_found_in_the_topology_file() {
    let text = "topology_file = 't.conf'\n[[node]]\nname='a'\naccelerators='cpu:1'\nrack='own'\n[[node]]\nname='b'\naccelerators='cpu:1'";
    let mut config = Config::parse(text).expect("a sound file");
    let missing = config.locate(&BTreeMap::new()).expect_err("b is nowhere").to_string();
    assert_eq!(missing, "node \"b\": the topology file doesn't name it, and it says nothing itself");
    let places = [("a", "r1"), ("b", "r2")].map(|(node, rack)| (node.to_owned(), vec![(Level::Rack, rack.to_owned())]));
    config.locate(&places.into()).expect("both are somewhere");
    let racks: Vec<_> = config.nodes.iter().map(|node| node.location.at(Level::Rack)).collect();
    assert_eq!(racks, [Some("own"), Some("r2")]);
}

#[test]
fn a_node_takes_only_a_description_of_as_many_accelerators_as_it_has() {
    let text = "[[node]]\nname='a'\naccelerators='H100:4'\nlinks_file='dgx.txt'";
    let mut node = Config::parse(text).expect("a sound file").nodes.remove(0);
    assert_eq!(node.links_file.as_deref(), Some("dgx.txt"));
    let layout = DeviceLayout::new(vec![vec![0, 0, 1, 1]]).expect("sound");
    node.join_devices(layout.clone(), 4).expect("as many");
    assert_eq!(node.layout, layout);
    let refused = node.join_devices(layout, 8).expect_err("more").to_string();
    assert_eq!(refused, "node \"a\": it has 4 accelerators, but its links_file describes 8");
}

#[test]
fn a_bad_file_says_where() {
    let check = |text: &str, part: &str| {
        let message = Config::parse(text).expect_err("a refusal").to_string();
        assert!(message.contains(part), "{message:?} does not name {part:?}");
    };
    check("lisen = 'x'", "lisen");
    check("[[node]]\nname = 'a'", "accelerators");
    check("[[node]]\nname = 'a/b'\naccelerators = 'cpu:2'", "a/b");
    check("[[node]]\nname = 'a'\naccelerators = 'cpu'", "KIND:COUNT");
    check("[[node]]\nname = 'a'\naccelerators = 'cpu:0'", "KIND:COUNT");
    check("[[node]]\nname = 'a'\naccelerators = 'cpu:1'\nprice_per_accelerator_hour = '-1'", "-1");
    check("[[node]]\nname='a'\naccelerators='cpu:1'\nprice_per_accelerator_hour='1000.01'", "mistake");
    check("[[node]]\nname='a'\naccelerators='cpu:1'\nrack='r 1'", "its rack");
    check("[[node]]\nname='a'\naccelerators='cpu:1'\npool='a/b'", "pool name \"a/b\"");
    let two = "[[node]]\nname='a'\naccelerators='cpu:1'\nrack='r'\nblock='b'\n[[node]]\nname='c'\naccelerators='cpu:1'\nrack='r'";
    check(two, "c says that rack r lies in nothing wider, but a says in block b");
    check("[[node]]\nname='a'\naccelerators='cpu:1'\n[[node]]\nname='a'\naccelerators='cpu:1'", "two nodes");
}
