//! Processes as `/proc` shows them: their identity beyond a process id that the system reuses, and their
//! descendants.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{self, Read};

use rustix::process::{Pid, Signal, getppid, kill_process};
use serde::{Deserialize, Serialize};

/// The variable that identifies all processes of an attempt when its supervisor and shims are gone: its
/// value, this node's folder of the attempt, is unique to the attempt.
pub(crate) const ATTEMPT_FOLDER_VARIABLE: &str = "GANGLINE_ATTEMPT_DIR";

/// The variable by which a process that a daemon started for another says to whom it belongs: its owners as `PID.START`, the nearest
/// first. START is as in [`Stat::start_ticks`].
pub(crate) const OWNERS_VARIABLE: &str = "GANGLINE_OWNERS";
/// The name of a containerd-shim in its `/proc/PID/stat`. Docker's containers are children of such processes.
const CONTAINERD_SHIM: &str = "(containerd-shim";

/// Linux limits the arguments and the environment of a process to 6 MiB together.
const ENVIRONMENT_BYTES_MAX: u64 = 8 << 20;

/// Returns a process's initial environment; none if it can't be read: the process is another user's, or gone.
pub(crate) fn environment(pid: u32) -> Option<Vec<u8>> {
    let mut environment = Vec::new();
    let file = File::open(format!("/proc/{pid}/environ")).ok()?;
    file.take(ENVIRONMENT_BYTES_MAX).read_to_end(&mut environment).ok()?;
    Some(environment)
}

/// Contents of `/proc/PID/stat`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stat {
    /// Process state (D, S, R, ...), as ps shows it.
    pub(crate) state: char,
    /// Id of its parent.
    pub(crate) parent: u32,
    /// Id of its session. Children are in the same session unless they make one of their own.
    pub(crate) session: u32,
    /// All threads have ended and the parent hasn't reaped it yet. While a thread remains, so do the memory
    /// and the devices of the process, though its first thread already shows as a zombie.
    pub(crate) is_zombie: bool,
    /// Start time in clock ticks since the boot: distinguishes it from a later process with the same id.
    pub(crate) start_ticks: u64,
    /// In the middle of `execve`: the old program's memory is gone, and the new program's arguments and
    /// environment aren't in place yet. Unknown for another user's process.
    pub(crate) is_loading: bool,
}

/// Returns the state of a process, if one with this id exists.
pub(crate) fn stat(pid: u32) -> Option<Stat> {
    parse_stat(&fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)
}

/// Parses a stat line. The name in parentheses may hold anything, so fields are counted from its last
/// parenthesis.
fn parse_stat(line: &str) -> Option<Stat> {
    let (_, rest) = line.rsplit_once(')')?;
    let mut fields = rest.split_ascii_whitespace();
    let state = fields.next()?.chars().next()?;
    let parent = fields.next()?.parse().ok()?;
    // Field 5 is the process group; then come the session, the number of threads (20) and the start time (22).
    let session = fields.nth(1)?.parse().ok()?;
    let threads: u32 = fields.nth(13)?.parse().ok()?;
    let start_ticks = fields.nth(1)?.parse().ok()?;
    // Field 23 is the size of its memory (0 for kernel threads and zombies), field 51 the end of its
    // environment.
    let (has_memory, environment_end) = (fields.next()? != "0", fields.nth(27));
    let is_loading = has_memory && environment_end == Some("0");
    let is_zombie = matches!(state, 'Z' | 'X') && threads <= 1;
    Some(Stat { state, parent, session, is_zombie, start_ticks, is_loading })
}

/// Returns the name of a process: the first 15 bytes of its program's name, unless it sets another.
pub(crate) fn name(pid: u32) -> Option<String> {
    Some(fs::read_to_string(format!("/proc/{pid}/comm")).ok()?.trim_end().to_owned())
}

/// Describes a process for a person: `4711 (python3, state D)`.
pub(crate) fn described(pid: u32) -> String {
    let name = name(pid).unwrap_or_default();
    let state = stat(pid).map_or("gone".to_owned(), |stat| format!("state {}", stat.state));
    format!("{pid} ({name}, {state})")
}

/// Returns the id of this boot. A process id and start time mean nothing after a reboot.
pub(crate) fn boot_id() -> io::Result<String> {
    Ok(fs::read_to_string("/proc/sys/kernel/random/boot_id")?.trim().to_owned())
}

