//! The control group of an attempt's processes on this node. A process that leaves its session and clears its
//! environment is still in its group, and the kernel kills a whole group at once, so no process that is
//! started during a sweep escapes it. Version 2 only: the kernel's Documentation/admin-guide/cgroup-v2.rst,
//! `cgroup.kill` (Linux 5.14) and `cgroup.events`.
//!
//! The group is made where this user may make one: as root, in a container of its own, or in a unit with
//! `Delegate=yes`. Elsewhere, processes are found by their session and environment alone.
//!
//! Keeps A-5: a group is empty only once its processes have released their memory and devices.

use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::{Duration, Instant, SystemTime};

use rustix::fs::statfs;

use super::limits::{Limits, above, already_there};
use super::place::{Tree, own};
use crate::files::{read_bounded, write_durably};
use crate::process::{as_pid, kill_all};

/// File in the attempt's folder that names its group.
const FILE: &str = "cgroup";
/// Type that `statfs` reports for a file system of control groups, version 2 (linux/magic.h).
const CGROUP2_MAGIC: u64 = 0x6367_7270;
/// Interval between two checks whether a group is empty.
const LOOK_AGAIN: Duration = Duration::from_millis(2);
/// Prefix of the names of all attempts' groups.
const PREFIX: &str = "gangline-";
/// A group that is still empty this long after it was made is abandoned, since a supervisor enters its group
/// at once.
const ABANDONED_AFTER: Duration = Duration::from_mins(1);
/// A rank may make groups below its attempt's; they are removed down to this depth.
const DEPTH_MAX: usize = 8;

/// The group of an attempt's processes on this node.
#[derive(Debug)]
pub(crate) struct AttemptGroup {
    path: PathBuf,
}

impl AttemptGroup {
    /// Makes the group of the attempt in `folder` below the group of this process, or beside it if that is the control
    /// plane's, and moves this process there; all that it starts from now on is in the group and held to the `limits`,
    /// where there can be any. Returns none if there are no such groups here, or this user may not make one.
    pub(crate) fn enter(folder: &Path, limits: Limits) -> Option<Membership> {
        let home = own(Tree::Unified)?.folder();
        let parent = above(&home);
        remove_abandoned(&parent, ABANDONED_AFTER);
        let group = AttemptGroup { path: parent.join(name(folder)) };
        match group.make(folder, limits) {
            Ok(()) => Some(Membership { group, home }),
            Err(error) => {
                tracing::info!(path = %group.path.display(), %error, "the ranks have no control group of their own");
                let _ = fs::remove_dir(&group.path);
                None
            }
        }
    }

    /// Records the group's name durably before entering it, so that a later fence finds it.
    fn make(&self, folder: &Path, limits: Limits) -> io::Result<()> {
        fs::create_dir(&self.path).or_else(already_there)?;
        if let Err(error) = limits.set(&self.path) {
            tracing::warn!(path = %self.path.display(), %error, "the limits of the attempt can't be set");
        }
        write_durably(&folder.join(FILE), self.path.as_os_str().as_bytes())?;
        move_to(&self.path)
    }

    /// Returns the group of the attempt in `folder`, if it has one that still exists. Never returns another
    /// attempt's group, whatever the attempt's processes may have written to the file.
    pub(crate) fn of(folder: &Path) -> Option<AttemptGroup> {
        let written = read_bounded(&folder.join(FILE)).ok()?;
        let path = PathBuf::from(std::ffi::OsStr::from_bytes(&written));
        let is_its_own = path.is_absolute() && path.file_name() == Some(name(folder).as_ref()) && is_cgroup(&path);
        is_its_own.then_some(AttemptGroup { path })
    }

    /// Kills all processes in the group and below, waits up to `at_most` until it is empty, and removes it.
    /// Returns the processes that are left.
    pub(crate) fn kill(&self, at_most: Duration) -> Vec<u32> {
        let deadline = Instant::now() + at_most;
        loop {
            if !self.is_populated() {
                if let Err(error) = self.remove() {
                    tracing::debug!(path = %self.path.display(), %error, "an empty control group can't be removed");
                }
                return Vec::new();
            }
            let left = processes(&self.path, 0);
            if fs::write(self.path.join("cgroup.kill"), "1").is_err() {
                // A kernel before 5.14 has no `cgroup.kill`. The next iteration finds processes that were
                // started meanwhile.
                kill_all(&left);
            }
            if Instant::now() >= deadline {
                return left;
            }
            sleep(LOOK_AGAIN);
        }
    }

