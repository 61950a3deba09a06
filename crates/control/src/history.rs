//! A data folder's journal read from its beginning, for simulations: what happened before, decided anew.
//!
//! Reads only: the folder's lock isn't taken and nothing is written, so the control plane may run meanwhile.

use std::path::Path;

use gangline_orchestration::Refusal;
use gangline_orchestration::simulator::Past;

use crate::codec::{self, decode_entry};
use crate::db::{self, Reader, Sequence};

/// Records read at once.
const PAGE: u32 = 10_000;

/// Why a past can't be read.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The journal can't be read.
    #[error(transparent)]
    Journal(#[from] db::Error),
    /// A record can't be understood.
    #[error("record {at} of the journal")]
    Record {
        /// Which.
        at: Sequence,
        /// Why.
        source: codec::Error,
    },
    /// A record can't follow those before it.
    #[error("record {at} of the journal does not follow from those before it")]
    Sequence {
        /// Which.
        at: Sequence,
        /// Why.
        source: Refusal,
    },
}

/// Reads all of a data folder's journal.
///
/// # Errors
/// An [`Error`] that names the record.
pub fn read(folder: &Path) -> Result<Past, Error> {
    let reader = Reader::open(folder)?;
    let (mut past, mut after) = (Past::default(), Sequence::ZERO);
    loop {
        let records = reader.history(after, PAGE)?;
        let Some(last) = records.last().map(|record| record.sequence) else { return Ok(past) };
        for record in records {
            let at = record.sequence;
            let entry = decode_entry(&record.body).map_err(|source| Error::Record { at, source })?;
            past.take_in(record.at, &entry).map_err(|source| Error::Sequence { at, source })?;
        }
        after = last;
    }
}
