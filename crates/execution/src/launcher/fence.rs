//! Fencing: kills all processes of an attempt that are left on this machine, whatever their parent is by now.
//! Supervisor and shim kill a rank's descendants; when both die at once, only its control group, its
//! session and its inherited environment identify an attempt's process.
//!
//! Keeps A-5 (devices aren't given away under a living process) and A-10 (bounded sweeps and reads).

use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::Duration;

use rustix::io::Errno;
use rustix::process::{PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use super::LaunchError;
use crate::cgroup::AttemptGroup;
use crate::files::read_bounded;
use crate::process::{ATTEMPT_FOLDER_VARIABLE, Identity, as_pid, described, environment, numbers, own_pid, stat};
use crate::shim::SHIM_EXTENSION;

/// Maximum number of sweeps in one call. Kept low, since the control plane waits for the call and repeats it.
const SWEEPS_MAX: u32 = 20;
/// Pause between two sweeps: killed processes need a moment to exit.
const SWEEP_PAUSE: Duration = Duration::from_millis(10);
/// Maximum time to empty the attempt's control group in one call.
const GROUP_KILLED_WITHIN: Duration = Duration::from_millis(200);
/// Maximum number of sweeps in one call while a process is in `execve`: until that ends it shows no
/// environment, though its parent runs on already. A process that takes two seconds for it hangs, and counts
/// as unrelated.
const LOADING_SWEEPS_MAX: u32 = 200;
/// A process whose environment reads as empty this often in a row, outside `execve`, has none.
const EMPTY_READS: u32 = 3;
/// Maximum number of shims of an attempt on a node: one for each possible rank, and one for the
/// setup.
const SHIMS_MAX: usize = 1_025;
/// Maximum number of processes that are listed in an error.
const TOLD_MAX: usize = 8;

/// A process that was sent SIGKILL. A process that is exiting has no environment any more while it still
/// holds its devices, so it is remembered until it is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Killed {
    pid: u32,
    start_ticks: u64,
}

impl Killed {
    fn is_left(&self) -> bool {
        stat(self.pid).is_some_and(|stat| stat.start_ticks == self.start_ticks && !stat.is_zombie)
    }
}

/// Marks that identify processes.
#[derive(Default)]
struct Mark {
    /// The environment contains all of these `NAME=value`.
    entries: Vec<Vec<u8>>,
    /// Or the session is one of these shims'.
    shims: Vec<Identity>,
}

impl Mark {
    /// Creates a mark for processes with all these environment variables.
    fn of(variables: &[(&str, &str)]) -> Mark {
        let entries = variables.iter().map(|(name, value)| format!("{name}={value}").into_bytes());
        Mark { entries: entries.collect(), shims: Vec::new() }
    }

    /// Creates the mark of the attempt in this folder. Processes that are exiting have no environment any
    /// more; they are found by their session, unless they made one of their own.
    fn of_attempt(folder: &Path) -> Mark {
        let entry = [ATTEMPT_FOLDER_VARIABLE.as_bytes(), b"=", folder.as_os_str().as_bytes()].concat();
        let files = fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path());
        let signed = files.filter(|path| path.extension().is_some_and(|extension| extension == SHIM_EXTENSION));
        // An unreadable file was being written when its shim was killed, before the rank existed.
        let read = |path: PathBuf| serde_json::from_slice::<Identity>(&read_bounded(&path).ok()?).ok();
        let shims = signed.take(SHIMS_MAX).filter_map(read).filter(Identity::is_of_this_boot);
        Mark { entries: vec![entry], shims: shims.collect() }
    }

    fn is_on(&self, pid: u32) -> bool {
        self.is_by_session(pid) || environment(pid).is_some_and(|environment| are_in(&environment, &self.entries))
    }

    fn is_by_session(&self, pid: u32) -> bool {
        let process = || stat(pid).filter(|stat| !stat.is_zombie);
        !self.shims.is_empty()
            && process().is_some_and(|process| self.shims.iter().any(|shim| shim.has_in_session(&process)))
    }
}

