//! A job's measured speed on each number of nodes: the steps between its checkpoints and the time they took.
//!
//! Each checkpoint has a step and a time, so two checkpoints of one attempt give the steps per second at its
//! width, including the cost of saving. If the job file gives no curve, elasticity (`elasticity.rs`) uses the
//! measurements for widths seen, and for other widths the assumed curve through the nearest of them, as
//! Pollux (OSDI 2021) fits its model to observations. A single width says nothing about others. A step has to
//! be the same amount of work at every width; a job for which it isn't should give its own curve, which takes
//! precedence over measurements.

use std::collections::BTreeMap;
use std::num::NonZeroU32;
use std::time::Duration;

use gangline_base::{AttemptNumber, Elastic, SpeedUp, Step, Timestamp};

/// The most widths remembered; further widths aren't measured.
const WIDTHS_MAX: usize = 64;
/// The shortest measurement period; shorter ones are too noisy.
const MEASURED_MIN: Duration = Duration::from_mins(1);

/// The measurements of a job.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Pace {
    /// By number of nodes, the steps and time of the last attempt that ran long enough.
    pub widths: BTreeMap<u32, (u64, Duration)>,
    /// The first checkpoint of the last attempt that had one: its attempt, its step, and when it became
    /// durable.
    pub since: Option<(AttemptNumber, Step, Timestamp)>,
}

impl Pace {
    /// Records a durable checkpoint of an attempt on `width` nodes.
    pub(crate) fn note(&mut self, now: Timestamp, width: u32, attempt: AttemptNumber, step: Step) {
        let Some((_, from, at)) = self.since.filter(|(of, from, _)| *of == attempt && *from < step) else {
            self.since = Some((attempt, step, now));
            return;
        };
        let took = now.since(at);
        let is_known = self.widths.contains_key(&width) || self.widths.len() < WIDTHS_MAX;
        if took >= MEASURED_MIN && is_known {
            self.widths.insert(width, (step.0 - from.0, took));
        }
    }

    /// Returns the job's speed on `nodes` nodes, in thousandths of its speed on `least` nodes.
    pub(crate) fn speed_milli(&self, least: NonZeroU32, elastic: &Elastic, nodes: u32) -> u32 {
        let curve = |width: u32| u128::from(elastic.speed_up.speed_milli(width));
        let seen = || self.widths.range(least.get()..=elastic.nodes_max.get());
        let is_given = || elastic.speed_up != SpeedUp::assumed(least, elastic.nodes_max);
        let nearest = seen().rfind(|(width, _)| **width <= nodes).or_else(|| seen().next());
        let (Some(first), Some(nearest)) = (seen().next(), nearest) else {
            return elastic.speed_up.speed_milli(nodes);
        };
        if seen().nth(1).is_none() || nodes < least.get() || is_given() {
            return elastic.speed_up.speed_milli(nodes);
        }
        // These are steps and nanoseconds of one job's life, so the products are far below 2^128.
        let ((first, (steps, took)), (near, (near_steps, near_took))) = (first, nearest);
        let scaled = curve(*first).saturating_mul(u128::from(*near_steps)).saturating_mul(took.as_nanos());
        let at_nearest = scaled / (u128::from(*steps) * near_took.as_nanos()).max(1);
        let speed = at_nearest.saturating_mul(curve(nodes)) / curve(*near).max(1);
        u32::try_from(speed).unwrap_or(u32::MAX).max(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn count(nodes: u32) -> NonZeroU32 {
        NonZeroU32::new(nodes).expect("not zero")
    }

    fn assumed() -> Elastic {
        Elastic { nodes_max: count(8), speed_up: SpeedUp::assumed(count(1), count(8)) }
    }

    fn at(seconds: u64) -> Timestamp {
        Timestamp::EPOCH + Duration::from_secs(seconds)
    }

    /// Returns measurements of one attempt per width, each with two checkpoints ten minutes and the given
    /// number of steps apart.
    fn measured(widths: &[(u32, u64)]) -> Pace {
        let mut pace = Pace::default();
        for (number, (width, steps)) in (1..).zip(widths) {
            pace.note(at(0), *width, AttemptNumber(number), Step(100));
            pace.note(at(600), *width, AttemptNumber(number), Step(100 + steps));
        }
        pace
    }

    fn speeds(pace: &Pace, elastic: &Elastic) -> Vec<u32> {
        [1, 2, 3, 4, 8].map(|nodes| pace.speed_milli(count(1), elastic, nodes)).into()
    }

    #[test]
    fn one_width_says_nothing_of_others() {
        let assumed_speeds = [1_000, 1_800, 2_520, 3_240, 5_832];
        assert_eq!(speeds(&Pace::default(), &assumed()), assumed_speeds);
        assert_eq!(speeds(&measured(&[(4, 60)]), &assumed()), assumed_speeds);
    }

    #[test]
    fn widths_that_were_seen_are_as_measured_and_others_follow_the_nearest_below() {
        // Four nodes are measured at only 1.5 times the speed of one; the assumed curve passes through that
        // point.
        let pace = measured(&[(1, 100), (4, 150)]);
        assert_eq!(speeds(&pace, &assumed()), [1_000, 1_800, 2_520, 1_500, 1_500 * 5_832 / 3_240]);
        let from_two = measured(&[(2, 200), (4, 100)]);
        assert_eq!(speeds(&from_two, &assumed())[..4], [1_000, 1_800, 2_520, 900], "more nodes may be slower");
    }

    #[test]
    fn a_curve_that_was_given_stands() {
        let speed_up = SpeedUp::new(count(1), count(8), vec![(8, 6_000)]).expect("a curve");
        let given = Elastic { nodes_max: count(8), speed_up };
        assert_eq!(measured(&[(1, 100), (8, 100)]).speed_milli(count(1), &given, 8), 6_000);
    }

    #[test]
    fn only_checkpoints_of_one_attempt_long_enough_apart_measure() {
        let mut pace = Pace::default();
        pace.note(at(0), 2, AttemptNumber(1), Step(10));
        pace.note(at(59), 2, AttemptNumber(1), Step(20));
        pace.note(at(600), 4, AttemptNumber(2), Step(30));
        pace.note(at(900), 4, AttemptNumber(2), Step(25));
        assert!(pace.widths.is_empty(), "too soon, another attempt, a step back: {pace:?}");
        pace.note(at(1_000), 4, AttemptNumber(2), Step(35));
        assert_eq!(pace.widths, [(4, (10, Duration::from_secs(100)))].into());
        let many = (1..=100).map(|width| (width, 10)).collect::<Vec<_>>();
        assert_eq!(measured(&many).widths.len(), WIDTHS_MAX);
    }
}
