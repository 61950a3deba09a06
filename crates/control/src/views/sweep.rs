//! Converts budgets and sweeps into the API's types.

use gangline_api::{Budget, EarlyStop, JobSweep, MetricPoint, Parameter, Sweep, SweepPoint, Time};
use gangline_base::{JobId, SweepId};

use super::parts;
use gangline_store::model::{BudgetRecord, EarlyStopRecord, JobRecord, MetricRecord, cut};

/// The longest parameter value in a sweep's listing, in bytes: a thousand jobs may share a long one.
pub(super) const LISTED_VALUE_BYTES_MAX: usize = 256;

pub(super) fn budget(budget: &BudgetRecord) -> Budget {
    Budget {
        limit_nano_dollars: budget.limit.nano_dollars(),
        spent_nano_dollars: budget.spent.nano_dollars(),
        counted_to: budget.holding.map(|holding| Time(holding.counted_to)),
        ends_at: budget.holding.and_then(|holding| holding.ends_at).map(Time),
    }
}

fn early_stop(rules: &EarlyStopRecord) -> EarlyStop {
    let EarlyStopRecord { metric, goal, min_steps, reduction } = rules.clone();
    EarlyStop { metric, goal, min_steps, reduction }
}

fn metric(MetricRecord { step, value }: MetricRecord) -> MetricPoint {
    MetricPoint { step, value }
}

/// Returns the job's point in its sweep, each value cut to `bytes_max` bytes.
pub(super) fn sweep_point(record: &JobRecord, bytes_max: usize) -> Option<JobSweep> {
    let point = record.sweep.as_ref()?;
    let parameters = record.sweep_parameters().into_iter();
    let parameters =
        parameters.map(|(name, value)| Parameter { name: name.to_owned(), value: cut(value, bytes_max) }).collect();
    Some(JobSweep { id: point.id.to_string(), parameters, metric: point.metric.map(metric) })
}

/// Returns the API's view of a sweep from its jobs' intact records in order and its damaged jobs; `None` if
/// the first isn't a sweep's.
pub(crate) fn sweep_to_api(id: SweepId, (records, damaged): &(Vec<JobRecord>, Vec<JobId>)) -> Option<Sweep> {
    let first = records.first()?;
    first.sweep.as_ref().filter(|sweep| sweep.id == id)?;
    let shared = first.sweep_view()?;
    let point = |record: &JobRecord| -> Option<SweepPoint> {
        record.sweep.as_ref().filter(|point| point.id == id)?;
        let point = sweep_point(record, LISTED_VALUE_BYTES_MAX)?;
        Some(SweepPoint {
            job: record.id.to_string(),
            parameters: point.parameters,
            state: parts::state(record.state),
            because: record.because.clone(),
            step: record.progress.step,
            loss: record.progress.loss,
            metric: point.metric,
        })
    };
    Some(Sweep {
        id: id.to_string(),
        name: shared.name.to_owned(),
        queue: first.queue.clone(),
        submitted_at: Time(first.submitted_at),
        max_parallel: shared.max_parallel,
        early_stop: shared.early_stop.map(early_stop),
        points: records.iter().filter_map(point).collect(),
        damaged: damaged.iter().map(JobId::to_string).collect(),
    })
}
