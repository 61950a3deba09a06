//! What the rules look at: the state of the control plane, its nodes, queues and jobs, and what their ranks measured.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use gangline_accounting::attribution::{RankObserved, RankWork, stragglers, tokens_per_second};
use gangline_api as api;
use gangline_base::{AttemptNumber, JobId, Money, NodeName, Phase, Timestamp, with_causes};
use gangline_control::service;
use gangline_control::views::{JOBS_PER_PAGE_MAX, Standing, Views};
use gangline_specs::config::Budget;

use crate::budgets::Budgets;
use gangline_telemetry::alerts::{Measure, Reading, Rule, Signal, Subject};
use gangline_telemetry::series::{self, Curve, Scope};

use super::failures::Failures;
use super::{Options, nodes};
use crate::observing::{STEP_SECONDS, Window, devices_of};

/// The stretch of time whose measurements count as now.
const RECENT: Duration = Duration::from_secs(5 * 60);
/// Points of each curve of that time.
const POINTS: usize = 32;
/// The fewest points of a curve on which a spike is judged.
const SPIKE_POINTS_MIN: usize = 8;
/// The least deviation of a loss, as a part of its median: less is noise.
const SPIKE_DEVIATION_MIN: f64 = 0.05;
/// Factor that makes a median absolute deviation comparable to a standard deviation.
const MAD_TO_DEVIATION: f64 = 1.4826;
/// Points of a job's past, and the fewest from which its usual speed is known.
const PAST_POINTS: usize = 120;
const PAST_STEPS_MIN: u64 = 20;
/// The fewest checkpoints from which their usual interval is known.
const CHECKPOINTS_MIN: u32 = 2;
/// How long it is kept how far budgets are spent.
const BUDGETS_EVERY: Duration = Duration::from_secs(60);
/// Live jobs that are looked at.
const JOBS_MAX: usize = 5_000;

/// Where readings come from.
pub(super) struct Sources {
    runtime: tokio::runtime::Runtime,
    handle: service::Handle,
    views: Views,
    series: series::Handle,
    folders: [PathBuf; 2],
    budgets: Budgets,
    /// How far which budgets were spent, and when that was looked at.
    spent: Mutex<Option<Spent>>,
    failures: Failures,
    pub(super) clock: fn() -> Timestamp,
}

/// How far these budgets were spent at a time.
type Spent = (Timestamp, Arc<[Budget]>, Vec<api::BudgetStanding>);

/// The metrics that rules look at.
#[derive(Debug, Default)]
pub(super) struct Metrics {
    /// Those that ranks report.
    of_ranks: Vec<String>,
    /// Those that the agents of nodes read.
    of_nodes: BTreeSet<String>,
}

impl Metrics {
    pub(super) fn of(rules: &[Rule]) -> Metrics {
        let of_rule = |rule: &Rule| match &rule.measure {
            Measure::Metric(name) => Some(name.clone()),
            Measure::Signal(_) | Measure::NodeMetric(_) => None,
        };
        Metrics { of_ranks: rules.iter().filter_map(of_rule).collect(), of_nodes: nodes::metrics_of(rules.iter()) }
    }
}

impl Sources {
    pub(super) fn of(options: Options) -> io::Result<Sources> {
        let Options { folder, journal_folder, handle, views, budgets, series, clock, rules: _, mail: _ } = options;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let (folders, spent) = ([folder, journal_folder], Mutex::new(None));
        let failures = Failures::default();
        Ok(Sources { runtime, handle, views, series, folders, budgets, spent, failures, clock })
    }

