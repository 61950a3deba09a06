//! Slurm as an engine, with a real Slurm: several nodes on this machine, on ports and in a folder of its own.

use std::path::Path;
use std::thread::sleep;
use std::time::Duration;

use rustix::process::Signal;

use crate::fixtures::images::{Engine, IMAGE, Images};
use crate::fixtures::product::{self, attempts};
use crate::fixtures::slurm::{GPUS, OnSlurm, is_possible};
use crate::fixtures::{try_for, wait_for};

/// A gang of two nodes with so many GPUs each.
fn gang(gpus: u32, run: &str) -> String {
    format!("name: gang\nnum_nodes: 2\nresources: {{accelerators: \"H100:{gpus}\"}}\nrun: {run:?}\n")
}

/// A command that ends once there is this file.
fn until(go: &Path) -> String {
    format!("until [ -e {} ]; do sleep 0.1; done", go.display())
}

/// One rank that trains.
fn training(steps: u32, folder: &str) -> String {
    let options = format!("--steps {steps} --checkpoint-every 20 --step-time-min 20");
    product::training("resources: {accelerators: \"H100:1\"}", &options, folder)
}

#[test]
fn a_gang_runs_on_exactly_the_chosen_nodes_and_two_gangs_share_them() {
    if !is_possible() {
        return;
    }
    let on = OnSlurm::up(3);
    let product = &on.product;
    let out = product.path("out");
    std::fs::create_dir(&out).expect("a folder");
    let go = product.path("go");
    let say = format!(
        "echo $CUDA_VISIBLE_DEVICES $MASTER_PORT > {}/$GANGLINE_JOB_ID-$SLURMD_NODENAME; {}",
        out.display(),
        until(&go)
    );
    let (first, second) = (product.submit(&gang(2, &say)), product.submit(&gang(2, &say)));
    let shown = [product.wait_state(&first, "running"), product.wait_state(&second, "running")];
    let places: Vec<Vec<String>> = shown.iter().map(OnSlurm::places).collect();
    assert_eq!(places[0], places[1], "both fit on two nodes");
    let expected = format!("n[{}-{}]", &places[0][0][1..], &places[0][1][1..]);
    let running = on.jobs("RUNNING");
    assert!(running.len() == 2 && running.iter().all(|job| job.ends_with(&expected)), "{running:?} on {expected}");
    std::fs::write(&go, "").expect("a file");
    for id in [&first, &second] {
        product.wait_state(id, "succeeded");
    }
    // Slurm chose other GPUs of a node for each gang.
    for node in &places[0] {
        let devices = |job: &str| {
            let said = std::fs::read_to_string(out.join(format!("{job}-{node}"))).expect("the rank wrote it");
            said.split_whitespace().next().unwrap_or_default().to_owned()
        };
        let mut both: Vec<String> =
            [devices(&first), devices(&second)].join(",").split(',').map(str::to_owned).collect();
        both.sort();
        assert_eq!(both, ["0", "1", "2", "3"], "on {node}");
    }
    wait_for("Slurm to be done with them", || on.jobs("RUNNING,COMPLETING,PENDING").is_empty().then_some(()));
}

/// What slurmctld was asked about its nodes, jobs, steps and partitions since the last call, by sdiag's count.
fn queries(on: &OnSlurm) -> u64 {
    let counts = on.slurm("sdiag", &[]);
    on.slurm("sdiag", &["--reset"]);
    let is_query =
        |line: &&str| line.starts_with("REQUEST_") && line.split(' ').next().unwrap_or("").ends_with("_INFO");
    let count = |line: &str| line.split_once("count:")?.1.split_whitespace().next()?.parse::<u64>().ok();
    counts.lines().map(str::trim).filter(is_query).filter_map(count).sum()
}

