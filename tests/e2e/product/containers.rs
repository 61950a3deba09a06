//! Jobs that run in a container image.

use std::fs;

use rustix::process::{Pid, Signal, kill_process};

use crate::fixtures::images::{Engine, IMAGE, Images};
use crate::fixtures::product::{Product, assert_booked_exactly, rank_pid};
use crate::fixtures::wait_for;

#[test]
fn setup_and_ranks_run_in_the_image_and_see_the_jobs_folders_and_volumes() {
    job_in_an_image(Engine::Podman);
}

#[test]
fn setup_and_ranks_run_in_dockers_image_and_see_the_jobs_folders_and_volumes() {
    job_in_an_image(Engine::Docker);
}

fn job_in_an_image(engine: Engine) {
    let mut product = Product::down(&["a=cpu:2"]);
    let Some(images) = Images::offer(engine, &mut product) else { return };
    product.start();
    let (code, data) = (product.path("code"), product.path("data-set"));
    fs::create_dir_all(&code).expect("a folder");
    fs::create_dir_all(&data).expect("a folder");
    fs::write(data.join("tokens"), "corpus").expect("a file");
    let job = product.submit(&format!(
        "name: in-image\nimage: {IMAGE}\nworkdir: code\nresources: {{accelerators: cpu:2}}\n\
         volumes: ['{}:/corpus:ro']\nenvs: {{GREETING: \"it's ok\"}}\n\
         setup: echo prepared > setup.txt\n\
         run: |\n  echo \"rank $RANK of $WORLD_SIZE $GREETING $(cat /corpus/tokens) $(cat setup.txt) $(ls /bin | wc -l)\"\n\
         \x20 touch /corpus/x || echo \"read only\"\n  touch \"$GANGLINE_CHECKPOINT_DIR/of-$RANK\" \"$GANGLINE_ATTEMPT_DIR/x\"\n\
         \x20 test -S \"$GANGLINE_SOCKET\" && test ! -d /usr && echo apart\n\
         \x20 cat /proc/self/cgroup\n",
        data.display()
    ));
    let job_shown = product.wait_state(&job, "succeeded");
    assert_eq!(job_shown["image"], IMAGE);
    assert_booked_exactly(&job_shown);
    for rank in ["0", "1"] {
        let log = product.run(&["logs", &job, "--rank", rank]).stdout;
        assert!(log.contains(&format!("rank {rank} of 2 it's ok corpus prepared 9")), "{log}");
        assert!(log.contains("read only") && log.contains("apart"), "{log}");
        // Docker makes a group of its own, and the job's processes are in that of their rank all the same.
        assert!(!log.contains("0::/docker"), "{log}");
        let saved = job_shown["checkpoint_path"].as_str().expect("a folder");
        assert!(fs::exists(format!("{saved}/of-{rank}")).expect("it is ours"), "{saved}");
    }
    assert!(product.run(&["show", &job]).stdout.contains(&format!("  image        {IMAGE}\n")));
    assert_eq!(images.containers(), "");
}

#[test]
fn a_program_in_a_container_saves_before_it_is_stopped_and_nothing_is_left() {
    saving_in_a_container(Engine::Podman);
}

#[test]
fn a_program_in_dockers_container_saves_before_it_is_stopped_and_nothing_is_left() {
    saving_in_a_container(Engine::Docker);
}

/// A program below the job's shell is asked to end, saves, and its code says how the job ended; the rest of the shell's
/// commands isn't run.
fn saving_in_a_container(engine: Engine) {
    let mut product = Product::down(&["a=cpu:1"]);
    let Some(images) = Images::offer(engine, &mut product) else { return };
    product.start();
    let job = product.submit(&format!(
        "name: saves\nimage: {IMAGE}\nrun: |\n  sh -c 'trap \"sleep 1; touch saved; exit 94\" TERM; touch begun; while :; do sleep 0.1; done'\n\
         \x20 touch never\n"
    ));
    let exists = |name: &str| product.path(name).exists();
    wait_for("the program to begin", || exists("begun").then_some(()));
    assert!(images.containers().contains("gangline-job-1-"), "{}", images.containers());
    wait_for("the rank's process to be known", || rank_pid(&product.job(&job), 0, 0));
    let beside = product.run(&["exec", &job, "--", "sh", "-c", "echo $RANK; ls /usr || ls; exit 7"]);
    assert_eq!((beside.code, beside.stdout.lines().next()), (7, Some("0")), "{}", beside.stderr);
    assert!(beside.stdout.contains("begun"), "it starts in the job's folder: {}", beside.stdout);
    assert_eq!(product.run(&["cancel", &job]).code, 0);
    product.wait_state(&job, "cancelled");
    assert!(exists("saved") && !exists("never"));
    assert_eq!(images.containers(), "");
}

