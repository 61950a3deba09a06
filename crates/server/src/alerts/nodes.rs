//! What the agents of nodes read, as rules take it, and how busy the GPUs of running jobs are.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use gangline_api as api;
use gangline_base::{AcceleratorKind, JobId, NodeName, Timestamp};
use gangline_telemetry::alerts::{Measure, Reading, Rule, Signal, Subject};
use gangline_telemetry::collectors::{Kind, metric_named};
use gangline_telemetry::series::{self, Bucket, Curve, Resolution, Scope};

use super::readings::{number, reading};

/// The stretch of time that is looked at, and over which the growth of counters is taken.
const RECENT: Duration = Duration::from_secs(5 * 60);
/// The stretch of time over which the mean is taken. An agent that reads more seldom is taken by its newest reading.
const LAST: Duration = Duration::from_secs(60);
/// Points of each curve: at one reading every five seconds, all of them.
const POINTS: usize = 64;
/// Curves of a node.
const CURVES_MAX: usize = 4_000;
/// Nodes that are looked at.
const NODES_MAX: usize = 5_000;
/// Part of the time in which a GPU was busy.
const UTILIZATION: &str = "gpu.utilization_ratio";

/// Which job holds a device of a node.
pub(super) type Holders = BTreeMap<(String, u32), JobId>;

/// Returns who holds what. Slots of CPUs aren't devices that agents read, though they have the same numbers.
pub(super) fn holders(jobs: &[(JobId, api::Job)]) -> Holders {
    let mut holders = Holders::new();
    let has_gpus = |job: &api::Job| job.state == api::JobState::Running && job.gang.accelerator != AcceleratorKind::CPU;
    for (id, job) in jobs.iter().filter(|(_, job)| has_gpus(job)) {
        for share in job.attempts.last().into_iter().flat_map(|attempt| &attempt.shares) {
            holders.extend(share.devices.iter().map(|device| ((share.node.clone(), *device), *id)));
        }
    }
    holders
}

/// Returns the metrics of nodes that rules look at.
pub(super) fn metrics_of<'a>(rules: impl Iterator<Item = &'a Rule>) -> BTreeSet<String> {
    let of_rule = |rule: &'a Rule| match &rule.measure {
        Measure::NodeMetric(name) => Some(name.clone()),
        Measure::Signal(Signal::GpuUtilization) => Some(UTILIZATION.to_owned()),
        Measure::Signal(_) | Measure::Metric(_) => None,
    };
    rules.filter_map(of_rule).collect()
}

/// Reads these metrics of all nodes.
pub(super) fn read(
    series: &series::Handle,
    nodes: &[NodeName],
    metrics: &BTreeSet<String>,
    holders: &Holders,
    now: Timestamp,
) -> Result<Vec<Reading>, series::Error> {
    let mut readings = Vec::new();
    if metrics.is_empty() {
        return Ok(readings);
    }
    let nodes = &nodes[..nodes.len().min(NODES_MAX)];
    let Some(first) = nodes.first() else { return Ok(readings) };
    let query = series::Query {
        metrics: metrics.iter().cloned().collect(),
        with_parts: true,
        times: (Some(now - RECENT), Some(now)),
        resolution: Some(Resolution::Point),
        ..series::Query::all(Scope::Node(first.clone()), POINTS, CURVES_MAX)
    };
    for (node, answer) in series.query_nodes(nodes, &query)? {
        readings.extend(answer.curves.iter().flat_map(|curve| of_curve(&node, curve, holders, now)));
    }
    Ok(readings)
}

/// Returns what a curve says of its node, and of the job that holds the device.
fn of_curve(node: &NodeName, curve: &Curve, holders: &Holders, now: Timestamp) -> Vec<Reading> {
    let Some(metric) = metric_named(&curve.series.metric) else { return Vec::new() };
    let value = match metric.kind {
        Kind::Total => Some(growth(&curve.buckets)),
        Kind::Gauge | Kind::Rate => mean_of_last(&curve.buckets, now - LAST),
    };
    let Some(value) = value else { return Vec::new() };
    let device = curve.series.source.device;
    let holder = device.and_then(|device| holders.get(&(node.to_string(), device)));
    let part = match (device, curve.series.metric.get(metric.name.len() + 1..)) {
        (Some(device), _) => {
            let by = holder.map(|job| format!(" ({job})")).unwrap_or_default();
            Some(format!("GPU {device}{by}"))
        }
        (None, part) => part.filter(|part| !part.is_empty()).map(str::to_owned),
    };
    let measure = Measure::NodeMetric(metric.name.to_owned());
    let mut readings = vec![Reading { measure, subject: Subject::Node(node.clone()), part, value }];
    if let (UTILIZATION, Some(device), Some(job)) = (metric.name, device, holder) {
        let part = Some(format!("GPU {device} on {node}"));
        readings.push(reading(Signal::GpuUtilization, Subject::Job(*job), part, value));
    }
    readings
}

/// Returns by how much a counter grew. One that goes back was started anew.
fn growth(buckets: &[Bucket]) -> f64 {
    let begin = buckets.first().map_or(0.0, |first| first.last - first.min);
    let steps = buckets.windows(2).map(|pair| pair[1].last - pair[0].last);
    steps.chain([begin]).filter(|step| step.is_finite() && *step > 0.0).sum()
}

