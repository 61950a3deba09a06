//! The budget and the sweep in a job's record, and the data that a sweep's jobs share.

use std::sync::Arc;

use gangline_base::{Goal, Grid, JobId, MetricValue, Money, Step, Submitter, SweepId, SweepSpec, Timestamp};
use gangline_orchestration::{Decision, Engine, Fate, JobChange};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::record::JobRecord;
use crate::codec::SpecV1;

/// The money spent by a job with a budget.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct BudgetRecord {
    /// The most that the job may cost.
    pub limit: Money,
    /// Up to `counted_to`, or in total while the job holds no devices.
    pub spent: Money,
    /// Present while the job holds devices.
    pub holding: Option<Holding>,
}

/// The price of the held devices, and the time up to which it is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Holding {
    /// The list price of all devices together.
    pub hourly_price: Money,
    pub counted_to: Timestamp,
    pub ends_at: Option<Timestamp>,
}

/// The version of a sweep's document.
const VERSION: u32 = 1;

/// The data that a sweep's jobs share: a document in the table `sweeps`, version 1 (A-9).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SweepRecord {
    v: u32,
    /// The sweep.
    pub id: SweepId,
    name: String,
    /// The number of jobs; their ids are consecutive.
    jobs: u32,
    run: String,
    workdir: String,
    checkpoint_path: Option<String>,
    #[serde(serialize_with = "grid_to_disk", deserialize_with = "grid_from_disk")]
    grid: Grid,
    /// The points are the rows of the grid, rather than its combinations; `grid` itself is stored without this.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    is_list: bool,
    max_parallel: Option<u32>,
    early_stop: Option<EarlyStopRecord>,
    /// What its jobs were submitted with beside the above; none for sweeps submitted to earlier releases.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    spec: Option<Box<SpecV1>>,
}

/// A job's point in its sweep. Data common to all jobs is in the [`SweepRecord`], or here for sweeps from
/// before there was one.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PointRecord {
    pub id: SweepId,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    name: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    jobs: Option<u32>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    parameters: Vec<ParameterRecord>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    max_parallel: Option<u32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    early_stop: Option<EarlyStopRecord>,
    pub metric: Option<MetricRecord>,
}

/// The rules by which a sweep's jobs are stopped early.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EarlyStopRecord {
    /// The name of the metric that is compared.
    pub metric: String,
    /// `minimize` or `maximize`.
    pub goal: String,
    /// Steps before which no job is stopped.
    pub min_steps: u64,
    /// One of so many jobs goes on at each rung.
    pub reduction: u32,
}

/// A parameter and its value, as written.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct ParameterRecord {
    name: String,
    value: String,
}

/// A job's metric at a rung.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct MetricRecord {
    /// The step of the value.
    pub step: u64,
    /// `None` if the job had diverged.
    pub value: Option<f64>,
}

/// The program of a job's ranks, and their checkpoint folder.
pub struct ProgramView<'a> {
    pub run: &'a str,
    pub workdir: &'a str,
    pub checkpoint_path: Option<&'a str>,
}

/// The name and the rules of a job's sweep.
pub struct SweepView<'a> {
    pub name: &'a str,
    pub max_parallel: Option<u32>,
    pub early_stop: Option<&'a EarlyStopRecord>,
}

impl BudgetRecord {
    /// Counts the cost up to now.
    fn count(&mut self, now: Timestamp) {
        if let Some(holding) = &mut self.holding {
            let more = holding.hourly_price.for_time(now.since(holding.counted_to));
            self.spent = self.spent.saturating_add(more);
            holding.counted_to = holding.counted_to.max(now);
        }
    }

    /// Returns the counted cost and the time up to which it is counted: later counts start and round there.
    pub(super) fn counted(&self) -> Option<(Money, Timestamp)> {
        self.holding.map(|holding| (self.spent, holding.counted_to))
    }

    /// Restores a counted cost.
    pub(super) fn recount(&mut self, (spent, to): (Money, Timestamp)) {
        self.spent = spent;
        self.holding.iter_mut().for_each(|holding| holding.counted_to = to);
    }
}

impl SweepRecord {
    /// Returns what its jobs were submitted with, if that was kept.
    pub(super) fn spec(&self) -> Option<&SpecV1> {
        self.spec.as_deref()
    }

