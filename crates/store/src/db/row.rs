//! Checksums of read-model rows. The journal's records have a chain of their own. Rows of read models don't,
//! so without a checksum a flipped bit would be shown as true. A damaged row is reported alone and hides no
//! other.

use rusqlite::types::{Type, ValueRef};

/// A row of a read model is damaged.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{what} is damaged on disk")]
pub struct DamagedRow {
    /// A description of the row's content.
    pub what: String,
}

/// Eight bytes are enough against bit rot and small beside a row.
const SUM_BYTES: usize = 8;

/// Returns the checksum of a row's columns, each with its length.
#[must_use]
pub(crate) fn row_sum(columns: &[&[u8]]) -> [u8; SUM_BYTES] {
    let mut hasher = blake3::Hasher::new();
    for column in columns {
        let length = u64::try_from(column.len()).expect("u64 holds a usize on Linux");
        hasher.update(&length.to_le_bytes()).update(column);
    }
    let mut sum = [0; SUM_BYTES];
    sum.copy_from_slice(&hasher.finalize().as_bytes()[..SUM_BYTES]);
    sum
}

/// Refuses a row whose stored checksum differs. A row of an earlier release has none and is accepted.
///
/// # Errors
/// [`DamagedRow`] as SQLite's error, so that a query can end with it.
pub(crate) fn check_row(
    stored: ValueRef<'_>,
    columns: &[&[u8]],
    what: impl FnOnce() -> String,
) -> rusqlite::Result<()> {
    match stored {
        ValueRef::Null => Ok(()),
        ValueRef::Blob(stored) if stored == row_sum(columns) => Ok(()),
        _ => Err(damaged(what())),
    }
}

/// Returns a [`DamagedRow`] as SQLite's error.
#[must_use]
pub(crate) fn damaged(what: String) -> rusqlite::Error {
    rusqlite::Error::FromSqlConversionFailure(0, Type::Blob, Box::new(DamagedRow { what }))
}

/// Returns the damaged row that a query failed on, if that is the error.
#[must_use]
pub(crate) fn damaged_row(error: &rusqlite::Error) -> Option<&DamagedRow> {
    match error {
        rusqlite::Error::FromSqlConversionFailure(_, _, source) => source.downcast_ref(),
        _ => None,
    }
}
