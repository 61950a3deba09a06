//! What is pushed comes back bit for bit, and takes less room.

use std::collections::BTreeMap;

use gangline_base::Timestamp;

use super::{Place, Shelved, contents, state, tensor, weights};
use crate::archive::vault::Vault;
use crate::archive::{Archive, Error, Options};
use crate::{Bytes, DataType, Rule, Step, Store};

#[test]
fn what_is_pushed_comes_back_bit_for_bit() {
    let place = Place::new();
    for step in 1..=3 {
        place.save(step, &state(step));
        let pushed = place.archive.push(&place.store, Step(step)).unwrap();
        assert!(!pushed.was_archived);
    }
    place.assert_pulls(&place.archive, &[2, 3, 1]);
    let back = place.elsewhere("back");
    assert!(!place.archive.pull(None, &back).unwrap().was_there);
    assert!(place.archive.pull(Some(Step(3)), &back).unwrap().was_there, "the newest is there already");
    for listed in place.archive.list().unwrap() {
        let report = place.archive.verify(listed.step).unwrap();
        assert!(report.is_good());
        assert_eq!(report.tensors_good, listed.catalog.unwrap().tensors);
    }
}

/// A job's archives are in its bills by these notes.
#[test]
fn what_an_archive_holds_is_noted_after_each_change() {
    let place = Place::new();
    let notes = place.folder.path().join("notes");
    let settings = BTreeMap::from([("GANGLINE_DATA_READS".to_owned(), notes.to_str().unwrap().to_owned())]);
    let address = place.folder.path().join("archive");
    let archive = Archive::open(address.to_str().unwrap(), &Options { s3: settings, ..Options::default() }).unwrap();
    let held = || -> u64 {
        let files = ["packs", "catalogs"].map(|kind| std::fs::read_dir(address.join(kind)).unwrap());
        files.into_iter().flatten().map(|file| file.unwrap().metadata().unwrap().len()).sum()
    };
    let noted = || gangline_objects::stored_in(&notes).remove(&format!("file://{}", address.display())).unwrap();
    for step in 1..=3 {
        place.save(step, &state(step));
        archive.push(&place.store, Step(step)).unwrap();
        assert_eq!(noted(), Bytes(held()), "step {step}");
    }
    let before = noted();
    archive.prune(&[Rule::Last(1)], Timestamp::from_unix_nanos(u64::MAX / 2), false).unwrap();
    assert_eq!(noted(), Bytes(held()));
    assert!(noted() < before, "some of it is gone");
}

#[test]
fn a_pull_replaces_what_is_damaged_and_never_what_is_good() {
    let place = Place::new();
    place.save(1, &state(1));
    place.archive.push(&place.store, Step(1)).unwrap();
    let back = place.elsewhere("back");
    place.archive.pull(None, &back).unwrap();
    let shard = back.path().join("step-0000000001/shard-00000-of-00001.safetensors");
    let mut bytes = std::fs::read(&shard).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    std::fs::write(&shard, bytes).unwrap();
    assert!(!place.archive.pull(None, &back).unwrap().was_there);
    assert!(back.verify(Step(1)).unwrap().is_good());
    assert_eq!(contents(back.path()).len(), 2, "nothing is left behind");
    let writer = Store::open(back.path(), crate::Options::default()).unwrap();
    writer.save(Step(1), &[], &std::collections::BTreeMap::new()).unwrap().wait().unwrap();
    let refused = place.archive.pull(None, &back);
    assert!(matches!(refused, Err(Error::Occupied { step: Step(1) })), "{refused:?}");
}

#[test]
fn what_the_archive_has_is_only_referred_to() {
    let place = Place::new();
    place.save(1, &state(1));
    place.save(2, &state(2));
    let first = place.archive.push(&place.store, Step(1)).unwrap();
    assert_eq!(first.derived, Bytes(12_000), "the bf16 copy");
    assert_eq!(first.deduplicated, Bytes(24_000), "the tied tensor");
    let second = place.archive.push(&place.store, Step(2)).unwrap();
    assert!(second.deduplicated >= Bytes(24_000 + 20_000), "tied and frozen: {second:?}");
    assert!(second.differences >= Bytes(24_000), "the master: {second:?}");
    assert!(second.put.0 < first.put.0 / 3 * 2, "{second:?} after {first:?}");
    let again = place.archive.push(&place.store, Step(2)).unwrap();
    assert!(again.was_archived && again.packs_put == 0);
}

#[test]
fn differences_to_one_chunk_are_limited() {
    let place = Place::new();
    let mut alone = Vec::new();
    for step in 1..=20 {
        place.save(step, &[tensor("w", DataType::F32, &[6_000], weights(6_000, step))]);
        let pushed = place.archive.push(&place.store, Step(step)).unwrap();
        if pushed.differences == Bytes(0) {
            alone.push(step);
        }
    }
    assert_eq!(alone, [1, 10, 19], "a milestone, and eight differences to it");
    place.archive.pull(Some(Step(18)), &place.elsewhere("back")).unwrap();
}

#[test]
fn any_number_of_threads_makes_the_same_archive() {
    let objects = |threads: usize| {
        let place = Shelved::with_threads(3, threads);
        for step in 1..=3 {
            place.archive.push(&place.store, Step(step)).unwrap();
        }
        place.shelf.summary(&Vault::Plain)
    };
    let one = objects(1);
    assert!(one.len() > 10);
    assert!(one == objects(3) && one == objects(64));
}

#[test]
fn what_is_not_there_is_named() {
    let place = Place::new();
    let missing = place.archive.pull(None, &place.elsewhere("back"));
    assert!(matches!(missing, Err(Error::NotFound { step: None })), "{missing:?}");
    let missing = place.archive.verify(Step(3));
    assert!(matches!(missing, Err(Error::NotFound { step: Some(Step(3)) })), "{missing:?}");
    let missing = place.archive.push(&place.store, Step(3));
    assert!(matches!(missing, Err(Error::Store(crate::Error::NotFound { .. }))), "{missing:?}");
    assert!(place.archive.list().unwrap().is_empty());
}
