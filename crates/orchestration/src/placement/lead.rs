//! The job that leads a flavour because it has waited longest, and what is held for it.

use std::collections::BTreeMap;

use gangline_base::{Flavour, GangShape, JobId};

use crate::placement::backfill::Reservation;
use crate::queueing::QueueIndex;

/// A leading job.
#[derive(Clone, Debug)]
pub(crate) struct Lead {
    pub(crate) job: JobId,
    /// The nodes held for it; none while its queue is at a limit.
    pub(crate) nodes: Option<Reservation>,
    /// The queue at its limit.
    pub(crate) limit: Option<QueueIndex>,
    /// Whether jobs with claims are about to take some of these nodes, so that no further claims are made.
    pub(crate) is_beside_claims: bool,
}

/// The leading jobs, as of the last pass.
#[derive(Clone, Debug, Default)]
pub(crate) struct Leads(BTreeMap<Flavour, Lead>);

impl Leads {
    pub(crate) fn insert(&mut self, flavour: Flavour, lead: Lead) {
        self.0.insert(flavour, lead);
    }

    pub(crate) fn clear(&mut self) {
        self.0.clear();
    }

    /// Returns the job that leads the gang's flavour.
    pub(crate) fn of(&self, gang: &GangShape) -> Option<&Lead> {
        if self.0.is_empty() { None } else { self.0.get(&gang.flavour()) }
    }

    /// Reports whether a job leads.
    pub(crate) fn is_led_by(&self, job: JobId, gang: &GangShape) -> bool {
        self.of(gang).is_some_and(|lead| lead.job == job)
    }

    /// Returns the nodes held for leading jobs other than this one.
    pub(crate) fn held_beside(&self, job: Option<JobId>) -> impl Iterator<Item = &Reservation> {
        let others = self.0.values().filter(move |lead| Some(lead.job) != job);
        others.filter_map(|lead| lead.nodes.as_ref())
    }

    /// Reports whether no claims may be made on the gang's flavour.
    pub(crate) fn pauses_claims(&self, gang: &GangShape) -> bool {
        self.of(gang).is_some_and(|lead| lead.is_beside_claims)
    }

    /// Returns leading jobs whose queue is at its limit for a kind of accelerator (any if none is given), with
    /// the queue.
    pub(crate) fn at_limit(&self, gang: Option<&GangShape>) -> impl Iterator<Item = (JobId, QueueIndex)> {
        let of_kind =
            self.0.iter().filter(move |(flavour, _)| gang.is_none_or(|gang| flavour.accelerator == gang.accelerator));
        of_kind.filter_map(|(_, lead)| Some((lead.job, lead.limit?)))
    }
}
