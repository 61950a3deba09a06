//! Budgets that hold jobs back once they are spent: a thread looks at the bills and tells the service.
//!
//! A look reads the ledger of a budget's period, so the thread waits after each for fifty times as long as it took, but for half a
//! minute at most. What is spent meanwhile isn't noticed before the next look.

use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant};

use gangline_api as api;
use gangline_base::{Submitter, Timestamp, with_causes};
use gangline_control::service;
use gangline_control::views::Views;
use gangline_orchestration::{BudgetScope, SpentBudget};
use gangline_specs::config::{Budget, BudgetOf};
use tracing::warn;

/// The shortest and the longest time between two looks.
const PAUSE_MIN: Duration = Duration::from_secs(5);
const PAUSE_MAX: Duration = Duration::from_secs(30);
/// Pauses are this many times as long as a look takes.
const PAUSE_TIMES: u32 = 50;

/// The running thread.
#[derive(Debug)]
pub struct Service {
    stop: Sender<()>,
    thread: JoinHandle<()>,
}

struct Watch {
    budgets: Vec<Budget>,
    handle: service::Handle,
    views: Views,
    clock: fn() -> Timestamp,
    runtime: tokio::runtime::Runtime,
}

impl Service {
    /// Starts the thread. Without budgets that hold jobs back, it tells the service so once.
    ///
    /// # Errors
    /// If the thread can't be started.
    pub fn start(
        budgets: &Arc<[Budget]>,
        handle: service::Handle,
        views: Views,
        clock: fn() -> Timestamp,
    ) -> std::io::Result<Service> {
        let budgets = budgets.iter().filter(|budget| budget.holds).cloned().collect();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let watch = Watch { budgets, handle, views, clock, runtime };
        let (stop, stopped) = channel();
        let run = move || {
            let mut pause = Duration::ZERO;
            while stopped.recv_timeout(pause) == Err(RecvTimeoutError::Timeout) {
                let began = Instant::now();
                let is_done = watch.look();
                if is_done && watch.budgets.is_empty() {
                    return;
                }
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
    fn look(&self) -> bool {
        let standings = match self.views.budgets(&self.budgets, (self.clock)()) {
            Ok(standings) => standings,
            Err(error) => {
                warn!(error = %with_causes(&error), "it can't be told which budgets are spent");
                return false;
            }
        };
        let told = self.runtime.block_on(self.handle.budgets_spent(spent(&self.budgets, &standings)));
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
    };
    all.map(as_spent).collect()
}
