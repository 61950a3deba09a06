//! `gangline data tokenize`, `warm` and `bench` by the real binary: killed, and started again; several at a time, from a server that counts.

#[path = "../../data/tests/server/mod.rs"]
mod server;

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use gangline_data::{READS_VARIABLE, Requests, tallies_in};
use server::Server;

/// How long a run may take until it has ended a file.
const PATIENCE: Duration = Duration::from_secs(60);
const DOCUMENTS: usize = 12_000;

fn tokenizer() -> String {
    let vocabulary: BTreeMap<String, usize> =
        ('a'..='z').map(String::from).chain(["[UNK]".to_owned()]).zip(0..).collect();
    let model = serde_json::json!({ "type": "WordLevel", "vocab": vocabulary, "unk_token": "[UNK]" });
    serde_json::json!({ "version": "1.0", "truncation": null, "padding": null, "added_tokens": [], "normalizer": null,
        "pre_tokenizer": { "type": "WhitespaceSplit" }, "post_processor": null, "decoder": null, "model": model })
    .to_string()
}

fn command(folder: &Path, output: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_gangline"));
    command.args(["data", "tokenize", "text.jsonl", output, "--tokenizer", "tokenizer.json", "--end-token", "z"]);
    command.args(["--threads", "1", "--file-bytes", "20000", "--json"]);
    command.env_clear().current_dir(folder).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

fn finish(folder: &Path, output: &str) -> serde_json::Value {
    let ended = command(folder, output).output().expect("gangline runs");
    assert!(ended.status.success(), "{}", String::from_utf8_lossy(&ended.stderr));
    serde_json::from_slice(&ended.stdout).expect("JSON")
}

fn content(folder: &Path) -> BTreeMap<String, Vec<u8>> {
    let files = fs::read_dir(folder).expect("a folder").map(|entry| entry.expect("a file").path());
    let name = |path: &Path| path.file_name().expect("a name").to_string_lossy().into_owned();
    files.map(|path| (name(&path), fs::read(path).expect("bytes"))).collect()
}

#[test]
fn a_killed_run_goes_on_and_what_it_makes_is_an_undisturbed_runs() {
    let folder = tempfile::tempdir().expect("a folder");
    let folder = folder.path();
    fs::write(folder.join("tokenizer.json"), tokenizer()).expect("a tokenizer");
    let text = (0..DOCUMENTS).fold(String::new(), |mut text, number| {
        let words = "a b c d e f g h i j k l ".repeat(number % 5 + 1);
        writeln!(text, "{{\"text\": \"{words}\"}}").expect("text");
        text
    });
    fs::write(folder.join("text.jsonl"), text).expect("text");
    let whole = finish(folder, "whole");
    let mut running = command(folder, "tokens").spawn().expect("gangline runs");
    let deadline = Instant::now() + PATIENCE;
    while !folder.join("tokens.progress").exists() {
        assert!(Instant::now() < deadline, "no file was ended");
        std::thread::yield_now();
    }
    running.kill().expect("it runs");
    running.wait().expect("it ended");
    assert!(!folder.join("tokens").exists(), "it was killed on its way");
    let resumed = finish(folder, "tokens");
    let documents = resumed["resumed_documents"].as_u64().expect("a number");
    assert!(documents > 0 && documents < DOCUMENTS as u64, "{resumed}");
    for key in ["documents", "tokens", "dtype", "vocabulary"] {
        assert_eq!(resumed[key], whole[key], "{key}");
    }
    assert_eq!(content(&folder.join("tokens")), content(&folder.join("whole")));
    assert!(!folder.join("tokens.progress").exists() && !folder.join("tokens.partial").exists());
}

/// Objects of 20 MiB, 8 MiB and a few bytes.
fn objects() -> BTreeMap<String, Vec<u8>> {
    let bytes = |count: u32| (0..count).map(|at| at.wrapping_mul(2_654_435_761).to_le_bytes()[1]).collect();
    [("set/a.bin", 20 << 20), ("set/b.bin", 8 << 20), ("set/c.bin", 10)]
        .map(|(key, count)| (key.to_owned(), bytes(count)))
        .into()
}

fn warm(folder: &Path, address: &str, url: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_gangline"));
    command.args(["data", "warm", url, "--cache", "cache", "--verify", "--json"]).env_clear().current_dir(folder);
    command.env("AWS_ENDPOINT_URL", address).env("AWS_REGION", "us-east-1").env("AWS_ALLOW_HTTP", "true");
    command.env("AWS_ACCESS_KEY_ID", "key").env("AWS_SECRET_ACCESS_KEY", "secret");
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

fn warmed(child: Child) -> serde_json::Value {
    let ended = child.wait_with_output().expect("it ended");
    assert!(ended.status.success(), "{}", String::from_utf8_lossy(&ended.stderr));
    serde_json::from_slice(&ended.stdout).expect("JSON")
}

fn sum(all: &[serde_json::Value], key: &str) -> u64 {
    all.iter().map(|one| one["requests"][key].as_u64().expect("a number")).sum()
}

fn same_as_objects(folder: &Path, set: &serde_json::Value) {
    let path = folder.join(set["path"].as_str().expect("a path"));
    for (key, bytes) in objects() {
        assert!(fs::read(path.join(key.trim_start_matches("set/"))).expect("bytes") == bytes, "{key}");
    }
}

/// The first of them is killed in the middle of its requests, as all others are about to wait for it.
#[test]
fn eight_programs_fetch_a_dataset_once_though_one_is_killed_and_ranges_are_of_8_mib() {
    let folder = tempfile::tempdir().expect("a folder");
    let folder = folder.path();
    // The server may read requests of the killed program after its end, so they are told apart by their key.
    let server = Server {
        objects: objects(),
        is_held: AtomicBool::new(true),
        uncounted_key: Some("doomed"),
        ..Server::default()
    };
    let (server, address) = server.start();
    let mut killed =
        warm(folder, &address, "s3://bucket/set").env("AWS_ACCESS_KEY_ID", "doomed").spawn().expect("gangline runs");
    let deadline = Instant::now() + PATIENCE;
    while server.asked.lock().expect("no panic").is_empty() {
        assert!(Instant::now() < deadline, "nothing was asked for");
        std::thread::yield_now();
    }
    killed.kill().expect("it runs");
    killed.wait().expect("it ended");
    let running: Vec<Child> =
        (0..8).map(|_| warm(folder, &address, "s3://bucket/set").spawn().expect("gangline runs")).collect();
    server.is_held.store(false, Ordering::SeqCst);
    let all: Vec<serde_json::Value> = running.into_iter().map(warmed).collect();
    // 20 MiB are three ranges, 8 MiB one, and 10 bytes one. A listing of each program.
    assert_eq!((sum(&all, "get"), sum(&all, "head"), sum(&all, "list")), (5, 0, 8));
    assert_eq!(server.gets.load(Ordering::SeqCst), 5, "as many as the server was asked for");
    assert_eq!(all.iter().map(|one| one["fetched_bytes"].as_u64().expect("a number")).sum::<u64>(), (28 << 20) + 10);
    same_as_objects(folder, &all[0]);
    let cached = Command::new(env!("CARGO_BIN_EXE_gangline"))
        .args(["data", "cache", "--cache", "cache", "--json"])
        .env_clear()
        .current_dir(folder)
        .output()
        .expect("gangline runs");
    let cached: serde_json::Value = serde_json::from_slice(&cached.stdout).expect("JSON");
    let cached = &cached["objects"];
    assert_eq!(cached[0]["url"], "s3://bucket/set/a.bin");
    assert_eq!((&cached[0]["bytes"], &cached[0]["is_used"]), (&(20 << 20).into(), &false.into()));
}

#[test]
fn requests_that_are_refused_or_cut_off_are_sent_again_and_all_are_counted() {
    let folder = tempfile::tempdir().expect("a folder");
    let folder = folder.path();
    let (server, address) = Server { objects: objects(), faults_every: 4, ..Server::default() }.start();
    let set = warmed(warm(folder, &address, "s3://bucket/set").spawn().expect("gangline runs"));
    same_as_objects(folder, &set);
    let counted: u64 = ["get", "head", "list", "failed"].iter().map(|key| sum(std::slice::from_ref(&set), key)).sum();
    assert_eq!(counted, server.requests() as u64, "what the server was asked, faults included");
    assert!(server.gets.load(Ordering::SeqCst) > 5, "there were faults");
    // In another state, it is another copy.
    let sent = server.sent.swap(0, Ordering::SeqCst);
    assert_eq!(set["fetched_bytes"], sent, "what the server sent, broken answers included");
    assert!(sent > (28 << 20) + 10, "some of it came twice");
    server.state.store(1, Ordering::SeqCst);
    let again = warmed(warm(folder, &address, "s3://bucket/set").spawn().expect("gangline runs"));
    assert_eq!(again["fetched_bytes"], server.sent.load(Ordering::SeqCst));
    assert_ne!(again["path"], set["path"]);
}

#[test]
fn an_object_that_changes_while_it_is_fetched_is_refused() {
    let folder = tempfile::tempdir().expect("a folder");
    let (server, address) = Server { objects: objects(), is_held: AtomicBool::new(true), ..Server::default() }.start();
    let running = warm(folder.path(), &address, "s3://bucket/set/a.bin").spawn().expect("gangline runs");
    let deadline = Instant::now() + PATIENCE;
    while server.gets.load(Ordering::SeqCst) == 0 {
        assert!(Instant::now() < deadline, "nothing was asked for");
        std::thread::yield_now();
    }
    server.state.store(1, Ordering::SeqCst);
    server.is_held.store(false, Ordering::SeqCst);
    let ended = running.wait_with_output().expect("it ended");
    let said = String::from_utf8_lossy(&ended.stderr);
    assert!(ended.status.code() == Some(1) && said.contains("s3://bucket/set/a.bin: it had 20971520 bytes"), "{said}");
    let missing = warm(folder.path(), &address, "s3://bucket/set/none.bin").output().expect("gangline runs");
    let said = String::from_utf8_lossy(&missing.stderr);
    assert!(missing.status.code() == Some(1) && said.contains("there is no such object"), "{said}");
}

#[test]
fn what_a_program_asked_for_is_noted_though_it_is_killed_or_opens_nothing() {
    let folder = tempfile::tempdir().expect("a folder");
    let folder = folder.path();
    let (server, address) = Server { objects: objects(), is_held: AtomicBool::new(true), ..Server::default() }.start();
    let noting = |url: &str| {
        let mut command = warm(folder, &address, url);
        command.env(READS_VARIABLE, folder.join("reads")).spawn().expect("gangline runs")
    };
    let noted = || tallies_in(&folder.join("reads"));
    let mut killed = noting("s3://bucket/set");
    let deadline = Instant::now() + PATIENCE;
    // A listing, and all five ranges, none of which is answered.
    while server.requests() < 6 {
        assert!(Instant::now() < deadline, "{} requests", server.requests());
        std::thread::yield_now();
    }
    killed.kill().expect("it runs");
    killed.wait().expect("it ended");
    let asked = Requests { get: 5, list: 1, ..Requests::default() };
    assert_eq!(noted(), BTreeMap::from([("s3://bucket/set".to_owned(), (asked, 0))]));
    server.is_held.store(false, Ordering::SeqCst);
    warmed(noting("s3://bucket/set"));
    let asked = Requests { get: 10, list: 2, ..Requests::default() };
    assert_eq!(noted()["s3://bucket/set"], (asked, (28 << 20) + 10));
    assert_eq!(server.requests(), 12);
    let missing = noting("s3://bucket/set/none.bin").wait_with_output().expect("it ended");
    assert_eq!(missing.status.code(), Some(1));
    assert_eq!(noted()["s3://bucket/set/none.bin"], (Requests { head: 1, ..Requests::default() }, 0));
}

#[test]
fn a_measured_rate_is_enough_or_a_failure() {
    let folder = tempfile::tempdir().expect("a folder");
    fs::write(folder.path().join("tokens.bin"), vec![1; 64 << 10]).expect("tokens");
    let bench = |needs: &str| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_gangline"));
        command.args(["data", "bench", "tokens.bin", "--dtype", "uint16", "--sequence-length", "16", "--seconds", "1"]);
        let ran =
            command.args(["--needs", needs]).env_clear().current_dir(folder.path()).output().expect("gangline runs");
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        (ran.status.code(), text(&ran.stdout), text(&ran.stderr))
    };
    let (code, enough, _) = bench("10");
    assert!(code == Some(0) && enough.contains("times the 1.000e1 tokens/s that are needed"), "{enough}");
    let (code, _, missed) = bench("1e18");
    assert!(code == Some(1) && missed.contains("this node gives 0 % of the 1.000e18 tokens/s"), "{missed}");
    let (code, _, refused) = bench("0");
    assert!(code == Some(2) && refused.contains("a number above 0"), "{refused}");
}
