//! Sorts the checkpoints of a folder by the heads of their manifests into those on the line of the current
//! branch, from which training may resume, and abandoned ones.
//!
//! The current branch is that of the newest save. A small file also names it (`.gangline/branch.json`): if
//! all saves of a branch are damaged or removed, training resumes from where the branch forked, and never on
//! an abandoned branch.

use std::collections::BTreeMap;
use std::fs::Metadata;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;

use gangline_base::{Step, Timestamp};
use gangline_objects::modified;
use serde::{Deserialize, Serialize};

use crate::disk::Disk;
use crate::lineage::{Line, Lineage, Moment, Origin};
use crate::manifest::{MANIFEST_MAGIC, read_sealed, seal};
use crate::prune::list_steps;
use crate::{Branch, Error, Flaw, layout};

/// The magic of the file that names the current branch.
const CURRENT_MAGIC: &str = "gangline-current-branch";
/// The version of its format.
const CURRENT_VERSION: u32 = 1;

/// The description of a checkpoint without its tensors.
#[derive(Clone, Debug)]
pub(crate) struct Head {
    pub(crate) lineage: Lineage,
    pub(crate) saved_at: Timestamp,
    pub(crate) bytes: u64,
    pub(crate) metadata: BTreeMap<String, String>,
    pub(crate) moment: Moment,
}

/// A checkpoint's folder.
#[derive(Clone, Debug)]
pub(crate) struct HistoryEntry {
    pub(crate) step: u64,
    /// None if the manifest is missing or damaged.
    pub(crate) head: Option<Arc<Head>>,
}

impl HistoryEntry {
    /// Returns its branch, if the manifest can be read.
    pub(crate) fn branch(&self) -> Option<Branch> {
        self.head.as_ref().map(|head| head.lineage.line.branch)
    }
}

/// The checkpoints of a folder, sorted.
#[derive(Clone, Debug, Default)]
pub(crate) struct History {
    /// The current branch and the branches it came from.
    pub(crate) line: Line,
    /// The order of the newest known save, if there is any.
    pub(crate) newest: u64,
    /// The checkpoints on the line, oldest first. A checkpoint with an unreadable manifest counts as on the
    /// line, at its step.
    pub(crate) on: Vec<HistoryEntry>,
    /// The abandoned checkpoints, oldest first.
    pub(crate) off: Vec<HistoryEntry>,
}

/// The members of a manifest that are read.
#[derive(Deserialize)]
struct ManifestHead {
    step: u64,
    bytes: u64,
    metadata: BTreeMap<String, String>,
    #[serde(default)]
    lineage: Option<Lineage>,
}

/// The content of the file that names the current branch.
#[derive(Serialize, Deserialize)]
struct Current {
    magic: String,
    version: u32,
    /// The order of the save that began the branch.
    order: u64,
    line: Line,
}

/// Distinguishes one manifest from another under the same name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Stamp {
    inode: u64,
    bytes: u64,
    modified: (i64, i64),
}

impl Stamp {
    fn of(file: &Metadata) -> Stamp {
        Stamp { inode: file.ino(), bytes: file.len(), modified: (file.mtime(), file.mtime_nsec()) }
    }
}

/// A cache of the heads, so that each manifest is read once.
#[derive(Debug, Default)]
pub(crate) struct Heads {
    known: BTreeMap<u64, (Stamp, Option<Arc<Head>>)>,
}

impl Heads {
    /// Reads the history of a folder.
    pub(crate) fn history(&mut self, root: &Path) -> Result<History, Error> {
        let current = read_current(root)?;
        let steps = list_steps(root)?;
        self.known.retain(|step, _| steps.binary_search(step).is_ok());
        let mut seen = Vec::with_capacity(steps.len());
        for step in steps {
            seen.extend(self.look(root, step)?);
        }
        Ok(History::of(seen, current.map(|current| (current.order, current.line))))
    }

    /// Reads one checkpoint's head; returns none if the checkpoint is gone meanwhile.
    fn look(&mut self, root: &Path, step: u64) -> Result<Option<HistoryEntry>, Error> {
        let folder = root.join(layout::checkpoint_folder(step));
        let path = folder.join(layout::MANIFEST);
        let file = match std::fs::metadata(&path) {
            Ok(file) => file,
            Err(_) if !folder.is_dir() => return Ok(None),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Ok(Some(HistoryEntry { step, head: None }));
            }
            Err(error) => match Error::reading(&path, error) {
                Error::Corrupt { .. } => return Ok(Some(HistoryEntry { step, head: None })),
                error => return Err(error),
            },
        };
        let stamp = Stamp::of(&file);
        if let Some((known, head)) = self.known.get(&step)
            && *known == stamp
        {
            return Ok(Some(HistoryEntry { step, head: head.clone() }));
        }
        let head = match read_head(&path, step, &file) {
            Ok(head) => Some(Arc::new(head)),
            Err(Error::Corrupt { flaw: Flaw::Missing, .. }) if !folder.is_dir() => return Ok(None),
            Err(Error::Corrupt { .. }) => None,
            Err(error) => return Err(error),
        };
        self.known.insert(step, (stamp, head.clone()));
        Ok(Some(HistoryEntry { step, head }))
    }
}

