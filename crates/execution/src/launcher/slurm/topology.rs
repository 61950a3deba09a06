//! Reads Slurm's `topology.conf` as the network domains of nodes. Both of its forms (topology.conf(5)):
//!
//! - a tree of switches: a switch with nodes is a rack, those above are a block and a pod, and a wider one
//!   that holds all others is the cluster itself;
//! - blocks of nodes: a block is a rack, and the groups of blocks that `BlockSizes` defines are a block and a
//!   pod.
//!
//! A switch in two places, a circle of switches, and unconnected nodes are refused with their line: the
//! engine's domains are one tree.

use std::collections::BTreeMap;

use gangline_base::{Level, NodeName};

use super::hostlist;

/// Levels of switches or blocks, starting at those with nodes.
const LEVELS: [Level; 3] = [Level::Rack, Level::Block, Level::Pod];
/// Maximum size of the file.
const BYTES_MAX: usize = 16 << 20;

/// For each node, its domain at each level.
pub type Places = BTreeMap<String, Vec<(Level, String)>>;

/// An invalid line, or one that contradicts another.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{line}: {message}")]
pub struct InvalidTopology {
    /// The line, from 1.
    pub line: usize,
    /// What is wrong with it.
    pub message: String,
}

fn invalid(line: usize, message: impl Into<String>) -> InvalidTopology {
    InvalidTopology { line, message: message.into() }
}

/// A switch or a block.
#[derive(Debug)]
struct Group {
    line: usize,
    name: String,
    nodes: Vec<String>,
    switches: Vec<String>,
    is_block: bool,
}

/// Parses the text of a file.
///
/// # Errors
/// [`InvalidTopology`]: the first invalid line.
pub fn read_topology(text: &str) -> Result<Places, InvalidTopology> {
    if text.len() > BYTES_MAX {
        return Err(invalid(1, format!("the file is longer than {BYTES_MAX} bytes")));
    }
    let mut groups = Vec::new();
    let mut sizes: Option<(usize, Vec<usize>)> = None;
    for (line, words) in statements(text) {
        match words.iter().find(|(key, _)| key == "blocksizes") {
            Some((_, value)) if words.len() == 1 => sizes = Some((line, block_sizes(line, value)?)),
            _ => groups.push(group(line, &words)?),
        }
    }
    let (Some(first), Some(last)) = (groups.first(), groups.last()) else {
        return Err(invalid(1, "the file names no switch and no block"));
    };
    if let Some(other) = groups.iter().find(|group| group.is_block != first.is_block) {
        return Err(invalid(other.line, format!("has both switches and blocks; line {} has the others", first.line)));
    }
    check_unique(&groups)?;
    match (first.is_block, sizes) {
        (true, sizes) => blocks(&groups, sizes),
        (false, None) => tree(&groups),
        (false, Some((line, _))) => {
            Err(invalid(line, format!("BlockSizes belongs to blocks, but line {} has a switch", last.line)))
        }
    }
}

/// Returns lines as `key=value` words with keys in lower case, without comments; joins lines that end with \.
fn statements(text: &str) -> Vec<(usize, Vec<(String, String)>)> {
    let mut statements: Vec<(usize, String)> = Vec::new();
    let mut is_continued = false;
    for (number, line) in (1..).zip(text.lines()) {
        let line = line.split('#').next().unwrap_or_default().trim();
        let (line, continues) = line.strip_suffix('\\').map_or((line, false), |line| (line, true));
        match statements.last_mut().filter(|_| is_continued) {
            Some((_, joined)) => *joined = format!("{joined} {line}"),
            None => statements.push((number, line.to_owned())),
        }
        is_continued = continues;
    }
    let word = |word: &str| {
        let (key, value) = word.split_once('=').unwrap_or((word, ""));
        (key.to_ascii_lowercase(), value.to_owned())
    };
    let statements = statements.into_iter().map(|(line, text)| (line, text.split_whitespace().map(word).collect()));
    statements.filter(|(_, words): &(usize, Vec<_>)| !words.is_empty()).collect()
}

fn group(line: usize, words: &[(String, String)]) -> Result<Group, InvalidTopology> {
    let mut group = Group { line, name: String::new(), nodes: Vec::new(), switches: Vec::new(), is_block: false };
    for (key, value) in words {
        let expanded = || hostlist::expand(value).map_err(|message| invalid(line, message));
        match key.as_str() {
            "switchname" | "blockname" => {
                group.name.clone_from(value);
                group.is_block = key == "blockname";
            }
            "nodes" => group.nodes = expanded()?,
            "switches" => group.switches = expanded()?,
            "linkspeed" => {}
            other => {
                let expected = "SwitchName, BlockName, Nodes, Switches, LinkSpeed or BlockSizes";
                return Err(invalid(line, format!("\"{other}\" is not one of {expected}")));
            }
        }
    }
    for name in [&group.name].into_iter().chain(&group.nodes) {
        NodeName::new(name).map_err(|error| invalid(line, error.to_string()))?;
    }
    match (group.nodes.is_empty(), group.switches.is_empty()) {
        (true, true) => Err(invalid(line, format!("{} has no nodes and no switches", group.name))),
        (false, false) => Err(invalid(line, format!("{} has both nodes and switches: write two", group.name))),
        (_, false) if group.is_block => Err(invalid(line, format!("block {} has switches", group.name))),
        _ => Ok(group),
    }
}

