//! Artifacts whose contents are in S3, by a real server that throttles.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use serde_json::Value;

use crate::fixtures::product::Product;
use crate::fixtures::s3::Server;
use crate::fixtures::wait_for;

/// A client of the artifacts of a control plane.
struct Client {
    agent: ureq::Agent,
    url: String,
    token: String,
}

impl Client {
    fn of(product: &Product) -> Client {
        let agent = ureq::Agent::config_builder().http_status_as_error(false).build().new_agent();
        let token = std::fs::read_to_string(product.data().join("token")).expect("a token");
        Client { agent, url: product.url(), token: format!("Bearer {}", token.trim()) }
    }

    fn put(&self, path: &str, contents: &[u8]) -> u16 {
        self.try_put(path, contents).expect("an answer")
    }

    /// The same, for nothing if no answer comes.
    fn try_put(&self, path: &str, contents: &[u8]) -> Option<u16> {
        let url = format!("{}/api/2.0/mlflow-artifacts/artifacts/{path}", self.url);
        let sent = self.agent.put(url).header("authorization", &self.token).send(contents);
        sent.ok().map(|answer| answer.status().as_u16())
    }

    fn get(&self, path: &str, range: &str) -> (u16, Result<Vec<u8>, ureq::Error>) {
        let url = format!("{}/api/2.0/mlflow-artifacts/artifacts/{path}", self.url);
        let request = self.agent.get(url).header("authorization", &self.token);
        let request = if range.is_empty() { request } else { request.header("range", range) };
        let mut answer = request.call().expect("an answer");
        (answer.status().as_u16(), answer.body_mut().with_config().limit(u64::MAX).read_to_vec())
    }

    fn json(&self, path: &str) -> Value {
        let mut answer = self
            .agent
            .get(format!("{}{path}", self.url))
            .header("authorization", &self.token)
            .call()
            .expect("an answer");
        serde_json::from_str(&answer.body_mut().read_to_string().expect("text")).expect("JSON")
    }
}

fn objects(server: &Server) -> Vec<std::path::PathBuf> {
    let mut found = Vec::new();
    let mut folders = vec![server.path("s3/bucket")];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).into_iter().flatten().map(|entry| entry.expect("an entry").path()) {
            if entry.is_dir() { folders.push(entry) } else { found.push(entry) }
        }
    }
    found
}

fn product(server: &Server, secret: &str) -> Product {
    let mut product = Product::down(&["a=cpu:1"]);
    std::fs::create_dir_all(product.data()).expect("a folder");
    let table = "[artifacts]\naddress = 's3://bucket/artifacts'\ndirect_downloads = true\n";
    std::fs::write(product.data().join("gangline.toml"), table).expect("it is writable");
    for (name, value) in server.settings() {
        product.variable(name, &value);
    }
    product.variable("AWS_SECRET_ACCESS_KEY", secret);
    product.start();
    product
}

#[test]
fn artifacts_go_to_s3_in_parts_and_come_back_by_both_ways_though_it_throttles() {
    let server = Server::start();
    let mut product = product(&server, "secret");
    let client = Client::of(&product);
    // Three parts.
    let large: Vec<u8> = (0..40_u64 << 20).map(|at| (at ^ (at >> 8) ^ (at >> 16)).to_le_bytes()[0]).collect();
    assert_eq!((client.put("0/a/weights", &large), client.put("0/b/same", &large)), (200, 200));
    assert_eq!(client.put("0/a/notes.txt", b"notes"), 200);
    let sizes: Vec<u64> = objects(&server).iter().map(|path| path.metadata().expect("a file").len()).collect();
    let count = |bytes: usize| sizes.iter().filter(|size| **size == bytes as u64).count();
    assert_eq!((count(large.len()), count(5)), (1, 1), "equal contents are one object: {sizes:?}");
    let inside = product.data().join("tracking/artifacts");
    let is_kept_inside = std::fs::read_dir(&inside).expect("a folder").count() > 1;
    assert!(!is_kept_inside && std::fs::read_dir(inside.join("incoming")).expect("a folder").count() == 0);

    let (status, whole) = client.get("0/b/same", "");
    assert!(status == 200 && whole.expect("a body") == large);
    let (status, part) = client.get("0/a/weights", "bytes=20000000-20000099");
    assert!(status == 206 && part.expect("a body") == large[20_000_000..20_000_100]);
    assert_eq!(client.get("0/a/weights", "bytes=99999999-").0, 416);
    assert_eq!(client.json("/api/3.0/mlflow/server-info")["multipart_downloads_enabled"], true);
    let signed = client.json("/api/2.0/mlflow-artifacts/presigned/0/a/weights");
    assert_eq!(signed["file_size"], large.len());
    let url = signed["url"].as_str().expect("an address");
    // Without a token; the server throttles this way too.
    let fetched = wait_for("the object", || {
        let mut answer = client.agent.get(url).header("range", "bytes=0-99").call().expect("an answer");
        (answer.status().as_u16() == 206).then(|| answer.body_mut().read_to_vec().expect("a body"))
    });
    assert_eq!(fetched, large[..100]);

    product.kill_control_plane();
    product.start();
    let client = Client::of(&product);
    assert!(client.get("0/b/same", "").1.expect("a body") == large, "what was acknowledged stays");
    let damaged = objects(&server).into_iter().find(|path| path.metadata().is_ok_and(|file| file.len() == 5));
    std::fs::write(damaged.expect("the notes"), b"nodes").expect("it is ours");
    client.get("0/a/notes.txt", "").1.expect_err("a flipped bit breaks the answer off");
}

