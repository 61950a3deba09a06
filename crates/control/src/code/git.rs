//! What git knows of code: the commit of a folder, and the commits of other repositories.
//!
//! Git runs with the rights of the control plane on what a user names, so nothing that a repository configures may
//! start a program, no transport but git's own is used, and each call has a time-out.

use std::io::Read;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process_group};

use super::Error;
use super::tree::remove_all;

/// How long a call may take on this machine, and over a network. A submission waits for it, and the command line waits
/// 40 s for an answer.
const LOCAL_MAX: Duration = Duration::from_secs(5);
const RESOLVE_MAX: Duration = Duration::from_secs(10);
const FETCH_MAX: Duration = Duration::from_secs(20);
const LOOK_EVERY: Duration = Duration::from_millis(5);
/// The most output that is read. A longer difference isn't kept.
const OUTPUT_MAX: u64 = 4 << 20;

/// The repository that a folder belongs to.
#[derive(Clone, Debug)]
pub(super) struct Repository {
    folder: PathBuf,
    pub(super) commit: String,
}

/// How a folder differs from its commit.
#[derive(Clone, Debug, Default)]
pub(super) struct Changes {
    pub(super) files: u32,
    pub(super) diff: Vec<u8>,
}

impl Repository {
    /// Returns the repository of a folder; none if it has none, or git doesn't trust it.
    pub(super) fn of(folder: &Path) -> Option<Repository> {
        let said = run(&["rev-parse", "--verify", "HEAD"], Some(folder), LOCAL_MAX).ok()?;
        let commit = String::from_utf8(said).ok()?.trim().to_owned();
        is_commit(&commit).then(|| Repository { folder: folder.to_owned(), commit })
    }

    /// Returns the differences below the folder, as far as git tells.
    pub(super) fn changes(&self) -> Changes {
        let ask = |arguments: &[&str]| run(arguments, Some(&self.folder), LOCAL_MAX).unwrap_or_default();
        let status = ask(&["status", "--porcelain", "--untracked-files=all", "--", "."]);
        let files = status.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()).count();
        let diff = ask(&["diff", "--no-ext-diff", "--no-textconv", "--binary", "HEAD", "--", "."]);
        let is_whole = u64::try_from(diff.len()).is_ok_and(|length| length < OUTPUT_MAX);
        let diff = if is_whole { diff } else { Vec::new() };
        Changes { files: u32::try_from(files).unwrap_or(u32::MAX), diff }
    }
}

/// Returns the commit that a name stands for in a repository elsewhere.
pub(super) fn resolve(url: &str, reference: Option<&str>) -> Result<String, Error> {
    let name = reference.unwrap_or("HEAD");
    if is_commit(name) {
        // Whether the repository has it is known once it is fetched.
        return Ok(name.to_owned());
    }
    let peeled = format!("{name}^{{}}");
    let said = run(&["ls-remote", "--", url, name, &peeled], None, RESOLVE_MAX).map_err(Error::Git)?;
    let said = String::from_utf8_lossy(&said);
    let of = |full: String| said.lines().find_map(|line| line.strip_suffix(&full)?.strip_suffix('\t'));
    // A tag with a message stands for the commit that it names.
    let places =
        [format!("refs/tags/{peeled}"), format!("refs/tags/{name}"), format!("refs/heads/{name}"), name.to_owned()];
    let found = places.into_iter().find_map(of).filter(|commit| is_commit(commit));
    found.map(str::to_owned).ok_or_else(|| Error::NoReference(name.to_owned()))
}

/// A clone, removed when it is dropped.
pub(super) struct Clone(PathBuf);

impl Clone {
    pub(super) fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Clone {
    fn drop(&mut self) {
        if let Err(error) = remove_all(&self.0) {
            tracing::warn!(%error, folder = %self.0.display(), "a clone stays");
        }
    }
}

/// Clones one commit, without its past, into a folder of the store.
pub(super) fn clone(store: &Path, url: &str, commit: &str) -> Result<Clone, Error> {
    let mut random = [0; 8];
    getrandom::fill(&mut random).map_err(|error| Error::Git(error.to_string()))?;
    let clone = Clone(store.join("clones").join(format!("{:016x}", u64::from_ne_bytes(random))));
    let folder = clone.path();
    std::fs::create_dir_all(folder).map_err(Error::at(folder))?;
    run(&["init", "--quiet"], Some(folder), LOCAL_MAX).map_err(Error::Git)?;
    let fetch = ["fetch", "--quiet", "--depth=1", "--no-tags", "--", url, commit];
    run(&fetch, Some(folder), FETCH_MAX).map_err(|said| {
        let is_unknown = said.contains("not our ref") || said.contains("couldn't find remote ref");
        let unknown = || Error::NoReference(commit.to_owned());
        if is_unknown { unknown() } else { Error::Git(said) }
    })?;
    run(&["checkout", "--quiet", "--detach", "FETCH_HEAD"], Some(folder), FETCH_MAX).map_err(Error::Git)?;
    Ok(clone)
}

fn is_commit(text: &str) -> bool {
    matches!(text.len(), 40 | 64) && text.bytes().all(|byte| byte.is_ascii_hexdigit())
}

/// Runs git; the error is what it said was fatal.
fn run(arguments: &[&str], folder: Option<&Path>, time: Duration) -> Result<Vec<u8>, String> {
    let mut command = Command::new("git");
    command.args(["-c", "core.fsmonitor=false", "-c", "core.hooksPath=/dev/null", "-c", "protocol.ext.allow=never"]);
    if let Some(folder) = folder {
        command.arg("-C").arg(folder);
    }
    command.args(arguments).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command.env("GIT_TERMINAL_PROMPT", "0").env("GIT_SSH_COMMAND", "ssh -oBatchMode=yes").env("LC_ALL", "C");
    let mut child = command.process_group(0).spawn().map_err(|error| format!("git can't be started: {error}"))?;
    let (output, errors) = (read(child.stdout.take()), read(child.stderr.take()));
    let deadline = Instant::now() + time;
    let status = loop {
        match child.try_wait().map_err(|error| error.to_string())? {
            Some(status) => break status,
            None if Instant::now() >= deadline => {
                // With the programs that it started, such as ssh.
                let group = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
                let _ = group.map(|group| kill_process_group(group, Signal::KILL));
                let _ = child.wait();
                return Err(format!("git took longer than {} s", time.as_secs()));
            }
            None => thread::sleep(LOOK_EVERY),
        }
    };
    let said = |reader: thread::JoinHandle<Vec<u8>>| reader.join().unwrap_or_default();
    if status.success() {
        return Ok(said(output));
    }
    Err(reason(&String::from_utf8_lossy(&said(errors))))
}

/// Returns the first fatal error among what git said, since general advice follows it; else the last line.
fn reason(errors: &str) -> String {
    let fatal = errors.lines().find_map(|line| line.strip_prefix("fatal: "));
    let last = || errors.lines().rfind(|line| !line.trim().is_empty());
    fatal.or_else(last).unwrap_or("git failed").trim().to_owned()
}

fn read(stream: Option<impl Read + Send + 'static>) -> thread::JoinHandle<Vec<u8>> {
    thread::spawn(move || {
        let mut bytes = Vec::new();
        // Output from before an error is better than none.
        let _ = stream.map(|stream| stream.take(OUTPUT_MAX).read_to_end(&mut bytes));
        bytes
    })
}
