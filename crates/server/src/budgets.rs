//! The budgets in force, and those that hold jobs back or stop them once they are spent: a thread looks at the bills and tells
//! the service.
//!
//! A look reads the ledger of a budget's period, so the thread waits after each for fifty times as long as it took, but for half a
//! minute at most. What is spent meanwhile isn't noticed before the next look.

use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::sync::{Arc, PoisonError, RwLock};
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant};

use gangline_api as api;
use gangline_base::{Submitter, Timestamp, with_causes};
use gangline_control::service;
use gangline_control::views::Views;
use gangline_orchestration::{BudgetScope, SpentBudget};
use gangline_specs::config::{Budget, BudgetOf, WhenSpent};
use tracing::warn;

/// The shortest and the longest time between two looks.
const PAUSE_MIN: Duration = Duration::from_secs(5);
const PAUSE_MAX: Duration = Duration::from_secs(30);
/// Pauses are this many times as long as a look takes.
const PAUSE_TIMES: u32 = 50;

/// The configuration's budgets, which a reload replaces; cheap to clone.
#[derive(Clone, Debug)]
pub struct Budgets(Arc<RwLock<Arc<[Budget]>>>);

impl Budgets {
    /// Starts with these.
    #[must_use]
    pub fn new(budgets: Vec<Budget>) -> Budgets {
        Budgets(Arc::new(RwLock::new(budgets.into())))
    }

    /// Returns those in force.
    #[must_use]
    pub fn now(&self) -> Arc<[Budget]> {
        Arc::clone(&self.0.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Puts others in force, and reports whether they differ.
    pub(crate) fn replace(&self, budgets: Vec<Budget>) -> bool {
        let mut current = self.0.write().unwrap_or_else(PoisonError::into_inner);
        let differs = **current != budgets[..];
        if differs {
            *current = budgets.into();
        }
        differs
    }
}

/// The running thread.
#[derive(Debug)]
pub struct Service {
    stop: Sender<()>,
    thread: JoinHandle<()>,
}

struct Watch {
    budgets: Budgets,
    handle: service::Handle,
    views: Views,
    clock: fn() -> Timestamp,
    runtime: tokio::runtime::Runtime,
}

impl Service {
    /// Starts the thread.
    ///
    /// # Errors
    /// If the thread can't be started.
    pub fn start(
        budgets: &Budgets,
        handle: service::Handle,
        views: Views,
        clock: fn() -> Timestamp,
    ) -> std::io::Result<Service> {
        let budgets = budgets.clone();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let watch = Watch { budgets, handle, views, clock, runtime };
        let (stop, stopped) = channel();
        let run = move || {
            let (mut pause, mut seen) = (Duration::ZERO, None);
            while stopped.recv_timeout(pause.min(PAUSE_MIN)) == Err(RecvTimeoutError::Timeout) {
                // A reload is noticed in the middle of a long pause.
                let budgets = watch.budgets.now();
                pause = pause.saturating_sub(PAUSE_MIN);
                if pause > Duration::ZERO && seen.as_ref().is_some_and(|seen| Arc::ptr_eq(seen, &budgets)) {
                    continue;
                }
                let began = Instant::now();
                let is_told = watch.look(&budgets);
                seen = Some(budgets).filter(|_| is_told);
                pause = (began.elapsed() * PAUSE_TIMES).clamp(PAUSE_MIN, PAUSE_MAX);
            }
        };
        let thread = Builder::new().name("budgets".to_owned()).spawn(run)?;
        Ok(Service { stop, thread })
    }

    /// Ends the thread.
    pub fn stop(self) {
        // Fails only if the thread has ended already.
        let _ = self.stop.send(());
        if self.thread.join().is_err() {
            warn!("the thread of budgets had panicked");
        }
    }
}

impl Watch {
    /// Looks once; reports whether the service has taken the answer. Otherwise the previous answer still applies.
    fn look(&self, budgets: &[Budget]) -> bool {
        let acting: Vec<Budget> =
            budgets.iter().filter(|budget| budget.when_spent != WhenSpent::Alert).cloned().collect();
        let standings = match self.views.budgets(&acting, (self.clock)()) {
            Ok(standings) => standings,
            Err(error) => {
                warn!(error = %with_causes(&error), "it can't be told which budgets are spent");
                return false;
            }
        };
        let told = self.runtime.block_on(self.handle.budgets_spent(spent(&acting, &standings)));
        told.map_err(|error| warn!(%error, "it could not be noted which budgets are spent")).is_ok()
    }
}

/// Returns the budgets whose spending has reached the limit.
fn spent(budgets: &[Budget], standings: &[api::BudgetStanding]) -> Vec<SpentBudget> {
    let is_spent = |standing: &api::BudgetStanding| standing.spent_nano_dollars >= standing.limit_nano_dollars;
    let all = budgets.iter().zip(standings).filter(|(_, standing)| is_spent(standing));
    let as_spent = |(budget, standing): (&Budget, &api::BudgetStanding)| SpentBudget {
        name: budget.name.clone(),
        scope: match &budget.of {
            BudgetOf::Everything => BudgetScope::Everything,
            BudgetOf::Queue { all, .. } => BudgetScope::Queues(all.clone()),
            BudgetOf::User(user) => BudgetScope::User(Submitter(user.clone())),
        },
        limit: budget.limit,
        until: standing.until.0,
        stops: budget.when_spent == WhenSpent::Stop,
    };
    all.map(as_spent).collect()
}
