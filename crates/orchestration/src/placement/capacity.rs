//! What a node has for jobs. A resource that its configuration doesn't declare keeps no job off it.

use gangline_base::{AcceleratorKind, Bytes, DeviceLayout, Flavour, GangShape, NodeName, PoolName};

use crate::placement::topology::Location;

/// A node as it joins.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeSpec {
    /// Its name, unique in the cluster.
    pub name: NodeName,
    /// Its capacity for jobs.
    pub capacity: NodeCapacity,
    /// Its network location, as far as known.
    pub location: Location,
    /// How its accelerators are connected, as far as known.
    pub layout: DeviceLayout,
}

/// A node's capacity for jobs.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct NodeCapacity {
    /// The pool it belongs to.
    pub pool: PoolName,
    /// The type of its accelerators.
    pub accelerator: AcceleratorKind,
    /// The number of accelerators, numbered from 0.
    pub accelerators: u32,
    /// CPU cores; 0 if the configuration doesn't declare them.
    pub cpus: u32,
    /// Memory; 0 if the configuration doesn't declare it.
    pub memory: Bytes,
}

/// What a node has to share of a resource that its configuration doesn't declare: more than any job asks for,
/// so that the resource never keeps a job off the node.
const UNDECLARED_CPUS: u32 = u32::MAX / 2;
const UNDECLARED_MEMORY: Bytes = Bytes(u64::MAX / 2);

impl NodeCapacity {
    /// Returns the flavour of its accelerators.
    #[must_use]
    pub fn flavour(&self) -> Flavour {
        Flavour { accelerator: self.accelerator.clone(), pool: self.pool.clone() }
    }

    /// Returns the cores that jobs share, far more than there are if they aren't declared.
    #[must_use]
    pub fn shared_cpus(&self) -> u32 {
        if self.cpus == 0 { UNDECLARED_CPUS } else { self.cpus }
    }

    /// Returns the memory that jobs share, far more than there is if it isn't declared.
    #[must_use]
    pub fn shared_memory(&self) -> Bytes {
        if self.memory == Bytes(0) { UNDECLARED_MEMORY } else { self.memory }
    }

    /// Reports whether the node has the gang's kind of accelerator and is in its pool.
    pub(crate) fn is_for(&self, gang: &GangShape) -> bool {
        self.accelerator == gang.accelerator && self.pool == gang.pool
    }

    pub(crate) fn can_hold_share_of(&self, gang: &GangShape) -> bool {
        self.has_enough_for_share_of(gang) && self.is_for(gang)
    }

    /// Checks capacity only, for a node already known to have the gang's flavour.
    pub(super) fn has_enough_for_share_of(&self, gang: &GangShape) -> bool {
        self.accelerators >= gang.accelerators_per_node.get()
            && self.shared_cpus() >= gang.cpus_per_node
            && self.shared_memory() >= gang.memory_per_node
    }
}
