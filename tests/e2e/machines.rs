//! Slurm over several machines: each node is in a network namespace of its own, so supervisors and ranks reach each other
//! and the control plane by the network only.

use crate::fixtures::network::Network;
use crate::fixtures::product::{self, attempts};
use crate::fixtures::slurm::{OnSlurm, is_possible};
use crate::fixtures::wait_for;

/// A gang of two nodes with a rank on each, which train one model over the network between them.
fn training(steps: u32, folder: &str) -> String {
    let options = format!("--steps {steps} --checkpoint-every 20 --step-time-min 20");
    product::training("num_nodes: 2\nresources: {accelerators: \"H100:1\"}", &options, folder)
}

#[test]
fn a_gang_on_other_machines_trains_and_reports_by_tls() {
    if !is_possible() {
        return;
    }
    let Some(network) = Network::new(1, 2) else { return };
    let mut on = OnSlurm::across(&network);
    on.product.start();
    assert!(on.product.url().starts_with(&format!("https://{}:", network.here())), "{}", on.product.url());
    for (node, (_, address)) in ["n1", "n2"].into_iter().zip(network.hosts()) {
        on.wait_node(node, "ready");
        assert!(on.slurm("scontrol", &["show", "node", node]).contains(&address.to_string()), "{node} is elsewhere");
    }
    let folder = on.product.path("checkpoints").to_str().expect("text").to_owned();
    let id = on.product.submit(&training(60, &folder));
    let job = on.product.wait_state(&id, "succeeded");
    assert_eq!(job["progress"]["step"].as_u64(), Some(60), "{job:#}");
    assert_eq!(OnSlurm::places(&job), ["n1", "n2"]);
}

/// Proves: a machine that nobody hears any more is given up, and when it is heard again its ranks are gone.
#[test]
fn a_gang_goes_on_elsewhere_when_a_machine_is_cut_off() {
    if !is_possible() {
        return;
    }
    let Some(network) = Network::new(2, 3) else { return };
    let mut on = OnSlurm::across(&network);
    on.product.option("--orphan-after", "3");
    on.product.start();
    for node in ["n1", "n2", "n3"] {
        on.wait_node(node, "ready");
    }
    let folder = on.product.path("checkpoints").to_str().expect("text").to_owned();
    let id = on.product.submit(&training(300, &folder));
    let job = on.product.wait_step(&id, 60);
    let (cut, before) = (OnSlurm::places(&job).remove(0), attempts(&job));
    let number: u8 = cut[1..].parse().expect("nodes are n1 to n3");
    network.plug(number, false);
    // On a machine that is busy, supervisors may have lost the control plane for three seconds without that.
    wait_for("the job to run elsewhere", || {
        let job = on.product.job(&id);
        let is_elsewhere = attempts(&job) > before && !OnSlurm::places(&job).contains(&cut);
        (is_elsewhere && job["state"] == "running").then_some(())
    });
    let job = on.product.wait_state(&id, "succeeded");
    assert_eq!(job["progress"]["step"].as_u64(), Some(300));
    assert!(on.product.run(&["logs", &id]).stdout.contains("resumed from step"));
    network.plug(number, true);
    on.wait_node(&cut, "ready");
    let marks = [format!("SLURMD_NODENAME={cut}"), format!("GANGLINE_JOB_ID={id}")];
    assert_eq!(ranks_with(&marks), 0, "what ran there has ended");
}

/// Processes whose environments have all of these.
fn ranks_with(marks: &[String]) -> usize {
    let processes = std::fs::read_dir("/proc").expect("/proc is there").flatten();
    let environments = processes.filter_map(|process| std::fs::read(process.path().join("environ")).ok());
    let has = |environment: &[u8], mark: &str| environment.split(|byte| *byte == 0).any(|word| word == mark.as_bytes());
    environments.filter(|environment| marks.iter().all(|mark| has(environment, mark))).count()
}