/// Whatever was acknowledged is there, and whatever is listed is whole, whenever the control plane is killed: with contents in the
/// data folder and in S3.
#[test]
fn killed_uploads_lose_nothing_that_was_acknowledged_and_show_nothing_half_done() {
    let server = Server::start();
    for is_in_s3 in [false, true] {
        let mut product = if is_in_s3 { product(&server, "secret") } else { Product::up(&["a=cpu:1"]) };
        let mut acknowledged = Vec::new();
        for round in 0..4_u64 {
            let client = Client::of(&product);
            let count = Arc::new(AtomicU64::new(0));
            let counted = Arc::clone(&count);
            let sender = std::thread::spawn(move || send_until_it_fails(&client, round, &counted));
            wait_for("uploads", || (count.load(Ordering::SeqCst) > round).then_some(()));
            // Into the middle of the next one, each time elsewhere.
            std::thread::sleep(Duration::from_millis(7 * round));
            product.kill_control_plane();
            acknowledged.extend(sender.join().expect("no panic"));
            product.start();
        }
        let client = Client::of(&product);
        let list = client.json("/api/2.0/mlflow-artifacts/artifacts?path=0/r");
        let listed: Vec<&str> =
            list["files"].as_array().expect("a list").iter().filter_map(|file| file["path"].as_str()).collect();
        assert!(acknowledged.len() >= 10, "one, two, three and four at least: {}", acknowledged.len());
        for (path, round, length) in &acknowledged {
            let (status, whole) = client.get(path, "");
            assert!(status == 200 && whole.expect("a body") == contents(*round, *length), "{path}, in S3: {is_in_s3}");
        }
        for name in &listed {
            let (status, whole) = client.get(&format!("0/r/{name}"), "");
            let length = whole.expect("what is listed is whole").len();
            assert!(status == 200 && length >= 1_000_000, "{name}: {length}");
        }
        let waiting = std::fs::read_dir(product.data().join("tracking/artifacts/incoming")).expect("a folder").count();
        assert_eq!(waiting, 0, "what was cut off is gone");
    }
}

/// Sends artifacts until one isn't acknowledged; returns those that were, with their round and length.
fn send_until_it_fails(client: &Client, round: u64, count: &AtomicU64) -> Vec<(String, u64, u64)> {
    let send = |number: u64| {
        let (path, length) = (format!("0/r/{round}-{number}"), 1_000_000 + 7 * number);
        let is_kept = client.try_put(&path, &contents(round, length)) == Some(200);
        is_kept.then(|| count.fetch_add(1, Ordering::SeqCst));
        is_kept.then_some((path, round, length))
    };
    (0..10_000).map_while(send).collect()
}

fn contents(seed: u64, length: u64) -> Vec<u8> {
    (0..length).map(|at| (at.wrapping_mul(31) ^ (at >> 7) ^ seed).to_le_bytes()[0]).collect()
}

#[test]
fn a_place_that_refuses_everything_costs_the_upload_and_nothing_else() {
    let server = Server::start();
    let product = product(&server, "wrong");
    let client = Client::of(&product);
    assert_eq!(client.put("0/a/notes.txt", b"notes"), 500);
    assert_eq!(client.json("/api/2.0/mlflow-artifacts/artifacts?path=0/a")["files"].as_array().map_or(0, Vec::len), 0);
    let id = product.submit("name: x\nrun: \"true\"\n");
    product.wait_state(&id, "succeeded");
}

#[test]
fn an_address_that_is_none_is_refused_at_the_start() {
    let product = Product::down(&["a=cpu:1"]);
    std::fs::create_dir_all(product.data()).expect("a folder");
    let file = product.data().join("gangline.toml");
    std::fs::write(&file, "[artifacts]\naddress = 'gs://bucket'\n").expect("it is writable");
    let ran = product.start_refused();
    assert!(
        ran.code == 1 && ran.stderr.contains("G0505") && ran.stderr.contains("s3://bucket/prefix"),
        "{}",
        ran.stderr
    );
}
