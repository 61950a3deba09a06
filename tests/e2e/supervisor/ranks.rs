//! What a rank sees, what it may say, and what becomes of its output. Proves A-10 for logs and the rank protocol.

use std::collections::BTreeMap;

use gangline_base::Phase;
use gangline_execution::protocol::{Outcome, SupervisorSpec};
use gangline_storage::{Options, Step, Store};

use crate::fixtures::attempt::{Attempt, Speaker};

/// The variables a rank sees that begin like torchrun's and Gangline's, as it wrote them to a file.
fn environment_of(attempt: &Attempt, file: &str) -> BTreeMap<String, String> {
    const PREFIXES: [&str; 13] = [
        "LOCAL_",
        "RANK",
        "GROUP_",
        "ROLE_",
        "WORLD_",
        "MASTER_",
        "TORCH",
        "OMP_",
        "CUDA_",
        "GANGLINE_J",
        "GANGLINE_A",
        "GANGLINE_G",
        "GANGLINE_C",
    ];
    let text = attempt.wait_for_file(file);
    let pairs = text.lines().filter_map(|line| line.split_once('='));
    let ours = pairs.filter(|(name, _)| PREFIXES.iter().any(|prefix| name.starts_with(prefix)));
    ours.map(|(name, value)| (name.to_owned(), value.to_owned())).collect()
}

fn expected_environment(rank: &str, port: &str, folder: &str) -> BTreeMap<String, String> {
    let pairs = [
        ("LOCAL_RANK", rank),
        ("RANK", rank),
        ("GROUP_RANK", "0"),
        ("ROLE_RANK", rank),
        ("ROLE_NAME", "default"),
        ("LOCAL_WORLD_SIZE", "2"),
        ("WORLD_SIZE", "2"),
        ("GROUP_WORLD_SIZE", "1"),
        ("ROLE_WORLD_SIZE", "2"),
        ("MASTER_ADDR", "127.0.0.1"),
        ("MASTER_PORT", port),
        ("TORCHELASTIC_RESTART_COUNT", "2"),
        ("TORCHELASTIC_MAX_RESTARTS", "10"),
        ("TORCHELASTIC_RUN_ID", "job-7"),
        ("TORCHELASTIC_USE_AGENT_STORE", "False"),
        ("TORCH_NCCL_ASYNC_ERROR_HANDLING", "1"),
        ("OMP_NUM_THREADS", "1"),
        ("CUDA_VISIBLE_DEVICES", "2,5"),
        ("CUDA_DEVICE_ORDER", "PCI_BUS_ID"),
        ("GANGLINE_JOB_ID", "job-7"),
        ("GANGLINE_ATTEMPT", "3"),
        ("GANGLINE_GENERATION", "3"),
        ("GANGLINE_ATTEMPT_DIR", folder),
        ("GANGLINE_CHECKPOINT_DIR", "/checkpoints/x"),
    ];
    pairs.into_iter().map(|(name, value)| (name.to_owned(), value.to_owned())).collect()
}

#[test]
fn ranks_see_exactly_the_environment_of_torchrun() {
    let change = |spec: &mut SupervisorSpec| {
        spec.devices = vec![2, 5];
        spec.device_kind = "H100".to_owned();
        spec.checkpoint_dir = Some("/checkpoints/x".into());
        spec.envs.insert("RANK".to_owned(), "not yours to set".to_owned());
    };
    let attempt = Attempt::of("env > $OUT/env-$RANK").ranks(2).with(change).launch();
    assert_eq!(attempt.plane.wait_for_end(), Outcome::Succeeded);
    let offered = attempt.plane.wait_for("an offer", |report| report.rendezvous.is_some()).rendezvous;
    let port = offered.expect("it was waited for").port.to_string();
    let folder = attempt.spec.folder.to_str().expect("temporary paths are text");
    for rank in ["0", "1"] {
        assert_eq!(environment_of(&attempt, &format!("env-{rank}")), expected_environment(rank, &port, folder));
    }
}

