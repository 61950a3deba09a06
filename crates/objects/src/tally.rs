//! Requests and received bytes, noted in a file at once, so that whoever started a program knows what it has asked for however the
//! program ends, and whatever it says itself.
//!
//! Each process has files of its own in a folder that others read: a mark, each count as 8 bytes (little endian), and what the
//! counts are about. A count is one write of 8 bytes, in place: a kill leaves the one before it or the one after it.

use std::collections::BTreeMap;
use std::fs::{DirBuilder, File};
use std::io::Read as _;
use std::os::unix::fs::{DirBuilderExt as _, FileExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use rustix::fs::OFlags;

use crate::Requests;
use crate::requests::{PLACES, bytes_of, requests_of};

/// How a file begins.
const MARK: &[u8; 8] = b"tally-1\n";
const COUNTS_BYTES: usize = PLACES * 8;
/// The longest text that says what the counts are about.
const ABOUT_BYTES_MAX: usize = 1_024;
/// The most files of a folder that are read, and that a process tries to name its own.
const FILES_MAX: usize = 4_096;
/// Counts beyond this are no counts.
const COUNT_MAX: u64 = 1 << 53;

/// What this process asks a place for. It never fails: a folder that can't be written costs the notes alone.
#[derive(Debug)]
pub struct Tally {
    folder: PathBuf,
    about: String,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// A process that was forked counts for itself.
    process: u32,
    file: Option<File>,
    counts: [u64; PLACES],
}

impl Tally {
    /// Notes in the folder, which is made when there is something to note.
    #[must_use]
    pub fn new(folder: PathBuf, about: String) -> Tally {
        Tally { folder, about, state: Mutex::default() }
    }

    pub(crate) fn add(&self, more: &[(usize, i64)]) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let process = std::process::id();
        if state.process != process {
            *state = State { process, ..State::default() };
        }
        for (place, more) in more {
            state.counts[*place] = state.counts[*place].wrapping_add_signed(*more);
        }
        if let Some(file) = &state.file {
            for (place, _) in more {
                let at = MARK.len() + place * 8;
                let _ = file.write_all_at(&state.counts[*place].to_le_bytes(), at as u64);
            }
        } else {
            state.file = self.begin(process, &state.counts).ok();
        }
    }

    fn begin(&self, process: u32, counts: &[u64; PLACES]) -> std::io::Result<File> {
        DirBuilder::new().recursive(true).mode(0o700).create(&self.folder)?;
        let text = [MARK, counts.map(u64::to_le_bytes).as_flattened(), self.about.as_bytes()].concat();
        // Processes of several containers may have one number.
        let names = (0..FILES_MAX).map(|number| self.folder.join(format!("{process}-{number}")));
        for path in names {
            match File::options().write(true).create_new(true).mode(0o600).open(path) {
                Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {}
                opened => {
                    let file = opened?;
                    file.write_all_at(&text, 0)?;
                    return Ok(file);
                }
            }
        }
        Err(std::io::ErrorKind::AlreadyExists.into())
    }
}

/// Returns the requests and the received bytes that are noted in a folder, by what they are about. What is no such note is passed
/// over: programs that nobody trusts may write there.
#[must_use]
pub fn tallies_in(folder: &Path) -> BTreeMap<String, (Requests, u64)> {
    let mut sums: BTreeMap<String, (Requests, u64)> = BTreeMap::new();
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    for (about, counts) in entries.take(FILES_MAX).filter_map(|entry| noted(&entry.path())) {
        let sum = sums.entry(about).or_default();
        *sum = (sum.0.and(requests_of(&counts)), sum.1 + bytes_of(&counts));
    }
    sums
}

