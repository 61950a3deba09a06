//! Crash equivalence: a run that was killed and recovered ends with the very same bytes as one that wasn't.

use crate::fixtures::product::{Product, assert_booked_exactly, rank_pid};
use crate::fixtures::{gangline, kill, wait_for};

/// The content hash of the last checkpoint in a folder, and its step.
fn content(product: &Product, folder: &str) -> (u64, String) {
    let ran = product.run(&["checkpoint", "verify", folder, "--json"]);
    assert_eq!(ran.code, 0, "every checkpoint is sound: {} {}", ran.stdout, ran.stderr);
    let rows = ran.json();
    let last = rows.as_array().expect("rows").iter().max_by_key(|row| row["step"].as_u64()).expect("a checkpoint");
    let hash = last["content_hash"].as_str().expect("a hash").to_owned();
    (last["step"].as_u64().expect("a step"), hash)
}

fn check(ranks: u32, victim: usize) {
    let product = Product::up(&["a=cpu:2"]);
    let path = |name: &str| product.path(name).to_str().expect("text").to_owned();
    let options = "--steps 120 --seed 5 --checkpoint-every 20";
    let calm = product.submit(&super::training(options, ranks, &path("calm")));
    product.wait_state(&calm, "succeeded");

    // Slow enough that there is time for the blow.
    let options = format!("{options} --step-time-min 30");
    let shaken = product.submit(&super::training(&options, ranks, &path("shaken")));
    let pid = wait_for("a checkpoint in the middle", || {
        let job = product.job(&shaken);
        let is_due = job["checkpoints"]["last_step"].as_u64() >= Some(40);
        if is_due { rank_pid(&job, 0, victim) } else { None }
    });
    kill(pid);
    let job = product.wait_state(&shaken, "succeeded");

    assert_eq!(job["attempts"].as_array().map(Vec::len), Some(2), "it was killed and recovered: {job:#}");
    assert_eq!(
        job["attempts"][0]["fault"]["rank"].as_u64(),
        u64::try_from(victim).ok(),
        "the victim is the root cause"
    );
    assert_eq!(job["recoveries"][0]["phases"].as_array().map(Vec::len), Some(6), "{job:#}");
    assert_booked_exactly(&job);
    assert_eq!(content(&product, &path("shaken")), content(&product, &path("calm")));
    assert_eq!(content(&product, &path("calm")).0, 120);
}

#[test]
fn a_killed_and_recovered_run_ends_with_the_same_bytes() {
    check(1, 0);
}

#[test]
fn a_killed_and_recovered_gang_ends_with_the_same_bytes() {
    check(2, 1);
}

/// Proves A-6 through the whole product: a checkpoint that was changed on disk is named, and never offered.
#[test]
fn a_flipped_byte_in_a_checkpoint_is_found() {
    let product = Product::up(&["a=cpu:1"]);
    let folder = product.path("ckpt");
    let text = folder.to_str().expect("text").to_owned();
    let job = product.submit(&super::training("--steps 40 --checkpoint-every 20", 1, &text));
    product.wait_state(&job, "succeeded");
    let shard = walk(&folder).into_iter().max_by_key(|path| path.metadata().map(|m| m.len()).unwrap_or(0));
    let shard = shard.expect("a shard");
    let mut bytes = std::fs::read(&shard).expect("readable");
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    std::fs::write(&shard, bytes).expect("writable");
    let ran = product.run(&["checkpoint", "verify", &text]);
    assert_eq!(ran.code, 1, "{}", ran.stdout);
    assert!(ran.stdout.contains("none found"), "the other one is sound: {}", ran.stdout);
    assert!(gangline().exists());
}

fn walk(folder: &std::path::Path) -> Vec<std::path::PathBuf> {
    let mut folders = vec![folder.to_owned()];
    let mut files = Vec::new();
    while let Some(folder) = folders.pop() {
        let entries = std::fs::read_dir(folder).expect("a folder").flatten().map(|entry| entry.path());
        let (inner, plain): (Vec<_>, Vec<_>) = entries.partition(|path| path.is_dir());
        folders.extend(inner);
        files.extend(plain);
    }
    files
}
