//! How a node's accelerators are connected: which of them share an NVLink island, a PCIe switch or a NUMA
//! node.
//!
//! This is the output of `nvidia-smi topo -m` (NVIDIA, nvidia-smi(1)) and hwloc, reduced to what placement
//! needs: tiers of groups, from the fastest links to the slowest. Invariants: the groups of a tier are
//! disjoint and together contain every device; each group lies within one group of every wider tier; a tier
//! that does not distinguish any placements is dropped.

use std::collections::BTreeMap;

/// The most accelerators of one node that a layout may describe.
const DEVICES_MAX: usize = 1_024;
/// The most tiers in a layout; NVLink, the PCIe levels and NUMA need fewer.
const TIERS_MAX: usize = 8;

/// The tiers of a node's accelerators, fastest links first. An empty layout means that nothing is known: any
/// choice of accelerators is as good as any other.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct DeviceLayout(Vec<Vec<u32>>);

/// Why a device layout is invalid.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidLayout {
    /// Two tiers describe different numbers of devices.
    #[error("tier {tier} describes {devices} device(s), but the first one {first}: give every device a group in each")]
    Uneven {
        /// The number of the tier, counted from 1.
        tier: usize,
        /// How many devices this tier describes.
        devices: usize,
        /// How many devices the first tier describes.
        first: usize,
    },
    /// A group of faster links is not contained in one group of slower links.
    #[error(
        "devices {device} and {other} are together in tier {tier}, but apart in a wider one: list tiers from the fastest links to the slowest"
    )]
    Torn {
        /// The number of the narrower tier, counted from 1.
        tier: usize,
        /// The first of the two devices.
        device: usize,
        /// A device in the same group of the narrower tier.
        other: usize,
    },
    /// The layout exceeds the supported size.
    #[error("{tiers} tier(s) of {devices} device(s) are more than the {TIERS_MAX} of {DEVICES_MAX} there may be")]
    TooLarge {
        /// The number of tiers.
        tiers: usize,
        /// How many devices the first tier describes.
        devices: usize,
    },
}

impl DeviceLayout {
    /// Builds a layout from the group of each device in each tier, fastest links first. Group numbers are
    /// arbitrary.
    ///
    /// # Errors
    /// [`InvalidLayout`] if tiers have different lengths or are not nested.
    pub fn new(tiers: Vec<Vec<u32>>) -> Result<Self, InvalidLayout> {
        let first = tiers.first().map_or(0, Vec::len);
        if tiers.len() > TIERS_MAX || first > DEVICES_MAX {
            return Err(InvalidLayout::TooLarge { tiers: tiers.len(), devices: first });
        }
        if let Some(at) = tiers.iter().position(|groups| groups.len() != first) {
            return Err(InvalidLayout::Uneven { tier: at + 1, devices: tiers[at].len(), first });
        }
        for (at, pair) in tiers.windows(2).enumerate() {
            check_nested(at + 1, &pair[0], &pair[1])?;
        }
        let mut kept: Vec<Vec<u32>> = Vec::new();
        for groups in tiers.iter().map(|groups| renumbered(groups)) {
            if tells_apart(&groups) && kept.last() != Some(&groups) {
                kept.push(groups);
            }
        }
        Ok(DeviceLayout(kept))
    }

    /// Reports whether the layout is unknown, so that any devices are as good as any others.
    #[must_use]
    pub fn is_unknown(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns how many devices the layout describes; 0 if it is unknown.
    #[must_use]
    pub fn devices(&self) -> usize {
        self.0.first().map_or(0, Vec::len)
    }

    /// Returns the group of each device for each tier, fastest links first. A group's number follows from its
    /// lowest device.
    pub fn tiers(&self) -> impl DoubleEndedIterator<Item = &[u32]> + ExactSizeIterator {
        self.0.iter().map(Vec::as_slice)
    }
}

/// Renumbers groups from 0 in the order of their lowest devices.
fn renumbered(groups: &[u32]) -> Vec<u32> {
    let mut numbers: BTreeMap<u32, u32> = BTreeMap::new();
    let mut next = 0..;
    groups.iter().map(|group| *numbers.entry(*group).or_insert_with(|| next.next().unwrap_or(u32::MAX))).collect()
}

/// Reports whether some but not all devices share a group. Groups are numbered by their lowest devices, so
/// the highest number decides.
fn tells_apart(groups: &[u32]) -> bool {
    let highest = groups.iter().max().and_then(|highest| usize::try_from(*highest).ok());
    highest.is_some_and(|highest| highest > 0 && highest + 1 < groups.len())
}

fn check_nested(tier: usize, narrow: &[u32], wide: &[u32]) -> Result<(), InvalidLayout> {
    let mut first: BTreeMap<u32, usize> = BTreeMap::new();
    for (device, group) in narrow.iter().enumerate() {
        let other = *first.entry(*group).or_insert(device);
        if wide[other] != wide[device] {
            return Err(InvalidLayout::Torn { tier, device: other, other: device });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tiers(layout: &DeviceLayout) -> Vec<Vec<u32>> {
        layout.tiers().map(<[u32]>::to_vec).collect()
    }

    #[test]
    fn groups_are_numbered_by_their_lowest_device() {
        let layout = DeviceLayout::new(vec![vec![7, 3, 7, 3], vec![1, 1, 1, 1]]).expect("sound");
        assert_eq!(tiers(&layout), [[0, 1, 0, 1]]);
        assert_eq!(layout.devices(), 4);
    }

    #[test]
    fn tiers_that_tell_nothing_apart_are_left_out() {
        for groups in [vec![0, 0, 0], vec![0, 1, 2], vec![]] {
            let layout = DeviceLayout::new(vec![groups]).expect("sound");
            assert!(layout.is_unknown() && layout.devices() == 0, "{layout:?}");
        }
        let twice = DeviceLayout::new(vec![vec![0, 0, 1], vec![4, 4, 2]]).expect("sound");
        assert_eq!(tiers(&twice), [[0, 0, 1]]);
    }

    #[test]
    fn tiers_that_contradict_each_other_are_refused() {
        let check = |tiers: Vec<Vec<u32>>, expected: &str| {
            assert_eq!(DeviceLayout::new(tiers).expect_err("a refusal").to_string(), expected);
        };
        check(
            vec![vec![0, 0], vec![0]],
            "tier 2 describes 1 device(s), but the first one 2: give every device a group in each",
        );
        check(
            vec![vec![0, 1, 0], vec![0, 0, 1]],
            "devices 0 and 2 are together in tier 1, but apart in a wider one: list tiers from the fastest links to the slowest",
        );
        check(vec![vec![0; 2_000]], "1 tier(s) of 2000 device(s) are more than the 8 of 1024 there may be");
    }
}
