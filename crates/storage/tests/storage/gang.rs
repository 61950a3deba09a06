//! Several ranks write one checkpoint, and meet only through the file system.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use gangline_storage::{Digest, Error, Options, Saved, Step, Store};

use crate::{note, offered, open, save, state, views};

/// All ranks of a gang save `step` at once, each from its own thread and store.
fn save_as_gang(folder: &Path, world_size: u32, tag: u64, step: u64) -> Vec<Result<Saved, Error>> {
    std::thread::scope(|scope| {
        let rank = |rank| scope.spawn(move || save(&open(folder, Options::writer(rank, world_size, tag)), step));
        let ranks: Vec<_> = (0..world_size).map(rank).collect();
        ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
    })
}

fn impatient(rank: u32, world_size: u32, tag: u64) -> Options {
    Options { commit_timeout: Duration::from_millis(50), ..Options::writer(rank, world_size, tag) }
}

#[test]
fn every_rank_returns_when_the_one_checkpoint_is_visible() {
    let folder = tempfile::tempdir().unwrap();
    let alone = tempfile::tempdir().unwrap();
    let lone: Digest = save(&open(alone.path(), Options::default()), 8).unwrap().content_hash;
    for saved in save_as_gang(folder.path(), 3, 1, 8) {
        assert_eq!(saved.unwrap().content_hash, lone, "the hash doesn't depend on the number of ranks");
    }
    assert_eq!(offered(folder.path()), Some(8));
    let names: Vec<_> = std::fs::read_dir(folder.path().join("step-0000000008")).unwrap().collect();
    assert_eq!(names.len(), 4, "three shards and a manifest: {names:?}");
}

#[test]
fn more_ranks_than_tensors_write_empty_shards() {
    let folder = tempfile::tempdir().unwrap();
    assert!(save_as_gang(folder.path(), 8, 1, 2).iter().all(Result::is_ok));
    assert_eq!(offered(folder.path()), Some(2));
}

/// Proves A-6.
#[test]
fn a_gang_with_a_missing_rank_commits_nothing_and_says_who_was_missing() {
    let folder = tempfile::tempdir().unwrap();
    let lone = save(&open(folder.path(), impatient(0, 2, 1)), 5);
    assert!(matches!(lone, Err(Error::Timeout { rank: 1, step: Step(5), .. })), "{lone:?}");
    let lone = save(&open(folder.path(), impatient(1, 2, 1)), 5);
    assert!(matches!(lone, Err(Error::Timeout { rank: 0, step: Step(5), .. })), "{lone:?}");
    assert_eq!(offered(folder.path()), None);
}

/// Proves A-6.
#[test]
fn the_leftovers_of_a_dead_attempt_are_never_mixed_in() {
    let folder = tempfile::tempdir().unwrap();
    // Rank 1 of attempt 1 writes its shard of a *different* state under the same step, and dies before the commit.
    let dead_write = |tag| {
        let died = Store::open(folder.path(), impatient(1, 2, tag)).unwrap();
        let hook = |act, _: &Path| match act {
            gangline_storage::DiskAct::Remove => Err(std::io::Error::other("dead processes clear nothing away")),
            _ => Ok(()),
        };
        drop(died);
        let options = Options { disk_hook: Some(std::sync::Arc::new(hook)), ..impatient(1, 2, tag) };
        let store = open(folder.path(), options);
        store.save(Step(5), &views(&state(6)), &note()).unwrap().wait().unwrap_err();
    };
    dead_write(1);
    let later_attempt = save(&open(folder.path(), impatient(0, 2, 2)), 5);
    assert!(matches!(later_attempt, Err(Error::Timeout { rank: 1, .. })), "{later_attempt:?}");
    dead_write(2);
    assert!(save_as_gang(folder.path(), 2, 2, 5).iter().all(Result::is_ok), "opening cleared the same tag's leftovers");
    assert_eq!(offered(folder.path()), Some(5));
    let names = crate::names(folder.path());
    assert_eq!(names.len(), 1, "{names:?}");
}

#[test]
fn ranks_that_save_different_things_are_told_so() {
    let folder = tempfile::tempdir().unwrap();
    let other = std::thread::scope(|scope| {
        let other = scope.spawn(|| {
            let store = open(folder.path(), impatient(1, 2, 1));
            store.save(Step(5), &views(&state(5)), &BTreeMap::new()).unwrap().wait()
        });
        let first = save(&open(folder.path(), Options::writer(0, 2, 1)), 5);
        assert!(matches!(first, Err(Error::Disagreement { rank: 1, step: Step(5) })), "{first:?}");
        other.join().unwrap()
    });
    assert!(other.is_err());
    assert_eq!(offered(folder.path()), None);
}

#[test]
fn an_attempt_that_is_over_cannot_replace_its_successors_checkpoint() {
    let folder = tempfile::tempdir().unwrap();
    save(&open(folder.path(), Options::writer(0, 1, 2)), 5).unwrap();
    let stale = save(&open(folder.path(), Options::writer(0, 1, 1)), 5);
    assert!(matches!(stale, Err(Error::Superseded { writer: 1, by: 2, .. })), "{stale:?}");
    save(&open(folder.path(), Options::writer(0, 1, 3)), 5).unwrap();
    assert_eq!(offered(folder.path()), Some(5));
}

#[test]
fn dropping_a_store_does_not_wait_for_other_ranks() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path(), Options::writer(1, 2, 1));
    let pending = store.save(Step(5), &views(&state(5)), &note()).unwrap();
    drop(store);
    assert!(matches!(pending.wait(), Err(Error::Closed)));
}
