//! The journal's records. They are numbered, and each checksum covers the record before, so that any change,
//! gap or swap is detected.

use std::fmt;

use gangline_base::Timestamp;
use serde::{Deserialize, Serialize};

/// The number of a record, from 1; zero stands for the empty journal.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Sequence(pub u64);

impl Sequence {
    /// The position before the first record.
    pub const ZERO: Sequence = Sequence(0);

    /// Returns the next number.
    #[must_use]
    pub fn next(self) -> Self {
        Sequence(self.0 + 1)
    }

    pub(super) fn to_sql(self) -> i64 {
        self.0.cast_signed()
    }

    pub(super) fn from_sql(value: i64) -> Self {
        Sequence(value.cast_unsigned())
    }
}

impl fmt::Display for Sequence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

/// One durable entry of the journal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// The record's number.
    pub sequence: Sequence,
    /// When it happened, by the control plane's clock.
    pub at: Timestamp,
    /// The content, in the writer's own versioned encoding.
    pub body: Vec<u8>,
}

/// The first half of a BLAKE3 hash: it guards only against decay, for which 128 bits are plenty.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Checksum(pub(super) [u8; Checksum::BYTES]);

impl Checksum {
    pub(super) const BYTES: usize = 16;

    /// Returns the value that the first record's checksum covers in place of a predecessor's.
    pub(super) fn of_nothing() -> Self {
        Checksum::of(&[b"gangline journal 1"])
    }

    pub(super) fn of_record(previous: Checksum, sequence: Sequence, at: Timestamp, body: &[u8]) -> Self {
        Checksum::of(&[&previous.0, &sequence.0.to_le_bytes(), &at.unix_nanos().to_le_bytes(), body])
    }

    pub(super) fn of_snapshot(sequence: Sequence, record: Checksum, body: &[u8]) -> Self {
        Checksum::of(&[b"gangline snapshot 1", &record.0, &sequence.0.to_le_bytes(), body])
    }

    /// Returns the checksum of a line of the anchor.
    pub(super) fn of_anchor(line: &[u8]) -> Self {
        Checksum::of(&[b"gangline anchor 1", line])
    }

    /// Hashes the parts. Every part but the last has a fixed length, so different parts can't give the same
    /// bytes.
    fn of(parts: &[&[u8]]) -> Self {
        let mut hasher = blake3::Hasher::new();
        for part in parts {
            hasher.update(part);
        }
        let mut half = [0; Checksum::BYTES];
        half.copy_from_slice(&hasher.finalize().as_bytes()[..Checksum::BYTES]);
        Checksum(half)
    }
}

/// An unverified row of `records`.
#[derive(Clone, Debug)]
pub(super) struct StoredRecord {
    pub(super) record: Record,
    /// The stored bytes; a damaged checksum may have another length.
    pub(super) checksum: Vec<u8>,
}

/// The end of the chain so far: the last record's number and checksum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Head {
    pub(super) sequence: Sequence,
    pub(super) checksum: Checksum,
}

impl Head {
    /// Returns the head of a journal without records.
    pub(super) fn empty() -> Self {
        Head { sequence: Sequence::ZERO, checksum: Checksum::of_nothing() }
    }

    /// Returns the head after a new record.
    pub(super) fn extended(self, at: Timestamp, body: &[u8]) -> Head {
        let sequence = self.sequence.next();
        Head { sequence, checksum: Checksum::of_record(self.checksum, sequence, at, body) }
    }

    /// Returns the head after `stored`, or the defect of `stored`.
    pub(super) fn checked(self, stored: &StoredRecord) -> Result<Head, &'static str> {
        let after = self.extended(stored.record.at, &stored.record.body);
        if stored.record.sequence != after.sequence {
            Err("it is missing")
        } else if stored.checksum != after.checksum.0 {
            Err("its checksum does not match")
        } else {
            Ok(after)
        }
    }
}