    /// Returns the number of jobs.
    pub fn jobs(&self) -> u32 {
        self.jobs
    }

    /// Returns the index of a job's point in the grid.
    fn place_of(&self, job: JobId) -> usize {
        usize::try_from(job.0.saturating_sub(self.id.0.0)).unwrap_or(usize::MAX)
    }

    /// Returns each parameter with its value at a job's point.
    fn values_of(&self, job: JobId) -> Option<Vec<(&str, &str)>> {
        let place = self.place_of(job);
        if !self.is_list {
            return self.grid.point(place);
        }
        self.grid.parameters().iter().map(|(name, values)| Some((name.as_str(), values.get(place)?.as_str()))).collect()
    }

    /// Returns the sweep with this id and the records of its jobs, which have the ids from there on.
    pub fn with_jobs(id: SweepId, sweep: &SweepSpec, now: Timestamp) -> (Arc<Self>, Vec<JobRecord>) {
        let shared = Arc::new(SweepRecord::new(id, sweep));
        let ids = (id.0.0..).map(JobId).take(sweep.grid.points());
        let records = ids.map(|job| JobRecord::point(&shared, sweep, job, now)).collect();
        (shared, records)
    }

    /// Returns the sweep with this id.
    pub fn new(id: SweepId, sweep: &SweepSpec) -> Self {
        SweepRecord {
            v: VERSION,
            id,
            name: sweep.job.name.clone(),
            jobs: u32::try_from(sweep.grid.points()).expect("a sweep has at most a thousand jobs"),
            run: sweep.job.program.run.clone(),
            workdir: sweep.job.program.workdir.clone(),
            checkpoint_path: sweep.job.checkpoint.path.clone(),
            grid: Grid::new(sweep.grid.parameters().to_vec()),
            is_list: sweep.grid.is_list(),
            max_parallel: sweep.rules.max_parallel.map(std::num::NonZeroU32::get),
            early_stop: sweep.rules.early_stop.as_ref().map(|rules| EarlyStopRecord {
                metric: rules.metric.clone(),
                goal: match rules.goal {
                    Goal::Minimize => "minimize",
                    Goal::Maximize => "maximize",
                }
                .to_owned(),
                min_steps: rules.min_steps.get(),
                reduction: rules.reduction.get(),
            }),
            spec: Some(Box::new(SpecV1::beside_a_record(&sweep.job))),
        }
    }
}

fn grid_to_disk<S: Serializer>(grid: &Grid, serializer: S) -> Result<S::Ok, S::Error> {
    grid.parameters().serialize(serializer)
}

fn grid_from_disk<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Grid, D::Error> {
    Vec::deserialize(deserializer).map(Grid::new)
}

impl JobRecord {
    /// Returns the record of a sweep's job.
    pub fn point(sweep: &Arc<SweepRecord>, spec: &SweepSpec, id: JobId, now: Timestamp) -> Self {
        let mut record = JobRecord::without_program(id, &spec.job, now);
        record.name = spec.job_name(sweep.place_of(id)).unwrap_or(record.name);
        record.sweep = Some(PointRecord {
            id: sweep.id,
            name: String::new(),
            jobs: None,
            parameters: Vec::new(),
            max_parallel: None,
            early_stop: None,
            metric: None,
        });
        record.shared = Some(sweep.clone());
        record
    }