/// A control plane that nothing is expected of asks slurmctld at most 0.2 times a second, and at once when a job comes.
#[test]
fn slurm_is_asked_rarely_while_nothing_happens() {
    const WINDOW: Duration = Duration::from_secs(16);
    if !is_possible() {
        return;
    }
    let on = OnSlurm::up(2);
    queries(&on);
    sleep(WINDOW);
    let idle = queries(&on);
    eprintln!("measured: {idle} requests in {WINDOW:?} without a job");
    // Two surveys may fall into the window, of three requests each; sdiag's own are none of these.
    assert!(idle <= 6, "{idle}");
    let job = on.product.submit(&gang(1, "true"));
    on.product.wait_state(&job, "succeeded");
    assert!(queries(&on) > 0, "it is asked while a job runs");
}

/// A limit and its margin beyond MaxTime would never start; a job without a limit gets all that the partition allows.
#[test]
fn a_partitions_time_limits_are_kept_and_what_is_longer_is_refused() {
    if !is_possible() {
        return;
    }
    let on = OnSlurm::down(2);
    let partition = on.slurm("sinfo", &["--noheader", "--format=%R"]);
    let limits = format!("PartitionName={}", partition.lines().next().expect("a partition"));
    on.slurm("scontrol", &["update", &limits, "MaxTime=01:00:00", "DefaultTime=00:05:00"]);
    let mut on = on;
    on.product.start();
    on.wait_node("n1", "ready");
    let product = &on.product;
    let of_an_hour = product.submit(&format!("{}time_limit: 1h\n", gang(1, "sleep 20")));
    let of_no_limit = product.submit(&gang(1, "sleep 20"));
    for job in [&of_an_hour, &of_no_limit] {
        product.wait_state(job, "running");
    }
    assert_eq!(on.slurm("squeue", &["--noheader", "--format=%l"]), "1:00:00\n1:00:00");
    let file = product.path("long.yaml");
    std::fs::write(&file, format!("{}time_limit: 2h\n", gang(1, "true"))).expect("it is writable");
    let refused = product.run(&["submit", &file.display().to_string()]);
    let why = "a time limit of 2h is longer than a job may run: MaxTime of Slurm's partition";
    assert!(
        refused.code != 0 && refused.stderr.contains("G0336") && refused.stderr.contains(why),
        "{}",
        refused.stderr
    );
    std::fs::write(&file, gang(1, "true")).expect("it is writable");
    let told = product.run(&["submit", &file.display().to_string()]);
    assert!(format!("{}{}", told.stdout, told.stderr).contains("an attempt runs for 1h at most"), "{}", told.stdout);
    for job in [&of_an_hour, &of_no_limit] {
        assert_eq!(product.run(&["cancel", job]).code, 0);
        product.wait_state(job, "cancelled");
    }
}

/// What an administrator sees: whose job it is, and whether it failed.
#[test]
fn slurm_knows_a_gangs_name_and_how_it_ended() {
    if !is_possible() {
        return;
    }
    let on = OnSlurm::up(2);
    // The second node's rank fails, and the first's is stopped.
    let fails = "if [ $RANK = 0 ]; then sleep 60; fi; exit 7";
    let file = |run: &str| gang(1, run) + "recovery: {max_faults: 0}\n";
    let states = || on.slurm("squeue", &["--noheader", "--states=all", "--format=%j|%T|%i"]);
    let ended = |name: &str, state: &str| {
        let id = wait_for(name, || {
            let text = states();
            text.lines().find_map(|line| line.strip_prefix(&format!("{name}|{state}|"))).map(str::to_owned)
        });
        on.slurm("scontrol", &["show", "job", &id])
    };
    let first = on.product.submit(&file(fails));
    let shown = ended(&format!("gang ({first})"), "FAILED");
    assert!(shown.contains("ExitCode=7:0"), "{shown}");
    let second = on.product.submit(&file("true"));
    let shown = ended(&format!("gang ({second})"), "COMPLETED");
    assert!(shown.contains("ExitCode=0:0"), "{shown}");
    let third = on.product.submit(&file("sleep 600"));
    on.product.wait_state(&third, "running");
    assert_eq!(on.product.run(&["cancel", &third]).code, 0);
    ended(&format!("gang ({third})"), "CANCELLED");
    on.product.wait_state(&first, "failed");
    on.product.wait_state(&second, "succeeded");
    on.product.wait_state(&third, "cancelled");
}

