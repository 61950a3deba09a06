//! Agents on the nodes of a real Slurm, where nobody has installed any.

use serde_json::Value;

use crate::fixtures::slurm::{OnSlurm, is_possible};
use crate::fixtures::wait_for;

/// The readings of a metric of a node, and when the agent of the last one started.
fn read(on: &OnSlurm, node: &str) -> Option<(Value, Value)> {
    let node = on.product.json(&["nodes", node]);
    let readings = node["readings"].as_array()?;
    let memory = readings.iter().find(|reading| reading["metric"] == "host.memory_bytes")?;
    Some((memory["values"].clone(), node["agent"]["started_at"].clone()))
}

/// Whether an agent of a supervisor runs; only tests on Slurm have any, and they run one after the other.
fn is_any_agent_left() -> bool {
    let lines = std::fs::read_dir("/proc").expect("it is mounted").flatten();
    let mut lines = lines.filter_map(|entry| std::fs::read(entry.path().join("cmdline")).ok());
    lines.any(|line| line.split(|byte| *byte == 0).any(|word| word == b"--for-supervisor"))
}

#[test]
fn a_job_brings_an_agent_to_a_node_without_one_and_it_makes_room_for_the_nodes_own() {
    if !is_possible() {
        return;
    }
    let mut on = OnSlurm::down(1);
    on.product.change("--agent-every", "1");
    on.product.start();
    on.wait_node("n1", "ready");
    assert_eq!(read(&on, "n1"), None, "nobody reads it yet");
    let gang = "resources: {accelerators: \"H100:1\"}\nrun: sleep 600\n";
    let jobs = ["a", "b"].map(|name| on.product.submit(&format!("name: {name}\n{gang}")));
    jobs.iter().for_each(|id| drop(on.product.wait_state(id, "running")));
    let (first, agent) = wait_for("a reading", || read(&on, "n1"));
    wait_for("another reading of the same agent", || {
        let (values, by) = read(&on, "n1")?;
        assert_eq!(by, agent, "two jobs, one agent");
        (values != first).then_some(())
    });
    let hosts = on.product.run(&["series", &jobs[0], "--hosts"]).stdout;
    assert!(hosts.contains("host.memory_bytes"), "{hosts}");
    // Somebody installs an agent.
    let mut own = on.product.spawn(&["agent", "--node", "n1", "--every", "1"]);
    let own_agent = wait_for("the node's own agent to be the one", || read(&on, "n1").filter(|(_, by)| *by != agent)).1;
    own.kill().expect("it runs");
    own.wait().expect("it ended");
    wait_for("an agent to stand in again", || read(&on, "n1").filter(|(_, by)| *by != own_agent));
    for id in &jobs {
        assert_eq!(on.product.run(&["cancel", id]).code, 0);
        on.product.wait_state(id, "cancelled");
    }
    wait_for("the agents to end with their jobs", || (!is_any_agent_left()).then_some(()));
}
