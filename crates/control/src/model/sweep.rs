//! What a job's record says of its budget and its sweep, and what the jobs of a sweep share.

use std::sync::Arc;

use gangline_base::{Goal, Grid, JobId, MetricValue, Money, Step, Submitter, SweepId, SweepSpec, Timestamp};
use gangline_orchestration::{Decision, Engine, Fate};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::bound::cut;
use super::record::JobRecord;
use crate::wire;

/// What a job with a budget has spent.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct BudgetRecord {
    pub(crate) limit: Money,
    /// Until `counted_to`, or in all while it holds nothing.
    pub(crate) spent: Money,
    /// While it holds devices.
    pub(crate) holding: Option<Holding>,
}

/// What its devices cost, and until when.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Holding {
    /// All of them together, by the list.
    hourly_price: Money,
    counted_to: Timestamp,
    ends_at: Option<Timestamp>,
}

/// The version written of a sweep's document.
const VERSION: u32 = 1;
/// The longest value of a parameter in the listing of a sweep, in bytes: a thousand jobs may share a long one.
pub(crate) const LISTED_VALUE_BYTES_MAX: usize = 256;

/// What the jobs of a sweep share: a document in the table `sweeps`, version 1.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct SweepRecord {
    v: u32,
    pub(crate) id: SweepId,
    name: String,
    /// How many jobs it has; their ids follow one another.
    jobs: u32,
    run: String,
    workdir: String,
    checkpoint_path: Option<String>,
    #[serde(serialize_with = "grid_to_disk", deserialize_with = "grid_from_disk")]
    grid: Grid,
    max_parallel: Option<u32>,
    early_stop: Option<wire::EarlyStop>,
}

/// A job's place in its sweep. What is the same for all its jobs is in the [`SweepRecord`], but for sweeps from before there
/// was one: then it is here.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct PointRecord {
    pub(crate) id: SweepId,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    name: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    jobs: Option<u32>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    parameters: Vec<wire::Parameter>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    max_parallel: Option<u32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    early_stop: Option<wire::EarlyStop>,
    pub(crate) metric: Option<wire::MetricPoint>,
}

/// What a job's ranks run, and where they save.
pub(crate) struct ProgramView<'a> {
    pub(crate) run: &'a str,
    pub(crate) workdir: &'a str,
    pub(crate) checkpoint_path: Option<&'a str>,
}

impl BudgetRecord {
    /// Counts up to now.
    fn count(&mut self, now: Timestamp) {
        if let Some(holding) = &mut self.holding {
            let more = holding.hourly_price.for_time(now.since(holding.counted_to));
            self.spent = self.spent.saturating_add(more);
            holding.counted_to = holding.counted_to.max(now);
        }
    }

    /// What had been spent, and until when that was counted: the rest is counted from there, and rounded there.
    pub(super) fn counted(&self) -> Option<(Money, Timestamp)> {
        self.holding.map(|holding| (self.spent, holding.counted_to))
    }

    /// Takes that back.
    pub(super) fn recount(&mut self, (spent, to): (Money, Timestamp)) {
        self.spent = spent;
        self.holding.iter_mut().for_each(|holding| holding.counted_to = to);
    }

    pub(super) fn to_wire(&self) -> wire::Budget {
        wire::Budget {
            limit_nano_dollars: self.limit.nano_dollars(),
            spent_nano_dollars: self.spent.nano_dollars(),
            counted_to: self.holding.map(|holding| wire::Time(holding.counted_to)),
            ends_at: self.holding.and_then(|holding| holding.ends_at).map(wire::Time),
        }
    }
}

impl SweepRecord {
    /// How many jobs it has.
    pub(crate) fn jobs(&self) -> u32 {
        self.jobs
    }

    /// Which point of its grid a job is.
    fn place_of(&self, job: JobId) -> usize {
        usize::try_from(job.0.saturating_sub(self.id.0.0)).unwrap_or(usize::MAX)
    }

    /// A sweep that gets this id, and the records of its jobs, whose ids follow.
    pub(crate) fn with_jobs(id: SweepId, sweep: &SweepSpec, now: Timestamp) -> (Arc<Self>, Vec<JobRecord>) {
        let shared = Arc::new(SweepRecord::new(id, sweep));
        let ids = (id.0.0..).map(JobId).take(sweep.grid.points());
        let records = ids.map(|job| JobRecord::point(&shared, sweep, job, now)).collect();
        (shared, records)
    }

