//! Every command against a running control plane.

use crate::fixtures::product::{Product, assert_booked_exactly, rank_pid};
use crate::fixtures::{is_running, wait_for};

#[test]
fn submit_wait_ends_with_the_fate_of_the_job() {
    let product = Product::up(&["a=cpu:2"]);
    let good = product.job_file("good.yaml", "name: good\nrun: exit 0\n");
    let bad = product.job_file("bad.yaml", "name: bad\nrun: exit 3\nrecovery: {max_faults: 0}\n");
    let done = product.run(&["submit", "--wait", &good]);
    assert_eq!(done.code, 0, "{}", done.stderr);
    assert!(done.stdout.contains("succeeded"), "{}", done.stdout);
    let failed = product.run(&["submit", "--wait", &bad]);
    assert_eq!(failed.code, 1, "{}", failed.stderr);
    assert!(failed.stdout.contains("exited with code 3"), "{}", failed.stdout);
}

#[test]
fn exit_code_93_ends_a_job_and_94_queues_it_again() {
    let product = Product::up(&["a=cpu:1"]);
    let hopeless = product.submit("name: hopeless\nrun: exit 93\n");
    let job = product.wait_state(&hopeless, "failed");
    assert_eq!(job["attempts"].as_array().map(Vec::len), Some(1), "{job:#}");
    let mark = product.path("saved");
    let run = format!("name: again\nrun: \"[ -e {0} ] || {{ touch {0}; exit 94; }}\"\n", mark.display());
    let again = product.submit(&run);
    let job = product.wait_state(&again, "succeeded");
    assert_eq!(job["attempts"].as_array().map(Vec::len), Some(2), "{job:#}");
    assert_eq!(job["faults"].as_u64(), Some(0), "that is no fault: {job:#}");
}

#[test]
fn a_dry_run_says_where_or_why_not_and_changes_nothing() {
    let product = Product::up(&["a=cpu:2"]);
    let file = product.job_file("two.yaml", "name: two\nresources: {accelerators: \"cpu:2\"}\nrun: sleep 60\n");
    let start = product.run(&["submit", "--dry-run", &file]);
    assert_eq!((start.code, start.stdout.as_str()), (0, "valid; it would start at once on a [0, 1]\n"));
    assert_eq!(product.json(&["ps", "--all"])["jobs"].as_array().map(Vec::len), Some(0), "nothing was submitted");
    let id = product.submit("name: two\nresources: {accelerators: \"cpu:2\"}\nrun: sleep 60\n");
    let wait = product.run(&["submit", "--dry-run", &file]);
    assert_eq!(wait.code, 0, "{}", wait.stderr);
    assert!(wait.stdout.contains(&format!("held by {id}")), "{}", wait.stdout);
    let large = product.run(&["submit", "--dry-run", &file, "--set", "resources.accelerators=cpu:3"]);
    assert_eq!(large.code, 4, "{}", large.stderr);
    assert!(large.stderr.contains("G0401") && large.stderr.contains("at most cpu:2"), "{}", large.stderr);
}

#[test]
fn explain_names_the_holders_and_the_job_ahead() {
    let product = Product::up(&["a=cpu:3"]);
    let holder = product.submit("name: holder\nresources: {accelerators: \"cpu:2\"}\nrun: sleep 60\n");
    let gang = product.submit("name: gang\nresources: {accelerators: \"cpu:2\"}\nrun: sleep 60\n");
    let small = product.submit("name: small\nrun: sleep 60\n");
    let gang_waits = product.json(&["explain", &gang]);
    assert_eq!(gang_waits["blocker"]["is"], "not_enough_free", "{gang_waits:#}");
    assert_eq!(gang_waits["blocker"]["holders"][0], holder.as_str());
    let small_waits = product.json(&["explain", &small]);
    assert_eq!(small_waits["blocker"]["is"], "behind", "{small_waits:#}");
    assert_eq!(small_waits["blocker"]["job"], gang.as_str());
    let runs = product.run(&["explain", &holder]);
    assert!(runs.stdout.contains("holds a [0, 1]"), "{}", runs.stdout);
    let queues = product.json(&["queues"]);
    assert_eq!(queues["queues"][0]["accelerators_held"], 2, "{queues:#}");
    assert_eq!(queues["queues"][0]["accelerators_wanted"], 3, "{queues:#}");
    let top = product.run(&["top"]);
    assert!(top.code == 0 && top.stdout.contains("holder") && top.stdout.contains("cpu:2"), "{}", top.stdout);
}

