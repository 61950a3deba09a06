//! What a new user meets in the first hour.

use crate::fixtures::product::{Product, assert_booked_exactly};
use crate::fixtures::wait_for;

/// Holds its slot until the file is there.
fn until(path: &std::path::Path) -> String {
    format!("until [ -e {} ]; do sleep 0.1; done", path.display())
}

#[test]
fn a_running_job_is_shown_whatever_has_ended_since_and_several_are_cancelled_at_once() {
    let product = Product::up(&["a=cpu:1"]);
    let runs = product.submit("name: runs\nrun: sleep 600\n");
    product.wait_state(&runs, "running");
    let waiting: Vec<String> = (0..105).map(|_| product.submit("name: waits\nrun: sleep 600\n")).collect();
    let (two, rest) = waiting.split_at(2);
    let ran = product.run(&["cancel", &two[0], &two[1], "job-999"]);
    assert_eq!((ran.code, ran.stdout.lines().count()), (3, 2), "{}{}", ran.stdout, ran.stderr);
    let cancelled = product.json(&["cancel", "--state", "waiting", "--name", "waits"]);
    assert_eq!(cancelled.as_array().map(Vec::len), Some(rest.len()));
    assert!(product.run(&["ps"]).stdout.contains(&runs), "it is live, and 105 jobs ended after it");
    assert!(product.run(&["top", "--once"]).stdout.contains("runs"));
    let all = product.json(&["ps", "--all", "--limit", "5"]);
    let ids: Vec<&str> = all["jobs"].as_array().expect("jobs").iter().filter_map(|job| job["id"].as_str()).collect();
    assert_eq!((ids.len(), ids[0]), (6, runs.as_str()), "live ones first: {ids:?}");
    let accrued = wait_for("an estimate", || product.job(&runs)["accrued"].as_object().cloned());
    assert!(accrued["gpu_nanoseconds"].as_u64() > Some(0) && accrued["goodput"].is_null(), "{accrued:?}");
    let shown = product.run(&["show", &runs]).stdout;
    assert!(shown.contains("goodput unknown: its ranks report no steps"), "{shown}");
    assert!(shown.contains("estimated until the attempt ends and is booked"), "{shown}");
    assert_eq!(product.run(&["cancel", "--all"]).code, 0);
    assert_booked_exactly(&product.wait_state(&runs, "cancelled"));
}

#[test]
fn two_live_jobs_never_save_into_one_folder_unless_they_say_so() {
    let product = Product::up(&["a=cpu:2"]);
    let file = |share: &str| {
        format!(
            "name: saves\nresources: {{accelerators: \"cpu:1\"}}\nrun: sleep 600\ncheckpoint: {{path: ckpt{share}}}\n"
        )
    };
    let first = product.submit(&file(""));
    let refused = product.run(&["submit", &product.job_file("second.yaml", &file(""))]);
    assert!(refused.stderr.contains("G0415") && refused.stderr.contains(&first), "{}", refused.stderr);
    let dry = product.run(&["submit", "--dry-run", &product.job_file("dry.yaml", &file(""))]);
    assert!(dry.stderr.contains("G0415"), "{}", dry.stderr);
    product.submit(&file(", share: true"));
    let sweep = product.job_file("sweep.yaml", &(file("/sweep") + "sweep: {LR: [1, 2]}\n"));
    let jobs = product.json(&["submit", &sweep])["jobs"].clone();
    let folder = |job: &serde_json::Value| product.job(job.as_str().expect("an id"))["checkpoint_path"].to_string();
    assert_ne!(folder(&jobs[0]), folder(&jobs[1]), "each point has a folder of its own");
    assert_eq!(product.run(&["cancel", "--all"]).code, 0);
}

#[test]
fn a_command_that_cannot_start_fails_at_once_and_says_why() {
    let product = Product::up(&["a=cpu:1"]);
    let locked = product.path("locked");
    std::fs::create_dir(&locked).expect("a folder");
    for (run, cause) in [("no-such-program-here", "127"), (locked.to_str().expect("text"), "126")] {
        let id = product.submit(&format!("name: x\nrun: {run}\n"));
        let job = product.wait_state(&id, "failed");
        assert_eq!(job["attempts"].as_array().map(Vec::len), Some(1), "{job:#}");
        assert!(job["because"].as_str().is_some_and(|why| why.contains(cause)), "{job:#}");
        let explained = product.run(&["explain", &id]).stdout;
        assert!(explained.contains("first fault: rank 0 on a"), "{explained}");
    }
}

