//! Retention removes the old and never the last good one.

use std::num::NonZeroUsize;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use gangline_storage::{DiskAct, LOSS_NOTE, Options, PrunePolicy, Pruned, Step};

use crate::{names, offered, open, save, state, views};

fn keep(count: usize) -> PrunePolicy {
    PrunePolicy::Keep { last: NonZeroUsize::new(count).unwrap(), rules: Vec::new() }
}

fn fill(folder: &Path, steps: u64) {
    let store = open(folder, Options { keep: None, ..Options::default() });
    for step in 1..=steps {
        save(&store, step).unwrap();
    }
}

fn damage(folder: &Path, step: u64) {
    let shard = folder.join(format!("step-{step:010}/shard-00000-of-00001.safetensors"));
    let mut bytes = std::fs::read(&shard).unwrap();
    bytes[900] ^= 4;
    std::fs::write(&shard, bytes).unwrap();
}

#[test]
fn each_commit_removes_what_is_beyond_the_kept() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path(), Options::default());
    save(&store, 1).unwrap();
    save(&store, 2).unwrap();
    let saved = save(&store, 3).unwrap();
    let expected = Pruned { removed: vec![Step(1)], kept: vec![Step(2), Step(3)] };
    assert_eq!(saved.retention.unwrap(), expected);
    drop(store);
    assert_eq!(names(folder.path()).len(), 2);
}

/// A training whose loss has gone bad saves on until somebody notices: what it saves doesn't displace what is good.
#[test]
fn saves_with_a_loss_that_is_no_number_leave_the_good_ones_and_are_bounded_themselves() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path(), Options::default());
    let mut kept = Vec::new();
    for step in 1..=8 {
        let loss = if step <= 3 { "0.5" } else { "nan" };
        let notes = [(LOSS_NOTE.to_owned(), loss.to_owned())].into();
        let saved = store.save(Step(step), &views(&state(step)), &notes).unwrap().wait().unwrap();
        kept = saved.retention.unwrap().kept.iter().map(|step| step.0).collect();
    }
    assert_eq!(kept, [2, 3, 7, 8]);
    let below = Options { restore_below: Some(Step(4)), ..Options::default() };
    drop(store);
    let latest = open(folder.path(), below).latest().unwrap().checkpoint.unwrap();
    assert_eq!(latest.step, Step(3));
}

#[test]
fn bytes_that_cannot_be_removed_are_told_with_the_next_save_and_go_at_the_next_open() {
    let folder = tempfile::tempdir().unwrap();
    let removals = AtomicUsize::new(0);
    // The first looks whether there is a folder of that name already.
    let hook = move |act, path: &Path| match act {
        DiskAct::Remove if path.to_string_lossy().contains(".deleted") => {
            let is_second = removals.fetch_add(1, Ordering::SeqCst) == 1;
            if is_second { Err(std::io::Error::other("no")) } else { Ok(()) }
        }
        _ => Ok(()),
    };
    let store = open(folder.path(), Options { disk_hook: Some(Arc::new(hook)), ..Options::default() });
    let told: Vec<bool> = (1..=5).map(|step| save(&store, step).unwrap().retention.is_err()).collect();
    assert_eq!(told, [false, false, false, true, false]);
    drop(store);
    let is_retired = |name: &str| name.starts_with(".deleted");
    assert!(names(folder.path()).iter().any(|name| is_retired(name)));
    drop(open(folder.path(), Options::default()));
    assert!(!names(folder.path()).iter().any(|name| is_retired(name)));
    assert_eq!(offered(folder.path()), Some(5));
}

#[test]
fn a_dry_run_says_what_a_real_one_then_removes() {
    let folder = tempfile::tempdir().unwrap();
    fill(folder.path(), 5);
    let store = open(folder.path(), Options::reader());
    let planned = store.prune(&keep(2), true).unwrap();
    assert_eq!(store.list().unwrap().len(), 5);
    assert_eq!(planned, store.prune(&keep(2), false).unwrap());
    assert_eq!(planned.removed, [Step(1), Step(2), Step(3)]);
    assert_eq!(store.list().unwrap().len(), 2);
}

/// Proves A-6.
#[test]
fn the_last_good_checkpoint_outlives_newer_broken_ones() {
    let folder = tempfile::tempdir().unwrap();
    fill(folder.path(), 4);
    damage(folder.path(), 3);
    damage(folder.path(), 4);
    let store = open(folder.path(), Options::reader());
    let pruned = store.prune(&keep(1), false).unwrap();
    assert_eq!(pruned.removed, [Step(1)]);
    assert_eq!(offered(folder.path()), Some(2));
    damage(folder.path(), 2);
    let pruned = store.prune(&keep(1), false).unwrap();
    assert_eq!(pruned.removed, [], "with nothing good left nothing is removed");
}

#[test]
fn retention_after_a_commit_counts_only_good_ones_of_an_earlier_process() {
    let folder = tempfile::tempdir().unwrap();
    fill(folder.path(), 3);
    damage(folder.path(), 3);
    let saved = save(&open(folder.path(), Options::default()), 4).unwrap();
    assert_eq!(saved.retention.unwrap().removed, [Step(1)]);
    assert_eq!(offered(folder.path()), Some(4));
}
