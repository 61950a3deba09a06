//! Which agents there are, what their checks find now, and what happened on each node: a line of JSON for each event in a
//! file for each node, so that it outlives the control plane's restarts.
//!
//! Keeps A-10: a file has a limit, beyond which its older half goes.

use std::collections::BTreeMap;
use std::fs::OpenOptions;
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use gangline_api as api;
use gangline_base::{NodeName, Timestamp};
use gangline_execution::files::write_durably;
use gangline_execution::protocol::agent::{AgentFinding, AgentReport};

/// The folder of the histories in the data folder.
const FOLDER: &str = "node-history";
/// Bytes of a node's file beyond which its older half goes; a line has about 150.
const FILE_BYTES_MAX: u64 = 256 << 10;
/// Events that are kept in memory and shown.
const EVENTS_MAX: usize = 100;
/// Bytes of a text in an event.
const TEXT_BYTES_MAX: usize = 400;
/// Without a report for this long an agent isn't current.
const CURRENT: Duration = Duration::from_secs(60);
/// Without a report for this long, or for [`MISSED_MAX`] readings if that is longer, another agent may stand in for an agent.
const ABSENT: Duration = Duration::from_secs(20);
const MISSED_MAX: u32 = 3;

/// See the module. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct Agents {
    folder: PathBuf,
    nodes: Arc<Mutex<BTreeMap<String, OfNode>>>,
}

#[derive(Debug, Default)]
struct OfNode {
    agent: Option<Heard>,
    problems: BTreeMap<String, api::NodeProblem>,
    /// Newest last.
    events: Vec<api::NodeEvent>,
}

#[derive(Clone, Debug)]
struct Heard {
    started_at: Timestamp,
    at: Timestamp,
    every: Duration,
    hung: Vec<String>,
}

impl Agents {
    /// Returns the agents of the control plane of a data folder.
    #[must_use]
    pub fn of(data: &Path) -> Agents {
        Agents { folder: data.join(FOLDER), nodes: Arc::default() }
    }

    /// Notes what was done to a node.
    pub(crate) fn note(&self, node: &str, now: Timestamp, kind: &str, text: &str) {
        let event = event(now, kind, "", text);
        self.change(node, |_| vec![event]);
    }

    /// Reports whether the sender of a report stands in for an agent that is there.
    pub(super) fn is_read_by_another(&self, node: &NodeName, now: Timestamp, report: &AgentReport) -> bool {
        let mut nodes = self.nodes();
        let other = self.known(&mut nodes, node.as_str()).agent.as_ref();
        let other = other.filter(|agent| agent.started_at.unix_nanos() != report.started_at);
        report.stands_in && other.is_some_and(|agent| now.since(agent.at) <= ABSENT.max(agent.every * MISSED_MAX))
    }

    /// Takes in a report. Returns what its checks find that they didn't find before.
    pub(super) fn heard(&self, node: &NodeName, now: Timestamp, report: &AgentReport) -> Vec<AgentFinding> {
        let mut new = Vec::new();
        self.change(node.as_str(), |known| {
            let started_at = Timestamp::from_unix_nanos(report.started_at);
            let is_new = known.agent.as_ref().is_none_or(|agent| agent.started_at != started_at);
            let every = Duration::from_millis(report.every_ms);
            known.agent = Some(Heard { started_at, at: now, every, hung: report.hung.clone() });
            let is_told = |event: &api::NodeEvent| event.kind == "agent" && event.at.0 == started_at;
            let mut events = Vec::new();
            // One that stands in starts with each attempt, which is no news.
            if is_new && !report.stands_in && !known.events.iter().any(is_told) {
                events.push(event(started_at, "agent", "", "its agent started"));
            }
            if let Some(findings) = &report.findings {
                new = known.compare(now, findings, &mut events);
            }
            events
        });
        new
    }

    /// Returns a node's agent, what its checks find now, and what happened on it, newest first.
    pub(super) fn of_node(&self, node: &NodeName, now: Timestamp) -> Shown {
        let mut nodes = self.nodes();
        let known = self.known(&mut nodes, node.as_str());
        let agent = known.agent.as_ref().map(|agent| api::NodeAgent {
            started_at: api::Time(agent.started_at),
            heard_at: api::Time(agent.at),
            every_seconds: agent.every.as_secs_f64(),
            is_current: now.since(agent.at) <= CURRENT,
            hung: agent.hung.clone(),
        });
        let problems = known.problems.values().cloned().collect();
        (agent, problems, known.events.iter().rev().cloned().collect())
    }