    /// Reads everything, with these metrics. The second value says what couldn't be read.
    pub(super) fn read(&self, metrics: &Metrics) -> (Vec<Reading>, Option<String>) {
        let (mut readings, mut gap) = (self.disks(), None);
        readings.extend(self.series_store());
        match self.runtime.block_on(self.handle.health()) {
            Ok(health) => readings.extend(of_health(&health)),
            Err(error) => gap = Some(format!("the control plane's health: {error}")),
        }
        let mut names = Vec::new();
        match self.runtime.block_on(self.handle.nodes()) {
            Ok(list) => {
                readings.extend(list.nodes.iter().filter_map(of_node));
                names.extend(list.nodes.iter().filter_map(|node| NodeName::new(&node.name).ok()));
            }
            Err(error) => gap = Some(format!("the nodes: {error}")),
        }
        match self.of_budgets() {
            Ok(budgets) => readings.extend(budgets),
            Err(error) => gap = Some(format!("the budgets: {}", with_causes(&error))),
        }
        match self.live_jobs() {
            Ok(jobs) => {
                let now = (self.clock)();
                readings.extend(queue_waits(&jobs, now));
                match self.failures.read(&self.views, &jobs, now) {
                    Ok(failures) => readings.extend(failures),
                    Err(error) => gap = Some(format!("jobs that failed: {}", with_causes(&error))),
                }
                match nodes::read(&self.series, &names, &metrics.of_nodes, &nodes::holders(&jobs), now) {
                    Ok(of_nodes) => readings.extend(of_nodes),
                    Err(error) => gap = Some(format!("metrics of nodes: {}", with_causes(&error))),
                }
                for (id, job) in jobs.iter().filter(|(_, job)| job.state == api::JobState::Running) {
                    let of_job = self.of_job(*id, job, now, &metrics.of_ranks);
                    match of_job {
                        Ok(of_job) => readings.extend(of_job),
                        Err(error) => gap = Some(format!("metrics of {id}: {}", with_causes(&error))),
                    }
                }
            }
            Err(error) => gap = Some(format!("the jobs: {}", with_causes(&error))),
        }
        (readings, gap)
    }

    fn live_jobs(&self) -> Result<Vec<(JobId, api::Job)>, gangline_store::db::Error> {
        let (mut jobs, mut before) = (Vec::new(), None);
        while jobs.len() < JOBS_MAX {
            let page = self.views.jobs(&Standing::Live.into(), before, JOBS_PER_PAGE_MAX)?;
            jobs.extend(page.jobs);
            before = page.next;
            if before.is_none() {
                break;
            }
        }
        Ok(jobs)
    }

    /// Reads how far budgets are spent. That reads the ledger of a period, and so is kept for a while.
    fn of_budgets(&self) -> Result<Vec<Reading>, gangline_store::db::Error> {
        let (now, budgets) = ((self.clock)(), self.budgets.now());
        if budgets.is_empty() {
            return Ok(Vec::new());
        }
        let mut spent = self.spent.lock().unwrap_or_else(PoisonError::into_inner);
        let is_old = |(at, of, _): &Spent| now < *at || now.since(*at) >= BUDGETS_EVERY || !Arc::ptr_eq(of, &budgets);
        if spent.as_ref().is_none_or(is_old) {
            let standings = self.views.budgets(&budgets, now)?;
            *spent = Some((now, budgets, standings));
        }
        let standings = spent.iter().flat_map(|(_, _, standings)| standings);
        Ok(standings.flat_map(of_budget).collect())
    }

    fn disks(&self) -> Vec<Reading> {
        let used = |folder: &PathBuf| {
            let about = rustix::fs::statvfs(folder).ok()?;
            // As df counts: what only root may use is neither free nor used.
            let (free, used) = (about.f_bavail, about.f_blocks.saturating_sub(about.f_bfree));
            let part = (used > 0).then(|| number(used) / number(used + free))?;
            Some(reading(Signal::Disk, Subject::ControlPlane, Some(folder.display().to_string()), part))
        };
        let mut disks: Vec<Reading> = self.folders.iter().filter_map(used).collect();
        disks.dedup();
        disks
    }

    fn series_store(&self) -> Option<Reading> {
        let summary = self.series.summary();
        let elsewhere = summary.elsewhere.and_then(Result::err).map(|why| format!("remote_read: {why}"));
        let failure = summary.failure.or(elsewhere)?;
        Some(reading(Signal::SeriesFailing, Subject::ControlPlane, Some(failure), 1.0))
    }

    fn of_job(
        &self,
        id: JobId,
        job: &api::Job,
        now: Timestamp,
        metrics: &[String],
    ) -> Result<Vec<Reading>, series::Error> {
        let subject = || Subject::Job(id);
        let mut readings = Vec::new();
        readings.extend(overdue(job).map(|intervals| reading(Signal::CheckpointOverdue, subject(), None, intervals)));
        let Some(attempt) = job.attempts.last() else { return Ok(readings) };
        readings.extend(attempt.silence.clone().map(|said| reading(Signal::Silence, subject(), Some(said), 1.0)));
        let window = Window { job: id, attempt: AttemptNumber(attempt.number), from: now - RECENT, to: now };
        let others: Vec<String> = metrics.iter().cloned().chain(["loss".to_owned()]).collect();
        let curves = window.curves(&self.series, &others, POINTS)?;
        for curve in &curves {
            readings.extend(of_curve(id, curve, metrics));
        }
        let ranks = window.observed(&curves, &devices_of(job, attempt), 1).remove(0).ranks;
        readings.extend(of_ranks(id, &ranks));
        readings.extend(self.throughput(&window, &ranks)?);
        let accelerators = attempt.shares.iter().map(|share| share.devices.len()).sum();
        let part = job.plan.and_then(|plan| plan.with_rate(tokens_per_second(&ranks), accelerators).share);
        readings.extend(part.map(|part| reading(Signal::PlanShare, subject(), None, part)));
        Ok(readings)
    }

