//! Brings datasets into the node's cache for jobs that wait, in a process of its own with the lowest priority, one dataset after
//! the other. What a job reads while it runs it fetches itself, so a fetch that is no longer asked for ends.
//!
//! The process notes in a folder what it asks for, so the job for which it was pays for all of it, however the process ends. It ends
//! once its standard input does: with the agent.

use std::collections::BTreeMap;
use std::io;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::Builder;
use std::time::{Duration, Instant};

use gangline_base::Timestamp;
use gangline_data::{QUOTA_VARIABLE, READS_VARIABLE};

use crate::datasets::{held, reads_in};
use crate::protocol::agent::{DatasetFetched, DatasetWanted, FETCHED_MAX};
use crate::protocol::{CacheReport, DatasetReads};

/// Time between two looks at the process.
const LOOK_EVERY: Duration = Duration::from_millis(500);
/// Time between two looks at the cache while something is fetched.
const REPORT_EVERY: Duration = Duration::from_secs(15);
/// Time before a dataset is fetched again: after a fetch that failed, and after one that didn't, of which the control plane may
/// not know yet.
const AGAIN_AFTER_FAILURE: Duration = Duration::from_mins(10);
const AGAIN_AFTER_SUCCESS: Duration = Duration::from_mins(1);
/// The folder of the cache in which the process notes what it asks for.
const READS: &str = "fetch";
/// Ranges that are asked for at a time: few, since jobs run meanwhile.
const CONNECTIONS: &str = "4";
/// The most fetches that wait to be reported (A-10); of more, the oldest are dropped.
const WAITING_MAX: usize = 1_024;

/// See the module.
#[derive(Debug)]
pub(super) struct Fetcher {
    wanted: Sender<Vec<DatasetWanted>>,
    news: Receiver<News>,
    held: Option<CacheReport>,
    /// Fetches that have ended, and how many of them are on their way.
    fetched: Vec<DatasetFetched>,
    sent: usize,
}

/// What the thread says.
#[derive(Debug)]
enum News {
    Held(CacheReport),
    Fetched(DatasetFetched),
}

impl Fetcher {
    /// `program`: the one whose `data warm URL` fetches a dataset into the folder `cache`.
    pub(super) fn start(program: PathBuf, cache: PathBuf, clock: fn() -> Timestamp) -> io::Result<Fetcher> {
        let ((wanted, wishes), (say, news)) = (channel(), channel());
        let fetching = Fetching {
            program,
            cache,
            clock,
            wishes,
            say,
            wanted: Vec::new(),
            current: None,
            not_before: BTreeMap::new(),
        };
        Builder::new().name("fetcher".to_owned()).spawn(move || fetching.run())?;
        Ok(Fetcher { wanted, news, held: None, fetched: Vec::new(), sent: 0 })
    }

    /// Has these datasets fetched, in place of those before.
    pub(super) fn want(&self, datasets: Vec<DatasetWanted>) {
        // Fails only if the thread has panicked; then nothing is fetched any more.
        let _ = self.wanted.send(datasets);
    }

    /// Takes what the thread has said since the last call.
    pub(super) fn take_news(&mut self) {
        for news in self.news.try_iter() {
            match news {
                News::Held(held) => self.held = Some(held),
                News::Fetched(fetched) => self.fetched.push(fetched),
            }
        }
        let surplus = self.fetched.len().saturating_sub(WAITING_MAX);
        self.fetched.drain(..surplus);
    }

    /// Returns what the cache holds, if that was looked at since the last call.
    pub(super) fn held(&mut self) -> Option<CacheReport> {
        self.held.take()
    }

    /// Returns the oldest fetches that weren't acknowledged.
    pub(super) fn send_fetched(&mut self) -> Vec<DatasetFetched> {
        self.sent = self.fetched.len().min(FETCHED_MAX);
        self.fetched[..self.sent].to_vec()
    }

    /// Forgets the fetches that were sent last: they are noted.
    pub(super) fn acknowledge(&mut self) {
        self.fetched.drain(..std::mem::take(&mut self.sent));
    }
}

struct Fetching {
    program: PathBuf,
    cache: PathBuf,
    clock: fn() -> Timestamp,
    wishes: Receiver<Vec<DatasetWanted>>,
    say: Sender<News>,
    wanted: Vec<DatasetWanted>,
    current: Option<Fetch>,
    /// Datasets that aren't fetched again before a time.
    not_before: BTreeMap<String, Instant>,
}

/// A fetch under way.
struct Fetch {
    wanted: DatasetWanted,
    from: Timestamp,
    child: Child,
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

    /// Looks at the process: one that isn't wanted any more is ended. Returns whether a fetch has ended.
    fn look(&mut self) -> bool {
        let Some(fetch) = &mut self.current else { return false };
        let dataset = &fetch.wanted.dataset;
        match fetch.child.try_wait() {
            Ok(None) if self.wanted.iter().any(|wanted| wanted.dataset == *dataset) => return false,
            Ok(None) | Err(_) => self.give_up(),
            Ok(Some(status)) => {
                if !status.success() {
                    tracing::warn!(dataset, %status, "a dataset can't be fetched for jobs that wait");
                }
                let pause = if status.success() { AGAIN_AFTER_SUCCESS } else { AGAIN_AFTER_FAILURE };
                self.not_before.insert(dataset.clone(), Instant::now() + pause);
                self.end();
            }
        }
        true
    }

