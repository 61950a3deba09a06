//! What is pushed comes back bit for bit, and takes less room.

use super::{Place, contents, state, tensor, weights};
use crate::archive::Error;
use crate::{Bytes, DataType, Step};

#[test]
fn what_is_pushed_comes_back_bit_for_bit() {
    let place = Place::new();
    for step in 1..=3 {
        place.save(step, &state(step));
        let pushed = place.archive.push(&place.store, Step(step)).unwrap();
        assert!(!pushed.was_archived);
    }
    let back = place.elsewhere("back");
    for step in [2, 3, 1] {
        let pulled = place.archive.pull(Some(Step(step)), &back).unwrap();
        assert!(!pulled.was_there);
        let folder = format!("step-{step:010}");
        assert_eq!(contents(&back.path().join(&folder)), contents(&place.store.path().join(&folder)));
        assert!(place.archive.verify(Step(step)).unwrap().is_good());
    }
    assert!(place.archive.pull(None, &back).unwrap().was_there, "the newest is there already");
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
    assert_eq!(second.differences, Bytes(24_000), "the master");
    assert!(second.put.0 < first.put.0 / 2, "{second:?} after {first:?}");
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
fn tensors_longer_than_a_chunk_come_back() {
    let place = Place::new();
    let bytes = weights((4 << 20) + 17, 1);
    let mut copy = Vec::new();
    gangline_coding::derive_bf16(&bytes, gangline_coding::Rounding::Truncation, &mut copy);
    let count = bytes.len() / 4;
    place.save(5, &[tensor("copy", DataType::Bf16, &[count], copy), tensor("master", DataType::F32, &[count], bytes)]);
    let pushed = place.archive.push(&place.store, Step(5)).unwrap();
    assert_eq!(pushed.derived.0, 2 * count as u64);
    let back = place.elsewhere("back");
    place.archive.pull(None, &back).unwrap();
    assert_eq!(back.load(Step(5)).unwrap(), place.store.load(Step(5)).unwrap());
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
    let _ = place.archive_folder();
}
