//! The search over kinds and numbers of accelerators: what time and money a run would take, and which of these are worth a look.

use super::{Plan, PlanError, Request, make};
use crate::units::real;

/// Shorter runs, in seconds, aren't looked at where there are longer ones.
const RUN_MIN: f64 = 3_600.0;
/// What costs almost as much as something faster isn't told.
const CHEAPER_BY: f64 = 0.95;

/// What is to be reached.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Goal {
    /// The cheapest that ends within so many seconds.
    Deadline {
        /// Seconds.
        seconds: f64,
    },
    /// The fastest that costs no more than so many nano-dollars.
    Budget {
        /// Nano-dollars.
        nano_dollars: i64,
    },
    /// The cheapest.
    Cheapest,
}

/// What there is to choose from, and what of it.
#[derive(Clone, Debug, PartialEq)]
pub struct Fleet {
    /// Plans than which no other is both faster and cheaper, the fastest first.
    pub front: Vec<Plan>,
    /// Which of them is recommended; none if none reaches the goal.
    pub recommended: Option<usize>,
    /// Why, or what stands in the way.
    pub reason: String,
    /// How many were made.
    pub tried: usize,
}

/// Makes plans of all requests, and picks.
///
/// # Errors
/// The first refusal, if all requests are refused.
pub fn choose(requests: impl Iterator<Item = Request>, goal: Goal) -> Result<Fleet, PlanError> {
    let (mut plans, mut refusal, mut tried) = (Vec::new(), None, 0);
    for request in requests {
        tried += 1;
        match make(&request) {
            Ok(plan) if plan.cost.is_some() => plans.push(plan),
            Ok(_) => {}
            Err(error) => refusal = refusal.or(Some(error)),
        }
    }
    if let (true, Some(refusal)) = (plans.is_empty(), refusal) {
        return Err(refusal);
    }
    // Machines start for minutes, and nobody rents them for less than an hour.
    if plans.iter().any(|plan| time(plan) >= RUN_MIN) {
        plans.retain(|plan| time(plan) >= RUN_MIN);
    }
    let front = front(plans);
    let (recommended, reason) = recommend(&front, goal);
    Ok(Fleet { front, recommended, reason, tried })
}

fn time(plan: &Plan) -> f64 {
    plan.run.expected_seconds
}

fn money(plan: &Plan) -> i64 {
    plan.cost.as_ref().map_or(i64::MAX, |cost| cost.total_nano_dollars.nano_dollars())
}

/// Those than which no other is both faster and cheaper (Pareto), the fastest first; of those that cost about the same the fastest, and
/// the cheapest of all.
fn front(mut plans: Vec<Plan>) -> Vec<Plan> {
    plans.sort_by(|a, b| time(a).total_cmp(&time(b)).then(money(a).cmp(&money(b))));
    let cheapest = plans.iter().map(money).min().unwrap_or(i64::MAX);
    let mut least = f64::INFINITY;
    plans.retain(|plan| {
        let cost = real(money(plan).unsigned_abs());
        let is_worth_it = cost < least * CHEAPER_BY || money(plan) == cheapest;
        least = if is_worth_it { cost } else { least };
        is_worth_it
    });
    plans
}

/// The front's plan for a goal. It is sorted by time, and so by falling cost.
fn recommend(front: &[Plan], goal: Goal) -> (Option<usize>, String) {
    let Some(last) = front.len().checked_sub(1) else {
        return (None, "no accelerator has a price: give one with --price".to_owned());
    };
    match goal {
        Goal::Cheapest => (Some(last), "the cheapest of all; each row above it buys time".to_owned()),
        Goal::Deadline { seconds } => match front.iter().rposition(|plan| time(plan) <= seconds) {
            Some(at) => (Some(at), "the cheapest that ends in time".to_owned()),
            None => {
                let hours = time(&front[0]) / 3_600.0;
                (None, format!("none ends in time: the fastest takes {hours:.1} hours"))
            }
        },
        Goal::Budget { nano_dollars } => match front.iter().position(|plan| money(plan) <= nano_dollars) {
            Some(at) => (Some(at), "the fastest that the budget pays for".to_owned()),
            None => {
                let dollars = money(&front[last]) / 1_000_000_000;
                (None, format!("the budget pays for none: the cheapest costs ${dollars}"))
            }
        },
    }
}
