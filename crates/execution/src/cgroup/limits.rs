//! Limits of the control groups of attempts. A group's memory and processor time can be limited once the group above it
//! hands its controllers on, and in version 2 no group does that while processes live in it (the kernel's
//! Documentation/admin-guide/cgroup-v2.rst, "No Internal Process Constraint"). So the control plane moves into a group
//! below its own, and the groups of attempts lie beside it.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use gangline_base::Bytes;

use super::attempt::move_to;
use super::place::{Tree, own};

/// The control plane's group below the one it was started in. systemd makes it with `DelegateSubgroup=plane` (254 and
/// later).
const SUBGROUP: &str = "plane";
/// Period of a limit of processor time, in microseconds: the kernel's default.
const PERIOD: u64 = 100_000;

/// What an attempt's processes may use on this node; zero is no limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Limits {
    /// Memory, page cache and shared memory included.
    pub(crate) memory: Bytes,
    /// Processor cores.
    pub(crate) cpus: u32,
}

/// Which limits of attempts hold on this machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Enforced {
    /// Processor time is limited, and not only memory.
    pub(crate) has_cpus: bool,
}

/// Prepares this process's group for groups of attempts with limits. Moves this process, and with it all processes that
/// it starts from now on, into a group below. Returns why there can be no limits otherwise.
pub(crate) fn prepare() -> Result<Enforced, String> {
    let own = own(Tree::Unified).ok_or("it has no control groups of version 2")?.folder();
    let above = above(&own);
    let enforced = offered(&above)?;
    let controllers = if enforced.has_cpus { "+memory +cpu" } else { "+memory" };
    let hand_on = || fs::write(above.join("cgroup.subtree_control"), controllers);
    if above != own {
        return hand_on().map(|()| enforced).map_err(|error| refused(&above, &error));
    }
    if above.extension().is_some_and(|kind| kind == "service") {
        // systemd starts a service's process in the service's group, which fails once that hands controllers on.
        return Err(format!("the service lacks DelegateSubgroup={SUBGROUP}, which systemd knows since release 254"));
    }
    let below = own.join(SUBGROUP);
    let moved = fs::create_dir(&below).or_else(already_there).and_then(|()| move_to(&below));
    let handed_on = moved.and_then(|()| hand_on());
    handed_on.map(|()| enforced).map_err(|error| {
        let _ = move_to(&own);
        let _ = fs::remove_dir(&below);
        refused(&own, &error)
    })
}

/// Returns the group in which those of attempts lie, for a process in the group `own`.
pub(super) fn above(own: &Path) -> PathBuf {
    let is_subgroup = own.file_name().is_some_and(|name| name == SUBGROUP);
    own.parent().filter(|_| is_subgroup).unwrap_or(own).to_owned()
}

/// Returns which limits a group could hand on.
fn offered(group: &Path) -> Result<Enforced, String> {
    let controllers = fs::read_to_string(group.join("cgroup.controllers")).unwrap_or_default();
    let has = |name| controllers.split_ascii_whitespace().any(|controller| controller == name);
    if !has("memory") {
        return Err("the memory of its control groups of version 2 can't be limited here".to_owned());
    }
    Ok(Enforced { has_cpus: has("cpu") })
}

fn refused(group: &Path, error: &io::Error) -> String {
    let group = group.display();
    match error.kind() {
        io::ErrorKind::ResourceBusy => format!("other processes live in the control plane's control group {group}"),
        _ => format!("the control plane may not divide its control group {group}: {error}"),
    }
}

pub(super) fn already_there(error: io::Error) -> io::Result<()> {
    if error.kind() == io::ErrorKind::AlreadyExists { Ok(()) } else { Err(error) }
}

impl Limits {
    /// Sets the limits of a group, as far as the group above hands the controllers on.
    pub(super) fn set(self, group: &Path) -> io::Result<()> {
        let Limits { memory, cpus } = self;
        if memory.0 > 0 {
            write(&group.join("memory.max"), &memory.0.to_string())?;
            // Otherwise a rank would go on in swap space, at a small part of its pace.
            write(&group.join("memory.swap.max"), "0")?;
        }
        if cpus > 0 {
            write(&group.join("cpu.max"), &format!("{} {PERIOD}", u64::from(cpus) * PERIOD))?;
        }
        Ok(())
    }
}

/// Writes a limit; does nothing where there is no such limit.
fn write(file: &Path, limit: &str) -> io::Result<()> {
    if file.exists() { fs::write(file, limit) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attempts_lie_beside_the_control_planes_own_group() {
        let service = Path::new("/sys/fs/cgroup/system.slice/gangline.service");
        assert_eq!(above(service), service);
        assert_eq!(above(&service.join("plane")), service);
        assert_eq!(above(Path::new("/sys/fs/cgroup/planes")), Path::new("/sys/fs/cgroup/planes"));
    }

    #[test]
    fn only_a_group_with_memory_can_hand_it_on() {
        let group = tempfile::tempdir().expect("a temporary folder");
        let offer = |controllers: &str| {
            fs::write(group.path().join("cgroup.controllers"), controllers).expect("it can be written");
            offered(group.path())
        };
        assert_eq!(offer("cpuset cpu io memory pids\n"), Ok(Enforced { has_cpus: true }));
        assert_eq!(offer("memory pids\n"), Ok(Enforced { has_cpus: false }));
        assert!(offer("cpu\n").is_err() && offer("").is_err());
    }

    #[test]
    fn limits_are_written_where_the_kernel_has_them_and_zero_is_none() {
        let group = tempfile::tempdir().expect("a temporary folder");
        let read = |name: &str| fs::read_to_string(group.path().join(name)).ok();
        for name in ["memory.max", "cpu.max"] {
            fs::write(group.path().join(name), "max").expect("it can be written");
        }
        Limits::default().set(group.path()).expect("nothing is to be set");
        assert_eq!(read("memory.max").as_deref(), Some("max"));
        Limits { memory: Bytes(1 << 30), cpus: 3 }.set(group.path()).expect("they can be set");
        assert_eq!(read("memory.max").as_deref(), Some("1073741824"));
        assert_eq!(read("cpu.max").as_deref(), Some("300000 100000"));
        assert_eq!(read("memory.swap.max"), None, "this kernel has none");
    }
}