fn block_sizes(line: usize, value: &str) -> Result<Vec<usize>, InvalidTopology> {
    let sizes: Option<Vec<usize>> = value.split(',').map(|size| size.parse().ok().filter(|size| *size > 0)).collect();
    let sizes = sizes.ok_or_else(|| invalid(line, format!("BlockSizes={value} is not a list of numbers of nodes")))?;
    if sizes.windows(2).any(|pair| pair[1] <= pair[0] || !pair[1].is_multiple_of(pair[0])) {
        return Err(invalid(line, format!("BlockSizes={value}: each has to be a multiple of the one before")));
    }
    if sizes.len() > LEVELS.len() {
        return Err(invalid(line, format!("BlockSizes={value} has more than {} sizes", LEVELS.len())));
    }
    Ok(sizes)
}

/// Checks that no name and no node is in two places.
fn check_unique(groups: &[Group]) -> Result<(), InvalidTopology> {
    let mut names: BTreeMap<&str, usize> = BTreeMap::new();
    let mut members: BTreeMap<(bool, &str), &Group> = BTreeMap::new();
    for group in groups {
        if let Some(line) = names.insert(&group.name, group.line) {
            return Err(invalid(group.line, format!("{} is described in line {line} already", group.name)));
        }
        let nodes = group.nodes.iter().map(|name| (false, name.as_str()));
        for member in nodes.chain(group.switches.iter().map(|name| (true, name.as_str()))) {
            if let Some(other) = members.insert(member, group) {
                let message = format!("{} is in {} and in {} (line {})", member.1, group.name, other.name, other.line);
                return Err(invalid(group.line, message));
            }
        }
    }
    Ok(())
}

/// Returns blocks, and groups of them: for each further size, as many blocks as it holds of the first.
fn blocks(groups: &[Group], sizes: Option<(usize, Vec<usize>)>) -> Result<Places, InvalidTopology> {
    let sizes = sizes.map(|(_, sizes)| sizes).unwrap_or_default();
    let mut places = Places::new();
    for (at, group) in groups.iter().enumerate() {
        let mut domains = vec![(LEVELS[0], group.name.clone())];
        let base = sizes.first().copied().unwrap_or(1);
        for (level, size) in LEVELS.into_iter().zip(&sizes).skip(1) {
            let count = size / base;
            let first = at / count * count;
            let last = (first + count).min(groups.len()) - 1;
            domains.push((level, format!("{}..{}", groups[first].name, groups[last].name)));
        }
        for (_, name) in &domains {
            NodeName::new(name).map_err(|error| invalid(group.line, error.to_string()))?;
        }
        places.extend(group.nodes.iter().map(|node| (node.clone(), domains.clone())));
    }
    Ok(places)
}

