//! What one job cost: by attempt, for each step and token, and what was lost.

use std::collections::BTreeSet;
use std::sync::Arc;

use gangline_accounting::bill::{Biller, Group, Line, Period, Unit};
use gangline_api::{CostLine, JobCost};
use gangline_base::{JobId, Timestamp};
use gangline_store::db;
use gangline_store::model::{Account, Booked, JobRecord, Usage, accrued_until};
use gangline_store::ports::Queries as _;

use super::super::{Views, parts};
use super::{held, wire};

/// Nanoseconds of an hour.
const HOUR: i128 = 3_600_000_000_000;

impl Views {
    /// Returns what a job cost up to `now`, if there is a record of it.
    pub fn job_cost(&self, id: JobId, now: Timestamp) -> Result<Option<JobCost>, db::Error> {
        let Some((record, booked)) = self.reader.job(id)? else { return Ok(None) };
        let mut biller = self.attempts_of(&record, booked, now)?;
        self.keep_checkpoints(&record, &mut biller, now)?;
        self.ask_of(id, &mut biller)?;
        for (at, met) in self.reader.incidents_of(id)? {
            biller.attend(None, at, &met.incident());
        }
        let bill = biller.finish_of_jobs();
        let attempts = bill.groups.iter().filter_map(|(number, group)| Some((number.as_ref()?, group)));
        let attempts = attempts.map(|(number, group)| wire::group(number.to_string(), group)).collect();
        Ok(Some(of(&record, &bill.total(), attempts)))
    }

    /// Begins the bill of all attempts of a job until `now`; groups are the attempts.
    fn attempts_of(
        &self,
        record: &JobRecord,
        booked: Vec<Booked>,
        now: Timestamp,
    ) -> Result<Biller<Option<u32>>, db::Error> {
        let running = record.last_attempt().map(|attempt| accrued_until(record.id, attempt, now)).unwrap_or_default();
        let booked: Vec<Booked> = booked.into_iter().chain(running.iter().map(Booked::of)).collect();
        let nodes: BTreeSet<&str> = booked.iter().map(|booked| booked.node.as_str()).collect();
        let from = booked.iter().map(|booked| booked.from).min().unwrap_or(now);
        let mut biller = Biller::new(Period { from: Timestamp::EPOCH, to: Timestamp::from_unix_nanos(u64::MAX) });
        for (at, changed) in self.reader.capacities_of(&nodes, (from, now))? {
            biller.offer(&changed.node, at, changed.capacity());
        }
        let account = Arc::new(Account::of(record));
        for booked in booked {
            let (attempt, account) = (Some(booked.attempt), Some(Arc::clone(&account)));
            let usage = Usage { job: record.id, queue: record.queue.clone(), booked, account };
            let held = held(&usage);
            biller.hold(attempt, &held);
            biller.charge(&held, |_, _| attempt);
        }
        Ok(biller)
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

/// Returns the lines besides new steps, the most expensive first, without what every hour of a device costs.
fn losses(total: &Group) -> Vec<CostLine> {
    let is_lost = |line: Line| !line.is_useful() && !matches!(line.unit(), Unit::ChargedTime | Unit::Energy);
    let others: Vec<&str> = Line::ALL.into_iter().filter(|line| !is_lost(*line)).map(Line::name).collect();
    let mut losses: Vec<CostLine> = wire::lines(total).filter(|line| !others.contains(&line.line.as_str())).collect();
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
