//! The data folder: its lock, and the creation of a new database as a whole or not at all.

use std::fs::{self, DirBuilder, File, OpenOptions, TryLockError};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use rusqlite::Connection;

use super::anchor::Anchored;
use super::network::refuse_network;
use super::{Error, Sequence, schema};

pub(super) const DATABASE: &str = "journal.sqlite";
const WRITE_AHEAD_LOG: &str = "journal.sqlite-wal";
const NEW_DATABASE: &str = "journal.sqlite.new";
const LOCK: &str = "lock";
/// Folder of the attempts' folders in the data folder; it exists only if there was a journal.
const JOBS: &str = "jobs";
/// File in the data folder that names the journal's folder, if that is elsewhere.
const LOCATION: &str = "journal.location";

/// The longest process id that is read from a lock file.
const PID_BYTES_MAX: u64 = 20;

/// Attempts to take the lock, and the pause between them.
const LOCK_TRIES: u32 = 20;
const LOCK_PAUSE: Duration = Duration::from_millis(10);

/// The most logs of accepted losses that are kept; older ones go.
const LOST_LOGS_MAX: usize = 10;

/// For the owner only: the folder holds tokens and environment variables.
pub(super) const FOLDER_MODE: u32 = 0o700;
pub(super) const FILE_MODE: u32 = 0o600;

/// A data folder held by this process until this value is dropped or the process ends.
#[derive(Debug)]
pub struct HeldFolder {
    path: PathBuf,
    _lock: File,
}

impl HeldFolder {
    /// Creates the folder if need be and takes its lock.
    ///
    /// # Errors
    /// [`Error::InUse`] if another process holds it; [`Error::Folder`].
    pub fn hold(path: &Path) -> Result<HeldFolder, Error> {
        let refused = |source| Error::Folder { path: path.to_owned(), source };
        DirBuilder::new().recursive(true).mode(FOLDER_MODE).create(path).map_err(refused)?;
        refuse_network(path)?;
        let lock_path = path.join(LOCK);
        let refused = |source| Error::Folder { path: lock_path.clone(), source };
        let mut lock = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(FILE_MODE)
            .open(&lock_path)
            .map_err(refused)?;
        match patiently(&lock) {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                return Err(Error::InUse { folder: path.to_owned(), pid: holder(&mut lock) });
            }
            Err(TryLockError::Error(source)) => return Err(refused(source)),
        }
        // The id only helps whoever is refused: a disk too full for it must not stop a control plane.
        let _ = lock.set_len(0).and_then(|()| writeln!(lock, "{}", std::process::id()));
        Ok(HeldFolder { path: path.to_owned(), _lock: lock })
    }

    /// Returns the folder's path.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the path of the database file.
    pub(super) fn database(&self) -> PathBuf {
        self.path.join(DATABASE)
    }

    /// Copies a non-empty write-ahead log before a start that may accept a loss, and returns the copy's path.
    /// The next commits overwrite the frames after a damaged one, and these may be all that is left of the
    /// lost records.
    pub(super) fn keep_log_aside(&self) -> Result<Option<PathBuf>, Error> {
        let log = self.path.join(WRITE_AHEAD_LOG);
        if fs::metadata(&log).map_or(true, |found| found.len() == 0) {
            return Ok(None);
        }
        let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let aside = self.path.join(format!("{WRITE_AHEAD_LOG}.lost-{}", since.as_nanos()));
        let sync = |path: &Path| File::open(path)?.sync_all();
        let copied = fs::copy(&log, &aside).and_then(|_| sync(&aside)).and_then(|()| sync(&self.path));
        if let Err(source) = copied {
            // Half a copy would take the place of an older, whole one.
            let _ = fs::remove_file(&aside);
            return Err(Error::Folder { path: aside, source });
        }
        Ok(Some(aside))
    }

    /// Removes the oldest logs of accepted losses, but never `newest`: the clock that names them may
    /// have been set back.
    pub(super) fn remove_oldest_logs(&self, newest: &Path) -> io::Result<()> {
        let prefix = format!("{WRITE_AHEAD_LOG}.lost-");
        let mut kept: Vec<(u128, PathBuf)> = Vec::new();
        for entry in fs::read_dir(&self.path)? {
            let entry = entry?;
            let name = entry.file_name();
            let time = name.to_str().and_then(|name| name.strip_prefix(&prefix)).and_then(|time| time.parse().ok());
            kept.extend(time.map(|time| (time, entry.path())).filter(|(_, path)| path != newest));
        }
        kept.sort();
        let surplus = (kept.len() + 1).saturating_sub(LOST_LOGS_MAX);
        kept[..surplus].iter().try_for_each(|(_, log)| fs::remove_file(log))
    }

    /// Creates the database if there is none. A new one is written to a temporary file and renamed, so that
    /// an empty or half-written file is always damage and never a first start.
    ///
    /// A missing database whose anchor names records is a loss, which the user must accept.
    pub(super) fn ensure_database(
        &self,
        anchored: Option<Anchored>,
        accept_loss_after: Option<Sequence>,
    ) -> Result<(), Error> {
        let database = self.database();
        if database.exists() {
            return Ok(());
        }
        if self.path.join(WRITE_AHEAD_LOG).exists() {
            let what = "its write-ahead log is there but the database is not".to_owned();
            return Err(Error::Damaged { path: database, what });
        }
        if let Some(Anchored { head, given_out }) = anchored
            && head.sequence != Sequence::ZERO
            && accept_loss_after != Some(Sequence::ZERO)
        {
            let (last, anchored) = (Sequence::ZERO, head.sequence);
            return Err(Error::TailLost { path: database, last, anchored, given_out });
        }
        let aside = create_aside(&self.path)?;
        publish(&aside, &database, &self.path).map_err(|source| Error::Folder { path: aside.clone(), source })
    }
}

