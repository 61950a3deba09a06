//! A node that lacks what supervisors and ranks need, and traps that others set in places that all may write to.

use std::ops::Range;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use gangline_execution::launcher::{Launcher, LocalLauncher, Presence, have_all_succeeded};
use gangline_execution::protocol::{FaultCause, NodeState, Outcome};

use crate::fixtures::attempt::{Attempt, environment};
use crate::fixtures::{gangline, wait_for};

/// A program that does something to itself and then turns into gangline.
fn program_that(folder: &Path, first: &str) -> PathBuf {
    let path = folder.join("gangline-in-want");
    let script = format!("#!/bin/sh\n{first}\nexec {} \"$@\"\n", gangline().display());
    std::fs::write(&path, script).expect("a script");
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).expect("it is ours");
    path
}

/// A control group that bounds the processes and threads in it; it goes at the end.
struct ProcessLimit(PathBuf);

impl ProcessLimit {
    /// None if this user may not make one here.
    fn new(processes: u32) -> Option<ProcessLimit> {
        let roots = ["/sys/fs/cgroup/pids", "/sys/fs/cgroup"].map(Path::new);
        let root = roots.into_iter().find(|root| root.join("cgroup.procs").exists())?;
        let _ = std::fs::write(root.join("cgroup.subtree_control"), "+pids");
        let limit = ProcessLimit(root.join(format!("gangline-test-{}", std::process::id())));
        std::fs::create_dir_all(&limit.0).ok()?;
        std::fs::write(limit.0.join("pids.max"), processes.to_string()).ok()?;
        Some(limit)
    }

    /// A program that turns into gangline in the group.
    fn program(&self, folder: &Path) -> PathBuf {
        let enter = format!("echo $$ > {}", self.0.join("cgroup.procs").display());
        program_that(folder, &enter)
    }
}

impl Drop for ProcessLimit {
    fn drop(&mut self) {
        let is_empty = || std::fs::read_to_string(self.0.join("cgroup.procs")).is_ok_and(|text| text.is_empty());
        wait_for("the group to be empty", || is_empty().then_some(()));
        let _ = std::fs::remove_dir(&self.0);
    }
}

/// How an attempt ended, by its report or by what its launcher sees; none if it isn't over.
fn end_of(attempt: &Attempt) -> Option<Outcome> {
    let ended = attempt.plane.reports().into_iter().find_map(|report| match report.state {
        NodeState::Ended { outcome, .. } => Some(outcome),
        _ => None,
    });
    ended.or_else(|| match attempt.launcher.presence(&attempt.spec.folder).expect("the folder can be read") {
        Presence::Unable { why } => Some(Outcome::Unable { message: why }),
        Presence::Gone if have_all_succeeded(&attempt.spec.folder, 0..1) => Some(Outcome::Succeeded),
        Presence::Gone => {
            let log = std::fs::read_to_string(attempt.spec.folder.join("supervisor.log")).unwrap_or_default();
            panic!("the supervisor has gone without a word that counts: {log}")
        }
        _ => None,
    })
}

/// Runs an attempt under each limit, by the program that has it, and counts how many could not be started and how many succeeded; there
/// is no third end. What else a limit needs lives as long as its attempt. False if it can't be set here.
fn no_want_is_the_jobs_fault<T>(limits: Range<u32>, program: impl Fn(u32, &Path) -> Option<(PathBuf, T)>) -> bool {
    let (mut unable, mut succeeded) = (0, 0);
    for limit in limits {
        let mut attempt = Attempt::of("exit 0").with(|spec| spec.orphan_after_ms = 2_000);
        let Some((program, _needed)) = program(limit, &attempt.spec.workdir) else { return false };
        attempt.launcher = LocalLauncher::new(program, environment());
        attempt.start_supervisor();
        match wait_for("the attempt to end", || end_of(&attempt)) {
            Outcome::Unable { .. } => unable += 1,
            Outcome::Succeeded => succeeded += 1,
            other => panic!("with a limit of {limit} it ended as {other:?}"),
        }
    }
    assert!(unable > 3 && succeeded > 3, "{unable} could not be started, {succeeded} could");
    true
}

/// Proves A-13 where file descriptors run out, be it at the start of the supervisor, of a shim or of a rank: it is no fault of the job.
#[test]
fn want_of_file_descriptors_is_never_the_jobs_fault() {
    let program = |files, folder: &Path| Some((program_that(folder, &format!("ulimit -n {files}")), ()));
    assert!(no_want_is_the_jobs_fault(5..32, program));
}

/// Proves A-13 where processes and threads run out, wherever that happens.
#[test]
fn want_of_processes_is_never_the_jobs_fault() {
    let program = |processes, folder: &Path| {
        let limit = ProcessLimit::new(processes)?;
        Some((limit.program(folder), limit))
    };
    if !no_want_is_the_jobs_fault(1..24, program) {
        println!("skipped: making a control group is not permitted here");
    }
}

/// Proves A-13 where the shell can't be read from its disk, and that a shell that isn't there is told as what was asked for.
#[test]
fn a_shell_that_cannot_be_run_is_no_end_of_the_rank() {
    let tools = tempfile::tempdir().expect("a temporary folder");
    let path = tools.path().display().to_string();
    let end = || {
        let attempt = Attempt::of("exit 0").with(|spec| drop(spec.envs.insert("PATH".to_owned(), path.clone())));
        attempt.launch().plane.wait_for_end()
    };
    let Outcome::Fault { fault } = end() else { panic!("there is no shell") };
    assert!(matches!(&fault.cause, FaultCause::Start { message } if message.contains("No such file")), "{fault:?}");

    // The file ends within the name of its interpreter, which comes after 56 bytes for each part of it: execve says EIO, as on a bad disk.
    let whole = std::fs::read("/bin/sh").expect("there is a shell");
    std::fs::write(tools.path().join("sh"), &whole[..64 + 56 * usize::from(whole[56]) + 8]).expect("it can be written");
    std::fs::set_permissions(tools.path().join("sh"), std::fs::Permissions::from_mode(0o755)).expect("it is ours");
    let Outcome::Unable { message } = end() else { panic!("a disk's error was taken for the job's") };
    assert!(message.contains("Input/output error"), "{message}");
}

/// A folder in memory that looks like a dead supervisor's, with a FIFO for its lock; it goes at the end.
struct Trap(PathBuf);

impl Trap {
    fn set() -> Trap {
        let path = PathBuf::from(format!("/dev/shm/gangline-0000-trap-{}", std::process::id()));
        std::fs::create_dir(&path).expect("a folder");
        let lock = path.join("lock");
        assert!(Command::new("mkfifo").arg(&lock).status().is_ok_and(|status| status.success()));
        // Another user's if that is permitted here, otherwise this one's: either is waited for by who opens it simply.
        let open = |mode| std::fs::Permissions::from_mode(mode);
        std::fs::set_permissions(&lock, open(0o666)).expect("it is ours");
        std::fs::set_permissions(&path, open(0o777)).expect("it is ours");
        let _ = std::os::unix::fs::chown(&lock, Some(65_534), None);
        let _ = std::os::unix::fs::chown(&path, Some(65_534), None);
        Trap(path)
    }
}

impl Drop for Trap {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

#[test]
fn a_fifo_where_staging_folders_are_hangs_no_start() {
    let trap = Trap::set();
    let attempt = Attempt::of("exit 0").launch();
    assert_eq!(attempt.plane.wait_for_end(), Outcome::Succeeded);
    assert!(trap.0.exists(), "what is another's is left alone");
}
