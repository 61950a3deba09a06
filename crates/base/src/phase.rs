//! Where an allocated GPU-second goes: the [`Phase`] that a rank reports, the [`Bucket`] that the time is
//! booked in, and the six parts of a recovery ([`RecoveryPhase`]). The buckets are exhaustive and mutually
//! exclusive.

use std::ops::{Add, Index, IndexMut};

use serde::{Deserialize, Serialize};

use crate::GpuSeconds;

/// What a rank is doing, as the rank reports it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Phase {
    /// Importing, building the model, joining the process group.
    Init,
    /// Reading the checkpoint it resumes from.
    Restore,
    /// Waiting for a batch of data.
    Data,
    /// Forward pass, backward pass or optimizer step.
    Compute,
    /// Collectives whose time is not hidden behind compute.
    Communication,
    /// Waiting for a slower peer, where the trainer can tell.
    StragglerWait,
    /// Blocked by saving a checkpoint.
    Checkpoint,
    /// Finished with its work and waiting to exit.
    Done,
}

impl Phase {
    /// All phases, in the order in which a training loop goes through them.
    pub const ALL: [Phase; 8] = [
        Phase::Init,
        Phase::Restore,
        Phase::Data,
        Phase::Compute,
        Phase::Communication,
        Phase::StragglerWait,
        Phase::Checkpoint,
        Phase::Done,
    ];

    /// Returns the name, as ranks report it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Phase::Init => "init",
            Phase::Restore => "restore",
            Phase::Data => "data",
            Phase::Compute => "compute",
            Phase::Communication => "communication",
            Phase::StragglerWait => "straggler_wait",
            Phase::Checkpoint => "checkpoint",
            Phase::Done => "done",
        }
    }
}

/// The category in which a GPU-second is booked; each GPU-second is booked in exactly one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Bucket {
    /// Useful work: steps that no earlier attempt had done.
    Compute,
    /// Waiting for data.
    DataStall,
    /// Blocked by a save.
    CheckpointStall,
    /// Communication that compute does not hide.
    Communication,
    /// Waiting for a slower rank.
    StragglerWait,
    /// From allocation to the first step.
    Restart,
    /// Steps repeated because a fault lost them, and what ranks did after their last step in an attempt that failed.
    LostWork,
    /// Allocated but in none of the other buckets.
    Idle,
    /// Processes that report nothing ran: what they did isn't known.
    Unreported,
}

impl Bucket {
    /// All buckets, in report order.
    pub const ALL: [Bucket; 9] = [
        Bucket::Compute,
        Bucket::DataStall,
        Bucket::CheckpointStall,
        Bucket::Communication,
        Bucket::StragglerWait,
        Bucket::Restart,
        Bucket::LostWork,
        Bucket::Idle,
        Bucket::Unreported,
    ];

    /// Returns the bucket's name in reports, the API and the ledger.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Bucket::Compute => "compute",
            Bucket::DataStall => "data_stall",
            Bucket::CheckpointStall => "checkpoint_stall",
            Bucket::Communication => "communication",
            Bucket::StragglerWait => "straggler_wait",
            Bucket::Restart => "restart",
            Bucket::LostWork => "lost_work",
            Bucket::Idle => "idle",
            Bucket::Unreported => "unreported",
        }
    }

    /// Returns the bucket with this [`Bucket::name`].
    #[must_use]
    pub fn from_name(name: &str) -> Option<Bucket> {
        Bucket::ALL.into_iter().find(|bucket| bucket.name() == name)
    }
}

/// An amount of device time for each bucket.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Buckets {
    times: [GpuSeconds; Bucket::ALL.len()],
}

impl Buckets {
    /// Returns the total over all buckets.
    #[must_use]
    pub fn total(&self) -> GpuSeconds {
        self.times.into_iter().sum()
    }

    /// Returns each bucket with its time, in report order.
    pub fn iter(&self) -> impl Iterator<Item = (Bucket, GpuSeconds)> + '_ {
        Bucket::ALL.into_iter().map(|bucket| (bucket, self[bucket]))
    }
}

impl Index<Bucket> for Buckets {
    type Output = GpuSeconds;
    fn index(&self, bucket: Bucket) -> &GpuSeconds {
        &self.times[bucket as usize]
    }
}

impl IndexMut<Bucket> for Buckets {
    fn index_mut(&mut self, bucket: Bucket) -> &mut GpuSeconds {
        &mut self.times[bucket as usize]
    }
}

impl Add for Buckets {
    type Output = Buckets;
    fn add(mut self, other: Buckets) -> Buckets {
        for bucket in Bucket::ALL {
            self[bucket] = self[bucket] + other[bucket];
        }
        self
    }
}

/// The six parts of a recovery in order, following NVRx's operations guide.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RecoveryPhase {
    /// From the failed rank's last sign of life until the supervisor notices the fault; an upper bound.
    Detect,
    /// From noticing the fault until the attempt's last process is gone.
    Cleanup,
    /// From the end of cleanup, through placement and launch, until the ranks of the next attempt start.
    /// Excludes queue time.
    Rendezvous,
    /// From the start of the ranks until they begin to read the checkpoint.
    Init,
    /// Reading the checkpoint.
    Restore,
    /// From the restored state to the end of the first step.
    FirstStep,
}

impl RecoveryPhase {
    /// All six parts, in order.
    pub const ALL: [RecoveryPhase; 6] = [
        RecoveryPhase::Detect,
        RecoveryPhase::Cleanup,
        RecoveryPhase::Rendezvous,
        RecoveryPhase::Init,
        RecoveryPhase::Restore,
        RecoveryPhase::FirstStep,
    ];

    /// Returns the part's name in reports and the API.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            RecoveryPhase::Detect => "detect",
            RecoveryPhase::Cleanup => "cleanup",
            RecoveryPhase::Rendezvous => "rendezvous",
            RecoveryPhase::Init => "init",
            RecoveryPhase::Restore => "restore",
            RecoveryPhase::FirstStep => "first_step",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_bucket_has_its_own_place_and_name() {
        let mut buckets = Buckets::default();
        for (index, bucket) in Bucket::ALL.into_iter().enumerate() {
            assert_eq!(bucket as usize, index);
            assert_eq!(Bucket::from_name(bucket.name()), Some(bucket));
            buckets[bucket] = GpuSeconds::from_nanos(1 << index);
        }
        assert_eq!(buckets.total(), GpuSeconds::from_nanos(511));
        assert_eq!((buckets + buckets).total(), GpuSeconds::from_nanos(1022));
    }
}
