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
use std::sync::{Arc, Mutex, PoisonError};

use gangline_base::Bytes;
use rustix::fs::OFlags;

use crate::requests::{PLACES, bytes_of, requests_of};
use crate::{Meter, Requests};

/// The environment variable that names the folder in which programs note what they ask remote places for, and how much their archives
/// hold, so that whoever started them knows of it however they end.
pub const READS_VARIABLE: &str = "GANGLINE_DATA_READS";
/// How a file of counts begins.
const MARK: &[u8; 8] = b"tally-1\n";
/// How a file begins that says how much is stored at an address: 8 bytes (little endian) and the address follow.
const STORED_MARK: &[u8; 9] = b"stored-1\n";
const COUNTS_BYTES: usize = PLACES * 8;
/// The longest text that says what the counts are about.
const ABOUT_BYTES_MAX: usize = 1_024;
/// The most files of a folder that are read, and that a process tries to name its own.
const FILES_MAX: usize = 4_096;
/// Counts beyond this are no counts.
const COUNT_MAX: u64 = 1 << 53;

/// The tallies of this process, by folder and address. A program may open a place thousands of times.
static TALLIES: Mutex<BTreeMap<(PathBuf, String), Arc<Tally>>> = Mutex::new(BTreeMap::new());

/// Returns the meter of a place: it notes what it counts in the folder that the settings name, if they name one.
#[must_use]
pub fn meter_of(settings: &BTreeMap<String, String>, about: &str) -> Meter {
    let folder = settings.get(READS_VARIABLE).filter(|folder| !folder.is_empty());
    folder.map_or_else(Meter::default, |folder| {
        let key = (PathBuf::from(folder), about.to_owned());
        let mut tallies = TALLIES.lock().unwrap_or_else(PoisonError::into_inner);
        let tally = tallies
            .entry(key)
            .or_insert_with_key(|(folder, about)| Arc::new(Tally::new(folder.clone(), about.clone())));
        Meter::with(Arc::clone(tally))
    })
}

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

/// Notes how much is stored at an address, in place of what was noted before. A folder that can't be written costs the note alone.
pub fn note_stored(folder: &Path, about: &str, bytes: Bytes) {
    let name = format!("stored-{}", &blake3::hash(about.as_bytes()).to_hex()[..32]);
    let aside = folder.join(format!("{name}.{}", std::process::id()));
    let text = [&STORED_MARK[..], &bytes.0.to_le_bytes(), about.as_bytes()].concat();
    let written = DirBuilder::new().recursive(true).mode(0o700).create(folder);
    let written =
        written.and_then(|()| std::fs::write(&aside, text)).and_then(|()| std::fs::rename(&aside, folder.join(name)));
    if written.is_err() {
        // There is nothing to remove if there was no room.
        let _ = std::fs::remove_file(&aside);
    }
}

/// Returns how much is stored at which address by the notes in a folder. What is no such note is passed over.
#[must_use]
pub fn stored_in(folder: &Path) -> BTreeMap<String, Bytes> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    // A name with a dot is that of a file that was being written.
    let whole = entries.take(FILES_MAX).map(|entry| entry.path()).filter(|path| path.extension().is_none());
    whole.filter_map(|path| stored(&path)).collect()
}

fn stored(path: &Path) -> Option<(String, Bytes)> {
    let text = text_of(path)?;
    let (bytes, about) = text.strip_prefix(STORED_MARK)?.split_first_chunk()?;
    let bytes = Some(u64::from_le_bytes(*bytes)).filter(|bytes| *bytes <= COUNT_MAX)?;
    Some((about_of(about)?, Bytes(bytes)))
}

fn noted(path: &Path) -> Option<(String, [u64; PLACES])> {
    let text = text_of(path)?;
    let (counts, about) = text.strip_prefix(MARK)?.split_at_checked(COUNTS_BYTES)?;
    let mut numbers = [0; PLACES];
    for (number, bytes) in numbers.iter_mut().zip(counts.as_chunks().0) {
        *number = Some(u64::from_le_bytes(*bytes)).filter(|count| *count <= COUNT_MAX)?;
    }
    Some((about_of(about)?, numbers))
}

fn about_of(bytes: &[u8]) -> Option<String> {
    String::from_utf8(bytes.to_vec()).ok().filter(|about| about.len() <= ABOUT_BYTES_MAX)
}

/// Returns what a file holds, which anybody may have made.
fn text_of(path: &Path) -> Option<Vec<u8>> {
    // Neither a link to elsewhere nor a pipe that nobody writes to is waited for.
    let flags = (OFlags::NOFOLLOW | OFlags::NONBLOCK).bits().cast_signed();
    let file = File::options().read(true).custom_flags(flags).open(path).ok()?;
    if !file.metadata().ok()?.is_file() {
        return None;
    }
    let mut text = Vec::new();
    let most = MARK.len() + COUNTS_BYTES + ABOUT_BYTES_MAX;
    file.take(most as u64 + 1).read_to_end(&mut text).ok()?;
    Some(text)
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
    fn the_last_note_of_what_is_stored_counts() {
        let place = tempfile::tempdir().unwrap();
        let folder = place.path().join("notes");
        note_stored(&folder, "s3://b/run", Bytes(700));
        note_stored(&folder, "file:///archive", Bytes(5));
        note_stored(&folder, "s3://b/run", Bytes(300));
        Tally::new(folder.clone(), "s3://b/run".to_owned()).add(&[(0, 3)]);
        std::fs::write(folder.join("stored-x"), [&STORED_MARK[..], &[0xff; 8], b"absurd"].concat()).unwrap();
        std::fs::write(folder.join("stored-y"), &STORED_MARK[..]).unwrap();
        let expected = [("file:///archive", 5), ("s3://b/run", 300)];
        assert_eq!(stored_in(&folder), expected.map(|(about, bytes)| (about.to_owned(), Bytes(bytes))).into());
        assert_eq!(tallies_in(&folder).len(), 1, "counts are apart");
        note_stored(Path::new("/proc/none"), "s3://b/run", Bytes(1));
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
