//! Crash equivalence, at the program's border: runs that are killed, stopped or starved end as those that aren't.
//!
//! The ranks are child processes of the real binary on a small text of this test's own.

use std::io::{BufRead, BufReader, Write};
use std::net::TcpListener;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, ExitStatus, Stdio};

use gangline_storage::{CheckpointInfo, Options, Store};

/// The steps of a whole run.
const STEPS: u64 = 12;

/// A folder with a small text and checkpoints.
struct Place {
    folder: tempfile::TempDir,
}

/// A rank under way.
struct Rank {
    child: Child,
    lines: std::io::Lines<BufReader<ChildStdout>>,
}

impl Place {
    fn new() -> Place {
        let folder = tempfile::tempdir().expect("a temporary folder");
        for part in 0..4 {
            let text: String =
                (0..120).map(|line| format!("let item_{line} = part_{part}.count({});\n", line * part % 97)).collect();
            let path = folder.path().join(format!("text/crate-{part}/lib.rs"));
            std::fs::create_dir_all(path.parent().expect("it has one")).expect("a folder");
            std::fs::write(path, text).expect("a file");
        }
        Place { folder }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// The command of one rank: a tiny model, a checkpoint after every third step.
    fn command(&self, rank: u32, world_size: u32, port: u16) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tinygpt"));
        command.env_clear().env("RAYON_NUM_THREADS", "1");
        command.env("RANK", rank.to_string()).env("WORLD_SIZE", world_size.to_string());
        command.env("MASTER_ADDR", "127.0.0.1").env("MASTER_PORT", port.to_string());
        command.env("GANGLINE_CHECKPOINT_DIR", self.path("checkpoints"));
        command.args(["--width", "16", "--layers", "1", "--heads", "2", "--context", "16", "--batch", "4"]);
        command.args(["--steps", &STEPS.to_string(), "--checkpoint-every", "3", "--log-every", "1"]);
        command.arg("--corpus").arg(self.path("text"));
        command
    }

    fn start(&self, attempt: u64, world_size: u32, more: &[&str]) -> Vec<Rank> {
        let port = free_port();
        let rank = |rank| {
            let mut command = self.command(rank, world_size, port);
            Rank::start(command.env("GANGLINE_ATTEMPT", attempt.to_string()).args(more))
        };
        (0..world_size).map(rank).collect()
    }

    /// Runs all ranks to the end; returns what they wrote.
    fn finish(&self, attempt: u64, world_size: u32) -> String {
        let mut output = String::new();
        for mut rank in self.start(attempt, world_size, &[]) {
            output.push_str(&rank.rest());
            assert!(rank.wait().success(), "{output:?}");
        }
        output
    }

    fn latest(&self) -> Option<CheckpointInfo> {
        let store = Store::open(self.path("checkpoints"), Options::reader()).expect("the store is there");
        store.latest().expect("it can be read").checkpoint
    }
}

impl Rank {
    fn start(command: &mut Command) -> Rank {
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("tinygpt starts");
        let lines = BufReader::new(child.stdout.take().expect("it is piped")).lines();
        Rank { child, lines }
    }

    /// Reads its output until a line starts with `start`.
    fn read_to(&mut self, start: &str) {
        let found = self.lines.any(|line| line.expect("text").starts_with(start));
        assert!(found, "it ended before it said {start:?}");
    }

    /// The rest of its output and its errors.
    fn rest(&mut self) -> String {
        let output: Vec<String> = self.lines.by_ref().map(|line| line.expect("text")).collect();
        let errors = std::io::read_to_string(self.child.stderr.take().expect("it is piped")).expect("text");
        output.join("\n") + &errors
    }

    fn wait(&mut self) -> ExitStatus {
        self.child.wait().expect("a child can be waited for")
    }

    /// SIGKILL.
    fn kill(&mut self) {
        self.child.kill().expect("it runs, or has just ended");
        self.wait();
    }
}

