//! Recreates a journal whose database is lost or can't be opened, from the files beside it: the records in
//! the history archive and the newest snapshot. Records that only the database had are lost, and the anchor
//! shows this at the next start.

use std::path::{Path, PathBuf};

use rusqlite::{Connection, TransactionBehavior};

use super::archive::Archive;
use super::compaction::set_base;
use super::folder::{DATABASE, HeldFolder, create_aside, publish};
use super::record::Head;
use super::snapshots::Snapshots;
use super::{Error, Offline, Sequence};

/// What was found beside the database.
#[derive(Debug)]
pub struct Remains {
    /// The last record in the archive without a gap from the first.
    pub archived: Sequence,
    /// The newest sound snapshot, if it covers more than the archive: its last record, and the state.
    pub snapshot: Option<(Sequence, Vec<u8>)>,
    /// Path of the old database, if there was one.
    pub before: Option<PathBuf>,
}

impl Remains {
    /// Returns the record after which the journal continues.
    #[must_use]
    pub fn last(&self) -> Sequence {
        self.snapshot.as_ref().map_or(self.archived, |(last, _)| *last)
    }
}

impl Offline {
    /// Locks a folder, renames its database, and creates an empty one that continues where archive or
    /// snapshots end.
    ///
    /// # Errors
    /// [`Error::InUse`]; [`Error::History`] or [`Error::Folder`] if there is neither archive nor snapshot, or
    /// on an I/O error. Nothing has been changed then.
    pub(crate) fn begin_anew(folder: &Path) -> Result<(Offline, Remains), Error> {
        let offline = Offline::hold(HeldFolder::hold(folder)?);
        let database = folder.join(DATABASE);
        let (archive, snapshots) = (Archive::of(&database), Snapshots::of(&database));
        let archived = end_of(&archive)?;
        let newest = newest_sound(&snapshots).filter(|(head, _)| head.sequence > archived.sequence);
        let base = newest.as_ref().map_or(archived, |(head, _)| *head);
        if base.sequence == Sequence::ZERO {
            return Err(archive.empty());
        }
        let aside = create_aside(folder)?;
        begin(&aside, base).map_err(|error| Error::from_sqlite(&aside, error))?;
        let before = put_aside(folder).map_err(|source| Error::Folder { path: database.clone(), source })?;
        publish(&aside, &database, folder).map_err(|source| Error::Folder { path: aside, source })?;
        let snapshot = newest.map(|(head, body)| (head.sequence, body));
        Ok((offline, Remains { archived: archived.sequence, snapshot, before }))
    }
}

/// Returns the end of the archive's sound records without a gap.
fn end_of(archive: &Archive) -> Result<Head, Error> {
    let (mut end, segments) = (Head::empty(), archive.segments()?);
    while let Some(range) = segments.iter().rev().find(|range| range.has(end.sequence.next())) {
        match archive.verified(*range, end) {
            Ok(after) => end = after,
            Err(Error::History { .. }) => break,
            Err(error) => return Err(error),
        }
    }
    Ok(end)
}

fn newest_sound(snapshots: &Snapshots) -> Option<(Head, Vec<u8>)> {
    let all = snapshots.list().unwrap_or_default();
    let sound = all.into_iter().find_map(|at| snapshots.read(at).unwrap_or_default())?;
    Some((sound.head, sound.snapshot.body))
}

fn begin(database: &Path, base: Head) -> rusqlite::Result<()> {
    let mut connection = Connection::open(database)?;
    let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
    set_base(&transaction, base)?;
    transaction.commit()?;
    connection.close().map_err(|(_, error)| error)
}

/// Renames the database and its log to unused names, because they may hold the lost records.
fn put_aside(folder: &Path) -> std::io::Result<Option<PathBuf>> {
    let name = |number: u32| folder.join(format!("{DATABASE}.lost-{number}"));
    let kept = (1_u32..).map(name).find(|path| !path.exists()).expect("there are numbers enough");
    for suffix in ["-wal", "-shm", ""] {
        let from = folder.join(format!("{DATABASE}{suffix}"));
        if from.exists() {
            std::fs::rename(from, format!("{}{suffix}", kept.display()))?;
        }
    }
    Ok(kept.exists().then_some(kept))
}
