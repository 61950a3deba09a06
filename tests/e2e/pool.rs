//! A standing allocation of a real Slurm: gangs start, share nodes, restart and swap to a spare inside it, without a new Slurm job.

use std::collections::BTreeSet;

use serde_json::Value;

use crate::fixtures::product::{self, attempts};
use crate::fixtures::slurm::{OnSlurm, is_possible};
use crate::fixtures::wait_for;

/// A control plane that holds all of so many nodes.
fn pool(nodes: u32) -> OnSlurm {
    let mut on = OnSlurm::down(nodes);
    on.product.option("--allocation", "pool");
    on.product.start();
    (1..=nodes).for_each(|node| drop(on.wait_node(&format!("n{node}"), "ready")));
    on
}

/// The ids of the jobs that Slurm has, whatever they do.
fn jobs(on: &OnSlurm) -> BTreeSet<String> {
    let first = |job: String| job.split(' ').next().unwrap_or_default().to_owned();
    on.jobs("RUNNING,PENDING,CONFIGURING").into_iter().map(first).collect()
}

fn again(on: &OnSlurm, id: &str, number: usize) -> Value {
    wait_for("another attempt", || {
        let job = on.product.job(id);
        (attempts(&job) == number && job["state"] == "running").then_some(job)
    })
}

#[test]
fn gangs_share_the_pool_and_each_has_its_own_devices() {
    if !is_possible() {
        return;
    }
    let on = pool(2);
    let held = jobs(&on);
    assert_eq!(held.len(), 2, "one job a node: {held:?}");
    let out = on.product.path("out");
    std::fs::create_dir(&out).expect("a folder");
    let gang = |name: &str| {
        let say =
            format!("echo $CUDA_VISIBLE_DEVICES > {}/{name}-$SLURMD_NODENAME-$LOCAL_RANK; sleep 2", out.display());
        let run = format!("name: {name}\nnum_nodes: 2\nresources: {{accelerators: \"H100:2\"}}\nrun: {say:?}\n");
        on.product.submit(&run)
    };
    let gangs = [gang("a"), gang("b")];
    gangs.iter().for_each(|id| drop(on.product.wait_state(id, "running")));
    assert_eq!(jobs(&on), held, "gangs are steps in what is held");
    gangs.iter().for_each(|id| drop(on.product.wait_state(id, "succeeded")));
    for node in ["n1", "n2"] {
        let of = |name: &str| std::fs::read_to_string(out.join(format!("{name}-{node}-0"))).expect("the rank wrote it");
        let devices: BTreeSet<String> = [of("a"), of("b")]
            .iter()
            .flat_map(|said| said.trim().split(',').map(str::to_owned).collect::<Vec<_>>())
            .collect();
        assert_eq!(
            devices.len(),
            2 * of("a").trim().split(',').count(),
            "no device is given twice on {node}: {devices:?}"
        );
    }
}

/// A rank that is killed, then a whole node: the gang goes on both times without a new Slurm job. The node is held again once it is back.
#[test]
fn what_restarts_or_moves_to_a_spare_waits_for_no_slurm_job() {
    if !is_possible() {
        return;
    }
    let mut on = pool(3);
    let held = jobs(&on);
    let folder = on.product.path("checkpoints").to_str().expect("text").to_owned();
    let options = "--steps 600 --checkpoint-every 20 --step-time-min 20";
    let shape = "resources: {accelerators: \"H100:4\"}";
    let id = on.product.submit(&product::training(shape, options, &folder));
    let job = on.product.wait_step(&id, 60);
    let pid = job["attempts"][0]["shares"][0]["ranks"][0]["pid"].as_u64().and_then(|pid| u32::try_from(pid).ok());
    crate::fixtures::kill(pid.expect("it runs"));
    let job = again(&on, &id, 2);
    assert_eq!(jobs(&on), held, "a restart in place");
    let lost = OnSlurm::places(&job).remove(0);
    let number: u32 = lost[1..].parse().expect("nodes are n1 to n3");
    on.slurm.kill_node(number);
    on.wait_node(&lost, "lost");
    let job = again(&on, &id, 3);
    assert_ne!(OnSlurm::places(&job), std::slice::from_ref(&lost));
    assert!(jobs(&on).is_subset(&held), "it moved within what was held");
    on.product.wait_state(&id, "succeeded");
    let said = on.product.run(&["logs", &id]).stdout;
    assert!(said.contains("resumed from step"), "{said}");
    on.slurm.start_node(number).expect("it starts again");
    let found = (0..2).find_map(|_| crate::fixtures::try_for(|| (on.node(&lost)["status"] == "ready").then_some(())));
    assert!(found.is_some(), "it is held anew: {:#}", on.node(&lost));
}

#[test]
fn a_pool_takes_what_it_is_told_and_is_given_back() {
    if !is_possible() {
        return;
    }
    let mut on = OnSlurm::down(2);
    let config = on.product.path("gangline.toml");
    std::fs::write(&config, "[launcher]\nkind = 'slurm'\nallocation = 'pool'\npool_nodes = 1\n")
        .expect("it is writable");
    on.product.option("--config", config.to_str().expect("text"));
    let foreign = ["--parsable", "--nodelist=n1", "--mem=100", "--output=/dev/null", "--wrap", "sleep 600"];
    on.slurm("sbatch", &foreign);
    wait_for("the foreign job to run", || (on.jobs("RUNNING").len() == 1).then_some(()));
    on.product.start();
    on.wait_node("n2", "ready");
    let other = on.node("n1");
    let reason = other["status_reason"].as_str().unwrap_or_default();
    assert!(other["status"] == "draining" && reason.contains("the pool doesn't hold it"), "{other:#}");
    let id = on.product.submit("name: long\nresources: {accelerators: \"H100:1\"}\nrun: sleep 600\n");
    on.product.wait_state(&id, "running");
    on.product.kill_control_plane();
    std::fs::write(&config, "[launcher]\nkind = 'slurm'\n").expect("it is writable");
    on.product.start();
    on.wait_node("n1", "ready");
    assert_eq!(on.product.job(&id)["state"], "running", "what runs in the pool goes on");
    assert_eq!(on.product.run(&["cancel", &id]).code, 0);
    on.product.wait_state(&id, "cancelled");
    wait_for("the pool to be given back", || (jobs(&on).len() == 1).then_some(()));
    let refused = std::fs::write(&config, "[launcher]\nkind = 'slurm'\npool_nodes = 2\n");
    refused.expect("it is writable");
    on.product.kill_control_plane();
    let refused = on.product.start_refused();
    assert!(refused.stderr.contains("G0505") && refused.stderr.contains("pool_nodes"), "{}", refused.stderr);
}
