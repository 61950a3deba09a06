//! Budgets that are spent: jobs wait until the period ends or more money is allowed.
//!
//! The engine knows no prices of periods and no bills: the control plane says which budgets are spent and whose jobs they keep
//! from starting. Such a job is held back, outside of its queue, as one that a user holds. What runs goes on, and so does what
//! has begun and waits to continue, unless the budget stops jobs: then what runs is told to save and stop, and waits as well.
//! Those that lose least are told first. A user who releases a job that a budget holds exempts it from budgets; the journal has
//! who did.

use std::collections::BTreeSet;

use gangline_base::{JobSpec, Money, QueueName, Submitter, Timestamp};

/// A budget that is spent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SpentBudget {
    /// Its name.
    pub name: String,
    /// Whose jobs count.
    pub scope: BudgetScope,
    /// Its money for a period.
    pub limit: Money,
    /// When its period ends.
    pub until: Timestamp,
    /// Whether it also holds jobs that have begun, and stops those that run.
    pub stops: bool,
}

/// Whose jobs count for a budget.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BudgetScope {
    /// All jobs.
    Everything,
    /// Those of these queues.
    Queues(BTreeSet<QueueName>),
    /// Those of a user.
    User(Submitter),
}

/// The budget that keeps a job from starting.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OverBudget {
    /// Its name.
    pub budget: String,
    /// Its money for a period.
    pub limit: Money,
    /// When its period ends.
    pub until: Timestamp,
}

impl SpentBudget {
    /// Reports whether a job counts for it.
    pub(crate) fn counts(&self, spec: &JobSpec) -> bool {
        match &self.scope {
            BudgetScope::Everything => true,
            BudgetScope::Queues(queues) => queues.contains(&spec.queue),
            BudgetScope::User(user) => *user == spec.submitter,
        }
    }
}
