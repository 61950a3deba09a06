//! Locates this process's control groups: where each version is mounted, and which group this process is in.

use std::fs;
use std::path::PathBuf;

/// A hierarchy of groups.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Tree {
    /// The unified hierarchy of version 2.
    Unified,
    /// The hierarchy of a controller in version 1.
    Controller(&'static str),
}

/// This process's group in a hierarchy.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Place {
    /// Mount point of the hierarchy.
    pub(super) root: PathBuf,
    /// The group, relative to the mount point.
    pub(super) group: String,
}

impl Place {
    /// Returns the group's folder.
    pub(super) fn folder(&self) -> PathBuf {
        self.root.join(&self.group)
    }
}

/// Returns this process's group in a hierarchy; none if the hierarchy isn't mounted.
pub(super) fn own(tree: Tree) -> Option<Place> {
    let read = |path| fs::read_to_string(path).unwrap_or_default();
    place(tree, &read("/proc/self/mounts"), &read("/proc/self/cgroup"))
}

/// Moves processes into this process's group in the unified hierarchy, as far as the system allows it.
pub(crate) fn enter_group_of_this_process(pids: &[u32]) {
    let Some(group) = own(Tree::Unified) else { return };
    for pid in pids {
        let _ = fs::write(group.folder().join("cgroup.procs"), pid.to_string());
    }
}

fn place(tree: Tree, mounts: &str, groups: &str) -> Option<Place> {
    Some(Place { root: mounted(tree, mounts)?, group: group(tree, groups)? })
}

/// Finds the mount point in lines such as `cgroup2 /sys/fs/cgroup cgroup2 rw,relatime 0 0`.
fn mounted(tree: Tree, mounts: &str) -> Option<PathBuf> {
    let is_its = |kind: &str, options: &str| match tree {
        Tree::Unified => kind == "cgroup2",
        Tree::Controller(name) => kind == "cgroup" && options.split(',').any(|option| option == name),
    };
    mounts.lines().find_map(|line| {
        let mut fields = line.split(' ').skip(1);
        let (path, kind, options) = (fields.next()?, fields.next()?, fields.next()?);
        // A space in a path is written as \040; nobody mounts this there.
        is_its(kind, options).then(|| PathBuf::from(path.replace("\\040", " ")))
    })
}

/// Finds the group in lines such as `0::/user.slice` and `5:memory:/slurm/job_7`.
fn group(tree: Tree, groups: &str) -> Option<String> {
    groups.lines().find_map(|line| {
        let mut fields = line.splitn(3, ':');
        let (number, controllers, group) = (fields.next()?, fields.next()?, fields.next()?);
        let is_its = match tree {
            Tree::Unified => number == "0" && controllers.is_empty(),
            Tree::Controller(name) => controllers.split(',').any(|controller| controller == name),
        };
        is_its.then(|| group.trim_start_matches('/').to_owned())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const MEMORY: Tree = Tree::Controller("memory");

    #[test]
    fn both_versions_are_found_beside_each_other_wherever_they_are_mounted() {
        let mounts = "tmpfs /sys/fs/cgroup tmpfs rw 0 0\ncgroup /sys/fs/cgroup/cpu cgroup rw,cpu 0 0\n\
                      cgroup /sys/fs/cgroup/mem cgroup rw,hugetlb,memory 0 0\n\
                      cgroup2 /sys/fs/cgroup/unified cgroup2 rw,relatime 0 0\n";
        let groups = "5:memory,hugetlb:/slurm/job_7/step_0\n2:cpu:/other\n0::/user.slice\n";
        let found = |tree| place(tree, mounts, groups).map(|place| place.folder());
        assert_eq!(found(Tree::Unified), Some(PathBuf::from("/sys/fs/cgroup/unified/user.slice")));
        assert_eq!(found(MEMORY), Some(PathBuf::from("/sys/fs/cgroup/mem/slurm/job_7/step_0")));
        assert_eq!(found(Tree::Controller("pids")), None);
    }

    #[test]
    fn where_there_are_none_none_is_found() {
        assert_eq!(place(Tree::Unified, "tmpfs /tmp tmpfs rw 0 0\n", "0::/\n"), None);
        assert_eq!(place(MEMORY, "cgroup2 /sys/fs/cgroup cgroup2 rw 0 0\n", "0::/\n"), None);
        assert_eq!(place(Tree::Unified, "cgroup2\nnonsense", "nonsense\n0:\n"), None);
        let root = place(Tree::Unified, "cgroup2 /sys/fs/cgroup cgroup2 rw 0 0\n", "0::/\n").expect("there is one");
        assert_eq!((root.root.to_str(), root.group.as_str()), (Some("/sys/fs/cgroup"), ""));
    }
}
