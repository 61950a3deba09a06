//! What the ranks measured, until the series store has it: their metrics by name, and how long each step and its phases
//! took.
//!
//! Keeps A-10: a rank has a limited number of names and of rows that wait. What is dropped is counted, and the counts are
//! metrics too, so they are seen where the gap is.

use std::collections::BTreeMap;
use std::time::Duration;

use gangline_base::{Measured, Phase, Step, Timestamp};

use super::outbox::Outbox;
use crate::protocol::SupervisorSpec;
use crate::protocol::metrics::{METRICS_VERSION, MetricAnswer, MetricBatch, MetricReport, MetricRow};
use crate::rank_protocol::RankMessage;

/// Names of metrics of one rank; values of further ones are dropped.
const NAMES_PER_RANK_MAX: usize = 512;
/// Bytes of a metric's name.
const NAME_BYTES_MAX: usize = 200;
/// Rows that wait, of all ranks of a node.
const ROWS_WAITING_MAX: usize = 8_192;
/// The least number of rows that may wait of one rank.
const ROWS_OF_RANK_MIN: usize = 64;
/// A message isn't said earlier than so long before it is read; a rank that tells such a time has another clock.
const DELAY_MAX: Duration = Duration::from_secs(600);
/// Rows in a report, of all ranks of a node; each has at most 64 metrics and a few of ours.
const ROWS_PER_REPORT: usize = 1_024;

/// How the names of our own metrics begin; ranks can't use it.
const OURS: &str = "gangline.";
/// Values that were dropped for their names.
pub(super) const REFUSED: &str = "gangline.refused_values";
/// Rows that were dropped because too many waited.
pub(super) const DROPPED: &str = "gangline.dropped_rows";
/// Seconds from one step to the next.
pub(super) const STEP_SECONDS: &str = "gangline.step_seconds";

/// See the module.
pub(super) struct Readings {
    ranks: Vec<OfRank>,
    /// Rows of each rank in a report.
    window: usize,
    /// Ranks with rows in the report that is on its way.
    on_its_way: Vec<usize>,
}

struct OfRank {
    number: u32,
    names: BTreeMap<String, u32>,
    rows: Outbox<MetricRow>,
    refused: u64,
    /// What was last reported of the two counts.
    told: (u64, u64),
    phases: Phases,
}

/// How long the rank was in each phase since its last step.
#[derive(Default)]
struct Phases {
    /// When the rank said its last message.
    heard: Timestamp,
    phase: Option<(Phase, Timestamp)>,
    since_step: BTreeMap<Phase, Duration>,
    last_step: Option<Timestamp>,
}

impl Readings {
    pub(super) fn of(spec: &SupervisorSpec) -> Readings {
        let count = usize::try_from(spec.ranks_per_node).unwrap_or(1).max(1);
        let waiting_max = (ROWS_WAITING_MAX / count).max(ROWS_OF_RANK_MIN);
        let of_rank = |local: u32| OfRank {
            number: spec.node_rank * spec.ranks_per_node + local,
            names: BTreeMap::new(),
            rows: Outbox::holding(waiting_max),
            refused: 0,
            told: (0, 0),
            phases: Phases::default(),
        };
        let ranks = (0..spec.ranks_per_node).map(of_rank).collect();
        Readings { ranks, window: (ROWS_PER_REPORT / count).max(1), on_its_way: Vec::new() }
    }

    /// Takes what a rank said.
    pub(super) fn hear(&mut self, now: Timestamp, local: u32, message: &RankMessage) {
        if let Some(rank) = usize::try_from(local).ok().and_then(|local| self.ranks.get_mut(local)) {
            rank.hear(now, message);
        }
    }

    /// Reports whether there is nothing to send.
    pub(super) fn is_empty(&self) -> bool {
        self.ranks.iter().all(|rank| rank.rows.is_empty())
    }

    /// Returns the next report, or the last one again if it wasn't answered; none if there is nothing to send.
    pub(super) fn report(&mut self, spec: &SupervisorSpec) -> Option<MetricReport> {
        self.on_its_way.clear();
        let mut batches = Vec::new();
        for (index, rank) in self.ranks.iter_mut().enumerate() {
            let (first, rows) = rank.rows.window(self.window);
            if rows.is_empty() {
                continue;
            }
            self.on_its_way.push(index);
            let mut names = vec![String::new(); rank.names.len()];
            for (name, place) in &rank.names {
                names[usize::try_from(*place).expect("it fits in memory")].clone_from(name);
            }
            batches.push(MetricBatch { rank: rank.number, first, names, rows });
        }
        let (job, attempt, epoch) = (spec.job, spec.attempt, spec.epoch);
        let node = spec.node.clone();
        (!batches.is_empty()).then_some(MetricReport { version: METRICS_VERSION, job, attempt, epoch, node, batches })
    }

