//! Removes copies that no job needs any more.
//!
//! An unpacked copy is needed while its job lives, and as long as files of its attempts are kept. A copy is needed
//! while a live job names it, while it is unpacked somewhere, and for a day after it was taken: the job that it was
//! taken for may not be in the journal yet. A content is needed by the copies that have it.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::Duration;

use gangline_base::Timestamp;

use super::FOLDER;
use super::tree::{Tree, remove_all};

/// A copy stays for so long after it was taken, whoever uses it.
const YOUNG: Duration = Duration::from_hours(24);

/// What was removed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Pruned {
    pub(crate) unpacked: u64,
    pub(crate) copies: u64,
    pub(crate) contents: u64,
}

/// Removes what nobody needs. `live` are the live jobs and their copies.
///
/// # Errors
/// The first failure; a later pass goes on.
pub(crate) fn prune(data: &Path, live: &BTreeSet<(String, String)>, now: Timestamp) -> io::Result<Pruned> {
    let code = data.join(FOLDER);
    let mut pruned = Pruned::default();
    let mut needed: BTreeSet<String> = live.iter().map(|(_, tree)| tree.clone()).collect();
    for job in names(&code.join("jobs"))? {
        let folder = code.join("jobs").join(&job);
        let is_live = live.iter().any(|(live, _)| *live == job);
        if is_live || data.join("jobs").join(&job).exists() {
            needed.extend(names(&folder)?);
        } else {
            remove_all(&folder)?;
            pruned.unpacked += 1;
        }
    }
    let mut contents = BTreeSet::new();
    for tree in names(&code.join("trees"))? {
        let list = code.join("trees").join(&tree);
        if needed.contains(&tree) || is_young(&list, now)? {
            // Of a list that can't be read, nothing is known to be needed; its job is told when it starts.
            let kept = Tree::load(&code, &tree).ok();
            contents.extend(kept.iter().flat_map(Tree::contents).map(str::to_owned));
        } else {
            fs::remove_file(&list)?;
            pruned.copies += 1;
        }
    }
    for first in names(&code.join("contents"))? {
        let folder = code.join("contents").join(&first);
        for rest in names(&folder)? {
            let place = folder.join(&rest);
            if !contents.contains(&format!("{first}{rest}")) && !is_young(&place, now)? {
                fs::remove_file(&place)?;
                pruned.contents += 1;
            }
        }
    }
    // A clone is removed by who made it, unless the control plane was killed meanwhile.
    for name in names(&code.join("clones"))? {
        let clone = code.join("clones").join(&name);
        if !is_young(&clone, now)? {
            remove_all(&clone)?;
        }
    }
    for name in names(&code.join("commits"))? {
        let place = code.join("commits").join(&name);
        let tree = fs::read_to_string(&place)?;
        if !code.join("trees").join(tree).exists() {
            fs::remove_file(&place)?;
        }
    }
    Ok(pruned)
}

fn is_young(path: &Path, now: Timestamp) -> io::Result<bool> {
    let taken = u64::try_from(path.metadata()?.mtime()).unwrap_or_default();
    Ok(now.since(Timestamp::from_unix_nanos(taken.saturating_mul(1_000_000_000))) < YOUNG)
}

/// Returns the names in a folder, none if it isn't there.
fn names(folder: &Path) -> io::Result<Vec<String>> {
    let entries = match fs::read_dir(folder) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries?,
    };
    let names = entries.map(|entry| Ok(entry?.file_name().into_string().unwrap_or_default()));
    let names: io::Result<Vec<String>> = names.collect();
    Ok(names?.into_iter().filter(|name| !name.is_empty()).collect())
}
