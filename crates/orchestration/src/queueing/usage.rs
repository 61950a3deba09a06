//! Past and present use of queues: use over time with decay, and a queue's dominant share.
//!
//! Use decays with a half-life as in Slurm's multifactor and Fair Tree plugins and KAI's time-based fair
//! share. A queue's share is its largest over all resources (dominant resource fairness, Ghodsi et al., NSDI
//! 2011): present use plus average recent use, divided by the total and by the queue's weight. Serving the
//! queue with the lowest share first is progressive filling, which gives weighted max-min fairness to within
//! one job.

use std::collections::BTreeMap;
use std::f64::consts::LN_2;
use std::time::Duration;

use gangline_base::{AcceleratorKind, GangShape, Timestamp};

/// The binary logarithm of the bytes in a MiB.
pub(crate) const MIB_BITS: u32 = 20;

/// A resource that jobs hold.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Resource {
    /// Accelerators of this kind.
    Accelerator(AcceleratorKind),
    /// CPU cores.
    Cpus,
    /// Memory, in MiB.
    Memory,
}

/// Returns what a gang holds of every resource.
pub(crate) fn held_by(gang: &GangShape) -> [(Resource, u64); 3] {
    let nodes = u64::from(gang.nodes.get());
    [
        (Resource::Accelerator(gang.accelerator.clone()), u64::from(gang.devices())),
        (Resource::Cpus, nodes * u64::from(gang.cpus_per_node)),
        (Resource::Memory, nodes * (gang.memory_per_node.0 >> MIB_BITS)),
    ]
}

/// Present and past use of one resource.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Usage {
    /// Units held since `at`.
    pub held: u64,
    /// Decayed unit-time until `at`.
    pub served: Duration,
    /// When `held` last changed.
    pub at: Timestamp,
}

impl Usage {
    /// No use at all.
    pub(super) const NONE: Usage = Usage { held: 0, served: Duration::ZERO, at: Timestamp::EPOCH };

    /// Returns the use brought forward to `now`.
    #[must_use]
    pub fn at(self, now: Timestamp, half_life: Duration) -> Usage {
        let passed = now.since(self.at);
        if passed.is_zero() || (self.held == 0 && self.served.is_zero()) {
            return Usage { at: now.max(self.at), ..self };
        }
        let kept = (-passed.as_secs_f64() / half_life.as_secs_f64()).exp2();
        let window = half_life.as_secs_f64() / LN_2;
        let added = Duration::from_secs_f64(units(self.held) * window * (1.0 - kept));
        Usage { held: self.held, served: self.served.mul_f64(kept).saturating_add(added), at: now }
    }

    /// Returns the average units held over the decay window: the limit of `served` if `held` stays constant.
    #[must_use]
    pub fn average(self, half_life: Duration) -> f64 {
        self.served.as_secs_f64() / (half_life.as_secs_f64() / LN_2)
    }
}

/// A queue's use of every resource.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Usages(pub BTreeMap<Resource, Usage>);

impl Usages {
    pub(crate) fn held(&self, resource: &Resource) -> u64 {
        self.0.get(resource).map_or(0, |usage| usage.held)
    }

    /// Returns the accelerators of a kind that are held. A linear scan, since there are few kinds and a
    /// lookup would have to build a key.
    pub(crate) fn accelerators(&self, kind: &AcceleratorKind) -> u32 {
        let held =
            self.0.iter().find(|(resource, _)| matches!(resource, Resource::Accelerator(other) if other == kind));
        held.map_or(0, |(_, usage)| u32::try_from(usage.held).unwrap_or(u32::MAX))
    }

    pub(super) fn change(
        &mut self,
        now: Timestamp,
        half_life: Duration,
        resource: &Resource,
        change: impl FnOnce(u64) -> u64,
    ) {
        let usage = self.0.entry(resource.clone()).or_insert(Usage::NONE);
        *usage = usage.at(now, half_life);
        usage.held = change(usage.held);
    }

    /// Returns the use until now with nothing held.
    pub(super) fn past(&self, now: Timestamp, half_life: Duration) -> Usages {
        let past = |usage: Usage| Usage { held: 0, ..usage.at(now, half_life) };
        let all = self.0.iter().map(|(resource, usage)| (resource.clone(), past(*usage)));
        Usages(all.filter(|(_, usage)| !usage.served.is_zero()).collect())
    }

    /// Returns the largest share over all resources, divided by the weight. 1.0 is all of a resource, held
    /// now or on average over a long time (both: 2.0).
    pub(super) fn dominant_share(&self, now: Timestamp, half_life: Duration, totals: &BTreeMap<Resource, u64>) -> f64 {
        let share = |(resource, usage): (&Resource, &Usage)| {
            let total = totals.get(resource).copied().filter(|total| *total > 0)?;
            let usage = usage.at(now, half_life);
            Some((units(usage.held) + usage.average(half_life)) / units(total))
        };
        self.0.iter().filter_map(share).fold(0.0, f64::max)
    }
}

/// Converts a count to a floating-point number; exact up to 2^53 units.
#[expect(clippy::cast_precision_loss, reason = "counts of devices, cores and MiB are far below 2^53")]
fn units(count: u64) -> f64 {
    count as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    const HALF_LIFE: Duration = Duration::from_hours(1);

    fn after(hours: u64) -> Timestamp {
        Timestamp::EPOCH + Duration::from_hours(hours)
    }

    #[test]
    fn use_halves_in_a_half_life() {
        let before = Usage { held: 0, served: Duration::from_secs(800), at: Timestamp::EPOCH };
        assert_eq!(before.at(after(1), HALF_LIFE).served, Duration::from_secs(400));
        assert_eq!(before.at(after(3), HALF_LIFE).served, Duration::from_secs(100));
    }

    #[test]
    fn what_is_held_for_long_is_the_average() {
        let usage = Usage { held: 16, ..Usage::NONE }.at(after(40), HALF_LIFE);
        assert!((usage.average(HALF_LIFE) - 16.0).abs() < 1e-6, "{usage:?}");
        let half = Usage { held: 16, ..Usage::NONE }.at(after(1), HALF_LIFE);
        assert!((half.average(HALF_LIFE) - 8.0).abs() < 1e-6, "{half:?}");
    }

    #[test]
    fn looking_twice_is_looking_once() {
        let start = Usage { held: 3, served: Duration::from_secs(77), at: Timestamp::EPOCH };
        let (at_once, in_steps) =
            (start.at(after(2), HALF_LIFE), start.at(after(1), HALF_LIFE).at(after(2), HALF_LIFE));
        assert!(at_once.served.abs_diff(in_steps.served) < Duration::from_nanos(100));
    }

    #[test]
    fn the_largest_share_counts() {
        let mut usages = Usages::default();
        let kind = Resource::Accelerator(AcceleratorKind("h100".to_owned()));
        usages.change(Timestamp::EPOCH, HALF_LIFE, &kind, |held| held + 2);
        usages.change(Timestamp::EPOCH, HALF_LIFE, &Resource::Cpus, |held| held + 30);
        let totals = BTreeMap::from([(kind, 16), (Resource::Cpus, 60)]);
        assert!((usages.dominant_share(Timestamp::EPOCH, HALF_LIFE, &totals) - 0.5).abs() < 1e-9);
    }
}