/// Proves A-5 beyond one machine: what others hold of a node isn't placed on, and a closed node isn't either.
#[test]
fn foreign_jobs_and_drained_nodes_are_respected() {
    if !is_possible() {
        return;
    }
    let on = OnSlurm::up(2);
    let gres = format!("--gres=gpu:h100:{GPUS}");
    let foreign = on.slurm(
        "sbatch",
        &["--parsable", "--nodelist=n1", &gres, "--mem=100", "--output=/dev/null", "--wrap", "sleep 600"],
    );
    wait_for("the foreign job to be seen", || {
        let reason = on.node("n1")["status_reason"].as_str().unwrap_or_default().to_owned();
        reason.contains("others hold 4 of its 4").then_some(())
    });
    let one = on.product.submit("name: one\nresources: {accelerators: \"H100:4\"}\nrun: sleep 600\n");
    assert_eq!(OnSlurm::places(&on.product.wait_state(&one, "running")), ["n2"]);
    let waiting = on.product.submit("name: waits\nresources: {accelerators: \"H100:4\"}\nrun: sleep 600\n");
    assert_eq!(on.product.job(&waiting)["state"], "waiting");
    on.slurm("scancel", &[&foreign]);
    assert_eq!(OnSlurm::places(&on.product.wait_state(&waiting, "running")), ["n1"]);

    on.slurm("scontrol", &["update", "nodename=n2", "state=drain", "reason=fan"]);
    let drained = on.wait_node("n2", "draining");
    assert!(drained["status_reason"].as_str().unwrap_or_default().contains("fan"), "{drained:#}");
    assert_eq!(on.product.job(&one)["state"], "running", "what runs there goes on");
    let ran = on.product.run(&["cancel", &one]);
    assert_eq!(ran.code, 0, "{}", ran.stderr);
    on.product.wait_state(&one, "cancelled");
    let again = on.product.submit("name: again\nresources: {accelerators: \"H100:1\"}\nrun: \"true\"\n");
    assert_eq!(on.product.job(&again)["state"], "waiting");
    on.slurm("scontrol", &["update", "nodename=n2", "state=resume"]);
    on.product.wait_state(&again, "succeeded");
}

/// Its end is on the disk, where the next control plane finds it.
#[test]
fn a_gang_that_ended_gives_its_nodes_back_while_the_control_plane_is_away() {
    if !is_possible() {
        return;
    }
    let mut on = OnSlurm::up(2);
    let id = on.product.submit(&gang(1, "sleep 3"));
    on.product.wait_state(&id, "running");
    on.product.kill_control_plane();
    wait_for("Slurm to be done with it", || on.jobs("RUNNING,COMPLETING,PENDING").is_empty().then_some(()));
    on.product.start();
    let job = on.product.wait_state(&id, "succeeded");
    assert_eq!((attempts(&job), job["faults"].as_u64()), (1, Some(0)), "{job:#}");
}

