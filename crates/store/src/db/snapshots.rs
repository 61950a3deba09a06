//! Snapshots: the writer's state after a record, each in a file of its own beside the database, so that
//! writing one delays no commit. The two newest are kept. Earlier releases kept them in the table
//! `snapshots`, which is still read.
//!
//! Layout, little-endian: magic with version; the last sequence covered; the chain's checksum there; length
//! of the state; the state by DEFLATE; checksum over the sequence, the chain's checksum and the state. A file
//! is written under a temporary name, synced and renamed.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use super::folder::{DATABASE, FILE_MODE, FOLDER_MODE, UNFINISHED, names, remove_unfinished, sync_with_parent};
use super::record::{Checksum, Head};
use super::recovery::SNAPSHOTS_KEPT;
use super::{Error, Limits, Sequence, Snapshot};
use crate::deflate::{deflate_fast, inflate};

/// Name of the snapshots' folder, beside the database.
pub const SNAPSHOTS: &str = "snapshots";
const SUFFIX: &str = "snapshot";
const MAGIC: &[u8; 20] = b"gangline snapshot 1\n";

/// A sound snapshot, and the chain where it ends.
#[derive(Debug)]
pub(super) struct Sound {
    pub(super) snapshot: Snapshot,
    pub(super) head: Head,
}

/// The folder of snapshots.
#[derive(Clone, Debug)]
pub(super) struct Snapshots {
    folder: PathBuf,
}

impl Snapshots {
    /// Returns the snapshots' folder of a database.
    pub(super) fn of(database: &Path) -> Snapshots {
        Snapshots { folder: database.with_file_name(SNAPSHOTS) }
    }

    /// Returns the last record that each snapshot covers, the newest first.
    pub(super) fn list(&self) -> Result<Vec<Sequence>, Error> {
        let mut found: Vec<Sequence> = names(&self.folder)?.iter().filter_map(|name| sequence_of(name)).collect();
        found.sort_unstable_by(|one, other| other.cmp(one));
        Ok(found)
    }

    /// Reads a snapshot; returns `None` if it isn't sound.
    pub(super) fn read(&self, sequence: Sequence) -> Result<Option<Sound>, Error> {
        let path = self.path(sequence);
        let mut bytes = Vec::new();
        // Incompressible data grows a little.
        let length_max = Limits::SNAPSHOT.0 + (Limits::SNAPSHOT.0 >> 8);
        let read = File::open(&path).and_then(|file| file.take(length_max).read_to_end(&mut bytes));
        read.map_err(|source| Error::Folder { path, source })?;
        Ok(decode(&bytes).filter(|sound| sound.head.sequence == sequence))
    }

    /// Writes a snapshot durably, and removes all but the newest.
    pub(super) fn write(&self, head: Head, body: &[u8]) -> Result<(), Error> {
        let path = self.path(head.sequence);
        let aside = path.with_extension(UNFINISHED);
        let refused = |source| Error::Folder { path: path.clone(), source };
        DirBuilder::new().recursive(true).mode(FOLDER_MODE).create(&self.folder).map_err(refused)?;
        let written = write_aside(&aside, head, body).and_then(|()| fs::rename(&aside, &path));
        written.inspect_err(|_| drop(fs::remove_file(&aside))).map_err(refused)?;
        sync_with_parent(&self.folder).map_err(refused)?;
        let kept = usize::try_from(SNAPSHOTS_KEPT).expect("a few");
        self.list()?.into_iter().skip(kept).try_for_each(|old| self.remove(old))
    }

    /// Removes a snapshot; the records hold the same information.
    pub(super) fn remove(&self, sequence: Sequence) -> Result<(), Error> {
        let path = self.path(sequence);
        fs::remove_file(&path).map_err(|source| Error::Folder { path, source })
    }

    /// Renames a snapshot so that it no longer counts.
    pub(super) fn put_aside(&self, sequence: Sequence) -> Result<(), Error> {
        let path = self.path(sequence);
        let refused = |source| Error::Folder { path: path.clone(), source };
        fs::rename(&path, path.with_extension("aside")).map_err(refused)?;
        sync_with_parent(&self.folder).map_err(refused)
    }

