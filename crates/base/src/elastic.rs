//! Elastic jobs, which may run on more or fewer nodes: their permitted widths and their speed at each width.

use std::num::NonZeroU32;

/// The widths a job may have beyond its minimum, and the speed-up they give.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Elastic {
    /// The most nodes. The minimum is the gang's own node count.
    pub nodes_max: NonZeroU32,
    /// The speed at each width.
    pub speed_up: SpeedUp,
}

/// A speed-up curve: how much faster a job is on more nodes than on its minimum. Between points the curve is
/// linear.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SpeedUp {
    /// Pairs of node count and speed in thousandths of the speed at the first point's node count; ascending.
    points: Vec<(u32, u32)>,
}

/// The value that [`SpeedUp`] uses for a speed of one.
pub const SPEED_ONE: u32 = 1_000;

/// The assumed speed-up for each doubling of nodes, in thousandths, if the user gave no curve: data-parallel
/// training keeps about 90 % of its efficiency for each doubling as long as its batch is large enough.
const DOUBLING: u64 = 1_800;

/// Why a speed-up curve is invalid.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidSpeedUp {
    /// More nodes would be slower.
    #[error("{more} nodes are slower than {fewer}; leave out the widths that don't pay")]
    Falls {
        /// The larger node count.
        more: u32,
        /// The smaller node count.
        fewer: u32,
    },
    /// The speed-up is more than proportional to the number of nodes.
    #[error(
        "{nodes} nodes are said to be {speed_milli}/1000 times as fast as {least}, which is more than they are as many"
    )]
    TooGood {
        /// The node count.
        nodes: u32,
        /// The minimum node count.
        least: u32,
        /// The stated speed, in thousandths.
        speed_milli: u32,
    },
    /// The curve names a width that the job can't have.
    #[error("{nodes} nodes are outside of {least} to {most}")]
    Outside {
        /// The node count.
        nodes: u32,
        /// The minimum node count.
        least: u32,
        /// The maximum node count.
        most: u32,
    },
}

impl SpeedUp {
    /// Builds a curve that starts at `least` nodes (speed one) and runs through `points` (nodes and
    /// thousandths, in any order); beyond the last point it is flat.
    ///
    /// # Errors
    /// [`InvalidSpeedUp`] if the curve falls, is more than proportional to the nodes, or names a width
    /// outside `least` to `most`.
    pub fn new(least: NonZeroU32, most: NonZeroU32, mut points: Vec<(u32, u32)>) -> Result<Self, InvalidSpeedUp> {
        let (least, most) = (least.get(), most.get());
        points.sort_unstable();
        points.dedup_by_key(|(nodes, _)| *nodes);
        for (nodes, speed_milli) in &points {
            if !(least..=most).contains(nodes) {
                return Err(InvalidSpeedUp::Outside { nodes: *nodes, least, most });
            }
            if u64::from(*speed_milli) * u64::from(least) > u64::from(*nodes) * u64::from(SPEED_ONE) {
                return Err(InvalidSpeedUp::TooGood { nodes: *nodes, least, speed_milli: *speed_milli });
            }
        }
        points.retain(|(nodes, _)| *nodes != least);
        points.insert(0, (least, SPEED_ONE));
        match points.windows(2).find(|pair| pair[1].1 < pair[0].1) {
            Some(pair) => Err(InvalidSpeedUp::Falls { more: pair[1].0, fewer: pair[0].0 }),
            None => Ok(SpeedUp { points }),
        }
    }

    /// Returns the assumed curve for a job without its own: 1.8 times as fast for each doubling.
    #[must_use]
    pub fn assumed(least: NonZeroU32, most: NonZeroU32) -> Self {
        let mut points = vec![(least.get(), SPEED_ONE)];
        while let Some((nodes, speed)) = points.last().copied().filter(|(nodes, _)| *nodes < most.get()) {
            let next = u64::from(speed) * DOUBLING / u64::from(SPEED_ONE);
            let high = u32::try_from(next).unwrap_or(u32::MAX);
            let to = nodes.saturating_mul(2).min(most.get());
            // The last step may be a fraction of a doubling, because `nodes * 2` can exceed `most` or
            // overflow; its gain is scaled accordingly.
            let gain = u64::from(high - speed) * u64::from(to - nodes) / u64::from(nodes);
            points.push((to, speed + u32::try_from(gain).expect("at most the gain of the whole doubling")));
        }
        SpeedUp { points }
    }

    /// Returns the points in ascending order: node count and speed in thousandths of the first point's speed.
    #[must_use]
    pub fn points(&self) -> &[(u32, u32)] {
        &self.points
    }

    /// Returns the speed in thousandths of the speed on the minimum number of nodes.
    #[must_use]
    pub fn speed_milli(&self, nodes: u32) -> u32 {
        let above = self.points.partition_point(|(at, _)| *at <= nodes);
        match (above.checked_sub(1).map(|below| self.points[below]), self.points.get(above)) {
            (None, _) => 0,
            (Some((_, speed)), None) => speed,
            (Some((from, low)), Some((to, high))) => {
                let (part, whole) = (u64::from(nodes - from), u64::from(to - from));
                low + u32::try_from(u64::from(high - low) * part / whole).expect("between two 32-bit numbers")
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn count(nodes: u32) -> NonZeroU32 {
        NonZeroU32::new(nodes).expect("not zero")
    }

    #[test]
    fn speeds_lie_on_lines_between_the_points() {
        let curve = SpeedUp::new(count(2), count(8), vec![(8, 3_000), (4, 1_900)]).expect("a curve");
        let speeds: Vec<u32> = [1, 2, 3, 4, 6, 8, 20].map(|nodes| curve.speed_milli(nodes)).into();
        assert_eq!(speeds, [0, 1_000, 1_450, 1_900, 2_450, 3_000, 3_000]);
    }

    #[test]
    fn where_nobody_has_said_a_doubling_gains_four_fifths() {
        let curve = SpeedUp::assumed(count(2), count(7));
        assert_eq!([2, 4, 7].map(|nodes| curve.speed_milli(nodes)), [1_000, 1_800, 2_880]);
        assert_eq!(SpeedUp::assumed(count(3), count(3)).points(), [(3, 1_000)]);
    }

    #[test]
    fn what_is_no_curve_is_refused() {
        let check = |points: &[(u32, u32)], part: &str| {
            let message = SpeedUp::new(count(2), count(8), points.to_vec()).expect_err("refused").to_string();
            assert!(message.contains(part), "{message:?} does not name {part:?}");
        };
        check(&[(4, 1_900), (8, 1_800)], "8 nodes are slower than 4");
        check(&[(4, 900)], "4 nodes are slower than 2");
        check(&[(4, 2_001)], "4 nodes are said to be 2001/1000 times as fast as 2");
        check(&[(9, 2_000)], "9 nodes are outside of 2 to 8");
        check(&[(1, 500)], "1 nodes are outside");
    }
}
