//! How far budgets are spent, and how far they will be.

use std::collections::BTreeMap;
use std::time::Duration;

use gangline_accounting::bill::Period;
use gangline_api::{self as api, Time};
use gangline_base::{Money, Timestamp};
use gangline_specs::config::{Budget, BudgetOf, WhenSpent};
use gangline_store::db;

use super::super::Views;
use super::By;

/// The time whose spending is taken for that of the rest of the period.
const RECENT: Duration = Duration::from_secs(24 * 3_600);

/// Reports by queue and by user of one period.
type Reports = BTreeMap<(u64, bool), api::CostReport>;

impl Views {
    /// Returns how far each budget is spent in its present period, and how far it will be at the period's end if as much is
    /// spent as in the last day.
    pub fn budgets(&self, budgets: &[Budget], now: Timestamp) -> Result<Vec<api::BudgetStanding>, db::Error> {
        let mut reports = Reports::new();
        budgets.iter().map(|budget| self.standing(budget, now, &mut reports)).collect()
    }

    fn standing(&self, budget: &Budget, now: Timestamp, known: &mut Reports) -> Result<api::BudgetStanding, db::Error> {
        let (from, until) = budget.per.around(now);
        let recent = (now - RECENT).max(from);
        let (spent, unpriced) = self.spent(&budget.of, Period { from, to: now }, known)?;
        let (lately, _) = self.spent(&budget.of, Period { from: recent, to: now }, known)?;
        let window = now.since(recent).as_secs_f64();
        let part = if window > 0.0 { until.since(now).as_secs_f64() / window } else { 0.0 };
        let forecast = spent.saturating_add(scaled(lately, part));
        let of = match &budget.of {
            BudgetOf::Everything => "everything".to_owned(),
            BudgetOf::Queue { name, .. } => format!("queue {name}"),
            BudgetOf::User(user) => format!("user {user}"),
        };
        Ok(api::BudgetStanding {
            name: budget.name.clone(),
            of,
            per: budget.per.name().to_owned(),
            from: Time(from),
            until: Time(until),
            limit_nano_dollars: budget.limit.nano_dollars(),
            spent_nano_dollars: spent.nano_dollars(),
            spent_share: dollars(spent) / dollars(budget.limit),
            forecast_nano_dollars: forecast.nano_dollars(),
            forecast_share: dollars(forecast) / dollars(budget.limit),
            unpriced_gpu_seconds: unpriced,
            when_spent: match budget.when_spent {
                WhenSpent::Alert => "alert",
                WhenSpent::Hold => "hold",
                WhenSpent::Stop => "stop",
            }
            .to_owned(),
        })
    }

    /// Returns what was spent in a period, and the device time without a price.
    fn spent(&self, of: &BudgetOf, period: Period, known: &mut Reports) -> Result<(Money, f64), db::Error> {
        let is_by_user = matches!(of, BudgetOf::User(_));
        let by = if is_by_user { By::User } else { By::Queue };
        let key = (period.from.unix_nanos(), is_by_user);
        if let std::collections::btree_map::Entry::Vacant(missing) = known.entry(key) {
            missing.insert(self.cost_report(period, by, false, period.to)?);
        }
        let counts = |name: &str| match of {
            BudgetOf::Everything => true,
            BudgetOf::Queue { all, .. } => all.iter().any(|queue| queue.as_str() == name),
            BudgetOf::User(user) => user == name,
        };
        let groups = known.get(&key).into_iter().flat_map(|report| &report.groups);
        let counted = groups.filter(|group| counts(&group.name));
        Ok(counted.fold((Money::ZERO, 0.0), |(money, unpriced), group| {
            let cost = Money::from_nano_dollars(group.cost_nano_dollars);
            (money.saturating_add(cost), unpriced + group.unpriced_gpu_seconds)
        }))
    }
}

#[expect(clippy::cast_possible_truncation, clippy::cast_precision_loss, reason = "a forecast")]
fn scaled(money: Money, factor: f64) -> Money {
    Money::from_nano_dollars((money.nano_dollars() as f64 * factor) as i64)
}

#[expect(clippy::cast_precision_loss, reason = "shares")]
fn dollars(money: Money) -> f64 {
    money.nano_dollars() as f64 / 1e9
}
