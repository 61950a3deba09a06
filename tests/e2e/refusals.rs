//! Nodes that look free and that Slurm gives to no gang all the same, and gangs that Slurm keeps waiting wherever they are placed.

use crate::fixtures::product::attempts;
use crate::fixtures::slurm::{GPUS, OnSlurm, has_accounts, is_possible};
use crate::fixtures::wait_for;

/// Gangs wait in Slurm's queue for this long at most if other nodes may do.
fn take_back_soon(on: &mut OnSlurm) {
    let config = on.product.path("gangline.toml");
    std::fs::write(&config, "[launcher]\nkind = 'slurm'\npending_seconds_max = 2\n").expect("it is writable");
    on.product.option("--config", config.to_str().expect("text"));
}

/// Keeps the first node for somebody else from some time on.
fn reserve(on: &OnSlurm, from: &str) {
    let from = format!("starttime={from}");
    on.slurm(
        "scontrol",
        &["create", "reservation", "reservationname=course", "users=nobody", &from, "duration=60", "nodes=n1"],
    );
}

/// All of so many nodes.
fn gang(nodes: u32, run: &str) -> String {
    format!("name: gang\nnum_nodes: {nodes}\nresources: {{accelerators: \"H100:{GPUS}\"}}\nrun: {run:?}\n")
}

/// What `gangline nodes` says of the first node.
fn reason(on: &OnSlurm) -> String {
    on.node("n1")["status_reason"].as_str().unwrap_or_default().to_owned()
}

#[test]
fn a_reserved_node_takes_no_gang_until_the_reservation_is_gone() {
    if !is_possible() {
        return;
    }
    let mut on = OnSlurm::down(2);
    reserve(&on, "now");
    on.product.start();
    on.wait_node("n2", "ready");
    wait_for("the reservation to be told", || reason(&on).contains("reservation course keeps it").then_some(()));
    let one = on.product.submit(&gang(1, "true"));
    assert_eq!(OnSlurm::places(&on.product.wait_state(&one, "succeeded")), ["n2"]);
    let wide = on.product.submit(&gang(2, "true"));
    let explained = on.product.run(&["explain", &wide]).stdout;
    assert!(on.jobs("PENDING").is_empty(), "nothing is submitted that would wait: {explained}");
    on.slurm("scontrol", &["delete", "reservationname=course"]);
    let job = on.product.wait_state(&wide, "succeeded");
    assert_eq!(attempts(&job), 1, "{job:#}");
}

/// Slurm starts no job without a time limit on a node that is reserved later, though the node is free.
#[test]
fn a_gang_that_waits_for_a_reserved_node_is_taken_back_and_placed_elsewhere() {
    if !is_possible() {
        return;
    }
    let mut on = OnSlurm::down(2);
    reserve(&on, "now+30minutes");
    take_back_soon(&mut on);
    on.product.start();
    on.wait_node("n1", "ready");
    on.wait_node("n2", "ready");
    let id = on.product.submit(&gang(1, "true"));
    let job = on.product.wait_state(&id, "succeeded");
    assert_eq!((OnSlurm::places(&job), attempts(&job)), (vec!["n2".to_owned()], 2), "{job:#}");
    assert_eq!(job["faults"].as_u64(), Some(0), "{job:#}");
    assert!(reason(&on).contains("reservation course from"), "{}", reason(&on));
    let again = on.product.submit(&gang(1, "true"));
    let job = on.product.wait_state(&again, "succeeded");
    assert_eq!(attempts(&job), 1, "the node is not tried again: {job:#}");
}

