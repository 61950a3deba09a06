//! A Slurm that keeps accounts and enforces them, as sites have it: what sacct says, limits, and jobs that go before others.

use serde_json::Value;

use crate::fixtures::product::{self, attempts};
use crate::fixtures::slurm::{OnSlurm, has_accounts};
use crate::fixtures::wait_for;

/// Gangs that waited, failed and restarted, were cancelled or had several nodes: what is booked of each is what slurmdbd says that
/// Slurm allocated.
#[test]
fn the_ledger_says_what_sacct_says() {
    if !has_accounts() {
        return;
    }
    let mut on = OnSlurm::with_accounts(2);
    on.product.start();
    on.wait_node("n1", "ready");
    let gang = |name: &str, nodes: u32, run: &str| {
        on.product
            .submit(&format!("name: {name}\nnum_nodes: {nodes}\nresources: {{accelerators: \"H100:2\"}}\nrun: {run}\n"))
    };
    let mark = on.product.path("mark");
    let again = format!("if [ -e {0} ]; then exit 0; else touch {0}; sleep 2; exit 1; fi", mark.display());
    let jobs = [
        gang("plain", 1, "sleep 3"),
        gang("wide", 2, "sleep 2"),
        gang("again", 1, &format!("\"{again}\"")),
        gang("long", 1, "sleep 600"),
        gang("late", 2, "sleep 1"),
    ];
    on.product.wait_state(&jobs[3], "running");
    for id in [&jobs[0], &jobs[1], &jobs[2]] {
        on.product.wait_state(id, "succeeded");
    }
    assert_eq!(on.product.run(&["cancel", &jobs[3]]).code, 0);
    on.product.wait_state(&jobs[3], "cancelled");
    on.product.wait_state(&jobs[4], "succeeded");
    wait_for("Slurm to be done", || on.jobs("RUNNING,COMPLETING,PENDING").is_empty().then_some(()));
    let compared = wait_for("slurmdbd to have it all", || {
        let compared = on.product.json(&["cost", "sacct", "--reconcile", "--from", "1h"]);
        (compared["jobs"].as_array().map(Vec::len) == Some(jobs.len())).then_some(compared)
    });
    for job in compared["jobs"].as_array().expect("a list") {
        assert_eq!(job["is_same"], true, "{compared:#}");
    }
    let again = compared["jobs"].as_array().expect("a list").iter().find(|job| job["job"] == *jobs[2]);
    assert_eq!(again.map(|job| job["attempts"].clone()), Some(Value::from(attempts(&on.product.job(&jobs[2])))));
    // The same from a file.
    let file = on.product.path("past.txt");
    let options = ["--allusers", "--allocations", "--duplicates", "--parsable2", "--starttime=now-1hour"];
    let format = "--format=JobIDRaw,JobName,User,Account,Partition,State,Start,ElapsedRaw,AllocTRES";
    let written = on.slurm.command("sacct").args(options).arg(format).env("SLURM_TIME_FORMAT", "%s").output();
    std::fs::write(&file, written.expect("it starts").stdout).expect("it is writable");
    assert_eq!(on.product.json(&["cost", "sacct", file.to_str().expect("text"), "--reconcile"]), compared);
}

