//! The order of submissions within one second, as in Helios' simulator (Hu et al., SC'21, HeliosArtifact,
//! framework/QSSF Service/utils.py).
//!
//! It sorts its trace by whole seconds with pandas' `sort_values`, whose default is numpy's introsort
//! (Musser, 1997): unstable, but a fixed function of the keys. Where many jobs of one second wait, their
//! order changes mean completion times by several per cent, so published figures are reproduced only in that
//! order. With 16 jobs or fewer it is stable. On some processors numpy has vector sorts with other orders;
//! the published figures are those of the plain one
//! (<https://github.com/numpy/numpy/blob/main/numpy/_core/src/npysort/quicksort.cpp>).

use gangline_base::Timestamp;

use crate::workload::Workload;

/// A part this short is sorted by insertion, which is stable. The order of equals depends on this value: with
/// 17, the mean completion time of a month of Venus' jobs on 96 nodes is 3 % off.
const INSERTION_MAX: usize = 16;

/// Returns every job's position in that order, by index.
pub(crate) fn places(workload: &Workload) -> Vec<u32> {
    let keys: Vec<Timestamp> = workload.jobs.iter().map(|job| job.submitted).collect();
    let order = introsorted(&keys);
    let mut places = vec![0; order.len()];
    for (place, job) in (0..).zip(order) {
        places[job] = place;
    }
    places
}

/// Returns the indices of `keys`, sorted by key.
fn introsorted(keys: &[Timestamp]) -> Vec<usize> {
    let mut order: Vec<usize> = (0..keys.len()).collect();
    // Partitions deeper than this use another sort: introsort's depth limit. Nearly sorted keys don't reach
    // it.
    let depth_max = 2 * keys.len().checked_ilog2().unwrap_or(0);
    let mut parts = vec![(0, keys.len(), depth_max)];
    while let Some((from, to, depth)) = parts.pop() {
        let part = &mut order[from..to];
        if part.len() <= INSERTION_MAX || depth == 0 {
            part.sort_by_key(|index| keys[*index]);
            continue;
        }
        let pivot = from + partition(keys, part);
        parts.push((from, pivot, depth - 1));
        parts.push((pivot + 1, to, depth - 1));
    }
    order
}

/// Partitions around the median of the first, middle and last key (Hoare); returns the pivot's final index.
fn partition(keys: &[Timestamp], part: &mut [usize]) -> usize {
    let last = part.len() - 1;
    let middle = last / 2;
    for (low, high) in [(0, middle), (middle, last), (0, middle)] {
        if keys[part[high]] < keys[part[low]] {
            part.swap(low, high);
        }
    }
    let pivot = keys[part[middle]];
    part.swap(middle, last - 1);
    let (mut left, mut right) = (0, last - 1);
    // The first and the last key stop the scans: one isn't above the pivot, the other not below.
    loop {
        left += 1;
        while keys[part[left]] < pivot {
            left += 1;
        }
        right -= 1;
        while pivot < keys[part[right]] {
            right -= 1;
        }
        if left >= right {
            part.swap(left, last - 1);
            return left;
        }
        part.swap(left, right);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn order(keys: impl Iterator<Item = u64>) -> Vec<usize> {
        introsorted(&keys.map(Timestamp::from_unix_nanos).collect::<Vec<_>>())
    }

    #[test]
    fn short_traces_keep_the_order_of_their_rows() {
        assert_eq!(order([3, 1, 1, 2, 1].into_iter()), [1, 2, 4, 3, 0]);
        assert_eq!(order(std::iter::repeat_n(7, 16)), (0..16).collect::<Vec<_>>());
        assert_eq!(order(std::iter::empty()), [0; 0]);
    }

    /// Eighteen equal keys, by hand: the middle key (8) is swapped with the last but one (16); then the scans
    /// stop at every key, swap 1 with 15, 2 with 14, ... 7 with 9, and meet at 8, which is swapped with the
    /// pivot again. Both halves are short. With seventeen, the middle key (8) is swapped with 15, and the
    /// scans swap 1 with 14 ... 7 with 8 and cross; the key then at 8 is swapped with the pivot.
    #[test]
    fn more_jobs_of_one_second_than_insertion_takes_come_in_the_order_of_numpy() {
        let expected = [0, 14, 13, 12, 11, 10, 9, 15, 8, 6, 5, 4, 3, 2, 1, 7, 16];
        assert_eq!(order(std::iter::repeat_n(7, 17)), expected);
        let expected = [0, 15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 16, 17];
        assert_eq!(order(std::iter::repeat_n(7, 18)), expected);
    }

    #[test]
    fn keys_in_any_order_come_out_sorted() {
        let keys: Vec<u64> = (0..5_000_u64).map(|i| i.wrapping_mul(2_654_435_761) % 701).collect();
        let sorted = order(keys.iter().copied());
        assert!(sorted.windows(2).all(|pair| keys[pair[0]] <= keys[pair[1]]));
        let mut seen = sorted;
        seen.sort_unstable();
        assert!(seen.into_iter().eq(0..5_000));
    }
}
