//! Surveys of the launcher's own system, repeated by a thread that may block: the nodes it has, the nodes
//! that are closed or gone, and their external usage.
//!
//! While that system doesn't answer, all nodes stay as they were. Changes are events in the journal,
//! so a restart knows them.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender};
use std::time::{Duration, Instant};

use gangline_base::{AcceleratorKind, Money, NodeName, PoolName, Timestamp, with_causes};
use gangline_execution::launcher::{Launcher, Openness, SURVEY_INTERVAL, SurveyedNode};
use gangline_orchestration::{Event, ExternalUsage, Location, Node, NodeCapacity, NodeSpec, NodeStatus};
use gangline_specs::config::NodeConfig;
use tracing::{info, warn};

use super::actor::Actor;
use super::batch::Batch;
use super::handle::Request;

/// How often the launcher is asked when the next survey is due.
const LOOK_AGAIN: Duration = Duration::from_millis(100);
/// A survey that takes long is followed by a pause of this many times its duration, so that surveys take at
/// most a tenth of the time, but at most [`PAUSE_MAX`].
const REST_TIMES: u32 = 9;
/// The longest pause between two surveys.
const PAUSE_MAX: Duration = Duration::from_secs(8);

/// Options for nodes that come from the launcher.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SurveyOptions {
    /// The price of an accelerator-hour on nodes whose kind isn't on the price list.
    pub price_per_hour: Option<Money>,
}

/// What surveys say about nodes beyond the engine's state.
#[derive(Debug, Default)]
pub(super) struct Surveyed {
    /// Why each of these nodes takes no new jobs.
    because: BTreeMap<NodeName, String>,
    /// Why surveys fail at the moment.
    silence: Option<String>,
}

impl Surveyed {
    /// Returns why a node takes no new jobs, and a note if that may be out of date.
    pub(super) fn reason(&self, node: &NodeName) -> Option<String> {
        let silence = self.silence.as_ref().map(|silence| format!("as it was last seen ({silence})"));
        let reasons: Vec<String> = self.because.get(node).cloned().into_iter().chain(silence).collect();
        (!reasons.is_empty()).then(|| reasons.join("; "))
    }
}

/// Whether any job waits or runs, for the surveying thread.
pub(super) type HasJobs = Arc<AtomicBool>;

/// Runs the surveying thread until the other end of `stop` is dropped.
pub(super) fn run(
    launcher: &Arc<dyn Launcher>,
    has_jobs: &HasJobs,
    stop: &Receiver<()>,
    service: &SyncSender<Request>,
) {
    let mut failures = 0_u32;
    loop {
        let began = Instant::now();
        let survey = match launcher.survey() {
            // This launcher has no nodes of its own.
            Ok(None) => return,
            Ok(Some(nodes)) => Ok(nodes),
            Err(failure) => Err(with_causes(&failure)),
        };
        failures = if survey.is_ok() { 0 } else { failures.saturating_add(1) };
        let allocations = launcher.allocations();
        if service.send(Request::Surveyed { survey, allocations }).is_err() {
            return;
        }
        let backoff = SURVEY_INTERVAL.saturating_mul(1 << failures.min(4)).min(PAUSE_MAX);
        let rest = backoff.max(began.elapsed().saturating_mul(REST_TIMES).min(PAUSE_MAX));
        let ended = Instant::now();
        let pause = || rest.max(launcher.survey_interval(has_jobs.load(Ordering::Relaxed)));
        loop {
            let left = pause().saturating_sub(ended.elapsed());
            match stop.recv_timeout(left.min(LOOK_AGAIN)) {
                Err(RecvTimeoutError::Timeout) if left <= LOOK_AGAIN => break,
                Err(RecvTimeoutError::Timeout) => {}
                Ok(()) | Err(RecvTimeoutError::Disconnected) => return,
            }
        }
    }
}

impl Actor {
    /// Returns the engine's nodes, which are used until the first survey.
    pub(super) fn nodes_of_last_life(&self) -> Vec<NodeConfig> {
        let known = |node: &Node| NodeConfig {
            name: node.spec.name.clone(),
            capacity: node.spec.capacity.clone(),
            location: node.spec.location.clone(),
            layout: node.spec.layout.clone(),
            links_file: None,
            address: node.spec.name.to_string(),
            price_per_hour: self.price_of(&node.spec.capacity.accelerator),
        };
        self.engine.cluster().nodes().map(known).collect()
    }

    fn price_of(&self, kind: &AcceleratorKind) -> Option<Money> {
        let listed = self.options.sharing.prices.get(kind).copied();
        listed.or(self.options.survey.and_then(|survey| survey.price_per_hour))
    }

