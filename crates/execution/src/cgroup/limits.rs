//! Holds an attempt's processes to the memory and the cores that its job asked for on this node.
//!
//! Version 2 where the controllers are delegated: in the group of the attempt, whose parent then has no
//! processes of its own (a unit with `Delegate=yes` and `DelegateSubgroup=`; systemd.resource-control(5)).
//! Elsewhere version 1, in a group of the attempt's own for each controller. The kernel's
//! Documentation/admin-guide/cgroup-v2.rst (`memory.max`, `cpu.max`), cgroup-v1/memory.rst
//! (`memory.limit_in_bytes`) and scheduler/sched-bwc.rst (`cpu.cfs_quota_us`).
//!
//! The supervisor, some megabytes, counts towards the limit: a rank that is started by it can't escape. The
//! kernel kills the largest process of a group that is over its limit, which is never the supervisor.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use gangline_base::Bytes;

use super::attempt::{ABANDONED_AFTER, move_to, name, remove_abandoned};
use super::place::{Tree, own};

/// The period over which a group's processor time is limited, in microseconds: the kernel's default.
const PERIOD_MICROS: u64 = 100_000;
/// Name of the group that is made to see whether one may be.
const PROBE: &str = "probe";

/// What a job asked for on this node; none is no limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Asked {
    pub(crate) memory: Option<Bytes>,
    pub(crate) cpus: Option<u32>,
}

/// A resource whose use can be limited.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Resource {
    Memory(Bytes),
    Cpus(u32),
}

impl Resource {
    fn controller(self) -> &'static str {
        match self {
            Resource::Memory(_) => "memory",
            Resource::Cpus(_) => "cpu",
        }
    }

    /// Returns the name of the job file's key.
    fn key(self) -> &'static str {
        match self {
            Resource::Memory(_) => "memory",
            Resource::Cpus(_) => "cpus",
        }
    }

    /// Returns the files of version 2 with what to write.
    fn unified(self) -> Vec<(&'static str, String)> {
        match self {
            Resource::Memory(limit) => vec![("memory.max", limit.0.to_string()), ("memory.swap.max", "0".to_owned())],
            Resource::Cpus(cpus) => vec![("cpu.max", format!("{} {PERIOD_MICROS}", u64::from(cpus) * PERIOD_MICROS))],
        }
    }

    /// Returns the files of version 1 with what to write.
    fn legacy(self) -> Vec<(&'static str, String)> {
        match self {
            // Memory and swap together: the second file exists only where swap is counted.
            Resource::Memory(limit) => vec![
                ("memory.limit_in_bytes", limit.0.to_string()),
                ("memory.memsw.limit_in_bytes", limit.0.to_string()),
            ],
            Resource::Cpus(cpus) => vec![
                ("cpu.cfs_period_us", PERIOD_MICROS.to_string()),
                ("cpu.cfs_quota_us", (u64::from(cpus) * PERIOD_MICROS).to_string()),
            ],
        }
    }
}

/// The limits in force for this process and all that it starts. When dropped, it leaves the groups that were
/// made for them.
#[derive(Debug, Default)]
pub(crate) struct Limits {
    /// The memory limit in force.
    pub(crate) memory: Option<Bytes>,
    groups: Vec<PathBuf>,
}

impl Limits {
    /// Puts this process under what was asked for. `unified` is the attempt's group of version 2, if it has
    /// one. What can't be enforced is logged, and the attempt runs without it.
    pub(crate) fn hold(folder: &Path, unified: Option<&Path>, asked: Asked) -> Limits {
        let mut limits = Limits::default();
        let resources = asked.memory.map(Resource::Memory).into_iter().chain(asked.cpus.map(Resource::Cpus));
        for resource in resources {
            match limit(&name(folder), unified, resource) {
                Ok(group) => {
                    limits.groups.extend(group);
                    if let Resource::Memory(memory) = resource {
                        limits.memory = Some(memory);
                    }
                }
                Err(why) => tracing::warn!("{} is counted but not enforced: {why}", resource.key()),
            }
        }
        limits
    }
}

impl Drop for Limits {
    fn drop(&mut self) {
        for group in &self.groups {
            let left = group.parent().map_or(Ok(()), move_to).and_then(|()| fs::remove_dir(group));
            if let Err(error) = left {
                tracing::warn!(path = %group.display(), %error, "the attempt's group for a limit can't be removed");
            }
        }
    }
}

