//! Who has waited how long, by flavour, and who has been served for that lately.
//!
//! Invariant: a job is in its flavour's order by age exactly if it is in one of the flavour's groups. The cost of
//! a pass without an overdue job is one look for each flavour.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use gangline_base::{Flavour, GangShape, JobId, JobSpec, SweepId, Timestamp};

/// A waiting job and since when it waits; the longest wait sorts first.
pub(crate) type Wait = (Timestamp, JobId);

/// What could keep all jobs of a group from starting: their gang, and their sweep's limit.
type Group = (Arc<GangShape>, Option<SweepId>);

/// The waiting jobs of one flavour.
#[derive(Clone, Debug, Default)]
struct Waiting {
    by_age: BTreeSet<Wait>,
    groups: BTreeMap<Group, BTreeSet<Wait>>,
}

/// Who has waited how long.
#[derive(Clone, Debug, Default)]
pub(crate) struct Ageing {
    waiting: BTreeMap<Flavour, Waiting>,
    /// Jobs that hold devices and once led, with the time of that start.
    served: BTreeMap<Flavour, BTreeSet<Wait>>,
}

impl Ageing {
    /// Adds a job that waits in line.
    pub(crate) fn insert(&mut self, spec: &JobSpec, sweep: Option<SweepId>, wait: Wait) {
        let waiting = self.waiting.entry(spec.gang.flavour()).or_default();
        waiting.by_age.insert(wait);
        waiting.groups.entry((Arc::new(spec.gang.clone()), sweep)).or_default().insert(wait);
    }

    /// Removes a job that no longer waits in line.
    pub(crate) fn remove(&mut self, spec: &JobSpec, sweep: Option<SweepId>, wait: Wait) {
        if self.waiting.is_empty() {
            return;
        }
        let flavour = spec.gang.flavour();
        let Some(waiting) = self.waiting.get_mut(&flavour) else { return };
        if !waiting.by_age.remove(&wait) {
            return;
        }
        let group = (Arc::new(spec.gang.clone()), sweep);
        if let Some(waits) = waiting.groups.get_mut(&group) {
            waits.remove(&wait);
            if waits.is_empty() {
                waiting.groups.remove(&group);
            }
        }
        if waiting.by_age.is_empty() {
            self.waiting.remove(&flavour);
        }
    }

    /// Notes that a job which led at this time has devices.
    pub(crate) fn note_start(&mut self, spec: &JobSpec, led: Wait) {
        self.served.entry(spec.gang.flavour()).or_default().insert(led);
    }

    /// Undoes [`Ageing::note_start`].
    pub(crate) fn note_end(&mut self, spec: &JobSpec, led: Wait) {
        if let Some(served) = self.served.get_mut(&spec.gang.flavour()) {
            served.remove(&led);
        }
    }

    /// Returns the flavours with an overdue job of which none has led lately.
    pub(crate) fn due(&self, now: Timestamp, ageing: Duration) -> Vec<Flavour> {
        let is_overdue = |waiting: &Waiting| waiting.by_age.first().is_some_and(|(since, _)| *since + ageing <= now);
        let has_led_lately = |flavour: &Flavour| {
            let last = self.served.get(flavour).and_then(BTreeSet::last);
            last.is_some_and(|(at, _)| *at + ageing > now)
        };
        let due = self.waiting.iter().filter(|(flavour, waiting)| is_overdue(waiting) && !has_led_lately(flavour));
        due.map(|(flavour, _)| flavour.clone()).collect()
    }

    /// Returns the jobs of a flavour by group, each group by age.
    pub(crate) fn groups(&self, flavour: &Flavour) -> impl Iterator<Item = (&Group, &BTreeSet<Wait>)> {
        self.waiting.get(flavour).into_iter().flat_map(|waiting| &waiting.groups)
    }

    /// Returns how many jobs that compete with a waiting job have waited longer; none if it doesn't wait in line.
    pub(crate) fn longer(&self, spec: &JobSpec, wait: Wait) -> Option<usize> {
        let waiting = self.waiting.get(&spec.gang.flavour())?;
        waiting.by_age.contains(&wait).then(|| waiting.by_age.range(..wait).count())
    }
}
