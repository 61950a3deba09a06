//! kill -9 of the control plane and of a supervisor, in the middle of real training.

use std::path::Path;
use std::process::Stdio;

use crate::fixtures::product::{Product, assert_booked_exactly, rank_pid};
use crate::fixtures::{is_running, kill, signal, wait_for};

const STEPS: &str = "--steps 150 --checkpoint-every 25 --step-time-min 20";

/// A job that trains, and whose ranks don't end before there is a file: however long the test takes, it finds them running.
fn training_until(go: &Path, ranks: u32, folder: &str) -> String {
    let steps = format!("{STEPS} && until [ -e {} ]; do sleep 0.05; done", go.display());
    // The shell that waits is the rank.
    super::training(&steps, ranks, folder).replace("exec ", "env ")
}

/// Proves with real processes: the jobs go on, the supervisors re-attach, nothing is lost, repeated or
/// booked twice; and A-8 for what was booked.
#[test]
fn jobs_survive_a_killed_control_plane() {
    let mut product = Product::up(&["a=cpu:2", "b=cpu:1"]);
    let folder = |name: &str| product.path(name).to_str().expect("text").to_owned();
    let go = product.path("go");
    let gang = product.submit(&training_until(&go, 2, &folder("gang")));
    let single = product.submit(&training_until(&go, 1, &folder("single")));
    let waiting = product.submit("name: later\nresources: {accelerators: \"cpu:2\"}\nrun: echo later\n");
    product.wait_step(&gang, 20);
    let before = product.wait_step(&single, 20);
    let pid = rank_pid(&before, 0, 0).expect("a rank runs");

    product.kill_control_plane();
    let ran = product.run(&["ps"]);
    assert_eq!(ran.code, 5, "the control plane is away: {}", ran.stderr);
    assert!(is_running(pid), "the rank goes on");
    product.start();
    let after = product.job(&single);
    assert_eq!(rank_pid(&after, 0, 0), Some(pid), "the same rank runs: {after:#}");
    std::fs::write(&go, "").expect("a file");

    for id in [&gang, &single, &waiting] {
        let job = product.wait_state(id, "succeeded");
        assert_eq!(job["attempts"].as_array().map(Vec::len), Some(1), "nothing was repeated: {job:#}");
        assert_booked_exactly(&job);
    }
    let steps = steps_of(&product, &single);
    assert!(steps.windows(2).all(|pair| pair[0] < pair[1]), "no step is there twice: {steps:?}");
    assert_eq!(steps.last(), Some(&150));
    let nodes = product.json(&["nodes"]);
    assert!(!nodes.to_string().contains("job-"), "all slots are free again: {nodes:#}");
}

/// Proves A-3: a control plane killed over and over, with jobs coming and going, loses and repeats none of them.
#[test]
fn no_job_is_lost_however_often_the_control_plane_dies() {
    let mut product = Product::up(&["a=cpu:2"]);
    let mark = product.path("marks");
    std::fs::create_dir(&mark).expect("a folder");
    let mut ids = Vec::new();
    for round in 0..5 {
        for job in 0..3 {
            let file = mark.join(format!("{round}-{job}"));
            let run = format!("name: j\nrun: sleep 0.3; echo x >> {}\n", file.display());
            ids.push(product.submit(&run));
        }
        product.kill_control_plane();
        product.start();
    }
    for id in &ids {
        let job = product.wait_state(id, "succeeded");
        assert_booked_exactly(&job);
    }
    for entry in std::fs::read_dir(&mark).expect("a folder").flatten() {
        let text = std::fs::read_to_string(entry.path()).expect("a mark");
        assert_eq!(text, "x\n", "{} ran exactly once", entry.path().display());
    }
    assert_eq!(std::fs::read_dir(&mark).expect("a folder").count(), ids.len());
}

#[test]
fn a_job_recovers_from_a_killed_supervisor() {
    let product = Product::up(&["a=cpu:2"]);
    let folder = product.path("ckpt").to_str().expect("text").to_owned();
    let go = product.path("go");
    let id = product.submit(&training_until(&go, 2, &folder));
    let job = product.wait_step(&id, 40);
    let supervisor = job["attempts"][0]["shares"][0]["supervisor_pid"].as_u64().expect("a supervisor");
    let ranks = [rank_pid(&job, 0, 0).expect("rank 0"), rank_pid(&job, 0, 1).expect("rank 1")];

    kill(u32::try_from(supervisor).expect("process ids are small"));
    wait_for("the ranks to die with their supervisor", || ranks.iter().all(|pid| !is_running(*pid)).then_some(()));
    std::fs::write(&go, "").expect("a file");
    let job = product.wait_state(&id, "succeeded");
    assert_eq!(job["attempts"].as_array().map(Vec::len), Some(2), "{job:#}");
    assert_eq!(job["faults"].as_u64(), Some(1));
    let cause = job["attempts"][0]["ended_because"].as_str().expect("a reason");
    assert!(cause.contains("the supervisor was lost"), "{cause}");
    assert_booked_exactly(&job);
}