/// Returns why this process couldn't hold what it starts to a limit of `memory` or `cpus`; none if it could.
pub(crate) fn unenforced() -> Option<String> {
    let probe = |resource: Resource| {
        let group = own(Tree::Unified).map(|place| super::attempt::parent_of(&place.folder()).join(PROBE));
        let group = group.filter(|group| fs::create_dir(group).is_ok());
        let in_unified = group.as_deref().is_some_and(|group| write_unified(group, resource).is_ok());
        group.into_iter().for_each(|group| drop(fs::remove_dir(group)));
        if in_unified { Ok(()) } else { legacy_group(PROBE, resource).and_then(|group| removed(&group)) }
    };
    let resources = [Resource::Memory(Bytes(1 << 40)), Resource::Cpus(1)];
    let refused = resources.into_iter().filter_map(|resource| Some((resource.key(), probe(resource).err()?)));
    let (keys, causes): (Vec<&str>, Vec<String>) = refused.unzip();
    let because = causes.into_iter().next()?;
    Some(format!("{} not enforced on this machine: {because}", keys.join(" and ")))
}

/// Limits a resource; returns the group that was made and entered for it, if one was.
fn limit(name: &str, unified: Option<&Path>, resource: Resource) -> Result<Option<PathBuf>, String> {
    if let Some(group) = unified
        && write_unified(group, resource).is_ok()
    {
        return Ok(None);
    }
    let group = legacy_group(name, resource)?;
    match move_to(&group) {
        Ok(()) => Ok(Some(group)),
        Err(error) => removed(&group).and(Err(format!("{} can't be entered: {error}", group.display()))),
    }
}

/// Writes a limit to a group of version 2, for which its parent has to hand the controller down.
fn write_unified(group: &Path, resource: Resource) -> io::Result<()> {
    let files = resource.unified();
    if let Some((first, _)) = files.first()
        && !group.join(first).exists()
        && let Some(parent) = group.parent()
    {
        fs::write(parent.join("cgroup.subtree_control"), format!("+{}", resource.controller()))?;
    }
    write_all(group, &files)
}

/// Makes a group of version 1 with a limit.
fn legacy_group(name: &str, resource: Resource) -> Result<PathBuf, String> {
    let controller = resource.controller();
    let place = own(Tree::Controller(controller)).ok_or_else(|| {
        format!(
            "control groups with the controller \"{controller}\" aren't delegated to this process: run it in a systemd unit \
             with Delegate=yes and DelegateSubgroup=plane"
        )
    })?;
    let parent = place.folder();
    remove_abandoned(&parent, ABANDONED_AFTER);
    let group = parent.join(name);
    let made = fs::create_dir(&group).or_else(|error| match error.kind() {
        io::ErrorKind::AlreadyExists => Ok(()),
        _ => Err(error),
    });
    let written = made.and_then(|()| write_all(&group, &resource.legacy()));
    written.map_err(|error| {
        let _ = fs::remove_dir(&group);
        format!("{} can't be made or limited: {error}", group.display())
    })?;
    Ok(group)
}

/// Writes the files; the first must exist.
fn write_all(group: &Path, files: &[(&'static str, String)]) -> io::Result<()> {
    for (place, (file, text)) in files.iter().enumerate() {
        let path = group.join(file);
        if place > 0 && !path.exists() {
            continue;
        }
        fs::write(path, text)?;
    }
    Ok(())
}

fn removed(group: &Path) -> Result<(), String> {
    fs::remove_dir(group).map_err(|error| format!("{} can't be removed: {error}", group.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_of_version_2_goes_to_the_group_whose_parent_hands_the_controllers_down() {
        let parent = tempfile::tempdir().expect("a temporary folder");
        let group = parent.path().join("attempt");
        fs::create_dir(&group).expect("it can be made");
        let read = |file: &str| fs::read_to_string(group.join(file)).expect(file);
        fs::write(group.join("memory.swap.max"), "max").expect("it can be written");
        write_unified(&group, Resource::Memory(Bytes(4 << 30))).expect("it can be limited");
        let handed = fs::read_to_string(parent.path().join("cgroup.subtree_control")).expect("it was written");
        assert_eq!(handed, "+memory");
        assert_eq!((read("memory.max").as_str(), read("memory.swap.max").as_str()), ("4294967296", "0"));
        write_unified(&group, Resource::Cpus(3)).expect("it can be limited");
        assert_eq!(read("cpu.max"), "300000 100000");
    }

    #[test]
    fn a_group_that_may_not_be_limited_is_an_error() {
        let nowhere = Path::new("/proc/self/attempt");
        assert!(write_unified(nowhere, Resource::Cpus(1)).is_err());
        let limits = Limits::hold(Path::new("/nowhere"), Some(nowhere), Asked::default());
        assert_eq!((limits.memory, limits.groups.len()), (None, 0), "nothing was asked for");
    }
}