    pub(super) fn surveyed(&mut self, now: Timestamp, survey: Result<Vec<SurveyedNode>, String>, batch: &mut Batch) {
        if self.journal.poison().is_some() {
            return;
        }
        let nodes = match survey {
            Ok(nodes) => nodes,
            Err(silence) => {
                if self.surveyed.silence.as_ref() != Some(&silence) {
                    warn!(
                        because = silence,
                        "nodes can't be surveyed: they stay as they were, jobs go on, and it is tried again"
                    );
                    self.surveyed.silence = Some(silence);
                }
                return;
            }
        };
        if self.surveyed.silence.take().is_some() {
            info!(nodes = nodes.len(), "nodes are surveyed again");
        }
        let mut listed = BTreeMap::new();
        for node in nodes {
            match NodeName::new(&node.name) {
                Ok(name) => {
                    listed.insert(name, node);
                }
                Err(error) => warn!(node = node.name, %error, "a node can't be used"),
            }
        }
        let gone: Vec<NodeName> = self.engine.cluster().nodes().map(|node| node.spec.name.clone()).collect();
        for name in gone.into_iter().filter(|name| !listed.contains_key(name)) {
            let outside = ExternalUsage { is_closed: true, ..self.outside_of(&name) };
            self.surveyed.because.insert(name.clone(), "it isn't listed any more".to_owned());
            self.observe(now, &name, outside, batch);
        }
        for (name, node) in listed {
            self.follow_node(now, name, &node, batch);
        }
    }

    /// Updates the engine from what a survey says about one node.
    fn follow_node(&mut self, now: Timestamp, name: NodeName, seen: &SurveyedNode, batch: &mut Batch) {
        let known = self.engine.node_id(&name).and_then(|id| self.engine.cluster().node(id));
        let known = known.map(|node| (node.id, node.spec.clone(), node.status == NodeStatus::Lost));
        let because = match &seen.openness {
            Openness::Open => None,
            Openness::Closed { because } | Openness::Silent { because } | Openness::Down { because } => Some(because),
        };
        match because {
            Some(because) => self.surveyed.because.insert(name.clone(), because.clone()),
            None => self.surveyed.because.remove(&name),
        };
        let is_there = match (&seen.openness, &known) {
            (Openness::Down { because }, Some((id, _, false))) => {
                warn!(node = %name, because, "a node is lost");
                self.apply_seen(now, Event::NodeLost { node: *id }, batch);
                false
            }
            // An unreachable node that the engine doesn't know, or takes for lost, joins once it is well.
            (Openness::Down { .. }, _) | (Openness::Silent { .. }, None | Some((_, _, true))) => false,
            _ => true,
        };
        if !is_there {
            return;
        }
        let spec = self.spec_of(name.clone(), seen);
        self.configure_node(&spec, seen);
        let is_same = known.as_ref().is_some_and(|(_, old, is_lost)| *old == spec && !is_lost);
        if !is_same {
            // A rack may have moved with all its nodes: all of them leave the old place before the first
            // joins the new one.
            let moved =
                known.filter(|(_, old, _)| old.location != spec.location && old.location != Location::default());
            if let Some((_, old, _)) = moved {
                self.apply_seen(now, Event::NodeJoined(NodeSpec { location: Location::default(), ..old }), batch);
            }
            info!(node = %name, accelerators = seen.accelerators, kind = seen.kind, "a node has joined");
            self.apply_seen(now, Event::NodeJoined(spec), batch);
        }
        let taken = seen.taken;
        let outside = ExternalUsage {
            is_closed: because.is_some(),
            accelerators: taken.accelerators,
            cpus: taken.cpus,
            memory: taken.memory,
        };
        self.observe(now, &name, outside, batch);
    }

    fn spec_of(&self, name: NodeName, seen: &SurveyedNode) -> NodeSpec {
        NodeSpec {
            capacity: NodeCapacity {
                pool: PoolName::default(),
                accelerator: AcceleratorKind(seen.kind.clone()),
                accelerators: seen.accelerators,
                cpus: seen.cpus,
                memory: seen.memory,
            },
            location: seen.domains.iter().cloned().collect(),
            layout: Default::default(),
            name,
        }
    }

    /// Updates the node's address and price, which the engine doesn't keep.
    fn configure_node(&mut self, spec: &NodeSpec, seen: &SurveyedNode) {
        let config = NodeConfig {
            name: spec.name.clone(),
            capacity: spec.capacity.clone(),
            location: spec.location.clone(),
            layout: spec.layout.clone(),
            links_file: None,
            address: seen.address.clone(),
            price_per_hour: self.price_of(&spec.capacity.accelerator),
        };
        match self.options.nodes.iter_mut().find(|node| node.name == spec.name) {
            Some(node) => *node = config,
            None => self.options.nodes.push(config),
        }
    }

    fn outside_of(&self, name: &NodeName) -> ExternalUsage {
        let node = self.engine.node_id(name).and_then(|id| self.engine.cluster().node(id));
        node.map(|node| node.condition.outside).unwrap_or_default()
    }

    fn observe(&mut self, now: Timestamp, name: &NodeName, outside: ExternalUsage, batch: &mut Batch) {
        if let Some(node) = self.engine.node_id(name).filter(|_| self.outside_of(name) != outside) {
            self.apply_seen(now, Event::NodeObserved { node, outside }, batch);
        }
    }

    fn apply_seen(&mut self, now: Timestamp, event: Event, batch: &mut Batch) {
        if let Err(refusal) = self.apply(now, event, batch) {
            warn!(%refusal, "what was seen of a node doesn't fit");
        }
    }
}
