//! `gangline data tokenize` and `warm` by the real binary: killed, and started again; several at a time, from a server that counts.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

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

/// A server that speaks as much of S3 as a reader needs, and counts what it is asked.
#[derive(Default)]
struct S3 {
    objects: BTreeMap<String, Vec<u8>>,
    gets: AtomicUsize,
    heads: AtomicUsize,
    lists: AtomicUsize,
    /// One GET in so many is refused with 503, and another is cut off; none if 0.
    faults_every: usize,
    /// Whether GETs are held until this is false again.
    is_held: AtomicBool,
    /// The state of the objects, which is a part of their ETags.
    state: AtomicUsize,
    last: Mutex<String>,
}

impl S3 {
    fn start(self) -> (Arc<S3>, String) {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = format!("http://{}", listener.local_addr().expect("an address"));
        let server = Arc::new(self);
        let shared = Arc::clone(&server);
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let server = Arc::clone(&shared);
                std::thread::spawn(move || while server.answer(&stream).is_some() {});
            }
        });
        (server, address)
    }

    fn requests(&self) -> usize {
        [&self.gets, &self.heads, &self.lists].iter().map(|count| count.load(Ordering::SeqCst)).sum()
    }

    fn tag(&self) -> String {
        format!("\"{}\"", self.state.load(Ordering::SeqCst))
    }

    /// Answers one request; none at the connection's end.
    fn answer(&self, stream: &TcpStream) -> Option<()> {
        let mut lines = BufReader::new(stream).lines();
        let first = lines.next()?.ok()?;
        let mut range = None;
        while let Some(line) = lines.next()?.ok().filter(|line| !line.is_empty()) {
            if let Some(bytes) = line.to_ascii_lowercase().strip_prefix("range: bytes=") {
                let (start, end) = bytes.split_once('-').expect("a range");
                range = Some((start.parse::<usize>().expect("a number"), end.parse::<usize>().expect("a number")));
            }
        }
        first.clone_into(&mut self.last.lock().expect("no panic"));
        let (method, rest) = first.split_once(' ').expect("a request");
        let (path, query) = rest.split(' ').next()?.split_once('?').unwrap_or((rest.split(' ').next()?, ""));
        let key = path.trim_start_matches("/bucket/");
        if query.contains("list-type") {
            self.lists.fetch_add(1, Ordering::SeqCst);
            return self.send(stream, "200 OK", "", self.listing().as_bytes(), usize::MAX);
        }
        let Some(object) = self.objects.get(key) else {
            self.heads.fetch_add(1, Ordering::SeqCst);
            return self.send(stream, "404 Not Found", "", b"", usize::MAX);
        };
        let tag = format!("ETag: {}\r\nLast-Modified: Wed, 25 Nov 2026 10:00:00 GMT\r\n", self.tag());
        if method == "HEAD" {
            self.heads.fetch_add(1, Ordering::SeqCst);
            let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n{tag}\r\n", object.len());
            return (&*stream).write_all(head.as_bytes()).ok();
        }
        let number = self.gets.fetch_add(1, Ordering::SeqCst) + 1;
        while self.is_held.load(Ordering::SeqCst) {
            std::thread::yield_now();
        }
        let (start, end) = range.expect("readers ask for ranges");
        let body = &object[start..=end.min(object.len() - 1)];
        let headers = format!("{tag}Content-Range: bytes {start}-{}/{}\r\n", start + body.len() - 1, object.len());
        match number.checked_rem(self.faults_every) {
            Some(1) => self.send(stream, "503 Slow Down", "", b"", usize::MAX),
            Some(2) => self.send(stream, "206 Partial Content", &headers, body, body.len() / 2).and(None),
            _ => self.send(stream, "206 Partial Content", &headers, body, usize::MAX),
        }
    }

    /// Sends so much of a body at most; none when the other side is gone.
    fn send(&self, mut stream: &TcpStream, status: &str, headers: &str, body: &[u8], most: usize) -> Option<()> {
        let head = format!("HTTP/1.1 {status}\r\nContent-Length: {}\r\n{headers}\r\n", body.len());
        stream.write_all(head.as_bytes()).and_then(|()| stream.write_all(&body[..body.len().min(most)])).ok()
    }

    fn listing(&self) -> String {
        let contents = self.objects.iter().fold(String::new(), |mut text, (key, object)| {
            let (tag, size) = (self.tag(), object.len());
            write!(
                text,
                "<Contents><Key>{key}</Key><LastModified>2026-11-25T10:00:00.000Z</LastModified><ETag>{tag}</ETag><Size>{size}</Size></Contents>"
            )
            .expect("text");
            text
        });
        format!("<ListBucketResult><IsTruncated>false</IsTruncated>{contents}</ListBucketResult>")
    }
}

