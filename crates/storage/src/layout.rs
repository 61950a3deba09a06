//! Names on disk. All are made of numbers, so nothing a caller passes can climb out of the store's folder.

use std::fmt;
use std::path::{Path, PathBuf};

/// The manifest's name in a checkpoint's folder; its presence under the final name is what makes it a checkpoint.
pub(crate) const MANIFEST: &str = "manifest.json";
/// What a checkpoint on its way out is called while its files are removed.
pub(crate) const DELETED_PREFIX: &str = ".deleted-";
/// Files being written are called this and their final name.
pub(crate) const ASIDE_PREFIX: &str = ".aside-";

/// The folder of what the store notes for itself, beside the checkpoints.
pub(crate) const OWN_FOLDER: &str = ".gangline";
/// Which branch is the current one, in that folder.
pub(crate) const CURRENT_BRANCH: &str = "branch.json";
/// Who writes, in that folder.
pub(crate) const WRITER: &str = "writer.json";
/// What is locked while the writer changes, in that folder.
pub(crate) const WRITER_GUARD: &str = "writer.guard";
/// How a rank's word that it doesn't save is called after the rank.
const REFUSAL_SUFFIX: &str = ".refused.json";

/// What a file of this name is called while it is written.
pub(crate) fn aside(folder: &Path, name: &str) -> PathBuf {
    folder.join(format!("{ASIDE_PREFIX}{name}"))
}

/// The folder of a complete checkpoint.
pub(crate) fn checkpoint_folder(step: u64) -> String {
    format!("step-{step:010}")
}

/// The step of a complete checkpoint's folder; none if `name` isn't one, written exactly as this module writes it.
pub(crate) fn step_of(name: &str) -> Option<u64> {
    let step = name.strip_prefix("step-")?.parse().ok()?;
    (checkpoint_folder(step) == name).then_some(step)
}

/// Where a checkpoint is moved before it is removed.
pub(crate) fn deleted_folder(step: u64) -> String {
    format!("{DELETED_PREFIX}{step:010}")
}

/// The folder in which a checkpoint from an archive is rebuilt.
pub(crate) fn pulled_folder(step: u64) -> String {
    format!(".pulled-{step:010}")
}

/// The folder in which a model that others saved becomes a checkpoint.
pub(crate) fn imported_folder(step: u64) -> String {
    format!(".imported-{step:010}")
}

/// A file of tensors: the `number`th of a checkpoint of so many. With one file a rank, as almost always, its number is the rank's.
pub(crate) fn shard_file(number: u32, count: u32) -> String {
    format!("shard-{number:05}-of-{count:05}.safetensors")
}

/// The `file`th file of a rank's tensors until the commit, which gives all files of a checkpoint their numbers.
pub(crate) fn rank_file(rank: u32, world_size: u32, file: usize) -> String {
    if file == 0 {
        return shard_file(rank, world_size);
    }
    format!("shard-{rank:05}-of-{world_size:05}.{file:05}.safetensors")
}

/// One rank's word to rank 0 that its shard is durable.
pub(crate) fn index_file(rank: u32, world_size: u32) -> String {
    format!("shard-{rank:05}-of-{world_size:05}.index.json")
}

/// One rank's word to the others that a save comes to nothing.
pub(crate) fn refusal_file(rank: u32, world_size: u32) -> String {
    format!("shard-{rank:05}-of-{world_size:05}{REFUSAL_SUFFIX}")
}

/// Whether a file of this name is such a word.
pub(crate) fn is_refusal(name: &str) -> bool {
    name.ends_with(REFUSAL_SUFFIX)
}

/// The folder in which a checkpoint is built.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Partial {
    pub(crate) step: u64,
    pub(crate) tag: u64,
    pub(crate) world_size: u32,
}

impl fmt::Display for Partial {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, ".partial-{:010}-by-{}-of-{}", self.step, self.tag, self.world_size)
    }
}

impl Partial {
    /// Reads a folder's name; none if it isn't one of these.
    pub(crate) fn parse(name: &str) -> Option<Partial> {
        let (step, rest) = name.strip_prefix(".partial-")?.split_once("-by-")?;
        let (tag, world_size) = rest.split_once("-of-")?;
        Some(Partial { step: step.parse().ok()?, tag: tag.parse().ok()?, world_size: world_size.parse().ok()? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_read_back_and_strangers_are_not_taken_for_checkpoints() {
        assert_eq!(step_of(&checkpoint_folder(100)), Some(100));
        assert_eq!(step_of(&checkpoint_folder(u64::MAX)), Some(u64::MAX));
        for stranger in ["step-100", "step-", "step-00000000100", "step-+000000100", "step-0000000100.old", "x"] {
            assert_eq!(step_of(stranger), None, "{stranger}");
        }
        let partial = Partial { step: 7, tag: 3, world_size: 2 };
        assert_eq!(Partial::parse(&partial.to_string()), Some(partial));
        assert_eq!(Partial::parse(".partial-7"), None);
    }
}
