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
    let (ranked_by, ranking) = ranked(records, shared.early_stop);
    Some(Sweep {
        id: id.to_string(),
        name: shared.name.to_owned(),
        queue: first.queue.clone(),
        submitted_at: Time(first.submitted_at),
        max_parallel: shared.max_parallel,
        early_stop: shared.early_stop.map(early_stop),
        points: records.iter().filter_map(point).collect(),
        ranked_by,
        ranking,
        damaged: damaged.iter().map(JobId::to_string).collect(),
    })
}

/// Ranks jobs, best first: with early stopping those that got to a later rung before others, and at one rung by the
/// metric there; otherwise by the last loss. Jobs without a finite value have no rank.
fn ranked(records: &[JobRecord], rules: Option<&EarlyStopRecord>) -> (String, Vec<String>) {
    let is_highest_best = rules.is_some_and(|rules| rules.goal == "maximize");
    let value = |record: &JobRecord| match rules {
        Some(rules) => {
            let MetricRecord { step, value } = record.sweep.as_ref()?.metric?;
            Some((rung(rules, step), value?))
        }
        None => Some((0, record.progress.loss.filter(|_| record.progress.not_finite_since.is_none())?)),
    };
    let mut ranking: Vec<((u32, f64), JobId)> =
        records.iter().filter_map(|record| Some((value(record)?, record.id))).collect();
    ranking.sort_by(|((rung, value), id), ((other_rung, other_value), other_id)| {
        let by_value = if is_highest_best { other_value.total_cmp(value) } else { value.total_cmp(other_value) };
        other_rung.cmp(rung).then(by_value).then(id.cmp(other_id))
    });
    let order = if is_highest_best { "highest first" } else { "lowest first" };
    let by = match rules {
        Some(rules) => format!("{} at the last rung that each reached, {order} (measured)", rules.metric),
        None => format!("last loss, {order} (measured)"),
    };
    (by, ranking.into_iter().map(|(_, id)| id.to_string()).collect())
}

/// Returns how many rungs lie at or before a step. Jobs report their first metric at or after a rung, so at one rung
/// they differ in their steps.
fn rung(rules: &EarlyStopRecord, step: u64) -> u32 {
    let at = |rung: u32| u64::from(rules.reduction).checked_pow(rung)?.checked_mul(rules.min_steps);
    let passed = (0..u64::BITS).take_while(|rung| at(*rung).is_some_and(|at| at <= step));
    u32::try_from(passed.count()).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_job_is_at_the_last_rung_that_its_metric_has_reached() {
        let rules = EarlyStopRecord { metric: "loss".into(), goal: "minimize".into(), min_steps: 10, reduction: 3 };
        assert_eq!([9, 10, 12, 29, 30, 89, 90].map(|step| rung(&rules, step)), [0, 1, 1, 1, 2, 2, 3]);
        assert_eq!(rung(&EarlyStopRecord { min_steps: 1, ..rules }, u64::MAX), 41);
    }
}