impl Drop for Rank {
    fn drop(&mut self) {
        // After a failed assertion; it may be gone already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn free_port() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    listener.local_addr().expect("it is bound").port()
}

/// The final checkpoint of a run that nothing happened to.
fn undisturbed(world_size: u32) -> CheckpointInfo {
    let place = Place::new();
    place.finish(1, world_size);
    let end = place.latest().expect("a final checkpoint");
    assert_eq!(end.step.0, STEPS);
    end
}

/// Kills a rank after the steps given, one kill an attempt, then lets the run end. The last kill comes so late that
/// there is a checkpoint.
fn check_kills(world_size: u32, kills: &[(u64, u32)]) {
    let place = Place::new();
    for (attempt, (step, victim)) in (1..).zip(kills) {
        let mut ranks = place.start(attempt, world_size, &["--step-time-min", "10"]);
        ranks[0].read_to(&format!("step {step} "));
        ranks[*victim as usize].kill();
        for (number, rank) in (0..).zip(&mut ranks).filter(|(number, _)| number != victim) {
            let output = rank.rest();
            let code = rank.wait().code();
            // The others notice, unless they were done before the blow.
            assert!(code == Some(1) && output.contains("hear from rank") || code == Some(0), "{number}: {output}");
        }
        // The save of step 6 began when that of step 3 was durable.
        assert!(place.latest().is_some() || *step <= 6, "killed after step {step}");
    }
    let output = place.finish(99, world_size);
    assert!(output.contains("resumed from step"), "{output}");
    let (end, expected) = (place.latest().expect("a final checkpoint"), undisturbed(world_size));
    assert_eq!(end.step, expected.step);
    assert_eq!(end.content_hash, expected.content_hash, "after kills at {kills:?}");
}

#[test]
fn a_killed_run_ends_like_an_undisturbed_one() {
    check_kills(1, &[(1, 0), (5, 0), (7, 0), (11, 0)]);
}

#[test]
fn a_killed_gang_ends_like_an_undisturbed_one_whichever_rank_is_killed() {
    check_kills(2, &[(2, 1), (7, 0), (10, 1)]);
}

#[test]
fn the_number_of_threads_changes_nothing() {
    let end = |threads: &str| {
        let place = Place::new();
        let mut command = place.command(0, 1, 0);
        // Wide enough for candle and gemm to share the work out.
        command.args(["--width", "64", "--context", "64", "--batch", "8", "--steps", "4"]);
        command.args(["--corpus-bytes-max", "100000"]);
        let mut rank = Rank::start(command.env("RAYON_NUM_THREADS", threads));
        let output = rank.rest();
        assert!(rank.wait().success(), "{output}");
        place.latest().expect("a final checkpoint").content_hash
    };
    assert_eq!(end("1"), end("2"));
}

#[test]
fn without_a_number_of_threads_it_starts_again_with_one_in_the_same_process() {
    let place = Place::new();
    let path = place.path("socket");
    let listener = UnixListener::bind(&path).expect("a socket");
    // Alone in a gang of two it waits for the other until it is killed.
    let mut command = place.command(0, 2, free_port());
    let mut rank = Rank::start(command.env_remove("RAYON_NUM_THREADS").env("GANGLINE_SOCKET", &path));
    let (stream, _) = listener.accept().expect("the rank calls");
    let told = messages(&stream).next().expect("it says who it is");
    assert_eq!(told["pid"].as_u64(), Some(rank.child.id().into()));
    let environment = std::fs::read(format!("/proc/{}/environ", rank.child.id())).expect("it waits");
    assert!(String::from_utf8_lossy(&environment).contains("RAYON_NUM_THREADS=1"));
    rank.kill();
}

/// A supervisor's end of the socket: takes a rank's call.
fn supervise(place: &Place, rank: u32, world_size: u32, port: u16) -> (Rank, UnixStream) {
    let path = place.path(&format!("socket-{rank}"));
    // An earlier attempt's socket may be there.
    let _ = std::fs::remove_file(&path);
    let listener = UnixListener::bind(&path).expect("a socket");
    let rank = Rank::start(place.command(rank, world_size, port).env("GANGLINE_SOCKET", &path));
    let (stream, _) = listener.accept().expect("the rank calls");
    (rank, stream)
}

fn messages(stream: &UnixStream) -> impl Iterator<Item = serde_json::Value> {
    let lines = BufReader::new(stream.try_clone().expect("a second handle")).lines();
    lines.map(|line| serde_json::from_str(&line.expect("text")).expect("JSON"))
}

#[test]
fn a_gang_told_to_stop_saves_the_same_step_everywhere_and_goes_on_later() {
    let place = Place::new();
    let port = free_port();
    let (mut first, first_stream) = supervise(&place, 0, 2, port);
    let (mut second, mut second_stream) = supervise(&place, 1, 2, port);
    // Only one of them is told.
    writeln!(second_stream, r#"{{"order":"save_and_stop","grace_ms":30000}}"#).expect("it listens");
    let last_step = |stream| messages(stream).filter_map(|message| message["step"].as_u64()).last();
    let steps = (last_step(&first_stream), last_step(&second_stream));
    let output = (first.rest(), second.rest());
    assert_eq!((first.wait().code(), second.wait().code()), (Some(94), Some(94)), "{output:?}");
    assert_eq!(steps.0, steps.1);
    assert_eq!(place.latest().map(|info| info.step.0), steps.0);
    assert!(steps.0 < Some(STEPS), "it was told before the first step");
    place.finish(2, 2);
    assert_eq!(place.latest().map(|info| info.content_hash), Some(undisturbed(2).content_hash));
}

/// The samples of each step, over all ranks in their order; of steps that were done again, the last time.
fn sample_log(place: &Place, name: &str) -> std::collections::BTreeMap<u64, Vec<u64>> {
    let mut steps = std::collections::BTreeMap::<u64, std::collections::BTreeMap<u64, Vec<u64>>>::new();
    for rank in 0..8 {
        let Ok(text) = std::fs::read_to_string(place.path(&format!("{name}/rank-{rank}.jsonl"))) else { continue };
        for line in text.lines() {
            let line: serde_json::Value = serde_json::from_str(line).expect("a whole line");
            let samples = line["samples"].as_array().expect("a list").iter();
            let samples = samples.map(|sample| sample.as_u64().expect("a number")).collect();
            let ranks = steps.entry(line["step"].as_u64().expect("a step")).or_default();
            ranks.insert(line["rank"].as_u64().expect("a rank"), samples);
        }
    }
    steps.into_iter().map(|(step, ranks)| (step, ranks.into_values().flatten().collect())).collect()
}

/// Proves A-16: killed, resumed on fewer and on more ranks, which don't divide the batch, and stopped by rolling back, a run
/// trains on the samples of one that nothing happened to.
#[test]
fn a_gang_that_is_killed_and_resized_trains_on_the_samples_of_an_undisturbed_run() {
    let logged = |place: &Place, name: &str| {
        let folder = place.path(name).display().to_string();
        ["--global-batch".to_owned(), "7".to_owned(), "--sample-log".to_owned(), folder]
    };
    let start = |place: &Place, attempt, world_size, name: &str, more: &[&str]| {
        let logged = logged(place, name);
        let arguments: Vec<&str> = logged.iter().map(String::as_str).chain(more.iter().copied()).collect();
        place.start(attempt, world_size, &arguments)
    };
    let end = |ranks: Vec<Rank>| {
        for mut rank in ranks {
            let output = rank.rest();
            assert!(rank.wait().success(), "{output}");
        }
    };
    let alone = Place::new();
    end(start(&alone, 1, 1, "samples", &[]));
    let oracle = sample_log(&alone, "samples");
    assert_eq!((oracle.len() as u64, oracle[&1].len()), (STEPS, 7));
    let place = Place::new();
    // Each attempt has a log of its own: what the gang's last attempt at a step read counts.
    let mut trained = std::collections::BTreeMap::new();
    for (attempt, world_size, kill_after) in [(1, 3, 4), (2, 2, 7), (3, 4, 10)] {
        let name = format!("samples-{attempt}");
        let mut ranks = start(&place, attempt, world_size, &name, &["--step-time-min", "10"]);
        ranks[0].read_to(&format!("step {kill_after} "));
        ranks.iter_mut().for_each(Rank::kill);
        // A rank may have been killed before it read its part of the last step.
        trained.extend(sample_log(&place, &name).into_iter().filter(|(_, samples)| samples.len() == 7));
    }
    end(start(&place, 4, 1, "samples-4", &[]));
    trained.extend(sample_log(&place, "samples-4"));
    assert_eq!(trained, oracle);
    assert_eq!(place.latest().map(|info| info.step.0), Some(STEPS));
}

#[test]
fn a_resized_gang_keeps_the_global_batch_of_its_first_start() {
    let place = Place::new();
    let mut ranks = place.start(1, 2, &["--step-time-min", "10"]);
    ranks[0].read_to("step 7 ");
    ranks.iter_mut().for_each(Rank::kill);
    let note = |name: &str| place.latest().expect("a checkpoint").metadata[name].clone();
    assert_eq!(note("global_batch"), "8");
    let output = place.finish(2, 1);
    assert!(!output.contains("have changed"), "{output}");
    assert_eq!((note("global_batch").as_str(), note("ranks").as_str()), ("8", "1"));
    assert!(note("data").contains("\"sample\":96"), "12 steps of 8: {}", note("data"));
}

#[test]
fn a_supervised_rank_says_what_it_does() {
    let place = Place::new();
    let (mut rank, stream) = supervise(&place, 0, 1, 0);
    let told: Vec<serde_json::Value> = messages(&stream).collect();
    assert_eq!(rank.wait().code(), Some(0));
    assert_eq!((&told[0]["rank"], told[0]["pid"].as_u64()), (&0.into(), Some(rank.child.id().into())));
    let phases: Vec<&str> = told.iter().filter_map(|message| message["phase"].as_str()).collect();
    assert_eq!(phases[..4], ["init", "restore", "data", "compute"]);
    assert_eq!(phases.last(), Some(&"done"));
    assert!(phases.contains(&"checkpoint"));
    let steps: Vec<u64> = told.iter().filter_map(|message| message["step"].as_u64()).collect();
    assert_eq!(steps, (1..=STEPS).collect::<Vec<_>>());
    assert!(told.iter().any(|message| message["tokens"] == 64 && message["loss"].as_f64() > Some(1.0)));
    let saved: Vec<u64> = told.iter().filter_map(|message| message["checkpoint"]["step"].as_u64()).collect();
    assert_eq!(saved, [3, 6, 9, 12]);
}

/// Proves A-13.
#[test]
fn a_supervisor_that_goes_away_doesnt_hurt() {
    let place = Place::new();
    let (mut rank, stream) = supervise(&place, 0, 1, 0);
    drop(stream);
    let output = rank.rest();
    assert!(rank.wait().success(), "{output}");
    assert_eq!(place.latest().map(|info| info.step.0), Some(STEPS));
}

#[test]
fn the_loss_falls_and_a_finished_run_has_nothing_left_to_do() {
    let place = Place::new();
    let mut ranks = place.start(1, 1, &["--steps", "150", "--lr", "0.01"]);
    let output = ranks[0].rest();
    let losses: Vec<f64> = output
        .lines()
        .filter_map(|line| line.strip_prefix("step ")?.split_once(" loss ")?.1.split(' ').next()?.parse().ok())
        .collect();
    assert_eq!(losses.len(), 150, "{output}");
    assert!(losses[149] < losses[0] * 0.7, "{} to {}", losses[0], losses[149]);
    let held_out = output.lines().find_map(|line| line.strip_prefix("validation loss ")?.split(' ').next());
    let held_out: f64 = held_out.expect(&output).parse().expect("a number");
    assert!(held_out < losses[0] * 0.8, "{held_out}");
    let before = place.latest().expect("a final checkpoint");
    place.finish(2, 1);
    assert_eq!(place.latest(), Some(before));
}

/// Runs one rank with these arguments; returns its exit code and what it wrote.
fn outcome(place: &Place, arguments: &[&str], corpus: Option<&Path>) -> (Option<i32>, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tinygpt"));
    command.env_clear().env("RAYON_NUM_THREADS", "1").args(arguments);
    command.arg("--corpus").arg(corpus.unwrap_or(&place.path("text")));
    let mut rank = Rank::start(&mut command);
    let output = rank.rest();
    (rank.wait().code(), output)
}

#[test]
fn what_cannot_work_is_refused_with_a_reason_and_the_code_for_no_restart() {
    let place = Place::new();
    let check = |arguments: &[&str], corpus: Option<&Path>, code: i32, reason: &str| {
        let (found, output) = outcome(&place, arguments, corpus);
        assert!(found == Some(code) && output.contains(reason), "{arguments:?}: {found:?} {output}");
    };
    check(&["--heads", "5"], None, 93, "the heads have to divide the width");
    check(&["--lr", "-1"], None, 93, "learning rate is above 0");
    check(&["--lr", "nan"], None, 93, "learning rate is above 0");
    check(&["--steps", "0"], None, 2, "0 is not in 1..");
    check(&["--lr", "1", "--steps", "3", "--context", "4096"], None, 93, "at least");
    let empty = place.path("empty");
    std::fs::create_dir(&empty).expect("a folder");
    check(&[], Some(&empty), 93, "0 bytes of .rs files");
    check(&[], Some(&place.path("missing")), 1, "missing");
}

#[test]
fn a_checkpoint_of_another_model_is_refused_by_name() {
    let place = Place::new();
    place.finish(1, 1);
    let mut ranks = place.start(2, 1, &["--width", "32", "--steps", "20"]);
    let output = ranks[0].rest();
    assert_eq!(ranks[0].wait().code(), Some(93));
    assert!(output.contains("model.embedding.byte is missing or has another shape"), "{output}");
}

/// A peer of the format (candle, by Hugging Face's own crate) reads the shards as they are.
#[test]
fn a_shard_is_a_safetensors_file_to_others() {
    let place = Place::new();
    place.finish(1, 1);
    let shard = place.path("checkpoints/step-0000000012/shard-00000-of-00001.safetensors");
    let tensors = candle_core::safetensors::load(shard, &candle_core::Device::Cpu).expect("candle reads it");
    assert_eq!(tensors.len(), place.latest().expect("a checkpoint").tensors.len());
    assert_eq!(tensors["model.embedding.byte"].dims(), [256, 16]);
}
