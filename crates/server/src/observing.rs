//! What a job's ranks measured in a stretch of time, from the series store, as [`attribution`] and alerts take it; with what
//! the agents of their nodes read meanwhile.
//!
//! [`attribution`]: gangline_accounting::attribution

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use gangline_accounting::attribution::{Observed, RankObserved};
use gangline_api as api;
use gangline_base::{AcceleratorKind, AttemptNumber, JobId, NodeName, Phase, Timestamp};
use gangline_telemetry::series::{self, Bucket, Curve, Resolution, Scope};

/// Seconds of each step; a supervisor's clock.
pub(crate) const STEP_SECONDS: &str = "gangline.step_seconds";
/// Tokens of each step of a rank.
const TOKENS: &str = "tokens";
/// Seconds of each step in a phase.
const PHASES: [(&str, Phase); 5] = [
    ("gangline.data_seconds", Phase::Data),
    ("gangline.compute_seconds", Phase::Compute),
    ("gangline.communication_seconds", Phase::Communication),
    ("gangline.straggler_wait_seconds", Phase::StragglerWait),
    ("gangline.checkpoint_seconds", Phase::Checkpoint),
];
/// Seconds of each step in Python's garbage collector, where a rank reports them.
const COLLECTING: &str = "python.gc_seconds";
/// Times that the device's allocator freed its cache in each step, where a rank reports them.
const RETRIES: &str = "torch.alloc_retries";
/// Part of the time in which some thread of a node waited for a core; its agent's.
const CPU_PRESSURE: &str = "host.cpu_pressure_ratio";
/// Whether a GPU's clocks are held down by heat or power; its node's agent's.
const CLOCKS_HELD: &str = "gpu.clocks_held";
/// The most nodes whose readings are looked at: beyond that the causes that need them aren't looked for.
const NODES_MAX: usize = 512;
/// Curves of one job: about 5,000 ranks with all of these metrics.
const CURVES_MAX: usize = 40_000;

/// A stretch of time of an attempt.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Window {
    pub(crate) job: JobId,
    pub(crate) attempt: AttemptNumber,
    pub(crate) from: Timestamp,
    pub(crate) to: Timestamp,
}

impl Window {
    /// Returns every curve that attribution needs, and those of other metrics, with at most so many points each.
    pub(crate) fn curves(
        &self,
        series: &series::Handle,
        others: &[String],
        points_max: usize,
    ) -> Result<Vec<Curve>, series::Error> {
        let ours = PHASES.iter().map(|(name, _)| *name).chain([STEP_SECONDS, TOKENS, COLLECTING, RETRIES]);
        let query = series::Query {
            metrics: ours.map(str::to_owned).chain(others.iter().cloned()).collect(),
            attempt: Some(self.attempt),
            times: (Some(self.from), Some(self.to)),
            resolution: Some(Resolution::Point),
            ..series::Query::all(Scope::Job(self.job), points_max, CURVES_MAX)
        };
        let mut curves = series.query(&query)?.curves;
        curves.extend(self.of_hosts(series, &curves, points_max)?);
        Ok(curves)
    }

    /// Returns what the agents of the ranks' nodes read.
    fn of_hosts(
        &self,
        series: &series::Handle,
        ranks: &[Curve],
        points_max: usize,
    ) -> Result<Vec<Curve>, series::Error> {
        let nodes: BTreeSet<&NodeName> = ranks.iter().filter_map(|curve| curve.series.source.node.as_ref()).collect();
        if nodes.len() > NODES_MAX {
            return Ok(Vec::new());
        }
        let mut curves = Vec::new();
        for node in nodes {
            let query = series::Query {
                metrics: vec![CPU_PRESSURE.to_owned(), CLOCKS_HELD.to_owned()],
                times: (Some(self.from), Some(self.to)),
                resolution: Some(Resolution::Point),
                ..series::Query::all(Scope::Node(node.clone()), points_max, CURVES_MAX)
            };
            curves.extend(series.query(&query)?.curves);
        }
        Ok(curves)
    }