    /// Speed beside the job's own past: the steps of the rank with the smallest number, since ranks step together.
    fn throughput(&self, window: &Window, ranks: &[RankObserved]) -> Result<Option<Reading>, series::Error> {
        let Some(rank) = ranks.first() else { return Ok(None) };
        let query = series::Query {
            metrics: vec![STEP_SECONDS.to_owned()],
            rank: Some(rank.rank),
            times: (None, Some(window.from)),
            ..series::Query::all(Scope::Job(window.job), PAST_POINTS, JOBS_MAX)
        };
        let past = self.series.query(&query)?;
        let buckets = past.curves.iter().flat_map(|curve| &curve.buckets);
        let mut means: Vec<f64> = buckets.clone().filter_map(series::Bucket::mean).collect();
        if buckets.map(|bucket| bucket.count).sum::<u64>() < PAST_STEPS_MIN || rank.steps == 0 {
            return Ok(None);
        }
        // The lower quartile: what the job could do when nothing was wrong, even if much was.
        means.sort_by(f64::total_cmp);
        let usual = means[means.len() / 4];
        let recent = rank.stepping.as_secs_f64() / number(rank.steps);
        let part = (recent > 0.0).then(|| usual / recent);
        Ok(part.map(|part| reading(Signal::Throughput, Subject::Job(window.job), None, part)))
    }
}

pub(super) fn reading(signal: Signal, subject: Subject, part: Option<String>, value: f64) -> Reading {
    Reading { measure: Measure::Signal(signal), subject, part, value }
}

fn of_health(health: &api::Health) -> Vec<Reading> {
    let part = number(health.journal_bytes) / number(health.journal_bytes_max.max(1));
    let reason = health.reason.clone().unwrap_or_else(|| health.status.clone());
    let is_unwell = if health.status == "ok" { 0.0 } else { 1.0 };
    vec![
        reading(Signal::Journal, Subject::ControlPlane, None, part),
        reading(Signal::Unwell, Subject::ControlPlane, Some(reason), is_unwell),
    ]
}

fn of_budget(standing: &api::BudgetStanding) -> [Reading; 2] {
    let limit = Money::from_nano_dollars(standing.limit_nano_dollars);
    let part = Some(format!("{limit} a {} for {}", standing.per, standing.of));
    let subject = || Subject::Budget(standing.name.clone());
    [
        reading(Signal::BudgetSpent, subject(), part.clone(), standing.spent_share),
        reading(Signal::BudgetForecast, subject(), part, standing.forecast_share),
    ]
}

fn of_node(node: &api::Node) -> Option<Reading> {
    let is_away = ["lost", "suspect", "unwell"].contains(&node.status.as_str());
    let why = node.status_reason.clone().unwrap_or_else(|| node.status.clone());
    let subject = Subject::Node(NodeName::new(&node.name).ok()?);
    is_away.then(|| reading(Signal::NodeUnavailable, subject, Some(why), 1.0))
}

/// The longest wait of each queue.
fn queue_waits(jobs: &[(JobId, api::Job)], now: Timestamp) -> Vec<Reading> {
    let mut longest: BTreeMap<&str, (Timestamp, JobId)> = BTreeMap::new();
    for (id, job) in jobs.iter().filter(|(_, job)| job.state == api::JobState::Waiting) {
        // After an attempt it waits anew.
        let since = job.attempts.last().and_then(|attempt| attempt.ended_at).map_or(job.submitted_at.0, |time| time.0);
        let known = longest.entry(&job.queue).or_insert((since, *id));
        *known = (*known).min((since, *id));
    }
    let wait = |(queue, (since, id)): (&str, (Timestamp, JobId))| {
        let seconds = now.since(since).as_secs_f64();
        reading(Signal::QueueWait, Subject::Queue(queue.to_owned()), Some(id.to_string()), seconds)
    };
    longest.into_iter().map(wait).collect()
}

