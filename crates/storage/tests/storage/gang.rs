//! Several ranks write one checkpoint, and meet only through the file system.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use gangline_storage::{AlikeValue, Digest, DiskAct, Error, NoteTypes, Options, Saved, Step, Store, Tensor};

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

/// A test that waits as long as this has failed.
fn patient(rank: u32, world_size: u32) -> Options {
    Options { commit_timeout: Duration::from_secs(600), ..Options::writer(rank, world_size, 1) }
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
        let store = open(folder.path(), impatient(1, 2, tag));
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
    let stores: Vec<Store> = (0..3).map(|rank| open(folder.path(), patient(rank, 3))).collect();
    let begin =
        |step: u64, other: &dyn Fn(u32) -> (Vec<Tensor>, BTreeMap<String, String>)| -> Vec<Result<Saved, Error>> {
            let saves = stores.iter().zip(0..).map(|(store, rank)| {
                let (tensors, metadata) = other(rank);
                store.save(Step(step), &views(&tensors), &metadata).unwrap()
            });
            saves.collect::<Vec<_>>().into_iter().map(gangline_storage::Pending::wait).collect()
        };
    let all_told = |outcomes: Vec<Result<Saved, Error>>, words: &str| {
        for outcome in outcomes {
            let Err(Error::Disagreement { rank: 1, step: Step(5), what }) = &outcome else { panic!("{outcome:?}") };
            assert_eq!(what, words);
        }
    };
    let noted = |rank| (state(5), if rank == 1 { BTreeMap::new() } else { note() });
    all_told(begin(5, &noted), "metadata \"seed\"");
    // The same step again, with the same stores: nothing of the time before is taken for this one's.
    let changed = |rank| {
        let mut tensors = state(5);
        tensors[1].data[0] ^= u8::from(rank == 1);
        (tensors, note())
    };
    let name = format!("tensor {:?}", state(5)[1].name);
    all_told(begin(5, &changed), &name);
    assert!(begin(5, &|_| (state(5), note())).iter().all(Result::is_ok));
    all_told(begin(5, &changed), &name);
    assert!(begin(6, &|_| (state(6), note())).iter().all(Result::is_ok));
    assert_eq!(
        crate::names(folder.path()),
        ["step-0000000005", "step-0000000006"],
        "nothing is left of what was refused"
    );
}

#[test]
fn values_that_differ_are_named_and_not_stored() {
    let folder = tempfile::tempdir().unwrap();
    let saved = |values: [&str; 2], step| -> Vec<Result<Saved, Error>> {
        let stores: Vec<Store> = (0..2).map(|rank| open(folder.path(), patient(rank, 2))).collect();
        let saves = stores.iter().zip(values).map(|(store, value)| {
            let values = [AlikeValue { name: "['cursor']", data: value.as_bytes() }];
            store.save_noted(Step(step), &views(&state(step)), (&note(), &NoteTypes::new()), &values).unwrap()
        });
        saves.collect::<Vec<_>>().into_iter().map(gangline_storage::Pending::wait).collect()
    };
    for outcome in saved(["1", "2"], 5) {
        let text = outcome.unwrap_err().to_string();
        assert_eq!(text, "commit step 5: rank 1 saved something else than rank 0: ['cursor']");
    }
    let stored = saved(["1", "1"], 6);
    assert_eq!(
        stored[0].as_ref().unwrap().content_hash,
        save_as_gang(folder.path(), 2, 2, 6)[0].as_ref().unwrap().content_hash
    );
}

#[test]
fn a_rank_that_cannot_save_tells_the_others_whichever_it_is() {
    for refusing in [0, 1, 2] {
        let folder = tempfile::tempdir().unwrap();
        let stores: Vec<Store> = (0..3).map(|rank| open(folder.path(), patient(rank, 3))).collect();
        let mut saves = Vec::new();
        for (store, rank) in stores.iter().zip(0..) {
            if rank == refusing {
                store.refuse(Step(5), "it has no safe encoding").unwrap();
            } else {
                saves.push(store.save(Step(5), &views(&state(5)), &note()).unwrap());
            }
        }
        for save in saves {
            let outcome = save.wait();
            let Err(Error::Abandoned { rank, step: Step(5), why }) = &outcome else { panic!("{outcome:?}") };
            assert_eq!((*rank, why.as_str()), (refusing, "it has no safe encoding"));
        }
        let saves: Vec<_> =
            stores.iter().map(|store| store.save(Step(5), &views(&state(5)), &note()).unwrap()).collect();
        assert!(saves.into_iter().all(|save| save.wait().is_ok()), "the next try is another matter");
    }
}

#[test]
fn a_rank_that_has_begun_anew_has_still_told_why() {
    let folder = tempfile::tempdir().unwrap();
    let [first, hasty] = [0, 1].map(|rank| open(folder.path(), patient(rank, 2)));
    let save = |store: &Store| store.save(Step(5), &views(&state(5)), &note()).unwrap();
    hasty.refuse(Step(5), "it has no safe encoding").unwrap();
    let again = save(&hasty);
    let index = folder.path().join(".partial-0000000005-by-1-of-2/shard-00001-of-00002.index.json");
    while !index.exists() {
        std::thread::yield_now();
    }
    let told = save(&first).wait();
    assert!(matches!(&told, Err(Error::Abandoned { rank: 1, why, .. }) if why.contains("encoding")), "{told:?}");
    assert!(save(&first).wait().is_ok() && again.wait().is_ok());
    let names: Vec<_> = std::fs::read_dir(folder.path().join("step-0000000005")).unwrap().collect();
    assert_eq!(names.len(), 3, "two shards and a manifest: {names:?}");
}

#[test]
fn a_rank_that_is_refused_or_whose_disk_fails_tells_the_others() {
    let folder = tempfile::tempdir().unwrap();
    let first = open(folder.path(), patient(0, 2));
    let is_full = |act, path: &Path| match act {
        DiskAct::Write if path.to_string_lossy().contains("safetensors") => Err(std::io::ErrorKind::StorageFull.into()),
        _ => Ok(()),
    };
    let full = open(folder.path(), Options { disk_hook: Some(std::sync::Arc::new(is_full)), ..patient(1, 2) });
    let save = |store: &Store, state: &[Tensor]| store.save(Step(5), &views(state), &note());
    let (waiting, failing) = (save(&first, &state(5)).unwrap(), save(&full, &state(5)).unwrap());
    assert!(matches!(failing.wait(), Err(Error::NoSpace { .. })));
    let told = waiting.wait();
    assert!(matches!(&told, Err(Error::Abandoned { rank: 1, why, .. }) if why.contains("no space left")), "{told:?}");
    let mut nameless = state(5);
    nameless[0].name.clear();
    let waiting = save(&first, &state(5)).unwrap();
    assert!(matches!(save(&full, &nameless), Err(Error::InvalidTensor { .. })));
    let told = waiting.wait();
    assert!(matches!(&told, Err(Error::Abandoned { rank: 1, why, .. }) if why.contains("empty")), "{told:?}");
}

/// Proves A-6.
#[test]
fn a_rank_that_waited_in_vain_leaves_its_shard_to_rank_0() {
    let folder = tempfile::tempdir().unwrap();
    let hasty = save(&open(folder.path(), impatient(1, 2, 1)), 5);
    assert!(matches!(hasty, Err(Error::Timeout { rank: 0, .. })), "{hasty:?}");
    save(&open(folder.path(), Options::writer(0, 2, 1)), 5).unwrap();
    assert_eq!(offered(folder.path()), Some(5), "it is whole");
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
