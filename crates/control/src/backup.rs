//! Backups of a data folder: a verified copy of the journal at one moment, and the other files that a control
//! plane needs to continue, and what tracking keeps. Logs, job folders, checkpoints and metrics (the series store) aren't
//! included.
//!
//! A backup is a folder with the journal, its anchor, the history archive, the snapshots, the secrets, the
//! configuration, and a manifest that lists the files with their BLAKE3 hashes. Archive segments never
//! change, and artifacts don't either, so they are hard-linked where possible. The manifest is written last: a backup without one is
//! incomplete.

use std::fs::{self, DirBuilder, File};
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use gangline_api::TOKEN_FILE;
use gangline_base::{JobId, Timestamp};
use serde::{Deserialize, Serialize};

use crate::secret;
use gangline_store::db::{self, CopyInfo, HeldFolder, Sequence};
use gangline_store::link_or_copy;
use gangline_store::tracking::{Failure, TRACKING_FOLDER, copy_tracking, is_of_tracking};

/// The manifest's file name in a backup.
pub const MANIFEST_FILE: &str = "backup.json";
const VERSION: u32 = 1;
/// Files that a backup has beside the journal, if the data folder has them.
const OTHERS: [&str; 6] =
    [TOKEN_FILE, secret::KEY_FILE, "gangline.toml", "alerts.toml", "alerts.json", "schedules.json"];
const JOURNAL: [&str; 2] = ["journal.sqlite", "journal.anchor"];
/// Journal files that are renamed when a restored journal replaces them.
const REPLACED: [&str; 7] = [
    "journal.sqlite",
    "journal.sqlite-wal",
    "journal.sqlite-shm",
    "journal.anchor",
    "high-water",
    db::HISTORY,
    db::SNAPSHOTS,
];
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
            Error::File { .. } | Error::Tracking(_) => "check that the folder exists, is yours and has room".to_owned(),
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

