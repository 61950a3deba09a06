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
    let reader = Reader::open(&db::journal_folder(folder))?;
    let (mut past, mut after) = (Past::default(), Sequence::ZERO);
    loop {
        let records = reader.history(after, PAGE)?;
        let Some(last) = records.last().map(|record| record.sequence) else { return Ok(past) };
        for record in records {
            let at = record.sequence;
            let entry = decode_entry(&record.body).map_err(|source| Error::Record { at, source })?;
            let Some(entry) = entry.engine() else { continue };
            past.take_in(record.at, &entry).map_err(|source| Error::Sequence { at, source })?;
        }
        after = last;
    }
}

#[cfg(test)]
mod tests {
    use gangline_base::{JobId, Timestamp};
    use gangline_orchestration::{Configuration, Entry as EngineEntry, Event};

    use super::*;
    use crate::codec::encode_entry;
    use crate::db::{Batch, Entry, Journal, Options};

    fn journal(folder: &Path, bodies: Vec<Vec<u8>>) -> Journal {
        let (mut journal, _) = Journal::open(folder, Options::default()).expect("a new journal opens");
        let records: Vec<Entry> = bodies.into_iter().map(|body| Entry { at: Timestamp::EPOCH, body }).collect();
        journal
            .commit(Batch { records: &records, given_out: JobId(0), read_models: &mut |_| Ok(()) })
            .expect("the disk takes it");
        journal
    }

    #[test]
    fn a_journal_is_read_while_its_control_plane_holds_it() {
        let folder = tempfile::tempdir().expect("there is room");
        let configured = EngineEntry::Event(Event::Configured(std::sync::Arc::new(Configuration::default())));
        let _held = journal(folder.path(), vec![encode_entry(&configured)]);
        let past = read(folder.path()).expect("it is a journal");
        assert_eq!((past.nodes().len(), past.into_workload().jobs.len()), (0, 0));
    }

    #[test]
    fn what_cannot_be_read_is_named() {
        let folder = tempfile::tempdir().expect("there is room");
        assert!(matches!(read(folder.path()), Err(Error::Journal(db::Error::Folder { .. }))));
        let _held = journal(folder.path(), vec![b"{}".to_vec()]);
        let error = read(folder.path()).expect_err("it is no entry").to_string();
        assert_eq!(error, "record 1 of the journal");
    }
}