    /// Divides curves into equal stretches of time, oldest first.
    pub(crate) fn observed(&self, curves: &[Curve], devices: &Devices, stretches: u32) -> Vec<Observed> {
        let length = self.to.since(self.from) / stretches.max(1);
        (0..stretches)
            .map(|number| {
                let from = self.from + length * number;
                // The last one ends with the window, whatever the division left over.
                let to = if number + 1 == stretches { self.to + Duration::from_nanos(1) } else { from + length };
                Observed { from, ranks: ranks(curves, devices, (from, to)) }
            })
            .collect()
    }
}

/// Returns the sum of the finite values in a stretch of time, and their number.
fn sum(curve: &Curve, (from, to): (Timestamp, Timestamp)) -> (f64, u64) {
    let within = |bucket: &&Bucket| from <= bucket.at() && bucket.at() < to;
    curve.buckets.iter().filter(within).fold((0.0, 0), |(sum, count), bucket| {
        (sum + bucket.mean().unwrap_or_default() * whole(bucket.count), count + bucket.count)
    })
}

/// The accelerator of each rank on its node.
pub(crate) type Devices = BTreeMap<u32, u32>;

/// Returns which accelerator each rank of an attempt has. Where a node has as many ranks as accelerators, each has one, in
/// order; otherwise it isn't known. Slots of CPUs are none.
pub(crate) fn devices_of(job: &api::Job, attempt: &api::Attempt) -> Devices {
    if job.gang.accelerator == AcceleratorKind::CPU {
        return Devices::new();
    }
    let is_one_each = |share: &&api::Share| share.ranks.len() == share.devices.len();
    let of_share = |share: &api::Share| -> Vec<(u32, u32)> {
        share.ranks.iter().map(|rank| rank.rank).zip(share.devices.iter().copied()).collect()
    };
    attempt.shares.iter().filter(is_one_each).flat_map(of_share).collect()
}

fn ranks(curves: &[Curve], devices: &Devices, times: (Timestamp, Timestamp)) -> Vec<RankObserved> {
    let mut ranks: BTreeMap<u32, RankObserved> = BTreeMap::new();
    for curve in curves {
        let Some(number) = curve.series.source.rank else { continue };
        let (sum, count) = sum(curve, times);
        if count == 0 {
            continue;
        }
        let node = curve.series.source.node.as_ref().map(ToString::to_string).unwrap_or_default();
        let rank = ranks.entry(number).or_insert_with(|| RankObserved { rank: number, node, ..Default::default() });
        match curve.series.metric.as_str() {
            STEP_SECONDS => (rank.steps, rank.stepping) = (count, seconds(sum)),
            // The first step of an attempt has no time, so tokens are counted by steps that have one.
            TOKENS => rank.tokens = Some(sum / whole(count)),
            COLLECTING => rank.collecting = Some(seconds(sum)),
            RETRIES => rank.allocator_retries = Some(number_of(sum)),
            metric => {
                let phase = PHASES.iter().find(|(name, _)| *name == metric);
                rank.phases.extend(phase.map(|(_, phase)| (*phase, seconds(sum))));
            }
        }
    }
    let mean = |metric: &str, node: &str, device: Option<u32>| {
        let is_it = |curve: &&Curve| {
            let source = &curve.series.source;
            curve.series.metric == metric
                && source.rank.is_none()
                && source.device == device
                && source.node.as_ref().is_some_and(|name| name.as_str() == node)
        };
        let (sum, count) = sum(curves.iter().find(is_it)?, times);
        (count > 0).then(|| sum / whole(count))
    };
    for rank in ranks.values_mut() {
        rank.tokens = rank.tokens.map(|of_step| of_step * whole(rank.steps));
        rank.cpu_pressure = mean(CPU_PRESSURE, &rank.node, None);
        rank.clocks_held = devices.get(&rank.rank).and_then(|device| mean(CLOCKS_HELD, &rank.node, Some(*device)));
    }
    ranks.into_values().filter(|rank| rank.steps > 0).collect()
}

/// Returns a duration, zero for what is none: a clock may have gone back.
fn seconds(seconds: f64) -> Duration {
    Duration::try_from_secs_f64(seconds).unwrap_or_default()
}

#[expect(clippy::cast_precision_loss, reason = "no stretch has 2^53 values")]
fn whole(count: u64) -> f64 {
    count as f64
}

/// Returns a count that a rank reported as a number.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "it is clamped to what fits")]
fn number_of(value: f64) -> u64 {
    value.clamp(0.0, 1e15) as u64
}