#[test]
fn a_job_may_set_its_threads_and_a_cpu_rank_sees_no_gpu() {
    let attempt = Attempt::of("env > $OUT/env-$RANK").ranks(2);
    let attempt = attempt.with(|spec| drop(spec.envs.insert("OMP_NUM_THREADS".to_owned(), "8".to_owned()))).launch();
    assert_eq!(attempt.plane.wait_for_end(), Outcome::Succeeded);
    let environment = environment_of(&attempt, "env-1");
    assert_eq!(environment.get("OMP_NUM_THREADS").map(String::as_str), Some("8"));
    assert!(!environment.contains_key("CUDA_VISIBLE_DEVICES") && !environment.contains_key("CUDA_DEVICE_ORDER"));
}

#[test]
fn rank_0_starts_before_all_others() {
    // When the kernel made the process, in hundredths of a second; field 22 of stat, see proc_pid_stat(5).
    let attempt = Attempt::of("cut -d' ' -f22 /proc/$$/stat > $OUT/began-$RANK").ranks(3).launch();
    assert_eq!(attempt.plane.wait_for_end(), Outcome::Succeeded);
    let began =
        |rank: u32| -> u64 { attempt.wait_for_file(&format!("began-{rank}")).trim().parse().expect("it is a number") };
    for rank in [1, 2] {
        assert!(began(rank) >= began(0) + 5, "rank {rank} started at {}, rank 0 at {}", began(rank), began(0));
    }
}

