//! Selects the points of an old curve that stay: the first, the last, and the lowest and the highest of each
//! of a fixed number of equal parts, so that striking points stay visible. Thinning a thinned curve changes
//! nothing, so an interrupted thinning can continue.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::RangeInclusive;

use gangline_base::JobId;

use gangline_store::db::{self, Reader};
use gangline_store::model::{Loss, SAMPLES_PER_REMOVAL_MAX};
use gangline_store::ports::Series as _;

/// Parts of a curve; at most two points of each stay, and the first and the last point.
const PARTS: u64 = 150;

/// Passes the points to remove from an attempt's curve to `each`, as ranges of numbers with their count; each
/// call has at most as many as one removal takes.
///
/// # Errors
/// The reader's error.
pub(crate) fn points_to_remove(
    reader: &Reader,
    attempt: (JobId, u32),
    mut each: impl FnMut(Vec<RangeInclusive<u64>>, u64) -> Result<(), db::Error>,
) -> Result<(), db::Error> {
    let Some(edges) = reader.edges(attempt)? else { return Ok(()) };
    let pages = |take: &mut dyn FnMut(Vec<Loss>) -> Result<(), db::Error>| {
        let mut after = None;
        loop {
            let page = reader.losses(attempt, after, SAMPLES_PER_REMOVAL_MAX)?;
            let Some((last, _)) = page.last() else { return Ok(()) };
            after = Some(*last);
            take(page)?;
        }
    };
    let mut choice = Choice::new(edges);
    pages(&mut |page| {
        page.into_iter().for_each(|point| choice.add(point));
        Ok(())
    })?;
    let staying = choice.numbers();
    pages(&mut |page| {
        let numbers: Vec<u64> = page.into_iter().map(|(number, _)| number).collect();
        let (ranges, count) = ranges_between(&numbers, &staying);
        if count == 0 { Ok(()) } else { each(ranges, count) }
    })
}

/// The points of an attempt that stay, collected point by point.
#[derive(Debug)]
struct Choice {
    first: u64,
    last: u64,
    parts: BTreeMap<u64, Part>,
}

/// The extreme points of a part, with their numbers.
#[derive(Debug)]
struct Part {
    any: u64,
    lowest: Option<(f64, u64)>,
    highest: Option<(f64, u64)>,
}

impl Choice {
    /// Returns an empty choice for a curve between two numbers.
    fn new((first, last): (u64, u64)) -> Choice {
        Choice { first, last, parts: BTreeMap::new() }
    }

    /// Adds the next point.
    fn add(&mut self, (number, loss): Loss) {
        let length = u128::from(self.last.saturating_sub(self.first)) + 1;
        let place = u128::from(number.saturating_sub(self.first)) * u128::from(PARTS) / length;
        let place = u64::try_from(place).unwrap_or(PARTS);
        let part = self.parts.entry(place).or_insert(Part { any: number, lowest: None, highest: None });
        let Some(loss) = loss else { return };
        if part.lowest.is_none_or(|(lowest, _)| loss < lowest) {
            part.lowest = Some((loss, number));
        }
        if part.highest.is_none_or(|(highest, _)| loss > highest) {
            part.highest = Some((loss, number));
        }
    }

    /// Returns the numbers of the points that stay.
    fn numbers(&self) -> BTreeSet<u64> {
        let of_part = |part: &Part| match part.lowest.zip(part.highest) {
            Some(((_, lowest), (_, highest))) => [lowest, highest],
            None => [part.any; 2],
        };
        self.parts.values().flat_map(of_part).chain([self.first, self.last]).collect()
    }
}

/// Returns the ranges of these ascending numbers that don't stay, and the count of those numbers.
fn ranges_between(numbers: &[u64], staying: &BTreeSet<u64>) -> (Vec<RangeInclusive<u64>>, u64) {
    let (mut ranges, mut count): (Vec<RangeInclusive<u64>>, u64) = (Vec::new(), 0);
    let mut is_open = false;
    for number in numbers {
        if staying.contains(number) {
            is_open = false;
            continue;
        }
        count += 1;
        match ranges.last_mut().filter(|_| is_open) {
            Some(range) => *range = *range.start()..=*number,
            None => ranges.push(*number..=*number),
        }
        is_open = true;
    }
    (ranges, count)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chosen(points: &[Loss]) -> BTreeSet<u64> {
        let mut choice = Choice::new((points[0].0, points[points.len() - 1].0));
        points.iter().for_each(|point| choice.add(*point));
        choice.numbers()
    }

    #[test]
    fn what_stands_out_stays_and_choosing_again_changes_nothing() {
        let loss = |number: u64| {
            if number == 7_778 { 99.0 } else { 5.0 - f64::from(u32::try_from(number).expect("few")) / 1e5 }
        };
        let points: Vec<Loss> = (0..100_000).map(|number| (number, (number % 3 != 1).then(|| loss(number)))).collect();
        let staying = chosen(&points);
        assert!(staying.len() <= 302 && staying.len() > 290, "{}", staying.len());
        assert!([0, 7_778, 99_999].iter().all(|number| staying.contains(number)), "{staying:?}");
        // An interruption at any point leaves a curve with the same choice.
        for kept in [1, 2, 17] {
            let left: Vec<Loss> =
                points.iter().filter(|(number, _)| staying.contains(number) || number % kept == 0).copied().collect();
            assert_eq!(chosen(&left), staying);
        }
    }

    #[test]
    fn a_curve_without_losses_and_a_short_one_stay_drawable() {
        let bare: Vec<Loss> = (10..10_010).map(|number| (number, None)).collect();
        assert_eq!(chosen(&bare).len(), 151, "one a part, and the last");
        assert_eq!(chosen(&[(3, Some(1.0))]), [3].into());
        assert_eq!(chosen(&[(0, None), (u64::MAX, Some(f64::INFINITY))]), [0, u64::MAX].into());
    }

    #[test]
    fn ranges_are_what_lies_between() {
        let check = |numbers: &[u64], staying: &[u64], expected: &[RangeInclusive<u64>], count| {
            let staying = staying.iter().copied().collect();
            assert_eq!(ranges_between(numbers, &staying), (expected.to_vec(), count));
        };
        check(&[1, 2, 3, 9, 10, 20], &[3, 10], &[1..=2, 9..=9, 20..=20], 4);
        check(&[1, 2], &[1, 2], &[], 0);
        check(&[5, 8, 9], &[], &[5..=9], 3);
    }
}