/// Backs up the data folder `data` into the new folder `to`. The control plane may run meanwhile.
///
/// # Errors
/// Returns an [`Error`]; `to` then has no manifest and doesn't count as a backup.
pub fn backup(data: &Path, to: &Path, now: Timestamp) -> Result<Manifest, Error> {
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
    let tracked = copy_tracking(data, to)?;
    let names = JOURNAL.into_iter().chain(OTHERS).filter(|name| to.join(name).exists());
    let names = names.chain(beside.iter().chain(&tracked).map(String::as_str));
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
        if !(is_plain || is_of_tracking(&file.name)) || describe(backup, &file.name)? != *file {
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

/// Restores a backup into the data folder `data`. With `is_replacing`, an existing journal is renamed first.
/// Job ids given out since the backup was made aren't reused, as far as the data folder still knows them.
///
/// # Errors
/// Returns an [`Error`]; an existing journal then still exists, possibly renamed.
pub fn restore(backup: &Path, data: &Path, is_replacing: bool, now: Timestamp) -> Result<Manifest, Error> {
    let manifest = verify(backup)?;
    let journal = db::journal_folder(data);
    let _held = HeldFolder::hold(&journal)?;
    let there: Vec<&str> = REPLACED.into_iter().filter(|name| journal.join(name).exists()).collect();
    if there.contains(&JOURNAL[0]) && !is_replacing {
        return Err(Error::HasJournal { path: data.to_owned() });
    }
    restore_tracking(&manifest, backup, data, now)?;
    let given_out = db::given_out(&journal)?;
    for name in there {
        let (path, aside) = (journal.join(name), journal.join(format!("replaced-{}-{name}", now.unix_nanos())));
        fs::rename(&path, aside).map_err(|source| Error::File { path, source })?;
    }
    // The database comes last: until it exists, the folder has no journal.
    for file in manifest.files.iter().rev().filter(|file| !is_of_tracking(&file.name)) {
        let is_other = OTHERS.contains(&file.name.as_str());
        let folder = if is_other { data } else { journal.as_path() };
        let (from, to) = (backup.join(&file.name), folder.join(&file.name));
        if is_other && to.exists() {
            continue;
        }
        if let Some(parent) = to.parent().filter(|parent| !parent.exists()) {
            make_empty(parent)?;
        }
        let aside = folder.join(format!("{}.restoring", file.name));
        let bytes = fs::read(&from).map_err(|source| Error::File { path: from, source })?;
        write(&aside, &bytes)?;
        fs::rename(&aside, &to).map_err(|source| Error::File { path: to, source })?;
    }
    if let Some(given_out) = given_out {
        db::raise_given_out(&journal, given_out)?;
    }
    let beside = [db::HISTORY, db::SNAPSHOTS].map(|name| journal.join(name));
    beside.iter().filter(|folder| folder.exists()).try_for_each(|folder| sync_folder(folder))?;
    sync_folder(data)?;
    sync_folder(&journal)?;
    Ok(manifest)
}

/// Restores experiments, models and artifacts, in place of what the data folder has, which is put aside.
fn restore_tracking(manifest: &Manifest, backup: &Path, data: &Path, now: Timestamp) -> Result<(), Error> {
    let files: Vec<&str> =
        manifest.files.iter().map(|file| file.name.as_str()).filter(|name| is_of_tracking(name)).collect();
    if files.is_empty() {
        return Ok(());
    }
    let folder = data.join(TRACKING_FOLDER);
    if folder.exists() {
        let aside = data.join(format!("replaced-{}-{TRACKING_FOLDER}", now.unix_nanos()));
        fs::rename(&folder, aside).map_err(|source| Error::File { path: folder, source })?;
    }
    for name in files {
        let to = data.join(name);
        let parent = to.parent().unwrap_or(data);
        DirBuilder::new()
            .recursive(true)
            .mode(FOLDER_MODE)
            .create(parent)
            .map_err(|source| Error::File { path: parent.to_owned(), source })?;
        // The backup's database is copied, as the control plane is going to change it.
        let restored = if name.ends_with(".db") {
            fs::copy(backup.join(name), &to).and_then(|_| File::open(&to)?.sync_all())
        } else {
            link_or_copy(&backup.join(name), &to)
        };
        restored.map_err(|source| Error::File { path: to, source })?;
    }
    Ok(())
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

#[cfg(test)]
mod tests {
    use super::*;
    use gangline_store::db::{Entry, Journal, Options};
    use gangline_store::ports::{Batch, Changes};

    const NOW: Timestamp = Timestamp::EPOCH;

    fn commit(journal: &mut Journal, number: u64) {
        let records = [Entry { at: NOW, body: number.to_string().into_bytes() }];
        let batch = Batch { records: &records, given_out: JobId(number), changes: Changes::none() };
        journal.commit(batch).expect("there is room");
    }

    fn bodies(folder: &Path) -> Vec<String> {
        let (_, recovered) = Journal::open(folder, Options::default()).expect("it opens");
        recovered.records.iter().map(|record| String::from_utf8_lossy(&record.body).into_owned()).collect()
    }

    #[test]
    fn a_backup_is_whole_while_the_journal_is_written() {
        let parent = tempfile::tempdir().expect("a folder");
        let data = parent.path().join("data");
        let (mut journal, _) = Journal::open(&data, Options::default()).expect("a new journal opens");
        secret::Secrets::open(&data).expect("made");
        commit(&mut journal, 1);
        for round in 0..10_u64 {
            let to = parent.path().join(format!("backup-{round}"));
            let data = &data;
            std::thread::scope(|scope| {
                let taken = scope.spawn(move || backup(data, &to, NOW).map(|manifest| (manifest, to)));
                (0..30).for_each(|number| commit(&mut journal, 2 + round * 30 + number));
                let (manifest, to) = taken.join().expect("no panic").expect("it is whole");
                assert_eq!(verify(&to).expect("it is whole"), manifest);
                let restored = parent.path().join(format!("restored-{round}"));
                restore(&to, &restored, false, NOW).expect("there is room");
                let last = manifest.last_record.0;
                assert_eq!(bodies(&restored), (1..=last).map(|number| number.to_string()).collect::<Vec<_>>());
                assert!(last > round * 30, "as of the moment when it was asked for");
                assert!(restored.join(TOKEN_FILE).exists());
            });
        }
    }

    #[test]
    fn a_backup_holds_experiments_and_artifacts_and_a_restore_puts_the_others_aside() {
        use gangline_store::tracking::{ARTIFACTS_FOLDER, ArtifactStore, NewExperiment, Options, Service};
        use gangline_tracking::UnixMillis;
        let parent = tempfile::tempdir().expect("a folder");
        let data = parent.path().join("data");
        let (mut journal, _) = Journal::open(&data, db::Options::default()).expect("a new journal opens");
        commit(&mut journal, 1);
        let open = |data: &Path| {
            let folder = data.join(TRACKING_FOLDER);
            let service = Service::start(&folder, Options { clock: || NOW }).expect("the folder is writable");
            let artifacts = ArtifactStore::of(folder.join(ARTIFACTS_FOLDER), service.handle(), Default::default());
            artifacts.prepare().expect("the folder is writable");
            (service, artifacts)
        };
        let (service, artifacts) = open(&data);
        let new = NewExperiment { name: "gpt".into(), artifact_location: None, tags: Vec::new() };
        service.handle().write(move |writing| writing.create_experiment(new, UnixMillis(1))).expect("it is kept");
        let mut upload = artifacts.begin("u").expect("an upload");
        upload.write(b"contents").expect("there is room");
        artifacts.put("1/r/artifacts/a".into(), upload, UnixMillis(1)).expect("it is kept");
        let to = parent.path().join("backup");
        let manifest = backup(&data, &to, NOW).expect("it is whole");
        assert_eq!(manifest.files.iter().filter(|file| is_of_tracking(&file.name)).count(), 2);
        service.stop();

        let restored = parent.path().join("restored");
        let (later, _) = open(&restored);
        later.stop();
        restore(&to, &restored, false, NOW).expect("there is room");
        assert!(restored.join("replaced-0-tracking/tracking.db").exists(), "what was there is kept");
        let (service, artifacts) = open(&restored);
        let found = service.handle().read(|reading| reading.experiment_by_name("gpt")).expect("it reads");
        assert!(found.is_some());
        artifacts.read("1/r/artifacts/a").expect("it is there");
        service.stop();
        std::fs::write(to.join(TRACKING_FOLDER).join("tracking.db"), "changed").expect("writable");
        assert!(matches!(verify(&to), Err(Error::Unusable { .. })));
    }

    /// Returns a journal whose oldest records are in the archive.
    fn archived(data: &Path) -> Journal {
        let (mut journal, _) = Journal::open(data, Options::default()).expect("a new journal opens");
        (1..=20).for_each(|number| commit(&mut journal, number));
        journal.write_snapshot(b"state").expect("there is room");
        (21..=25).for_each(|number| commit(&mut journal, number));
        journal.press();
        journal.sync_anchor();
        let order = journal.order_archive().expect("there is something to archive");
        journal.archived(order.carry_out().expect("there is room"));
        journal.tidy().expect("there is room");
        journal
    }

    #[test]
    fn the_history_archive_and_the_snapshots_are_in_a_backup() {
        let parent = tempfile::tempdir().expect("a folder");
        let [data, to, restored] = ["data", "backup", "restored"].map(|name| parent.path().join(name));
        let journal = archived(&data);
        let manifest = backup(&data, &to, NOW).expect("it is whole");
        assert_eq!(manifest.damage, None);
        let names: Vec<&str> = manifest.files.iter().map(|file| file.name.as_str()).collect();
        let beside = ["history/000000000001-000000000020.segment", "snapshots/000000000020.snapshot"];
        assert!(beside.iter().all(|name| names.contains(name)), "{names:?}");
        drop(journal);
        restore(&to, &restored, false, NOW).expect("there is room");
        let (journal, recovered) = Journal::open(&restored, Options::default()).expect("it opens");
        assert_eq!((recovered.snapshot.map(|found| found.sequence), recovered.records.len()), (Some(Sequence(20)), 5));
        let history = journal.reader().history(Sequence::ZERO, 100).expect("it is whole");
        assert_eq!(history.len(), 25);
        drop(journal);
        // A restore replaces all existing files.
        restore(&to, &data, true, NOW).expect("there is room");
        assert!(data.join("replaced-0-history").join(names_of(beside[0])).exists());
        assert!(Journal::open(&data, Options::default()).is_ok());
    }

    fn names_of(path: &str) -> &str {
        path.rsplit('/').next().unwrap_or(path)
    }

    #[test]
    fn a_damaged_segment_is_told_in_its_backup_and_a_changed_one_is_refused() {
        let parent = tempfile::tempdir().expect("a folder");
        let [data, whole, lacking] = ["data", "whole", "lacking"].map(|name| parent.path().join(name));
        drop(archived(&data));
        backup(&data, &whole, NOW).expect("it is whole");
        let segment = "history/000000000001-000000000020.segment";
        let mut bytes = fs::read(data.join(segment)).expect("it is there");
        bytes[30] ^= 1;
        // A new file: the one in the first backup may be a hard link to the original.
        fs::remove_file(data.join(segment)).expect("it is ours");
        fs::write(data.join(segment), &bytes).expect("it is ours");
        verify(&whole).expect("the first isn't touched");
        let manifest = backup(&data, &lacking, NOW).expect("the rest is worth a backup");
        assert!(manifest.damage.as_ref().is_some_and(|damage| damage.contains(segment)), "{:?}", manifest.damage);
        assert_eq!(verify(&lacking).expect("it is what its manifest says"), manifest);
        fs::remove_file(whole.join(segment)).expect("it is ours");
        assert!(matches!(verify(&whole), Err(Error::File { .. })));
        fs::write(whole.join(segment), &bytes).expect("it is ours");
        assert!(matches!(verify(&whole), Err(Error::Unusable { .. })));
    }

    #[test]
    fn a_journal_that_is_there_is_put_aside_only_when_asked_and_its_ids_stay_used() {
        let parent = tempfile::tempdir().expect("a folder");
        let (data, to) = (parent.path().join("data"), parent.path().join("backup"));
        let (mut journal, _) = Journal::open(&data, Options::default()).expect("a new journal opens");
        commit(&mut journal, 1);
        backup(&data, &to, NOW).expect("it is whole");
        commit(&mut journal, 2);
        assert!(matches!(restore(&to, &data, true, NOW), Err(Error::Journal(db::Error::InUse { .. }))));
        drop(journal);
        assert!(matches!(restore(&to, &data, false, NOW), Err(Error::HasJournal { .. })));
        assert!(matches!(backup(&data, &to, NOW), Err(Error::NotEmpty { .. })));
        restore(&to, &data, true, NOW).expect("there is room");
        let (_, recovered) = Journal::open(&data, Options::default()).expect("it opens");
        assert_eq!((recovered.records.len(), recovered.given_out), (1, Some(JobId(2))));
        assert!(data.join("replaced-0-journal.sqlite").exists());
    }

    #[test]
    fn what_was_changed_or_cut_off_is_no_backup() {
        let parent = tempfile::tempdir().expect("a folder");
        let (data, to) = (parent.path().join("data"), parent.path().join("backup"));
        let (mut journal, _) = Journal::open(&data, Options::default()).expect("a new journal opens");
        commit(&mut journal, 1);
        backup(&data, &to, NOW).expect("it is whole");
        let path = to.join(JOURNAL[0]);
        let mut bytes = fs::read(&path).expect("it is there");
        let middle = bytes.len() / 2;
        bytes[middle] ^= 1;
        fs::write(&path, &bytes).expect("it is ours");
        assert!(matches!(verify(&to), Err(Error::Unusable { .. })));
        assert!(matches!(restore(&to, &parent.path().join("new"), false, NOW), Err(Error::Unusable { .. })));
        assert!(!parent.path().join("new").exists());
        fs::remove_file(to.join(MANIFEST_FILE)).expect("it is ours");
        assert!(matches!(verify(&to), Err(Error::File { .. })));
    }
}