    fn change(&self, node: &str, change: impl FnOnce(&mut OfNode) -> Vec<api::NodeEvent>) {
        let mut nodes = self.nodes();
        let known = self.known(&mut nodes, node);
        let events = change(known);
        if events.is_empty() {
            return;
        }
        if let Err(error) = append(&self.folder, &self.file(node), &events) {
            tracing::warn!(node, %error, "the history of a node can't be written");
        }
        known.events.extend(events);
        let more = known.events.len().saturating_sub(EVENTS_MAX);
        known.events.drain(..more);
    }

    /// Returns what is known of a node, from its file at the first time.
    fn known<'a>(&self, nodes: &'a mut BTreeMap<String, OfNode>, node: &str) -> &'a mut OfNode {
        nodes.entry(node.to_owned()).or_insert_with(|| {
            let text = std::fs::read_to_string(self.file(node)).unwrap_or_default();
            OfNode::read(&text)
        })
    }

    fn file(&self, node: &str) -> PathBuf {
        self.folder.join(format!("{node}.jsonl"))
    }

    /// A panic while it was locked leaves it valid: what was noted is a little less.
    fn nodes(&self) -> MutexGuard<'_, BTreeMap<String, OfNode>> {
        self.nodes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A node's agent, what its checks find now, and what happened on it.
pub(super) type Shown = (Option<api::NodeAgent>, Vec<api::NodeProblem>, Vec<api::NodeEvent>);

impl OfNode {
    /// Reads a file; a torn last line, or a damaged one, is passed over.
    fn read(text: &str) -> OfNode {
        let mut known = OfNode::default();
        for event in text.lines().filter_map(|line| serde_json::from_str::<api::NodeEvent>(line).ok()) {
            match event.kind.as_str() {
                "fault" | "warning" => {
                    let (place, measured, is_fault) = (event.place.clone(), event.text.clone(), event.kind == "fault");
                    let problem = api::NodeProblem { place: place.clone(), measured, is_fault, since: event.at };
                    known.problems.insert(place, problem);
                }
                "over" => drop(known.problems.remove(&event.place)),
                _ => {}
            }
            known.events.push(event);
        }
        let more = known.events.len().saturating_sub(EVENTS_MAX);
        known.events.drain(..more);
        known
    }

    /// Compares what is found now with what was found before. Returns what is new.
    fn compare(
        &mut self,
        now: Timestamp,
        findings: &[AgentFinding],
        events: &mut Vec<api::NodeEvent>,
    ) -> Vec<AgentFinding> {
        let mut new = Vec::new();
        for finding in findings {
            let before = self.problems.get(&finding.place);
            let since = before.map_or(api::Time(now), |before| before.since);
            if before.is_none_or(|before| before.is_fault != finding.is_fault) {
                let kind = if finding.is_fault { "fault" } else { "warning" };
                events.push(event(now, kind, &finding.place, &finding.measured));
                new.push(finding.clone());
            }
            let AgentFinding { place, measured, is_fault } = finding.clone();
            self.problems.insert(place.clone(), api::NodeProblem { place, measured, is_fault, since });
        }
        let is_over = |place: &String| !findings.iter().any(|finding| finding.place == *place);
        let over: Vec<String> = self.problems.keys().filter(|place| is_over(place)).cloned().collect();
        for place in over {
            self.problems.remove(&place);
            events.push(event(now, "over", &place, "the check finds nothing any more"));
        }
        new
    }
}

fn event(at: Timestamp, kind: &str, place: &str, text: &str) -> api::NodeEvent {
    let cut = |text: &str| text[..text.floor_char_boundary(TEXT_BYTES_MAX)].to_owned();
    api::NodeEvent { at: api::Time(at), kind: kind.to_owned(), place: cut(place), text: cut(text) }
}

