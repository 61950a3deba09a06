//! Backups of a data folder: a verified copy of the journal at one moment, and the other files that a control
//! plane needs to continue, what tracking keeps, metrics, jobs' code and templates. Logs, job folders and checkpoints aren't
//! included.
//!
//! A backup is a folder with the journal, its anchor, the history archive, the snapshots, the secrets, the
//! configuration, and a manifest that lists the files with their BLAKE3 hashes. Archive segments never
//! change, and artifacts and segments of metrics don't either, so they are hard-linked where possible. The manifest is written last: a backup without one is
//! incomplete.

mod part;
mod restore;
#[cfg(test)]
mod tests;

use std::fs::{self, DirBuilder, File};
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use gangline_api::TOKEN_FILE;
use gangline_base::{JobId, Timestamp};
use serde::{Deserialize, Serialize};

use crate::secret;
use gangline_store::db::{self, CopyInfo, Sequence};
use gangline_store::tracking::Failure;
use gangline_telemetry::series;
use part::Part;

pub use part::{SERIES_FOLDER, TEMPLATES_FOLDER};
pub use restore::restore;

/// The manifest's file name in a backup.
pub const MANIFEST_FILE: &str = "backup.json";
const VERSION: u32 = 1;
/// Files that a backup has beside the journal, if the data folder has them.
const OTHERS: [&str; 6] =
    [TOKEN_FILE, secret::KEY_FILE, "gangline.toml", "alerts.toml", "alerts.json", "schedules.json"];
const JOURNAL: [&str; 2] = ["journal.sqlite", "journal.anchor"];
const FOLDER_MODE: u32 = 0o700;
const FILE_MODE: u32 = 0o600;

/// The contents of a backup.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Manifest {
    /// The format's version.
    pub v: u32,
    /// The version of the Gangline that made the backup.
    pub gangline: String,
    /// When the backup was made.
    pub taken_at: Timestamp,
    /// The data folder that was backed up.
    pub data_folder: PathBuf,
    /// The journal's last record.
    pub last_record: Sequence,
    /// The highest job id given out by then.
    pub last_job: JobId,
    /// The part of the history that couldn't be read when the backup was made, if any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub damage: Option<String>,
    /// The backup's files.
    pub files: Vec<BackupFile>,
}

/// One file of a backup.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BackupFile {
    /// The file's path, relative to the backup.
    pub name: String,
    /// The file's size in bytes.
    pub bytes: u64,
    /// The BLAKE3 hash of the file, in hexadecimal digits.
    pub blake3: String,
}

