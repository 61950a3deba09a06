//! The history archive: records that a start no longer needs, in segment files beside the database.
//!
//! A segment is written to a temporary file, synced, renamed, read back and verified before its records leave
//! the database; it is never changed afterwards. So after any interruption, each record is in the database,
//! in a sound segment, or in both. The database stores which records have left it (`archived`); records
//! of a segment beyond that are copies.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use super::folder::{DATABASE, FILE_MODE, FOLDER_MODE, UNFINISHED, names, remove_unfinished, sync_with_parent};
use super::record::{Head, StoredRecord};
use super::segment::{self, Contents, Ends, FILE_BYTES_MAX};
use super::{Error, Record, Sequence};

/// Name of the archive's folder, beside the database.
pub const HISTORY: &str = "history";
const SUFFIX: &str = "segment";
const OUT_OF_CHAIN: &str = "its chain isn't the journal's";

/// The records of a segment, by their first and last numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Range {
    pub(super) first: Sequence,
    pub(super) last: Sequence,
}

impl Range {
    /// Returns the segment's file name, such as `000000000001-000000010000.segment`.
    pub(super) fn name(self) -> String {
        format!("{:012}-{:012}.{SUFFIX}", self.first.0, self.last.0)
    }

    /// Parses a segment's file name.
    pub(super) fn of(name: &str) -> Option<Range> {
        let (first, last) = name.strip_suffix(SUFFIX)?.strip_suffix('.')?.split_once('-')?;
        let range = Range { first: Sequence(first.parse().ok()?), last: Sequence(last.parse().ok()?) };
        (range.name() == name && Sequence::ZERO < range.first && range.first <= range.last).then_some(range)
    }

    pub(super) fn has(self, sequence: Sequence) -> bool {
        (self.first..=self.last).contains(&sequence)
    }
}

/// The archive's files; see the module.
#[derive(Clone, Debug)]
pub(super) struct Archive {
    folder: PathBuf,
}

impl Archive {
    /// Returns the archive of a database.
    pub(super) fn of(database: &Path) -> Archive {
        Archive { folder: database.with_file_name(HISTORY) }
    }

    /// Returns the segments by their first record; empty if there is no archive.
    pub(super) fn segments(&self) -> Result<Vec<Range>, Error> {
        let mut ranges: Vec<Range> = names(&self.folder)?.iter().filter_map(|name| Range::of(name)).collect();
        ranges.sort_unstable();
        Ok(ranges)
    }

    /// Returns the path of a segment.
    pub(super) fn path(&self, range: Range) -> PathBuf {
        self.folder.join(range.name())
    }

    /// Reads a segment.
    ///
    /// # Errors
    /// [`Error::History`] names its file and its records.
    pub(super) fn read(&self, range: Range) -> Result<Contents, Error> {
        let contents =
            self.bytes(range).and_then(|bytes| segment::decode(&bytes).map_err(|what| self.bad(range, what)))?;
        if contents.before.sequence.next() != range.first || contents.end().sequence != range.last {
            return Err(self.bad(range, "it holds other records than its name says"));
        }
        Ok(contents)
    }

    /// Returns the newest segment that has the record `sequence`.
    ///
    /// # Errors
    /// [`Error::History`] if the segment is missing or damaged. `until` is the last record that the archive
    /// must have.
    pub(super) fn with(&self, sequence: Sequence, until: Sequence) -> Result<Contents, Error> {
        let segments = self.segments()?;
        if let Some(range) = segments.iter().rev().find(|range| range.has(sequence)) {
            return self.read(*range);
        }
        let next =
            segments.iter().find(|range| range.first > sequence).map_or(until, |next| Sequence(next.first.0 - 1));
        Err(self.bad(Range { first: sequence, last: next.min(until) }, "it is missing"))
    }

    /// Returns the chain at `after` and up to `count_max` records after it, none of them after `until`.
    ///
    /// # Errors
    /// [`Error::History`].
    pub(super) fn after(
        &self,
        after: Sequence,
        until: Sequence,
        count_max: usize,
    ) -> Result<(Head, Vec<StoredRecord>), Error> {
        let contents = self.with(after.next(), until)?;
        let base = contents.head_at(after).expect("a segment has the head before each of its records");
        let mut stored = Vec::new();
        let mut at = take(contents, (base, until), count_max, &mut stored);
        while at.sequence < until && stored.len() < count_max {
            let contents = self.with(at.sequence.next(), until)?;
            if contents.head_at(at.sequence) != Some(at) {
                return Err(self.bad(contents.range(), OUT_OF_CHAIN));
            }
            at = take(contents, (at, until), count_max, &mut stored);
        }
        Ok((base, stored))
    }

    /// Returns the chain at a record up to `until`.
    ///
    /// # Errors
    /// [`Error::History`].
    pub(super) fn head_at(&self, sequence: Sequence, until: Sequence) -> Result<Option<Head>, Error> {
        if sequence == Sequence::ZERO {
            return Ok(Some(Head::empty()));
        }
        Ok(self.with(sequence, until)?.head_at(sequence))
    }

    /// Durably writes the segment of the records that follow `before`, reads it back, and returns the chain
    /// after it.
    ///
    /// # Errors
    /// [`Error::Folder`] or [`Error::History`]; the records must then stay in the database.
    pub(super) fn put(&self, before: Head, records: &[Record]) -> Result<Head, Error> {
        let range = self.write_aside(before, records)?;
        self.publish(range)?;
        self.verified(range, before)
    }

