//! What the journal is made of: numbered records, each checksum covering the one before, so that a change, a gap or a
//! swap anywhere shows.

use std::fmt;

use gangline_base::Timestamp;
use serde::{Deserialize, Serialize};

/// The number of a record, from 1; zero stands for the empty journal.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Sequence(pub u64);

impl Sequence {
    /// Before the first record.
    pub const ZERO: Sequence = Sequence(0);

    /// The one after.
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
    /// Its number.
    pub sequence: Sequence,
    /// When it happened, by the control plane's clock.
    pub at: Timestamp,
    /// What happened, in the writer's own versioned encoding.
    pub body: Vec<u8>,
}

/// The first half of a BLAKE3 hash: 128 bits are plenty against decay, which is all this guards against.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Checksum(pub(super) [u8; Checksum::BYTES]);

impl Checksum {
    pub(super) const BYTES: usize = 16;

    /// What the first record's checksum covers in place of a predecessor's.
    pub(super) fn of_nothing() -> Self {
        Checksum::of(&[b"gangline journal 1"])
    }

    pub(super) fn of_record(previous: Checksum, sequence: Sequence, at: Timestamp, body: &[u8]) -> Self {
        Checksum::of(&[&previous.0, &sequence.0.to_le_bytes(), &at.unix_nanos().to_le_bytes(), body])
    }

    pub(super) fn of_snapshot(sequence: Sequence, record: Checksum, body: &[u8]) -> Self {
        Checksum::of(&[b"gangline snapshot 1", &record.0, &sequence.0.to_le_bytes(), body])
    }

    /// Of a line of the anchor.
    pub(super) fn of_anchor(line: &[u8]) -> Self {
        Checksum::of(&[b"gangline anchor 1", line])
    }

    /// Every part but the last has a fixed length, so the parts cannot be confused.
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

/// A row of `records` as read, not yet trusted.
#[derive(Clone, Debug)]
pub(super) struct StoredRecord {
    pub(super) record: Record,
    /// As stored: of another length than a checksum's if damaged.
    pub(super) checksum: Vec<u8>,
}

/// The end of the chain so far.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Head {
    pub(super) sequence: Sequence,
    pub(super) checksum: Checksum,
}

impl Head {
    /// Of a journal without records.
    pub(super) fn empty() -> Self {
        Head { sequence: Sequence::ZERO, checksum: Checksum::of_nothing() }
    }

    /// The head after a record that belongs here.
    pub(super) fn extended(self, at: Timestamp, body: &[u8]) -> Head {
        let sequence = self.sequence.next();
        Head { sequence, checksum: Checksum::of_record(self.checksum, sequence, at, body) }
    }

    /// The head after `stored`, or what is wrong with it.
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
