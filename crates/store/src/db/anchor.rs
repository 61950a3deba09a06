//! The journal's anchor: a small file beside the database that records how far the journal has come. SQLite
//! ends a damaged write-ahead log at the first bad frame, and a restored copy is sound in itself, so the
//! database alone doesn't show that records are missing. The anchor does.
//!
//! The anchor is written in place after each commit without a sync of its own, so a killed process loses
//! nothing of it. [`Anchor::sync`] makes it durable against a power cut, once a second. It is never ahead of
//! a sound journal, because the journal is durable before the anchor is written. Two slots with checksums are
//! written in turn, so a torn write leaves the other slot intact.
//!
//! Two files have the same content. Whoever restores an older copy of `journal.*` by hand also restores an
//! older `journal.anchor`; `high-water` stays and shows the loss.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use gangline_base::JobId;

use super::record::{Checksum, Head};
use super::{Error, Sequence};

/// The anchor's files, with equal content.
const FILES: [&str; 2] = ["journal.anchor", "high-water"];
/// Each slot has a page of its own, so that a torn page never destroys both.
const SLOT_DISTANCE: u64 = 4_096;
const SLOT_BYTES: usize = 192;
const SLOTS: u64 = 2;
const MAGIC: &str = "gangline-anchor-1";
const FILE_MODE: u32 = 0o600;

/// The position of the journal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Anchored {
    /// The last committed record.
    pub(super) head: Head,
    /// The highest job id ever given out.
    pub(super) given_out: JobId,
}

/// The anchor's files, held by the journal's writer.
#[derive(Debug)]
pub(super) struct Anchor {
    files: Vec<File>,
    turn: u64,
    is_synced: bool,
}

impl Anchor {
    /// Reads the newer of the two files in `folder`. Returns `None` if there is no readable anchor.
    pub(super) fn read(folder: &Path) -> Result<Option<Anchored>, Error> {
        let mut known: Option<Anchored> = None;
        for name in FILES {
            let path = folder.join(name);
            let found = match OpenOptions::new().read(true).open(&path) {
                Ok(file) => newest(&file).map(|(_, anchored)| anchored),
                Err(error) if error.kind() == io::ErrorKind::NotFound => None,
                Err(source) => return Err(Error::Folder { path, source }),
            };
            known = match (known, found) {
                (Some(known), Some(found)) => Some(known.or_later(found)),
                (known, found) => known.or(found),
            };
        }
        Ok(known)
    }

    /// Opens or creates the anchor of `folder` and durably writes `anchored`.
    pub(super) fn open(folder: &Path, anchored: Anchored) -> Result<Anchor, Error> {
        let open = |name| {
            let path: PathBuf = folder.join(name);
            let mut options = OpenOptions::new();
            let options = options.read(true).write(true).create(true).truncate(false).mode(FILE_MODE);
            options.open(&path).map_err(|source| Error::Folder { path, source })
        };
        let files = FILES.into_iter().map(open).collect::<Result<Vec<File>, Error>>()?;
        let turn = files.iter().filter_map(newest).map(|(turn, _)| turn).max().unwrap_or(0);
        let refused = |source| Error::Folder { path: folder.to_owned(), source };
        let mut anchor = Anchor { files, turn, is_synced: true };
        anchor.note(anchored).map_err(refused)?;
        anchor.sync().map_err(refused)?;
        File::open(folder).and_then(|folder| folder.sync_all()).map_err(refused)?;
        Ok(anchor)
    }

    /// Writes the journal's position.
    pub(super) fn note(&mut self, anchored: Anchored) -> io::Result<()> {
        self.turn += 1;
        self.is_synced = false;
        let (slot, at) = (encode(self.turn, anchored), (self.turn % SLOTS) * SLOT_DISTANCE);
        self.files.iter().try_for_each(|file| file.write_all_at(&slot, at))
    }

    /// Makes earlier writes durable.
    pub(super) fn sync(&mut self) -> io::Result<()> {
        if !self.is_synced {
            self.files.iter().try_for_each(File::sync_data)?;
            self.is_synced = true;
        }
        Ok(())
    }
}

impl Anchored {
    /// Returns the position of the longer journal, with the higher job id of both.
    fn or_later(self, other: Anchored) -> Anchored {
        let later = if other.head.sequence > self.head.sequence { other } else { self };
        Anchored { given_out: self.given_out.max(other.given_out), ..later }
    }
}