/// Takes the lock, with retries: a process that the last holder has just started still shares the holder's
/// files, and with them the lock, until it executes its own program.
fn patiently(lock: &File) -> Result<(), TryLockError> {
    for _ in 1..LOCK_TRIES {
        match lock.try_lock() {
            Err(TryLockError::WouldBlock) => std::thread::sleep(LOCK_PAUSE),
            other => return other,
        }
    }
    lock.try_lock()
}

/// Returns the folder of a data folder's journal: the data folder itself, or the one that it names.
#[must_use]
pub fn journal_folder(data: &Path) -> PathBuf {
    let elsewhere = fs::read_to_string(data.join(LOCATION)).ok().filter(|_| !data.join(DATABASE).exists());
    // A path within the data folder is stored relative to it, so that both can be moved together.
    elsewhere.map_or_else(|| data.to_owned(), |text| data.join(text.trim_end_matches('\n')))
}

/// Records in the data folder that its journal is in the folder `wanted`, and returns the journal's folder.
/// Backups and simulations find the journal by this record.
///
/// # Errors
/// [`Error::JournalElsewhere`] if the data folder's journal is in another folder; [`Error::JournalGone`];
/// [`Error::Folder`].
pub fn place_journal(data: &Path, wanted: &Path) -> Result<PathBuf, Error> {
    let found = journal_folder(data);
    let has_one = data.join(DATABASE).exists() || data.join(LOCATION).exists();
    // A moved data folder names a place with no journal; the user has to name the new one.
    let was_moved = !found.join(DATABASE).exists() && wanted.join(DATABASE).exists();
    if has_one && found != wanted && !was_moved {
        return Err(Error::JournalElsewhere { data: data.to_owned(), found, wanted: wanted.to_owned() });
    }
    if found == wanted {
        // A new journal there would give out ids again.
        let is_gone =
            !found.join(DATABASE).exists() && fs::read_dir(data.join(JOBS)).is_ok_and(|jobs| jobs.count() > 0);
        let is_elsewhere = data.join(LOCATION).exists() && !data.join(DATABASE).exists();
        let gone = || Error::JournalGone { data: data.to_owned(), found: found.clone() };
        return if is_gone && is_elsewhere { Err(gone()) } else { Ok(found) };
    }
    let path = data.join(LOCATION);
    let refused = |source| Error::Folder { path: path.clone(), source };
    DirBuilder::new().recursive(true).mode(FOLDER_MODE).create(data).map_err(refused)?;
    let said = wanted.strip_prefix(data).unwrap_or(wanted);
    write_whole(&path, format!("{}\n", said.display()).as_bytes()).map_err(refused)?;
    Ok(wanted.to_owned())
}

/// Writes a small file so that it is whole or as before after a crash.
fn write_whole(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let aside = path.with_extension(UNFINISHED);
    let mut file = OpenOptions::new().write(true).create(true).truncate(true).mode(FILE_MODE).open(&aside)?;
    file.write_all(bytes)?;
    publish(&aside, path, path.parent().unwrap_or(Path::new(".")))
}

/// Makes the names in a folder durable, and the folder's own name.
pub(super) fn sync_with_parent(folder: &Path) -> io::Result<()> {
    File::open(folder)?.sync_all()?;
    File::open(folder.parent().unwrap_or(Path::new(".")))?.sync_all()
}

/// Returns the names in a folder; empty if there is no such folder.
pub(super) fn names(folder: &Path) -> Result<Vec<String>, Error> {
    let refused = |source| Error::Folder { path: folder.to_owned(), source };
    let entries = match fs::read_dir(folder) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries.map_err(refused)?,
    };
    let name = |entry: io::Result<fs::DirEntry>| Ok(entry.map_err(refused)?.file_name().to_string_lossy().into_owned());
    entries.map(name).collect()
}

/// Suffix of unfinished files, which a crash may leave.
pub(super) const UNFINISHED: &str = "writing";

/// Removes unfinished files that crashes left in a folder.
pub(super) fn remove_unfinished(folder: &Path) -> Result<(), Error> {
    let is_unfinished = |path: &PathBuf| path.extension().is_some_and(|extension| extension == UNFINISHED);
    for path in names(folder)?.into_iter().map(|name| folder.join(name)).filter(is_unfinished) {
        remove_if_there(&path).map_err(|source| Error::Folder { path, source })?;
    }
    Ok(())
}

fn holder(lock: &mut File) -> Option<u32> {
    let mut text = String::new();
    lock.take(PID_BYTES_MAX).read_to_string(&mut text).ok()?;
    text.trim().parse().ok()
}

/// Creates a new, empty database under a temporary name and returns its path.
pub(super) fn create_aside(folder: &Path) -> Result<PathBuf, Error> {
    let aside = folder.join(NEW_DATABASE);
    let refused = |source| Error::Folder { path: aside.clone(), source };
    remove_if_there(&aside).map_err(refused)?;
    OpenOptions::new().write(true).create_new(true).mode(FILE_MODE).open(&aside).map_err(refused)?;
    create(&aside).map_err(|error| Error::from_sqlite(&aside, error))?;
    Ok(aside)
}

fn create(path: &Path) -> rusqlite::Result<()> {
    let mut connection = Connection::open(path)?;
    schema::create(&mut connection)?;
    connection.close().map_err(|(_, error)| error)
}

pub(super) fn remove_if_there(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other,
    }
}

pub(super) fn publish(aside: &Path, database: &Path, folder: &Path) -> io::Result<()> {
    File::open(aside)?.sync_all()?;
    fs::rename(aside, database)?;
    File::open(folder)?.sync_all()
}
