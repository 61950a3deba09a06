//! Answers questions about measurements from a server that has them by remote write, for longer than the series store keeps them:
//! Prometheus, or what speaks its query language over HTTP (<https://prometheus.io/docs/prometheus/latest/querying/api/>), such as
//! VictoriaMetrics, Mimir or Thanos.
//!
//! A curve with few points is read as it was sent. Of one with more, each stretch of time has its last, smallest, largest and mean
//! value and their number, as the store's own have. What the server doesn't have, and all while it is away, is answered by the store.
//!
//! Keeps A-10: a question has a deadline, and an answer a largest size.

mod answer;
mod client;
mod selector;

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use gangline_base::{NodeName, Timestamp};
use gangline_telemetry::series::{Answer, Bucket, Curve, Elsewhere, Query, Resolution, Scope, Series, Source, fit};

use crate::export::{Label, REPORTED_STEP, Receiver};
use answer::Points;
use client::Client;
use selector::Selector;

/// How far back a question goes that doesn't say since when.
const HORIZON_MS: i64 = 400 * 24 * 3_600_000;
/// The most points of a curve: servers refuse more than 11,000.
const POINTS_MAX: usize = 10_000;
/// Samples that are read as they were sent, of all curves together; of more, stretches of time.
const SAMPLES_MAX: f64 = 2e6;
/// How often the time in which there are samples is narrowed down, each time to less than half.
const ROUNDS: usize = 8;
/// What is asked of each stretch of time: the functions of Prometheus' query language.
const SUMS: [&str; 5] = ["last_over_time", "min_over_time", "max_over_time", "avg_over_time", "count_over_time"];

/// See the module.
#[derive(Debug)]
pub struct RemoteRead {
    client: Client,
    /// Labels by which this cluster's series are told from others'.
    site: Vec<Label>,
    clock: fn() -> Timestamp,
    /// Why the last question had no answer.
    failure: Mutex<Option<String>>,
}

/// The smallest and the largest step of each source in stretches of time, by the stretch's end.
type StepsBySource = BTreeMap<Source, BTreeMap<i64, (u64, u64)>>;

/// A stretch of time, in milliseconds; it has both its ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Span {
    from: i64,
    to: i64,
}

impl Span {
    const fn length(self) -> i64 {
        self.to - self.from
    }
}

impl RemoteRead {
    /// Reads from a server; `receiver` has the URL below which `/api/v1/query` is, and the labels that this cluster's series were
    /// sent with.
    #[must_use]
    pub fn new(receiver: Receiver, clock: fn() -> Timestamp) -> RemoteRead {
        let site = receiver.labels.clone();
        RemoteRead { client: Client::new(receiver), site, clock, failure: Mutex::default() }
    }

    fn ask(&self, query: &Query) -> Result<Answer, String> {
        let selector = Selector::of(query, &self.site);
        let end = query.times.1.unwrap_or_else(self.clock).min((self.clock)());
        let to = ms(end);
        let span = Span { from: query.times.0.map_or(to - HORIZON_MS, ms), to };
        if span.length() < 0 {
            return Ok(Answer::default());
        }
        // A short stretch of time of which every point is wanted needs no count.
        if query.resolution == Some(Resolution::Point) && query.times.0.is_some() && !query.has_steps() {
            return self.points(query, &selector, span);
        }
        let counts = self.client.vector(&selector.over("count_over_time", span.length()), to)?;
        let wanted = |(labels, count): (BTreeMap<String, String>, f64)| {
            answer::series(&query.scope, &labels)
                .filter(|series| is_wanted(query, series))
                .map(|series| (series, count))
        };
        let counts: Vec<(Series, f64)> = counts.into_iter().filter_map(wanted).collect();
        let most = counts.iter().map(|(_, count)| *count).fold(0.0, f64::max);
        let all: f64 = counts.iter().map(|(_, count)| *count).sum();
        if counts.is_empty() {
            return Ok(Answer::default());
        }
        if most <= number(budget(query)) && all <= SAMPLES_MAX {
            return self.points(query, &selector, span);
        }
        let span = self.narrowed(query, &selector, span)?;
        self.stretches(query, &selector, span)
    }

