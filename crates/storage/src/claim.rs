//! Verifies a claim that a checkpoint was saved, by folder names and one manifest: no tensor is read.

use std::path::Path;

use gangline_base::Step;

use crate::error::Error;
use crate::history::{Heads, HistoryEntry};
use crate::layout::{self, Partial};
use crate::prune::list_names;

/// The state of a claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Claim {
    /// A checkpoint of that step, or of a higher step on the current line, is committed.
    Durable,
    /// The folder is a store without such a checkpoint.
    Absent,
    /// The folder isn't a store, or not yet. Saves in other formats can't be verified.
    NoStore,
}

/// Looks into the folder at `root`, which may be missing. Blocks for as long as its file system does.
///
/// # Errors
/// [`Error::Io`] if the folder can't be read.
pub fn look_for(root: &Path, step: Step) -> Result<Claim, Error> {
    if !root.exists() {
        return Ok(Claim::NoStore);
    }
    let names = list_names(root)?;
    let steps: Vec<u64> = names.iter().filter_map(|name| layout::step_of(name)).collect();
    let history = Heads::default().history(root)?;
    let is_sound = |seen: &&HistoryEntry| seen.head.is_some();
    let is_it = history.find(step.0).as_ref().is_some_and(is_sound);
    if is_it || history.on.iter().filter(is_sound).any(|seen| seen.step > step.0) {
        return Ok(Claim::Durable);
    }
    let has_manifest = |step: u64| root.join(layout::checkpoint_folder(step)).join(layout::MANIFEST).is_file();
    let is_store = names.iter().any(|name| Partial::parse(name).is_some()) || steps.into_iter().any(has_manifest);
    Ok(if is_store { Claim::Absent } else { Claim::NoStore })
}