    /// Reports whether a process lives in the group or below. Zombies don't count.
    fn is_populated(&self) -> bool {
        let events = fs::read_to_string(self.path.join("cgroup.events"));
        events.is_ok_and(|events| events.lines().any(|line| line == "populated 1"))
    }

    fn remove(&self) -> io::Result<()> {
        remove_tree(&self.path, 0)
    }
}

/// This process's membership in a group that it made. When dropped, it leaves the group, whose other
/// processes are gone by then, and removes it.
#[derive(Debug)]
pub(crate) struct Membership {
    group: AttemptGroup,
    /// The group in which this process was started.
    home: PathBuf,
}

impl Drop for Membership {
    fn drop(&mut self) {
        if let Err(error) = move_to(&self.home).and_then(|()| self.group.remove()) {
            tracing::warn!(path = %self.group.path.display(), %error, "the attempt's control group can't be removed");
        }
    }
}

/// Returns a name that differs from those of all other attempts' groups, including those of other data
/// folders.
fn name(folder: &Path) -> String {
    let hash = blake3::hash(folder.as_os_str().as_bytes()).to_hex();
    format!("{PREFIX}{}", &hash[..32])
}

/// Removes empty groups of supervisors that were killed after their attempts had ended, so that nobody fenced
/// them.
fn remove_abandoned(parent: &Path, after: Duration) {
    let is_old =
        |path: &Path| path.metadata().and_then(|found| found.modified()).is_ok_and(|made| has_passed(made, after));
    for path in below(parent, 0) {
        let is_ours = path.file_name().is_some_and(|name| name.as_bytes().starts_with(PREFIX.as_bytes()));
        if is_ours && is_old(&path) {
            // Fails if any process lives in it.
            let _ = fs::remove_dir(path);
        }
    }
}

fn has_passed(since: SystemTime, time: Duration) -> bool {
    since.elapsed().is_ok_and(|elapsed| elapsed >= time)
}

fn is_cgroup(path: &Path) -> bool {
    statfs(path).is_ok_and(|found| u64::try_from(found.f_type) == Ok(CGROUP2_MAGIC))
}

/// Moves this process, with all its threads, into the group.
pub(super) fn move_to(group: &Path) -> io::Result<()> {
    fs::write(group.join("cgroup.procs"), "0")
}

/// Returns the processes in a group and those below it.
fn processes(group: &Path, depth: usize) -> Vec<u32> {
    let text = fs::read_to_string(group.join("cgroup.procs")).unwrap_or_default();
    let own = text.lines().filter_map(|line| line.parse().ok()).filter(|pid| as_pid(*pid).is_some());
    let below = below(group, depth).into_iter().flat_map(|group| processes(&group, depth + 1));
    own.chain(below).collect()
}

fn remove_tree(group: &Path, depth: usize) -> io::Result<()> {
    below(group, depth).iter().try_for_each(|group| remove_tree(group, depth + 1))?;
    fs::remove_dir(group)
}

fn below(group: &Path, depth: usize) -> Vec<PathBuf> {
    if depth == DEPTH_MAX {
        return Vec::new();
    }
    let entries = fs::read_dir(group).into_iter().flatten().flatten();
    entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir())).map(|entry| entry.path()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_old_and_empty_groups_of_attempts_are_removed() {
        let parent = tempfile::tempdir().expect("a temporary folder");
        for name in ["gangline-empty", "gangline-used/rank", "other"] {
            fs::create_dir_all(parent.path().join(name)).expect("it can be made");
        }
        let left = |after: Duration| {
            remove_abandoned(parent.path(), after);
            let mut names: Vec<_> = below(parent.path(), 0)
                .into_iter()
                .filter_map(|path| path.file_name().map(ToOwned::to_owned))
                .collect();
            names.sort();
            names
        };
        assert_eq!(left(ABANDONED_AFTER), ["gangline-empty", "gangline-used", "other"]);
        assert_eq!(left(Duration::ZERO), ["gangline-used", "other"]);
    }

    #[test]
    fn a_file_names_no_group_but_the_attempts_own() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let named = |path: &str| {
            fs::write(folder.path().join(FILE), path).expect("it can be written");
            AttemptGroup::of(folder.path()).is_some()
        };
        assert!(AttemptGroup::of(folder.path()).is_none(), "there is no file");
        assert!(!named("/") && !named("/sys/fs/cgroup/unified") && !named(""));
        let own = name(folder.path());
        let plain = folder.path().join(&own);
        fs::create_dir(&plain).expect("it can be made");
        assert!(!named(&plain.display().to_string()), "a folder of another file system");
        assert!(!named(&own), "a relative path");
    }
}
