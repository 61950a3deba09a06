//! Probes nodes whose supervisors are silent. Slurm itself takes minutes to notice (SlurmdTimeout is 300 s by
//! default), and its programs may be slow just then, so nodes are contacted directly, independently of
//! queries of Slurm.

use std::collections::BTreeMap;
use std::net::TcpStream;
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread::{Builder, sleep};
use std::time::{Duration, Instant};

use super::SlurmLauncher;
use super::nodes::SlurmNode;
use super::snapshot::Snapshot;

/// Maximum time for a node's slurmd to accept a connection.
const WAIT_MAX: Duration = Duration::from_millis(800);
/// Maximum number of simultaneous probes.
const UNDER_WAY_MAX: usize = 64;
/// Number of failed probes in a row after which a node is unreachable.
const FAILED_MIN: u32 = 2;
/// Pause between those probes.
const PAUSE: Duration = Duration::from_millis(500);
/// The result of a probe expires after this time.
const AGAIN_AFTER: Duration = Duration::from_secs(1);
/// A node that responds, or has failed only once, is forgotten if nobody has asked about it for this long.
const INTEREST: Duration = Duration::from_secs(5);

/// The nodes that somebody asked about, or that don't respond.
#[derive(Clone, Debug, Default)]
pub(super) struct Probes {
    nodes: Arc<Mutex<BTreeMap<String, Probe>>>,
}

#[derive(Debug)]
struct Probe {
    /// Time when somebody last asked about it.
    wanted_at: Instant,
    /// Time of the last probe.
    asked_at: Option<Instant>,
    is_under_way: bool,
    failures: u32,
    /// Start of the last probe that succeeded.
    answered: Option<Instant>,
}

/// Whether a node responds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// It wasn't probed lately, or has failed only once.
    Unknown,
    Answers,
    /// Several probes in a row have failed.
    Unreachable,
}

impl Probes {
    fn nodes(&self) -> MutexGuard<'_, BTreeMap<String, Probe>> {
        self.nodes.lock().expect("no thread panics while it holds what nodes answered")
    }

    /// Requests a probe of a node. Doesn't wait for it.
    pub(super) fn want(&self, node: &SlurmNode) {
        let is_due = {
            let mut nodes = self.nodes();
            let probe = nodes.entry(node.name.clone()).or_insert_with(Probe::new);
            probe.wanted_at = Instant::now();
            probe.failures < FAILED_MIN && probe.asked_at.is_none_or(|at| at.elapsed() >= AGAIN_AFTER)
        };
        if is_due {
            self.ask(node, true);
        }
    }

    /// Probes unreachable nodes again, the longest unprobed first. A node that responds stays unreachable
    /// until it is settled: the processes that were killed there meanwhile, or died with it, are gone.
    pub(super) fn revisit(&self, snapshot: &Snapshot, is_settled: impl Fn(&str) -> bool) {
        let mut silent: Vec<(Option<Instant>, String)> = {
            let mut nodes = self.nodes();
            let is_kept =
                |probe: &Probe| probe.failures > 0 || probe.is_under_way || probe.wanted_at.elapsed() <= INTEREST;
            nodes.retain(|_, probe| is_kept(probe));
            nodes
                .iter()
                .filter(|(_, probe)| probe.failures > 0)
                .map(|(name, probe)| (probe.asked_at, name.clone()))
                .collect()
        };
        silent.sort();
        for (_, name) in silent {
            if let Some(node) = snapshot.node(&name) {
                self.ask(node, is_settled(&name));
            }
        }
    }

    /// Returns whether a node responds, by its probes so far.
    pub(super) fn verdict(&self, node: &str) -> Verdict {
        match self.nodes().get(node) {
            Some(probe) if probe.failures >= FAILED_MIN => Verdict::Unreachable,
            Some(probe) if probe.answered.is_some_and(|at| at.elapsed() < AGAIN_AFTER) => Verdict::Answers,
            Some(_) | None => Verdict::Unknown,
        }
    }

    /// Reports whether a node responded lately, even if it still counts as unreachable until its killed
    /// processes are gone.
    pub(super) fn has_answered(&self, node: &str) -> bool {
        self.nodes().get(node).and_then(|probe| probe.answered).is_some_and(|at| at.elapsed() < INTEREST)
    }

    /// Starts a probe of a node unless one is running, or too many are; then it is probed later.
    fn ask(&self, node: &SlurmNode, may_be_back: bool) {
        {
            let mut nodes = self.nodes();
            let is_full = nodes.values().filter(|probe| probe.is_under_way).count() >= UNDER_WAY_MAX;
            let Some(probe) = nodes.get_mut(&node.name).filter(|probe| !probe.is_under_way && !is_full) else { return };
            probe.is_under_way = true;
            probe.asked_at = Some(Instant::now());
        }
        let (probes, asked) = (self.clone(), node.clone());
        let started = Builder::new().name("probe".to_owned()).spawn(move || {
            while probes.answered(&asked.name, answers(&asked), may_be_back) {
                sleep(PAUSE);
            }
        });
        if let Err(error) = started {
            tracing::warn!(%error, node = node.name, "no thread to ask a node whether it answers");
            self.answered(&node.name, None, may_be_back);
        }
    }

    /// Records the result of a probe, if there is one. Returns whether to probe once more to be sure.
    fn answered(&self, node: &str, answer: Option<bool>, may_be_back: bool) -> bool {
        let mut nodes = self.nodes();
        let Some(probe) = nodes.get_mut(node) else { return false };
        match answer {
            Some(true) => {
                probe.answered = probe.asked_at;
                if probe.failures < FAILED_MIN || may_be_back {
                    probe.failures = 0;
                }
            }
            Some(false) => {
                probe.answered = None;
                probe.failures = probe.failures.saturating_add(1);
            }
            None => {}
        }
        probe.is_under_way = answer == Some(false) && probe.failures < FAILED_MIN;
        probe.is_under_way
    }
}