/// Returns the mean of all values since `from`; the newest one if there is none.
fn mean_of_last(buckets: &[Bucket], from: Timestamp) -> Option<f64> {
    let recent = buckets.iter().filter(|bucket| bucket.at() >= from);
    let weighted = recent.filter_map(|bucket| Some((bucket.mean()?, number(bucket.count))));
    let (sum, count) =
        weighted.fold((0.0, 0.0), |(sum, all): (f64, f64), (mean, count)| (sum + mean * count, all + count));
    if count > 0.0 { Some(sum / count) } else { buckets.last().map(|newest| newest.last) }
}

#[cfg(test)]
mod tests {
    use gangline_telemetry::series::{Batch, Keep, Limits, Options, Row, Service, Source};

    use super::*;

    fn at(seconds: u64) -> Timestamp {
        Timestamp::EPOCH + Duration::from_secs(1_800_000_000 + seconds)
    }

    /// A batch of one metric of a node or a device, one value every ten seconds.
    fn batch(device: Option<u32>, name: &str, values: &[f64]) -> Batch {
        let node = NodeName::new("n1").expect("a name");
        let source = Source { scope: Scope::Node(node.clone()), attempt: None, node: Some(node), rank: None, device };
        let rows =
            (0..).zip(values).map(|(row, value)| Row { at: at(row * 10), step: None, values: vec![(0, *value)] });
        Batch { source, first: 0, names: vec![name.to_owned()], rows: rows.collect() }
    }

    /// What rules see at `now` of these batches.
    fn seen(batches: Vec<Batch>, metrics: &[&str], holders: &Holders, now: u64) -> Vec<(String, Option<String>, f64)> {
        let folder = tempfile::tempdir().expect("a folder");
        let options = Options { limits: Limits::default(), keep: Keep::default(), clock: || at(0) };
        let service = Service::start(folder.path().to_owned(), options).expect("it starts");
        let handle = service.handle();
        let (reply, stored) = std::sync::mpsc::channel();
        for batch in batches {
            let reply = reply.clone();
            handle.take(batch, move |outcome| drop(reply.send(outcome)));
            stored.recv().expect("an answer").expect("it is stored");
        }
        let nodes = [NodeName::new("n1").expect("a name")];
        let metrics = metrics.iter().map(|name| (*name).to_owned()).collect();
        let readings = read(&handle, &nodes, &metrics, holders, at(now)).expect("they can be read");
        service.stop();
        let measured = |measure: Measure| match measure {
            Measure::Signal(signal) => signal.name().to_owned(),
            Measure::Metric(name) | Measure::NodeMetric(name) => name,
        };
        let shown = |reading: Reading| {
            let part = reading.part.map(|part| format!("{}: {part}", reading.subject));
            (measured(reading.measure), part, reading.value)
        };
        readings.into_iter().map(shown).collect()
    }

    #[test]
    fn a_gauge_is_the_mean_of_a_minute_and_a_counter_what_it_grew_by() {
        let cold = [vec![40.0; 10], vec![90.0; 4]].concat();
        let found = seen(
            vec![batch(Some(3), "gpu.temperature_celsius", &cold)],
            &["gpu.temperature_celsius"],
            &Holders::new(),
            130,
        );
        assert_eq!(found.len(), 1);
        let (name, part, value) = &found[0];
        assert_eq!((name.as_str(), part.as_deref()), ("gpu.temperature_celsius", Some("node n1: GPU 3")));
        assert!((value - (3.0 * 40.0 + 4.0 * 90.0) / 7.0).abs() < 1e-9, "{value}");
        // The driver was loaded anew in between.
        let counted = [7.0, 7.0, 9.0, 0.0, 1.0];
        let name = "gpu.ecc_uncorrected_total";
        let grown = |now: u64| seen(vec![batch(Some(0), name, &counted)], &[name], &Holders::new(), now)[0].2;
        assert!((grown(40) - 3.0).abs() < 1e-9 && (grown(20 + 300) - 1.0).abs() < 1e-9);
        let slow = seen(vec![batch(None, "host.load_1m", &[5.0])], &["host.load_1m"], &Holders::new(), 200);
        assert_eq!(slow, [("host.load_1m".to_owned(), None, 5.0)], "an agent that reads seldom");
        assert_eq!(seen(vec![batch(None, "host.load_1m", &[5.0])], &["host.load_1m"], &Holders::new(), 400), []);
    }

    #[test]
    fn parts_of_a_metric_are_told_apart_and_who_holds_a_device_is_named() {
        let names = ["/", "/data"].map(|disk| format!("host.filesystem_used_ratio.{disk}")).to_vec();
        let row = Row { at: at(0), step: None, values: vec![(0, 0.5), (1, 0.5)] };
        let disks = Batch { names, rows: vec![row], ..batch(None, "", &[]) };
        let batches = vec![batch(Some(1), UTILIZATION, &[0.25]), disks];
        let holders = Holders::from([(("n1".to_owned(), 1), JobId(7))]);
        let found = seen(batches, &["host.filesystem_used_ratio", UTILIZATION], &holders, 5);
        let of = |name: &str, part: &str, value: f64| (name.to_owned(), Some(part.to_owned()), value);
        let expected = [
            of("host.filesystem_used_ratio", "node n1: /", 0.5),
            of("host.filesystem_used_ratio", "node n1: /data", 0.5),
            of(UTILIZATION, "node n1: GPU 1 (job-7)", 0.25),
            of("gpu_utilization", "job-7: GPU 1 on n1", 0.25),
        ];
        assert_eq!(found, expected);
    }
}