#[test]
fn work_that_was_done_when_its_supervisor_was_killed_is_not_done_again() {
    let product = Product::up(&["a=cpu:2"]);
    let (mark, go) = (product.path("runs"), product.path("go"));
    let run = format!("while [ ! -e {} ]; do sleep 0.02; done; echo x >> {}", go.display(), mark.display());
    let id = product.submit(&format!("name: done\nresources: {{accelerators: \"cpu:2\"}}\nrun: '{run}'\n"));
    let job = product.wait_state(&id, "running");
    let supervisor = job["attempts"][0]["shares"][0]["supervisor_pid"].as_u64().expect("a supervisor");
    let supervisor = u32::try_from(supervisor).expect("process ids are small");
    signal(supervisor, rustix::process::Signal::STOP);
    std::fs::write(&go, "").expect("a file");
    let folder = product.data().join("jobs").join(&id).join("attempt-1").join("a");
    wait_for("the records of the ranks' ends", || {
        (0..2).all(|rank| folder.join(format!("rank-{rank}.exit")).exists()).then_some(())
    });
    kill(supervisor);
    let job = product.wait_state(&id, "succeeded");
    assert_eq!(std::fs::read_to_string(&mark).expect("a mark"), "x\nx\n", "each rank ran once");
    assert_eq!(job["attempts"].as_array().map(Vec::len), Some(1), "{job:#}");
    assert_booked_exactly(&job);
}

/// Proves A-5: when nobody is left to clean up, what the attempt started is found and killed before its slots are given on.
#[test]
fn nothing_outlives_a_supervisor_and_a_shim_killed_together() {
    killed_together("setsid sleep 1000");
}

/// The same for a process that shows neither its session nor its environment: only the control group knows whose it is.
#[test]
fn a_daemon_with_a_clean_environment_does_not_outlive_its_attempt() {
    let mounts = std::fs::read_to_string("/proc/self/mounts").expect("the mounts");
    if !mounts.lines().any(|line| line.split(' ').nth(2) == Some("cgroup2")) {
        println!("skipped: there are no control groups of version 2 here");
        return;
    }
    killed_together("env -i setsid /bin/sleep 1000");
}

/// The first attempt starts this in the background and something in the foreground; then its supervisor and its shim are killed.
fn killed_together(background: &str) {
    let product = Product::up(&["a=cpu:1"]);
    let mark = product.path("pids");
    let run = format!(
        "name: leaves\nrun: |\n  [ $GANGLINE_ATTEMPT = 1 ] || exit 0\n  {background} &\n  echo $! > {0}.new\n  \
         sh -c 'echo $$ >> {0}.new; mv {0}.new {0}; exec sleep 1000'\n  echo over\n",
        mark.display()
    );
    let id = product.submit(&run);
    let text = wait_for("the script's processes", || std::fs::read_to_string(&mark).ok());
    let pids: Vec<u32> = text.lines().map(|line| line.parse().expect("a process id")).collect();
    let (job, rank) = wait_for("the rank to be known", || {
        let job = product.job(&id);
        rank_pid(&job, 0, 0).map(|rank| (job, rank))
    });
    assert!(pids.len() == 2 && pids.iter().all(|pid| is_running(*pid)), "{pids:?}");
    let supervisor = job["attempts"][0]["shares"][0]["supervisor_pid"].as_u64().expect("a supervisor");
    let stat = std::fs::read_to_string(format!("/proc/{rank}/stat")).expect("the rank runs");
    let fields = stat.rsplit_once(')').expect("a name").1;
    let shim = fields.split_whitespace().nth(1).and_then(|pid| pid.parse().ok()).expect("a parent");
    kill(u32::try_from(supervisor).expect("process ids are small"));
    kill(shim);

    let job = product.wait_state(&id, "succeeded");
    assert_eq!(job["attempts"].as_array().map(Vec::len), Some(2), "{job:#}");
    let left: Vec<&u32> = pids.iter().chain([&rank]).filter(|pid| is_running(**pid)).collect();
    assert!(left.is_empty(), "processes of attempt 1 are left: {left:?}");
    assert_booked_exactly(&job);
}

/// Steps of the first rank's loss, as the API gives them.
fn steps_of(product: &Product, id: &str) -> Vec<u64> {
    let endpoint = product.url();
    let token = std::fs::read_to_string(product.data().join("token")).expect("a token");
    let url = format!("{endpoint}/api/v1/jobs/{id}/metrics/curves?metric=loss&rank=0&points=10000");
    let mut answer = ureq::get(url).header("authorization", format!("Bearer {token}")).call().expect("an answer");
    let found: serde_json::Value =
        serde_json::from_str(&answer.body_mut().read_to_string().expect("text")).expect("JSON");
    let curves = found["curves"].as_array().expect("curves").iter();
    let points = curves.flat_map(|curve| curve["points"].as_array().expect("points"));
    points.map(|point| point["last_step"].as_u64().expect("a step")).collect()
}

/// A log that can't be written is lost, and that is all.
#[test]
fn a_control_plane_goes_on_without_its_log() {
    let full = std::fs::OpenOptions::new().write(true).open("/dev/full").expect("Linux has it");
    let (reader, writer) = std::io::pipe().expect("a pipe");
    drop(reader);
    for stderr in [Stdio::from(full), Stdio::from(writer)] {
        let mut product = Product::down(&["a=cpu:1"]);
        product.start_logging_to(stderr);
        for _ in 0..2 {
            let id = product.submit("name: quiet\nrun: exit 0\n");
            product.wait_state(&id, "succeeded");
        }
    }
}
