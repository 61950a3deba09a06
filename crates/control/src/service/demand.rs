//! Tells a launcher that asks its own system for nodes which gangs wait for some.

use std::time::Duration;

use gangline_base::{JobId, Timestamp};
use gangline_execution::launcher::WantedGang;
use gangline_orchestration::Blocker;

use super::actor::Actor;

/// How many of the gangs that wait first are asked for at a time: each becomes a request in that system's queue.
const GANGS_MAX: usize = 8;
/// The time between two looks at the gangs that wait.
const LOOK_EVERY: Duration = Duration::from_secs(1);

impl Actor {
    /// Tells the launcher which gangs wait for nodes, if it wants to know.
    pub(super) fn tell_demand(&mut self, now: Timestamp) {
        let is_due = now < self.demand_told_at || now.since(self.demand_told_at) >= LOOK_EVERY;
        if !is_due || !self.options.launcher.asks_for_nodes() {
            return;
        }
        self.demand_told_at = now;
        let first: Vec<JobId> = self.engine.waiting().into_iter().take(GANGS_MAX).collect();
        let blockers = self.engine.blockers(now, &first);
        let gangs = blockers.iter().filter(|(_, blocker)| lacks_nodes(blocker));
        self.options.launcher.want(gangs.filter_map(|(job, _)| self.wanted(*job)).collect());
    }

    fn wanted(&self, job: JobId) -> Option<WantedGang> {
        let spec = &self.engine.job(job)?.spec;
        Some(WantedGang {
            gang: job.to_string(),
            nodes: spec.gang.nodes.get(),
            accelerator: spec.gang.accelerator.to_string(),
            accelerators_per_node: spec.gang.accelerators_per_node.get(),
            time_limit: spec.time_limit,
        })
    }
}

/// Reports whether more nodes would let a gang start.
fn lacks_nodes(blocker: &Blocker) -> bool {
    matches!(blocker, Blocker::NotEnoughFree { .. } | Blocker::Topology { .. } | Blocker::NodesUnavailable { .. })
}