/// Returns the newest sound slot and its turn.
fn newest(file: &File) -> Option<(u64, Anchored)> {
    let slot = |number: u64| {
        let mut bytes = [0; SLOT_BYTES];
        file.read_exact_at(&mut bytes, number * SLOT_DISTANCE).ok()?;
        decode(&bytes)
    };
    (0..SLOTS).filter_map(slot).max_by_key(|(turn, _)| *turn)
}

fn encode(turn: u64, anchored: Anchored) -> [u8; SLOT_BYTES] {
    let Anchored { head: Head { sequence, checksum }, given_out } = anchored;
    let text = format!("{MAGIC} {turn} {sequence} {} {} ", hex(checksum.0), given_out.0);
    let line = format!("{text}{}\n", hex(Checksum::of_anchor(text.as_bytes()).0));
    let mut bytes = [b' '; SLOT_BYTES];
    bytes[..line.len()].copy_from_slice(line.as_bytes());
    bytes
}

fn decode(bytes: &[u8]) -> Option<(u64, Anchored)> {
    let line = std::str::from_utf8(bytes).ok()?.trim_end();
    let (text, own) = line.split_at(line.rfind(' ')? + 1);
    if own != hex(Checksum::of_anchor(text.as_bytes()).0) {
        return None;
    }
    let mut fields = text.split_ascii_whitespace();
    if fields.next()? != MAGIC {
        return None;
    }
    let turn = fields.next()?.parse().ok()?;
    let sequence = Sequence(fields.next()?.parse().ok()?);
    let checksum = Checksum(unhex(fields.next()?)?);
    let given_out = JobId(fields.next()?.parse().ok()?);
    Some((turn, Anchored { head: Head { sequence, checksum }, given_out }))
}

fn hex(bytes: [u8; Checksum::BYTES]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn unhex(text: &str) -> Option<[u8; Checksum::BYTES]> {
    let mut bytes = [0; Checksum::BYTES];
    if text.len() != 2 * bytes.len() || !text.is_ascii() {
        return None;
    }
    for (byte, digits) in bytes.iter_mut().zip(text.as_bytes().chunks(2)) {
        *byte = u8::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()?;
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(sequence: u64) -> Anchored {
        let checksum = Checksum([u8::try_from(sequence % 251).expect("small"); Checksum::BYTES]);
        Anchored { head: Head { sequence: Sequence(sequence), checksum }, given_out: JobId(sequence * 3) }
    }

    #[test]
    fn the_last_word_counts_and_a_torn_one_leaves_the_word_before() {
        let folder = tempfile::tempdir().expect("a folder");
        assert_eq!(Anchor::read(folder.path()).expect("it may be missing"), None);
        let mut anchor = Anchor::open(folder.path(), at(1)).expect("it is made");
        for sequence in 2..=9 {
            anchor.note(at(sequence)).expect("there is room");
        }
        anchor.sync().expect("the disk takes it");
        assert_eq!(Anchor::read(folder.path()).expect("it is there"), Some(at(9)));
        let slot = (anchor.turn % SLOTS) * SLOT_DISTANCE;
        let tear = |file: &File| file.write_all_at(b"x", slot + 30).expect("the file is ours");
        tear(&anchor.files[0]);
        assert_eq!(Anchor::read(folder.path()).expect("it is there"), Some(at(9)), "the other file has it");
        tear(&anchor.files[1]);
        assert_eq!(Anchor::read(folder.path()).expect("it is there"), Some(at(8)));
        drop(anchor);
        Anchor::open(folder.path(), at(1 << 60)).expect("it opens again");
        assert_eq!(Anchor::read(folder.path()).expect("it is there"), Some(at(1 << 60)));
    }

    #[test]
    fn every_flipped_bit_of_a_slot_is_found() {
        let whole = encode(7, at(41));
        let length = std::str::from_utf8(&whole).expect("text").trim_end().len();
        assert_eq!(decode(&whole), Some((7, at(41))));
        for bit in 0..length * 8 {
            let mut flipped = whole;
            flipped[bit / 8] ^= 1 << (bit % 8);
            assert_ne!(decode(&flipped), decode(&whole), "bit {bit}");
        }
    }
}
