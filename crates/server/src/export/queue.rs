//! Samples that wait, and what their series are called.
//!
//! A receiver refuses a whole request for one sample that isn't newer than the last one of its series, so those are left out: the
//! rows of a report that was repeated, and all but the first of a millisecond.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;

use gangline_base::Step;
use gangline_telemetry::collectors::metric_named;
use gangline_telemetry::series::{Batch, Scope, Source};

/// Samples that wait at most: about half an hour of a thousand ranks with a metric a second, 32 bytes each.
const SAMPLES_MAX: usize = 2_000_000;
/// Series that are known at most.
const SERIES_MAX: usize = 500_000;
/// Milliseconds after its last sample for which a series is known, if there are too many.
const KNOWN_FOR_MS: i64 = 3_600_000;
/// What names begin with.
const PREFIX: &str = "gangline_";
/// What names of metrics of ranks begin with, and what they have in the store if the supervisor measures them.
const OF_RANKS: &str = "gangline_rank_";
const OF_SUPERVISORS: &str = "gangline.";

/// The label with the name that the metric has here, which the series' own name doesn't tell whole.
pub(crate) const METRIC: &str = "metric";
/// The metric that says which step the other values of the same time and source belong to.
pub(crate) const REPORTED_STEP: &str = "gangline.reported_step";

/// A label: name and value.
pub(crate) type Label = (String, String);

/// A value of a series.
#[derive(Clone, Debug)]
pub(super) struct Sample {
    pub(super) labels: Arc<[Label]>,
    /// Milliseconds since 1970.
    pub(super) at_ms: i64,
    pub(super) value: f64,
}

#[derive(Debug)]
struct Known {
    labels: Arc<[Label]>,
    last_ms: i64,
}

/// See the module.
#[derive(Debug)]
pub(super) struct Queue {
    /// Labels that all series get.
    site: Vec<Label>,
    known: BTreeMap<Source, HashMap<String, Known>>,
    count: usize,
    waiting: VecDeque<Sample>,
    dropped: u64,
}

impl Queue {
    pub(super) fn new(site: Vec<Label>) -> Queue {
        Queue { site, known: BTreeMap::new(), count: 0, waiting: VecDeque::new(), dropped: 0 }
    }

    pub(super) fn len(&self) -> usize {
        self.waiting.len()
    }

    /// Returns the number of samples that were given up for want of room.
    pub(super) fn dropped(&self) -> u64 {
        self.dropped
    }

    /// Adds what is new in a batch.
    pub(super) fn offer(&mut self, batch: &Batch) {
        for row in &batch.rows {
            let at_ms = i64::try_from(row.at.unix_nanos() / 1_000_000).unwrap_or(i64::MAX);
            for (name, value) in &row.values {
                let name = usize::try_from(*name).ok().and_then(|name| batch.names.get(name));
                name.into_iter().for_each(|name| self.push(&batch.source, name, at_ms, *value));
            }
            if let Some(step) = row.step {
                self.push(&batch.source, REPORTED_STEP, at_ms, number(step));
            }
        }
    }

    /// Adds a value, if it is newer than the last one of its series.
    fn push(&mut self, source: &Source, name: &str, at_ms: i64, value: f64) {
        let Some(labels) = self.series(source, name, at_ms) else { return };
        self.waiting.push_back(Sample { labels, at_ms, value });
        if self.waiting.len() > SAMPLES_MAX {
            self.waiting.pop_front();
            self.dropped += 1;
        }
    }

    /// Takes the oldest samples out.
    pub(super) fn take(&mut self, most: usize) -> Vec<Sample> {
        let count = most.min(self.waiting.len());
        self.waiting.drain(..count).collect()
    }

    /// Returns the labels of a series for a sample of this time; none if it isn't newer than the last one.
    fn series(&mut self, source: &Source, name: &str, at_ms: i64) -> Option<Arc<[Label]>> {
        if let Some(known) = self.known.get_mut(source).and_then(|of_source| of_source.get_mut(name)) {
            let is_newer = at_ms > known.last_ms;
            known.last_ms = known.last_ms.max(at_ms);
            return is_newer.then(|| Arc::clone(&known.labels));
        }
        if self.count >= SERIES_MAX {
            self.forget(at_ms - KNOWN_FOR_MS);
        }
        let labels: Arc<[Label]> = labels(&self.site, source, name).into();
        let known = Known { labels: Arc::clone(&labels), last_ms: at_ms };
        self.known.entry(source.clone()).or_default().insert(name.to_owned(), known);
        self.count += 1;
        Some(labels)
    }

    /// Forgets series without a sample since this time; all, if that is none. A report that is repeated after that may be
    /// refused.
    fn forget(&mut self, before_ms: i64) {
        for of_source in self.known.values_mut() {
            of_source.retain(|_, known| known.last_ms >= before_ms);
        }
        self.known.retain(|_, of_source| !of_source.is_empty());
        self.count = self.known.values().map(HashMap::len).sum();
        if self.count >= SERIES_MAX {
            (self.known, self.count) = (BTreeMap::new(), 0);
        }
    }
}

