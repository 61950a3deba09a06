//! Reads a data folder's journal from the beginning, for simulations that decide the past anew.
//!
//! Read-only: takes no lock and writes nothing, so the control plane may run meanwhile.

use std::path::Path;

use gangline_base::Timestamp;
use gangline_orchestration::{Entry, Refusal};

use crate::codec::{self, decode_entry};
use crate::db::{self, Reader, Sequence};

/// Records read at once.
const PAGE: u32 = 10_000;

/// The reason why the history can't be read.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The journal can't be read.
    #[error(transparent)]
    Journal(#[from] db::Error),
    /// A record can't be decoded.
    #[error("record {at} of the journal")]
    Record {
        /// The record's number.
        at: Sequence,
        /// The decoding error.
        source: codec::Error,
    },
    /// A record doesn't follow from those before it.
    #[error("record {at} of the journal does not follow from those before it")]
    Sequence {
        /// The record's number.
        at: Sequence,
        /// The engine's refusal.
        source: Refusal,
    },
}

/// Passes each engine entry of a data folder's journal to `take_in`, in order. So the caller may be a
/// simulator, which the control plane doesn't know.
///
/// # Errors
/// Returns an [`Error`] that names the record.
pub fn read(folder: &Path, take_in: &mut dyn FnMut(Timestamp, &Entry) -> Result<(), Refusal>) -> Result<(), Error> {
    let reader = Reader::open(&db::journal_folder(folder))?;
    let mut after = Sequence::ZERO;
    loop {
        let records = reader.history(after, PAGE)?;
        let Some(last) = records.last().map(|record| record.sequence) else { return Ok(()) };
        for record in records {
            let at = record.sequence;
            let entry = decode_entry(&record.body).map_err(|source| Error::Record { at, source })?;
            let Some(entry) = entry.engine() else { continue };
            take_in(record.at, &entry).map_err(|source| Error::Sequence { at, source })?;
        }
        after = last;
    }
}

#[cfg(test)]
mod tests {
    use gangline_base::JobId;
    use gangline_orchestration::{Configuration, Entry as EngineEntry, Event};

    use super::*;
    use crate::codec::encode_entry;
    use crate::db::{Entry, Journal, Options};
    use crate::ports::{Batch, Changes};

    fn journal(folder: &Path, bodies: Vec<Vec<u8>>) -> Journal {
        let (mut journal, _) = Journal::open(folder, Options::default()).expect("a new journal opens");
        let records: Vec<Entry> = bodies.into_iter().map(|body| Entry { at: Timestamp::EPOCH, body }).collect();
        journal
            .commit(Batch { records: &records, given_out: JobId(0), changes: Changes::none() })
            .expect("the disk takes it");
        journal
    }

    #[test]
    fn a_journal_is_read_while_its_control_plane_holds_it() {
        let folder = tempfile::tempdir().expect("there is room");
        let configured = EngineEntry::Event(Event::Configured(std::sync::Arc::new(Configuration::default())));
        let _held = journal(folder.path(), vec![encode_entry(&configured)]);
        let mut entries = Vec::new();
        let mut take_in = |_, entry: &EngineEntry| {
            entries.push(entry.clone());
            Ok(())
        };
        read(folder.path(), &mut take_in).expect("it is a journal");
        assert_eq!(entries, [configured]);
    }

    #[test]
    fn a_refused_entry_is_named_and_ends_the_reading() {
        let folder = tempfile::tempdir().expect("there is room");
        let configured = EngineEntry::Event(Event::Configured(std::sync::Arc::new(Configuration::default())));
        let _held = journal(folder.path(), vec![encode_entry(&configured), encode_entry(&configured)]);
        let mut taken = 0;
        let mut take_in = |_, _: &EngineEntry| {
            taken += 1;
            if taken == 1 { Ok(()) } else { Err(Refusal::UnknownJob(JobId(7))) }
        };
        let error = read(folder.path(), &mut take_in).expect_err("the second is refused");
        assert!(matches!(error, Error::Sequence { at: Sequence(2), .. }), "{error:?}");
        assert_eq!(taken, 2);
    }

    #[test]
    fn what_cannot_be_read_is_named() {
        let folder = tempfile::tempdir().expect("there is room");
        assert!(matches!(read(folder.path(), &mut |_, _| Ok(())), Err(Error::Journal(db::Error::Folder { .. }))));
        let _held = journal(folder.path(), vec![b"{}".to_vec()]);
        let error = read(folder.path(), &mut |_, _| Ok(())).expect_err("it is no entry").to_string();
        assert_eq!(error, "record 1 of the journal");
    }
}
