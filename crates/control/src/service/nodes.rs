//! The API's view of nodes: their status, the reason for it, and the jobs that hold their devices.

use std::collections::BTreeMap;

use gangline_api as api;
use gangline_base::{Bytes, JobId, Money, NodeId, Timestamp};
use gangline_orchestration::{AdvanceReservation, Event, Job, Node, NodeCapacity, NodeSpec, NodeStatus};
use tracing::{info, warn};

use super::actor::Actor;
use super::batch::Batch;

impl Actor {
    pub(super) fn node_list(&self, now: Timestamp) -> api::NodeList {
        let mut holders: BTreeMap<(NodeId, u32), JobId> = BTreeMap::new();
        for job in self.engine.jobs() {
            for share in job.attempt().map(|attempt| attempt.shares.as_slice()).unwrap_or_default() {
                holders.extend(share.devices.iter().map(|device| ((share.node, *device), job.id)));
            }
        }
        let spares = self.engine.spare_nodes(now);
        let is_removed = |node: &&Node| node.status == NodeStatus::Lost && node.spec.capacity.accelerators == 0;
        let nodes = self.engine.cluster().nodes().filter(|node| !is_removed(node)).map(|node| {
            let is_spare = spares.contains(&node.id);
            let capacity = &node.spec.capacity;
            let config = self.options.nodes.iter().find(|config| config.name == node.spec.name);
            let price = config.and_then(|config| config.price_per_hour);
            let overhead = self.options.billing.overheads.of(&capacity.accelerator, price).per_held_hour();
            api::Node {
                name: node.spec.name.to_string(),
                status: self.status(now, node, is_spare).to_owned(),
                status_reason: self.status_reason(now, node, is_spare),
                leaves_at: self.engine.leaves_at(node.id).map(api::Time),
                pool: capacity.pool.to_string(),
                faults: self.faults(now, node),
                accelerator: capacity.accelerator.to_string(),
                cpus: capacity.cpus,
                memory_bytes: capacity.memory.0,
                price_nano_dollars_per_hour: price.map(Money::nano_dollars),
                overhead_nano_dollars_per_hour: overhead.map(Money::nano_dollars),
                cached_datasets: self.cached_datasets(node.id),
                slots: (0..capacity.accelerators)
                    .map(|device| api::Slot { device, job: holders.get(&(node.id, device)).map(JobId::to_string) })
                    .collect(),
            }
        });
        api::NodeList { nodes: nodes.collect() }
    }

    /// Returns what the node's caches hold of each dataset, most bytes first; of several caches, the one with most of it.
    fn cached_datasets(&self, node: NodeId) -> Vec<api::CachedDataset> {
        let mut most: BTreeMap<&str, (u64, u64)> = BTreeMap::new();
        for held in self.engine.node_caches(node).iter().flat_map(|cache| &cache.datasets) {
            let known = most.entry(&held.dataset).or_default();
            *known = (*known).max((held.here.0, held.total.0));
        }
        let dataset = |(dataset, (here_bytes, bytes)): (&str, (u64, u64))| api::CachedDataset {
            dataset: dataset.to_owned(),
            here_bytes,
            bytes,
        };
        let mut all: Vec<api::CachedDataset> = most.into_iter().map(dataset).collect();
        all.sort_by(|one, other| other.here_bytes.cmp(&one.here_bytes).then_with(|| one.dataset.cmp(&other.dataset)));
        all
    }

    /// Returns the node's recent faults as a score: each fault counts less the older it is.
    fn faults(&self, now: Timestamp, node: &Node) -> f64 {
        let policy = self.engine.cluster().health_policy();
        policy.map_or(0.0, |policy| f64::from(node.condition.health.score_at(now, policy)) / 1_000.0)
    }