/// Proves A-13: neither a control plane nor a slurmctld that is away hurts a job.
#[test]
fn jobs_go_on_while_the_control_plane_or_slurm_is_away() {
    if !is_possible() {
        return;
    }
    let mut on = OnSlurm::up(2);
    let go = on.product.path("go");
    let id = on.product.submit(&gang(1, &until(&go)));
    on.product.wait_state(&id, "running");
    let before = on.jobs("RUNNING");
    on.product.kill_control_plane();
    on.product.start();
    assert_eq!(on.jobs("RUNNING"), before);
    on.slurm.stop_controller();
    let late = on.product.submit("name: late\nresources: {accelerators: \"H100:1\"}\nrun: \"true\"\n");
    wait_for("the silence to show", || {
        let reason = on.node("n1")["status_reason"].as_str().unwrap_or_default().to_owned();
        reason.contains("Slurm doesn't answer").then_some(())
    });
    std::fs::write(&go, "").expect("a file");
    on.slurm.start_controller().expect("it starts again");
    // Slurm's programs take ten seconds to say that slurmctld is away, and slurmctld a while to find its nodes again.
    let is_over = || (on.product.job(&late)["state"] == "succeeded").then_some(());
    let found = (0..2).find_map(|_| try_for(is_over));
    assert!(found.is_some(), "{:#}", on.product.job(&late));
    let is_over = || Some(on.product.job(&id)).filter(|job| job["state"] == "succeeded" || attempts(job) > 1);
    let job = (0..2).find_map(|_| try_for(is_over)).unwrap_or_else(|| on.product.job(&id));
    assert_eq!((attempts(&job), &job["state"]), (1, &"succeeded".into()), "nothing was repeated: {job:#}");
    for job in [job, on.product.job(&late)] {
        assert_eq!(job["faults"].as_u64(), Some(0), "that was nobody's fault: {job:#}");
    }
}

#[test]
fn a_job_on_a_lost_node_goes_on_elsewhere_from_its_checkpoint() {
    if !is_possible() {
        return;
    }
    let mut on = OnSlurm::up(2);
    let folder = on.product.path("checkpoints").to_str().expect("text").to_owned();
    let id = on.product.submit(&training(400, &folder));
    let job = on.product.wait_step(&id, 60);
    let lost = OnSlurm::places(&job).remove(0);
    let number: u32 = lost[1..].parse().expect("nodes are n1 and n2");
    on.slurm.kill_node(number);
    on.wait_node(&lost, "lost");
    let again = wait_for("the job to run again", || {
        let job = on.product.job(&id);
        (attempts(&job) == 2 && job["state"] == "running").then_some(job)
    });
    assert_ne!(OnSlurm::places(&again), std::slice::from_ref(&lost), "its node is lost");
    let job = on.product.wait_state(&id, "succeeded");
    let said = on.product.run(&["logs", &id]).stdout;
    assert!(said.contains("resumed from step"), "{said}");
    assert_eq!(job["progress"]["step"].as_u64(), Some(400));
    // Slurm cleans up there before the node takes jobs again.
    on.slurm.start_node(number).expect("it starts again");
    on.wait_node(&lost, "ready");
}

/// What says that a step has ended runs on the gang's first node: if that is lost, Slurm's list of steps says it.
#[test]
fn a_supervisor_that_dies_with_its_gangs_first_node_is_missed_and_the_gang_goes_on() {
    if !is_possible() {
        return;
    }
    let mut on = OnSlurm::up(3);
    let id = on.product.submit(&gang(1, "sleep 600"));
    let places = OnSlurm::places(&on.product.wait_state(&id, "running"));
    let other = on.supervisor(&id, &places[1]);
    // So that it can't say a last word.
    crate::fixtures::signal(other, Signal::STOP);
    on.slurm.kill_node(places[0][1..].parse().expect("nodes are n1 to n3"));
    crate::fixtures::kill(other);
    let again = wait_for("another attempt", || {
        let job = on.product.job(&id);
        (attempts(&job) == 2 && job["state"] == "running").then_some(job)
    });
    assert!(!OnSlurm::places(&again).contains(&places[0]), "its node is lost: {again:#}");
}

#[test]
fn a_supervisor_killed_alone_is_a_fault_of_its_job_and_its_node_stays() {
    if !is_possible() {
        return;
    }
    let on = OnSlurm::up(1);
    let id = on.product.submit("name: one\nresources: {accelerators: \"H100:1\"}\nrun: sleep 600\n");
    on.product.wait_state(&id, "running");
    crate::fixtures::kill(on.supervisor(&id, "n1"));
    let again = wait_for("another attempt", || {
        let job = on.product.job(&id);
        (attempts(&job) == 2 && job["state"] == "running").then_some(job)
    });
    assert_eq!((OnSlurm::places(&again), again["faults"].as_u64()), (vec!["n1".to_owned()], Some(1)));
}