fn read_head(path: &Path, step: u64, file: &Metadata) -> Result<Head, Error> {
    let ManifestHead { step: found, bytes, metadata, lineage } = read_sealed(path, MANIFEST_MAGIC)?;
    let fault = lineage.as_ref().and_then(Lineage::fault);
    if let Some(what) = fault.or((found != step).then_some("it is of another step")) {
        return Err(Error::corrupt(path, Flaw::Malformed { what }));
    }
    let saved_at = lineage.as_ref().map_or_else(|| modified(file), Lineage::saved_at);
    let lineage = lineage.unwrap_or_default();
    let moment = Moment { order: lineage.order, step };
    Ok(Head { lineage, saved_at, bytes, metadata, moment })
}

/// Returns the origin of a checkpoint from which training resumes.
///
/// # Errors
/// [`Error::NotFound`]; [`Error::Corrupt`] if its manifest isn't what was saved.
pub(crate) fn origin(root: &Path, step: Step) -> Result<Origin, Error> {
    let folder = root.join(layout::checkpoint_folder(step.0));
    let path = folder.join(layout::MANIFEST);
    if !folder.is_dir() {
        return Err(Error::NotFound { step });
    }
    let file = std::fs::metadata(&path).map_err(|source| Error::reading(&path, source))?;
    let head = read_head(&path, step.0, &file)?;
    Ok(Origin { line: head.lineage.line, last: head.moment })
}

impl History {
    fn of(seen: Vec<HistoryEntry>, current: Option<(u64, Line)>) -> History {
        let newest = seen.iter().filter_map(|seen| seen.head.as_ref()).max_by_key(|head| head.moment);
        let newest = newest.map(|head| (head.moment.order, head.lineage.line.clone()));
        let (newest, line) = newest.into_iter().chain(current).max_by_key(|(order, _)| *order).unwrap_or_default();
        let mut history = History { line, newest, ..History::default() };
        let mut unknown = Vec::new();
        for seen in seen {
            match &seen.head {
                None => unknown.push(seen),
                Some(head) if history.line.holds(head.lineage.line.branch, head.moment) => history.on.push(seen),
                Some(_) => history.off.push(seen),
            }
        }
        let moment = |seen: &HistoryEntry| seen.head.as_ref().map(|head| head.moment);
        history.on.sort_by_key(moment);
        history.off.sort_by_key(moment);
        for seen in unknown {
            let at = history.on.iter().rposition(|other| other.step < seen.step).map_or(0, |index| index + 1);
            history.on.insert(at, seen);
        }
        history
    }

    /// Returns the newest save on the line.
    pub(crate) fn tip(&self) -> Option<&HistoryEntry> {
        self.on.last()
    }

    /// Returns the checkpoint of a step, on the line or abandoned.
    pub(crate) fn find(&self, step: u64) -> Option<&HistoryEntry> {
        self.on.iter().chain(&self.off).find(|seen| seen.step == step)
    }
}

fn read_current(root: &Path) -> Result<Option<Current>, Error> {
    match read_sealed::<Current>(&root.join(layout::OWN_FOLDER).join(layout::CURRENT_BRANCH), CURRENT_MAGIC) {
        Ok(current) if current.version == CURRENT_VERSION => Ok(Some(current)),
        // The newest save's own manifest also names its branch.
        Ok(_) | Err(Error::Corrupt { .. }) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Records the current branch, which a save of this order began.
pub(crate) fn write_current(disk: &Disk, root: &Path, order: u64, line: &Line) -> Result<(), Error> {
    let folder = root.join(layout::OWN_FOLDER);
    if !folder.is_dir() {
        disk.create_folder(&folder)?;
        disk.sync_folder(root)?;
    }
    let current = Current { magic: CURRENT_MAGIC.to_owned(), version: CURRENT_VERSION, order, line: line.clone() };
    disk.publish(&folder, layout::CURRENT_BRANCH, &seal(&current))
}

/// Returns the branch that the folder's file names.
pub(crate) fn current_branch(root: &Path) -> Result<Option<Branch>, Error> {
    Ok(read_current(root)?.map(|current| current.line.branch))
}
