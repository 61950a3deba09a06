//! Which of a node's free accelerators a share gets, given the node's device layout
//! (`gangline_base::DeviceLayout`).
//!
//! As among nodes (`gang.rs`), a gang runs at the speed of the slowest link it uses (Patarasuk and Yuan, JPDC
//! 2009), so its devices are in as few groups of the slowest links as possible, then of the next faster
//! links. Ties go to the set that leaves the islands most intact: for each kind of link, fastest first, the
//! one that leaves the most pairs of free devices in a common group (their sum of squares, Herfindahl's
//! measure of concentration). Remaining ties go to the lowest numbers. Ranks follow the groups, so
//! neighbouring ranks are neighbours on the node.
//!
//! All sets are tried, with devices of one group of the fastest links counting as equal. That is exact, and
//! fast on machines with up to [`EXACT_MAX`] free accelerators; NVIDIA's go-gpuallocator scores sets of
//! devices similarly.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use gangline_base::DeviceLayout;

/// The most free accelerators for an exhaustive search, at most C(16, 8) = 12,870 sets. With more, the lowest
/// in rank order are taken.
const EXACT_MAX: usize = 16;

/// Chooses `count` of the free devices, in rank order. At least `count` must be free.
pub(crate) fn choose(layout: &DeviceLayout, free: &BTreeSet<u32>, count: usize) -> Vec<u32> {
    if layout.is_unknown() {
        return free.iter().copied().take(count).collect();
    }
    let mut cells: BTreeMap<Place, Vec<u32>> = BTreeMap::new();
    for device in free {
        cells.entry(place(layout, *device)).or_default().push(*device);
    }
    if count >= free.len() || free.len() > EXACT_MAX {
        return cells.into_values().flatten().take(count).collect();
    }
    let cells: Vec<(Place, Vec<u32>)> = cells.into_iter().collect();
    let mut search = Search { cells: &cells, taken: vec![0; cells.len()], best: None };
    search.explore(0, count);
    search.best.map(|(_, devices)| devices).unwrap_or_default()
}

/// Returns how spread out `count` of the free devices have to be: for each kind of link, slowest first, the
/// number of groups needed beyond the first. Empty if one group of the fastest links holds them all, or the
/// layout is unknown. Less is better.
pub(crate) fn spread(layout: &DeviceLayout, free: &BTreeSet<u32>, count: usize) -> Vec<usize> {
    let beyond_one = |groups: &[u32]| {
        let mut sizes: BTreeMap<u32, usize> = BTreeMap::new();
        for device in free {
            let at = usize::try_from(*device).expect("a usize holds 32 bits");
            *sizes.entry(groups.get(at).copied().unwrap_or(device | 1 << 31)).or_insert(0) += 1;
        }
        let mut sizes: Vec<usize> = sizes.into_values().collect();
        sizes.sort_unstable_by_key(|size| Reverse(*size));
        let full = sizes.iter().scan(0, |sum, size| Some(std::mem::replace(sum, *sum + size)));
        full.skip(1).take_while(|sum| *sum < count).count()
    };
    let mut beyond: Vec<usize> = layout.tiers().rev().map(beyond_one).collect();
    while beyond.last() == Some(&0) {
        beyond.pop();
    }
    beyond
}

/// The groups of a device, slowest links first. A device missing from the layout is alone in its groups.
type Place = Vec<u32>;

fn place(layout: &DeviceLayout, device: u32) -> Place {
    let at = usize::try_from(device).expect("a usize holds 32 bits");
    // The high bit keeps these groups distinct from those of described devices.
    let own = device | 1 << 31;
    layout.tiers().rev().map(|groups| groups.get(at).copied().unwrap_or(own)).collect()
}

/// A set's score, less is better: the number of groups it uses, slowest links first, then how intact the
/// remaining groups are, fastest links first.
type Score = (Vec<usize>, Reverse<Vec<usize>>);

struct Search<'a> {
    /// Free devices by cell: devices of a cell share all groups.
    cells: &'a [(Place, Vec<u32>)],
    /// How many devices of each cell are in the current set.
    taken: Vec<usize>,
    best: Option<(Score, Vec<u32>)>,
}

