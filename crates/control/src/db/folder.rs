//! The data folder: who holds it, and how a new database comes to be there whole or not at all.

use std::fs::{self, DirBuilder, File, OpenOptions, TryLockError};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use gangline_execution::files::write_durably;
use rusqlite::Connection;

use super::anchor::Anchored;
use super::network::refuse_network;
use super::{Error, Sequence, schema};

pub(super) const DATABASE: &str = "journal.sqlite";
const WRITE_AHEAD_LOG: &str = "journal.sqlite-wal";
const NEW_DATABASE: &str = "journal.sqlite.new";
const LOCK: &str = "lock";
/// Attempts' folders, in the data folder: there are some only once a journal was.
const JOBS: &str = "jobs";
/// In a data folder whose journal is elsewhere: where.
const LOCATION: &str = "journal.location";

/// The longest process id that is read from a lock file.
const PID_BYTES_MAX: u64 = 20;

/// Tries to take the lock, and the pause between two of them.
const LOCK_TRIES: u32 = 20;
const LOCK_PAUSE: Duration = Duration::from_millis(10);

/// Only the owner may look: the folder holds tokens and environment variables.
pub(super) const FOLDER_MODE: u32 = 0o700;
pub(super) const FILE_MODE: u32 = 0o600;

/// A data folder held by this process. Dropping it, or dying, lets go.
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
        // The id is a courtesy to whoever is refused: a disk too full to hold it must not keep a control plane down.
        let _ = lock.set_len(0).and_then(|()| writeln!(lock, "{}", std::process::id()));
        Ok(HeldFolder { path: path.to_owned(), _lock: lock })
    }

    /// Where it is.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// The database file.
    pub(super) fn database(&self) -> PathBuf {
        self.path.join(DATABASE)
    }

    /// Copies the write-ahead log, if it holds anything, before it is opened for a start that may give up a loss: frames after a damaged
    /// one are overwritten by the next commits, and may be all that is left of the lost records. Returns the copy.
    pub(super) fn keep_log_aside(&self) -> Result<Option<PathBuf>, Error> {
        let log = self.path.join(WRITE_AHEAD_LOG);
        if fs::metadata(&log).map_or(true, |found| found.len() == 0) {
            return Ok(None);
        }
        let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let aside = self.path.join(format!("{WRITE_AHEAD_LOG}.lost-{}", since.as_nanos()));
        let copied = fs::copy(&log, &aside).and_then(|_| File::open(&aside)?.sync_all());
        copied.map_err(|source| Error::Folder { path: aside.clone(), source })?;
        Ok(Some(aside))
    }

    /// Makes sure that there is a database. A new one is written aside and renamed, so that an empty or half-made file is
    /// always damage and never taken for a fresh start.
    ///
    /// One that is gone although its anchor says that it had records is a loss, which has to be accepted.
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

/// Takes the lock, and tries for a moment: a process that the last holder has just started still shares the holder's files, and
/// with them the lock, until it executes its own program.
fn patiently(lock: &File) -> Result<(), TryLockError> {
    for _ in 1..LOCK_TRIES {
        match lock.try_lock() {
            Err(TryLockError::WouldBlock) => std::thread::sleep(LOCK_PAUSE),
            other => return other,
        }
    }
    lock.try_lock()
}

/// Where the journal of a data folder is: in the folder itself, or where the folder says.
#[must_use]
pub fn journal_folder(data: &Path) -> PathBuf {
    let elsewhere = fs::read_to_string(data.join(LOCATION)).ok().filter(|_| !data.join(DATABASE).exists());
    // Within the data folder it is said relative to that, so that it is found wherever both are moved to.
    elsewhere.map_or_else(|| data.to_owned(), |text| data.join(text.trim_end_matches('\n')))
}

/// Says in the data folder that its journal is in the folder `wanted`, and returns that one. Backups and simulations find the
/// journal by this.
///
/// # Errors
/// [`Error::JournalElsewhere`] if the data folder's journal is in another folder; [`Error::JournalGone`]; [`Error::Folder`].
pub fn place_journal(data: &Path, wanted: &Path) -> Result<PathBuf, Error> {
    let found = journal_folder(data);
    let has_one = data.join(DATABASE).exists() || data.join(LOCATION).exists();
    // A folder that was moved names a place where nothing is; where its journal is now somebody has to say.
    let was_moved = !found.join(DATABASE).exists() && wanted.join(DATABASE).exists();
    if has_one && found != wanted && !was_moved {
        return Err(Error::JournalElsewhere { data: data.to_owned(), found, wanted: wanted.to_owned() });
    }
    if found == wanted {
        // A new journal there would give ids out again.
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
    write_durably(&path, format!("{}\n", said.display()).as_bytes()).map_err(refused)?;
    Ok(wanted.to_owned())
}

/// Makes the names in a folder durable, and the folder's own.
pub(super) fn sync_with_parent(folder: &Path) -> io::Result<()> {
    File::open(folder)?.sync_all()?;
    File::open(folder.parent().unwrap_or(Path::new(".")))?.sync_all()
}

/// The names in a folder; none if there is no such folder.
pub(super) fn names(folder: &Path) -> Result<Vec<String>, Error> {
    let refused = |source| Error::Folder { path: folder.to_owned(), source };
    let entries = match fs::read_dir(folder) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries.map_err(refused)?,
    };
    let name = |entry: io::Result<fs::DirEntry>| Ok(entry.map_err(refused)?.file_name().to_string_lossy().into_owned());
    entries.map(name).collect()
}

/// What a file in the making ends in; a crash may leave one.
pub(super) const UNFINISHED: &str = "writing";

/// Removes what crashes left in a folder.
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

/// A new, empty database beside the place of the folder's own.
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