fn tree(groups: &[Group]) -> Result<Places, InvalidTopology> {
    let by_name: BTreeMap<&str, &Group> = groups.iter().map(|group| (group.name.as_str(), group)).collect();
    let mut parent: BTreeMap<&str, &Group> = BTreeMap::new();
    for group in groups {
        for switch in &group.switches {
            if !by_name.contains_key(switch.as_str()) {
                return Err(invalid(
                    group.line,
                    format!("{} has switch {switch}, which no line describes", group.name),
                ));
            }
            parent.insert(switch, group);
        }
    }
    let above = |group: &Group| parent.get(group.name.as_str()).copied();
    let mut heights: BTreeMap<&str, usize> = BTreeMap::new();
    for leaf in groups {
        let mut current = leaf;
        for height in 0..=groups.len() {
            let known = heights.entry(&current.name).or_insert(0);
            *known = height.max(*known);
            let Some(next) = above(current) else { break };
            if height == groups.len() {
                return Err(invalid(leaf.line, format!("{} is above itself: the switches form a circle", leaf.name)));
            }
            current = next;
        }
    }
    let mut roots = groups.iter().filter(|group| above(group).is_none());
    if let (Some(first), Some(second)) = (roots.next(), roots.next()) {
        let (a, b) = (&first.name, &second.name);
        let message =
            format!("nothing connects {b} with {a} (line {}): add SwitchName=core Switches={a},{b}", first.line);
        return Err(invalid(second.line, message));
    }
    let mut places = Places::new();
    for leaf in groups.iter().filter(|group| !group.nodes.is_empty()) {
        let mut domains = Vec::new();
        let mut current = Some(leaf);
        while let Some(group) = current {
            match LEVELS.get(heights[group.name.as_str()]) {
                Some(level) => domains.push((*level, group.name.clone())),
                None if above(group).is_none() => {}
                None => {
                    let message = format!("{} has more than {} levels of switches below", group.name, LEVELS.len());
                    return Err(invalid(group.line, message));
                }
            }
            current = above(group);
        }
        places.extend(leaf.nodes.iter().map(|node| (node.clone(), domains.clone())));
    }
    Ok(places)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(places: &Places, node: &str) -> String {
        let domains = places.get(node).unwrap_or_else(|| panic!("{node} is missing"));
        domains.iter().map(|(level, name)| format!("{level}={name}")).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn a_tree_of_switches_gives_racks_blocks_and_pods() {
        let text = "# a fat tree\nSwitchName=s0 Nodes=tux[0-3]\nswitchname=s1 nodes=tux[4-5],\\\n  \nSwitchName=s2 Nodes=tux6 LinkSpeed=100\n\
            SwitchName=spine0 Switches=s[0-1]\nSwitchName=spine1 Switches=s2\nSwitchName=core Switches=spine[0-1]\n";
        let text = text.replace("tux[4-5],\\\n  \n", "tux[4-5] \\\n LinkSpeed=9\n");
        let places = read_topology(&text).expect("sound");
        assert_eq!(places.len(), 7);
        assert_eq!(shown(&places, "tux3"), "rack=s0 block=spine0 pod=core");
        assert_eq!(shown(&places, "tux5"), "rack=s1 block=spine0 pod=core");
        assert_eq!(shown(&places, "tux6"), "rack=s2 block=spine1 pod=core");
        // A leaf next to a spine isn't a block of its own.
        let uneven =
            "SwitchName=a Nodes=n1\nSwitchName=b Nodes=n2\nSwitchName=m Switches=a\nSwitchName=top Switches=m,b";
        let places = read_topology(uneven).expect("sound");
        assert_eq!(shown(&places, "n1"), "rack=a block=m pod=top");
        assert_eq!(shown(&places, "n2"), "rack=b pod=top");
    }

    #[test]
    fn a_fourth_level_is_the_cluster_itself() {
        let text = "SwitchName=l Nodes=n1\nSwitchName=m Switches=l\nSwitchName=u Switches=m\nSwitchName=top Switches=u";
        assert_eq!(shown(&read_topology(text).expect("sound"), "n1"), "rack=l block=m pod=u");
        let refused = read_topology(&format!("{text}\nSwitchName=x Switches=top")).expect_err("five levels");
        assert_eq!(refused.to_string(), "4: top has more than 3 levels of switches below");
    }

    #[test]
    fn blocks_are_racks_and_their_sizes_join_them() {
        let text =
            "BlockName=b1 Nodes=n[01-18]\nBlockName=b2 Nodes=n[19-36]\nBlockName=b3 Nodes=n[37-54]\nBlockSizes=18,36\n";
        let places = read_topology(text).expect("sound");
        assert_eq!(shown(&places, "n18"), "rack=b1 block=b1..b2");
        assert_eq!(shown(&places, "n19"), "rack=b2 block=b1..b2");
        assert_eq!(shown(&places, "n54"), "rack=b3 block=b3..b3");
        let alone = read_topology("BlockName=b1 Nodes=n1").expect("sound");
        assert_eq!(shown(&alone, "n1"), "rack=b1");
    }

    #[test]
    fn what_is_no_tree_is_refused_with_its_line() {
        let check = |text: &str, expected: &str| {
            assert_eq!(read_topology(text).expect_err("a refusal").to_string(), expected);
        };
        check("\n# nothing\n", "1: the file names no switch and no block");
        check("SwitchName=a Nodes=n[1", "1: \"n[1\" has a [ without a ]");
        check("SwitchName=a\n", "1: a has no nodes and no switches");
        check(
            "SwitchName=a Node=n1",
            "1: \"node\" is not one of SwitchName, BlockName, Nodes, Switches, LinkSpeed or BlockSizes",
        );
        check("SwitchName=a Nodes=n1\nSwitchName=a Nodes=n2", "2: a is described in line 1 already");
        check("SwitchName=a Nodes=n1\nSwitchName=b Nodes=n1", "2: n1 is in b and in a (line 1)");
        check("SwitchName=a Nodes=n1\nSwitchName=b Switches=c", "2: b has switch c, which no line describes");
        check("SwitchName=a Switches=b\nSwitchName=b Switches=a", "1: a is above itself: the switches form a circle");
        let apart = "SwitchName=a Nodes=n1\nSwitchName=b Nodes=n2";
        check(apart, "2: nothing connects b with a (line 1): add SwitchName=core Switches=a,b");
        check("SwitchName=a Nodes=n1\nBlockName=b Nodes=n2", "2: has both switches and blocks; line 1 has the others");
        check("BlockName=b Nodes=n1\nBlockSizes=2,3", "2: BlockSizes=2,3: each has to be a multiple of the one before");
        check("SwitchName=a Nodes=n1\nBlockSizes=4", "2: BlockSizes belongs to blocks, but line 1 has a switch");
        check("SwitchName=a/b Nodes=n1", &format!("1: {}", NodeName::new("a/b").expect_err("no name")));
    }
}