    /// Takes the answer to the last report.
    pub(super) fn answered(&mut self, answer: &MetricAnswer) {
        for (index, stored) in self.on_its_way.iter().zip(&answer.stored) {
            self.ranks[*index].rows.acknowledge(*stored);
        }
    }

    /// Gives up the rows of the last report, which the control plane says it will never take.
    pub(super) fn refused(&mut self) {
        for index in &self.on_its_way {
            let rank = &mut self.ranks[*index];
            let (first, rows) = rank.rows.window(self.window);
            let count = u64::try_from(rows.len()).expect("a count fits in 64 bits");
            rank.rows.dropped += count;
            rank.rows.acknowledge(first + count);
        }
    }
}

impl OfRank {
    fn hear(&mut self, now: Timestamp, message: &RankMessage) {
        let now = self.phases.when(now, message.delay);
        let ours = self.phases.hear(now, message);
        let mut values = Vec::new();
        for (name, value) in message.readings.iter().map(|(name, value)| (name.as_str(), *value)) {
            match self.place_of(name) {
                Some(place) => values.push((place, Measured(value))),
                None => self.refused += 1,
            }
        }
        // The first refusal is told at once: there may be no other row after it.
        let is_first_refusal = self.told.0 == 0 && self.refused > 0;
        if values.is_empty() && ours.is_empty() && !is_first_refusal {
            return;
        }
        let counts = (self.refused, self.rows.dropped);
        let news = (counts != self.told).then_some([(REFUSED, whole(counts.0)), (DROPPED, whole(counts.1))]);
        self.told = counts;
        let ours = ours.iter().map(|(name, value)| (name.as_str(), *value)).chain(news.into_iter().flatten());
        for (name, value) in ours.collect::<Vec<_>>() {
            let place = self.reserve(name);
            values.push((place, Measured(value)));
        }
        self.rows.push(MetricRow { at: now.unix_nanos(), step: message.step.map(|Step(step)| step), values });
    }

    /// Returns the index of a metric's name, if it may have one.
    fn place_of(&mut self, name: &str) -> Option<u32> {
        let known = self.names.get(name).copied().filter(|_| !name.starts_with(OURS));
        let is_fine = !name.is_empty()
            && !name.starts_with(OURS)
            && name.len() <= NAME_BYTES_MAX
            && !name.contains(char::is_control);
        known.or_else(|| (is_fine && self.names.len() < NAMES_PER_RANK_MAX).then(|| self.reserve(name)))
    }

    fn reserve(&mut self, name: &str) -> u32 {
        let next = u32::try_from(self.names.len()).expect("names are limited");
        *self.names.entry(name.to_owned()).or_insert(next)
    }
}

impl Phases {
    /// Returns when the rank said what is read now. A supervisor that gets no processor reads several messages at a time, and what
    /// lies between them would count as nothing.
    fn when(&mut self, now: Timestamp, delay: Duration) -> Timestamp {
        let said = if delay <= DELAY_MAX { now - delay } else { now };
        self.heard = self.heard.max(said);
        self.heard
    }

    /// Returns the seconds of a step that ends with this message, in total and by phase.
    fn hear(&mut self, now: Timestamp, message: &RankMessage) -> Vec<(String, f64)> {
        if let Some((current, since)) = &mut self.phase {
            *self.since_step.entry(*current).or_default() += now.since(*since);
            *since = now;
        }
        for (phase, time) in &message.phase_times {
            let computing = self.since_step.entry(Phase::Compute).or_default();
            let moved = (*time).min(*computing);
            *computing -= moved;
            *self.since_step.entry(*phase).or_default() += moved;
        }
        let mut ended = Vec::new();
        if message.step.is_some() {
            let by_phase = std::mem::take(&mut self.since_step);
            if let Some(last) = self.last_step.replace(now) {
                ended.push((STEP_SECONDS.to_owned(), now.since(last).as_secs_f64()));
                let seconds = |(phase, time): (Phase, Duration)| (phase_metric(phase), time.as_secs_f64());
                ended.extend(by_phase.into_iter().map(seconds));
            }
        }
        self.phase = message.phase.map(|phase| (phase, now)).or(self.phase);
        ended
    }
}

