//! Nodes that are asked for in the queue of a real Slurm, where others wait too: a gang has its turn there, keeps its nodes over a
//! fault, and gives them back.

use crate::fixtures::product::{attempts, rank_pid};
use crate::fixtures::slurm::{OnSlurm, is_possible};
use crate::fixtures::{kill, wait_for};

/// A job of somebody else on whole nodes; `more` are options of sbatch.
fn foreign(on: &OnSlurm, more: &[&str]) -> String {
    let options = ["--parsable", "--exclusive", "--job-name=foreign", "--mem=100", "--output=/dev/null"];
    on.slurm("sbatch", &[&options, more, &["--wrap", "exec sleep 600"]].concat())
}

/// The jobs of one state, as `ID NAME`.
fn named(on: &OnSlurm, state: &str) -> Vec<String> {
    let text = on.slurm("squeue", &["--noheader", &format!("--states={state}"), "--sort=i", "--format=%i %j"]);
    text.lines().map(str::to_owned).collect()
}

fn up_in_queue(nodes: u32) -> OnSlurm {
    let mut on = OnSlurm::down(nodes);
    on.product.option("--allocation", "queue");
    on
}

/// Proves that a gang isn't starved: it keeps its place in Slurm's queue before the jobs that others submit later.
#[test]
fn a_gang_has_its_turn_in_slurms_queue_and_keeps_its_nodes_over_a_fault() {
    if !is_possible() {
        return;
    }
    let mut on = up_in_queue(2);
    let before = foreign(&on, &["--nodes=2"]);
    wait_for("the foreign job to run", || (named(&on, "RUNNING").len() == 1).then_some(()));
    on.product.start();
    on.wait_node("n2", "draining");
    let gang = "name: gang\nnum_nodes: 2\nresources: {accelerators: \"H100:4\"}\nrun: exec sleep 600\n";
    let id = on.product.submit(gang);
    let asked = wait_for("the gang's nodes to be asked for", || named(&on, "PENDING").into_iter().next());
    assert!(asked.ends_with(" gangline-queue"), "{asked}");
    let told = || {
        let reason = on.node("n1")["status_reason"].as_str().unwrap_or_default().to_owned();
        let is_told = reason.contains(&format!("in its queue asks for nodes for {id}"));
        is_told.then_some(reason)
    };
    wait_for("the nodes to say what is asked for", told);
    let later: Vec<String> = (0..2).map(|_| foreign(&on, &["--nodes=1"])).collect();
    // A control plane that comes back finds its request, and doesn't lose its place.
    on.product.kill_control_plane();
    on.product.start();
    on.slurm("scancel", &[&before]);
    on.product.wait_state(&id, "running");
    assert_eq!(named(&on, "RUNNING"), std::slice::from_ref(&asked), "the gang runs in what it asked for");
    assert_eq!(named(&on, "PENDING"), later.iter().map(|id| format!("{id} foreign")).collect::<Vec<_>>());
    kill(wait_for("the first rank", || rank_pid(&on.product.job(&id), 0, 0)));
    let is_again = || Some(on.product.job(&id)).filter(|job| attempts(job) == 2 && job["state"] == "running");
    wait_for("another attempt", is_again);
    assert_eq!(named(&on, "RUNNING"), [asked], "the nodes were kept");
    on.product.run(&["cancel", &id]);
    on.product.wait_state(&id, "cancelled");
    wait_for("the nodes to be given back", || {
        let running = named(&on, "RUNNING");
        running.iter().all(|job| job.ends_with(" foreign")).then_some(()).filter(|()| running.len() == 2)
    });
}

#[test]
fn what_no_gang_waits_for_is_withdrawn_and_what_slurm_refuses_is_shown() {
    if !is_possible() {
        return;
    }
    let mut on = up_in_queue(1);
    let before = foreign(&on, &[]);
    on.product.start();
    on.wait_node("n1", "draining");
    let one = "name: one\nresources: {accelerators: \"H100:1\"}\nrun: exit 0\n";
    let id = on.product.submit(one);
    wait_for("a node to be asked for", || (named(&on, "PENDING").len() == 1).then_some(()));
    on.product.run(&["cancel", &id]);
    wait_for("the request to be withdrawn", || named(&on, "PENDING").is_empty().then_some(()));
    on.slurm("scontrol", &["update", "partitionname=main", "state=INACTIVE"]);
    let id = on.product.submit(one);
    wait_for("the refusal to be shown", || {
        let reason = on.node("n1")["status_reason"].as_str().unwrap_or_default().to_owned();
        reason.contains("Slurm hasn't allocated it to Gangline: Slurm refused").then_some(())
    });
    on.slurm("scontrol", &["update", "partitionname=main", "state=UP"]);
    on.slurm("scancel", &[&before]);
    let job = on.product.wait_state(&id, "succeeded");
    assert_eq!((attempts(&job), job["faults"].as_u64()), (1, Some(0)), "{job:#}");
}

/// A gang that comes when its nodes have just been given back, or taken, isn't placed on them, and is charged with no fault.
#[test]
fn a_gang_that_comes_as_its_nodes_go_has_no_fault() {
    if !is_possible() {
        return;
    }
    let mut on = up_in_queue(2);
    on.product.start();
    on.wait_node("n2", "draining");
    let gang = "name: gang\nnum_nodes: 2\nresources: {accelerators: \"H100:4\"}\nrun: exit 0\n";
    let is_held = || !named(&on, "RUNNING").is_empty();
    let succeeds = |id: &str| {
        let job = on.product.wait_state(id, "succeeded");
        assert_eq!(job["faults"].as_u64(), Some(0), "{job:#}");
        attempts(&job)
    };
    succeeds(&on.product.submit(gang));
    // It keeps idle nodes for half a minute.
    wait_for("the nodes to be given back", || (!is_held()).then_some(()));
    assert_eq!(succeeds(&on.product.submit(gang)), 1, "a node that is given back takes nothing");
    wait_for("the nodes to be held", || is_held().then_some(()));
    on.slurm("scancel", &["--name=gangline-queue"]);
    wait_for("the nodes to be taken", || (!is_held()).then_some(()));
    succeeds(&on.product.submit(gang));
}