impl Search<'_> {
    /// Tries every way to take `missing` devices from the cells from `at` on.
    fn explore(&mut self, at: usize, missing: usize) {
        let Some((_, devices)) = self.cells.get(at) else {
            if missing == 0 {
                self.weigh();
            }
            return;
        };
        // Largest count first, so that among equally good sets the one with the lowest devices is found first
        // and kept.
        for taken in (0..=devices.len().min(missing)).rev() {
            self.taken[at] = taken;
            self.explore(at + 1, missing - taken);
        }
    }

    fn weigh(&mut self) {
        let score = self.score();
        if self.best.as_ref().is_none_or(|(best, _)| score < *best) {
            let cells = self.cells.iter().zip(&self.taken);
            let devices = cells.flat_map(|((_, devices), taken)| devices.iter().copied().take(*taken));
            self.best = Some((score, devices.collect()));
        }
    }

    fn score(&self) -> Score {
        let depth = self.cells.first().map_or(0, |(place, _)| place.len());
        let tiers = (1..=depth).map(|tier| self.tier(tier));
        let (groups, mut wholeness): (Vec<usize>, Vec<usize>) = tiers.unzip();
        wholeness.reverse();
        (groups, Reverse(wholeness))
    }

    /// Returns, for the `tier`th slowest links, the number of groups with a device of the set, and the sum of
    /// squares of the devices left in each group. Cells are sorted, so a group's cells are adjacent.
    fn tier(&self, tier: usize) -> (usize, usize) {
        let (mut groups, mut squares) = (0, 0);
        let numbered: Vec<usize> = (0..self.cells.len()).collect();
        for group in numbered.chunk_by(|one, other| self.cells[*one].0[..tier] == self.cells[*other].0[..tier]) {
            let free: usize = group.iter().map(|cell| self.cells[*cell].1.len()).sum();
            let taken: usize = group.iter().map(|cell| self.taken[*cell]).sum();
            groups += usize::from(taken > 0);
            squares += (free - taken) * (free - taken);
        }
        (groups, squares)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn layout(tiers: &[&[u32]]) -> DeviceLayout {
        DeviceLayout::new(tiers.iter().map(|groups| groups.to_vec()).collect()).expect("sound")
    }

    fn chosen(layout: &DeviceLayout, free: impl IntoIterator<Item = u32>, count: usize) -> Vec<u32> {
        choose(layout, &free.into_iter().collect(), count)
    }

    /// Returns a layout of two sockets, each with two pairs of devices.
    fn pairs_in_sockets() -> DeviceLayout {
        layout(&[&[0, 0, 1, 1, 2, 2, 3, 3], &[0, 0, 0, 0, 1, 1, 1, 1]])
    }

    #[test]
    fn without_a_layout_the_lowest_are_taken() {
        assert_eq!(chosen(&DeviceLayout::default(), [1, 4, 5, 7], 3), [1, 4, 5]);
    }

    #[test]
    fn a_share_gets_one_island_if_it_can() {
        let islands = layout(&[&[0, 0, 0, 0, 1, 1, 1, 1]]);
        assert_eq!(chosen(&islands, [0, 4, 5, 6], 3), [4, 5, 6]);
        assert_eq!(chosen(&islands, 2..8, 4), [4, 5, 6, 7]);
        assert_eq!(chosen(&pairs_in_sockets(), [1, 2, 4, 6, 7], 2), [6, 7]);
    }

    #[test]
    fn a_share_that_fits_a_broken_island_leaves_the_others_whole() {
        let islands = layout(&[&[0, 0, 0, 0, 1, 1, 1, 1]]);
        assert_eq!(chosen(&islands, [0, 1, 2, 3, 6, 7], 2), [6, 7]);
        assert_eq!(chosen(&pairs_in_sockets(), [0, 1, 2, 4, 5, 6, 7], 1), [2]);
    }

    #[test]
    fn what_one_island_holds_isn_t_spread() {
        let layout = pairs_in_sockets();
        let spread = |free: &[u32], count| spread(&layout, &free.iter().copied().collect(), count);
        assert_eq!(spread(&[0, 4, 5], 2), []);
        assert_eq!(spread(&[0, 2, 4, 6], 2), [0, 1], "one socket, two pairs");
        assert_eq!(spread(&[0, 1, 4, 5], 4), [1, 1]);
        assert_eq!(spread(&[0, 2, 4, 5], 4), [1, 2]);
        assert_eq!(spread(&[0, 9], 2), [1, 1], "one that the layout doesn't know is alone");
        assert_eq!(super::spread(&DeviceLayout::default(), &(0..8).collect(), 8), []);
    }

    #[test]
    fn slow_links_are_avoided_before_islands_are_kept_whole() {
        // Three of one socket, though only two of them are a pair, rather than a pair and one of the other socket.
        assert_eq!(chosen(&pairs_in_sockets(), [0, 2, 3, 4, 5], 3), [0, 2, 3]);
        // Two halves of pairs rather than a whole island cut: three groups of two, two, one, and a gang of four.
        let three = layout(&[&[0, 0, 0, 1, 1, 2, 2]]);
        assert_eq!(chosen(&three, 0..7, 4), [3, 4, 5, 6]);
    }

    #[test]
    fn ranks_follow_the_islands() {
        let woven = layout(&[&[0, 1, 0, 1, 2, 3, 2, 3], &[0, 0, 0, 0, 1, 1, 1, 1]]);
        assert_eq!(chosen(&woven, 0..8, 8), [0, 2, 1, 3, 4, 6, 5, 7]);
        assert_eq!(chosen(&woven, 0..8, 4), [0, 2, 1, 3]);
    }

    #[test]
    fn devices_that_the_layout_does_not_know_are_islands_of_their_own() {
        let short = layout(&[&[0, 0, 1]]);
        assert_eq!(chosen(&short, [0, 1, 3, 4], 2), [0, 1]);
        assert_eq!(chosen(&short, [1, 2, 3], 3), [1, 2, 3]);
    }

    #[test]
    fn of_more_than_are_tried_the_lowest_in_rank_order_are_taken() {
        let groups: Vec<u32> = (0..32).map(|device| device % 4).collect();
        assert_eq!(chosen(&layout(&[&groups]), 0..32, 9), [0, 4, 8, 12, 16, 20, 24, 28, 1]);
    }

    /// Scores a set by the definition: groups that its devices are in, and pairs of other devices that share
    /// a group.
    fn measured(layout: &DeviceLayout, inside: &[u32], left: &[u32]) -> Score {
        let group = |groups: &[u32], device: &u32| groups[usize::try_from(*device).expect("small")];
        let spanned = |groups: &[u32]| inside.iter().map(|d| group(groups, d)).collect::<BTreeSet<_>>().len();
        let pairs = |groups: &[u32]| {
            left.iter().map(|a| left.iter().filter(|b| group(groups, a) == group(groups, b)).count()).sum()
        };
        (layout.tiers().rev().map(spanned).collect(), Reverse(layout.tiers().map(pairs).collect()))
    }

    /// Returns the best score over every subset.
    fn brute_force(layout: &DeviceLayout, free: &[u32], count: u32) -> Score {
        let subsets = (0..1_u32 << free.len()).filter(|subset| subset.count_ones() == count);
        let scores = subsets.map(|subset| {
            let is_inside = |at: usize| subset >> at & 1 == 1;
            let inside: Vec<u32> = (0..free.len()).filter(|at| is_inside(*at)).map(|at| free[at]).collect();
            let left: Vec<u32> = (0..free.len()).filter(|at| !is_inside(*at)).map(|at| free[at]).collect();
            measured(layout, &inside, &left)
        });
        scores.min().expect("there is a subset")
    }

    #[test]
    fn no_other_set_is_better() {
        let layouts = [
            pairs_in_sockets(),
            layout(&[&[0, 0, 0, 0, 1, 1, 1, 1]]),
            layout(&[&[0, 1, 0, 2, 2, 1, 3, 3], &[0, 0, 0, 1, 1, 0, 1, 1]]),
            layout(&[&[0, 0, 1, 2, 3, 3, 3, 4], &[0, 0, 0, 0, 1, 1, 1, 1]]),
        ];
        for (layout, mask) in layouts.iter().flat_map(|layout| (1..256_u32).map(move |mask| (layout, mask))) {
            let free: Vec<u32> = (0..8).filter(|device| mask >> device & 1 == 1).collect();
            for count in 1..=mask.count_ones() {
                let devices = chosen(layout, free.iter().copied(), usize::try_from(count).expect("small"));
                let all = BTreeSet::from_iter(devices.iter().copied());
                assert_eq!(all.len(), devices.len(), "a device is taken twice");
                let left: Vec<u32> = free.iter().copied().filter(|device| !all.contains(device)).collect();
                let found = measured(layout, &devices, &left);
                assert_eq!(found, brute_force(layout, &free, count), "{count} of {free:?}: {devices:?}");
            }
        }
    }
}
