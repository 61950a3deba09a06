//! The bill of a period: every device-second that the nodes offered, each in exactly one line.
//!
//! What jobs held comes from the ledger, divided into its buckets. What no job held is idle, and the node's state says of
//! which kind. Amounts are exact: the lines of a period sum to its total, and the bills of adjoining periods sum to the
//! bill of both, to the nanosecond of a device and the nano-dollar. Stored data is in lines of its own,
//! bytes over time, and so are requests to object storage and the bytes that came with them; what devices cost beside their
//! price; and the time of people.

mod apportion;
mod biller;
mod line;
mod overhead;
mod requests;
mod stored;
#[cfg(test)]
mod tests;
mod unused;

pub use biller::{Bill, Biller, Group, Held};
pub use line::{Amount, Line, Lines, Unit};
pub use overhead::{Energy, Incident, Overheads};
pub use requests::{RequestRate, Requests};
pub use stored::{StorageClass, StorageRate, Stored};
pub use unused::{Capacity, NodeState};

use gangline_base::Timestamp;

/// A stretch of time; the end doesn't belong to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Period {
    /// Its start.
    pub from: Timestamp,
    /// Its end.
    pub to: Timestamp,
}

impl Period {
    /// Returns the part of `from` to `to` that lies in the period; empty parts have equal ends.
    fn clip(&self, from: Timestamp, to: Timestamp) -> (Timestamp, Timestamp) {
        let from = from.max(self.from).min(self.to);
        (from, to.min(self.to).max(from))
    }
}