/// Kills every process of the attempt in `folder` until no process is found and none of the `killed` is left;
/// adds to `killed`. Processes that left the attempt's control group are found by session and environment, as
/// all processes are where there is no group.
pub(super) fn kill_attempt(folder: &Path, killed: &mut Vec<Killed>) -> Result<(), LaunchError> {
    let in_group = AttemptGroup::of(folder).map_or_else(Vec::new, |group| group.kill(GROUP_KILLED_WITHIN));
    if !in_group.is_empty() {
        return Err(left(in_group));
    }
    let mark = Mark::of_attempt(folder);
    let mut found = Vec::new();
    for turn in 1..=LOADING_SWEEPS_MAX {
        let swept = sweep(&mark, killed)?;
        killed.retain(Killed::is_left);
        found = swept.found;
        let are_gone = found.is_empty() && killed.is_empty();
        if are_gone && (!swept.is_one_loading || turn == LOADING_SWEEPS_MAX) {
            return Ok(());
        }
        if !are_gone && turn >= SWEEPS_MAX {
            break;
        }
        sleep(SWEEP_PAUSE);
    }
    found.extend(killed.iter().map(|killed| killed.pid));
    Err(left(found))
}

fn left(mut found: Vec<u32>) -> LaunchError {
    found.sort_unstable();
    found.dedup();
    found.truncate(TOLD_MAX);
    LaunchError::Fence { left: found.into_iter().map(described).collect() }
}

/// Kills every process, except this one, that has all these variables in its environment, as far as possible
/// now.
pub(super) fn kill_all_with(variables: &[(&str, &str)]) {
    let mark = Mark::of(variables);
    let mut killed = Vec::new();
    for _ in 0..SWEEPS_MAX {
        let is_clean = sweep(&mark, &mut killed).is_ok_and(|swept| swept.found.is_empty());
        killed.retain(Killed::is_left);
        if is_clean && killed.is_empty() {
            return;
        }
        sleep(SWEEP_PAUSE);
    }
}

/// Returns every process, except this one, that has all these variables in its environment.
pub(super) fn all_with(variables: &[(&str, &str)]) -> Vec<u32> {
    let mark = Mark::of(variables);
    numbers().filter(|pid| *pid != own_pid() && mark.is_on(*pid)).collect()
}

/// Result of a sweep.
#[derive(Default)]
struct Swept {
    /// Processes that SIGKILL was sent to or refused for.
    found: Vec<u32>,
    /// A process is in `execve`: it may turn out to be one of the attempt's.
    is_one_loading: bool,
}

/// Sends SIGKILL to every process with the mark, except this one.
fn sweep(mark: &Mark, killed: &mut Vec<Killed>) -> Result<Swept, LaunchError> {
    let unreadable = |source| LaunchError::Folder { doing: "list the processes in", path: "/proc".into(), source };
    let mut swept = Swept::default();
    for process in fs::read_dir("/proc").map_err(unreadable)? {
        let name = process.map_err(unreadable)?.file_name();
        let Some(pid) = name.to_str().and_then(|name| name.parse().ok()) else { continue };
        let (environment, is_loading) = settled_environment(pid);
        swept.is_one_loading |= is_loading;
        let is_found =
            environment.is_some_and(|environment| are_in(&environment, &mark.entries)) || mark.is_by_session(pid);
        if pid == own_pid() || !is_found {
            continue;
        }
        let started = stat(pid);
        match kill_if_marked(pid, mark) {
            Ok(false) => continue,
            Ok(true) => {
                let new = started.map(|stat| Killed { pid, start_ticks: stat.start_ticks });
                killed.extend(new.filter(|new| !killed.contains(new)));
            }
            Err(error) => tracing::warn!(pid, %error, "a process of a lost attempt can't be killed"),
        }
        swept.found.push(pid);
    }
    Ok(swept)
}

