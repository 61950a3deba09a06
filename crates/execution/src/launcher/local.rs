//! Launches supervisors on this machine, as processes in sessions of their own that survive the control
//! plane.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::fs::OpenOptions;
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, MutexGuard};

use rustix::process::{PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use super::fence::{Killed, kill_attempt};
use super::spec::{LOG_FILE, SPEC_FILE, has_started_any, last_words, write_spec};
use super::{LaunchError, Launcher, Presence};
use crate::cgroup::{self, Enforced};
use crate::container::ContainerRuntime;
use crate::process::{Identity, as_pid};
use crate::protocol::SupervisorSpec;
use crate::supervisor::{UNABLE_CODE, recorded_in};

/// Exit code of a Rust program that panics.
const PANIC_CODE: i32 = 101;

/// Why limits don't hold in Docker's containers: only root moves processes from one control group to another.
const UNENFORCED_BY_DOCKER: &str =
    "memory and cpus are not enforced in Docker's containers unless root runs the control plane";

/// Launches on this machine. Supervisors that this process started are its children: they are reaped at each
/// call.
#[derive(Debug)]
pub struct LocalLauncher {
    program: PathBuf,
    environment: BTreeMap<OsString, OsString>,
    children: Mutex<BTreeMap<PathBuf, Child>>,
    /// Folders of attempts whose supervisors could not begin because of a platform error.
    unable: Mutex<BTreeSet<PathBuf>>,
    /// Killed processes that aren't gone yet, by the attempt's folder.
    fenced: Mutex<BTreeMap<PathBuf, Vec<Killed>>>,
    /// Why what jobs ask for isn't enforced; none if it is.
    unenforced: Option<String>,
}

impl LocalLauncher {
    /// Creates a launcher that starts `program supervise SPEC --own-group` in this environment
    /// ([`super::Inherited`]). The path must be absolute, since supervisors start in their attempt's folder.
    #[must_use]
    pub fn new(program: PathBuf, environment: BTreeMap<OsString, OsString>) -> Self {
        LocalLauncher {
            program,
            environment,
            children: Mutex::default(),
            unable: Mutex::default(),
            fenced: Mutex::default(),
            unenforced: Some("memory and cpus are not enforced on this machine".to_owned()),
        }
    }

    /// Has what jobs ask for enforced by control groups, where that is possible here. This process moves into a control
    /// group of its own for it; it has no children yet.
    #[must_use]
    pub fn with_limits(self) -> Self {
        let unenforced = match cgroup::prepare() {
            Ok(Enforced { has_cpus: true }) => None,
            Ok(Enforced { has_cpus: false }) => {
                Some("cpus are not enforced on this machine, only memory is".to_owned())
            }
            Err(why) => Some(format!("memory and cpus are not enforced on this machine: {why}")),
        };
        LocalLauncher { unenforced, ..self }
    }

    /// Returns the children that still run, after reaping the others.
    fn children(&self) -> MutexGuard<'_, BTreeMap<PathBuf, Child>> {
        let mut children = self.children.lock().expect("no thread panics while it holds the children");
        children.retain(|folder, child| match child.try_wait() {
            Ok(None) => true,
            Ok(Some(status)) => {
                // A panic before anything was started is a platform error too: the async runtime panics
                // without file descriptors.
                let is_want = match status.code() {
                    Some(PANIC_CODE) => !has_started_any(folder),
                    code => code == Some(i32::from(UNABLE_CODE)),
                };
                if is_want {
                    self.unable().insert(folder.clone());
                }
                false
            }
            Err(_) => false,
        });
        children
    }

    fn unable(&self) -> MutexGuard<'_, BTreeSet<PathBuf>> {
        self.unable.lock().expect("no thread panics while it holds who could begin nothing")
    }

    fn start(&self, folder: &Path) -> Result<Child, LaunchError> {
        let log = folder.join(LOG_FILE);
        let log_error = |source| LaunchError::Folder { doing: "open", path: log.clone(), source };
        let output = OpenOptions::new().create(true).append(true).mode(0o600).open(&log).map_err(log_error)?;
        let errors = output.try_clone().map_err(log_error)?;
        let mut command = Command::new(&self.program);
        command.env_clear().envs(&self.environment);
        command.arg("supervise").arg(folder.join(SPEC_FILE)).arg("--own-group").current_dir(folder);
        command.stdin(Stdio::null()).stdout(output).stderr(errors);
        // The supervisor makes a session of its own; until then, a Ctrl-C meant for the control plane mustn't
        // reach it.
        command.process_group(0);
        command.spawn().map_err(|source| LaunchError::Start { program: self.program.clone(), source })
    }

    fn launch_one(&self, spec: &SupervisorSpec) -> Result<(), LaunchError> {
        write_spec(spec)?;
        let mut children = self.children();
        if !children.contains_key(&spec.folder) {
            children.insert(spec.folder.clone(), self.start(&spec.folder)?);
        }
        Ok(())
    }
}

