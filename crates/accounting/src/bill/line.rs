//! The lines of a bill, and amounts of device time and money.

use std::iter::Sum;
use std::ops::{Add, AddAssign, Sub};

use gangline_base::{Bucket, Money};

use super::stored::StorageClass;

/// In what a line is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// Nanoseconds of one device.
    DeviceTime,
    /// Nanoseconds of one stored byte.
    ByteTime,
    /// Requests.
    Requests,
    /// Bytes that were read.
    Bytes,
    /// Nanoseconds of one device, which are in a line of device time as well: charged beside its price.
    ChargedTime,
    /// Picojoules.
    Energy,
    /// Nanoseconds of one person.
    Work,
}

/// What a device-second was spent on, what it cost beside its price, what data was stored for, what was asked of object storage, or
/// what people did.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Line {
    /// A job held the device: the ledger's bucket.
    Held(Bucket),
    /// New steps of a job that failed in the end, or what its ranks did without a report: no model came of it.
    FailedRun,
    /// No job held the device, and it was ready for one.
    Spare,
    /// No job held the device, and the node took no jobs because an administrator or another system wanted it so.
    Drained,
    /// No job held the device, and the node was lost or suspect.
    Broken,
    /// Programs outside Gangline held the device.
    Others,
    /// The network between devices, where it isn't in their price.
    Network,
    /// Support and other surcharges of a provider.
    Support,
    /// The energy that devices drew, where it isn't in their price. Estimated.
    Energy,
    /// Data was stored.
    Stored(StorageClass),
    /// Object storage was asked for datasets or checkpoints, or for parts of them: GET and HEAD.
    Requests,
    /// Object storage was asked for lists of objects.
    Lists,
    /// Objects, or parts of them, were written to object storage: PUT.
    Writes,
    /// Bytes of datasets were read from object storage in the node's region, or in one that isn't known.
    Transfer,
    /// Bytes of datasets were read from object storage in another region.
    CrossRegionTransfer,
    /// People looked after incidents.
    People,
}

impl Line {
    /// All lines, in the order in which a bill shows them.
    pub const ALL: [Line; 27] = [
        Line::Held(Bucket::Compute),
        Line::Held(Bucket::Communication),
        Line::Held(Bucket::Unreported),
        Line::Held(Bucket::DataStall),
        Line::Held(Bucket::CheckpointStall),
        Line::Held(Bucket::StragglerWait),
        Line::Held(Bucket::Restart),
        Line::Held(Bucket::LostWork),
        Line::Held(Bucket::Idle),
        Line::FailedRun,
        Line::Spare,
        Line::Drained,
        Line::Broken,
        Line::Others,
        Line::Network,
        Line::Support,
        Line::Energy,
        Line::Stored(StorageClass::Checkpoints),
        Line::Stored(StorageClass::Archives),
        Line::Stored(StorageClass::Logs),
        Line::Stored(StorageClass::Platform),
        Line::Requests,
        Line::Lists,
        Line::Writes,
        Line::Transfer,
        Line::CrossRegionTransfer,
        Line::People,
    ];

    /// Returns the place in [`Line::ALL`].
    const fn place(self) -> usize {
        match self {
            Line::Held(Bucket::Compute) => 0,
            Line::Held(Bucket::Communication) => 1,
            Line::Held(Bucket::Unreported) => 2,
            Line::Held(Bucket::DataStall) => 3,
            Line::Held(Bucket::CheckpointStall) => 4,
            Line::Held(Bucket::StragglerWait) => 5,
            Line::Held(Bucket::Restart) => 6,
            Line::Held(Bucket::LostWork) => 7,
            Line::Held(Bucket::Idle) => 8,
            Line::FailedRun => 9,
            Line::Spare => 10,
            Line::Drained => 11,
            Line::Broken => 12,
            Line::Others => 13,
            Line::Network => 14,
            Line::Support => 15,
            Line::Energy => 16,
            Line::Stored(StorageClass::Checkpoints) => 17,
            Line::Stored(StorageClass::Archives) => 18,
            Line::Stored(StorageClass::Logs) => 19,
            Line::Stored(StorageClass::Platform) => 20,
            Line::Requests => 21,
            Line::Lists => 22,
            Line::Writes => 23,
            Line::Transfer => 24,
            Line::CrossRegionTransfer => 25,
            Line::People => 26,
        }
    }

