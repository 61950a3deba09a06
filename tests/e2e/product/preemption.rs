//! Making room, with real training: save first, leave, come back, lose nothing.

use crate::fixtures::product::{Product, assert_booked_exactly, nanos};
use crate::fixtures::wait_for;

const STEPS: &str = "--steps 400 --checkpoint-every 1000 --step-time-min 20";

fn with_priority(job: &str, priority: &str) -> String {
    format!("priority: {priority}\n{job}")
}

fn history(job: &serde_json::Value) -> String {
    job["history"].to_string()
}

/// The job of lower priority saves when it is asked to, though its next checkpoint isn't due for long, and goes on from
/// there after the urgent one: no step is done again, no fault is counted.
#[test]
fn an_urgent_job_takes_the_devices_of_one_that_saves_first() {
    let mut product = Product::down(&["a=cpu:1"]);
    let config = product.job_file("gangline.toml", "[preemption]\nmin_runtime = \"0s\"\n");
    product.option("--config", &config);
    product.start();
    let folder = product.path("ckpt").to_str().expect("text").to_owned();
    let training = product.submit(&with_priority(&super::training(STEPS, 1, &folder), "low"));
    product.wait_step(&training, 20);
    let urgent = product.submit("name: urgent\nqueue: research\npriority: urgent\nrun: sleep 0.5\n");
    product.wait_state(&urgent, "succeeded");

    let job = product.wait_state(&training, "succeeded");
    assert_eq!(job["attempts"].as_array().map(Vec::len), Some(2), "{job:#}");
    assert_eq!(job["faults"], 0, "{job:#}");
    assert!(history(&job).contains(&format!("it made room for {urgent}")), "{job:#}");
    let claimed = history(&product.job(&urgent));
    assert!(claimed.contains(&format!("gets a from {training}: by its higher priority")), "{claimed}");
    let lost = job["usage"]["buckets"].as_array().expect("buckets").iter().find(|line| line["bucket"] == "lost_work");
    let lost = lost.and_then(|line| line["gpu_seconds"].as_f64()).unwrap_or_default();
    assert!(lost < 0.5, "it saved first, yet {lost} GPU-seconds are done again: {job:#}");
    assert_booked_exactly(&job);
}

/// A node that goes in a while: the job there saves just in time and goes on elsewhere.
#[test]
fn a_node_is_left_before_its_deadline() {
    let product = Product::up(&["a=cpu:1", "b=cpu:1"]);
    let folder = product.path("ckpt").to_str().expect("text").to_owned();
    let id = product.submit(&super::training(STEPS, 1, &folder).replace("grace: 5s", "grace: 50s"));
    let job = product.wait_step(&id, 20);
    let node = job["attempts"][0]["shares"][0]["node"].as_str().expect("a node").to_owned();
    // The grace is nearly as long: it is asked at once.
    let drained = product.json(&["drain", &node, "--within", "51s"]);
    assert_eq!(drained["status"], "draining");
    assert!(drained["leaves_at"].is_string(), "{drained:#}");
    wait_for("the node to be left", || {
        let nodes = product.json(&["nodes"]);
        let left = nodes["nodes"].as_array()?.iter().find(|it| it["name"] == *node)?.clone();
        left["slots"].as_array()?.iter().all(|slot| slot["job"].is_null()).then_some(())
    });
    let job = product.wait_state(&id, "succeeded");
    assert!(nanos(&job["attempts"][0]["ended_at"]) < nanos(&drained["leaves_at"]), "{drained:#} {job:#}");
    assert!(history(&job).contains(&format!("it left {node}, which was about to go")), "{job:#}");
    assert_eq!(job["faults"], 0, "{job:#}");
    assert_booked_exactly(&job);
}

/// A cloud's notice in a file: the job saves in time, and goes on on another node.
#[test]
fn a_node_that_a_cloud_takes_back_is_left_in_time() {
    let mut product = Product::down(&["a=cpu:1", "b=cpu:1"]);
    let notice = product.path("notice");
    product.option("--spot-notice", notice.to_str().expect("text"));
    product.start();
    let folder = product.path("ckpt");
    let options = "--steps 2000 --checkpoint-every 1000 --step-time-min 20";
    let id = product.submit(&super::training(options, 1, folder.to_str().expect("text")));
    let running = product.wait_step(&id, 20);
    let first = running["attempts"][0]["shares"][0]["node"].as_str().expect("a node").to_owned();
    // Only the first node is taken back: the other's supervisor would find the same file.
    std::fs::write(&notice, "8").expect("it can be written");
    wait_for("the node to be about to go", || {
        let nodes = product.json(&["nodes"]);
        let nodes = nodes["nodes"].as_array().expect("nodes").clone();
        let is_leaving = |node: &&serde_json::Value| node["name"] == first.as_str() && node["status"] == "draining";
        nodes.iter().find(is_leaving).map(|_| ())
    });
    std::fs::remove_file(&notice).expect("it is there");
    let moved = wait_for("it to go on elsewhere", || {
        let job = product.job(&id);
        (job["attempts"].as_array().map(Vec::len) == Some(2)).then_some(job)
    });
    let second = moved["attempts"][1]["shares"][0]["node"].as_str().expect("a node");
    assert_ne!(second, first, "{moved:#}");
    assert!(moved["checkpoints"]["last_step"].as_u64() >= Some(20), "it saved before it left: {moved:#}");
    assert_eq!(moved["faults"].as_u64(), Some(0), "{moved:#}");
    assert_eq!(product.run(&["cancel", &id]).code, 0);
}
