//! The table `[fabric]` of the configuration file: the bandwidths of the network's levels.

use std::num::NonZeroU32;

use gangline_base::Level;
use gangline_orchestration::{Fabric, FabricKind};
use serde::Deserialize;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct FabricV1 {
    #[serde(default)]
    kind: KindV1,
    rails: Option<NonZeroU32>,
    node_gbps: Option<NonZeroU32>,
    nvlink_gbps: Option<NonZeroU32>,
    rack_gbps: Option<NonZeroU32>,
    rail_gbps: Option<NonZeroU32>,
    block_gbps: Option<NonZeroU32>,
    pod_gbps: Option<NonZeroU32>,
    core_gbps: Option<NonZeroU32>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum KindV1 {
    #[default]
    FatTree,
    RailOptimised,
}

impl From<FabricV1> for Fabric {
    fn from(written: FabricV1) -> Self {
        let gbps = [
            (Level::Node, written.node_gbps),
            (Level::Nvlink, written.nvlink_gbps),
            (Level::Rack, written.rack_gbps),
            (Level::RailGroup, written.rail_gbps),
            (Level::Block, written.block_gbps),
            (Level::Pod, written.pod_gbps),
        ];
        Fabric {
            kind: match written.kind {
                KindV1::FatTree => FabricKind::FatTree,
                KindV1::RailOptimised => FabricKind::RailOptimised,
            },
            gbps: gbps.into_iter().filter_map(|(level, gbps)| Some((level, gbps?))).collect(),
            core_gbps: written.core_gbps,
            rails: written.rails,
        }
    }
}

#[cfg(test)]
mod tests {
    use gangline_base::Level;
    use gangline_orchestration::FabricKind;

    use crate::config::Config;

    const RAILS: &str =
        "[fabric]\nkind = 'rail-optimised'\nrails = 8\nnode_gbps = 3600\nrail_gbps = 400\nblock_gbps = 200";

    #[test]
    fn bandwidths_are_read_by_level() {
        let fabric = Config::parse(RAILS).expect("a sound file").sharing.fabric.expect("it is there");
        assert_eq!((fabric.kind, fabric.rails.map(u32::from)), (FabricKind::RailOptimised, Some(8)));
        assert_eq!(fabric.gbps.get(&Level::RailGroup).map(|gbps| gbps.get()), Some(400));
        assert_eq!(Config::parse("").expect("a sound file").sharing.fabric, None);
    }

    #[test]
    fn contradictory_bandwidths_are_refused() {
        let check = |text: &str, part: &str| {
            let message = Config::parse(text).expect_err("a refusal").to_string();
            assert!(message.contains(part), "{message:?} does not name {part:?}");
        };
        check(&RAILS.replace("block_gbps = 200", "block_gbps = 500"), "a wider level can't be faster");
        check(&RAILS.replace("rail_gbps", "rack_gbps"), "needs rail_gbps");
        check(&RAILS.replace("node_gbps = 3600", ""), "set node_gbps");
        check(&RAILS.replace("rail-optimised", "torus"), "torus");
        check(&RAILS.replace("rails = 8", "rails = 0"), "nonzero");
    }
}