    /// The first step of [`Archive::put`].
    pub(super) fn write_aside(&self, before: Head, records: &[Record]) -> Result<Range, Error> {
        let last = records.last().map_or(before.sequence, |record| record.sequence);
        let range = Range { first: before.sequence.next(), last };
        let path = self.path(range).with_extension(UNFINISHED);
        let refused = |source| Error::Folder { path: path.clone(), source };
        DirBuilder::new().recursive(true).mode(FOLDER_MODE).create(&self.folder).map_err(refused)?;
        let mut options = OpenOptions::new();
        let mut file = options.write(true).create(true).truncate(true).mode(FILE_MODE).open(&path).map_err(refused)?;
        file.write_all(&segment::encode(before, records)).and_then(|()| file.sync_all()).map_err(refused)?;
        Ok(range)
    }

    /// The second step of [`Archive::put`].
    pub(super) fn publish(&self, range: Range) -> Result<(), Error> {
        let path = self.path(range);
        let refused = |source| Error::Folder { path: path.clone(), source };
        fs::rename(path.with_extension(UNFINISHED), &path).map_err(refused)?;
        sync_with_parent(&self.folder).map_err(refused)
    }

    /// The last step of [`Archive::put`]: returns the chain after a whole segment that follows `before`.
    pub(super) fn verified(&self, range: Range, before: Head) -> Result<Head, Error> {
        let contents = self.read(range)?;
        if contents.head_at(before.sequence) != Some(before) {
            return Err(self.bad(range, OUT_OF_CHAIN));
        }
        Ok(contents.end())
    }

    /// Removes unfinished files that a crash left.
    pub(super) fn tidy(&self) -> Result<(), Error> {
        remove_unfinished(&self.folder)
    }

    /// Renames a segment so that it no longer counts.
    pub(super) fn put_aside(&self, range: Range) -> Result<(), Error> {
        let path = self.path(range);
        let refused = |source| Error::Folder { path: path.clone(), source };
        let free = (1_u32..).map(|number| path.with_extension(format!("aside-{number}"))).find(|path| !path.exists());
        fs::rename(&path, free.expect("there are numbers enough")).map_err(refused)?;
        sync_with_parent(&self.folder).map_err(refused)
    }

    /// Fails with the first segment up to `base` that is missing, damaged or out of the chain. Segments are
    /// hashed but not decompressed.
    pub(super) fn examine(&self, base: Head) -> Result<(), Error> {
        let mut head = Head::empty();
        let segments = self.segments()?;
        while head.sequence < base.sequence {
            let next = head.sequence.next();
            let Some(range) = segments.iter().rev().find(|range| range.has(next)).copied() else {
                return self.with(next, base.sequence).map(|_| ());
            };
            let ends =
                self.bytes(range).and_then(|bytes| segment::ends(&bytes).map_err(|what| self.bad(range, what)))?;
            let Ends { before, end } = ends;
            let is_next = before.sequence.next() == range.first && end.sequence == range.last;
            if !is_next
                || before.sequence == head.sequence && before != head
                || end.sequence == base.sequence && end != base
            {
                return Err(self.bad(range, OUT_OF_CHAIN));
            }
            head = end;
        }
        Ok(())
    }

    /// Fails if the chain in a segment differs from the known chain.
    pub(super) fn linked(&self, found: Head, known: Head) -> Result<(), Error> {
        if found == known { Ok(()) } else { Err(self.out_of_chain(found.sequence.max(Sequence(1)))) }
    }

    /// Returns the error for an archive without records.
    pub(super) fn empty(&self) -> Error {
        self.bad(Range { first: Sequence(1), last: Sequence(1) }, "it is missing, and so is every snapshot")
    }

    /// Returns the error for archived records that belong to another journal.
    pub(super) fn out_of_chain(&self, at: Sequence) -> Error {
        let range = self.segments().ok().and_then(|all| all.into_iter().rev().find(|range| range.has(at)));
        self.bad(range.unwrap_or(Range { first: at, last: at }), OUT_OF_CHAIN)
    }

    /// Returns SQLite's error with the path of the archive's database.
    pub(super) fn failed(&self, error: rusqlite::Error) -> Error {
        Error::from_sqlite(&self.folder.with_file_name(DATABASE), error)
    }

    fn bytes(&self, range: Range) -> Result<Vec<u8>, Error> {
        let mut bytes = Vec::new();
        let read = File::open(self.path(range)).and_then(|file| file.take(FILE_BYTES_MAX + 1).read_to_end(&mut bytes));
        match read {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Err(self.bad(range, "it is missing")),
            Err(source) => Err(Error::Folder { path: self.path(range), source }),
            Ok(_) if u64::try_from(bytes.len()).is_ok_and(|length| length > FILE_BYTES_MAX) => {
                Err(self.bad(range, "it is too large"))
            }
            Ok(_) => Ok(bytes),
        }
    }

    fn bad(&self, range: Range, what: &'static str) -> Error {
        Error::History { path: self.path(range), first: range.first, last: range.last, what }
    }
}

/// Adds the wanted records of a segment to `stored` and returns the chain at the last of them.
fn take(contents: Contents, (at, until): (Head, Sequence), count_max: usize, stored: &mut Vec<StoredRecord>) -> Head {
    let end = contents.head_at(contents.end().sequence.min(until)).unwrap_or(at);
    let wanted = |stored: &StoredRecord| stored.record.sequence > at.sequence && stored.record.sequence <= until;
    let room = count_max.saturating_sub(stored.len());
    stored.extend(contents.records.into_iter().filter(wanted).take(room));
    end
}