/// Returns the labels of a series, by name as receivers expect them.
fn labels(site: &[Label], source: &Source, metric: &str) -> Vec<Label> {
    let mut labels: BTreeMap<&str, String> = site.iter().map(|(name, value)| (name.as_str(), value.clone())).collect();
    let name = match &source.scope {
        Scope::Job(job) => {
            labels.insert("job_id", job.to_string());
            format!("{OF_RANKS}{}", metric.strip_prefix(OF_SUPERVISORS).unwrap_or(metric))
        }
        Scope::Node(_) => {
            let known = metric_named(metric).map_or(metric, |known| known.name);
            if let Some(part) = metric.get(known.len() + 1..) {
                labels.insert("part", part.to_owned());
            }
            format!("{PREFIX}{known}")
        }
    };
    labels.insert("__name__", name.chars().map(plain).collect());
    labels.insert(METRIC, metric.to_owned());
    let node = match &source.scope {
        Scope::Node(node) => Some(node),
        Scope::Job(_) => source.node.as_ref(),
    };
    labels.extend(node.map(|node| ("node", node.to_string())));
    labels.extend(source.attempt.map(|attempt| ("attempt", attempt.0.to_string())));
    labels.extend(source.rank.map(|rank| ("rank", rank.to_string())));
    labels.extend(source.device.map(|device| ("gpu", device.to_string())));
    labels.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
}

#[expect(clippy::cast_precision_loss, reason = "no run has 2^53 steps")]
fn number(step: Step) -> f64 {
    step.0 as f64
}

fn plain(letter: char) -> char {
    if letter.is_ascii_alphanumeric() || letter == '_' || letter == ':' { letter } else { '_' }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use gangline_base::{AttemptNumber, JobId, NodeName, Timestamp};
    use gangline_telemetry::series::Row;

    use super::*;

    fn source(rank: u32) -> Source {
        let node = Some(NodeName::new("n1").expect("a name"));
        Source { scope: Scope::Job(JobId(3)), attempt: Some(AttemptNumber(2)), node, rank: Some(rank), device: None }
    }

    fn batch(rank: u32, millis: &[u64]) -> Batch {
        let row =
            |at: &u64| Row { at: Timestamp::EPOCH + Duration::from_millis(*at), step: None, values: vec![(0, 1.0)] };
        Batch { source: source(rank), first: 0, names: vec!["loss".to_owned()], rows: millis.iter().map(row).collect() }
    }

    #[test]
    fn what_is_not_newer_than_the_last_of_its_series_is_left_out() {
        let mut queue = Queue::new(Vec::new());
        for batch in [batch(0, &[5, 5, 7]), batch(1, &[6]), batch(0, &[5, 7, 8])] {
            queue.offer(&batch);
        }
        assert_eq!(queue.dropped(), 0);
        let times = |samples: Vec<Sample>| samples.iter().map(|sample| sample.at_ms).collect::<Vec<_>>();
        assert_eq!(times(queue.take(2)), [5, 7]);
        assert_eq!((times(queue.take(9)), queue.len()), (vec![6, 8], 0));
    }

    #[test]
    fn the_step_of_values_is_a_value_of_the_same_time() {
        let mut queue = Queue::new(Vec::new());
        let mut batch = batch(0, &[5, 7]);
        (batch.rows[0].step, batch.rows[1].step) = (Some(Step(40)), Some(Step(41)));
        queue.offer(&batch);
        let said = |sample: &Sample| {
            let metric = sample.labels.iter().find(|(name, _)| name == METRIC).expect("it has one");
            (metric.1.clone(), sample.at_ms, sample.value)
        };
        let step = |at, value| (REPORTED_STEP.to_owned(), at, value);
        let loss = |at| ("loss".to_owned(), at, 1.0);
        let all: Vec<_> = queue.take(9).iter().map(said).collect();
        assert_eq!(all, [loss(5), step(5, 40.0), loss(7), step(7, 41.0)]);
    }

    #[test]
    fn series_have_names_that_receivers_take_and_labels_in_their_order() {
        let named = |source: &Source, metric: &str| {
            let site = [("cluster".to_owned(), "a".to_owned())];
            let labels = labels(&site, source, metric);
            let sorted = labels.windows(2).all(|pair| pair[0].0 < pair[1].0);
            assert!(sorted, "{labels:?}");
            labels.iter().map(|(name, value)| format!("{name}={value}")).collect::<Vec<_>>().join(" ")
        };
        let of_rank = |name: &str, metric: &str| {
            let expected = format!(
                "__name__=gangline_rank_{name} attempt=2 cluster=a job_id=job-3 metric={metric} node=n1 rank=7"
            );
            assert_eq!(named(&source(7), metric), expected);
        };
        of_rank("grad_norm_l2", "grad.norm/l2");
        of_rank("step_seconds", "gangline.step_seconds");
        let node = NodeName::new("n1").expect("a name");
        let of_node =
            |device| Source { scope: Scope::Node(node.clone()), attempt: None, node: None, rank: None, device };
        let gpu = named(&of_node(Some(3)), "gpu.sm_active_ratio");
        assert_eq!(gpu, "__name__=gangline_gpu_sm_active_ratio cluster=a gpu=3 metric=gpu.sm_active_ratio node=n1");
        let disk = named(&of_node(None), "host.filesystem_used_ratio./data");
        let expected = "__name__=gangline_host_filesystem_used_ratio cluster=a metric=host.filesystem_used_ratio./data node=n1 part=/data";
        assert_eq!(disk, expected);
    }
}