    /// Returns the job's own program, or its sweep's.
    pub fn program(&self) -> ProgramView<'_> {
        match &self.shared {
            Some(sweep) if self.run.is_empty() => ProgramView {
                run: &sweep.run,
                workdir: &sweep.workdir,
                checkpoint_path: sweep.checkpoint_path.as_deref(),
            },
            _ => {
                ProgramView { run: &self.run, workdir: &self.workdir, checkpoint_path: self.checkpoint_path.as_deref() }
            }
        }
    }

    /// Returns the number of jobs in the job's sweep; 0 without a sweep.
    pub fn sweep_jobs(&self) -> u32 {
        let own = self.sweep.as_ref().and_then(|point| point.jobs);
        own.or(self.shared.as_ref().map(|sweep| sweep.jobs)).unwrap_or(0)
    }

    /// Returns the sweep's name and rules.
    pub fn sweep_view(&self) -> Option<SweepView<'_>> {
        let own = self.sweep.as_ref()?;
        Some(match self.shared.as_deref() {
            Some(SweepRecord { name, max_parallel, early_stop, .. }) => {
                SweepView { name, max_parallel: *max_parallel, early_stop: early_stop.as_ref() }
            }
            None => SweepView { name: &own.name, max_parallel: own.max_parallel, early_stop: own.early_stop.as_ref() },
        })
    }

    /// Returns the parameters of the job's point in its sweep with their values, as written; none without a
    /// sweep.
    pub fn sweep_parameters(&self) -> Vec<(&str, &str)> {
        let Some(point) = &self.sweep else { return Vec::new() };
        match &self.shared {
            Some(sweep) if point.parameters.is_empty() => sweep.values_of(self.id).unwrap_or_default(),
            _ => point.parameters.iter().map(|own| (&*own.name, &*own.value)).collect(),
        }
    }
}

impl JobRecord {
    /// Aligns the budget's count with the engine's for a live job.
    pub fn meter(&mut self, now: Timestamp, engine: &Engine) {
        let (Some(budget), Some(job)) = (&mut self.budget, engine.job(self.id)) else { return };
        budget.spent = engine.spent(now, job);
        let hourly_price = engine.hourly_price(&job.spec).unwrap_or(Money::ZERO);
        let holding = Holding { hourly_price, counted_to: now, ends_at: engine.budget_end(job) };
        budget.holding = job.attempt().map(|_| holding);
    }

    /// Applies a decision to the budget. `engine` has applied it already and doesn't know ended jobs any
    /// more.
    pub(super) fn follow_budget(&mut self, now: Timestamp, decision: &Decision, engine: &Engine) {
        self.meter(now, engine);
        if let (Some(budget), Decision::End { fate, .. }) = (&mut self.budget, decision) {
            budget.count(now);
            budget.holding = None;
            if let Fate::BudgetSpent { spent, .. } = fate {
                budget.spent = *spent;
            }
        }
    }

    /// Notes that a user cancelled the job.
    pub fn note_cancel(&mut self, now: Timestamp, by: &Submitter) {
        self.note(now, format!("cancel requested by {by}"));
    }

    /// Makes and notes the changes that a user requested.
    pub fn note_changes(&mut self, now: Timestamp, changes: &[JobChange], by: &Submitter) {
        for change in changes {
            match change {
                JobChange::Queue(queue) => self.queue = queue.to_string(),
                JobChange::Priority(priority) => self.priority = priority.value(),
                JobChange::TimeLimit(limit) => {
                    self.spec.iter_mut().for_each(|spec| spec.set_time_limit(*limit));
                }
                JobChange::Hold | JobChange::Release => {}
            }
            self.note(now, format!("{change} by {by}"));
        }
    }

    /// Notes that a user cancelled the sweep.
    pub fn note_sweep_cancel(&mut self, now: Timestamp, sweep: SweepId, by: &Submitter) {
        self.note(now, format!("cancel of {sweep} requested by {by}"));
    }

    /// Notes the job's metric at a rung.
    pub fn note_metric(&mut self, step: Step, value: MetricValue) {
        if let Some(point) = &mut self.sweep {
            point.metric = Some(MetricRecord { step: step.0, value: value.reported() });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Proves A-9 for the stored part of a sweep's job: the oldest form can be read, and is written, to the
    /// byte.
    #[test]
    fn a_point_keeps_its_stored_form() {
        let stored = r#"{"id":7,"name":"lr","jobs":2,"parameters":[{"name":"LR","value":"1e-4"}],"max_parallel":1,"early_stop":{"metric":"loss","goal":"minimize","min_steps":10,"reduction":3},"metric":{"step":10,"value":null}}"#;
        let point: PointRecord = serde_json::from_str(stored).expect("it reads back");
        assert_eq!(point.parameters, [ParameterRecord { name: "LR".to_owned(), value: "1e-4".to_owned() }]);
        assert_eq!(point.metric, Some(MetricRecord { step: 10, value: None }));
        assert_eq!(serde_json::to_string(&point).expect("string keys only"), stored);
    }
}
