//! What a job's record says of its budget and its sweep.

use gangline_base::{Goal, MetricValue, Money, Step, SweepId, SweepPoint, SweepSpec, Timestamp};
use gangline_orchestration::{Decision, Engine, Fate};
use serde::{Deserialize, Serialize};

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

/// A job's place in its sweep.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct PointRecord {
    pub(crate) id: SweepId,
    /// The sweep's own name.
    pub(crate) name: String,
    /// How many jobs it has; their ids follow one another.
    pub(crate) jobs: u32,
    pub(crate) parameters: Vec<wire::Parameter>,
    pub(crate) max_parallel: Option<u32>,
    pub(crate) early_stop: Option<wire::EarlyStop>,
    pub(crate) metric: Option<wire::MetricPoint>,
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

    pub(super) fn to_wire(&self) -> wire::Budget {
        wire::Budget {
            limit_nano_dollars: self.limit.nano_dollars(),
            spent_nano_dollars: self.spent.nano_dollars(),
            counted_to: self.holding.map(|holding| wire::Time(holding.counted_to)),
            ends_at: self.holding.and_then(|holding| holding.ends_at).map(wire::Time),
        }
    }
}

impl PointRecord {
    /// A point of a sweep that gets this id.
    pub(crate) fn new(id: SweepId, sweep: &SweepSpec, point: &SweepPoint) -> Self {
        let parameter = |(name, value): &(String, String)| wire::Parameter { name: name.clone(), value: value.clone() };
        PointRecord {
            id,
            name: sweep.job.name.clone(),
            jobs: u32::try_from(sweep.points.len()).expect("a sweep has at most a thousand jobs"),
            parameters: point.0.iter().map(parameter).collect(),
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
            metric: None,
        }
    }

    pub(super) fn to_wire(&self) -> wire::JobSweep {
        let (id, parameters) = (self.id.to_string(), self.parameters.clone());
        wire::JobSweep { id, parameters, metric: self.metric }
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

    /// Notes what the job reported at a rung.
    pub(crate) fn note_metric(&mut self, step: Step, value: MetricValue) {
        if let Some(point) = &mut self.sweep {
            point.metric = Some(wire::MetricPoint { step: step.0, value: value.reported() });
        }
    }
}

/// A sweep as the API shows it, from its jobs' records in order; none if the first isn't a sweep's.
pub(crate) fn sweep_to_wire(id: SweepId, records: &[JobRecord]) -> Option<wire::Sweep> {
    let first = records.first()?;
    let sweep = first.sweep.as_ref().filter(|sweep| sweep.id == id)?;
    let point = |record: &JobRecord| -> Option<wire::SweepPoint> {
        let point = record.sweep.as_ref().filter(|point| point.id == id)?;
        Some(wire::SweepPoint {
            job: record.id.to_string(),
            parameters: point.parameters.clone(),
            state: record.state,
            because: record.because.clone(),
            step: record.progress.step,
            loss: record.progress.loss,
            metric: point.metric,
        })
    };
    Some(wire::Sweep {
        id: id.to_string(),
        name: sweep.name.clone(),
        queue: first.queue.clone(),
        submitted_at: wire::Time(first.submitted_at),
        max_parallel: sweep.max_parallel,
        early_stop: sweep.early_stop.clone(),
        points: records.iter().filter_map(point).collect(),
    })
}
