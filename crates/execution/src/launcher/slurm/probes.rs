//! Whether nodes answer whose supervisors are silent. Slurm's own word takes minutes (SlurmdTimeout is 300 s by default), and its
//! programs may be slow just then: nodes are asked directly, beside the looks at Slurm.

use std::collections::BTreeMap;
use std::net::TcpStream;
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread::{Builder, sleep};
use std::time::{Duration, Instant};

use super::nodes::SlurmNode;
use super::sight::Sight;

/// How long a node's slurmd may take to take a connection.
const WAIT_MAX: Duration = Duration::from_millis(800);
/// Nodes that are asked at one time at most.
const UNDER_WAY_MAX: usize = 64;
/// So many times in a row a node must not answer.
const FAILED_MIN: u32 = 2;
/// Between those.
const PAUSE: Duration = Duration::from_millis(500);
/// What a node answered says nothing of it any more after this long.
const AGAIN_AFTER: Duration = Duration::from_secs(1);
/// A node is forgotten that answers, or hasn't answered once, and that nobody has asked after for this long.
const INTEREST: Duration = Duration::from_secs(5);

/// The nodes that somebody asked after, or that don't answer.
#[derive(Clone, Debug, Default)]
pub(super) struct Probes {
    nodes: Arc<Mutex<BTreeMap<String, Probe>>>,
}

#[derive(Debug)]
struct Probe {
    /// When somebody last wanted to know.
    wanted_at: Instant,
    /// When the node was last asked.
    asked_at: Option<Instant>,
    is_under_way: bool,
    failures: u32,
    /// When it was asked what it answered to.
    answered: Option<Instant>,
}

/// Whether a node answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// It wasn't asked lately, or hasn't answered only once.
    Unknown,
    Answers,
    /// It has not answered several times in a row.
    Unreachable,
}

impl Probes {
    fn nodes(&self) -> MutexGuard<'_, BTreeMap<String, Probe>> {
        self.nodes.lock().expect("no thread panics while it holds what nodes answered")
    }

    /// Somebody wants to know whether a node answers. Doesn't wait for it.
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

    /// Asks the nodes again that don't answer, those first that weren't asked for longest. One that answers stays unreachable until it is
    /// settled: what was killed there meanwhile, or died with it, is gone.
    pub(super) fn revisit(&self, sight: &Sight, is_settled: impl Fn(&str) -> bool) {
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
            if let Some(node) = sight.node(&name) {
                self.ask(node, is_settled(&name));
            }
        }
    }

    /// Whether a node answers, as far as it was asked.
    pub(super) fn verdict(&self, node: &str) -> Verdict {
        match self.nodes().get(node) {
            Some(probe) if probe.failures >= FAILED_MIN => Verdict::Unreachable,
            Some(probe) if probe.answered.is_some_and(|at| at.elapsed() < AGAIN_AFTER) => Verdict::Answers,
            Some(_) | None => Verdict::Unknown,
        }
    }

    /// Whether a node answered lately, be it that it counts as unreachable until what was killed there is gone.
    pub(super) fn has_answered(&self, node: &str) -> bool {
        self.nodes().get(node).and_then(|probe| probe.answered).is_some_and(|at| at.elapsed() < INTEREST)
    }

    /// Asks a node unless that is under way, or too many are asked now: then its turn comes.
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

    /// Takes in what a node answered, if that could be known. Whether it is to be asked once more to be sure.
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

/// Whether the slurmd of a node takes a connection; none if its address isn't known.
fn answers(node: &SlurmNode) -> Option<bool> {
    Some(TcpStream::connect_timeout(&node.slurmd()?, WAIT_MAX).is_ok())
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    /// What 22.05.8 printed of four nodes.
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
