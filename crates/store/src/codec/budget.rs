//! Budgets that are spent, as stored on disk.

use std::collections::BTreeSet;

use gangline_base::{Money, QueueName, Submitter, Timestamp};
use gangline_orchestration::{BudgetScope, OverBudget, SpentBudget};
use serde::{Deserialize, Serialize};

#[derive(Serialize, Deserialize)]
pub(super) struct SpentBudgetV1 {
    name: String,
    scope: ScopeV1,
    limit: Money,
    until: Timestamp,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    stops: bool,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum ScopeV1 {
    Everything,
    Queues(BTreeSet<QueueName>),
    User(String),
}

#[derive(Serialize, Deserialize)]
pub(super) struct OverBudgetV1 {
    budget: String,
    limit: Money,
    until: Timestamp,
}

impl From<SpentBudget> for SpentBudgetV1 {
    fn from(SpentBudget { name, scope, limit, until, stops }: SpentBudget) -> Self {
        let scope = match scope {
            BudgetScope::Everything => ScopeV1::Everything,
            BudgetScope::Queues(queues) => ScopeV1::Queues(queues),
            BudgetScope::User(user) => ScopeV1::User(user.0),
        };
        SpentBudgetV1 { name, scope, limit, until, stops }
    }
}

impl From<SpentBudgetV1> for SpentBudget {
    fn from(SpentBudgetV1 { name, scope, limit, until, stops }: SpentBudgetV1) -> Self {
        let scope = match scope {
            ScopeV1::Everything => BudgetScope::Everything,
            ScopeV1::Queues(queues) => BudgetScope::Queues(queues),
            ScopeV1::User(user) => BudgetScope::User(Submitter(user)),
        };
        SpentBudget { name, scope, limit, until, stops }
    }
}

impl From<OverBudget> for OverBudgetV1 {
    fn from(OverBudget { budget, limit, until }: OverBudget) -> Self {
        OverBudgetV1 { budget, limit, until }
    }
}

impl From<OverBudgetV1> for OverBudget {
    fn from(OverBudgetV1 { budget, limit, until }: OverBudgetV1) -> Self {
        OverBudget { budget, limit, until }
    }
}