#[test]
fn what_slurm_does_not_have_is_refused_or_waited_for() {
    if !is_possible() {
        return;
    }
    let mut on = OnSlurm::down(1);
    on.product.option("--partition", "gpus");
    let refused = on.product.start_refused();
    assert!(
        refused.stderr.contains("error[G0509]: Slurm refused: there is no partition \"gpus\""),
        "{}",
        refused.stderr
    );
    on.product.change("--partition", "main");
    on.product.option("--sbatch", "");
    for (argument, said) in [("--reservation=nope", "reservation is invalid"), ("--nonsense", "unrecognized option")] {
        on.product.change("--sbatch", argument);
        let refused = on.product.start_refused();
        assert!(refused.stderr.contains("error[G0509]: Slurm refused"), "{}", refused.stderr);
        assert!(refused.stderr.contains(said), "{argument}: {}", refused.stderr);
    }
    let mut on_nothing = crate::fixtures::product::Product::down(&[]);
    on_nothing.variable("SLURM_CONF", "/no/such/slurm.conf");
    on_nothing.option("--launcher", "slurm");
    on_nothing.start();
    let log = std::fs::read_to_string(on_nothing.path("up.log")).expect("a log");
    assert!(log.contains("Slurm doesn't answer") && log.contains("/no/such/slurm.conf"), "{log}");
}

/// What Slurm refuses is no fault of a job, and of no node: the job waits and says why, and starts once Slurm takes it.
#[test]
fn a_submission_that_slurm_refuses_is_charged_to_nobody() {
    if !is_possible() {
        return;
    }
    let mut on = OnSlurm::down(1);
    on.product.start();
    on.wait_node("n1", "ready");
    let set = |on: &OnSlurm, state: &str| {
        drop(on.slurm("scontrol", &["update", "partitionname=main", &format!("state={state}")]))
    };
    set(&on, "INACTIVE");
    let id = on
        .product
        .submit("name: waits\nrun: exit 0\nresources: {accelerators: \"H100:1\"}\nrecovery: {max_faults: 0}\n");
    let refused = || {
        let explained = on.product.run(&["explain", &id]).stdout;
        explained.contains("Slurm refused").then_some(explained)
    };
    let explained = wait_for("the refusal to be told", refused);
    assert!(explained.contains("partition not available"), "{explained}");
    let job = on.product.job(&id);
    assert_eq!((job["faults"].as_u64(), on.node("n1")["faults"].as_f64()), (Some(0), Some(0.0)), "{job:#}");
    set(&on, "UP");
    on.product.wait_state(&id, "succeeded");
}

/// Who cancels a gang in Slurm doesn't want it back at once: the job is held, and says why, until it is released.
#[test]
fn a_job_that_an_administrator_cancels_in_slurm_is_held() {
    if !is_possible() {
        return;
    }
    let mut on = OnSlurm::down(1);
    on.product.start();
    on.wait_node("n1", "ready");
    let folder = on.product.path("checkpoints").to_str().expect("text").to_owned();
    let text = product::training(
        "resources: {accelerators: \"H100:1\"}",
        "--steps 400 --checkpoint-every 5 --step-time-min 20",
        &folder,
    );
    let id = on.product.submit(&text);
    wait_for("a checkpoint", || on.product.job(&id)["checkpoints"]["last_step"].as_u64());
    on.slurm("scancel", &["--user", "root"]);
    let held = wait_for("the job to be held", || {
        let job = on.product.job(&id);
        let notes: Vec<&str> = job["history"].as_array()?.iter().filter_map(|line| line["text"].as_str()).collect();
        notes
            .iter()
            .any(|text| text.contains("somebody cancelled its Slurm job (scancel); it is held"))
            .then(|| job.clone())
    });
    assert_eq!(
        (held["state"].as_str(), held["faults"].as_u64(), attempts(&held)),
        (Some("waiting"), Some(0), 1),
        "{held:#}"
    );
    let ended = held["attempts"][0]["ended_because"].as_str().unwrap_or_default();
    assert!(ended.contains("told to end (SIGTERM), not by this control plane"), "{ended}");
    assert!(on.product.run(&["explain", &id]).stdout.contains("a user holds it"));
    assert_eq!(on.product.run(&["release", &id]).code, 0);
    wait_for("the job to go on", || (attempts(&on.product.job(&id)) == 2).then_some(()));
    let resumed = || on.product.run(&["logs", &id]).stdout.contains("resumed from step").then_some(());
    wait_for("the job to go on from its checkpoint", resumed);
    on.product.run(&["cancel", &id]);
    on.product.wait_state(&id, "cancelled");
}