fn noted(path: &Path) -> Option<(String, [u64; PLACES])> {
    // Neither a link to elsewhere nor a pipe that nobody writes to is waited for.
    let flags = (OFlags::NOFOLLOW | OFlags::NONBLOCK).bits().cast_signed();
    let file = File::options().read(true).custom_flags(flags).open(path).ok()?;
    if !file.metadata().ok()?.is_file() {
        return None;
    }
    let mut text = Vec::new();
    let most = MARK.len() + COUNTS_BYTES + ABOUT_BYTES_MAX;
    file.take(most as u64 + 1).read_to_end(&mut text).ok()?;
    let (counts, about) = text.strip_prefix(MARK)?.split_at_checked(COUNTS_BYTES)?;
    let mut numbers = [0; PLACES];
    for (number, bytes) in numbers.iter_mut().zip(counts.as_chunks().0) {
        *number = Some(u64::from_le_bytes(*bytes)).filter(|count| *count <= COUNT_MAX)?;
    }
    let about = String::from_utf8(about.to_vec()).ok().filter(|about| about.len() <= ABOUT_BYTES_MAX)?;
    Some((about, numbers))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn counts_are_in_the_folder_as_soon_as_they_are_made() {
        let place = tempfile::tempdir().unwrap();
        let folder = place.path().join("notes");
        let tally = |about: &str| Tally::new(folder.clone(), about.to_owned());
        let (one, again, other) = (tally("s3://b/c4"), tally("s3://b/c4"), tally("https://h/x"));
        assert_eq!(tallies_in(&folder), BTreeMap::new());
        one.add(&[(1, 1)]);
        one.add(&[(1, -1), (5, 1)]);
        one.add(&[(6, 700)]);
        again.add(&[(1, 2)]);
        other.add(&[(4, 1)]);
        let c4 = (Requests { get: 2, failed: 1, ..Requests::default() }, 700);
        let x = (Requests { head: 1, ..Requests::default() }, 0);
        let expected = BTreeMap::from([("s3://b/c4".to_owned(), c4), ("https://h/x".to_owned(), x)]);
        assert_eq!(tallies_in(&folder), expected);
        drop((one, again, other));
        assert_eq!(tallies_in(&folder), expected);
    }

    #[test]
    fn what_is_no_note_is_passed_over_without_waiting() {
        let place = tempfile::tempdir().unwrap();
        let folder = place.path().join("notes");
        Tally::new(folder.clone(), "a".to_owned()).add(&[(1, 1)]);
        let good = std::fs::read(folder.join(format!("{}-0", std::process::id()))).unwrap();
        let write = |name: &str, text: &[u8]| std::fs::write(folder.join(name), text).unwrap();
        write("short", &good[..40]);
        write("other", b"something else");
        write("binary", &[&good[..64], &[0xff, 0xfe]].concat());
        write("long", &[&good[..64], &[b'a'; ABOUT_BYTES_MAX + 1][..]].concat());
        write("absurd", &[&MARK[..], &[0xff; COUNTS_BYTES], b"b"].concat());
        std::fs::create_dir(folder.join("folder")).unwrap();
        symlink("/dev/zero", folder.join("link")).unwrap();
        rustix::fs::mkfifoat(rustix::fs::CWD, folder.join("pipe"), rustix::fs::Mode::RWXU).unwrap();
        let expected = (Requests { get: 1, ..Requests::default() }, 0);
        assert_eq!(tallies_in(&folder), BTreeMap::from([("a".to_owned(), expected)]));
    }

    #[test]
    fn a_folder_that_cannot_be_written_costs_the_notes_alone() {
        let place = tempfile::tempdir().unwrap();
        let file = place.path().join("file");
        std::fs::write(&file, "").unwrap();
        let tally = Tally::new(file.join("notes"), "a".to_owned());
        tally.add(&[(1, 1)]);
        std::fs::remove_file(&file).unwrap();
        tally.add(&[(1, 1)]);
        let expected = (Requests { get: 2, ..Requests::default() }, 0);
        assert_eq!(tallies_in(&file.join("notes")), BTreeMap::from([("a".to_owned(), expected)]));
    }
}