#[test]
fn a_failed_setup_and_a_progress_bar_are_read_in_the_logs() {
    let product = Product::up(&["a=cpu:1"]);
    let id =
        product.submit("name: x\nsetup: echo not this way; exit 3\nrun: echo unreached\nrecovery: {max_faults: 0}\n");
    product.wait_state(&id, "failed");
    let empty = product.run(&["logs", &id]);
    assert!(empty.stderr.contains(&format!("gangline logs {id} --setup")), "{}", empty.stderr);
    assert!(product.run(&["logs", &id, "--setup"]).stdout.contains("not this way"));
    let bar = product.submit("name: bar\nrun: printf '10%%\\r20%%\\r30%%\\r100%%\\ndone\\n'\n");
    product.wait_state(&bar, "succeeded");
    let log = product.run(&["logs", &bar]).stdout;
    assert!(log.contains("100%") && log.contains("done") && !log.contains("20%"), "{log}");
}

#[test]
fn a_loss_that_is_nan_is_the_cause_of_the_end_and_is_shown() {
    let product = Product::up(&["a=cpu:1"]);
    let script = "import json, os, socket, time\n\
        supervisor = socket.socket(socket.AF_UNIX)\n\
        supervisor.connect(os.environ['GANGLINE_SOCKET'])\n\
        for step in range(1, 40):\n    \
            loss = 2.5 if step < 5 else float('nan')\n    \
            supervisor.sendall((json.dumps({'step': step, 'loss': loss}) + '\\n').encode())\n    \
            time.sleep(0.02)\n\
        time.sleep(600)\n";
    std::fs::write(product.path("nan.py"), script).expect("a script");
    let id = product.submit("name: nan\nrun: exec python3 nan.py\nrecovery: {max_faults: 0}\n");
    let job = product.wait_state(&id, "failed");
    let diagnosis = &job["attempts"][0]["fault"]["diagnosis"];
    assert_eq!((diagnosis["category"].as_str(), diagnosis["rank"].as_u64()), (Some("numerical"), Some(0)), "{job:#}");
    assert_eq!(job["progress"]["loss_not_finite_since"], 5, "{job:#}");
    let shown = product.run(&["show", &id]).stdout;
    assert!(shown.contains("loss nan since step 5 (2.5000 before)") && !shown.contains("signal 15"), "{shown}");
}

/// The script knows nothing of Gangline, and py-spy isn't there or isn't needed.
#[test]
fn the_function_in_which_a_python_rank_hangs_is_in_its_stacks() {
    let product = Product::up(&["a=cpu:1"]);
    let script = "import threading\n\
        def reduces_the_gradients():\n    \
            threading.Lock().acquire() and threading.Event().wait()\n\
        print('training', flush=True)\n\
        reduces_the_gradients()\n";
    std::fs::write(product.path("hangs.py"), script).expect("a script");
    let id = product.submit("name: hangs\nrun: python3 hangs.py\nrecovery: {max_faults: 0, hang_timeout: 3s}\n");
    product.wait_state(&id, "failed");
    let stacks = product.run(&["logs", &id, "--stacks"]).stdout;
    assert!(stacks.contains("hangs.py\", line 3 in reduces_the_gradients"), "{stacks}");
}

#[test]
fn a_node_that_is_no_longer_configured_goes_once_its_job_has_left_and_may_come_back() {
    let mut product = Product::up(&["a=cpu:1"]);
    product.option("--node", "b=cpu:1");
    product.kill_control_plane();
    product.start();
    let done = product.path("done");
    let file = |done: &std::path::Path| format!("name: x\nrun: {}\n", until(done));
    let (first, second) = (product.submit(&file(&done)), product.submit(&file(&done)));
    product.wait_state(&first, "running");
    product.wait_state(&second, "running");
    product.change_last("b=cpu:1", "c=cpu:1");
    product.kill_control_plane();
    product.start();
    let names = || -> Vec<String> {
        let nodes = product.json(&["nodes"])["nodes"].as_array().cloned().expect("nodes");
        nodes.iter().filter_map(|node| node["name"].as_str().map(str::to_owned)).collect()
    };
    assert_eq!(names(), ["a", "b", "c"], "its job goes on");
    std::fs::write(&done, "").expect("the folder is writable");
    wait_for("the node to be gone", || (names() == ["a", "c"]).then_some(()));
}