impl Probe {
    fn new() -> Probe {
        Probe { wanted_at: Instant::now(), asked_at: None, is_under_way: false, failures: 0, answered: None }
    }
}

/// Reports whether the slurmd of a node accepts a connection; none if its address isn't known.
fn answers(node: &SlurmNode) -> Option<bool> {
    Some(TcpStream::connect_timeout(&node.slurmd()?, WAIT_MAX).is_ok())
}

impl SlurmLauncher {
    /// Returns whether a node responds; starts a probe if that isn't known.
    pub(super) fn verdict(&self, snapshot: &Snapshot, node: &str) -> Verdict {
        let state = self.state();
        if let Some(node) = snapshot.node(node) {
            state.probes.want(node);
        }
        state.probes.verdict(node)
    }

    /// Reports whether a node is unreachable.
    pub(super) fn is_deaf(&self, node: &str) -> bool {
        self.state().probes.verdict(node) == Verdict::Unreachable
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    /// Output of 22.05.8 for four nodes.
    const NODES: &str = include_str!("../../../tests/fixtures/sinfo_22.05.json");

    fn node(port: u16) -> SlurmNode {
        let nodes = super::super::nodes::read(NODES.as_bytes()).expect("it is understood").expect("it has nodes");
        SlurmNode { address: "127.0.0.1".to_owned(), port, ..nodes[0].clone() }
    }

    fn wait_for(probes: &Probes, node: &SlurmNode, verdict: Verdict) -> Duration {
        let since = Instant::now();
        while probes.verdict(&node.name) != verdict {
            assert!(since.elapsed() < Duration::from_secs(20), "{verdict:?} takes too long");
            probes.want(node);
            sleep(Duration::from_millis(10));
        }
        since.elapsed()
    }

    #[test]
    fn a_node_is_unreachable_once_it_has_not_answered_twice() {
        let door = TcpListener::bind("127.0.0.1:0").expect("loopback is there");
        let node = node(door.local_addr().expect("it is bound").port());
        let probes = Probes::default();
        assert_eq!(probes.verdict(&node.name), Verdict::Unknown);
        wait_for(&probes, &node, Verdict::Answers);
        drop(door);
        assert!(wait_for(&probes, &node, Verdict::Unreachable) >= PAUSE, "once isn't enough");
    }

    #[test]
    fn a_node_is_back_when_nothing_is_left_on_it_that_was_killed() {
        let door = TcpListener::bind("127.0.0.1:0").expect("loopback is there");
        let address = door.local_addr().expect("it is bound");
        drop(door);
        let (probes, node) = (Probes::default(), node(address.port()));
        wait_for(&probes, &node, Verdict::Unreachable);
        assert!(!probes.has_answered(&node.name));
        assert!(!probes.answered(&node.name, Some(true), false));
        assert!(probes.has_answered(&node.name) && probes.verdict(&node.name) == Verdict::Unreachable);
        assert!(!probes.answered(&node.name, Some(true), true));
        assert_eq!(probes.verdict(&node.name), Verdict::Answers);
    }
}
