//! Whether a checkpoint that somebody claims to have saved is there, by names and one manifest: no tensor is read.

use std::path::Path;

use gangline_base::Step;

use crate::error::Error;
use crate::layout::{self, Partial};
use crate::manifest::read_manifest;
use crate::prune::list_names;

/// What a folder says of a claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Claim {
    /// A checkpoint of that step is committed, or a newer one is.
    Durable,
    /// The folder is a store and has no such checkpoint.
    Absent,
    /// The folder isn't a store, or not yet: what is saved there, and whether, is its owner's affair.
    NoStore,
}

/// Looks into the folder at `root`, which need not be there. Blocks for as long as its file system does.
///
/// # Errors
/// [`Error::Io`] if the folder can't be read.
pub fn look_for(root: &Path, step: Step) -> Result<Claim, Error> {
    if !root.exists() {
        return Ok(Claim::NoStore);
    }
    let names = list_names(root)?;
    let has_manifest = |step: u64| root.join(layout::checkpoint_folder(step)).join(layout::MANIFEST).is_file();
    let is_sound = |step: u64| {
        let manifest = root.join(layout::checkpoint_folder(step)).join(layout::MANIFEST);
        read_manifest(&manifest, step).is_ok()
    };
    let mut steps: Vec<u64> = names.iter().filter_map(|name| layout::step_of(name)).collect();
    steps.sort_unstable();
    if steps.iter().rev().take_while(|there| **there >= step.0).any(|there| is_sound(*there)) {
        return Ok(Claim::Durable);
    }
    let is_store = names.iter().any(|name| Partial::parse(name).is_some()) || steps.into_iter().any(has_manifest);
    Ok(if is_store { Claim::Absent } else { Claim::NoStore })
}
