//! Which nodes can be spares, and which jobs may not use spares. `recovery/spares.rs` says how many are kept.

use std::cmp::Reverse;
use std::collections::BTreeSet;

use gangline_base::{Flavour, JobSpec, NodeId, Priority};

use crate::Job;
use crate::placement::cluster::FreePlace;
use crate::placement::flavour::{ByFlavour, OfFlavour};

/// A job that requests nodes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Applicant<'a> {
    pub(crate) spec: &'a JobSpec,
    /// Whether its last attempt ended because a node was lost or slow.
    pub(crate) is_recovering: bool,
}

impl Applicant<'_> {
    /// Reports whether the job may not use spares.
    pub(crate) fn is_kept_from_spares(&self) -> bool {
        is_ordinary(self.spec) && !self.is_recovering
    }
}

impl Job {
    pub(crate) fn applicant(&self) -> Applicant<'_> {
        Applicant { spec: &self.spec, is_recovering: self.is_recovering }
    }
}

/// Reports whether a job is ordinary: not preemptible work, which may run on spares.
pub(crate) fn is_ordinary(spec: &JobSpec) -> bool {
    spec.priority > Priority::LOW
}

/// Ready nodes without ordinary jobs, by flavour, in the order in which they become spares: the fullest
/// first, then the fewest faults, then those that other jobs would take last.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Unheld(ByFlavour<BTreeSet<(u32, u32, Reverse<NodeId>)>>);

impl Unheld {
    pub(crate) fn insert(&mut self, flavour: &impl OfFlavour, (free, grade, id): FreePlace) {
        self.0.change(flavour, |nodes| nodes.insert((free, grade, Reverse(id))));
    }

    pub(crate) fn remove(&mut self, flavour: &impl OfFlavour, (free, grade, id): FreePlace) {
        self.0.change(flavour, |nodes| nodes.remove(&(free, grade, Reverse(id))));
    }

    pub(crate) fn of(&self, flavour: &Flavour) -> impl Iterator<Item = NodeId> {
        self.0.get(flavour).into_iter().flatten().map(|(.., Reverse(id))| *id)
    }
}