/// Appends events to a file. It isn't synced: after a power failure the last ones may be missing.
fn append(folder: &Path, path: &Path, events: &[api::NodeEvent]) -> io::Result<()> {
    std::fs::create_dir_all(folder)?;
    let mut lines = String::new();
    for event in events {
        lines.push_str(&serde_json::to_string(event)?);
        lines.push('\n');
    }
    let mut file = OpenOptions::new().create(true).append(true).mode(0o600).open(path)?;
    file.write_all(lines.as_bytes())?;
    if file.metadata()?.len() > FILE_BYTES_MAX {
        let text = std::fs::read_to_string(path)?;
        let half = text.floor_char_boundary(text.len() / 2);
        let kept = text[half..].split_once('\n').map_or("", |(_, kept)| kept);
        write_durably(path, kept.as_bytes())?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node() -> NodeName {
        NodeName::new("n1").expect("a name")
    }

    fn at(seconds: u64) -> Timestamp {
        Timestamp::EPOCH + Duration::from_secs(seconds)
    }

    fn report(findings: Option<Vec<AgentFinding>>) -> AgentReport {
        let started_at = at(1).unix_nanos();
        AgentReport {
            version: 1,
            node: "n1".to_owned(),
            started_at,
            every_ms: 5_000,
            batches: Vec::new(),
            findings,
            hung: vec!["NVML".to_owned()],
            cache: None,
            fetches: false,
            fetched: Vec::new(),
            stands_in: false,
        }
    }

    fn stand_in(number: u64) -> AgentReport {
        AgentReport { started_at: at(100 + number).unix_nanos(), stands_in: true, ..report(None) }
    }

    fn finding(place: &str, is_fault: bool) -> AgentFinding {
        AgentFinding { place: place.to_owned(), measured: "79 lines".to_owned(), is_fault }
    }

    #[test]
    fn what_is_found_is_told_once_until_it_is_over_through_a_restart_too() {
        let folder = tempfile::tempdir().expect("a folder");
        let agents = Agents::of(folder.path());
        let found = Some(vec![finding("gpu gpu 3", true), finding("memory", false)]);
        assert_eq!(agents.heard(&node(), at(10), &report(None)), []);
        assert_eq!(agents.heard(&node(), at(20), &report(found.clone())).len(), 2);
        assert_eq!(agents.heard(&node(), at(30), &report(found.clone())), []);
        // The control plane starts again.
        let agents = Agents::of(folder.path());
        assert_eq!(agents.heard(&node(), at(40), &report(found)), [], "they were found before");
        let worse = Some(vec![finding("memory", true)]);
        assert_eq!(agents.heard(&node(), at(50), &report(worse)), [finding("memory", true)]);
        agents.note("n1", at(60), "drained", "drained by an administrator");
        let (agent, problems, history) = agents.of_node(&node(), at(100));
        let agent = agent.expect("it has reported");
        assert!(agent.is_current && agent.hung == ["NVML"], "{agent:?}");
        assert_eq!(problems.iter().map(|p| (p.place.as_str(), p.since.0)).collect::<Vec<_>>(), [("memory", at(20))]);
        let told: Vec<(&str, &str)> = history.iter().map(|e| (e.kind.as_str(), e.place.as_str())).collect();
        let expected = [
            ("drained", ""),
            ("over", "gpu gpu 3"),
            ("fault", "memory"),
            ("warning", "memory"),
            ("fault", "gpu gpu 3"),
            ("agent", ""),
        ];
        assert_eq!(told, expected);
        assert!(!agents.of_node(&node(), at(1_000)).0.expect("it had").is_current, "it is silent");
    }

    #[test]
    fn an_agent_stands_in_only_while_no_other_is_there_and_makes_room_for_the_nodes_own() {
        let folder = tempfile::tempdir().expect("a folder");
        let agents = Agents::of(folder.path());
        let is_taken = |now: u64, report: &AgentReport| {
            let is_taken = !agents.is_read_by_another(&node(), at(now), report);
            if is_taken {
                agents.heard(&node(), at(now), report);
            }
            is_taken
        };
        assert!(is_taken(200, &stand_in(1)), "nobody else is there");
        assert!(!is_taken(201, &stand_in(2)) && is_taken(205, &stand_in(1)), "the first stays");
        assert!(!is_taken(225, &stand_in(2)) && is_taken(226, &stand_in(2)), "the first has ended");
        assert!(is_taken(227, &report(None)) && !is_taken(228, &stand_in(2)), "the node's own goes first");
        let slow = AgentReport { every_ms: 60_000, ..report(None) };
        assert!(is_taken(300, &slow) && !is_taken(480, &stand_in(3)) && is_taken(481, &stand_in(3)));
        let (_, _, history) = agents.of_node(&node(), at(500));
        assert_eq!(history.len(), 1, "only the node's own agent is news: {history:?}");
    }

    #[test]
    fn a_history_is_bounded_and_damage_costs_a_line() {
        let folder = tempfile::tempdir().expect("a folder");
        let agents = Agents::of(folder.path());
        let long = "x".repeat(1_000);
        for second in 0..1_500 {
            agents.note("n1", at(second), "drained", &long);
        }
        let path = agents.file("n1");
        let length = || std::fs::metadata(&path).expect("its file").len();
        assert!(length() <= FILE_BYTES_MAX, "{} bytes", length());
        let text = std::fs::read_to_string(&path).expect("text");
        std::fs::write(&path, format!("torn{text}{{\"at\":")).expect("damaged");
        let (_, _, history) = Agents::of(folder.path()).of_node(&node(), at(0));
        assert_eq!((history.len(), history[0].at.0, history[0].text.len()), (EVENTS_MAX, at(1_499), TEXT_BYTES_MAX));
    }
}
