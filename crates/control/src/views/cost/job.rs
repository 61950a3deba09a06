//! What one job cost: by attempt, for each step and token, and what was lost.

use gangline_accounting::bill::{Group, Line};
use gangline_api::{CostLine, JobCost};
use gangline_base::{JobId, Timestamp};
use gangline_store::db;
use gangline_store::model::JobRecord;
use gangline_store::ports::Queries as _;

use super::super::{Views, parts};
use super::{attempts_of, wire};

/// Nanoseconds of an hour.
const HOUR: i128 = 3_600_000_000_000;

impl Views {
    /// Returns what a job cost up to `now`, if there is a record of it.
    pub fn job_cost(&self, id: JobId, now: Timestamp) -> Result<Option<JobCost>, db::Error> {
        let Some((record, booked)) = self.reader.job(id)? else { return Ok(None) };
        let mut biller = attempts_of(&record, &booked, now);
        self.keep_checkpoints(&record, &mut biller, now)?;
        self.ask_of(id, &mut biller)?;
        let bill = biller.finish(|_, _| None);
        let attempts = bill.groups.iter().filter_map(|(number, group)| Some((number.as_ref()?, group)));
        let attempts = attempts.map(|(number, group)| wire::group(number.to_string(), group)).collect();
        Ok(Some(of(&record, &bill.total(), attempts)))
    }
}

fn of(record: &JobRecord, total: &Group, attempts: Vec<gangline_api::CostGroup>) -> JobCost {
    let devices = total.sum(Line::is_of_devices);
    // Without a price for all of its time, a cost for each step would be too low.
    let cost = (devices.unpriced == 0 && devices.quantity > 0).then(|| total.sum(|_| true).cost);
    let per = |count: i128| cost.filter(|_| count > 0).and_then(|cost| i64::try_from(cost / count).ok());
    let steps = record.high_water_step;
    let tokens = record.progress.tokens_per_step.map(|tokens| whole(tokens * as_float(steps)));
    let useful = total.sum(Line::is_useful).quantity;
    let live_steps = record.progress.total_steps.filter(|_| !record.state.is_final());
    let first = record.progress.first_step.unwrap_or(0);
    JobCost {
        job: record.id.to_string(),
        name: record.name.clone(),
        user: record.submitter.clone(),
        queue: record.queue.clone(),
        state: parts::state(record.state),
        total: wire::group("total".to_owned(), total),
        attempts,
        steps,
        nano_dollars_per_step: per(i128::from(steps)),
        nano_dollars_per_million_tokens: cost
            .zip(tokens)
            .filter(|(_, tokens)| *tokens > 0)
            .and_then(|(cost, tokens)| i64::try_from(cost.saturating_mul(1_000_000) / tokens).ok()),
        nano_dollars_per_useful_gpu_hour: cost
            .filter(|_| useful > 0)
            .and_then(|cost| i64::try_from(cost.saturating_mul(HOUR) / useful).ok()),
        losses: losses(total),
        checkpoints: record.checkpoints.count,
        checkpoint_bytes: record.checkpoints.bytes,
        nano_dollars_at_end: cost.zip(live_steps).and_then(|(cost, total)| at_end(cost, first, steps, total)),
        budget_nano_dollars: record.budget.as_ref().map(|budget| budget.limit.nano_dollars()),
    }
}

/// Returns what a job costs once its last step is made, after this `cost` from its first step to the one it has reached: a job
/// that began with another's checkpoint paid only for its own steps.
fn at_end(cost: i128, first: u64, reached: u64, total: u64) -> Option<i64> {
    let done = reached.checked_sub(first)?;
    let more = cost.saturating_mul(total.saturating_sub(reached).into()).checked_div(done.into())?;
    i64::try_from(cost.saturating_add(more)).ok()
}

/// Returns the lines besides new steps, the most expensive first.
fn losses(total: &Group) -> Vec<CostLine> {
    let useful: Vec<&str> = Line::ALL.into_iter().filter(|line| line.is_useful()).map(Line::name).collect();
    let mut losses: Vec<CostLine> = wire::lines(total).filter(|line| !useful.contains(&line.line.as_str())).collect();
    losses.sort_by(|left, right| {
        right.cost_nano_dollars.cmp(&left.cost_nano_dollars).then(right.gpu_seconds.total_cmp(&left.gpu_seconds))
    });
    losses
}

#[expect(clippy::cast_precision_loss, reason = "an estimate")]
fn as_float(count: u64) -> f64 {
    count as f64
}

#[expect(clippy::cast_possible_truncation, reason = "tokens are far below 2^63")]
fn whole(number: f64) -> i128 {
    number.round() as i128
}

#[cfg(test)]
mod tests {
    use super::at_end;

    #[test]
    fn what_is_left_costs_as_much_a_step_as_what_was_made() {
        assert_eq!(at_end(1_000, 0, 25, 100), Some(4_000));
        assert_eq!(at_end(1_000, 50, 75, 100), Some(2_000), "it began at another's step 50");
        assert_eq!(at_end(1_000, 0, 100, 100), Some(1_000));
        assert_eq!(at_end(1_000, 0, 120, 100), Some(1_000), "more steps than it said");
        assert_eq!(at_end(1_000, 7, 7, 100), None, "nothing is known of a step");
        assert_eq!(at_end(i128::from(i64::MAX), 0, 1, u64::MAX), None);
    }
}