/// Identity of a process, different from any later process with the same id.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Identity {
    /// Process id.
    pub pid: u32,
    /// Start time, in clock ticks since the boot.
    pub start_ticks: u64,
    /// Id of the boot.
    pub boot: String,
}

impl Identity {
    /// Returns this process's identity.
    ///
    /// # Errors
    /// The system's error if `/proc` can't be read.
    pub fn own() -> io::Result<Self> {
        let pid = own_pid();
        let stat = stat(pid).ok_or_else(|| io::Error::new(io::ErrorKind::NotFound, "/proc shows no such process"))?;
        Ok(Identity { pid, start_ticks: stat.start_ticks, boot: boot_id()? })
    }

    /// Reports whether a process is in the session that this one made, even if this one is gone by now.
    ///
    /// While a process is left in a session the id of its maker isn't reused. So if another process has the
    /// id, nothing is left.
    pub(crate) fn has_in_session(&self, process: &Stat) -> bool {
        process.session == self.pid && stat(self.pid).is_none_or(|leader| leader.start_ticks == self.start_ticks)
    }

    /// Reports whether the process belongs to this boot.
    pub(crate) fn is_of_this_boot(&self) -> bool {
        boot_id().is_ok_and(|boot| boot == self.boot)
    }

    /// Reports whether exactly this process still runs. Zombies don't count.
    #[must_use]
    pub fn is_alive(&self) -> bool {
        let is_same = stat(self.pid).is_some_and(|stat| stat.start_ticks == self.start_ticks && !stat.is_zombie);
        is_same && self.is_of_this_boot()
    }
}

/// Returns the id of this process.
pub(crate) fn own_pid() -> u32 {
    std::process::id()
}

/// Converts a process id to the type that the system calls take.
pub(crate) fn as_pid(pid: u32) -> Option<Pid> {
    Pid::from_raw(i32::try_from(pid).ok()?)
}

/// Returns what [`OWNERS_VARIABLE`] is for what this process has started elsewhere: it belongs to this process, and to its parent once
/// this one is gone.
pub(crate) fn owners() -> String {
    let parent = getppid().and_then(|parent| u32::try_from(parent.as_raw_nonzero().get()).ok());
    let both = [Some(own_pid()), parent].into_iter().flatten();
    let named = both.filter_map(|pid| Some(format!("{pid}.{}", stat(pid)?.start_ticks)));
    named.collect::<Vec<_>>().join(" ")
}

/// Returns the nearest living owner that a process's environment names.
fn owner(environment: &[u8]) -> Option<u32> {
    let mut variables = environment.split(|byte| *byte == 0);
    let named = variables.find_map(|entry| entry.strip_prefix(OWNERS_VARIABLE.as_bytes())?.strip_prefix(b"="))?;
    str::from_utf8(named).ok()?.split(' ').find_map(|named| {
        let (pid, start_ticks) = named.split_once('.')?;
        let (pid, start_ticks) = (pid.parse().ok()?, start_ticks.parse::<u64>().ok()?);
        stat(pid).is_some_and(|stat| stat.start_ticks == start_ticks && !stat.is_zombie).then_some(pid)
    })
}

/// Returns the living descendants of `ancestor`, at any depth, except those in or below `spared`. What Docker's daemon started for one of
/// them counts as its child.
pub(crate) fn descendants(ancestor: u32, spared: &[u32]) -> Vec<u32> {
    let all: Vec<Living> = numbers().filter_map(living).collect();
    let containerd: BTreeSet<u32> =
        all.iter().filter(|process| process.is_containerd_shim).map(|process| process.pid).collect();
    let parent_of = |process: &Living| {
        let owner = || owner(&environment(process.pid)?);
        let owner = if containerd.contains(&process.parent) { owner() } else { None };
        (process.pid, owner.unwrap_or(process.parent))
    };
    let parents: Vec<(u32, u32)> = all.iter().map(parent_of).collect();
    let mut family = vec![ancestor];
    let mut next = 0;
    while let Some(parent) = family.get(next).copied() {
        let children = parents.iter().filter(|(pid, its_parent)| *its_parent == parent && !spared.contains(pid));
        let new: Vec<u32> = children.map(|(pid, _)| *pid).filter(|pid| !family.contains(pid)).collect();
        family.extend(new);
        next += 1;
    }
    family.split_off(1)
}