/// Who holds all CPUs of a node holds the node, GPUs or not.
#[test]
fn a_node_whose_cpus_others_hold_takes_no_gang() {
    if !is_possible() {
        return;
    }
    let on = OnSlurm::up(2);
    let options = ["--parsable", "--nodelist=n1", "--exclusive", "--mem=100", "--output=/dev/null"];
    let foreign = on.slurm("sbatch", &[&options[..], &["--wrap", "sleep 600"]].concat());
    wait_for("the foreign job to be seen", || reason(&on).contains("others hold 4 of its 4").then_some(()));
    let one = on.product.submit(&gang(1, "true"));
    assert_eq!(OnSlurm::places(&on.product.wait_state(&one, "succeeded")), ["n2"]);
    let wide = on.product.submit(&gang(2, "true"));
    assert_eq!(attempts(&on.product.job(&wide)), 0, "it waits for a node that is free");
    on.slurm("scancel", &[&foreign]);
    on.product.wait_state(&wide, "succeeded");
}

/// What somebody takes out of Slurm's queue isn't put in again against the will of who did it.
#[test]
fn a_job_whose_gang_somebody_cancelled_in_slurms_queue_is_held() {
    if !is_possible() {
        return;
    }
    let mut on = OnSlurm::down(1);
    let config = on.product.path("gangline.toml");
    std::fs::write(&config, "[launcher]\nkind = 'slurm'\nsbatch = ['--hold']\n").expect("it is writable");
    on.product.option("--config", config.to_str().expect("text"));
    on.product.start();
    on.wait_node("n1", "ready");
    let id = on.product.submit(&gang(1, "true"));
    let pending = || wait_for("the gang to be in Slurm's queue", || on.jobs("PENDING").pop());
    let first = pending();
    let shown = || on.product.run(&["show", &id]).stdout;
    wait_for("Slurm's reason", || shown().contains("in Slurm's queue: JobHeldUser").then_some(()));
    on.slurm("scancel", &[first.trim()]);
    wait_for("the job to be held", || shown().contains("a user holds it").then_some(()));
    assert!(shown().contains("somebody cancelled its Slurm job (scancel)"), "{}", shown());
    assert!(!shown().contains("allocated by Slurm"), "{}", shown());
    assert_eq!(on.jobs("PENDING"), [] as [String; 0], "{}", shown());
    let ran = on.product.run(&["release", &id]);
    assert_eq!(ran.code, 0, "{}", ran.stderr);
    on.slurm("scontrol", &["release", pending().trim()]);
    let job = on.product.wait_state(&id, "succeeded");
    assert_eq!((attempts(&job), job["faults"].as_u64()), (2, Some(0)), "{job:#}");
}

/// Another placement would wait for the limit of the account as well, so the gang stays where it is in Slurm's queue.
#[test]
fn a_gang_beyond_a_limit_of_its_account_is_submitted_once_and_starts_when_there_is_room() {
    if !has_accounts() {
        return;
    }
    let mut on = OnSlurm::with_accounts(2);
    on.slurm("sacctmgr", &["--immediate", "modify", "account", "lab", "set", "grptres=gres/gpu=4"]);
    take_back_soon(&mut on);
    on.product.start();
    on.wait_node("n1", "ready");
    on.wait_node("n2", "ready");
    let mark = on.product.path("mark");
    let until = format!("while [ ! -e {} ]; do sleep 0.1; done", mark.display());
    let first = on.product.submit(&gang(1, &until));
    on.product.wait_state(&first, "running");
    let second = on.product.submit(&gang(1, "true"));
    let shown = || on.product.run(&["show", &second]).stdout;
    wait_for("Slurm's reason", || shown().contains("in Slurm's queue: AssocGrpGRES").then_some(()));
    let pending = on.jobs("PENDING");
    // Four times as long as gangs wait in vain.
    std::thread::sleep(std::time::Duration::from_secs(8));
    assert_eq!((on.jobs("PENDING"), pending.len()), (pending, 1), "{}", shown());
    std::fs::write(mark, "").expect("it is writable");
    on.product.wait_state(&first, "succeeded");
    let job = on.product.wait_state(&second, "succeeded");
    assert_eq!((attempts(&job), job["faults"].as_u64()), (1, Some(0)), "{job:#}");
}
