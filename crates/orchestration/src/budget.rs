//! Budgets: a job ends before it costs more than its owner allowed.
//!
//! A job's spending is the time it held devices multiplied by their list price
//! ([`crate::Configuration::prices`]), over all its attempts, in integral nano-dollars. It is an
//! estimate: the provider's bill may differ.
//!
//! The budget also pays for the grace period of a stop: a job is asked to save and stop when the rest of its
//! budget covers only the grace period, so it stays within budget even if it uses all of it. If the rest
//! doesn't cover [`RUN_MIN`] plus the grace period, a job ends instead of waiting; if the whole budget
//! doesn't, the job is refused. When prices change, earlier use keeps its old price; a kind whose price is
//! removed costs nothing from then on.

use std::time::Duration;

use gangline_base::{JobId, JobSpec, Money, Timestamp};

use crate::engine::Engine;
use crate::job::{Attempt, Job, gang_of};
use crate::{Decision, Fate, Refusal, StopReason};

/// The shortest run worth starting with the rest of a budget.
pub(crate) const RUN_MIN: Duration = Duration::from_mins(1);

/// The spending of a job with a budget. Jobs without a budget have no account.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Account {
    /// The cost of the devices held until `metered_to`.
    pub spent: Money,
    /// The time up to which use is included in `spent`; meaningful only while the job holds devices.
    pub metered_to: Timestamp,
}

impl Engine {
    /// Returns the list price of a gang's devices per hour; none if no price is configured.
    #[must_use]
    pub fn hourly_price(&self, spec: &JobSpec) -> Option<Money> {
        let price = self.configuration.prices.get(&spec.gang.accelerator)?;
        Some(price.times(spec.gang.devices()))
    }

    /// Returns the hourly price of the devices a job holds; an elastic job can be wider than its gang.
    fn hourly_price_now(&self, job: &Job) -> Option<Money> {
        let price = self.configuration.prices.get(&job.spec.gang.accelerator)?;
        let gang = job.attempt().map(|attempt| gang_of(&job.spec, attempt));
        Some(price.times(gang.as_ref().unwrap_or(&job.spec.gang).devices()))
    }

    /// Returns what a job with a budget has spent by now (estimated, by list prices).
    #[must_use]
    pub fn spent(&self, now: Timestamp, job: &Job) -> Money {
        let held = if job.attempt().is_some() { now.since(job.account.metered_to) } else { Duration::ZERO };
        let price = self.hourly_price_now(job).unwrap_or(Money::ZERO);
        job.account.spent.saturating_add(price.for_time(held))
    }

    /// Returns when to ask an attempt to save and stop so that the budget still covers its grace period.
    #[must_use]
    pub fn budget_end(&self, job: &Job) -> Option<Timestamp> {
        job.attempt()?;
        let rest = job.spec.budget?.less(job.account.spent);
        let paid = rest.pays_for(self.hourly_price_now(job)?)?;
        Some(job.account.metered_to + paid.saturating_sub(job.spec.checkpoint.grace))
    }

    /// Refuses a budget for accelerators without a price, and one that doesn't pay for a start.
    pub(crate) fn admit_budget(&self, spec: &JobSpec) -> Result<(), Refusal> {
        let Some(budget) = spec.budget else { return Ok(()) };
        let kind = spec.gang.accelerator.clone();
        let price = self.hourly_price(spec).ok_or(Refusal::NoPrice { kind })?;
        let least = price.for_time(least_time(spec));
        if budget < least { Err(Refusal::BudgetTooSmall { budget, least }) } else { Ok(()) }
    }

    /// Returns a stop reason if an attempt has to stop because of its budget.
    pub(crate) fn budget_stop(&self, now: Timestamp, job: &Job) -> Option<StopReason> {
        let end = self.budget_end(job)?;
        Some(StopReason::BudgetSpent).filter(|_| now >= end)
    }

    /// Returns the fate of a job that would wait but can't pay for another start.
    pub(crate) fn budget_fate(&self, now: Timestamp, job: &Job) -> Option<Fate> {
        let budget = job.spec.budget?;
        let spent = self.spent(now, job);
        let paid = budget.less(spent).pays_for(self.hourly_price(&job.spec)?)?;
        (paid < least_time(&job.spec)).then_some(Fate::BudgetSpent { spent, budget })
    }

    /// Replaces a requeue by the end of the job if the rest of its budget doesn't pay for another start.
    pub(crate) fn within_budget(&self, now: Timestamp, job: &Job, decision: Decision) -> Decision {
        let is_requeue = matches!(decision, Decision::Requeue { .. });
        let fate = if is_requeue { self.budget_fate(now, job) } else { None };
        fate.map_or(decision, |fate| Decision::End { job: job.id, fate })
    }

    /// Returns the fate of a job that was stopped because of its budget.
    pub(crate) fn stopped_for_budget(&self, now: Timestamp, job: &Job, attempt: &Attempt) -> Option<Fate> {
        let budget = job.spec.budget.filter(|_| attempt.stop == Some(StopReason::BudgetSpent))?;
        Some(Fate::BudgetSpent { spent: self.spent(now, job), budget })
    }

    /// Adds the cost of the devices held since the job was last metered.
    pub(crate) fn meter(&mut self, now: Timestamp, id: JobId) {
        let Some(job) = self.jobs.get(&id).filter(|job| job.spec.budget.is_some()) else { return };
        let account = Account { spent: self.spent(now, job), metered_to: now };
        if let Some(job) = self.jobs.get_mut(&id) {
            job.account = account;
        }
    }

    /// Sets the timer for a job's budget stop.
    pub(crate) fn watch_budget(&mut self, id: JobId) {
        let end = self.jobs.get(&id).and_then(|job| self.budget_end(job));
        self.timers.extend(end.map(|end| (end, id)));
    }

    /// Meters all jobs with a budget, before prices change.
    pub(crate) fn meter_all(&mut self, now: Timestamp) -> Vec<JobId> {
        let limited: Vec<JobId> =
            self.jobs.values().filter(|job| job.spec.budget.is_some()).map(|job| job.id).collect();
        for id in &limited {
            self.meter(now, *id);
        }
        limited
    }
}

/// Returns the least time a job must be able to pay for when it starts.
fn least_time(spec: &JobSpec) -> Duration {
    RUN_MIN.saturating_add(spec.checkpoint.grace)
}
