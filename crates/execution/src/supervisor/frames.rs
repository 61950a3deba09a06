//! The Python frames of a rank's processes, without a tool and without the right to trace other processes.
//!
//! Every Python that a rank starts finds Gangline's `sitecustomize` first on its path. It registers `faulthandler`
//! for a signal that nothing else uses, and hands on to the next module of that name. When a rank hangs, its
//! processes get the signal and write the frames of all threads to the rank's file, even if they hang in C code.
//! The signal would end a process that doesn't handle it, so only those get it that do and have the file open.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::process::{PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use super::environment::Environment;
use crate::process::as_pid;

/// The folder in the attempt's folder that Python's path begins with.
const FOLDER: &str = "python";
const HOOK_FILE: &str = "sitecustomize.py";
const HOOK: &str = include_str!("sitecustomize.py");
/// The file of the rank, for the hook; empty: the job wants no hook.
const VARIABLE: &str = "GANGLINE_STACKS";
const PYTHON_PATH: &str = "PYTHONPATH";
/// Linux never sends it by itself; the hook knows its number.
const SIGNAL: Signal = Signal::STKFLT;
/// How long a process may take to begin its answer.
const ANSWER_MAX: Duration = Duration::from_secs(3);
/// An answer that hasn't grown for so long is complete.
const SETTLED: Duration = Duration::from_millis(200);
const LOOK_EVERY: Duration = Duration::from_millis(5);
/// Most bytes of an answer that are read, and most open files of a process that are looked at.
const ANSWER_BYTES_MAX: u64 = 64 << 10;
const OPEN_FILES_MAX: usize = 4_096;

/// Returns the file that the processes of a rank write their frames to.
pub(super) fn file_of(folder: &Path, rank: u32) -> PathBuf {
    folder.join(FOLDER).join(format!("rank-{rank}.txt"))
}

/// Makes the processes of a rank find the hook, unless the job doesn't want it. A failure costs the frames and
/// nothing else.
pub(super) fn offer(environment: &mut Environment, folder: &Path, rank: u32) {
    let is_unwanted = environment.get(&OsString::from(VARIABLE)).is_some_and(|value| value.is_empty());
    // A path with a colon can't be an entry of Python's path.
    if is_unwanted || folder.as_os_str().as_bytes().contains(&b':') {
        return;
    }
    if let Err(error) = write_hook(folder, rank) {
        tracing::warn!(%error, rank, "no Python frames will be seen if the rank hangs");
        return;
    }
    let mut path = folder.join(FOLDER).into_os_string();
    if let Some(own) = environment.get(&OsString::from(PYTHON_PATH)).filter(|own| !own.is_empty()) {
        path.push(":");
        path.push(own);
    }
    environment.insert(PYTHON_PATH.into(), path);
    environment.insert(VARIABLE.into(), file_of(folder, rank).into_os_string());
}

fn write_hook(folder: &Path, rank: u32) -> io::Result<()> {
    let place = folder.join(FOLDER);
    fs::DirBuilder::new().recursive(true).mode(0o700).create(&place)?;
    fs::write(place.join(HOOK_FILE), HOOK)?;
    fs::OpenOptions::new().create(true).append(true).mode(0o600).open(file_of(folder, rank))?;
    Ok(())
}

/// Returns the frames of a process that answers; none if it has no hook or doesn't answer in time.
pub(super) fn of(pid: u32, file: &Path) -> Option<String> {
    let mut answers = File::open(file).ok()?;
    let process = pidfd_open(as_pid(pid)?, PidfdFlags::empty()).ok()?;
    if !handles(pid) || !has_open(pid, &answers.metadata().ok()?) {
        return None;
    }
    let before = answers.metadata().ok()?.len();
    pidfd_send_signal(&process, SIGNAL).ok()?;
    let asked = Instant::now();
    let (mut length, mut grown) = (before, asked);
    while grown.elapsed() < if length == before { ANSWER_MAX } else { SETTLED } && asked.elapsed() < ANSWER_MAX * 2 {
        std::thread::sleep(LOOK_EVERY);
        let now = answers.metadata().ok()?.len();
        if now != length {
            (length, grown) = (now, Instant::now());
        }
    }
    answers.seek(SeekFrom::Start(before)).ok()?;
    let mut text = Vec::new();
    answers.take(ANSWER_BYTES_MAX).read_to_end(&mut text).ok()?;
    (!text.is_empty()).then(|| String::from_utf8_lossy(&text).into_owned())
}

/// Reports whether a process handles the signal, by the mask in `/proc/PID/status` (proc(5)).
fn handles(pid: u32) -> bool {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigCgt:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or_default();
    mask >> (SIGNAL.as_raw() - 1) & 1 == 1
}

