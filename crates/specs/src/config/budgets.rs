//! Budgets of the configuration, `[[budget]]`: how much money jobs may use in each calendar period before somebody is told, before
//! no further job begins, or before what runs is stopped (`when_spent`).

use std::collections::BTreeSet;

use gangline_base::{Money, QueueName};
use gangline_orchestration::{Period, QueueSpec};
use serde::Deserialize;

/// The most budgets.
const BUDGETS_MAX: usize = 1_000;
/// The longest name, in bytes.
const NAME_BYTES_MAX: usize = 64;

/// Money for a calendar period.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Budget {
    /// Its name; unique.
    pub name: String,
    /// Whose jobs count.
    pub of: BudgetOf,
    /// The money.
    pub limit: Money,
    /// The period, in UTC.
    pub per: Period,
    /// What happens once it is spent.
    pub when_spent: WhenSpent,
}

/// What happens once a budget is spent, besides alerts.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
pub enum WhenSpent {
    /// Nothing.
    #[default]
    Alert,
    /// Jobs of it that haven't begun wait.
    Hold,
    /// Jobs of it that run save and stop, and all wait.
    Stop,
}

/// Whose jobs count for a budget.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BudgetOf {
    /// All of the bill, idle devices included.
    Everything,
    /// A queue's, and those of all queues below it.
    Queue {
        /// The queue.
        name: QueueName,
        /// The queue and those below it.
        all: BTreeSet<QueueName>,
    },
    /// A user's.
    User(String),
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct BudgetV1 {
    name: String,
    queue: Option<String>,
    user: Option<String>,
    usd: String,
    per: PeriodV1,
    #[serde(default)]
    when_spent: WhenSpent,
}

#[derive(Clone, Copy, Deserialize)]
#[serde(rename_all = "lowercase")]
enum PeriodV1 {
    Day,
    Week,
    Month,
}

impl From<PeriodV1> for Period {
    fn from(period: PeriodV1) -> Period {
        match period {
            PeriodV1::Day => Period::Day,
            PeriodV1::Week => Period::Week,
            PeriodV1::Month => Period::Month,
        }
    }
}

/// Returns the budgets; an error names the budget.
pub(super) fn read(written: Vec<BudgetV1>, queues: &[QueueSpec]) -> Result<Vec<Budget>, (String, String)> {
    let mut budgets: Vec<Budget> = Vec::new();
    for budget in written {
        let name = budget.name.chars().take(NAME_BYTES_MAX).collect::<String>();
        if budgets.len() == BUDGETS_MAX {
            return Err((name, format!("there are more than {BUDGETS_MAX} budgets")));
        }
        if budgets.iter().any(|known| known.name == budget.name) {
            return Err((name, "there are two budgets of this name".to_owned()));
        }
        budgets.push(budget.read(queues).map_err(|message| (name, message))?);
    }
    Ok(budgets)
}

impl BudgetV1 {
    fn read(self, queues: &[QueueSpec]) -> Result<Budget, String> {
        if self.name.is_empty() || self.name.len() > NAME_BYTES_MAX {
            return Err(format!("a name has 1 to {NAME_BYTES_MAX} bytes"));
        }
        let limit: Money = self.usd.parse().map_err(|error| format!("`usd`: {error}"))?;
        if limit <= Money::ZERO {
            return Err("`usd` is not above 0".to_owned());
        }
        let of = match (self.queue, self.user) {
            (None, None) => BudgetOf::Everything,
            (Some(queue), None) => below(&queue, queues)?,
            (None, Some(user)) => BudgetOf::User(user),
            (Some(_), Some(_)) => return Err("it names a queue and a user: write one of them".to_owned()),
        };
        Ok(Budget { name: self.name, of, limit, per: self.per.into(), when_spent: self.when_spent })
    }
}

fn below(queue: &str, queues: &[QueueSpec]) -> Result<BudgetOf, String> {
    let name = QueueName::new(queue).map_err(|error| error.to_string())?;
    if !queues.is_empty() && queues.iter().all(|known| known.name != name) {
        return Err(format!("there is no queue \"{queue}\""));
    }
    let mut all = BTreeSet::from([name.clone()]);
    // Each round adds a level.
    loop {
        let more = queues.iter().filter(|queue| queue.parent.as_ref().is_some_and(|parent| all.contains(parent)));
        let more: Vec<QueueName> = more.map(|queue| queue.name.clone()).filter(|name| !all.contains(name)).collect();
        if more.is_empty() {
            return Ok(BudgetOf::Queue { name, all });
        }
        all.extend(more);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;

    const QUEUES: &str = "[[queue]]\nname = 'research'\n[[queue]]\nname = 'nlp'\nparent = 'research'\n\
        [[queue]]\nname = 'llm'\nparent = 'nlp'\n[[queue]]\nname = 'prod'\n";

    #[test]
    fn a_queues_budget_counts_the_queues_below_it() {
        let text = format!("{QUEUES}[[budget]]\nname = 'r'\nqueue = 'research'\nusd = '5000'\nper = 'month'");
        let budgets = Config::parse(&text).expect("a sound file").budgets;
        let [Budget { of: BudgetOf::Queue { all, .. }, limit, per: Period::Month, .. }] = budgets.as_slice() else {
            panic!("one budget: {budgets:?}")
        };
        assert_eq!(all.iter().map(QueueName::as_str).collect::<Vec<_>>(), ["llm", "nlp", "research"]);
        assert_eq!(limit.to_string(), "$5000.00");
        assert_eq!(budgets[0].when_spent, WhenSpent::Alert);
        for (written, read) in [("hold", WhenSpent::Hold), ("stop", WhenSpent::Stop)] {
            let text = format!("{text}\nwhen_spent = '{written}'");
            assert_eq!(Config::parse(&text).expect("a sound file").budgets[0].when_spent, read);
        }
    }

    #[test]
    fn a_bad_budget_says_which_and_why() {
        let refused = |budgets: &str| {
            let text = format!("{QUEUES}{budgets}");
            Config::parse(&text).expect_err("a refusal").to_string()
        };
        let whole = "[[budget]]\nname = 'b'\nusd = '1'\nper = 'day'\n";
        assert_eq!(refused(&format!("{whole}{whole}")), "budget \"b\": there are two budgets of this name");
        assert!(refused(&whole.replace("'1'", "'0'")).ends_with("`usd` is not above 0"));
        assert!(refused(&format!("{whole}queue = 'ghosts'")).ends_with("there is no queue \"ghosts\""));
        assert!(refused(&format!("{whole}queue = 'prod'\nuser = 'ada'")).contains("a queue and a user"));
        assert!(refused(&whole.replace("'day'", "'year'")).contains("month"));
        assert!(refused(&format!("{whole}when_spent = 'kill'")).contains("`alert`, `hold`, `stop`"));
    }
}
