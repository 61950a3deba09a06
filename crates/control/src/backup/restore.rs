//! Puts a backup into a data folder.

use std::fs;
use std::path::Path;

use gangline_base::Timestamp;
use gangline_store::db::{self, HeldFolder};

use super::part::Part;
use super::{Error, JOURNAL, Manifest, OTHERS, make_empty, sync_folder, verify, write};

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
    for part in Part::ALL {
        part.restore(&manifest, backup, data, now)?;
    }
    let given_out = db::given_out(&journal)?;
    for name in there {
        let (path, aside) = (journal.join(name), journal.join(format!("replaced-{}-{name}", now.unix_nanos())));
        fs::rename(&path, aside).map_err(|source| Error::File { path, source })?;
    }
    // The database comes last: until it exists, the folder has no journal.
    for file in manifest.files.iter().rev().filter(|file| Part::of(&file.name).is_none()) {
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
