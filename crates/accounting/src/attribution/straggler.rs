//! Finds the ranks that hold up their gang. Pure: the ranks' work is an argument.
//!
//! In synchronous training every step takes all ranks equally long, because the fast ranks wait for the slow
//! one. Ranks are therefore compared by their own work per step, without the time spent waiting for each
//! other. Stragglers would distort a mean and a standard deviation, so the scale is robust: the modified
//! z-score of Iglewicz and Hoaglin ("How to Detect and Handle Outliers", 1993), from median and median
//! absolute deviation, with a limit of 3.5. Among nearly equal peers that deviation is almost zero, so a
//! straggler must also be slower by a noticeable fraction. A rank that is slow because it waits for data is
//! reported as such.

use std::time::Duration;

/// The limit of the modified z-score.
const SCORE_MAX: f64 = 3.5;
/// Factor that makes a median absolute deviation comparable to a standard deviation.
const MAD_TO_DEVIATION: f64 = 1.4826;
/// The smallest ratio of a straggler's work per step to its peers'.
const NOTICEABLE: f64 = 1.2;
/// The smallest difference between a straggler's work per step and its peers'.
const NOTICEABLE_TIME: Duration = Duration::from_millis(1);
/// The fewest steps on which a rank is judged.
const STEPS_MIN: u64 = 10;

/// The work of one rank in a period that is the same for all ranks of its gang.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RankWork {
    /// The rank's number.
    pub rank: u32,
    /// Finished steps.
    pub steps: u64,
    /// Time spent computing.
    pub compute: Duration,
    /// Time spent waiting for data.
    pub data: Duration,
}

/// Why a rank is slow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Slowness {
    /// It computes for longer: slow device, throttled clock, or other load on its machine.
    Compute,
    /// It waits for its data.
    Data,
}

/// A rank that holds up the others.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Straggler {
    /// The rank's number.
    pub rank: u32,
    /// Why it is slow.
    pub slowness: Slowness,
    /// Its own work per step: computing and waiting for data.
    pub own: Duration,
    /// The median of its peers' work per step.
    pub peers: Duration,
    /// The number of steps measured.
    pub steps: u64,
}

/// Returns the stragglers among these ranks, slowest first. They are always fewer than half of the ranks,
/// except that one of two ranks can be a straggler. Empty if there is too little data.
#[must_use]
pub fn stragglers(ranks: &[RankWork]) -> Vec<Straggler> {
    if ranks.len() < 2 || ranks.iter().any(|rank| rank.steps < STEPS_MIN) {
        return Vec::new();
    }
    let per_step =
        |time: Duration, rank: &RankWork| time.as_secs_f64() / u32::try_from(rank.steps).map_or(f64::MAX, f64::from);
    let own = |rank: &RankWork| per_step(rank.compute + rank.data, rank);
    let mut found: Vec<Straggler> = ranks
        .iter()
        .filter_map(|rank| {
            let others = || ranks.iter().filter(|other| other.rank != rank.rank);
            let peers = median(others().map(own).collect());
            let deviation = MAD_TO_DEVIATION * median(others().map(|other| (own(other) - peers).abs()).collect());
            let more = own(rank) - peers;
            let is_slow =
                more > SCORE_MAX * deviation && own(rank) > NOTICEABLE * peers && more > NOTICEABLE_TIME.as_secs_f64();
            let peers_data = median(others().map(|other| per_step(other.data, other)).collect());
            let more_data = per_step(rank.data, rank) - peers_data;
            is_slow.then(|| Straggler {
                rank: rank.rank,
                slowness: if more_data * 2.0 > more { Slowness::Data } else { Slowness::Compute },
                own: Duration::from_secs_f64(own(rank)),
                peers: Duration::from_secs_f64(peers),
                steps: rank.steps,
            })
        })
        .collect();
    found.sort_by(|a, b| b.own.cmp(&a.own).then(a.rank.cmp(&b.rank)));
    if found.len() * 2 < ranks.len() || found.len() == 1 { found } else { Vec::new() }
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    match values.len() {
        0 => 0.0,
        even if even % 2 == 0 => f64::midpoint(values[middle - 1], values[middle]),
        _ => values[middle],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Finds stragglers among ranks that made 20 steps each, given their milliseconds of computing and of
    /// data per step.
    fn found(millis: &[(u64, u64)]) -> Vec<(u32, Slowness)> {
        let work = |(rank, (compute, data)): (u32, &(u64, u64))| RankWork {
            rank,
            steps: 20,
            compute: Duration::from_millis(compute * 20),
            data: Duration::from_millis(data * 20),
        };
        let ranks: Vec<RankWork> = (0..).zip(millis).map(work).collect();
        stragglers(&ranks).iter().map(|straggler| (straggler.rank, straggler.slowness)).collect()
    }

    #[test]
    fn a_rank_that_works_longer_than_its_peers_is_found_and_why() {
        assert_eq!(found(&[(100, 5), (102, 5), (180, 5), (99, 6)]), [(2, Slowness::Compute)]);
        assert_eq!(found(&[(100, 5), (102, 90), (101, 5), (99, 6)]), [(1, Slowness::Data)]);
        assert_eq!(found(&[(100, 0), (150, 0)]), [(1, Slowness::Compute)], "of two the slower");
        let mut many = vec![(100, 5); 64];
        (many[7], many[40]) = ((160, 5), (200, 5));
        assert_eq!(found(&many), [(40, Slowness::Compute), (7, Slowness::Compute)]);
    }

    #[test]
    fn ranks_that_differ_as_they_always_do_are_no_stragglers() {
        assert_eq!(found(&[(100, 5), (110, 5), (104, 5), (99, 6)]), [], "ten percent");
        assert_eq!(found(&[(50, 0), (100, 0), (150, 0), (200, 0), (250, 0)]), [], "they are all different");
        assert_eq!(found(&[(100, 0), (100, 0), (200, 0), (200, 0)]), [], "half of them is no exception");
        assert_eq!(found(&[(1, 0), (2, 0), (1, 0), (1, 0)]), [], "nobody notices a millisecond");
        assert_eq!(found(&[(100, 5)]), [], "alone");
        let few = RankWork { steps: 3, compute: Duration::from_secs(9), ..RankWork::default() };
        assert_eq!(stragglers(&[few, RankWork { rank: 1, ..few }]), []);
    }
}