/// Each node fetches the image; ranks in containers get the GPUs that Slurm chose, and are asked to save as any others.
#[test]
fn a_gang_runs_in_an_image_on_slurms_nodes_and_nothing_of_it_is_left() {
    if !is_possible() {
        return;
    }
    let mut on = OnSlurm::down(2);
    let Some(images) = Images::offer(Engine::Podman, &mut on.product) else { return };
    on.product.start();
    for node in ["n1", "n2"] {
        on.wait_node(node, "ready");
    }
    let product = &on.product;
    let job = product.submit(&format!(
        "name: in-image\nimage: {IMAGE}\nnum_nodes: 2\nresources: {{accelerators: \"H100:2\"}}\n\
         setup: echo $SLURMD_NODENAME > setup-$SLURMD_NODENAME\n\
         run: |\n  test ! -d /usr && echo \"rank $RANK of $WORLD_SIZE sees $CUDA_VISIBLE_DEVICES after $(cat setup-$SLURMD_NODENAME)\"\n\
         \x20 sh -c 'trap \"sleep 1; touch saved-$RANK; exit 94\" TERM; touch begun-$RANK; while :; do sleep 0.1; done'\n"
    ));
    let are_there = |name: &str| (0..4).all(|rank| product.path(&format!("{name}-{rank}")).exists());
    wait_for("all ranks to begin", || are_there("begun").then_some(()));
    let places = OnSlurm::places(&product.job(&job));
    for rank in 0..4 {
        let said = format!("rank {rank} of 4 sees 0,1 after {}", places[rank / 2]);
        let log = || product.run(&["logs", &job, "--rank", &rank.to_string()]).stdout;
        wait_for("its log to say what the rank sees", || log().contains(&said).then_some(()));
    }
    assert_eq!(images.containers().matches("gangline-job-1-").count(), 4, "{}", images.containers());
    assert_eq!(product.run(&["cancel", &job]).code, 0);
    product.wait_state(&job, "cancelled");
    assert!(are_there("saved"));
    assert_eq!(images.containers(), "");
    wait_for("Slurm to be done with it", || on.jobs("RUNNING,COMPLETING,PENDING").is_empty().then_some(()));
}

/// Nodes learn what is to run containers, and a job fails at once, with that name, where they lack it.
#[test]
fn what_is_to_run_containers_is_missed_on_slurms_nodes_at_once() {
    if !is_possible() {
        return;
    }
    let mut on = OnSlurm::down(1);
    on.product.variable("GANGLINE_CONTAINERS", "enroot");
    on.product.start();
    on.wait_node("n1", "ready");
    let resources = "resources: {accelerators: \"H100:1\"}";
    let job = on.product.submit(&format!("name: in-image\nimage: {IMAGE}\n{resources}\nrun: exit 0\n"));
    let job = on.product.wait_state(&job, "failed");
    let told = "enroot, which GANGLINE_CONTAINERS asks for, isn't installed on this node";
    assert!(attempts(&job) == 1 && job["attempts"][0]["fault"].to_string().contains(told), "{job:#}");
}