/// Returns how many of its usual intervals have gone by since a job's last durable checkpoint, counted in steps.
fn overdue(job: &api::Job) -> Option<f64> {
    let (last, step) = (job.checkpoints.last_step?, job.progress.step?);
    let is_known = job.checkpoints.count >= CHECKPOINTS_MIN && last > 0;
    is_known.then(|| number(step.saturating_sub(last)) / (number(last) / f64::from(job.checkpoints.count)))
}

/// Returns what a curve says by itself: the loss, and metrics that a site's rules look at.
fn of_curve(job: JobId, curve: &Curve, metrics: &[String]) -> Vec<Reading> {
    let (source, Some(last)) = (&curve.series.source, curve.buckets.last()) else { return Vec::new() };
    let on = source.node.as_ref().map(|node| format!(" on {node}")).unwrap_or_default();
    let part = || source.rank.map(|rank| format!("rank {rank}{on}"));
    let mut readings = Vec::new();
    if metrics.contains(&curve.series.metric) {
        let measure = Measure::Metric(curve.series.metric.clone());
        readings.push(Reading { measure, subject: Subject::Job(job), part: part(), value: last.last });
    }
    if curve.series.metric == "loss" {
        let is_lost = if last.last.is_finite() { 0.0 } else { 1.0 };
        readings.push(reading(Signal::LossNotFinite, Subject::Job(job), part(), is_lost));
        let means: Vec<f64> = curve.buckets.iter().filter_map(series::Bucket::mean).collect();
        readings.extend(spike(&means).map(|spike| reading(Signal::LossSpike, Subject::Job(job), part(), spike)));
    }
    readings
}

/// Returns how far the last value is above the median of those before it, in robust standard deviations.
fn spike(values: &[f64]) -> Option<f64> {
    let (last, before) = values.split_last().filter(|(_, before)| before.len() + 1 >= SPIKE_POINTS_MIN)?;
    let middle = median(before.to_vec());
    let deviation = MAD_TO_DEVIATION * median(before.iter().map(|value| (value - middle).abs()).collect());
    let deviation = deviation.max(SPIKE_DEVIATION_MIN * middle.abs());
    (deviation > 0.0).then(|| (last - middle) / deviation)
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or_default()
}

/// Returns how much of its steps each rank waits, and which ranks hold up the others.
fn of_ranks(job: JobId, ranks: &[RankObserved]) -> Vec<Reading> {
    let part = |rank: &RankObserved| Some(format!("rank {} on {}", rank.rank, rank.node));
    let time = |rank: &RankObserved, phase: Phase| rank.phases.get(&phase).copied().unwrap_or_default();
    let mut readings = Vec::new();
    for rank in ranks.iter().filter(|rank| !rank.stepping.is_zero()) {
        for (signal, phase) in [(Signal::DataStall, Phase::Data), (Signal::CheckpointStall, Phase::Checkpoint)] {
            let share = time(rank, phase).as_secs_f64() / rank.stepping.as_secs_f64();
            readings.push(reading(signal, Subject::Job(job), part(rank), share));
        }
    }
    let work = |rank: &RankObserved| RankWork {
        rank: rank.rank,
        steps: rank.steps,
        compute: time(rank, Phase::Compute),
        data: time(rank, Phase::Data),
    };
    for slow in stragglers(&ranks.iter().map(work).collect::<Vec<_>>()) {
        let more = slow.own.as_secs_f64() / slow.peers.as_secs_f64().max(f64::EPSILON) - 1.0;
        let rank = ranks.iter().find(|rank| rank.rank == slow.rank).and_then(part);
        readings.push(reading(Signal::Straggler, Subject::Job(job), rank, more));
    }
    readings
}

#[expect(clippy::cast_precision_loss, reason = "ratios of sizes and counts need no more than 53 bits")]
pub(super) fn number(count: u64) -> f64 {
    count as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_spike_is_told_from_noise_and_from_a_loss_that_falls() {
        let noise = [2.0, 2.05, 1.98, 2.02, 2.01, 1.99, 2.03, 2.04];
        let judged = |last: f64| spike(&[&noise[..], &[last]].concat()).expect("enough points");
        assert!(judged(2.1) < 3.0 && judged(1.0) < 0.0, "{} {}", judged(2.1), judged(1.0));
        assert!(judged(3.0) > 6.0, "{}", judged(3.0));
        assert_eq!(spike(&noise[..7]), None, "too few points");
        assert_eq!(spike(&[0.0; 9]), None, "nothing to compare with");
    }
}