/// Proves A-13 for containers: podman, its monitor and the container end with the supervisor.
#[test]
fn a_container_ends_with_its_supervisor_and_a_failure_in_it_is_told_as_its_own() {
    supervisor_of_a_container_killed(Engine::Podman);
}

/// Proves A-13 where a daemon has started the container.
#[test]
fn dockers_container_ends_with_its_supervisor_and_a_failure_in_it_is_told_as_its_own() {
    supervisor_of_a_container_killed(Engine::Docker);
}

fn supervisor_of_a_container_killed(engine: Engine) {
    let mut product = Product::down(&["a=cpu:1"]);
    let Some(images) = Images::offer(engine, &mut product) else { return };
    product.start();
    let job = product.submit(&format!(
        "name: killed\nimage: {IMAGE}\nrecovery: {{max_faults: 1}}\nrun: |\n\
         \x20 if test -e begun; then sh -c 'kill -9 $$'; exit $?; fi\n\
         \x20 touch begun\n  while :; do sleep 0.1; done\n"
    ));
    wait_for("the program to begin", || product.path("begun").exists().then_some(()));
    let shown = product.job(&job);
    let supervisor = shown["attempts"][0]["shares"][0]["supervisor_pid"].as_i64();
    let supervisor = supervisor.and_then(|pid| Pid::from_raw(i32::try_from(pid).ok()?));
    kill_process(supervisor.unwrap_or_else(|| panic!("a supervisor: {shown:#}")), Signal::KILL).expect("it runs");
    let job = product.wait_state(&job, "failed");
    let fault = &job["attempts"][1]["fault"];
    assert_eq!(fault["cause"], "killed by signal 9", "{job:#}");
    let running = images.containers();
    assert!(!running.contains("Up") && !running.contains("running"), "{running}");
}

#[test]
fn an_image_that_is_nowhere_is_told_with_what_podman_said() {
    let mut product = Product::down(&["a=cpu:1"]);
    let Some(_images) = Images::offer(Engine::Podman, &mut product) else { return };
    product.start();
    let job = product.submit("name: gone\nimage: localhost:1/gone:1\nrecovery: {max_faults: 0}\nrun: exit 0\n");
    let job = product.wait_state(&job, "failed");
    let fault = job["attempts"][0]["fault"].to_string();
    assert!(fault.contains("localhost:1/gone:1") && fault.contains("refused"), "{job:#}");
}

/// Nodes learn what the environment of the control plane chooses, and a job is refused where that isn't installed.
#[test]
fn what_is_to_run_containers_is_known_on_nodes_and_missed_at_once() {
    let mut product = Product::down(&["a=cpu:1"]);
    product.variable("GANGLINE_CONTAINERS", "enroot");
    product.start();
    let job = product.submit("name: shows\nrun: 'echo by $GANGLINE_CONTAINERS'\n");
    product.wait_state(&job, "succeeded");
    assert!(product.run(&["logs", &job]).stdout.ends_with("by enroot\n"));
    let file = product.job_file("in-image.yaml", &format!("name: in-image\nimage: {IMAGE}\nrun: exit 0\n"));
    let refused = product.run(&["submit", &file]);
    let told = "enroot, which GANGLINE_CONTAINERS asks for, isn't installed on this machine";
    assert!(
        refused.code == 4 && refused.stderr.contains("G0337") && refused.stderr.contains(told),
        "{}",
        refused.stderr
    );
}
