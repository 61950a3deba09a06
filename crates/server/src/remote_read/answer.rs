//! A server's answer as the series store has it.

use std::collections::BTreeMap;

use gangline_base::{AttemptNumber, NodeName, Step, Timestamp};
use gangline_telemetry::series::{Bucket, Point, Scope, Series, Source};

use crate::export::METRIC;

/// Values by time in milliseconds.
pub(super) type Points = Vec<(i64, f64)>;

/// Returns the series of this scope that has these labels; none if it is not one of ours.
pub(super) fn series(scope: &Scope, labels: &BTreeMap<String, String>) -> Option<Series> {
    let number = |name: &str| labels.get(name).map(|value| value.parse::<u32>()).transpose().ok();
    let node = labels.get("node").map(|name| NodeName::new(name)).transpose().ok()?;
    let node = if matches!(scope, Scope::Node(_)) { None } else { node };
    let (attempt, rank, device) = (number("attempt")?.map(AttemptNumber), number("rank")?, number("gpu")?);
    let source = Source { scope: scope.clone(), attempt, node, rank, device };
    Some(Series { source, metric: labels.get(METRIC)?.clone() })
}

/// Returns a value as it is written: also `NaN`, `+Inf` and `-Inf`.
pub(super) fn value(text: &str) -> Result<f64, String> {
    text.parse().map_err(|_| format!("its answer has \"{text}\" as a value"))
}

pub(super) fn points(values: &[(f64, String)]) -> Result<Points, String> {
    values.iter().map(|(at, text)| Ok((milliseconds(*at), value(text)?))).collect()
}

/// Returns a single point.
pub(super) fn point(at: i64, step: Option<&u64>, value: f64) -> Bucket {
    Bucket::of(&Point { at: of_ms(at), step: step.copied().map(Step), value })
}

/// Returns what is known of a stretch of time: its last, smallest, largest and mean value, and the number of values. Where the mean
/// is no number, some value wasn't, and the server doesn't say how many.
pub(super) fn stretch((from, to): (i64, i64), steps: Option<(u64, u64)>, sums: [f64; 5]) -> Bucket {
    let [last, min, max, mean, count] = sums;
    let is_finite = [min, max, mean].iter().all(|value| value.is_finite());
    let count = super::whole(count);
    Bucket {
        at_ms: from,
        steps: steps.map(|(first, last)| (Step(first), Step(last))),
        count: if is_finite { count } else { 0 },
        not_finite: if is_finite { 0 } else { count },
        min: if is_finite { min } else { f64::INFINITY },
        max: if is_finite { max } else { f64::NEG_INFINITY },
        sum: if is_finite { mean * number(count) } else { 0.0 },
        last_ms: to,
        last,
    }
}

#[expect(clippy::cast_precision_loss, reason = "no stretch has 2^53 values")]
fn number(count: u64) -> f64 {
    count as f64
}

#[expect(clippy::cast_possible_truncation, reason = "times are far below 2^53 milliseconds")]
fn milliseconds(seconds: f64) -> i64 {
    (seconds * 1_000.0).round() as i64
}

fn of_ms(ms: i64) -> Timestamp {
    Timestamp::from_unix_nanos(u64::try_from(ms).unwrap_or_default().saturating_mul(1_000_000))
}

#[cfg(test)]
mod tests {
    use gangline_base::JobId;

    use super::*;

    #[test]
    fn labels_say_which_series_it_is_and_strangers_are_none() {
        let labels =
            |pairs: &[(&str, &str)]| pairs.iter().map(|(name, value)| ((*name).into(), (*value).into())).collect();
        let scope = Scope::Job(JobId(3));
        let ours = labels(&[("metric", "loss"), ("attempt", "2"), ("rank", "7"), ("node", "n1"), ("cluster", "a")]);
        let found = series(&scope, &ours).expect("it is ours");
        assert_eq!((found.metric.as_str(), found.source.rank), ("loss", Some(7)));
        assert_eq!(
            (found.source.attempt, found.source.node.as_ref().map(NodeName::as_str)),
            (Some(AttemptNumber(2)), Some("n1"))
        );
        assert_eq!(series(&scope, &labels(&[("attempt", "2")])), None);
        assert_eq!(series(&scope, &labels(&[("metric", "loss"), ("rank", "first")])), None);
    }

    #[test]
    fn values_that_are_no_numbers_are_read_and_counted() {
        assert!(value("NaN").is_ok_and(f64::is_nan) && value("+Inf").is_ok_and(|value| value == f64::INFINITY));
        assert!(value("x").is_err());
        let sums = stretch((1_000, 2_000), Some((4, 6)), [3.0, 1.0, 3.0, 2.0, 3.0]);
        assert_eq!((sums.mean(), sums.count, sums.last, sums.steps), (Some(2.0), 3, 3.0, Some((Step(4), Step(6)))));
        let unknown = stretch((1_000, 2_000), None, [f64::NAN, 1.0, 3.0, f64::NAN, 3.0]);
        assert_eq!((unknown.mean(), unknown.not_finite), (None, 3));
    }
}