#[test]
fn cancel_ends_waiting_jobs_at_once_and_running_ones_within_their_grace() {
    let product = Product::up(&["a=cpu:1"]);
    let runs = product.submit("name: runs\nrun: exec sleep 60\ncheckpoint: {grace: 2s}\n");
    let waits = product.submit("name: waits\nrun: exec sleep 60\n");
    let pid = wait_for("a rank", || rank_pid(&product.job(&runs), 0, 0));
    assert_eq!(product.json(&["cancel", &waits])["state"], "cancelled");
    assert_eq!(product.json(&["cancel", &runs])["state"], "stopping");
    let job = product.wait_state(&runs, "cancelled");
    assert_booked_exactly(&job);
    assert!(!is_running(pid), "its rank is gone");
    let again = product.run(&["cancel", &runs]);
    assert_eq!(again.code, 1, "{}", again.stderr);
    assert!(again.stderr.contains("G0303"), "{}", again.stderr);
}

#[test]
fn a_time_limit_ends_a_job() {
    let product = Product::up(&["a=cpu:1"]);
    let id = product.submit("name: long\nrun: exec sleep 60\ntime_limit: 1s\ncheckpoint: {grace: 1s}\n");
    let job = product.wait_state(&id, "failed");
    assert!(job["because"].as_str().is_some_and(|text| text.contains("time limit")), "{job:#}");
}

#[test]
fn a_drained_node_finishes_its_job_and_takes_no_other() {
    let product = Product::up(&["a=cpu:1"]);
    let mark = product.path("go");
    let run = format!("name: first\nrun: while [ ! -e {} ]; do sleep 0.05; done\n", mark.display());
    let first = product.submit(&run);
    product.wait_state(&first, "running");
    assert_eq!(product.json(&["drain", "a"])["status"], "draining");
    let second = product.submit("name: second\nrun: exit 0\n");
    std::fs::write(&mark, "").expect("a mark");
    product.wait_state(&first, "succeeded");
    let waits = product.json(&["explain", &second]);
    assert_eq!(waits["blocker"]["is"], "nodes_unavailable", "{waits:#}");
    assert_eq!(waits["blocker"]["draining"][0], "a");
    assert_eq!(product.json(&["drain", "a", "--undo"])["status"], "ready");
    product.wait_state(&second, "succeeded");
}

#[test]
fn logs_follow_a_job_to_its_end_through_its_attempts() {
    let product = Product::up(&["a=cpu:2"]);
    let mark = product.path("failed-once");
    let run = format!(
        "name: talks\nresources: {{accelerators: \"cpu:2\"}}\nrun: |\n  echo \"rank $RANK attempt $GANGLINE_ATTEMPT\"\n  \
         touch {0}.$RANK.$GANGLINE_ATTEMPT\n  \
         until [ -e {0}.0.$GANGLINE_ATTEMPT -a -e {0}.1.$GANGLINE_ATTEMPT ]; do sleep 0.02; done\n  \
         sleep 0.3\n  [ -e {0} ] || {{ touch {0}; exit 1; }}\n",
        mark.display()
    );
    let id = product.submit(&run);
    let followed = product.run(&["logs", "--follow", "--rank", "1", &id]);
    assert_eq!(followed.code, 0, "{}", followed.stderr);
    let said: Vec<&str> =
        followed.stdout.lines().filter_map(|line| line.split_once(" O ").map(|(_, text)| text)).collect();
    assert_eq!(said, ["rank 1 attempt 1", "rank 1 attempt 2"], "{}", followed.stdout);
    let texts = |args: &[&str]| -> Vec<String> {
        let printed = product.run(&[&["logs", &id], args].concat()).stdout;
        printed.lines().filter_map(|line| Some(line.split_once(" O ")?.1.to_owned())).collect()
    };
    let all = product.run(&["logs", &id, "--rank", "all"]).stdout;
    let mut ranks: Vec<&str> = all.lines().filter_map(|line| line.split_once("] ").map(|(rank, _)| rank)).collect();
    ranks.sort_unstable();
    assert_eq!(ranks, ["[rank 0", "[rank 1"], "{all}");
    assert_eq!(texts(&["--rank", "0,1", "--grep", "^rank 1"]), ["rank 1 attempt 2"]);
    assert_eq!(texts(&["--tail", "1", "--since", "1h"]), ["rank 0 attempt 2"]);
    assert_eq!(texts(&["--tail", "1", "--attempt", "1", "--grep", "rank 0"]), ["rank 0 attempt 1"]);
    let none = product.run(&["logs", &id, "--since", "2500-01-01"]);
    assert!(none.stdout.is_empty() && none.stderr.contains("none of 1 lines is chosen"), "{}", none.stderr);
    let wrong = product.run(&["logs", &id, "--grep", "rank ("]);
    assert!(wrong.code == 2 && wrong.stderr.contains("no regular expression"), "{}", wrong.stderr);
    assert_eq!(product.json(&["ps", "--state", "succeeded", "--name", "TALK"])["jobs"][0]["id"], *id);
    assert_eq!(
        product.json(&["ps", "--since", "1h", "--user", "nobody-else"])["jobs"].as_array().map(Vec::len),
        Some(0)
    );
    let refused = product.run(&["resume", &id]);
    assert!(refused.code == 1 && refused.stderr.contains("G0330"), "{}", refused.stderr);
    let first = product.run(&["logs", "--attempt", "1", &id]);
    assert!(first.stdout.contains("rank 0 attempt 1") && !first.stdout.contains("attempt 2"), "{}", first.stdout);
}

