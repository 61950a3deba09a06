//! What the control plane's own parts tell the service: the configuration that was read again, and budgets that are spent.

use std::sync::Arc;

use gangline_base::Timestamp;
use gangline_orchestration::{Configuration, Event, SpentBudget};
use tracing::info;

use super::Error;
use super::actor::Actor;
use super::batch::Batch;

impl Actor {
    /// Tells the engine which budgets are spent, if that has changed.
    pub(super) fn budgets_spent(
        &mut self,
        now: Timestamp,
        spent: Vec<SpentBudget>,
        batch: &mut Batch,
    ) -> Result<(), Error> {
        if spent == self.engine.spent_budgets() {
            return Ok(());
        }
        let names: Vec<&str> = spent.iter().map(|budget| budget.name.as_str()).collect();
        info!(?names, "these budgets are spent now: their jobs wait");
        self.apply(now, Event::BudgetsSpent(spent), batch).map(drop).map_err(Error::from)
    }

    /// Replaces the rules by which the cluster is shared, and returns the names of those that changed. Prices stay as
    /// they were at the start: they belong to nodes, and a budget and a bill have to agree on them.
    ///
    /// # Errors
    /// The engine's refusal of an invalid configuration; nothing changes then.
    pub(super) fn configure(
        &mut self,
        now: Timestamp,
        mut sharing: Configuration,
        batch: &mut Batch,
    ) -> Result<Vec<String>, Error> {
        sharing.prices.clone_from(&self.engine.configuration().prices);
        let changed = self.engine.configuration().differences(&sharing);
        if changed.is_empty() {
            return Ok(Vec::new());
        }
        self.apply(now, Event::Configured(Arc::new(sharing.clone())), batch)?;
        self.options.sharing = sharing;
        self.meter_budgets(now);
        info!(?changed, "the configuration was read again");
        Ok(changed.into_iter().map(str::to_owned).collect())
    }
}