/// A job of a QOS that goes before others takes a gang's nodes: Slurm's verdict is told, the gang has no fault, and goes on from its
/// checkpoint afterwards.
#[test]
fn a_gang_that_slurm_preempts_goes_on_afterwards_without_a_fault() {
    if !has_accounts() {
        return;
    }
    let mut on = OnSlurm::with_accounts(1);
    on.slurm("sacctmgr", &["--immediate", "add", "qos", "urgent", "priority=1000", "preempt=normal"]);
    on.slurm("sacctmgr", &["--immediate", "modify", "user", "root", "set", "qos=normal,urgent", "defaultqos=normal"]);
    on.product.start();
    on.wait_node("n1", "ready");
    let folder = on.product.path("checkpoints").display().to_string();
    let options = "--steps 400 --checkpoint-every 10 --step-time-min 20";
    let id = on.product.submit(&product::training("resources: {accelerators: \"H100:1\"}", options, &folder));
    on.product.wait_step(&id, 30);
    let wrap = ["--parsable", "--qos=urgent", "--exclusive", "--mem=100", "--output=/dev/null", "--wrap", "sleep 5"];
    let urgent = on.slurm("sbatch", &wrap);
    wait_for("the urgent job to run", || on.jobs("RUNNING").iter().any(|job| job.starts_with(&urgent)).then_some(()));
    let job = on.product.wait_state(&id, "succeeded");
    let shown = on.product.run(&["show", &id]).stdout;
    assert_eq!((attempts(&job), job["faults"].as_u64()), (2, Some(0)), "{shown}");
    assert!(shown.contains("preempted"), "{shown}\n{:#}", on.product.job(&id)["history"]);
    let said = on.product.run(&["logs", &id]).stdout;
    assert!(said.contains("resumed from step"), "{said}");
}

/// Sets how long jobs may run.
fn limit(on: &OnSlurm, what: &[&str], time: &str) {
    let set = format!("maxwall={time}");
    on.slurm("sacctmgr", &[&["--immediate", "modify"][..], what, &["set", &set]].concat());
}

/// What asks for more than a QOS or an account allows would wait for ever: it is refused with the figure, and what asks for nothing
/// gets all that is allowed.
#[test]
fn limits_of_qos_and_accounts_are_kept_and_what_is_longer_is_refused() {
    if !has_accounts() {
        return;
    }
    let mut on = OnSlurm::with_accounts(1);
    limit(&on, &["qos", "normal"], "30");
    limit(&on, &["account", "lab"], "20");
    on.product.start();
    on.wait_node("n1", "ready");
    let gang = "name: one\nresources: {accelerators: \"H100:1\"}\nrun: sleep 2\n";
    let file = on.product.job_file("long.yaml", &format!("{gang}time_limit: 1h\n"));
    let refused = |why: &str| {
        let ran = on.product.run(&["submit", &file]);
        assert!(ran.code != 0 && ran.stderr.contains("G0336") && ran.stderr.contains(why), "{}", ran.stderr);
    };
    refused("MaxWall of Slurm's QOS normal");
    let id = on.product.submit(gang);
    wait_for("it to run", || (!on.jobs("RUNNING").is_empty()).then_some(()));
    assert_eq!(on.slurm("squeue", &["--noheader", "--format=%l"]), "30:00");
    on.product.wait_state(&id, "succeeded");
    limit(&on, &["qos", "normal"], "-1");
    on.product.kill_control_plane();
    on.product.start();
    on.wait_node("n1", "ready");
    let refused = on.product.run(&["submit", &file]);
    assert!(refused.stderr.contains("MaxWall of Slurm's account lab"), "{}", refused.stderr);
    on.product.kill_control_plane();
    on.product.option("--account", "nobody");
    let refused = on.product.start_refused();
    assert!(refused.code != 0 && refused.stderr.contains("Invalid account"), "{}", refused.stderr);
}