    /// A sweep that gets this id.
    pub(crate) fn new(id: SweepId, sweep: &SweepSpec) -> Self {
        SweepRecord {
            v: VERSION,
            id,
            name: sweep.job.name.clone(),
            jobs: u32::try_from(sweep.grid.points()).expect("a sweep has at most a thousand jobs"),
            run: sweep.job.program.run.clone(),
            workdir: sweep.job.program.workdir.clone(),
            checkpoint_path: sweep.job.checkpoint.path.clone(),
            grid: sweep.grid.clone(),
            max_parallel: sweep.rules.max_parallel.map(std::num::NonZeroU32::get),
            early_stop: sweep.rules.early_stop.as_ref().map(|rules| wire::EarlyStop {
                metric: rules.metric.clone(),
                goal: match rules.goal {
                    Goal::Minimize => "minimize",
                    Goal::Maximize => "maximize",
                }
                .to_owned(),
                min_steps: rules.min_steps.get(),
                reduction: rules.reduction.get(),
            }),
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
    /// The record of a sweep's job.
    pub(crate) fn point(sweep: &Arc<SweepRecord>, spec: &SweepSpec, id: JobId, now: Timestamp) -> Self {
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

    /// What its ranks run, its own or its sweep's.
    pub(crate) fn program(&self) -> ProgramView<'_> {
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

    /// How many jobs its sweep has; none if it belongs to none.
    pub(crate) fn sweep_jobs(&self) -> u32 {
        let own = self.sweep.as_ref().and_then(|point| point.jobs);
        own.or(self.shared.as_ref().map(|sweep| sweep.jobs)).unwrap_or(0)
    }

    /// Its place in its sweep, each value cut to so many bytes.
    pub(super) fn sweep_point(&self, bytes_max: usize) -> Option<wire::JobSweep> {
        let point = self.sweep.as_ref()?;
        let parameter =
            |(name, value): (&str, &str)| wire::Parameter { name: name.to_owned(), value: cut(value, bytes_max) };
        let parameters = match &self.shared {
            Some(sweep) if point.parameters.is_empty() => {
                sweep.grid.point(sweep.place_of(self.id)).unwrap_or_default().into_iter().map(parameter).collect()
            }
            _ => point.parameters.iter().map(|own| parameter((&own.name, &own.value))).collect(),
        };
        Some(wire::JobSweep { id: point.id.to_string(), parameters, metric: point.metric })
    }
}

impl JobRecord {
    /// Brings the budget's count in line with what the engine knows of a live job.
    pub(crate) fn meter(&mut self, now: Timestamp, engine: &Engine) {
        let (Some(budget), Some(job)) = (&mut self.budget, engine.job(self.id)) else { return };
        budget.spent = engine.spent(now, job);
        let hourly_price = engine.hourly_price(&job.spec).unwrap_or(Money::ZERO);
        let holding = Holding { hourly_price, counted_to: now, ends_at: engine.budget_end(job) };
        budget.holding = job.attempt().map(|_| holding);
    }

    /// `engine` has the decision applied already: of a job that has ended it knows nothing any more.
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

    /// Notes that its end was asked for.
    pub(crate) fn note_cancel(&mut self, now: Timestamp, by: &Submitter) {
        self.note(now, format!("cancel requested by {by}"));
    }

    /// Notes that the end of its sweep was asked for.
    pub(crate) fn note_sweep_cancel(&mut self, now: Timestamp, sweep: SweepId, by: &Submitter) {
        self.note(now, format!("cancel of {sweep} requested by {by}"));
    }

    /// Notes what the job reported at a rung.
    pub(crate) fn note_metric(&mut self, step: Step, value: MetricValue) {
        if let Some(point) = &mut self.sweep {
            point.metric = Some(wire::MetricPoint { step: step.0, value: value.reported() });
        }
    }
}

/// A sweep as the API shows it, from its jobs' intact records in order, and its other jobs; none if the first isn't a sweep's.
pub(crate) fn sweep_to_wire(id: SweepId, (records, damaged): &(Vec<JobRecord>, Vec<JobId>)) -> Option<wire::Sweep> {
    let first = records.first()?;
    let own = first.sweep.as_ref().filter(|sweep| sweep.id == id)?;
    let shared = first.shared.as_deref();
    let point = |record: &JobRecord| -> Option<wire::SweepPoint> {
        record.sweep.as_ref().filter(|point| point.id == id)?;
        let point = record.sweep_point(LISTED_VALUE_BYTES_MAX)?;
        Some(wire::SweepPoint {
            job: record.id.to_string(),
            parameters: point.parameters,
            state: record.state,
            because: record.because.clone(),
            step: record.progress.step,
            loss: record.progress.loss,
            metric: point.metric,
        })
    };
    Some(wire::Sweep {
        id: id.to_string(),
        name: shared.map_or(&own.name, |sweep| &sweep.name).clone(),
        queue: first.queue.clone(),
        submitted_at: wire::Time(first.submitted_at),
        max_parallel: shared.map_or(own.max_parallel, |sweep| sweep.max_parallel),
        early_stop: shared.map_or(&own.early_stop, |sweep| &sweep.early_stop).clone(),
        points: records.iter().filter_map(point).collect(),
        damaged: damaged.iter().map(JobId::to_string).collect(),
    })
}