/// Objects of 20 MiB, 8 MiB and a few bytes.
fn objects() -> BTreeMap<String, Vec<u8>> {
    let bytes = |count: u32| (0..count).map(|at| (at.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
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
    let (server, address) = S3 { objects: objects(), is_held: AtomicBool::new(true), ..S3::default() }.start();
    let mut killed = warm(folder, &address, "s3://bucket/set").spawn().expect("gangline runs");
    let deadline = Instant::now() + PATIENCE;
    while server.gets.load(Ordering::SeqCst) == 0 {
        assert!(Instant::now() < deadline, "nothing was asked for");
        std::thread::yield_now();
    }
    killed.kill().expect("it runs");
    killed.wait().expect("it ended");
    let before = server.gets.load(Ordering::SeqCst);
    let running: Vec<Child> =
        (0..8).map(|_| warm(folder, &address, "s3://bucket/set").spawn().expect("gangline runs")).collect();
    server.is_held.store(false, Ordering::SeqCst);
    let all: Vec<serde_json::Value> = running.into_iter().map(warmed).collect();
    // 20 MiB are three ranges, 8 MiB one, and 10 bytes one. A look at each object when it is whole, and a listing of each program.
    assert_eq!((sum(&all, "get"), sum(&all, "head"), sum(&all, "list")), (5, 3, 8));
    assert_eq!(server.gets.load(Ordering::SeqCst) - before, 5, "as many as the server was asked for");
    assert_eq!(all.iter().map(|one| one["fetched_bytes"].as_u64().expect("a number")).sum::<u64>(), (28 << 20) + 10);
    same_as_objects(folder, &all[0]);
    let cached = Command::new(env!("CARGO_BIN_EXE_gangline"))
        .args(["data", "cache", "--cache", "cache", "--json"])
        .env_clear()
        .current_dir(folder)
        .output()
        .expect("gangline runs");
    let cached: serde_json::Value = serde_json::from_slice(&cached.stdout).expect("JSON");
    assert_eq!(cached[0]["url"], "s3://bucket/set/a.bin");
    assert_eq!((&cached[0]["bytes"], &cached[0]["is_used"]), (&(20 << 20).into(), &false.into()));
}

#[test]
fn requests_that_are_refused_or_cut_off_are_sent_again_and_all_are_counted() {
    let folder = tempfile::tempdir().expect("a folder");
    let folder = folder.path();
    let (server, address) = S3 { objects: objects(), faults_every: 4, ..S3::default() }.start();
    let set = warmed(warm(folder, &address, "s3://bucket/set").spawn().expect("gangline runs"));
    same_as_objects(folder, &set);
    let counted: u64 = ["get", "head", "list"].iter().map(|key| sum(std::slice::from_ref(&set), key)).sum();
    assert_eq!(counted, server.requests() as u64, "what the server was asked, faults included");
    assert!(server.gets.load(Ordering::SeqCst) > 5, "there were faults");
    // In another state, it is another copy.
    server.state.store(1, Ordering::SeqCst);
    let again = warmed(warm(folder, &address, "s3://bucket/set").spawn().expect("gangline runs"));
    assert_eq!(again["fetched_bytes"], (28 << 20) + 10);
    assert_ne!(again["path"], set["path"]);
}

#[test]
fn an_object_that_changes_while_it_is_fetched_is_refused() {
    let folder = tempfile::tempdir().expect("a folder");
    let (server, address) = S3 { objects: objects(), is_held: AtomicBool::new(true), ..S3::default() }.start();
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