    /// Returns the name in reports, in the API and in exports.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Line::Held(Bucket::Idle) => "idle_while_held",
            Line::Held(bucket) => bucket.name(),
            Line::FailedRun => "failed_run",
            Line::Spare => "idle_spare",
            Line::Drained => "idle_drained",
            Line::Broken => "idle_broken",
            Line::Others => "others",
            Line::Network => "network",
            Line::Support => "support",
            Line::Energy => "energy",
            Line::Stored(StorageClass::Checkpoints) => "storage_checkpoints",
            Line::Stored(StorageClass::Archives) => "storage_archives",
            Line::Stored(StorageClass::Logs) => "storage_logs",
            Line::Stored(StorageClass::Platform) => "storage_platform",
            Line::Requests => "requests",
            Line::Lists => "list_requests",
            Line::Writes => "write_requests",
            Line::Transfer => "transfer",
            Line::CrossRegionTransfer => "cross_region_transfer",
            Line::People => "people",
        }
    }

    /// Reports whether the time made steps that no earlier attempt had made, of a job that hasn't failed.
    #[must_use]
    pub const fn is_useful(self) -> bool {
        matches!(self, Line::Held(Bucket::Compute | Bucket::Communication))
    }

    /// Reports whether the time was useful, or may have been for all that is known.
    #[must_use]
    pub const fn may_be_useful(self) -> bool {
        self.is_useful() || matches!(self, Line::Held(Bucket::Unreported))
    }

    /// Returns in what its amounts are measured.
    #[must_use]
    pub const fn unit(self) -> Unit {
        match self {
            Line::Stored(_) => Unit::ByteTime,
            Line::Requests | Line::Lists | Line::Writes => Unit::Requests,
            Line::Transfer | Line::CrossRegionTransfer => Unit::Bytes,
            Line::Network | Line::Support => Unit::ChargedTime,
            Line::Energy => Unit::Energy,
            Line::People => Unit::Work,
            _ => Unit::DeviceTime,
        }
    }

    /// Reports whether the line is of device time.
    #[must_use]
    pub const fn is_of_devices(self) -> bool {
        matches!(self.unit(), Unit::DeviceTime)
    }

    /// Reports whether a job held the device.
    #[must_use]
    pub const fn is_held(self) -> bool {
        matches!(self, Line::Held(_) | Line::FailedRun)
    }

    /// Reports whether no job held the device.
    #[must_use]
    pub const fn is_unheld(self) -> bool {
        matches!(self, Line::Spare | Line::Drained | Line::Broken | Line::Others)
    }
}

/// A quantity, in the [`Unit`] of its line, and what it cost. Signed: the part of one nanosecond or nano-dollar that rounding moves between adjoining
/// periods may be negative in a very short one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Amount {
    /// How much.
    pub quantity: i128,
    /// Its cost, in nano-dollars.
    pub cost: i128,
    /// The part of the quantity that has no price.
    pub unpriced: i128,
}

impl Amount {
    /// Returns the cost as money, saturating.
    #[must_use]
    pub fn money(&self) -> Money {
        Money::from_nano_dollars_saturating(self.cost)
    }
}

/// An amount for each line.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Lines([Amount; Line::ALL.len()]);

impl Lines {
    /// Returns the amount of a line.
    #[must_use]
    pub const fn of(&self, line: Line) -> Amount {
        self.0[line.place()]
    }

    /// Returns the lines with any amount, in the order of [`Line::ALL`].
    pub fn iter(&self) -> impl Iterator<Item = (Line, Amount)> + '_ {
        Line::ALL.into_iter().zip(self.0).filter(|(_, amount)| *amount != Amount::default())
    }

    pub(super) fn add(&mut self, line: Line, amount: Amount) {
        self.0[line.place()] += amount;
    }
}

impl Add for Amount {
    type Output = Amount;
    fn add(self, other: Amount) -> Amount {
        Amount {
            quantity: self.quantity + other.quantity,
            cost: self.cost + other.cost,
            unpriced: self.unpriced + other.unpriced,
        }
    }
}

impl Sub for Amount {
    type Output = Amount;
    fn sub(self, other: Amount) -> Amount {
        Amount {
            quantity: self.quantity - other.quantity,
            cost: self.cost - other.cost,
            unpriced: self.unpriced - other.unpriced,
        }
    }
}

impl AddAssign for Amount {
    fn add_assign(&mut self, other: Amount) {
        *self = *self + other;
    }
}

impl Sum for Amount {
    fn sum<I: Iterator<Item = Amount>>(amounts: I) -> Amount {
        amounts.fold(Amount::default(), Add::add)
    }
}