    fn status_reason(&self, now: Timestamp, node: &Node, is_spare: bool) -> Option<String> {
        match node.status {
            NodeStatus::Ready => {
                let pool = is_spare.then(|| self.engine.spare_pool(now, &node.spec.capacity.flavour()));
                let spare = pool.map(|pool| format!("kept for jobs that lose a node: {pool}"));
                let held = self.outside_of_node(node);
                let trouble = self.troubles.of_node(&node.spec.name).map(str::to_owned);
                trouble.or_else(|| self.engine.reservation_on(now, &node.spec.name).map(reserved)).or(spare).or(held)
            }
            NodeStatus::Suspect => {
                let until =
                    self.engine.cluster().health_policy().map(|policy| node.condition.health.suspect_until(policy));
                let until = api::Time(until.unwrap_or(now));
                let faults = self.faults(now, node);
                let found = self.found.get(&node.id).map(|found| format!(" ({found})")).unwrap_or_default();
                Some(format!(
                    "{faults:.1} recent faults of its own{found}; takes jobs again at {until}, or with gangline drain --undo"
                ))
            }
            NodeStatus::Draining if !node.condition.is_draining => self.surveyed.reason(&node.spec.name),
            NodeStatus::Draining => Some("drained by an administrator; gangline drain --undo takes it back".to_owned()),
            NodeStatus::Lost => {
                let seen =
                    self.surveyed.reason(&node.spec.name).map(|reason| format!(": {reason}")).unwrap_or_default();
                Some(format!("it is gone{seen}; it takes jobs again when it joins"))
            }
        }
    }

    /// Returns what others hold of a node, or else what the last survey says about it.
    fn outside_of_node(&self, node: &Node) -> Option<String> {
        let others = node.condition.outside.accelerators;
        let held = (others > 0).then(|| format!("others hold {others} of its {}", node.spec.capacity.accelerators));
        held.or(self.surveyed.reason(&node.spec.name))
    }

    /// Removes nodes that the configuration no longer has and on which nothing runs any more: each is a lost node without
    /// capacity, so that it counts for no queue and no job, and comes back if it is configured again.
    pub(super) fn remove_nodes(&mut self, now: Timestamp, batch: &mut Batch) {
        let is_going = |node: &&Node| {
            node.status == NodeStatus::Draining
                && node.condition.is_draining
                && !self.options.nodes.iter().any(|config| config.name == node.spec.name)
        };
        let mut going: BTreeMap<NodeId, NodeSpec> =
            self.engine.cluster().nodes().filter(is_going).map(|node| (node.id, node.spec.clone())).collect();
        if going.is_empty() {
            return;
        }
        for share in self.engine.jobs().filter_map(Job::attempt).flat_map(|attempt| &attempt.shares) {
            going.remove(&share.node);
        }
        for (node, spec) in going {
            info!(node = %spec.name, "a node that isn't in the configuration any more is removed");
            let capacity = NodeCapacity { accelerators: 0, cpus: 0, memory: Bytes(0), ..spec.capacity.clone() };
            for event in [Event::NodeJoined(NodeSpec { capacity, ..spec }), Event::NodeLost { node }] {
                if let Err(refusal) = self.apply(now, event, batch) {
                    warn!(%refusal, "a node could not be removed");
                }
            }
        }
    }

    fn status(&self, now: Timestamp, node: &Node, is_spare: bool) -> &'static str {
        match node.status {
            NodeStatus::Ready if self.troubles.of_node(&node.spec.name).is_some() => "unwell",
            NodeStatus::Ready if self.engine.reservation_on(now, &node.spec.name).is_some() => "reserved",
            NodeStatus::Ready if is_spare => "spare",
            NodeStatus::Ready => "ready",
            NodeStatus::Suspect => "suspect",
            NodeStatus::Draining => "draining",
            NodeStatus::Lost => "lost",
        }
    }
}

fn reserved(reservation: &AdvanceReservation) -> String {
    let AdvanceReservation { name, until, queues, .. } = reservation;
    let queues: Vec<&str> = queues.iter().map(|queue| queue.as_str()).collect();
    let whom = if queues.is_empty() { "nobody".to_owned() } else { format!("queue {}", queues.join(", ")) };
    format!("reservation \"{name}\" for {whom} until {}", api::Time(*until))
}
