//! Brings datasets into the node's cache for jobs that wait, in a process of its own with the lowest priority, one dataset after
//! the other. What a job reads while it runs it fetches itself, so a fetch that is no longer asked for ends.

use std::collections::BTreeMap;
use std::io;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::Builder;
use std::time::{Duration, Instant};

use crate::held_datasets::held;
use crate::protocol::CacheReport;

/// Time between two looks at the process.
const LOOK_EVERY: Duration = Duration::from_millis(500);
/// Time between two looks at the cache while something is fetched.
const REPORT_EVERY: Duration = Duration::from_secs(15);
/// Time before a dataset is fetched again: after a fetch that failed, and after one that didn't, of which the control plane may
/// not know yet.
const AGAIN_AFTER_FAILURE: Duration = Duration::from_mins(10);
const AGAIN_AFTER_SUCCESS: Duration = Duration::from_mins(1);
/// Ranges that are asked for at a time: few, since jobs run meanwhile.
const CONNECTIONS: &str = "4";

/// See the module.
#[derive(Debug)]
pub(super) struct Fetcher {
    wanted: Sender<Vec<String>>,
    found: Receiver<CacheReport>,
}

impl Fetcher {
    /// `program`: the one whose `data warm URL` fetches a dataset into the folder `cache`.
    pub(super) fn start(program: PathBuf, cache: PathBuf) -> io::Result<Fetcher> {
        let ((wanted, wishes), (say, found)) = (channel(), channel());
        let fetching =
            Fetching { program, cache, wishes, say, wanted: Vec::new(), current: None, not_before: BTreeMap::new() };
        Builder::new().name("fetcher".to_owned()).spawn(move || fetching.run())?;
        Ok(Fetcher { wanted, found })
    }

    /// Has these datasets fetched, in place of those before.
    pub(super) fn want(&self, datasets: Vec<String>) {
        // Fails only if the thread has panicked; then nothing is fetched any more.
        let _ = self.wanted.send(datasets);
    }

    /// Returns what the cache holds, if that was looked at since the last call.
    pub(super) fn news(&self) -> Option<CacheReport> {
        self.found.try_iter().last()
    }
}

struct Fetching {
    program: PathBuf,
    cache: PathBuf,
    wishes: Receiver<Vec<String>>,
    say: Sender<CacheReport>,
    wanted: Vec<String>,
    current: Option<(String, Child)>,
    /// Datasets that aren't fetched again before a time.
    not_before: BTreeMap<String, Instant>,
}

impl Fetching {
    /// Fetches until the agent ends.
    fn run(mut self) {
        self.report();
        let mut reported = Instant::now();
        loop {
            match self.wishes.recv_timeout(LOOK_EVERY) {
                Ok(wanted) => self.wanted = wanted,
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => break,
            }
            let has_ended = self.look();
            if has_ended || self.current.is_some() && reported.elapsed() >= REPORT_EVERY {
                self.report();
                reported = Instant::now();
            }
            if self.current.is_none() {
                self.begin();
            }
        }
        self.give_up();
    }

    /// Looks at the process: one that isn't wanted any more is killed. Returns whether a fetch has ended.
    fn look(&mut self) -> bool {
        let Some((dataset, child)) = &mut self.current else { return false };
        match child.try_wait() {
            Ok(None) if self.wanted.contains(dataset) => return false,
            Ok(None) | Err(_) => self.give_up(),
            Ok(Some(status)) => {
                if !status.success() {
                    tracing::warn!(dataset, %status, "a dataset can't be fetched for jobs that wait");
                }
                let pause = if status.success() { AGAIN_AFTER_SUCCESS } else { AGAIN_AFTER_FAILURE };
                self.not_before.insert(dataset.clone(), Instant::now() + pause);
                self.current = None;
            }
        }
        true
    }

    /// Begins with the first dataset whose turn has come.
    fn begin(&mut self) {
        let now = Instant::now();
        self.not_before.retain(|_, at| *at > now);
        let Some(dataset) = self.wanted.iter().find(|dataset| !self.not_before.contains_key(*dataset)).cloned() else {
            return;
        };
        let mut command = Command::new(&self.program);
        command.args(["data", "warm", "--fits", "--background"]);
        command.args(["--connections", CONNECTIONS, "--cache"]).arg(&self.cache).arg("--").arg(&dataset);
        match command.stdin(Stdio::null()).stdout(Stdio::null()).spawn() {
            Ok(child) => {
                tracing::info!(dataset, "fetches a dataset for jobs that wait");
                self.current = Some((dataset, child));
            }
            Err(error) => {
                tracing::warn!(dataset, %error, "a dataset can't be fetched for jobs that wait");
                self.not_before.insert(dataset, now + AGAIN_AFTER_FAILURE);
            }
        }
    }

    /// Kills the process. What it has fetched stays in the cache.
    fn give_up(&mut self) {
        if let Some((_, mut child)) = self.current.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    fn report(&self) {
        if let Some(report) = held(&self.cache) {
            let _ = self.say.send(report);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use super::*;

    /// A program that notes its arguments, and does what the dataset's name says.
    const PROGRAM: &str = r#"#!/bin/sh
for dataset in "$@"; do :; done
echo $$ > "${0%/*}/pid"
echo "$dataset" >> "${0%/*}/begun"
case "$dataset" in *slow) exec sleep 600;; *bad) exit 1;; esac
"#;

    fn fetcher(folder: &Path) -> Fetcher {
        let program = folder.join("program");
        // Written by a process of its own: a process that another test starts meanwhile would have this one's open file, and nobody
        // can run a file that is open for writing (execve(2), ETXTBSY).
        let write = r#"printf %s "$TEXT" > "$0" && chmod 755 "$0""#;
        let written = Command::new("sh").args(["-c", write]).arg(&program).env("TEXT", PROGRAM).status();
        assert!(written.expect("sh starts").success());
        Fetcher::start(program, folder.join("cache")).expect("a thread")
    }

    fn wait_for(folder: &Path, expected: &[&str]) {
        let deadline = Instant::now() + Duration::from_secs(60);
        loop {
            let begun = fs::read_to_string(folder.join("begun")).unwrap_or_default();
            if begun.lines().eq(expected.iter().copied()) {
                return;
            }
            assert!(Instant::now() < deadline, "{begun}, not {expected:?}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    #[test]
    fn datasets_are_fetched_in_turn_and_one_that_failed_keeps_no_other_waiting() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let fetcher = fetcher(folder.path());
        let want = |names: &[&str]| fetcher.want(names.iter().map(|name| (*name).to_owned()).collect());
        want(&["s3://b/bad", "s3://b/slow", "s3://b/other"]);
        wait_for(folder.path(), &["s3://b/bad", "s3://b/slow"]);
        // It is asked for no longer, and makes room for the next one.
        want(&["s3://b/bad", "s3://b/other"]);
        wait_for(folder.path(), &["s3://b/bad", "s3://b/slow", "s3://b/other"]);
    }

    #[test]
    fn a_fetch_ends_with_the_agent() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let fetcher = fetcher(folder.path());
        fetcher.want(vec!["s3://b/slow".to_owned()]);
        wait_for(folder.path(), &["s3://b/slow"]);
        drop(fetcher);
        let pid = fs::read_to_string(folder.path().join("pid")).expect("it noted its number");
        let process = Path::new("/proc").join(pid.trim());
        let deadline = Instant::now() + Duration::from_secs(60);
        while process.exists() {
            assert!(Instant::now() < deadline, "it still runs");
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}