impl Launcher for LocalLauncher {
    fn launch(&self, gang: &[SupervisorSpec]) -> Vec<Result<(), LaunchError>> {
        gang.iter().map(|spec| self.launch_one(spec)).collect()
    }

    fn unenforced(&self, image: Option<&str>) -> Option<&str> {
        let is_daemons = |image| ContainerRuntime::of(image, &self.environment).has_daemon();
        let is_apart = || image.is_some_and(is_daemons) && !rustix::process::geteuid().is_root();
        self.unenforced.as_deref().or_else(|| is_apart().then_some(UNENFORCED_BY_DOCKER))
    }

    fn missing_for_image(&self, image: &str) -> Option<String> {
        ContainerRuntime::missing_for(image, &self.environment, "this machine")
    }

    fn presence(&self, folder: &Path) -> Result<Presence, LaunchError> {
        let is_child = self.children().contains_key(folder);
        let is_alive = is_child || signed(folder)?.is_some_and(|supervisor| supervisor.is_alive());
        if is_alive {
            return Ok(Presence::Running);
        }
        Ok(if self.unable().remove(folder) { Presence::Unable { why: last_words(folder) } } else { Presence::Gone })
    }

    fn kill(&self, folder: &Path) -> Result<(), LaunchError> {
        if let Some(mut child) = self.children().remove(folder) {
            let pid = child.id();
            let killed = child.kill().and_then(|()| child.wait());
            killed.map_err(|source| LaunchError::Kill { pid, source })?;
        }
        if let Some(supervisor) = signed(folder)? {
            kill_exactly(&supervisor).map_err(|source| LaunchError::Kill { pid: supervisor.pid, source })?;
        }
        let fenced = || self.fenced.lock().expect("no thread panics while it holds what was killed");
        let mut killed = fenced().remove(folder).unwrap_or_default();
        let fence = kill_attempt(folder, &mut killed);
        if fence.is_err() {
            fenced().insert(folder.to_owned(), killed);
        }
        fence
    }
}

fn signed(folder: &Path) -> Result<Option<Identity>, LaunchError> {
    recorded_in(folder).map_err(|source| LaunchError::Folder {
        doing: "read who supervises",
        path: folder.to_owned(),
        source,
    })
}

/// Kills exactly this process and no later one with its id: the descriptor is opened first, then the identity
/// is checked.
fn kill_exactly(process: &Identity) -> io::Result<()> {
    let Some(pid) = as_pid(process.pid) else {
        return Ok(());
    };
    let descriptor = match pidfd_open(pid, PidfdFlags::empty()) {
        Ok(descriptor) => descriptor,
        Err(rustix::io::Errno::SRCH) => return Ok(()),
        Err(error) => return Err(error.into()),
    };
    if !process.is_alive() {
        return Ok(());
    }
    match pidfd_send_signal(&descriptor, Signal::KILL) {
        Ok(()) | Err(rustix::io::Errno::SRCH) => Ok(()),
        Err(error) => Err(error.into()),
    }
}