/// Returns the name of the metric with the seconds of each step in a phase.
fn phase_metric(phase: Phase) -> String {
    format!("gangline.{}_seconds", phase.name())
}

#[expect(clippy::cast_precision_loss, reason = "nobody drops 2^53 values")]
fn whole(count: u64) -> f64 {
    count as f64
}

#[cfg(test)]
mod tests {
    use super::super::node_attempt_tests::tested::spec;
    use super::*;

    fn at(millis: u64) -> Timestamp {
        Timestamp::EPOCH + Duration::from_millis(millis)
    }

    fn said(line: &str) -> RankMessage {
        RankMessage::parse(line.as_bytes()).expect("a message")
    }

    /// The values of a batch's row by name.
    fn named(batch: &MetricBatch, row: usize) -> Vec<(&str, f64)> {
        let name = |place: u32| batch.names[usize::try_from(place).expect("small")].as_str();
        batch.rows[row].values.iter().map(|(place, value)| (name(*place), value.0)).collect()
    }

    #[test]
    fn all_metrics_of_every_rank_go_with_the_seconds_of_steps_and_phases() {
        let spec = spec(2, 1);
        let mut readings = Readings::of(&spec);
        readings.hear(at(0), 0, &said(r#"{"step":1,"loss":2.5,"phase":"data"}"#));
        readings.hear(at(300), 0, &said(r#"{"phase":"compute"}"#));
        readings.hear(at(1_000), 0, &said(r#"{"step":2,"loss":NaN,"tokens":64,"metrics":{"lr":3e-11}}"#));
        readings.hear(at(1_000), 1, &said(r#"{"step":2,"metrics":{"grad_norm":0.5}}"#));
        let report = readings.report(&spec).expect("something");
        let ranks: Vec<(u32, u64, usize)> =
            report.batches.iter().map(|batch| (batch.rank, batch.first, batch.rows.len())).collect();
        assert_eq!(ranks, [(0, 0, 2), (1, 0, 1)]);
        assert_eq!(named(&report.batches[0], 0), [("loss", 2.5)]);
        let second = named(&report.batches[0], 1);
        assert!(second[0].0 == "loss" && second[0].1.is_nan());
        let ours = [(STEP_SECONDS, 1.0), ("gangline.data_seconds", 0.3), ("gangline.compute_seconds", 0.7)];
        assert_eq!(second[1..], [&[("lr", 3e-11), ("tokens", 64.0)][..], &ours].concat());
        assert_eq!((report.batches[0].rows[1].step, named(&report.batches[1], 0)), (Some(2), vec![("grad_norm", 0.5)]));

        let stored = vec![1, 1];
        readings.answered(&MetricAnswer { version: METRICS_VERSION, stored });
        let again = readings.report(&spec).expect("a row is left");
        assert_eq!(again.batches.iter().map(|batch| (batch.rank, batch.first)).collect::<Vec<_>>(), [(0, 1)]);
        readings.answered(&MetricAnswer { version: METRICS_VERSION, stored: vec![2] });
        assert!(readings.is_empty() && readings.report(&spec).is_none());
    }

    /// Proves A-10 for metrics: names and rows of a rank are bounded, and what is dropped is said in metrics.
    #[test]
    fn too_many_names_and_rows_are_dropped_counted_and_said() {
        let spec = spec(1, 1);
        let mut readings = Readings::of(&spec);
        for number in 0..10_000 {
            readings.hear(at(number), 0, &said(&format!("{{\"metrics\":{{\"m{number}\":1}}}}")));
        }
        let report = readings.report(&spec).expect("something");
        assert_eq!(report.batches[0].names.len(), NAMES_PER_RANK_MAX + 2, "and the two counts");
        let first = named(&report.batches[0], NAMES_PER_RANK_MAX);
        assert_eq!(first, [(REFUSED, 1.0), (DROPPED, 0.0)], "said without a further metric");
        readings.hear(at(10_000), 0, &said(r#"{"metrics":{"gangline.step_seconds":1,"m0":7}}"#));
        let refused = 10_000 - u64::try_from(NAMES_PER_RANK_MAX).expect("small") + 1;
        assert_eq!(
            last_values(&mut readings, &spec),
            [("m0", 7.0), (REFUSED, whole(refused)), (DROPPED, 0.0)].map(owned)
        );

        for number in 0..100_000 {
            readings.hear(at(20_000 + number), 0, &said(r#"{"metrics":{"m0":1}}"#));
        }
        let dropped = readings.ranks[0].rows.dropped;
        assert!((80_000..100_000).contains(&dropped), "{dropped} rows were dropped");
        let last = last_values(&mut readings, &spec);
        assert!(last.iter().any(|(name, value)| name == DROPPED && *value > 80_000.0), "{last:?}");
    }

    #[test]
    fn times_of_phases_that_a_rank_measured_are_parts_of_its_step() {
        let spec = spec(1, 1);
        let mut readings = Readings::of(&spec);
        readings.hear(at(0), 0, &said(r#"{"step":1,"phase":"compute"}"#));
        readings.hear(at(1_000), 0, &said(r#"{"step":2,"phase_seconds":{"data":0.25,"communication":9}}"#));
        let report = readings.report(&spec).expect("something");
        let expected = [
            (STEP_SECONDS, 1.0),
            ("gangline.data_seconds", 0.0),
            ("gangline.compute_seconds", 0.0),
            ("gangline.communication_seconds", 1.0),
        ];
        assert_eq!(named(&report.batches[0], 0), expected, "no more than there was");
    }

    #[test]
    fn messages_that_are_read_late_count_from_when_they_were_said() {
        let spec = spec(1, 1);
        let mut readings = Readings::of(&spec);
        let late = |line: &str, delay: u64| RankMessage { delay: Duration::from_millis(delay), ..said(line) };
        readings.hear(at(1_000), 0, &late(r#"{"step":1,"phase":"data"}"#, 1_000));
        readings.hear(at(1_000), 0, &late(r#"{"phase":"compute"}"#, 700));
        readings.hear(at(1_000), 0, &late(r#"{"step":2}"#, 0));
        readings.hear(at(1_500), 0, &late(r#"{"step":3}"#, 900));
        readings.hear(at(2_000), 0, &late(r#"{"step":4}"#, 3_600_000));
        let report = readings.report(&spec).expect("something");
        let ours = |row: usize| named(&report.batches[0], row);
        let seconds = [(STEP_SECONDS, 1.0), ("gangline.data_seconds", 0.3), ("gangline.compute_seconds", 0.7)];
        assert_eq!(ours(0), seconds);
        assert_eq!(ours(1)[0], (STEP_SECONDS, 0.0), "no time goes back");
        assert_eq!(ours(2)[0], (STEP_SECONDS, 1.0), "an hour is no delay");
        let times: Vec<u64> = report.batches[0].rows.iter().map(|row| row.at / 1_000_000).collect();
        assert_eq!(times, [1_000, 1_000, 2_000]);
    }

    fn owned((name, value): (&str, f64)) -> (String, f64) {
        (name.to_owned(), value)
    }

    /// Delivers everything; the newest value of each metric in the last row that has counts, or else the last row.
    fn last_values(readings: &mut Readings, spec: &SupervisorSpec) -> Vec<(String, f64)> {
        let mut last = Vec::new();
        while let Some(report) = readings.report(spec) {
            let batch = &report.batches[0];
            for row in 0..batch.rows.len() {
                let values: Vec<_> = named(batch, row).into_iter().map(owned).collect();
                if last.is_empty() || values.iter().any(|(name, _)| name == DROPPED) {
                    last = values;
                }
            }
            let stored = vec![batch.first + u64::try_from(batch.rows.len()).expect("small")];
            readings.answered(&MetricAnswer { version: METRICS_VERSION, stored });
        }
        last
    }

    #[test]
    fn a_report_that_will_never_be_taken_is_given_up_and_counted() {
        let spec = spec(1, 1);
        let mut readings = Readings::of(&spec);
        readings.hear(at(0), 0, &said(r#"{"metrics":{"a":1}}"#));
        assert!(readings.report(&spec).is_some());
        readings.refused();
        assert!(readings.is_empty());
        readings.hear(at(1), 0, &said(r#"{"metrics":{"a":2}}"#));
        let report = readings.report(&spec).expect("the next row");
        assert_eq!(report.batches[0].first, 1);
        assert!(named(&report.batches[0], 0).contains(&(DROPPED, 1.0)));
    }
}