    /// Begins with the first dataset whose turn has come.
    fn begin(&mut self) {
        let now = Instant::now();
        self.not_before.retain(|_, at| *at > now);
        let mut wanted = self.wanted.iter();
        let Some(wanted) = wanted.find(|wanted| !self.not_before.contains_key(&wanted.dataset)).cloned() else {
            return;
        };
        let dataset = &wanted.dataset;
        let mut command = Command::new(&self.program);
        command.args(["data", "warm", "--fits", "--background"]);
        command.args(["--connections", CONNECTIONS, "--cache"]).arg(&self.cache).arg("--").arg(dataset);
        self.forget_reads();
        command.env(READS_VARIABLE, self.cache.join(READS));
        if let Some(quota) = &wanted.quota {
            command.env(QUOTA_VARIABLE, quota);
        }
        match command.stdin(Stdio::piped()).stdout(Stdio::null()).spawn() {
            Ok(child) => {
                tracing::info!(dataset, "fetches a dataset for jobs that wait");
                self.current = Some(Fetch { wanted, from: (self.clock)(), child });
            }
            Err(error) => {
                tracing::warn!(dataset, %error, "a dataset can't be fetched for jobs that wait");
                self.not_before.insert(wanted.dataset, now + AGAIN_AFTER_FAILURE);
            }
        }
    }

    /// Ends the process. What it has fetched stays in the cache.
    fn give_up(&mut self) {
        let Some(fetch) = &mut self.current else { return };
        let _ = fetch.child.kill();
        let _ = fetch.child.wait();
        self.end();
    }

    /// Says what a process that has ended asked for.
    fn end(&mut self) {
        let Some(Fetch { wanted, from, .. }) = self.current.take() else { return };
        let reads = reads_in(&self.cache.join(READS)).into_values().fold(DatasetReads::default(), DatasetReads::and);
        self.forget_reads();
        if reads != DatasetReads::default() {
            let DatasetWanted { dataset, job, .. } = wanted;
            let (from, to) = (from.unix_nanos(), (self.clock)().unix_nanos());
            let _ = self.say.send(News::Fetched(DatasetFetched { dataset, job, from, to, reads }));
        }
    }

    /// Removes what earlier processes noted.
    fn forget_reads(&self) {
        let _ = std::fs::remove_dir_all(self.cache.join(READS));
    }

    fn report(&self) {
        if let Some(report) = held(&self.cache) {
            let _ = self.say.send(News::Held(report));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use super::*;

    /// A program that notes its arguments and what it asks for, and does what the dataset's name says.
    const PROGRAM: &str = r#"#!/bin/sh
for dataset in "$@"; do :; done
case "$dataset" in *slow) gets=3;; *) gets=1;; esac
mkdir -p "$GANGLINE_DATA_READS"
{
    printf 'tally-1\n'
    for count in 0 $gets 1 0 0 0 7; do printf "\\00$count\0\0\0\0\0\0\0"; done
    printf %s "$dataset"
} > "$GANGLINE_DATA_READS/1"
echo $$ > "${0%/*}/pid"
echo "$dataset" >> "${0%/*}/begun"
case "$dataset" in *slow) cat;; *bad) exit 1;; esac
"#;

    fn fetcher(folder: &Path) -> Fetcher {
        let program = folder.join("program");
        // Written by a process of its own: a process that another test starts meanwhile would have this one's open file, and nobody
        // can run a file that is open for writing (execve(2), ETXTBSY).
        let write = r#"printf %s "$TEXT" > "$0" && chmod 755 "$0""#;
        let written = Command::new("sh").args(["-c", write]).arg(&program).env("TEXT", PROGRAM).status();
        assert!(written.expect("sh starts").success());
        Fetcher::start(program, folder.join("cache"), || Timestamp::from_unix_nanos(5)).expect("a thread")
    }

    fn wanted(names: &[&str]) -> Vec<DatasetWanted> {
        (1..).zip(names).map(|(job, name)| DatasetWanted { dataset: (*name).to_owned(), job, quota: None }).collect()
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
        let mut fetcher = fetcher(folder.path());
        fetcher.want(wanted(&["s3://b/bad", "s3://b/slow", "s3://b/other"]));
        wait_for(folder.path(), &["s3://b/bad", "s3://b/slow"]);
        // It is asked for no longer, and makes room for the next one.
        fetcher.want(wanted(&["s3://b/bad", "s3://b/other"]));
        wait_for(folder.path(), &["s3://b/bad", "s3://b/slow", "s3://b/other"]);
        // What each asked for is told, also of the one that was given up, until it is acknowledged.
        let deadline = Instant::now() + Duration::from_secs(60);
        while fetcher.fetched.len() < 3 {
            assert!(Instant::now() < deadline, "{:?}", fetcher.fetched);
            fetcher.take_news();
            std::thread::sleep(Duration::from_millis(20));
        }
        let told: Vec<(u64, u64, u64)> =
            fetcher.send_fetched().iter().map(|one| (one.job, one.reads.get, one.reads.bytes)).collect();
        assert_eq!(told, [(1, 1, 7), (2, 3, 7), (2, 1, 7)]);
        assert_eq!(fetcher.send_fetched().len(), 3);
        fetcher.acknowledge();
        assert_eq!(fetcher.send_fetched(), []);
    }

    #[test]
    fn a_fetch_ends_with_the_agent() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let fetcher = fetcher(folder.path());
        fetcher.want(wanted(&["s3://b/slow"]));
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