#[test]
fn what_a_rank_says_is_reported() {
    let attempt = Attempt::of("echo $GANGLINE_SOCKET > $OUT/socket; sleep 1000").launch();
    let mut speaker = Speaker::for_rank(&attempt, "socket");
    speaker.say(r#"{"rank":0,"pid":1}"#);
    speaker.say(r#"{"total_steps":40,"phase":"restore"}"#);
    speaker.say(r#"{"phase":"compute"}"#);
    speaker.say(r#"{"step":11,"loss":NaN,"tokens":100}"#);
    speaker.say(r#"{"step":12,"loss":2.5,"tokens":100,"phase":"checkpoint"}"#);
    speaker.say(r#"{"checkpoint":{"step":12,"bytes":4096}}"#);
    let report = attempt.plane.wait_for("a checkpoint", |report| report.checkpoint.is_some());
    let (rank, marks) = (&report.ranks[0], report.marks);
    assert_eq!((rank.step, rank.total_steps, rank.tokens), (Some(12), Some(40), 200));
    assert_eq!((rank.phase, rank.dropped), (Some(Phase::Checkpoint), 0));
    assert_eq!((report.checkpoints, report.checkpoint_bytes), (1, 4096));
    assert_eq!(report.samples.iter().map(|sample| sample.loss).collect::<Vec<_>>(), [None, Some(2.5)]);
    let order = [marks.ranks_started, marks.restore_began, marks.restore_ended, marks.first_step];
    assert!(order.iter().all(Option::is_some) && order.is_sorted(), "{order:?}");
}

/// A rank's word for a checkpoint counts if the store has it. Where there is no store of Gangline's the script's word is all there is.
#[test]
fn a_checkpoint_that_the_store_does_not_have_does_not_count() {
    let attempt = Attempt::of("echo $GANGLINE_SOCKET > $OUT/socket; sleep 1000");
    let folder = attempt.out("checkpoints");
    let attempt = attempt.with(|spec| spec.checkpoint_dir = Some(folder.clone())).launch();
    let mut speaker = Speaker::for_rank(&attempt, "socket");
    speaker.say(r#"{"checkpoint":{"step":3,"bytes":1}}"#);
    let report = attempt.plane.wait_for("a script's own checkpoint", |report| report.checkpoint.is_some());
    assert_eq!((report.checkpoints, report.ranks[0].dropped), (1, 0));
    let store = Store::open(&folder, Options::default()).expect("a store");
    let save =
        |step| store.save(Step(step), &[], &BTreeMap::new()).expect("it is taken").wait().expect("it is durable");
    save(4);
    speaker.say(r#"{"checkpoint":{"step":12,"bytes":1},"step":12,"tokens":1}"#);
    let report = attempt.plane.wait_for("a claim to be dropped", |report| report.ranks[0].dropped == 1);
    assert_eq!((report.checkpoint.map(|saved| saved.step), report.checkpoints), (Some(3), 1));
    let report = attempt.plane.wait_for("the rest of what was said", |report| report.ranks[0].step.is_some());
    assert_eq!((report.ranks[0].step, report.checkpoints), (Some(12), 1));
    save(12);
    speaker.say(r#"{"checkpoint":{"step":12,"bytes":1}}"#);
    let report = attempt.plane.wait_for("one that is there", |report| report.checkpoints == 2);
    assert_eq!(report.checkpoint.map(|saved| saved.step), Some(12));
}

#[test]
fn nonsense_on_the_socket_is_dropped_and_counted() {
    let attempt = Attempt::of("echo $GANGLINE_SOCKET > $OUT/socket; sleep 1000").launch();
    let mut speaker = Speaker::for_rank(&attempt, "socket");
    speaker.say("hello");
    speaker.say(r#"{"step":-4}"#);
    speaker.say(&"x".repeat(200_000));
    speaker.say(r#"{"step":1,"phase":"napping"}"#);
    // What is dropped of a read counts after its messages: a report may come between the two.
    let report = attempt.plane.wait_for("four dropped", |report| report.ranks[0].dropped >= 4);
    assert_eq!((report.ranks[0].step, report.ranks[0].dropped), (Some(1), 4));
}

#[test]
fn a_rank_that_prints_without_end_has_a_bounded_log() {
    let flood = "yes a line of output | head -c 30000000; head -c 20000000 /dev/zero | tr '\\0' x; echo; echo end";
    let attempt = Attempt::of(flood).with(|spec| spec.log_bytes_max = 200_000).launch();
    assert_eq!(attempt.plane.wait_for_end(), Outcome::Succeeded);
    let (old, new) = (attempt.log("rank-0.log.1"), attempt.log("rank-0.log"));
    assert!(old.len() <= 200_000 && new.len() <= 200_000, "{} and {}", old.len(), new.len());
    assert!(new.ends_with(" O end\n"));
    let line = new.lines().next_back().expect("it has lines");
    let (time, _) = line.split_once(' ').expect("a time and a text");
    assert!(time.len() == "2026-11-21T09:30:00.123456Z".len() && time.ends_with('Z'), "{line}");
}

#[test]
fn a_folder_with_a_long_name_still_has_sockets() {
    let attempt = Attempt::of("echo $GANGLINE_SOCKET > $OUT/socket; sleep 1000");
    let attempt = attempt.with(|spec| spec.folder = spec.folder.join("long".repeat(40))).launch();
    let mut speaker = Speaker::for_rank(&attempt, "socket");
    speaker.say(r#"{"step":1}"#);
    attempt.plane.wait_for("a step", |report| report.ranks[0].step == Some(1));
    let folder = std::path::PathBuf::from(attempt.wait_for_file("socket"));
    let folder = folder.parent().expect("a socket is in a folder").to_owned();
    attempt.order_stop(1_000);
    attempt.plane.wait_for_end();
    attempt.wait_until_gone();
    assert!(!folder.exists());
}

#[test]
fn a_rank_has_no_input() {
    let attempt = Attempt::of("cat; echo read nothing").launch();
    assert_eq!(attempt.plane.wait_for_end(), Outcome::Succeeded);
    assert!(attempt.log("rank-0.log").ends_with(" O read nothing\n"));
}
