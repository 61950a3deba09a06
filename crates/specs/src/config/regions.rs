//! Regions of a provider, which nodes and object storage are in: reading across them is slower, and has a price of its own.

use std::collections::BTreeMap;

use gangline_base::NodeName;

/// The longest name of a region.
const LENGTH_MAX: usize = 64;

/// Where nodes are.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Regions {
    /// The regions of nodes that say theirs.
    pub nodes: BTreeMap<NodeName, String>,
    /// The region of all others; none if it isn't known.
    pub others: Option<String>,
}

impl Regions {
    /// Returns the region of a node, if it is known.
    #[must_use]
    pub fn of(&self, node: &NodeName) -> Option<&str> {
        self.nodes.get(node).or(self.others.as_ref()).map(String::as_str)
    }
}

/// Checks the name of a region; providers write them in letters, digits and dashes.
pub(super) fn name(written: String) -> Result<String, String> {
    let is_sound = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
    if written.is_empty() || written.len() > LENGTH_MAX || !written.bytes().all(is_sound) {
        return Err(format!(
            "the region {written:?} has to be 1 to {LENGTH_MAX} letters, digits, dashes, dots or underscores, such as us-east-1"
        ));
    }
    Ok(written)
}

#[cfg(test)]
mod tests {
    use crate::config::Config;

    #[test]
    fn a_node_is_in_its_own_region_or_in_that_of_the_cluster() {
        let node = |name: &str, rest: &str| format!("[[node]]\nname = '{name}'\naccelerators = 'cpu:1'\n{rest}\n");
        let text = format!("region = 'us-east-1'\n{}{}", node("n1", ""), node("n2", "region = 'eu-west-1'"));
        let regions = Config::parse(&text).expect("a sound file").billing.storage.regions;
        let of = |name: &str| regions.of(&gangline_base::NodeName::new(name).expect("a name")).map(str::to_owned);
        assert_eq!((of("n1").as_deref(), of("n2").as_deref()), (Some("us-east-1"), Some("eu-west-1")));
        assert_eq!(
            Config::default().billing.storage.regions.of(&gangline_base::NodeName::new("n1").expect("a name")),
            None
        );
        let refused = |text: &str| Config::parse(text).expect_err("a refusal").to_string();
        assert!(refused("region = ''").contains("the region \"\" has to be 1 to 64"));
        assert!(refused(&node("n1", "region = 'x y'")).starts_with("node \"n1\": the region \"x y\""));
    }
}