/// Sends SIGKILL to each; ignores those that are gone already.
pub(crate) fn kill_all(pids: &[u32]) {
    signal_all(pids, Signal::KILL);
}

/// Sends a signal to each; ignores those that are gone already.
pub(crate) fn signal_all(pids: &[u32], signal: Signal) {
    for pid in pids.iter().copied().filter_map(as_pid) {
        let _ = kill_process(pid, signal);
    }
}

/// Returns the ids of all processes.
pub(crate) fn numbers() -> impl Iterator<Item = u32> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

/// A process that isn't a zombie.
struct Living {
    pid: u32,
    parent: u32,
    /// It is the parent of a container of Docker's daemon.
    is_containerd_shim: bool,
}

fn living(pid: u32) -> Option<Living> {
    let line = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let stat = parse_stat(&line).filter(|stat| !stat.is_zombie)?;
    Some(Living { pid, parent: stat.parent, is_containerd_shim: line.contains(CONTAINERD_SHIM) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stat_line_is_read_even_if_the_name_is_hostile() {
        let line = "42 (a) Z 1 (b c) S 7 42 43 0 -1 4194560 1 0 0 0 0 0 0 0 20 0 1 0 98765 1 1";
        let read =
            Stat { state: 'S', parent: 7, session: 43, is_zombie: false, start_ticks: 98_765, is_loading: false };
        assert_eq!(parse_stat(line), Some(read));
        let ends_at =
            |size: u64, end: u64| format!("{} {size} {} {end} 0", &line[..line.len() - 4], ["9"; 27].join(" "));
        let is_loading = |size, end| parse_stat(&ends_at(size, end)).map(|stat| stat.is_loading);
        assert_eq!(
            (is_loading(4_096, 0), is_loading(4_096, 77), is_loading(0, 0)),
            (Some(true), Some(false), Some(false))
        );
        let is_zombie = |threads: &str| {
            let ended = line.replace(" S 7 ", " Z 7 ").replace(" 20 0 1 0 ", &format!(" 20 0 {threads} 0 "));
            parse_stat(&ended).map(|stat| stat.is_zombie)
        };
        assert_eq!((is_zombie("1"), is_zombie("2")), (Some(true), Some(false)), "its last thread counts");
        assert_eq!(parse_stat("42 (x) S"), None);
        assert_eq!(parse_stat(""), None);
    }

    #[test]
    fn this_process_is_found_alive_and_an_impossible_one_is_not() {
        let me = stat(own_pid()).expect("this process runs");
        assert!(!me.is_zombie && !me.is_loading);
        assert_eq!(stat(u32::MAX), None);
        assert_eq!(as_pid(0), None);
    }

    #[test]
    fn descendants_include_a_child_and_spare_whom_they_should() {
        let mut child = std::process::Command::new("sleep").arg("60").spawn().expect("sleep starts");
        let pid = child.id();
        let found = descendants(own_pid(), &[]);
        let spared = descendants(own_pid(), &[pid]);
        child.kill().expect("the child can be killed");
        child.wait().expect("the child can be reaped");
        assert!(found.contains(&pid));
        assert!(!spared.contains(&pid));
    }

    #[test]
    fn a_process_that_a_daemon_started_belongs_to_the_nearest_owner_that_is_alive() {
        let own = owners();
        let entry = |owners: &str| format!("A=1\0{OWNERS_VARIABLE}={owners}\0B=2").into_bytes();
        assert_eq!(owner(&entry(&own)), Some(own_pid()));
        let (_, parent) = own.split_once(' ').expect("two owners");
        assert_eq!(owner(&entry(&format!("{}.1 {parent}", own_pid()))), Some(std::os::unix::process::parent_id()));
        for nobody in ["", "x", "4294967295.1", "1 2"] {
            assert_eq!(owner(&entry(nobody)), None, "{nobody}");
        }
        assert_eq!(owner(b"A=1"), None);
    }

    #[test]
    fn this_process_is_alive_and_one_with_its_number_from_another_time_is_not() {
        let own = Identity::own().expect("this process runs");
        assert!(own.is_alive());
        assert!(!Identity { start_ticks: own.start_ticks + 1, ..own.clone() }.is_alive());
        assert!(!Identity { boot: "another".to_owned(), ..own.clone() }.is_alive());
        assert!(!Identity { pid: u32::MAX, ..own }.is_alive());
    }
}
