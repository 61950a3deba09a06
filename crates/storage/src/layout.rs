//! Names on disk. All are made of numbers, so no caller's value can lead out of the store's folder.

use std::fmt;
use std::path::{Path, PathBuf};

use gangline_objects::ASIDE_PREFIX;

/// The manifest's name in a checkpoint's folder. A folder with a final name and a manifest is a checkpoint.
pub(crate) const MANIFEST: &str = "manifest.json";
/// Prefix of a checkpoint's folder while its files are removed.
pub(crate) const DELETED_PREFIX: &str = ".deleted-";

/// The folder of the store's own files, beside the checkpoints.
pub(crate) const OWN_FOLDER: &str = ".gangline";
/// The file in that folder that names the current branch.
pub(crate) const CURRENT_BRANCH: &str = "branch.json";
/// The file in that folder that names the writer.
pub(crate) const WRITER: &str = "writer.json";
/// The file in that folder that is locked while the writer changes.
pub(crate) const WRITER_GUARD: &str = "writer.guard";
/// Suffix of a rank's refusal.
const REFUSAL_SUFFIX: &str = ".refused.json";

/// Returns the temporary path of a file while it is written.
pub(crate) fn aside(folder: &Path, name: &str) -> PathBuf {
    folder.join(format!("{ASIDE_PREFIX}{name}"))
}

/// Returns the folder name of a complete checkpoint.
pub(crate) fn checkpoint_folder(step: u64) -> String {
    format!("step-{step:010}")
}

/// Returns the step of a complete checkpoint's folder; none if `name` isn't exactly as this module writes it.
pub(crate) fn step_of(name: &str) -> Option<u64> {
    let step = name.strip_prefix("step-")?.parse().ok()?;
    (checkpoint_folder(step) == name).then_some(step)
}

/// Returns the folder name to which a checkpoint is renamed before its files are removed.
pub(crate) fn deleted_folder(step: u64) -> String {
    format!("{DELETED_PREFIX}{step:010}")
}

/// Returns the folder name in which a checkpoint from an archive is rebuilt.
pub(crate) fn pulled_folder(step: u64) -> String {
    format!(".pulled-{step:010}")
}

/// Returns the folder name in which an imported model becomes a checkpoint.
pub(crate) fn imported_folder(step: u64) -> String {
    format!(".imported-{step:010}")
}

/// Returns the name of shard file `number` of `count`. With one file per rank, the usual case, the number is
/// the rank.
pub(crate) fn shard_file(number: u32, count: u32) -> String {
    format!("shard-{number:05}-of-{count:05}.safetensors")
}

/// Returns the name of a rank's shard file until the commit, which numbers all files of a checkpoint.
pub(crate) fn rank_file(rank: u32, world_size: u32, file: usize) -> String {
    if file == 0 {
        return shard_file(rank, world_size);
    }
    format!("shard-{rank:05}-of-{world_size:05}.{file:05}.safetensors")
}

/// Returns the name of the index with which a rank tells rank 0 that its shard is durable.
pub(crate) fn index_file(rank: u32, world_size: u32) -> String {
    format!("shard-{rank:05}-of-{world_size:05}.index.json")
}

/// Returns the name of the refusal with which a rank tells the others that a save has failed.
pub(crate) fn refusal_file(rank: u32, world_size: u32) -> String {
    format!("shard-{rank:05}-of-{world_size:05}{REFUSAL_SUFFIX}")
}

/// Reports whether this is the name of a refusal.
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
    /// Parses a folder's name; none if it isn't such a folder.
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