    /// Every point of some nodes in the query's time, which has a beginning.
    fn ask_nodes(&self, nodes: &[NodeName], query: &Query) -> Result<BTreeMap<NodeName, Answer>, String> {
        let to = ms(query.times.1.unwrap_or_else(self.clock).min((self.clock)()));
        let span = Span { from: query.times.0.map_or(to - HORIZON_MS, ms), to };
        if span.length() < 0 {
            return Ok(BTreeMap::new());
        }
        let selector = Selector::of_nodes(nodes, query, &self.site);
        let mut found: BTreeMap<NodeName, BTreeMap<Series, Vec<Bucket>>> = BTreeMap::new();
        for (labels, points) in self.client.matrix(&selector.within(span.length()), span.to)? {
            let Some(node) = labels.get("node").and_then(|name| NodeName::new(name).ok()) else { continue };
            let series = answer::series(&Scope::Node(node.clone()), &labels).filter(|series| is_wanted(query, series));
            let Some(series) = series else { continue };
            let points = points.into_iter().filter(|(at, _)| *at >= span.from);
            let buckets = points.map(|(at, value)| answer::point(at, None, value)).collect();
            found.entry(node).or_default().insert(series, buckets);
        }
        Ok(found.into_iter().map(|(node, curves)| (node, limited(query, curves.into_iter()))).collect())
    }

    /// Every point, and its step if one was sent with it.
    fn points(&self, query: &Query, selector: &Selector, span: Span) -> Result<Answer, String> {
        let matrix = self.client.matrix(&selector.within(span.length()), span.to)?;
        let mut steps: BTreeMap<Source, BTreeMap<i64, u64>> = BTreeMap::new();
        let mut found: BTreeMap<Series, Points> = BTreeMap::new();
        for (labels, points) in matrix {
            let Some(series) = answer::series(&query.scope, &labels) else { continue };
            if series.metric == REPORTED_STEP {
                steps.insert(series.source, points.iter().map(|(at, step)| (*at, whole(*step))).collect());
            } else if is_wanted(query, &series) {
                found.insert(series, points);
            }
        }
        let curves = found.into_iter().map(|(series, points)| {
            let steps = steps.get(&series.source);
            let bucket = |(at, value): (i64, f64)| answer::point(at, steps.and_then(|steps| steps.get(&at)), value);
            (series, points.into_iter().filter(|(at, _)| *at >= span.from).map(bucket).collect())
        });
        Ok(limited(query, curves))
    }

    /// Returns the part of a stretch of time in which there are samples, and the wanted steps.
    fn narrowed(&self, query: &Query, selector: &Selector, mut span: Span) -> Result<Span, String> {
        let most = if query.has_steps() { POINTS_MAX } else { budget(query) };
        for _ in 0..ROUNDS {
            let width = width(span, most.max(16));
            let named = self.client.named(width)?;
            let found = if query.has_steps() {
                self.times_of_steps(query, span, width)?
            } else {
                let counts = self.client.range(&selector.over_later("count_over_time", named), span, width)?;
                counts.into_iter().flat_map(|(_, points)| points).map(|(at, _)| at).collect()
            };
            let (Some(first), Some(last)) = (found.iter().min(), found.iter().max()) else { return Ok(span) };
            let part = Span { from: span.from.max(first - width), to: span.to.min(*last) };
            let is_enough = part.length() * 2 > span.length();
            span = part;
            if is_enough {
                break;
            }
        }
        Ok(span)
    }

    /// Returns the ends of the stretches of time in which a source reported one of the wanted steps.
    fn times_of_steps(&self, query: &Query, span: Span, width: i64) -> Result<Vec<i64>, String> {
        let steps = self.steps(query, span, width)?;
        let (low, high) = query.steps_wanted();
        let is_wanted = |(first, last): (u64, u64)| first <= high && low <= last;
        Ok(steps.into_values().flatten().filter(|(_, steps)| is_wanted(*steps)).map(|(at, _)| at).collect())
    }

    /// Returns the smallest and the largest step of each source in each stretch of time, by the stretch's end.
    fn steps(&self, query: &Query, span: Span, width: i64) -> Result<StepsBySource, String> {
        let mut steps = StepsBySource::new();
        if !matches!(query.scope, Scope::Job(_)) {
            return Ok(steps);
        }
        let (selector, named) = (Selector::of_steps(query, &self.site), self.client.named(width)?);
        let ends = |function| self.client.range(&selector.over_later(function, named), span, width);
        let (least, most) = (ends("min_over_time")?, ends("max_over_time")?);
        for (labels, points) in least {
            let Some(series) = answer::series(&query.scope, &labels) else { continue };
            steps
                .entry(series.source)
                .or_default()
                .extend(points.iter().map(|(at, step)| (*at, (whole(*step), u64::MAX))));
        }
        for (labels, points) in most {
            let Some(series) = answer::series(&query.scope, &labels) else { continue };
            let known = steps.entry(series.source).or_default();
            for (at, step) in points {
                known.entry(at).and_modify(|(_, last)| *last = whole(step));
            }
        }
        Ok(steps)
    }

