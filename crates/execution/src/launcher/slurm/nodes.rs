//! Reads Slurm's nodes: `sinfo --json` of 22.05, `scontrol show nodes --json` of later versions (whose sinfo
//! groups nodes).

use std::net::{SocketAddr, ToSocketAddrs};

use serde_json::Value;

use super::{gres, json};
use crate::launcher::{LaunchError, Openness};

/// The program that prints this output.
const PROGRAM: &str = "sinfo";
/// The kind of a CPU slot.
const CPU_KIND: &str = "cpu";
/// slurmd's port unless Slurm names another.
const SLURMD_PORT: u16 = 6818;
/// States in which a node is gone, with everything that ran there. One that Slurm has powered down to save power isn't among them:
/// Slurm powers it up for the first job that is allocated to it.
const DOWN: [&str; 3] = ["DOWN", "ERROR", "FUTURE"];
/// Flags of a node that doesn't respond for now; Slurm sets DOWN once it has given the node up.
const SILENT: [&str; 3] = ["NOT_RESPONDING", "NO_RESPOND", "UNKNOWN"];
/// States and flags in which nothing new starts on a node; what runs there continues.
const CLOSED: [&str; 14] = [
    "DRAIN",
    "DRAINED",
    "DRAINING",
    "FAIL",
    "FAILING",
    "MAINTENANCE",
    "MAINT",
    "REBOOT_ISSUED",
    "REBOOT_REQUESTED",
    "POWERING_DOWN",
    "POWERING_UP",
    "POWER_DOWN",
    "INVALID_REG",
    "BLOCKED",
];

/// A node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct SlurmNode {
    pub(super) name: String,
    pub(super) address: String,
    pub(super) port: u16,
    pub(super) cpus: u32,
    pub(super) threads_per_core: u32,
    pub(super) memory_mib: u64,
    /// Its GPUs; those of the first type, if it has several.
    pub(super) gpus: Option<gres::Gpus>,
    pub(super) gpus_used: u32,
    pub(super) cpus_used: u32,
    pub(super) memory_used_mib: u64,
    pub(super) partitions: Vec<String>,
    pub(super) states: Vec<String>,
    pub(super) reason: String,
}

/// Returns the nodes in the output, of all partitions; none if this version's sinfo groups them.
pub(super) fn read(output: &[u8]) -> Result<Option<Vec<SlurmNode>>, LaunchError> {
    let document = json::parse(PROGRAM, output)?;
    if document["nodes"].is_null() && document["sinfo"].is_array() {
        return Ok(None);
    }
    json::list(PROGRAM, &document, "nodes")?.iter().map(read_one).collect::<Result<_, _>>().map(Some)
}

fn read_one(node: &Value) -> Result<SlurmNode, LaunchError> {
    let name = json::text(&node["name"]).to_owned();
    let missing = |what: &str| json::not_understood(PROGRAM, format!("node \"{name}\" has no {what}"));
    if name.is_empty() {
        return Err(json::not_understood(PROGRAM, "a node has no name".to_owned()));
    }
    let mut states = json::words(&node["state"]);
    states.extend(json::words(&node["state_flags"]));
    if states.is_empty() {
        return Err(missing("state"));
    }
    let address = Some(json::text(&node["address"])).filter(|address| !address.is_empty()).unwrap_or(&name);
    let partitions = node["partitions"].as_array().map(Vec::as_slice).unwrap_or_default();
    Ok(SlurmNode {
        address: address.to_owned(),
        port: json::number(&node["port"]).and_then(|port| u16::try_from(port).ok()).unwrap_or(SLURMD_PORT),
        cpus: json::small(&node["cpus"]).ok_or_else(|| missing("cpus"))?,
        threads_per_core: json::small(&node["threads"]).unwrap_or(1).max(1),
        memory_mib: json::number(&node["real_memory"]).ok_or_else(|| missing("real_memory"))?,
        gpus: gres::read(json::text(&node["gres"])).into_iter().find(|gpus| gpus.count > 0),
        gpus_used: gres::count(json::text(&node["gres_used"])),
        cpus_used: json::small(&node["alloc_cpus"]).unwrap_or(0),
        memory_used_mib: json::number(&node["alloc_memory"]).unwrap_or(0),
        partitions: partitions.iter().map(|partition| json::text(partition).to_owned()).collect(),
        states,
        reason: json::text(&node["reason"]).to_owned(),
        name,
    })
}

impl SlurmNode {
    /// Returns the kind and number of its accelerators.
    pub(super) fn accelerators(&self) -> (String, u32) {
        match &self.gpus {
            Some(gpus) => (gpus.kind(), gpus.count),
            None => (CPU_KIND.to_owned(), self.cpus),
        }
    }

    /// Returns how many of its accelerators are held.
    pub(super) fn accelerators_used(&self) -> u32 {
        if self.gpus.is_some() { self.gpus_used } else { self.cpus_used }
    }

    /// Reports whether so many of its GPUs are free, and a CPU, which every job takes.
    pub(super) fn has_room(&self, gpus: u32) -> bool {
        let free = self.gpus.as_ref().map_or(0, |all| all.count.saturating_sub(self.gpus_used));
        free >= gpus && self.cpus_used < self.cpus
    }