/// Reports whether a process has this file open. The hook's file may be closed by the program and its number
/// taken by another file, which mustn't get the frames.
fn has_open(pid: u32, file: &fs::Metadata) -> bool {
    let open = fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten().take(OPEN_FILES_MAX);
    open.filter_map(|entry| fs::metadata(entry.path()).ok())
        .any(|found| found.ino() == file.ino() && found.dev() == file.dev())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::ffi::OsStr;
    use std::process::{Child, Command};

    use super::*;

    fn started(folder: &Path, script: &str, more: &[(&str, &str)]) -> Child {
        let mut environment: Environment =
            std::env::vars_os().filter(|(name, _)| name == "PATH" || name == "HOME").collect();
        environment.extend(more.iter().map(|(name, value)| (OsString::from(name), OsString::from(value))));
        offer(&mut environment, folder, 3);
        let mut command = Command::new("python3");
        command.args(["-c", script]).env_clear().envs(&environment).current_dir(folder);
        command.spawn().expect("python3 starts")
    }

    fn wait_for(folder: &Path, name: &str) -> String {
        for _ in 0..3_000 {
            if let Ok(text) = fs::read_to_string(folder.join(name))
                && text.ends_with('\n')
            {
                return text;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        panic!("{name} was never written");
    }

    fn end(mut child: Child) {
        child.kill().expect("it can be killed");
        child.wait().expect("it can be reaped");
    }

    /// Hangs in `inner`, in a child that it forked, and says so in a file.
    const HANGS: &str = "
import os, time
def waits_for_a_peer():
    open('ready', 'a').write('%d\\n' % os.getpid())
    while True: time.sleep(600)
child = os.fork()
if child == 0: waits_for_a_peer()
def waits_for_its_child(): os.wait()
waits_for_its_child()
";

    #[test]
    fn a_hung_python_and_the_child_that_it_forked_tell_their_frames_and_go_on() {
        let folder = tempfile::tempdir().expect("a folder");
        let parent = started(folder.path(), HANGS, &[]);
        let child: u32 = wait_for(folder.path(), "ready").trim().parse().expect("a process id");
        let file = file_of(folder.path(), 3);
        for _ in 0..2 {
            let frames = of(child, &file).unwrap_or_default();
            assert!(frames.contains("in waits_for_a_peer"), "{frames}");
            assert!(!frames.contains("waits_for_its_child"), "each answer is one process's: {frames}");
        }
        let frames = of(parent.id(), &file).unwrap_or_default();
        assert!(frames.contains("in waits_for_its_child"), "{frames}");
        crate::process::kill_all(&[child]);
        end(parent);
    }

    #[test]
    fn a_users_own_module_and_path_are_kept() {
        let folder = tempfile::tempdir().expect("a folder");
        let own = folder.path().join("own");
        fs::create_dir(&own).expect("a folder");
        fs::write(own.join("sitecustomize.py"), "import sys; sys.was_customized = True\n").expect("a file");
        fs::write(own.join("mine.py"), "name = 'mine'\n").expect("a file");
        let script = "
import sys, sitecustomize, mine
said = [sys.was_customized, sitecustomize.__file__, mine.name, [p for p in sys.path if p.endswith('/python')]]
open('said', 'w').write('%r\\n' % said)
";
        let child = started(folder.path(), script, &[(PYTHON_PATH, own.to_str().expect("text"))]);
        let said = wait_for(folder.path(), "said");
        end(child);
        let expected = format!("[True, '{}', 'mine', []]\n", own.join("sitecustomize.py").display());
        assert_eq!(said, expected);
    }

    #[test]
    fn who_handles_no_such_signal_or_closed_the_file_is_left_alone() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = file_of(folder.path(), 3);
        let ready = "open('ready', 'w').write('yes\\n'); import time; time.sleep(600)";
        let cases = [
            (format!("import signal; signal.signal(16, signal.SIG_DFL); {ready}"), ""),
            (format!("import os; os.closerange(3, 64); f = open('data', 'w'); {ready}"), ""),
            (ready.to_owned(), "off"),
        ];
        for (script, off) in cases {
            let more: &[(&str, &str)] = if off.is_empty() { &[] } else { &[(VARIABLE, "")] };
            let mut child = started(folder.path(), &script, more);
            wait_for(folder.path(), "ready");
            assert_eq!(of(child.id(), &file), None, "{script}");
            assert_eq!(child.try_wait().expect("it is a child"), None, "it runs on: {script}");
            end(child);
            fs::remove_file(folder.path().join("ready")).expect("it was written");
        }
        assert_eq!(fs::read_to_string(folder.path().join("data")).expect("it was made"), "");
    }

    #[test]
    fn a_job_that_wants_no_hook_has_its_own_environment() {
        let folder = tempfile::tempdir().expect("a folder");
        let pair = |name: &str, value: &str| (OsString::from(name), OsString::from(value));
        let mut unwanted: Environment = BTreeMap::from([pair(VARIABLE, ""), pair(PYTHON_PATH, "/mine")]);
        offer(&mut unwanted, folder.path(), 0);
        assert_eq!(unwanted.get(OsStr::new(PYTHON_PATH)), Some(&OsString::from("/mine")));
        assert!(!folder.path().join(FOLDER).exists());
        let mut empty: Environment = BTreeMap::from([pair(PYTHON_PATH, "")]);
        offer(&mut empty, folder.path(), 0);
        assert_eq!(empty.get(OsStr::new(PYTHON_PATH)), Some(&folder.path().join(FOLDER).into_os_string()));
    }
}
