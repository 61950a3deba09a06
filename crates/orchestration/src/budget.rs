//! Budgets: a job ends before it costs more than its owner allowed.
//!
//! What a job has spent is the time it held its devices times their list price ([`crate::Configuration::prices`]), over
//! all its attempts, in integral nano-dollars. It is an estimate in that the bill may come at another price.
//!
//! The grace of a stop is paid for as well: a job is asked to save and stop when what is left pays for just its grace, so
//! that the budget holds even if it needs all of it. A job whose rest doesn't pay for [`RUN_MIN`] and the grace ends
//! instead of waiting, and one whose whole budget doesn't is refused. When prices change, what was held until then keeps
//! its old price; a kind whose price is taken away costs nothing from then on.

use std::time::Duration;

use gangline_base::{JobId, JobSpec, Money, Timestamp};

use crate::elasticity::gang_of;
use crate::engine::Engine;
use crate::job::{Attempt, Job};
use crate::{Decision, Fate, Refusal, StopReason};

/// The shortest run worth starting for what is left of a budget.
pub(crate) const RUN_MIN: Duration = Duration::from_mins(1);

/// What a job with a budget has spent. Others keep none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Account {
    /// The cost of what it held until `metered_to`.
    pub spent: Money,
    /// From when on what it holds is still to be added; means something only while it holds devices.
    pub metered_to: Timestamp,
}

impl Engine {
    /// What an hour of a gang's devices costs by the list; none if nobody has said.
    #[must_use]
    pub fn hourly_price(&self, spec: &JobSpec) -> Option<Money> {
        let price = self.queues.configuration().prices.get(&spec.gang.accelerator)?;
        Some(price.times(spec.gang.devices()))
    }

    /// The same for what a job holds: one that may be resized can be wider than its gang.
    fn hourly_price_now(&self, job: &Job) -> Option<Money> {
        let price = self.queues.configuration().prices.get(&job.spec.gang.accelerator)?;
        let gang = job.attempt().map(|attempt| gang_of(&job.spec, attempt));
        Some(price.times(gang.as_ref().unwrap_or(&job.spec.gang).devices()))
    }

    /// What a job with a budget has spent by now (estimated, by list prices).
    #[must_use]
    pub fn spent(&self, now: Timestamp, job: &Job) -> Money {
        let held = if job.attempt().is_some() { now.since(job.account.metered_to) } else { Duration::ZERO };
        let price = self.hourly_price_now(job).unwrap_or(Money::ZERO);
        job.account.spent.saturating_add(price.for_time(held))
    }

    /// When an attempt is to be asked to save and stop, so that its grace is still paid for.
    #[must_use]
    pub fn budget_end(&self, job: &Job) -> Option<Timestamp> {
        job.attempt()?;
        let rest = job.spec.budget?.less(job.account.spent);
        let paid = rest.pays_for(self.hourly_price_now(job)?)?;
        Some(job.account.metered_to + paid.saturating_sub(job.spec.checkpoint.grace))
    }

    /// A budget needs a price, and has to pay for a start.
    pub(crate) fn admit_budget(&self, spec: &JobSpec) -> Result<(), Refusal> {
        let Some(budget) = spec.budget else { return Ok(()) };
        let kind = spec.gang.accelerator.clone();
        let price = self.hourly_price(spec).ok_or(Refusal::NoPrice { kind })?;
        let least = price.for_time(least_time(spec));
        if budget < least { Err(Refusal::BudgetTooSmall { budget, least }) } else { Ok(()) }
    }

    /// Whether an attempt has to be asked to stop for its budget.
    pub(crate) fn budget_stop(&self, now: Timestamp, job: &Job) -> Option<StopReason> {
        let end = self.budget_end(job)?;
        Some(StopReason::BudgetSpent).filter(|_| now >= end)
    }

    /// The end of a job that would wait, if what is left of its budget doesn't pay for another start.
    pub(crate) fn budget_fate(&self, now: Timestamp, job: &Job) -> Option<Fate> {
        let budget = job.spec.budget?;
        let spent = self.spent(now, job);
        let paid = budget.less(spent).pays_for(self.hourly_price(&job.spec)?)?;
        (paid < least_time(&job.spec)).then_some(Fate::BudgetSpent { spent, budget })
    }

    /// The decision on a job whose attempt is over; one that would wait ends instead, if it couldn't pay for more.
    pub(crate) fn within_budget(&self, now: Timestamp, job: &Job, decision: Decision) -> Decision {
        let is_requeue = matches!(decision, Decision::Requeue { .. });
        let fate = if is_requeue { self.budget_fate(now, job) } else { None };
        fate.map_or(decision, |fate| Decision::End { job: job.id, fate })
    }

    /// How a job ends that was stopped for its budget.
    pub(crate) fn stopped_for_budget(&self, now: Timestamp, job: &Job, attempt: &Attempt) -> Option<Fate> {
        let budget = job.spec.budget.filter(|_| attempt.stop == Some(StopReason::BudgetSpent))?;
        Some(Fate::BudgetSpent { spent: self.spent(now, job), budget })
    }

    /// Adds what a job has held since it was last metered.
    pub(crate) fn meter(&mut self, now: Timestamp, id: JobId) {
        let Some(job) = self.jobs.get(&id).filter(|job| job.spec.budget.is_some()) else { return };
        let account = Account { spent: self.spent(now, job), metered_to: now };
        if let Some(job) = self.jobs.get_mut(&id) {
            job.account = account;
        }
    }

    /// Sets the timer for a job's stop.
    pub(crate) fn watch_budget(&mut self, id: JobId) {
        let end = self.jobs.get(&id).and_then(|job| self.budget_end(job));
        self.timers.extend(end.map(|end| (end, id)));
    }

    /// Meters all jobs with a budget: prices are about to change.
    pub(crate) fn meter_all(&mut self, now: Timestamp) -> Vec<JobId> {
        let limited: Vec<JobId> =
            self.jobs.values().filter(|job| job.spec.budget.is_some()).map(|job| job.id).collect();
        for id in &limited {
            self.meter(now, *id);
        }
        limited
    }
}

/// What has to be paid for when a job starts.
fn least_time(spec: &JobSpec) -> Duration {
    RUN_MIN.saturating_add(spec.checkpoint.grace)
}