/// The reason why a backup or a restore failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The journal is damaged, or can't be read or written.
    #[error(transparent)]
    Journal(#[from] db::Error),
    /// Experiments and models can't be read or copied.
    #[error("experiments and models can't be copied")]
    Tracking(#[from] Failure),
    /// Metrics can't be read or copied.
    #[error("metrics can't be copied")]
    Metrics(#[from] series::Error),
    /// A file or folder can't be read or written.
    #[error("cannot use {}", path.display())]
    File {
        /// The file or folder.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The folder for the backup isn't empty.
    #[error("{} is there already and isn't empty", path.display())]
    NotEmpty {
        /// The folder.
        path: PathBuf,
    },
    /// The data folder has a journal already.
    #[error("the data folder {} has a journal already", path.display())]
    HasJournal {
        /// The folder.
        path: PathBuf,
    },
    /// The backup doesn't match its manifest.
    #[error("backup {} can't be used: {what}", path.display())]
    Unusable {
        /// The backup's folder.
        path: PathBuf,
        /// The mismatch.
        what: String,
    },
}

impl Error {
    /// Returns the stable code, explained in `docs/errors/`.
    #[must_use]
    pub fn code(&self) -> &'static str {
        match self {
            Error::Journal(error) => error.code(),
            _ => "G0211",
        }
    }

    /// Returns advice for the user.
    #[must_use]
    pub fn hint(&self) -> String {
        match self {
            Error::Journal(error) => error.hint(),
            Error::File { .. } | Error::Tracking(_) | Error::Metrics(_) => {
                "check that the folder exists, is yours and has room".to_owned()
            }
            Error::NotEmpty { .. } => {
                "name a folder that doesn't exist yet, such as one named after the day".to_owned()
            }
            Error::HasJournal { .. } => {
                "stop its control plane and add --replace: the journal that is there is put aside, not deleted"
                    .to_owned()
            }
            Error::Unusable { .. } => "take another backup; this one was cut off or has been changed".to_owned(),
        }
    }
}

/// Backs up the data folder `data` into the new folder `to`, with or without metrics. The control plane may run meanwhile.
///
/// # Errors
/// Returns an [`Error`]; `to` then has no manifest and doesn't count as a backup.
pub fn backup(data: &Path, to: &Path, has_metrics: bool, now: Timestamp) -> Result<Manifest, Error> {
    make_empty(to)?;
    let CopyInfo { last, given_out, files: beside, damage } = db::copy(&db::journal_folder(data), to)?;
    for name in OTHERS {
        let from = data.join(name);
        match fs::read(&from) {
            Ok(bytes) => write(&to.join(name), &bytes)?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(source) => return Err(Error::File { path: from, source }),
        }
    }
    let mut parts = Vec::new();
    for part in Part::ALL.into_iter().filter(|part| has_metrics || *part != Part::Series) {
        parts.extend(part.copy(data, to)?);
    }
    let names = JOURNAL.into_iter().chain(OTHERS).filter(|name| to.join(name).exists());
    let names = names.chain(beside.iter().chain(&parts).map(String::as_str));
    let manifest = Manifest {
        v: VERSION,
        gangline: env!("CARGO_PKG_VERSION").to_owned(),
        taken_at: now,
        data_folder: data.to_owned(),
        last_record: last,
        last_job: given_out,
        damage,
        files: names.map(|name| describe(to, name)).collect::<Result<_, _>>()?,
    };
    let text = serde_json::to_vec_pretty(&manifest).expect("a manifest has string keys only");
    write(&to.join(MANIFEST_FILE), &text)?;
    sync_folder(to)?;
    Ok(manifest)
}

/// Verifies a backup: its files against its manifest, and each record of its journal.
///
/// # Errors
/// Returns an [`Error`] that names the first defect.
pub fn verify(backup: &Path) -> Result<Manifest, Error> {
    let unusable = |what: String| Error::Unusable { path: backup.to_owned(), what };
    let path = backup.join(MANIFEST_FILE);
    let text = fs::read(&path).map_err(|source| Error::File { path, source })?;
    let manifest: Manifest =
        serde_json::from_slice(&text).map_err(|error| unusable(format!("{MANIFEST_FILE}: {error}")))?;
    if manifest.v != VERSION {
        return Err(unusable(format!("it has version {}, this gangline knows {VERSION}", manifest.v)));
    }
    for file in &manifest.files {
        let is_plain = JOURNAL.iter().chain(&OTHERS).any(|name| *name == file.name) || db::is_beside(&file.name);
        if !(is_plain || Part::of(&file.name).is_some()) || describe(backup, &file.name)? != *file {
            return Err(unusable(format!("{} isn't what the manifest says", file.name)));
        }
    }
    let found = db::verify(backup)?;
    let is_damaged = |damage: &Option<String>| damage.is_some();
    let known = (manifest.last_record, manifest.last_job, is_damaged(&manifest.damage));
    if (found.last, found.given_out, is_damaged(&found.damage)) != known {
        return Err(unusable("its journal isn't the one that the manifest describes".to_owned()));
    }
    Ok(manifest)
}

fn make_empty(folder: &Path) -> Result<(), Error> {
    let refused = |source| Error::File { path: folder.to_owned(), source };
    DirBuilder::new().recursive(true).mode(FOLDER_MODE).create(folder).map_err(refused)?;
    if fs::read_dir(folder).map_err(refused)?.next().is_some() {
        return Err(Error::NotEmpty { path: folder.to_owned() });
    }
    Ok(())
}

fn describe(folder: &Path, name: &str) -> Result<BackupFile, Error> {
    let path = folder.join(name);
    let mut hasher = blake3::Hasher::new();
    let copied = File::open(&path).and_then(|mut file| io::copy(&mut file, &mut hasher));
    let bytes = copied.map_err(|source| Error::File { path, source })?;
    Ok(BackupFile { name: name.to_owned(), bytes, blake3: hasher.finalize().to_hex().to_string() })
}

/// Writes a file durably, readable by its owner only.
fn write(path: &Path, bytes: &[u8]) -> Result<(), Error> {
    let refused = |source| Error::File { path: path.to_owned(), source };
    let mut options = fs::OpenOptions::new();
    let file = options.write(true).create(true).truncate(true).mode(FILE_MODE).open(path);
    let mut file = file.map_err(refused)?;
    file.write_all(bytes).and_then(|()| file.sync_all()).map_err(refused)
}

fn sync_folder(folder: &Path) -> Result<(), Error> {
    let synced = File::open(folder).and_then(|folder| folder.sync_all());
    synced.map_err(|source| Error::File { path: folder.to_owned(), source })
}
