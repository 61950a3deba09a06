//! Errors of the data folder and the journal, with advice for the user.

use std::io;
use std::path::{Path, PathBuf};

use gangline_base::{Bytes, JobId};
use rusqlite::ErrorCode;
use rusqlite::ffi::SQLITE_IOERR_SHMSIZE;

use super::row::damaged_row;
use super::{DamagedRow, Sequence};

/// The reason why the journal can't be opened, read or written.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Another control plane holds this folder.
    #[error("data folder {} is in use by {}", folder.display(), holder(*pid))]
    InUse {
        /// The folder.
        folder: PathBuf,
        /// The process that holds it, if known.
        pid: Option<u32>,
    },
    /// The folder or a file in it cannot be created, opened or locked.
    #[error("cannot use {}", path.display())]
    Folder {
        /// The folder or file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The folder is on a file system that can't hold a journal.
    #[error("the journal can't be in {}: it is on {kind}, a network file system", path.display())]
    NetworkFolder {
        /// The folder.
        path: PathBuf,
        /// The file system's name.
        kind: &'static str,
    },
    /// The data folder had jobs and names a place for its journal, but no journal is there.
    #[error("the journal of data folder {} is said to be in {}, and there is none", data.display(), found.display())]
    JournalGone {
        /// The data folder.
        data: PathBuf,
        /// The folder where the journal should be.
        found: PathBuf,
    },
    /// The data folder's journal is in another folder than the given one.
    #[error("the journal of data folder {} is in {}, not in {}", data.display(), found.display(), wanted.display())]
    JournalElsewhere {
        /// The data folder.
        data: PathBuf,
        /// The folder with the journal.
        found: PathBuf,
        /// The given folder.
        wanted: PathBuf,
    },
    /// The database file is not a database, is cut short or is scrambled.
    #[error("journal {} is damaged: {what}", path.display())]
    Damaged {
        /// The database file.
        path: PathBuf,
        /// The defect.
        what: String,
    },
    /// A record that is not the last one is missing or fails its checksum.
    #[error("journal is corrupt at record {at}: {what}; the last sound record is {last_sound}")]
    Corrupt {
        /// The first record that cannot be trusted.
        at: Sequence,
        /// The record before it.
        last_sound: Sequence,
        /// The defect.
        what: &'static str,
    },
    /// Committed records are missing: the journal ends before the record that its anchor names, or has
    /// another record there.
    #[error("journal {} {}", path.display(), lost(*last, *anchored, *given_out))]
    TailLost {
        /// The database file.
        path: PathBuf,
        /// The last existing record.
        last: Sequence,
        /// The last record that was committed.
        anchored: Sequence,
        /// The highest job id given out by then.
        given_out: JobId,
    },
    /// A segment of the history archive is missing or damaged. Only readers of the whole history need it.
    #[error("the history of records {first} to {last} can't be read from {}: {what}", path.display())]
    History {
        /// The segment's file.
        path: PathBuf,
        /// The first record that it has, or should have.
        first: Sequence,
        /// The last.
        last: Sequence,
        /// The defect.
        what: &'static str,
    },
    /// A newer Gangline wrote this data folder.
    #[error("data folder has schema {found}, this gangline knows up to {known}")]
    NewerSchema {
        /// The file's version.
        found: u32,
        /// The newest version that this program can read.
        known: u32,
    },
    /// A row of a read model is damaged; other rows are unaffected.
    #[error(transparent)]
    Row(DamagedRow),
    /// The disk, or the journal's own limit, has no room left.
    #[error("no space left for journal {}", path.display())]
    DiskFull {
        /// The database file.
        path: PathBuf,
        /// SQLite's error.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// An earlier commit failed, so nothing more is written.
    #[error("journal is poisoned since an earlier failure: {cause}")]
    Poisoned {
        /// The earlier failure.
        cause: String,
    },
    /// Another failure to read or write: an I/O error, a failed fsync, an error in a read model.
    #[error("cannot read or write journal {}", path.display())]
    Storage {
        /// The database file.
        path: PathBuf,
        /// SQLite's error.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// A record, batch or snapshot is larger than allowed.
    #[error("{what} of {size} is over the limit of {limit}")]
    TooLarge {
        /// The name of the item.
        what: &'static str,
        /// The item's size.
        size: Bytes,
        /// The largest allowed size.
        limit: Bytes,
    },
}

fn holder(pid: Option<u32>) -> String {
    pid.map_or_else(|| "another process".to_owned(), |pid| format!("process {pid}"))
}

fn lost(last: Sequence, anchored: Sequence, given_out: JobId) -> String {
    let what = if last < anchored {
        format!("lost its tail: it ends at record {last}, but record {anchored} had been committed")
    } else {
        format!("isn't the one that its anchor was written for: record {anchored} is another; it ends at record {last}")
    };
    format!("{what}, and job ids up to {given_out} had been given out")
}

impl Error {
    /// Returns the stable code, explained in `docs/errors/`.
    #[must_use]
    pub fn code(&self) -> &'static str {
        match self {
            Error::InUse { .. } => "G0201",
            Error::Folder { .. } => "G0202",
            Error::Damaged { .. } => "G0203",
            Error::Corrupt { .. } => "G0204",
            Error::NewerSchema { .. } => "G0205",
            Error::DiskFull { .. } => "G0206",
            Error::Poisoned { .. } => "G0207",
            Error::Storage { .. } => "G0208",
            Error::TooLarge { .. } => "G0209",
            Error::Row(_) => "G0213",
            Error::TailLost { .. } => "G0210",
            Error::History { .. } => "G0215",
            Error::NetworkFolder { .. } | Error::JournalElsewhere { .. } | Error::JournalGone { .. } => "G0212",
        }
    }

    /// Returns advice for the user.
    #[must_use]
    pub fn hint(&self) -> String {
        match self {
            Error::InUse { .. } => {
                "stop the other control plane, or give this one its own folder with --data".to_owned()
            }
            Error::Folder { .. } => "check that the folder exists, is yours and is on a local disk".to_owned(),
            Error::NetworkFolder { .. } => {
                "keep the data folder there if other machines need it, and put the journal on a \
                 local disk of the machine that runs the control plane: --journal /var/lib/gangline"
                    .to_owned()
            }
            Error::JournalGone { data, .. } => format!(
                "if the journal was moved, start with --journal and its new folder, which {0}/journal.location is then changed to; \
                 if its disk isn't mounted, mount it; if it is lost, restore the data folder from a backup",
                data.display()
            ),
            Error::JournalElsewhere { data, found, wanted } => format!(
                "leave --journal out; or stop the control plane, move journal.sqlite, journal.sqlite-wal (if it is there), \
                 journal.anchor, high-water, history and snapshots from {} to {}, and remove {}/journal.location if it is there",
                found.display(),
                wanted.display(),
                data.display()
            ),
            Error::Damaged { .. } => {
                "run gangline rebuild: what isn't the journal itself is made again from it; if that refuses too, restore the \
                 data folder from a backup, or run gangline rebuild --from-history, which says what is lost; the damaged files were not changed"
                    .to_owned()
            }
            Error::Corrupt { last_sound, .. } => format!(
                "restore the data folder from a backup, or start with --accept-loss-after {} to put the records after \
                 it aside and go on without them",
                last_sound.0
            ),
            Error::TailLost { last, .. } => format!(
                "restore the data folder from a backup that has these records, or start with --accept-loss-after {} to \
                 go on without them: what was acknowledged in them is lost, and no id of theirs is given out again",
                last.0
            ),
            Error::History { first, .. } => format!(
                "put the file back from a backup, whose folder history has it under the same name; a control plane starts and \
                 runs without it, unless it has no sound snapshot: then --accept-loss-after {} goes on with what is before",
                first.0 - 1
            ),
            Error::NewerSchema { .. } => {
                "start the gangline that wrote it, or a newer one; going back is not possible".to_owned()
            }
            Error::DiskFull { .. } => {
                "make room on the disk, or restart the control plane with a higher --journal-max; jobs go on".to_owned()
            }
            Error::Poisoned { .. } => {
                "repair the cause: the control plane then replays what is durable and goes on; jobs go on meanwhile"
                    .to_owned()
            }
            Error::Storage { .. } => "look at the disk (dmesg, smartctl), then restart the control plane".to_owned(),
            Error::Row(_) => {
                "look at the disk (dmesg, smartctl); other jobs are shown as ever; gangline rebuild makes the row again while \
                 the control plane is down"
                    .to_owned()
            }
            Error::TooLarge { .. } => "make it smaller: split the request".to_owned(),
        }
    }

    /// Classifies SQLite's errors by what a caller can do about them.
    pub(super) fn from_sqlite(path: &Path, source: rusqlite::Error) -> Error {
        if let Some(row) = damaged_row(&source) {
            return Error::Row(row.clone());
        }
        let path = path.to_owned();
        match source.sqlite_error_code() {
            Some(ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase) => {
                Error::Damaged { path, what: source.to_string() }
            }
            Some(ErrorCode::DiskFull) => Error::DiskFull { path, source: source.into() },
            // On a full disk the shared-memory index can't grow, for which SQLite has a code of its own.
            _ if has_extended_code(&source, SQLITE_IOERR_SHMSIZE) => Error::DiskFull { path, source: source.into() },
            _ => Error::Storage { path, source: source.into() },
        }
    }
}

fn has_extended_code(error: &rusqlite::Error, code: i32) -> bool {
    error.sqlite_error().is_some_and(|inner| inner.extended_code == code)
}