    /// The sums of equal stretches of time.
    fn stretches(&self, query: &Query, selector: &Selector, span: Span) -> Result<Answer, String> {
        let width = width(span, budget(query));
        let named = self.client.named(width)?;
        let mut sums: BTreeMap<Series, BTreeMap<i64, [f64; SUMS.len()]>> = BTreeMap::new();
        for (place, function) in SUMS.into_iter().enumerate() {
            for (labels, points) in self.client.range(&selector.over_later(function, named), span, width)? {
                let series = answer::series(&query.scope, &labels).filter(|series| is_wanted(query, series));
                let Some(series) = series else { continue };
                let known = sums.entry(series).or_default();
                points
                    .iter()
                    .for_each(|(at, value)| known.entry(*at).or_insert([f64::NAN; SUMS.len()])[place] = *value);
            }
        }
        let steps = self.steps(query, span, width)?;
        let curves = sums.into_iter().map(|(series, sums)| {
            let steps = steps.get(&series.source);
            let bucket = |(end, sums): (i64, [f64; SUMS.len()])| {
                answer::stretch((end - width, end), steps.and_then(|steps| steps.get(&end)).copied(), sums)
            };
            (series, sums.into_iter().map(bucket).collect())
        });
        Ok(limited(query, curves))
    }
}

impl Elsewhere for RemoteRead {
    fn query(&self, query: &Query) -> Option<Answer> {
        self.told(self.ask(query))
    }

    fn query_nodes(&self, nodes: &[NodeName], query: &Query) -> Option<BTreeMap<NodeName, Answer>> {
        self.told(self.ask_nodes(nodes, query))
    }

    fn failure(&self) -> Option<String> {
        self.failure.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl RemoteRead {
    /// Notes whether a question was answered, and says so if that has changed.
    fn told<T>(&self, asked: Result<T, String>) -> Option<T> {
        let mut failure = self.failure.lock().unwrap_or_else(PoisonError::into_inner);
        let url = self.client.url();
        match (&asked, &*failure) {
            (Err(why), None) => {
                tracing::warn!(url, why, "the server of measurements can't answer; the series store does");
            }
            (Ok(_), Some(_)) => tracing::info!(url, "the server of measurements answers again"),
            _ => {}
        }
        *failure = asked.as_ref().err().cloned();
        asked.ok()
    }
}

/// Returns the curves of an answer, within the question's limits.
fn limited(query: &Query, curves: impl Iterator<Item = (Series, Vec<Bucket>)>) -> Answer {
    let mut answer = Answer::default();
    for (series, buckets) in curves {
        let is_wanted = |bucket: &Bucket| {
            let steps = bucket.steps.map(|(first, last)| (first.0, last.0));
            query.touches((bucket.at_ms, bucket.last_ms), steps)
        };
        let buckets: Vec<Bucket> = buckets.into_iter().filter(is_wanted).collect();
        if buckets.is_empty() {
            continue;
        }
        if answer.curves.len() >= query.curves_max {
            answer.left_out += 1;
            continue;
        }
        let buckets = fit(buckets, query.points_max);
        answer.curves.push(Curve { series, resolution: Resolution::Point, buckets, unreadable: 0 });
    }
    answer
}

fn is_wanted(query: &Query, series: &Series) -> bool {
    series.metric != REPORTED_STEP && query.asks_for(&series.source, &series.metric)
}

fn budget(query: &Query) -> usize {
    query.points_max.clamp(1, POINTS_MAX)
}

/// Returns the width of so many stretches of a time, in milliseconds.
fn width(span: Span, count: usize) -> i64 {
    let count = i64::try_from(count).expect("it is limited");
    (span.length() + count - 1).div_euclid(count).max(1)
}

fn ms(at: Timestamp) -> i64 {
    i64::try_from(at.unix_nanos() / 1_000_000).expect("2^64 nanoseconds are fewer than 2^63 milliseconds")
}

#[expect(clippy::cast_precision_loss, reason = "it is limited")]
fn number(count: usize) -> f64 {
    count as f64
}

/// Returns a step that was sent as a number.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "it is clamped to what a step can be")]
fn whole(step: f64) -> u64 {
    step.clamp(0.0, 9.0e15).round() as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_is_divided_into_stretches_of_whole_milliseconds() {
        let span = |from, to| Span { from, to };
        assert_eq!((width(span(0, 10), 3), width(span(5, 5), 3), width(span(0, 9), 3)), (4, 1, 3));
    }
}
