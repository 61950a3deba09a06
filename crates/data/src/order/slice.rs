//! Which rows of a global batch are whose. Any world size has the same rows in the same order; where it doesn't divide
//! them, some ranks have one row more.

use std::ops::Range;

/// The rows of `rank` among `rows` rows of a global batch: contiguous, in the order of the ranks, at most one more than
/// another rank's.
///
/// # Panics
/// If the rank isn't below the world size.
#[must_use]
pub fn rows_of(rows: u32, rank: u32, world_size: u32) -> Range<u32> {
    assert!(rank < world_size, "rank {rank} of {world_size}");
    let bound = |rank: u32| {
        let bound = u64::from(rows) * u64::from(rank) / u64::from(world_size);
        u32::try_from(bound).expect("at most the rows")
    };
    bound(rank)..bound(rank + 1)
}

/// What a rank multiplies its mean loss with before gradients are averaged over the ranks, so that the average is the
/// mean over the global batch: its share of the rows times the number of ranks, 1 where all have as many.
#[must_use]
pub fn loss_weight(rows: u32, rank: u32, world_size: u32) -> f64 {
    let mine = rows_of(rows, rank, world_size).len();
    mine as f64 * f64::from(world_size) / f64::from(rows)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slices_of_all_worlds_are_the_whole_batch_in_order() {
        for rows in 1..=130 {
            for world_size in 1..=64.min(rows) {
                let slices: Vec<Range<u32>> = (0..world_size).map(|rank| rows_of(rows, rank, world_size)).collect();
                let whole: Vec<u32> = slices.iter().cloned().flatten().collect();
                assert_eq!(whole, (0..rows).collect::<Vec<_>>());
                let (least, most) = (slices.iter().map(Range::len).min(), slices.iter().map(Range::len).max());
                assert!(least >= Some(1) && most <= least.map(|least| least + 1));
                let weights: f64 = (0..world_size).map(|rank| loss_weight(rows, rank, world_size)).sum();
                assert!((weights - f64::from(world_size)).abs() < 1e-9);
            }
        }
    }

    #[test]
    fn weighted_means_of_uneven_slices_average_to_the_mean_of_the_batch() {
        let losses = [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0];
        let mean_of = |range: Range<u32>| {
            let part = &losses[range.start as usize..range.end as usize];
            part.iter().sum::<f64>() / part.len() as f64
        };
        let average = (0..3).map(|rank| mean_of(rows_of(7, rank, 3)) * loss_weight(7, rank, 3)).sum::<f64>() / 3.0;
        assert!((average - mean_of(0..7)).abs() < 1e-9);
        assert!((loss_weight(8, 1, 4) - 1.0).abs() < f64::EPSILON);
    }
}