/// Kills a process if it has the mark. The descriptor is opened before the mark is checked again, so a later
/// process with the same id is never hit.
fn kill_if_marked(pid: u32, mark: &Mark) -> io::Result<bool> {
    let Some(number) = as_pid(pid) else { return Ok(false) };
    let descriptor = match pidfd_open(number, PidfdFlags::empty()) {
        Ok(descriptor) => descriptor,
        Err(Errno::SRCH) => return Ok(false),
        Err(error) => return Err(error.into()),
    };
    if !mark.is_on(pid) {
        return Ok(false);
    }
    match pidfd_send_signal(&descriptor, Signal::KILL) {
        Ok(()) => Ok(true),
        Err(Errno::SRCH) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// Returns a process's initial environment, and whether the process is in `execve`, so that the environment
/// isn't known yet. `execve` may end between two reads, so an environment that seems empty is read again.
fn settled_environment(pid: u32) -> (Option<Vec<u8>>, bool) {
    for _ in 0..EMPTY_READS {
        let environment = environment(pid);
        if !environment.as_ref().is_some_and(Vec::is_empty) {
            return (environment, false);
        }
        if stat(pid).is_some_and(|stat| stat.is_loading) {
            return (environment, true);
        }
    }
    (Some(Vec::new()), false)
}

/// Reports whether exactly these `NAME=value` are in an environment.
fn are_in(environment: &[u8], entries: &[Vec<u8>]) -> bool {
    entries.iter().all(|entry| environment.split(|byte| *byte == 0).any(|found| found == entry))
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt;
    use std::process::{Child, Command};

    use super::*;

    /// Starts a sleeping child. Until its `execve` it shows this process's environment, which isn't an
    /// attempt's.
    fn sleeper(folder: &Path) -> Child {
        let child = Command::new("sleep").arg("60").env(ATTEMPT_FOLDER_VARIABLE, folder).spawn().expect("sleep starts");
        let program = |pid: u32| fs::read_link(format!("/proc/{pid}/exe")).expect("it runs");
        while program(child.id()) == program(own_pid()) {
            std::thread::yield_now();
        }
        child
    }

    #[test]
    fn exactly_the_processes_of_the_attempt_are_killed() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let (mut ours, mut longer) = (sleeper(folder.path()), sleeper(&folder.path().join("x")));
        let mut shorter = sleeper(folder.path().parent().expect("it is in a folder"));
        let mut killed = Vec::new();
        assert!(kill_attempt(folder.path(), &mut killed).is_ok());
        assert!(killed.is_empty(), "what is gone is forgotten");
        assert_eq!(ours.wait().expect("it can be reaped").signal(), Some(9));
        for other in [&mut longer, &mut shorter] {
            assert_eq!(other.try_wait().expect("it can be asked"), None, "another's process lives");
            other.kill().expect("it can be killed");
            other.wait().expect("it can be reaped");
        }
    }

    #[test]
    fn one_that_has_only_just_been_started_is_killed() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        for _ in 0..20 {
            let mut ours = sleeper(folder.path());
            assert!(kill_attempt(folder.path(), &mut Vec::new()).is_ok());
            assert_eq!(ours.wait().expect("it can be reaped").signal(), Some(9));
        }
    }

    #[test]
    fn one_without_an_environment_is_left_alone() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let mut bare = Command::new("sleep").arg("60").env_clear().spawn().expect("sleep starts");
        assert!(kill_attempt(folder.path(), &mut Vec::new()).is_ok());
        assert_eq!(bare.try_wait().expect("it can be asked"), None);
        bare.kill().expect("it can be killed");
        bare.wait().expect("it can be reaped");
    }

    #[test]
    fn one_that_was_killed_but_is_not_gone_is_an_error() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let start_ticks = stat(own_pid()).expect("this process runs").start_ticks;
        let mut killed = vec![Killed { pid: own_pid(), start_ticks }];
        let failure = kill_attempt(folder.path(), &mut killed);
        assert!(matches!(failure, Err(LaunchError::Fence { left }) if left[0].starts_with(&own_pid().to_string())));
        assert_eq!(killed.len(), 1, "it is remembered for the next try");
        killed[0].start_ticks += 1;
        assert!(kill_attempt(folder.path(), &mut killed).is_ok());
    }
}