#[test]
fn a_gang_over_two_nodes_meets_at_the_first() {
    let product = Product::up(&["a=cpu:2", "b=cpu:2"]);
    let out = product.path("out");
    std::fs::create_dir(&out).expect("a folder");
    let run = format!(
        "name: wide\nnum_nodes: 2\nresources: {{accelerators: \"cpu:2\"}}\n\
         run: echo \"$RANK $LOCAL_RANK $GROUP_RANK $WORLD_SIZE $MASTER_PORT\" > {}/$RANK\n",
        out.display()
    );
    let id = product.submit(&run);
    let job = product.wait_state(&id, "succeeded");
    assert_booked_exactly(&job);
    let read = |rank: u32| std::fs::read_to_string(out.join(rank.to_string())).expect("each rank writes");
    let port = read(0).split_whitespace().last().expect("a port").to_owned();
    let expected = [
        format!("0 0 0 4 {port}\n"),
        format!("1 1 0 4 {port}\n"),
        format!("2 0 1 4 {port}\n"),
        format!("3 1 1 4 {port}\n"),
    ];
    assert_eq!([read(0), read(1), read(2), read(3)], expected);
}

#[test]
fn a_rank_sees_no_secret_of_the_control_plane() {
    let product = Product::up(&["a=cpu:1"]);
    let id = product.submit("name: spy\nrun: env\n");
    product.wait_state(&id, "succeeded");
    let log = product.run(&["logs", &id]).stdout;
    let token = std::fs::read_to_string(product.data().join("token")).expect("a token");
    assert!(log.contains("GANGLINE_JOB_ID") && !log.contains(token.trim()), "{log}");
    assert!(!log.contains("GANGLINE_TOKEN"), "{log}");
}

#[test]
fn a_rank_finds_its_checkpoint_folder_and_a_fault_to_make_it_is_explained() {
    let product = Product::up(&["a=cpu:1"]);
    let folder = product.path("new/folder");
    let good = product.submit(&format!(
        "name: saves\nrun: echo 1 > $GANGLINE_CHECKPOINT_DIR/state\ncheckpoint: {{path: \"{}\"}}\n",
        folder.display()
    ));
    product.wait_state(&good, "succeeded");
    assert!(folder.join("state").exists());
    let file = product.job_file("plain", "");
    let bad = product.submit(&format!(
        "name: cannot\nrun: exit 0\ncheckpoint: {{path: \"{file}/x\"}}\nrecovery: {{max_faults: 0}}\n"
    ));
    let job = product.wait_state(&bad, "failed");
    let cause = job["attempts"][0]["fault"]["cause"].as_str().expect("a cause");
    assert!(cause.contains("checkpoint folder") && cause.contains(&file), "{job:#}");
}

/// Proves A-12: nothing in the product or its tests has a port of its own, so any number run side by side.
#[test]
fn control_planes_of_different_folders_run_side_by_side() {
    let products = [Product::up(&["a=cpu:1"]), Product::up(&["a=cpu:1"])];
    let ids: Vec<String> = products.iter().map(|product| product.submit("name: both\nrun: exit 0\n")).collect();
    for (product, id) in products.iter().zip(&ids) {
        product.wait_state(id, "succeeded");
        assert_eq!(product.json(&["ps", "--all"])["jobs"].as_array().map(Vec::len), Some(1), "each has its own job");
    }
}

#[test]
fn the_past_of_a_control_plane_is_simulated_while_it_runs() {
    let product = Product::up(&["a=cpu:2"]);
    let wide = product.submit("name: wide\nresources: {accelerators: \"cpu:2\"}\nrun: sleep 3\n");
    let after = product.submit("name: after\nresources: {accelerators: \"cpu:1\"}\nrun: sleep 0.1\n");
    [wide, after].iter().for_each(|id| drop(product.wait_state(id, "succeeded")));
    let folder = product.data().display().to_string();
    product.run(&["drain", "a"]);
    let never = product.submit("name: never\nrun: exit 0\n");
    product.run(&["cancel", &never]);
    let figures = product.json(&["simulate", "--replay", &folder]);
    assert_eq!((figures["gpus"].as_u64(), figures["skipped"].as_u64()), (Some(2), Some(0)), "{figures:#}");
    assert_eq!(figures["never_ran"], serde_json::json!([never]));
    let worked = figures["useful_gpu_hours"].as_f64().expect("a number") * 3_600.0;
    assert!(worked >= 6.1, "two slots for 3 s and one for 0.1 s: {worked} slot-seconds");
    assert!(figures["queue_seconds"]["mean"].as_f64() > Some(0.0), "the second job waits for the first: {figures:#}");
    let refused = product.run(&["simulate", "--replay", "/nowhere"]);
    assert_eq!(refused.code, 1);
    assert!(refused.stderr.contains("/nowhere/journal.sqlite"), "{}", refused.stderr);
}
