//! Metrics: values over steps and time.

use std::cmp::Ordering;

use crate::UnixMillis;

/// One value of a metric.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Point {
    /// When it was measured.
    pub at: UnixMillis,
    /// The training step; clients that count none send 0.
    pub step: i64,
    /// The value. Infinities are kept as the largest finite number of their sign, as MLflow keeps them.
    pub value: f64,
}

/// A value of a metric with its key.
#[derive(Clone, Debug, PartialEq)]
pub struct Metric {
    /// The metric's key.
    pub key: String,
    /// The value.
    pub point: Point,
}

impl Point {
    /// Returns the point as it is kept: with a finite value or NaN.
    pub fn kept(self) -> Point {
        let value = if self.value.is_infinite() { f64::MAX.copysign(self.value) } else { self.value };
        Point { value, ..self }
    }

    /// Reports whether this point takes the place of another one as the latest: by step, then time, then value, where NaN
    /// counts as 0.
    pub fn is_after(&self, other: &Point) -> bool {
        let key = |point: &Point| (point.step, point.at);
        match key(self).cmp(&key(other)) {
            Ordering::Equal => self.ranked() > other.ranked(),
            order => order.is_gt(),
        }
    }

    /// Orders the points of a history: by time, step and value.
    pub fn by_time(&self, other: &Point) -> Ordering {
        self.at.cmp(&other.at).then(self.step.cmp(&other.step)).then(self.by_value(other))
    }

    /// Orders the points of a curve: by step, time and value.
    pub fn by_step(&self, other: &Point) -> Ordering {
        self.step.cmp(&other.step).then(self.at.cmp(&other.at)).then(self.by_value(other))
    }

    fn by_value(&self, other: &Point) -> Ordering {
        self.ranked().total_cmp(&other.ranked()).then(self.value.is_nan().cmp(&other.value.is_nan()))
    }

    fn ranked(&self) -> f64 {
        // -0 and 0 are the same value.
        if self.value.is_nan() || self.value == 0.0 { 0.0 } else { self.value }
    }
}

/// Returns the indices of at most `count` of `length` points: of each of `count` parts as equal as can be the first, but of
/// the last part the last. A curve that fits is returned whole.
pub fn sample(length: usize, count: usize) -> Vec<usize> {
    if length <= count {
        return (0..length).collect();
    }
    let (size, larger) = (length.checked_div(count).unwrap_or_default(), length.checked_rem(count).unwrap_or_default());
    let first_of = |part: usize| part * size + part.min(larger);
    let firsts = (0..count.saturating_sub(1)).map(first_of);
    firsts.chain((count > 0).then(|| length - 1)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn point(step: i64, at: i64, value: f64) -> Point {
        Point { at: UnixMillis(at), step, value }
    }

    #[test]
    fn the_latest_is_the_one_of_the_highest_step_then_time_then_value() {
        assert!(point(2, 0, 0.0).is_after(&point(1, 9, 9.0)));
        assert!(point(1, 2, 0.0).is_after(&point(1, 1, 9.0)));
        assert!(point(1, 1, 3.0).is_after(&point(1, 1, 2.0)));
        assert!(!point(1, 1, 2.0).is_after(&point(1, 1, 2.0)));
        // NaN counts as 0.
        assert!(point(1, 1, f64::NAN).is_after(&point(1, 1, -1.0)));
        assert!(!point(1, 1, f64::NAN).is_after(&point(1, 1, 1.0)));
    }

    #[test]
    fn infinities_are_kept_as_the_largest_numbers() {
        assert_eq!(point(0, 0, f64::NEG_INFINITY).kept().value, f64::MIN);
        assert_eq!(point(0, 0, f64::INFINITY).kept().value, f64::MAX);
        assert!(point(0, 0, f64::NAN).kept().value.is_nan());
    }

    #[test]
    fn a_sample_keeps_both_ends_and_has_no_index_twice() {
        for length in 0..60 {
            for count in 1..40 {
                let kept = sample(length, count);
                assert_eq!(kept.len(), length.min(count), "{length} {count}");
                assert!(kept.windows(2).all(|pair| pair[0] < pair[1]), "{length} {count}: {kept:?}");
                assert_eq!(kept.last().copied(), length.checked_sub(1));
                assert!(count == 1 || length == 0 || kept[0] == 0);
            }
        }
    }
}
