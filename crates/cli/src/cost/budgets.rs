//! `cost budgets`: how far budgets are spent.

use gangline_api as api;
use gangline_base::Money;

use super::tell_unpriced;
use crate::client::Client;
use crate::failure::Failure;
use crate::output;

pub(super) fn run(client: &Client, is_json: bool) -> Result<(), Failure> {
    let list: api::BudgetList = client.get("/cost/budgets")?;
    if is_json {
        return output::json(&list);
    }
    if list.budgets.is_empty() {
        output::tell("there are no budgets: write [[budget]] into the configuration (docs/reference/configuration.md)");
        return Ok(());
    }
    let headings = ["BUDGET", "OF", "PER", ">LIMIT", ">SPENT", ">OF IT", ">FORECAST", ">OF IT", "UNTIL", "WHEN SPENT"];
    output::print(&output::table(&headings, list.budgets.iter().map(row).collect()))?;
    tell_unpriced(list.budgets.iter().map(|budget| budget.unpriced_gpu_seconds).fold(0.0, f64::max));
    Ok(())
}

fn row(budget: &api::BudgetStanding) -> Vec<String> {
    let share = |share: f64| format!("{:.1} %", share * 100.0);
    vec![
        budget.name.clone(),
        budget.of.clone(),
        budget.per.clone(),
        Money::from_nano_dollars(budget.limit_nano_dollars).to_string(),
        Money::from_nano_dollars(budget.spent_nano_dollars).to_string(),
        share(budget.spent_share),
        Money::from_nano_dollars(budget.forecast_nano_dollars).to_string(),
        share(budget.forecast_share),
        output::time(budget.until),
        budget.when_spent.clone(),
    ]
}