    /// Removes unfinished files that a crash left.
    pub(super) fn tidy(&self) -> Result<(), Error> {
        remove_unfinished(&self.folder)
    }

    /// Returns SQLite's error with the path of the snapshots' database.
    pub(super) fn failed(&self, error: rusqlite::Error) -> Error {
        Error::from_sqlite(&self.folder.with_file_name(DATABASE), error)
    }

    pub(super) fn path(&self, sequence: Sequence) -> PathBuf {
        self.folder.join(file_name(sequence))
    }
}

/// Returns the name of the file that covers the records up to this one.
pub(super) fn file_name(sequence: Sequence) -> String {
    format!("{:012}.{SUFFIX}", sequence.0)
}

/// Parses a snapshot's file name.
pub(super) fn sequence_of(name: &str) -> Option<Sequence> {
    let sequence = Sequence(name.strip_suffix(SUFFIX)?.strip_suffix('.')?.parse().ok()?);
    (file_name(sequence) == name).then_some(sequence)
}

fn write_aside(path: &Path, head: Head, body: &[u8]) -> io::Result<()> {
    let mut file = OpenOptions::new().write(true).create(true).truncate(true).mode(FILE_MODE).open(path)?;
    file.write_all(MAGIC)?;
    file.write_all(&head.sequence.0.to_le_bytes())?;
    file.write_all(&head.checksum.0)?;
    file.write_all(&u64::try_from(body.len()).expect("u64 holds a usize on Linux").to_le_bytes())?;
    let mut file = deflate_fast(io::BufWriter::new(file), body)?;
    file.write_all(&Checksum::of_snapshot(head.sequence, head.checksum, body).0)?;
    file.into_inner().map_err(io::IntoInnerError::into_error)?.sync_all()
}

fn decode(bytes: &[u8]) -> Option<Sound> {
    let (sequence, rest) = bytes.strip_prefix(MAGIC)?.split_first_chunk::<8>()?;
    let (record, rest) = rest.split_first_chunk::<{ Checksum::BYTES }>()?;
    let (length, rest) = rest.split_first_chunk::<8>()?;
    let (packed, checksum) = rest.split_last_chunk::<{ Checksum::BYTES }>()?;
    let (sequence, record) = (Sequence(u64::from_le_bytes(*sequence)), Checksum(*record));
    let length = u64::from_le_bytes(*length);
    if length > Limits::SNAPSHOT.0 {
        return None;
    }
    let body = inflate(packed, length)?;
    let is_sound = u64::try_from(body.len()).is_ok_and(|read| read == length)
        && Checksum::of_snapshot(sequence, record, &body).0 == *checksum;
    let head = Head { sequence, checksum: record };
    is_sound.then_some(Sound { snapshot: Snapshot { sequence, body }, head })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_two_newest_are_kept_and_no_flipped_bit_gets_through() {
        let folder = tempfile::tempdir().expect("a folder");
        let snapshots = Snapshots::of(&folder.path().join("journal.sqlite"));
        assert_eq!(snapshots.list().expect("none yet"), []);
        let head = |sequence| Head { sequence: Sequence(sequence), checksum: Checksum::of_nothing() };
        for sequence in 1..=3 {
            snapshots.write(head(sequence), b"a state, a state, a state").expect("there is room");
        }
        assert_eq!(snapshots.list().expect("it is there"), [Sequence(3), Sequence(2)]);
        let path = snapshots.path(Sequence(3));
        let file = fs::read(&path).expect("it is there");
        let sound = snapshots.read(Sequence(3)).expect("it is there").expect("it is sound");
        assert_eq!((sound.head, sound.snapshot.body.as_slice()), (head(3), b"a state, a state, a state".as_slice()));
        for bit in 0..file.len() * 8 {
            let mut flipped = file.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            let is_same =
                decode(&flipped).is_some_and(|found| found.head == sound.head && found.snapshot == sound.snapshot);
            // Some bits of a DEFLATE stream have no meaning.
            assert!(decode(&flipped).is_none() || is_same, "bit {bit}");
        }
        assert!((0..file.len()).all(|length| decode(&file[..length]).is_none()));
        fs::write(snapshots.path(Sequence(2)), file).expect("it is ours");
        assert!(snapshots.read(Sequence(2)).expect("it is there").is_none(), "another one under its name");
    }
}
