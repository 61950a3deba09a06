//! The pure scheduling engine: events in, decisions with reasons out.
//!
//! [`Engine::apply`] is the only way to change scheduling state. It takes what happened ([`Event`]) and the time,
//! and returns what it decided ([`Decision`]), each with its reason as a value. Both go into the journal;
//! [`Engine::replay`] takes them back in without deciding anew. No I/O, no clock, no randomness, so the
//! control plane, recovery after a crash, the tests and the simulator share it.

mod advance;
mod affinity;
mod backfill;
mod budget;
#[cfg(test)]
mod budget_tests;
mod caches;
mod claim;
mod cluster;
#[cfg(test)]
mod cluster_tests;
mod configuration;
mod consolidation;
mod decide;
mod decision;
mod elasticity;
mod engine;
mod entitlement;
mod equals;
mod estimate;
mod event;
mod eviction;
mod evolve;
mod explain;
mod fabric;
#[cfg(test)]
mod fabric_tests;
#[cfg(test)]
mod fixture;
mod health;
mod invariant;
mod job;
mod ladder;
#[cfg(test)]
mod ladder_tests;
mod lanes;
mod leaving;
mod line;
mod load;
mod order;
mod outlook;
mod outside;
mod pace;
mod pass;
#[cfg(test)]
mod pass_tests;
mod placement;
pub mod preemption;
mod queue;
mod rank;
mod reasons;
mod refusal;
#[cfg(test)]
mod replay_tests;
mod rotation;
mod seeking;
mod share;
pub mod simulator;
mod snapshot;
mod spares;
mod standing;
mod sweep;
#[cfg(test)]
mod sweep_tests;
mod topology;
#[cfg(test)]
mod topology_tests;
mod victims;

pub use advance::{AdvanceReservation, InvalidReservation, LEAD, RESERVATIONS_MAX};
pub use budget::Account;
pub use claim::{Claim, ClaimReason, ClaimRight, VictimAlternative};
pub use cluster::{Cluster, Node, NodeCapacity, NodeSpec};
pub use configuration::{Configuration, InvalidConfiguration, PreemptionRules, QUEUES_MAX, QueueSpec};
pub use decision::{Decision, Fate, PlaceReason, RequeueReason, StopReason};
pub use engine::{Engine, Limits};
pub use estimate::{History, Kin, Sample};
pub use event::{Entry, Event, FaultCause, ShareEnd};
pub use explain::{Blocker, DryRun, Explanation};
pub use fabric::{Closeness, Fabric, FabricKind, InvalidFabric};
pub use health::{Health, HealthPolicy};
pub use invariant::Violation;
pub use job::{Attempt, Job, JobState, Kept, Rollback, Share, ShareState};
pub use ladder::{Remedy, Rung};
pub use load::{Load, UserLimits};
pub use order::QueueOrder;
pub use outside::Outside;
pub use pace::Pace;
pub use queue::QueueStanding;
pub use refusal::{DomainFit, Fit, Refusal};
pub use share::{Resource, Usage, Usages};
pub use snapshot::Snapshot;
pub use spares::{InvalidSpares, LossHistory, LossRecord, SPARES_MAX, SparePool, SpareRules, SpareSizing};
pub use standing::{NodeStatus, Standing};
pub use sweep::{MissedRung, SWEEP_JOBS_MAX, Sweep};
pub use topology::{Location, Misplaced, check_locations};
