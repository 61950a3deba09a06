//! The memory cgroup of this process and of the ranks that it starts: a Slurm step's, a container's, a
//! systemd unit's, or the whole machine's. Both versions: the kernel's
//! Documentation/admin-guide/cgroup-v2.rst and cgroup-v1/memory.rst.

use std::fs;
use std::path::{Path, PathBuf};

use gangline_base::Bytes;

use super::place::{Place, Tree, own};

/// File names and formats of a version of cgroups.
struct Version {
    tree: Tree,
    limit: &'static str,
    used: &'static str,
    /// The file with a line `oom_kill N`.
    events: &'static str,
}

const VERSIONS: [Version; 2] = [
    Version { tree: Tree::Unified, limit: "memory.max", used: "memory.current", events: "memory.events" },
    Version {
        tree: Tree::Controller("memory"),
        limit: "memory.limit_in_bytes",
        used: "memory.usage_in_bytes",
        events: "memory.oom_control",
    },
];

/// The memory limit of a group.
pub(crate) struct Limit {
    /// Folder of the group.
    pub(crate) path: PathBuf,
    pub(crate) limit: Bytes,
    pub(crate) used: Bytes,
}

/// Returns the lowest limit of this process's group and its ancestors.
pub(crate) fn limit() -> Option<Limit> {
    groups().find_map(|(version, place)| version.tightest(&place.root, &place.group))
}

/// Returns how many processes the kernel has ever killed for memory in this process's group, or in its
/// nearest ancestor that counts them. None if it doesn't count them.
pub(crate) fn oom_kills() -> Option<u64> {
    groups().find_map(|(version, place)| version.oom_kills(&place.root, &place.group))
}

/// Returns this process's group in each version, version 2 first.
fn groups() -> impl Iterator<Item = (&'static Version, Place)> {
    VERSIONS.iter().filter_map(|version| Some((version, own(version.tree)?)))
}

impl Version {
    /// A nested group, such as an attempt's, has no events file of its own unless its parent delegates the
    /// memory controller, so the nearest ancestor with one counts.
    fn oom_kills(&self, root: &Path, path: &str) -> Option<u64> {
        let leaf = root.join(path);
        let mut groups = leaf.ancestors().take_while(|group| group.starts_with(root));
        groups.find_map(|group| counted(&fs::read_to_string(group.join(self.events)).ok()?))
    }

    /// "max", and version 1's huge number, mean no limit.
    fn tightest(&self, root: &Path, path: &str) -> Option<Limit> {
        let number = |path: PathBuf| fs::read_to_string(path).ok()?.trim().parse::<u64>().ok();
        let leaf = root.join(path);
        let groups = leaf.ancestors().take_while(|group| group.starts_with(root));
        let limited = groups.filter_map(|group| {
            let limit = number(group.join(self.limit)).filter(|limit| *limit < 1 << 60)?;
            let used = Bytes(number(group.join(self.used)).unwrap_or(0));
            Some(Limit { path: group.to_owned(), limit: Bytes(limit), used })
        });
        limited.min_by_key(|group| group.limit)
    }
}

fn counted(events: &str) -> Option<u64> {
    events.lines().find_map(|line| line.strip_prefix("oom_kill ")?.trim().parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tightest_limit_counts() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let leaf = folder.path().join("a/b");
        fs::create_dir_all(&leaf).expect("it can be made");
        assert!(VERSIONS[0].tightest(folder.path(), "a/b").is_none(), "the root has none");
        fs::write(folder.path().join("a/memory.max"), "1000\n").expect("it can be written");
        fs::write(folder.path().join("a/memory.current"), "950\n").expect("it can be written");
        fs::write(leaf.join("memory.max"), "max\n").expect("it can be written");
        let limit = VERSIONS[0].tightest(folder.path(), "a/b").expect("there is a limit");
        assert_eq!((limit.path.file_name(), limit.limit, limit.used), (Some("a".as_ref()), Bytes(1_000), Bytes(950)));
        assert!(VERSIONS[1].tightest(folder.path(), "a/b").is_none());
    }

    #[test]
    fn kills_of_a_group_without_a_count_are_those_of_the_one_above() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        fs::create_dir_all(folder.path().join("a/b")).expect("it can be made");
        assert_eq!(VERSIONS[0].oom_kills(folder.path(), "a/b"), None);
        fs::write(folder.path().join("a/memory.events"), "oom 3\noom_kill 2\n").expect("it can be written");
        assert_eq!(VERSIONS[0].oom_kills(folder.path(), "a/b"), Some(2));
        fs::write(folder.path().join("a/b/memory.events"), "oom_kill 1\n").expect("it can be written");
        assert_eq!(VERSIONS[0].oom_kills(folder.path(), "a/b"), Some(1));
    }

    #[test]
    fn kills_are_counted_in_both_versions_words() {
        assert_eq!(counted("low 0\nmax 3\noom 2\noom_kill 1\noom_group_kill 0\n"), Some(1));
        assert_eq!(counted("oom_kill_disable 0\nunder_oom 0\noom_kill 4\n"), Some(4));
        assert_eq!(counted("oom_kill_disable 0\nunder_oom 0\n"), None);
    }
}
