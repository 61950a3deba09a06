//! Looks at the cache of datasets that the job's ranks use on this node, so that the control plane can place later jobs near
//! their data.
//!
//! A look lists a folder and takes a stat of each object's file, on a thread of its own, since a file system may be slow. Small
//! changes aren't reported: a cache that fills up would cause a report after each look.

use std::path::PathBuf;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::Duration;

use tokio::sync::mpsc;

use super::environment::{self, Environment};
use super::input::{Action, Input};
use super::node_attempt::NodeAttempt;
use crate::datasets::held;
use crate::protocol::{CacheReport, CachedDataset, SupervisorSpec};

/// The delay of the first look; pauses between looks double up to the second figure.
const FIRST_LOOK: Duration = Duration::from_secs(2);
const LOOK_EVERY_MAX: Duration = Duration::from_secs(30);
/// How long the end waits for the last look.
const LAST_LOOK_MAX: Duration = Duration::from_millis(500);
/// A change by this part of a dataset is news.
const NEWS_PARTS: u64 = 16;

/// Looks at the cache from time to time, and once more at the end.
pub(super) struct CacheWatch {
    /// Asks for the last look; what it found comes back.
    last: Option<(Sender<()>, Receiver<CacheReport>)>,
}

impl CacheWatch {
    /// Starts looking. The cache of ranks in a container is inside of it, and isn't looked at.
    pub(super) fn start(spec: &SupervisorSpec, inherited: &Environment, inputs: mpsc::Sender<Input>) -> CacheWatch {
        let environment = environment::of_node(spec, inherited);
        let folder = gangline_data::cache_folder(&environment).filter(|_| spec.container.is_none());
        let folder = folder.map(|folder| spec.workdir.join(folder));
        CacheWatch { last: folder.and_then(|folder| watch(folder, inputs)) }
    }

    /// Returns what the cache holds at the end, if it can be told soon.
    pub(super) fn last_look(&mut self) -> Option<CacheReport> {
        let (ask, found) = self.last.take()?;
        ask.send(()).ok()?;
        found.recv_timeout(LAST_LOOK_MAX).ok()
    }
}

/// Starts the thread. If there is none, the control plane merely knows less of the node.
fn watch(folder: PathBuf, inputs: mpsc::Sender<Input>) -> Option<(Sender<()>, Receiver<CacheReport>)> {
    let ((ask, asked), (tell, told)) = (channel(), channel());
    let look = move || {
        let (mut pause, mut known) = (FIRST_LOOK, None);
        loop {
            let is_last = match asked.recv_timeout(pause) {
                Err(RecvTimeoutError::Disconnected) => return,
                asked => asked.is_ok(),
            };
            let Some(found) = held(&folder) else { return };
            if is_last {
                // The receiver has stopped waiting if this took long.
                let _ = tell.send(found);
                return;
            }
            if known.as_ref().is_none_or(|known| is_news(known, &found)) {
                known = Some(found.clone());
                if inputs.blocking_send(Input::Cached(found)).is_err() {
                    return;
                }
            }
            pause = (pause * 2).min(LOOK_EVERY_MAX);
        }
    };
    thread::Builder::new().name("dataset-cache".to_owned()).spawn(look).ok()?;
    Some((ask, told))
}

/// Reports whether another dataset is there, or clearly more or less of one.
fn is_news(known: &CacheReport, found: &CacheReport) -> bool {
    let of = |report: &CacheReport, name: &str| {
        report.datasets.iter().find(|held| held.dataset == name).map_or(0, |held| held.here_bytes)
    };
    let all = known.datasets.iter().chain(&found.datasets);
    let changed = |held: &CachedDataset| {
        let (before, now) = (of(known, &held.dataset), of(found, &held.dataset));
        before != now && before.abs_diff(now) >= (held.bytes / NEWS_PARTS).max(1) || (before == 0) != (now == 0)
    };
    all.into_iter().any(changed)
}

impl NodeAttempt {
    /// Takes what the cache of datasets holds into the report.
    pub(super) fn cached(&mut self, cache: CacheReport) -> Vec<Action> {
        self.has_news |= self.cache.as_ref() != Some(&cache);
        self.cache = Some(cache);
        Vec::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_new_dataset_and_a_clear_change_are_news() {
        let report = |held: &[(&str, u64)]| CacheReport {
            folder: "/c".to_owned(),
            datasets: held
                .iter()
                .map(|(name, here)| CachedDataset { dataset: (*name).to_owned(), here_bytes: *here, bytes: 160 })
                .collect(),
        };
        let check = |known: &[(&str, u64)], found: &[(&str, u64)], expected: bool| {
            assert_eq!(is_news(&report(known), &report(found)), expected, "{known:?} {found:?}");
        };
        check(&[], &[], false);
        check(&[], &[("a", 1)], true);
        check(&[("a", 1)], &[], true);
        check(&[("a", 100)], &[("a", 109)], false);
        check(&[("a", 100)], &[("a", 110)], true);
        check(&[("a", 100), ("b", 9)], &[("b", 9), ("a", 100)], false);
    }
}