/// A gang that alone needs more than an account, a QOS or the partition allows would wait for ever: it is refused with the figure and
/// whose it is. Limits of the accounts above the user's count too.
#[test]
fn a_gang_that_needs_more_than_is_allowed_is_refused_with_the_figure() {
    if !has_accounts() {
        return;
    }
    let mut on = OnSlurm::with_accounts(2);
    let change = |words: &[&str]| drop(on.slurm("sacctmgr", &[&["--immediate"][..], words].concat()));
    change(&["add", "account", "dept"]);
    change(&["modify", "account", "lab", "set", "parent=dept"]);
    change(&["modify", "account", "dept", "set", "grptres=gres/gpu=3"]);
    change(&["modify", "qos", "normal", "set", "maxtres=node=1"]);
    on.product.start();
    on.wait_node("n1", "ready");
    let gang = |nodes: u32, gpus: u32| {
        format!("name: g\nnum_nodes: {nodes}\nresources: {{accelerators: \"H100:{gpus}\"}}\nrun: exit 0\n")
    };
    let refused = |nodes: u32, gpus: u32, why: &str| {
        let file = on.product.job_file("large.yaml", &gang(nodes, gpus));
        for options in [&["submit", &file][..], &["submit", "--dry-run", &file]] {
            let ran = on.product.run(options);
            assert!(ran.code != 0 && ran.stderr.contains("G0338") && ran.stderr.contains(why), "{}", ran.stderr);
        }
    };
    refused(1, 4, "the job needs 4 GPU(s), more than it may have: GrpTRES of Slurm's account dept is 3");
    refused(2, 1, "the job needs 2 node(s), more than it may have: MaxTRES of Slurm's QOS normal is 1");
    let id = on.product.submit(&gang(1, 3));
    on.product.wait_state(&id, "succeeded");
}

/// Jobs are charged to the account of their queue, and wait by its QOS; other queues have the account that is for all.
#[test]
fn jobs_run_by_the_account_and_qos_of_their_queue() {
    if !has_accounts() {
        return;
    }
    let mut on = OnSlurm::with_accounts(1);
    let change = |words: &[&str]| drop(on.slurm("sacctmgr", &[&["--immediate"][..], words].concat()));
    change(&["add", "account", "nlp"]);
    change(&["add", "qos", "urgent"]);
    change(&["add", "user", "root", "account=nlp"]);
    change(&["modify", "user", "root", "set", "qos=normal,urgent", "defaultqos=normal"]);
    change(&["modify", "account", "nlp", "set", "grptres=gres/gpu=1"]);
    let config = on.product.path("gangline.toml");
    let queues = "[[queue]]\nname = 'text'\nweight = 1\n[[queue]]\nname = 'ops'\nweight = 1\n";
    let write = |account: &str| {
        let table =
            format!("[launcher]\nkind = 'slurm'\n[launcher.queues.text]\naccount = '{account}'\nqos = 'urgent'\n");
        std::fs::write(&config, format!("{queues}{table}")).expect("it is writable");
    };
    write("nobody");
    on.product.option("--config", config.to_str().expect("text"));
    let refused = on.product.start_refused();
    let why = refused.stderr.contains("Invalid account") && refused.stderr.contains("(of the queue text)");
    assert!(refused.code != 0 && refused.stderr.contains("G0509") && why, "{}", refused.stderr);
    write("nlp");
    on.product.start();
    on.wait_node("n1", "ready");
    let gang = |queue: &str, gpus: u32| {
        format!("name: {queue}\nqueue: {queue}\nresources: {{accelerators: \"H100:{gpus}\"}}\nrun: sleep 600\n")
    };
    for queue in ["text", "ops"] {
        let id = on.product.submit(&gang(queue, 1));
        on.product.wait_state(&id, "running");
    }
    let mut jobs: Vec<String> =
        on.slurm("squeue", &["--noheader", "--format=%j %a %q"]).lines().map(str::to_owned).collect();
    jobs.sort();
    assert_eq!(jobs, ["ops (job-2) lab normal", "text (job-1) nlp urgent"]);
    // The limits of its account are those of the queue.
    let file = on.product.job_file("large.yaml", &gang("text", 2));
    let refused = on.product.run(&["submit", &file]);
    assert!(refused.stderr.contains("GrpTRES of Slurm's account nlp is 1"), "{}", refused.stderr);
    let large = on.product.submit(&gang("ops", 3));
    let moved = on.product.run(&["set", &large, "queue=text"]);
    assert!(moved.code != 0 && moved.stderr.contains("GrpTRES of Slurm's account nlp is 1"), "{}", moved.stderr);
}
