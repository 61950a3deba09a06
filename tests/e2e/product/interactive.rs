//! Jobs without a job file, and commands beside a job's ranks.

use rustix::process::{Pid, Signal, kill_process};

use crate::fixtures::product::{Product, rank_pid};
use crate::fixtures::wait_for;

#[test]
fn run_streams_the_output_and_ends_with_the_rank_s_exit_code() {
    let product = Product::up(&["a=cpu:2"]);
    let ran = product.run(&["run", "--", "sh", "-c", "echo \"out $WORLD_SIZE\"; echo err >&2; exit 7"]);
    assert_eq!((ran.code, ran.stdout.as_str()), (7, "out 1\n"), "{}", ran.stderr);
    assert!(ran.stderr.contains("job-1 submitted") && ran.stderr.contains("\nerr\n"), "{}", ran.stderr);
    let two = product.run(&["run", "--gpus", "cpu:2", "--name", "two", "--", "sh", "-c", "echo of $WORLD_SIZE"]);
    assert_eq!((two.code, two.stdout.as_str()), (0, "of 2\n"), "{}", two.stderr);
    assert_eq!(product.job("job-2")["name"], "two");
    let none = product.run(&["run", "--gpus", "1", "--", "true"]);
    assert!(none.code == 1 && none.stderr.contains("no node of this control plane has GPUs"), "{}", none.stderr);
    let large = product.run(&["run", "--gpus", "cpu:3", "--", "true"]);
    assert!(large.code == 4 && large.stderr.contains("G0401"), "{}", large.stderr);
}

#[test]
fn an_interrupt_leaves_the_job_running_and_a_second_one_cancels_it() {
    let product = Product::up(&["a=cpu:1"]);
    let child = product.spawn(&["run", "--", "sh", "-c", "echo started; exec sleep 60"]);
    let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw).expect("a pid");
    wait_for("the job", || (product.json(&["ps", "--all"])["jobs"][0]["state"] == "running").then_some(()));
    kill_process(pid, Signal::INT).expect("it runs");
    let ended = child.wait_with_output().expect("it ends");
    let said = String::from_utf8_lossy(&ended.stderr).into_owned();
    assert_eq!(ended.status.code(), Some(130), "{said}");
    assert!(said.contains("job-1 goes on") && said.contains("gangline cancel job-1"), "{said}");
    assert_eq!(product.job("job-1")["state"], "running");
    product.run(&["cancel", "job-1"]);
    product.wait_state("job-1", "cancelled");
}

#[test]
fn exec_runs_in_the_environment_of_a_rank_and_is_refused_elsewhere() {
    let product = Product::up(&["a=cpu:2"]);
    let folder = product.path("work");
    std::fs::create_dir(&folder).expect("a folder");
    let job = product.submit(&format!(
        "name: long\nworkdir: {}\nenvs: {{COLOUR: blue}}\nresources: {{accelerators: \"cpu:2\"}}\nrun: exec sleep 60\n",
        folder.display()
    ));
    let waits = product.submit("name: waits\nrun: exit 0\n");
    wait_for("both ranks", || rank_pid(&product.job(&job), 0, 1));
    product.wait_state(&job, "running");
    let tell = "echo $GANGLINE_JOB_ID $RANK $COLOUR $(pwd); exit 5";
    let ran = product.run(&["exec", &job, "--rank", "1", "--", "sh", "-c", tell]);
    let expected = format!("{job} 1 blue {}\n", folder.display());
    assert_eq!((ran.code, ran.stdout), (5, expected), "{}", ran.stderr);
    let shell = product.run(&["attach", &job]);
    assert_eq!(shell.code, 0, "its standard input is empty: {}", shell.stderr);
    let refused = |arguments: &[&str], said: &str| {
        let ran = product.run(arguments);
        assert!(ran.code == 1 && ran.stderr.contains(said), "{}", ran.stderr);
    };
    refused(&["exec", &job, "--rank", "2", "--", "true"], "has no rank 2");
    refused(&["exec", &waits, "--", "true"], "is waiting");
    refused(&["exec", &job, "--", "no-such-program"], "can't be started");
    product.run(&["cancel", &job]);
    product.wait_state(&waits, "succeeded");
    refused(&["attach", &job], "is cancelled");
}

#[test]
fn an_interactive_job_holds_its_devices_until_its_command_ends() {
    let product = Product::up(&["a=cpu:1"]);
    let ran = product.run(&["run", "-i", "--", "sh", "-c", "echo $GANGLINE_JOB_ID $CUDA_VISIBLE_DEVICES; exit 9"]);
    assert_eq!((ran.code, ran.stdout.trim_end()), (9, "job-1"), "{}", ran.stderr);
    product.wait_state("job-1", "succeeded");
    let next = product.submit("name: next\nrun: exit 0\n");
    product.wait_state(&next, "succeeded");
}
