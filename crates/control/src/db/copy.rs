//! Whole copies of a journal, made while its control plane writes, and checked before anybody relies on them.

use std::fs::File;
use std::path::Path;

use gangline_base::JobId;
use rusqlite::{Connection, OpenFlags};

use super::anchor::{Anchor, Anchored};
use super::folder::DATABASE;
use super::record::Head;
use super::recovery::stored_record;
use super::{Error, Reader, Sequence};

/// What a copy holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CopyInfo {
    /// Its last record.
    pub last: Sequence,
    /// The last job id that had been given out.
    pub given_out: JobId,
}

/// Copies the journal of the data folder `from` into the folder `to`, as of one moment, durably, and checks every record of
/// the copy. The control plane may run and write meanwhile.
///
/// # Errors
/// [`Error::Folder`] if there is no journal or `to` can't be written; [`Error::Corrupt`], [`Error::Damaged`] or
/// [`Error::TailLost`] if the journal itself isn't whole.
pub fn copy(from: &Path, to: &Path) -> Result<CopyInfo, Error> {
    // The anchor first: it is never ahead of the journal, and so never ahead of a copy that is made after this.
    let anchored = Anchor::read(from)?;
    let path = to.join(DATABASE);
    let target = path.to_string_lossy().into_owned();
    let source = Reader::open(from)?;
    source.execute("VACUUM INTO ?1", &target)?;
    let synced = File::open(&path).and_then(|file| file.sync_all());
    synced.map_err(|source| Error::Folder { path: path.clone(), source })?;
    let given_out = anchored.map_or(JobId(0), |anchored| anchored.given_out);
    let head = check(&path, anchored)?;
    Anchor::open(to, Anchored { head, given_out })?;
    Ok(CopyInfo { last: head.sequence, given_out })
}

/// Checks every record of the journal in `folder` against its checksum, its anchor and SQLite's own rules.
///
/// # Errors
/// As [`copy`].
pub fn verify(folder: &Path) -> Result<CopyInfo, Error> {
    let anchored = Anchor::read(folder)?;
    let head = check(&folder.join(DATABASE), anchored)?;
    Ok(CopyInfo { last: head.sequence, given_out: anchored.map_or(JobId(0), |anchored| anchored.given_out) })
}

/// Makes the anchor of `folder` say that ids up to `given_out` are gone, whatever else it says.
///
/// # Errors
/// [`Error::Folder`].
pub fn raise_given_out(folder: &Path, given_out: JobId) -> Result<(), Error> {
    if let Some(anchored) = Anchor::read(folder)?
        && anchored.given_out < given_out
    {
        Anchor::open(folder, Anchored { given_out, ..anchored })?;
    }
    Ok(())
}

/// The last job id that had been given out in `folder`, as far as its anchor knows.
///
/// # Errors
/// [`Error::Folder`].
pub fn given_out(folder: &Path) -> Result<Option<JobId>, Error> {
    Ok(Anchor::read(folder)?.map(|anchored| anchored.given_out))
}

fn check(path: &Path, anchored: Option<Anchored>) -> Result<Head, Error> {
    let failed = |error| Error::from_sqlite(path, error);
    let connection = Connection::open_with_flags(path, OpenFlags::SQLITE_OPEN_READ_ONLY).map_err(failed)?;
    let verdict: String = connection.query_row("PRAGMA quick_check(1)", [], |row| row.get(0)).map_err(failed)?;
    if verdict != "ok" {
        return Err(Error::Damaged { path: path.to_owned(), what: verdict });
    }
    let mut statement = connection
        .prepare("SELECT sequence, at_unix_nanos, body, checksum FROM records ORDER BY sequence")
        .map_err(failed)?;
    let mut rows = statement.query([]).map_err(failed)?;
    let mut head = Head::empty();
    let mut is_anchored = anchored.is_none_or(|anchored| anchored.head == head);
    while let Some(row) = rows.next().map_err(failed)? {
        let stored = stored_record(row).map_err(failed)?;
        let last_sound = head.sequence;
        head = head.checked(&stored).map_err(|what| Error::Corrupt { at: last_sound.next(), last_sound, what })?;
        is_anchored |= anchored.is_some_and(|anchored| anchored.head == head);
    }
    match anchored {
        Some(Anchored { head: known, given_out }) if !is_anchored => {
            let (last, anchored) = (head.sequence, known.sequence);
            Err(Error::TailLost { path: path.to_owned(), last, anchored, given_out })
        }
        _ => Ok(head),
    }
}
