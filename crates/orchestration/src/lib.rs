//! The pure scheduling engine: events in, decisions with reasons out.
//!
//! [`Engine::apply`] is the only way to change scheduling state. It takes an [`Event`] and the time and
//! returns [`Decision`]s, each with its reason as a value. The journal records both; [`Engine::replay`]
//! restores the state from the journal without making new decisions. The engine has no I/O, no clock
//! and no randomness, so the control plane, crash recovery, the tests and the simulator share it.

mod budget;
#[cfg(test)]
mod budget_tests;
mod change;
mod claim;
mod configuration;
mod cost;
mod decide;
mod decision;
mod engine;
mod event;
mod evolve;
mod expected;
mod explain;
#[cfg(test)]
mod fixture;
mod folders;
#[cfg(test)]
mod folders_tests;
mod held_back;
mod hold;
#[cfg(test)]
mod hold_tests;
#[cfg(test)]
mod hours_tests;
mod invariant;
mod job;
mod load;
mod pass;
#[cfg(test)]
mod pass_tests;
mod placement;
mod preemption;
mod queueing;
mod reasons;
mod recovery;
mod refusal;
#[cfg(test)]
mod replay_tests;
mod snapshot;
mod spent_budget;
mod sweep;
#[cfg(test)]
mod sweep_tests;

pub use budget::Account;
pub use change::JobChange;
pub use claim::{Claim, ClaimReason, ClaimRight, VictimAlternative};
pub use configuration::{Configuration, InvalidConfiguration, PreemptionRules, QUEUES_MAX};
pub use cost::RestartCosts;
pub use decision::{Decision, Fate, PlaceReason, RequeueReason, StopReason};
pub use engine::{Engine, Limits};
pub use event::{BadSteps, Entry, Event, FaultCause, ShareEnd};
pub use explain::{Blocker, DryRun, Explanation, Overdue};
pub use invariant::Violation;
pub use job::{Attempt, Job, JobState, Kept, Rollback, Share, ShareState};
pub use load::{Load, UserLimits};
pub use placement::{
    AdvanceReservation, CACHED_DATASETS_MAX, CachedDataset, Closeness, Cluster, ExternalUsage, Fabric, FabricKind,
    Health, HealthPolicy, InvalidFabric, InvalidReservation, LEAD, Location, Misplaced, Node, NodeCache, NodeCapacity,
    NodeCondition, NodeSpec, NodeStatus, RESERVATIONS_MAX, check_locations,
};
pub use preemption::victim_search;
pub use queueing::{
    History, HourQuota, HoursUsed, Kin, Period, QueueOrder, QueueSpec, QueueStanding, Resource, Sample, Usage, Usages,
};
pub use recovery::{
    InvalidSpares, LossHistory, LossRecord, Pace, Remedy, Rung, SPARES_MAX, SparePool, SpareRules, SpareSizing,
};
pub use refusal::{DomainFit, Fit, Refusal};
pub use snapshot::Snapshot;
pub use spent_budget::{BudgetScope, OverBudget, SpentBudget};
pub use sweep::{MissedRung, SWEEP_JOBS_MAX, Sweep};
