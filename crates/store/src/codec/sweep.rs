//! Sweeps as stored on disk: as submitted, in their current state, and the reasons why their jobs are
//! stopped.

use std::num::{NonZeroU32, NonZeroU64};
use std::sync::Arc;

use gangline_base::{EarlyStop, Goal, Grid, JobId, MetricValue, Reduction, Step, SweepId, SweepRules, SweepSpec};
use gangline_orchestration::{MissedRung, Sweep};
use serde::{Deserialize, Serialize};

use super::Error;
use super::spec::SpecV1;

/// The most points of a sweep that are read: far more than any release accepts.
const POINTS_MAX: usize = 1 << 20;

#[derive(Serialize, Deserialize)]
pub(super) struct SweepSpecV1 {
    job: SpecV1,
    /// All values of each point, as version 1 stored them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    points: Vec<Vec<(String, String)>>,
    /// Each parameter with its values.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    grid: Vec<(String, Vec<String>)>,
    /// The points are the rows of the grid, rather than its combinations.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    is_list: bool,
    rules: RulesV1,
}

/// Builds the points from their stored form.
fn stored_grid(parameters: Vec<(String, Vec<String>)>, is_list: bool) -> Option<Grid> {
    if is_list { Grid::list(parameters) } else { Some(Grid::new(parameters)) }
}

#[derive(Serialize, Deserialize)]
struct RulesV1 {
    max_parallel: Option<NonZeroU32>,
    early_stop: Option<EarlyStopV1>,
}

#[derive(Serialize, Deserialize)]
struct EarlyStopV1 {
    metric: String,
    goal: GoalV1,
    min_steps: NonZeroU64,
    reduction: u32,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum GoalV1 {
    Minimize,
    Maximize,
}

/// A sweep in a snapshot.
#[derive(Serialize, Deserialize)]
pub(super) struct SweepV1 {
    id: SweepId,
    jobs: u32,
    /// The jobs' common specification; missing if each job has its own, as in version 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    job: Option<Box<SpecV1>>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    grid: Vec<(String, Vec<String>)>,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    is_list: bool,
    rules: RulesV1,
    rungs: Vec<(u32, Vec<(JobId, MetricV1)>)>,
}

/// In billionths; `None` if the job had diverged.
#[derive(Clone, Copy, Serialize, Deserialize)]
#[serde(transparent)]
pub(super) struct MetricV1(Option<i64>);

#[derive(Serialize, Deserialize)]
pub(super) struct MissedV1 {
    step: Step,
    value: MetricV1,
    bar: Option<i64>,
    kept: u32,
    seen: u32,
}

impl From<&SweepSpec> for SweepSpecV1 {
    fn from(sweep: &SweepSpec) -> Self {
        SweepSpecV1 {
            job: SpecV1::from(&*sweep.job),
            points: Vec::new(),
            grid: sweep.grid.parameters().to_vec(),
            is_list: sweep.grid.is_list(),
            rules: RulesV1::from(&sweep.rules),
        }
    }
}

impl TryFrom<SweepSpecV1> for SweepSpec {
    type Error = Error;

    fn try_from(sweep: SweepSpecV1) -> Result<Self, Error> {
        let grid = if sweep.points.is_empty() {
            stored_grid(sweep.grid, sweep.is_list)
        } else {
            Grid::from_points(&sweep.points)
        };
        let grid = grid.filter(|grid| grid.points() <= POINTS_MAX).ok_or(Error::Impossible("sweep"))?;
        Ok(SweepSpec { job: Arc::new(sweep.job.try_into()?), grid, rules: sweep.rules.try_into()? })
    }
}

impl From<&SweepRules> for RulesV1 {
    fn from(rules: &SweepRules) -> Self {
        let early_stop = rules.early_stop.as_ref().map(|rules| EarlyStopV1 {
            metric: rules.metric.clone(),
            goal: match rules.goal {
                Goal::Minimize => GoalV1::Minimize,
                Goal::Maximize => GoalV1::Maximize,
            },
            min_steps: rules.min_steps,
            reduction: rules.reduction.get(),
        });
        RulesV1 { max_parallel: rules.max_parallel, early_stop }
    }
}

impl TryFrom<RulesV1> for SweepRules {
    type Error = Error;

