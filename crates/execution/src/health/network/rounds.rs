//! Chooses the pairs that are measured at once: disjoint ones, in as few rounds as possible (the circle
//! method of round-robin tournaments). A small gang measures all pairs; in a large one each rank meets a
//! fixed number of others, near and far.

/// Maximum number of rounds, each of which takes about two seconds.
const ROUNDS_MAX: usize = 32;

/// Returns rounds of disjoint pairs of `count` ranks, the lower rank first.
pub(super) fn rounds(count: u32) -> Vec<Vec<(u32, u32)>> {
    if count < 2 {
        return Vec::new();
    }
    // With an odd number, the rank paired with the extra seat pauses.
    let seats = count + count % 2;
    let all = usize::try_from(seats - 1).unwrap_or(usize::MAX);
    let chosen = (0..all.min(ROUNDS_MAX)).map(|number| number * all / all.min(ROUNDS_MAX));
    chosen.map(|round| pairs_of(u32::try_from(round).unwrap_or(0), seats, count)).collect()
}

fn pairs_of(round: u32, seats: u32, count: u32) -> Vec<(u32, u32)> {
    let others = seats - 1;
    // The last seat stays; the others rotate.
    let seat = |place: u32| (place + round) % others;
    let first = (others, seat(0));
    let rest = (1..seats / 2).map(|place| (seat(place), seat(others - place)));
    let sorted = std::iter::once(first).chain(rest).map(|(one, other)| (one.min(other), one.max(other)));
    sorted.filter(|(_, higher)| *higher < count).collect()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_pair_meets_once_and_nobody_is_twice_in_a_round() {
        for count in 0..=32 {
            let rounds = rounds(count);
            let mut met = BTreeSet::new();
            for round in &rounds {
                let busy: BTreeSet<u32> = round.iter().flat_map(|(one, other)| [*one, *other]).collect();
                assert_eq!(busy.len(), round.len() * 2, "{count}: {round:?}");
                assert!(
                    round.iter().all(|pair| met.insert(*pair) && pair.0 < pair.1 && pair.1 < count),
                    "{count}: {round:?}"
                );
            }
            let all = (count * count.saturating_sub(1) / 2) as usize;
            assert_eq!(met.len(), all, "{count}");
        }
    }

    #[test]
    fn a_large_gang_meets_in_a_limited_number_of_rounds() {
        let rounds = rounds(1_000);
        assert_eq!(rounds.len(), ROUNDS_MAX);
        assert!(rounds.iter().all(|round| round.len() == 500));
    }
}
