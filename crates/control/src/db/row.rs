//! Checksums of read-model rows. The journal's records have a chain of their own; a row of a read model has none, so a flipped bit
//! in one would be shown as if it were true. A row whose checksum doesn't fit is told alone: it hides no other.

use rusqlite::types::{Type, ValueRef};

/// A row of a read model isn't what was written.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{what} is damaged on disk")]
pub struct DamagedRow {
    /// What it holds.
    pub what: String,
}

/// Eight bytes are enough against bit rot, and cost little beside a row.
const SUM_BYTES: usize = 8;

/// The checksum of a row: of its columns' bytes, each with its length.
#[must_use]
pub fn row_sum(columns: &[&[u8]]) -> [u8; SUM_BYTES] {
    let mut hasher = blake3::Hasher::new();
    for column in columns {
        let length = u64::try_from(column.len()).expect("u64 holds a usize on Linux");
        hasher.update(&length.to_le_bytes()).update(column);
    }
    let mut sum = [0; SUM_BYTES];
    sum.copy_from_slice(&hasher.finalize().as_bytes()[..SUM_BYTES]);
    sum
}

/// Refuses a row whose stored checksum is another. One that an earlier release wrote has none, and is believed.
///
/// # Errors
/// [`DamagedRow`] as SQLite's error, so that a query can end with it.
pub fn check_row(stored: ValueRef<'_>, columns: &[&[u8]], what: impl FnOnce() -> String) -> rusqlite::Result<()> {
    match stored {
        ValueRef::Null => Ok(()),
        ValueRef::Blob(stored) if stored == row_sum(columns) => Ok(()),
        _ => Err(damaged(what())),
    }
}

/// A [`DamagedRow`] as SQLite's error.
#[must_use]
pub fn damaged(what: String) -> rusqlite::Error {
    rusqlite::Error::FromSqlConversionFailure(0, Type::Blob, Box::new(DamagedRow { what }))
}

/// The damaged row that a query ended with, if that is why it ended.
#[must_use]
pub fn damaged_row(error: &rusqlite::Error) -> Option<&DamagedRow> {
    match error {
        rusqlite::Error::FromSqlConversionFailure(_, _, source) => source.downcast_ref(),
        _ => None,
    }
}
