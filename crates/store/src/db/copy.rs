//! Complete copies of a journal, made while its control plane writes, and verified before use.

use std::fs::{DirBuilder, File};
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;

use gangline_base::JobId;
use rusqlite::{Connection, OpenFlags};

use super::anchor::{Anchor, Anchored};
use super::archive::{Archive, HISTORY, Range};
use super::folder::{DATABASE, FOLDER_MODE, names, sync_with_parent};
use super::reader::base_of;
use super::record::Head;
use super::recovery::stored_record;
use super::snapshots::{SNAPSHOTS, Snapshots, file_name, sequence_of};
use super::{Error, Reader, Sequence};
use crate::link_or_copy;

/// The contents of a copy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CopyInfo {
    /// The copy's last record.
    pub last: Sequence,
    /// The highest job id given out by then.
    pub given_out: JobId,
    /// Files beside the database, by their paths in the folder: segments of the history archive, and
    /// snapshots.
    pub files: Vec<String>,
    /// The unreadable part of the history, if any. A control plane starts without it.
    pub damage: Option<String>,
}

/// Durably copies the journal of the data folder `from` into the folder `to`, as of one moment, and verifies
/// every record of the copy. The control plane may run and write meanwhile.
///
/// # Errors
/// [`Error::Folder`] if there is no journal or `to` can't be written; [`Error::Corrupt`], [`Error::Damaged`] or
/// [`Error::TailLost`] if the journal itself isn't whole.
pub fn copy(from: &Path, to: &Path) -> Result<CopyInfo, Error> {
    // The order matters. The anchor first: it is never ahead of the journal, and so never ahead of a later
    // copy of it. The same holds for snapshots. The archive comes after the database, because it has what has
    // left the database.
    let anchored = Anchor::read(from)?;
    copy_snapshots(from, to)?;
    let path = to.join(DATABASE);
    let target = path.to_string_lossy().into_owned();
    let source = Reader::open(from)?;
    source.execute("VACUUM INTO ?1", &target)?;
    let synced = File::open(&path).and_then(|file| file.sync_all());
    synced.map_err(|source| Error::Folder { path: path.clone(), source })?;
    let base = Reader::open(to)?.read(|transaction| base_of(transaction))?;
    for range in Archive::of(&from.join(DATABASE)).segments()? {
        if range.first <= base.sequence {
            link(from, to, (HISTORY, &range.name()))?;
        }
    }
    let given_out = anchored.map_or(JobId(0), |anchored| anchored.given_out);
    let (head, damage) = check(&path, anchored)?;
    Anchor::open(to, Anchored { head, given_out })?;
    Ok(CopyInfo { last: head.sequence, given_out, files: files(to)?, damage })
}

/// Verifies every record of the journal in `folder` by its checksum, its anchor and SQLite's integrity check.
///
/// # Errors
/// As [`copy`].
pub fn verify(folder: &Path) -> Result<CopyInfo, Error> {
    let anchored = Anchor::read(folder)?;
    let (head, damage) = check(&folder.join(DATABASE), anchored)?;
    let given_out = anchored.map_or(JobId(0), |anchored| anchored.given_out);
    Ok(CopyInfo { last: head.sequence, given_out, files: files(folder)?, damage })
}

/// Reports whether a file of this name may be beside a journal's database, as [`CopyInfo::files`] are.
#[must_use]
pub fn is_beside(name: &str) -> bool {
    match name.split_once('/') {
        Some((HISTORY, name)) => Range::of(name).is_some(),
        Some((SNAPSHOTS, name)) => sequence_of(name).is_some(),
        _ => false,
    }
}

fn files(folder: &Path) -> Result<Vec<String>, Error> {
    let mut files = Vec::new();
    for beside in [HISTORY, SNAPSHOTS] {
        files.extend(names(&folder.join(beside))?.into_iter().map(|name| format!("{beside}/{name}")));
    }
    files.retain(|name| is_beside(name));
    files.sort_unstable();
    Ok(files)
}

/// A newer snapshot may replace an older one meanwhile; the older one isn't needed then.
fn copy_snapshots(from: &Path, to: &Path) -> Result<(), Error> {
    for sequence in Snapshots::of(&from.join(DATABASE)).list()? {
        match link(from, to, (SNAPSHOTS, &file_name(sequence))) {
            Err(Error::Folder { source, .. }) if source.kind() == io::ErrorKind::NotFound => {}
            linked => linked?,
        }
    }
    Ok(())
}

/// Hard-links an immutable file where possible, and copies it otherwise.
fn link(from: &Path, to: &Path, (folder, name): (&str, &str)) -> Result<(), Error> {
    let (from, folder) = (from.join(folder).join(name), to.join(folder));
    let path = folder.join(name);
    let refused = |source| Error::Folder { path: from.clone(), source };
    DirBuilder::new().recursive(true).mode(FOLDER_MODE).create(&folder).map_err(refused)?;
    link_or_copy(&from, &path).map_err(refused)?;
    sync_with_parent(&folder).map_err(refused)
}

/// Raises the anchor of `folder` so that ids up to `given_out` are never given out again.
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

/// Returns the highest job id that the anchor of `folder` knows to be given out.
///
/// # Errors
/// [`Error::Folder`].
pub fn given_out(folder: &Path) -> Result<Option<JobId>, Error> {
    Ok(Anchor::read(folder)?.map(|anchored| anchored.given_out))
}

/// Reads every record, archived ones first. Returns the end of the chain and the unreadable part of the
/// history.
fn check(path: &Path, anchored: Option<Anchored>) -> Result<(Head, Option<String>), Error> {
    let failed = |error| Error::from_sqlite(path, error);
    let connection = Connection::open_with_flags(path, OpenFlags::SQLITE_OPEN_READ_ONLY).map_err(failed)?;
    let verdict: String = connection.query_row("PRAGMA quick_check(1)", [], |row| row.get(0)).map_err(failed)?;
    if verdict != "ok" {
        return Err(Error::Damaged { path: path.to_owned(), what: verdict });
    }
    let mut head = base_of(&connection).map_err(failed)?;
    let is_known =
        |known: Head| Archive::of(path).head_at(known.sequence, head.sequence).map_or(true, |at| at == Some(known));
    // Nothing contradicts an anchor whose record is in an unreadable part of the history.
    let mut is_anchored =
        anchored.is_none_or(|anchored| anchored.head.sequence <= head.sequence && is_known(anchored.head));
    let damage = check_archive(path, head).err().map(|error| error.to_string());
    let mut statement = connection
        .prepare("SELECT sequence, at_unix_nanos, body, checksum FROM records WHERE sequence > ?1 ORDER BY sequence")
        .map_err(failed)?;
    let mut rows = statement.query([head.sequence.to_sql()]).map_err(failed)?;
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
        _ => Ok((head, damage)),
    }
}

fn check_archive(path: &Path, base: Head) -> Result<(), Error> {
    let archive = Archive::of(path);
    let mut head = Head::empty();
    while head.sequence < base.sequence {
        let contents = archive.with(head.sequence.next(), base.sequence)?;
        if contents.head_at(head.sequence) != Some(head) {
            return Err(archive.out_of_chain(head.sequence.next()));
        }
        head = contents.head_at(contents.end().sequence.min(base.sequence)).unwrap_or(base);
    }
    archive.linked(head, base)
}
