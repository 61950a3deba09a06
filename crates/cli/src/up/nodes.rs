//! The nodes of a control plane: those that are named, this machine, or none where the launcher knows its own.

use gangline_base::{AcceleratorKind, Money, NodeName, PoolName};
use gangline_execution::inventory::{Inventory, this_layout, this_machine};
use gangline_orchestration::{Configuration, NodeCapacity};
use gangline_specs::config::{Config, NodeConfig, agree_on_prices, parse_accelerators};

use super::UpArgs;
use crate::agent::own_node_name;
use crate::failure::Failure;

pub(super) fn names(nodes: &[NodeConfig]) -> Vec<String> {
    nodes.iter().map(|node| node.name.to_string()).collect()
}

/// Returns the nodes, unless the launcher has them, and the rules by which they are shared, with one price for each kind.
pub(super) fn nodes_and_rules(
    config: &Config,
    args: &UpArgs,
    has_nodes: bool,
) -> Result<(Vec<NodeConfig>, Configuration), Failure> {
    let mut nodes = if has_nodes { no_nodes(config, args)? } else { nodes(config, args)? };
    let mut sharing = config.sharing.clone();
    agree_on_prices(&mut nodes, &mut sharing.prices);
    Ok((nodes, sharing))
}

/// Refuses named nodes if the launcher knows its own.
fn no_nodes(config: &Config, args: &UpArgs) -> Result<Vec<NodeConfig>, Failure> {
    if config.nodes.is_empty() && args.nodes.is_empty() {
        return Ok(Vec::new());
    }
    let message = "with --launcher slurm nodes are those that Slurm has: neither --node nor [[node]] may name others";
    Err(Failure::coded("G0505", message, "take them out"))
}

/// Returns the default price of an accelerator-hour.
pub(super) fn price(args: &UpArgs) -> Result<Option<Money>, Failure> {
    let price = args.price.as_deref().map(str::parse::<Money>).transpose();
    price.map_err(|error| Failure::coded("G0505", error.to_string(), "write it as 2.49"))
}

/// Returns the named nodes; if none is named, this machine.
fn nodes(config: &Config, args: &UpArgs) -> Result<Vec<NodeConfig>, Failure> {
    let refused = |message: String| {
        Failure::coded("G0505", message, "write a node as NAME=KIND:COUNT, such as box=H100:8 or n1=cpu:2")
    };
    let price = price(args)?;
    let inventory = this_machine();
    let mut nodes: Vec<NodeConfig> = Vec::new();
    for text in &args.nodes {
        let (name, accelerators) = text.split_once('=').ok_or_else(|| refused(format!("\"{text}\" is not a node")))?;
        let (accelerator, count) = parse_accelerators(accelerators).map_err(refused)?;
        nodes.push(node(name, accelerator, count, &inventory).map_err(refused)?);
    }
    if nodes.is_empty() {
        nodes.clone_from(&config.nodes);
    }
    if nodes.is_empty() {
        let (kind, count) = (AcceleratorKind(inventory.accelerators.kind.clone()), inventory.accelerators.count);
        let own = node(&own_node_name(&inventory), kind, count, &inventory).map_err(refused)?;
        nodes.push(NodeConfig { layout: this_layout(&inventory), ..own });
    }
    let mut names: Vec<&NodeName> = nodes.iter().map(|node| &node.name).collect();
    names.sort();
    if let Some(twice) = names.windows(2).find(|pair| pair[0] == pair[1]) {
        return Err(refused(format!("there are two nodes named \"{}\"", twice[0])));
    }
    for node in &mut nodes {
        node.price_per_hour = node.price_per_hour.or(price);
    }
    Ok(nodes)
}

fn node(
    name: &str,
    accelerator: AcceleratorKind,
    accelerators: u32,
    machine: &Inventory,
) -> Result<NodeConfig, String> {
    Ok(NodeConfig {
        name: NodeName::new(name).map_err(|error| error.to_string())?,
        capacity: NodeCapacity {
            pool: PoolName::default(),
            accelerator,
            accelerators,
            cpus: machine.cpus,
            memory: machine.memory,
        },
        location: Default::default(),
        layout: Default::default(),
        links_file: None,
        address: "127.0.0.1".to_owned(),
        price_per_hour: None,
    })
}
