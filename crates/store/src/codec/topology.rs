//! Network levels, jobs' topology requests and node locations, as stored on disk. Empty values are left out,
//! so that journals from before there was a topology stay readable.

use std::collections::BTreeMap;
use std::num::NonZeroU32;

use gangline_base::{DeviceLayout, InvalidLayout, Level, Segment, TopologyRequest};
use gangline_orchestration::{Closeness, Fabric, FabricKind, Location};
use serde::{Deserialize, Serialize};

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum LevelV1 {
    Node,
    Nvlink,
    Rack,
    RailGroup,
    Block,
    Pod,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct TopologyV1 {
    require: Option<LevelV1>,
    prefer: Option<LevelV1>,
    segment: Option<SegmentV1>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct SegmentV1 {
    nodes: NonZeroU32,
    level: LevelV1,
}

/// The name of the domain at each level.
#[derive(Default, Serialize, Deserialize)]
#[serde(transparent)]
pub(super) struct LocationV1(BTreeMap<LevelV1, String>);

/// For each tier, fastest links first: the group of each of the node's devices.
#[derive(Clone, Default, Serialize, Deserialize)]
#[serde(try_from = "Vec<Vec<u32>>", into = "Vec<Vec<u32>>")]
pub(super) struct LayoutV1(DeviceLayout);

/// The bandwidths of the levels.
#[derive(Serialize, Deserialize)]
pub(super) struct FabricV1 {
    is_rail_optimised: bool,
    gbps: BTreeMap<LevelV1, NonZeroU32>,
    core_gbps: Option<NonZeroU32>,
    rails: Option<NonZeroU32>,
}

/// How close together a gang was placed.
#[derive(Serialize, Deserialize)]
pub(super) struct ClosenessV1 {
    domain: Option<(LevelV1, String)>,
    speedup_percent: Option<u32>,
}

impl TopologyV1 {
    pub(super) fn is_default(&self) -> bool {
        *self == TopologyV1::default()
    }
}

impl LocationV1 {
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl LayoutV1 {
    pub(super) fn is_unknown(&self) -> bool {
        self.0.is_unknown()
    }
}

impl TryFrom<Vec<Vec<u32>>> for LayoutV1 {
    type Error = InvalidLayout;

    fn try_from(tiers: Vec<Vec<u32>>) -> Result<Self, InvalidLayout> {
        DeviceLayout::new(tiers).map(LayoutV1)
    }
}

impl From<LayoutV1> for Vec<Vec<u32>> {
    fn from(layout: LayoutV1) -> Self {
        layout.0.tiers().map(<[u32]>::to_vec).collect()
    }
}

impl From<DeviceLayout> for LayoutV1 {
    fn from(layout: DeviceLayout) -> Self {
        LayoutV1(layout)
    }
}

impl From<LayoutV1> for DeviceLayout {
    fn from(layout: LayoutV1) -> Self {
        layout.0
    }
}

impl From<Level> for LevelV1 {
    fn from(level: Level) -> Self {
        match level {
            Level::Node => LevelV1::Node,
            Level::Nvlink => LevelV1::Nvlink,
            Level::Rack => LevelV1::Rack,
            Level::RailGroup => LevelV1::RailGroup,
            Level::Block => LevelV1::Block,
            Level::Pod => LevelV1::Pod,
        }
    }
}

impl From<LevelV1> for Level {
    fn from(level: LevelV1) -> Self {
        match level {
            LevelV1::Node => Level::Node,
            LevelV1::Nvlink => Level::Nvlink,
            LevelV1::Rack => Level::Rack,
            LevelV1::RailGroup => Level::RailGroup,
            LevelV1::Block => Level::Block,
            LevelV1::Pod => Level::Pod,
        }
    }
}

impl From<TopologyRequest> for TopologyV1 {
    fn from(request: TopologyRequest) -> Self {
        let TopologyRequest { require, prefer, segment } = request;
        let segment = segment.map(|Segment { nodes, level }| SegmentV1 { nodes, level: level.into() });
        TopologyV1 { require: require.map(Into::into), prefer: prefer.map(Into::into), segment }
    }
}

impl From<TopologyV1> for TopologyRequest {
    fn from(request: TopologyV1) -> Self {
        let TopologyV1 { require, prefer, segment } = request;
        let segment = segment.map(|SegmentV1 { nodes, level }| Segment { nodes, level: level.into() });
        TopologyRequest { require: require.map(Into::into), prefer: prefer.map(Into::into), segment }
    }
}

impl From<&Location> for LocationV1 {
    fn from(location: &Location) -> Self {
        LocationV1(location.iter().map(|(level, name)| (level.into(), name.to_owned())).collect())
    }
}

impl From<LocationV1> for Location {
    fn from(location: LocationV1) -> Self {
        location.0.into_iter().map(|(level, name)| (level.into(), name)).collect()
    }
}

impl From<&Fabric> for FabricV1 {
    fn from(fabric: &Fabric) -> Self {
        FabricV1 {
            is_rail_optimised: fabric.kind == FabricKind::RailOptimised,
            gbps: fabric.gbps.iter().map(|(level, gbps)| ((*level).into(), *gbps)).collect(),
            core_gbps: fabric.core_gbps,
            rails: fabric.rails,
        }
    }
}

impl From<FabricV1> for Fabric {
    fn from(fabric: FabricV1) -> Self {
        Fabric {
            kind: if fabric.is_rail_optimised { FabricKind::RailOptimised } else { FabricKind::FatTree },
            gbps: fabric.gbps.into_iter().map(|(level, gbps)| (level.into(), gbps)).collect(),
            core_gbps: fabric.core_gbps,
            rails: fabric.rails,
        }
    }
}

impl From<Closeness> for ClosenessV1 {
    fn from(closeness: Closeness) -> Self {
        let Closeness { domain, speedup_percent } = closeness;
        ClosenessV1 { domain: domain.map(|(level, name)| (level.into(), name)), speedup_percent }
    }
}

impl From<ClosenessV1> for Closeness {
    fn from(closeness: ClosenessV1) -> Self {
        let ClosenessV1 { domain, speedup_percent } = closeness;
        Closeness { domain: domain.map(|(level, name)| (level.into(), name)), speedup_percent }
    }
}
