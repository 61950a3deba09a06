//! Which rank of a gang holds up the others.
//!
//! In synchronous training all ranks take equally long for a step: the fast ones wait for the slow one. So what tells them
//! apart is their own work in a step, without what they wait for each other, against the work of their peers. The scale is
//! robust, since stragglers would spoil a mean and a deviation: the modified z-score of Iglewicz and Hoaglin ("How to Detect and
//! Handle Outliers", 1993), median and median absolute deviation with a limit of 3.5. Where all peers are alike that deviation is almost
//! nothing, so a rank has to be slower by a noticeable part as well. A rank that waits for its data rather than computes is told as such.

use std::time::Duration;

/// Limit of the modified z-score.
const SCORE_MAX: f64 = 3.5;
/// What makes a median absolute deviation comparable to a standard deviation.
const MAD_TO_DEVIATION: f64 = 1.4826;
/// How much longer than its peers a straggler works: below this nobody notices.
const NOTICEABLE: f64 = 1.2;
/// And so much longer in each step.
const NOTICEABLE_TIME: Duration = Duration::from_millis(1);
/// Fewer steps say nothing.
const STEPS_MIN: u64 = 10;

/// What a rank did in a stretch of time, the same for all of a gang.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RankWork {
    /// Its number.
    pub rank: u32,
    /// Steps it finished.
    pub steps: u64,
    /// Time in which it computed.
    pub compute: Duration,
    /// Time in which it waited for data.
    pub data: Duration,
}

/// Why a rank is slow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Slowness {
    /// It computes for longer: a slow device, a clock that is throttled, others on its machine.
    Compute,
    /// It waits for its data.
    Data,
}

/// A rank that holds up the others.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Straggler {
    /// Its number.
    pub rank: u32,
    /// Why.
    pub slowness: Slowness,
    /// Its own work in a step, computing and data together.
    pub own: Duration,
    /// The median of its peers'.
    pub peers: Duration,
    /// Over so many steps.
    pub steps: u64,
}

/// The stragglers among these ranks, the slowest first; fewer than half of them. None if there is too little to tell.
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

    /// Ranks that made 20 steps, with so many milliseconds of computing and of data in each.
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