    /// Reports whether a job would find it as it was: in the same state, with as much in use.
    pub(super) fn is_as_free_as(&self, before: &SlurmNode) -> bool {
        // Slurm plans anew which node the first job in line will get whenever it looks through its queue.
        let states =
            |node: &SlurmNode| node.states.iter().filter(|state| *state != "PLANNED").cloned().collect::<Vec<_>>();
        let used = |node: &SlurmNode| (node.gpus_used, node.cpus_used, node.memory_used_mib);
        states(self) == states(before) && used(self) == used(before)
    }

    /// Reports whether a reservation that has begun has it.
    pub(super) fn is_reserved(&self) -> bool {
        self.states.iter().any(|state| state == "RESERVED")
    }

    /// Returns whether gangs may start on it, by its state in Slurm.
    pub(super) fn openness(&self) -> Openness {
        let found = |list: &[&str]| self.states.iter().find(|state| list.contains(&state.as_str()));
        if let Some(state) = found(&DOWN) {
            return Openness::Down { because: self.because(state) };
        }
        let is_asleep = found(&["POWERED_DOWN"]).is_some();
        if let Some(state) = found(&SILENT).filter(|_| !is_asleep) {
            return Openness::Silent { because: self.because(state) };
        }
        match found(&CLOSED) {
            Some(state) => Openness::Closed { because: self.because(state) },
            None => Openness::Open,
        }
    }

    fn because(&self, state: &str) -> String {
        let reason = if self.reason.is_empty() { String::new() } else { format!(": {}", self.reason) };
        format!("Slurm says {state}{reason}")
    }

    /// Returns the address of its slurmd, if the node's address can be resolved here.
    pub(super) fn slurmd(&self) -> Option<SocketAddr> {
        (self.address.as_str(), self.port).to_socket_addrs().ok()?.next()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Output of 22.05.8 for four nodes: one idle, one shared, one with two jobs, one drained.
    const OF_22_05: &str = include_str!("../../../tests/fixtures/sinfo_22.05.json");
    /// The same nodes in the schema of v0.0.42 (24.11).
    const OF_24_11: &str = include_str!("../../../tests/fixtures/scontrol_nodes_24.11.json");

    fn nodes(output: &str) -> Vec<SlurmNode> {
        read(output.as_bytes()).expect("it is understood").expect("it has nodes")
    }

    #[test]
    fn nodes_of_both_forms_are_the_same() {
        let (old, new) = (nodes(OF_22_05), nodes(OF_24_11));
        assert_eq!(old.len(), 4);
        let told = |node: &SlurmNode| (node.accelerators(), node.accelerators_used(), node.cpus, node.cpus_used);
        assert_eq!(old.iter().map(told).collect::<Vec<_>>(), new.iter().map(told).collect::<Vec<_>>());
        assert_eq!(told(&old[1]), (("H100".to_owned(), 4), 3, 16, 7));
        assert_eq!(
            (old[1].port, old[1].memory_mib, old[1].partitions.as_slice()),
            (17002, 4000, &["main".to_owned()][..])
        );
        let openness = |nodes: &[SlurmNode]| nodes.iter().map(SlurmNode::openness).collect::<Vec<_>>();
        assert_eq!(openness(&old), openness(&new));
        let because = "Slurm says DRAIN: because of test".to_owned();
        assert_eq!(old[3].openness(), Openness::Closed { because });
        assert_eq!(old[0].openness(), Openness::Open);
    }

    #[test]
    fn states_say_whether_gangs_may_start() {
        let check = |states: &[&str], expected: &str| {
            let states = states.iter().map(|state| (*state).to_owned()).collect();
            let node = SlurmNode { states, ..nodes(OF_22_05)[0].clone() };
            let openness = match node.openness() {
                Openness::Open => "open",
                Openness::Closed { .. } => "closed",
                Openness::Silent { .. } => "silent",
                Openness::Down { .. } => "down",
            };
            assert_eq!(openness, expected, "{:?}", node.states);
        };
        check(&["MIXED", "COMPLETING"], "open");
        check(&["ALLOCATED", "NOT_RESPONDING"], "silent");
        check(&["DOWN", "NOT_RESPONDING"], "down");
        check(&["DOWN", "DRAIN"], "down");
        check(&["IDLE", "POWERED_DOWN"], "open");
        check(&["IDLE", "POWERED_DOWN", "NOT_RESPONDING"], "open");
        check(&["DOWN", "POWERED_DOWN"], "down");
        check(&["IDLE", "POWERED_DOWN", "DRAIN"], "closed");
        check(&["ALLOCATED", "POWERING_UP"], "closed");
        check(&["IDLE", "INVALID_REG"], "closed");
        check(&["UNKNOWN"], "silent");
    }

    #[test]
    fn a_version_whose_sinfo_groups_nodes_says_so_and_what_lacks_a_field_is_refused() {
        let grouped = r#"{"meta": {"slurm": {"version": {"major": "24"}, "release": "24.11.1"}}, "sinfo": []}"#;
        assert_eq!(read(grouped.as_bytes()).expect("it is understood"), None);
        let without = OF_22_05.replacen("\"real_memory\"", "\"memory_real\"", 1);
        let refused = read(without.as_bytes()).expect_err("it lacks memory").to_string();
        assert!(refused.ends_with("node \"n1\" has no real_memory"), "{refused}");
    }
}
