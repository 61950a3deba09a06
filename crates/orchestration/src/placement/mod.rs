//! Placement: which nodes and devices a gang gets.
//!
//! [`Cluster`] keeps the nodes: their `condition` (lost, draining, suspect by `health`), what other systems
//! use of them (`external_usage`), and indices by flavour and by domain of the network (`topology`). `gang`
//! finds room for a whole gang and compares candidates by `fabric`, `affinity` and `locality`. Free
//! devices may already be promised: `backfill` makes reservations for the first job in line based on the
//! `outlook` of when nodes become free, `reservations` are made by an administrator, and `spare_nodes` says
//! which nodes can be spares.
//!
//! It never sees the engine: others call what is exported here with the nodes, times and jobs that matter. Of
//! the other rooms it imports only from `queueing`.

mod affinity;
mod backfill;
mod capacity;
mod cluster;
#[cfg(test)]
mod cluster_tests;
mod condition;
mod external_usage;
mod fabric;
#[cfg(test)]
mod fabric_tests;
mod flavour;
mod gang;
mod health;
mod lead;
mod locality;
mod outlook;
mod reservations;
mod spare_nodes;
mod topology;
#[cfg(test)]
mod topology_tests;

pub use capacity::{NodeCapacity, NodeSpec};
pub use cluster::{Cluster, Node};
pub use condition::{NodeCondition, NodeStatus};
pub use external_usage::ExternalUsage;
pub use fabric::{Closeness, Fabric, FabricKind, InvalidFabric};
pub use health::{Health, HealthPolicy};
pub use locality::{CACHED_DATASETS_MAX, CachedDataset, NodeCache};
pub use reservations::{AdvanceReservation, InvalidReservation, LEAD, RESERVATIONS_MAX};
pub use topology::{Location, Misplaced, check_locations};

pub(crate) use backfill::{Backfill, Reservation, latest_end, latest_end_of};
pub(crate) use cluster::Bound;
pub(crate) use flavour::ByFlavour;
pub(crate) use gang::Room;
pub(crate) use gang::{check_segments, find_room, find_room_near, has_room, most_in_one, segment};
pub(crate) use health::{RootFault, first_fault};
pub(crate) use lead::{Lead, Leads};
pub(crate) use locality::{Caches, NearNodes};
pub(crate) use outlook::Outlook;
pub(crate) use reservations::check_reservations;
pub(crate) use spare_nodes::{Applicant, is_ordinary};
pub(crate) use topology::Domain;