    fn try_from(rules: RulesV1) -> Result<Self, Error> {
        let early_stop = |rules: EarlyStopV1| -> Result<EarlyStop, Error> {
            Ok(EarlyStop {
                metric: rules.metric,
                goal: match rules.goal {
                    GoalV1::Minimize => Goal::Minimize,
                    GoalV1::Maximize => Goal::Maximize,
                },
                min_steps: rules.min_steps,
                reduction: Reduction::new(rules.reduction).ok_or(Error::Impossible("reduction"))?,
            })
        };
        Ok(SweepRules { max_parallel: rules.max_parallel, early_stop: rules.early_stop.map(early_stop).transpose()? })
    }
}

impl From<&Sweep> for SweepV1 {
    fn from(sweep: &Sweep) -> Self {
        let rung = |(rung, values): (&u32, &Vec<(JobId, MetricValue)>)| {
            (*rung, values.iter().map(|(job, value)| (*job, (*value).into())).collect())
        };
        SweepV1 {
            id: sweep.id,
            jobs: sweep.jobs,
            job: sweep.spec.as_ref().map(|spec| Box::new(SpecV1::from(&*spec.job))),
            grid: sweep.spec.as_ref().map(|spec| spec.grid.parameters().to_vec()).unwrap_or_default(),
            is_list: sweep.spec.as_ref().is_some_and(|spec| spec.grid.is_list()),
            rules: RulesV1::from(&sweep.rules),
            rungs: sweep.rungs.iter().map(rung).collect(),
        }
    }
}

impl TryFrom<SweepV1> for Sweep {
    type Error = Error;

    fn try_from(sweep: SweepV1) -> Result<Self, Error> {
        let rung = |(rung, values): (u32, Vec<(JobId, MetricV1)>)| {
            (rung, values.into_iter().map(|(job, value)| (job, value.into())).collect())
        };
        let rules = SweepRules::try_from(sweep.rules)?;
        let is_list = sweep.is_list;
        let shared = |job: SpecV1, grid| -> Result<_, Error> {
            let grid = stored_grid(grid, is_list).ok_or(Error::Impossible("sweep"))?;
            let job = Arc::new(job.try_into()?);
            Ok(Arc::new(SweepSpec { job, grid, rules: rules.clone() }))
        };
        Ok(Sweep {
            id: sweep.id,
            jobs: sweep.jobs,
            spec: sweep.job.map(|job| shared(*job, sweep.grid)).transpose()?,
            rules,
            rungs: sweep.rungs.into_iter().map(rung).collect(),
        })
    }
}

impl From<MetricValue> for MetricV1 {
    fn from(value: MetricValue) -> Self {
        match value {
            MetricValue::Nanos(nanos) => MetricV1(Some(nanos)),
            MetricValue::Diverged => MetricV1(None),
        }
    }
}

impl From<MetricV1> for MetricValue {
    fn from(value: MetricV1) -> Self {
        value.0.map_or(MetricValue::Diverged, MetricValue::Nanos)
    }
}

impl From<MissedRung> for MissedV1 {
    fn from(missed: MissedRung) -> Self {
        let MissedRung { step, value, bar, kept, seen } = missed;
        MissedV1 { step, value: value.into(), bar: bar.and_then(|bar| MetricV1::from(bar).0), kept, seen }
    }
}

impl From<MissedV1> for MissedRung {
    fn from(missed: MissedV1) -> Self {
        let MissedV1 { step, value, bar, kept, seen } = missed;
        MissedRung { step, value: value.into(), bar: bar.map(MetricValue::Nanos), kept, seen }
    }
}
