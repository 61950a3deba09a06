//! Packs of which little is still needed: what is needed moves, and nothing is lost whenever it stops.

use std::time::Duration;

use gangline_base::Timestamp;

use super::{Shelved, tensor};
use crate::archive::catalog::{Place, pack_key};
use crate::archive::compaction::Plan;
use crate::archive::{Error, Rule};
use crate::{DataType, Step, Tensor};

const RULES: [Rule; 1] = [Rule::Last(2)];

fn later() -> Timestamp {
    Timestamp::EPOCH + Duration::from_secs(1 << 30)
}

/// Bytes that no coder makes shorter, the same for the same seed.
fn noise(count: usize, seed: u64) -> Vec<u8> {
    let mut bytes = vec![0; count];
    blake3::Hasher::new().update(&seed.to_le_bytes()).finalize_xof().fill(&mut bytes);
    bytes
}

/// Little that stays, in one pack with much that is new in each step.
fn state(step: u64) -> Vec<Tensor> {
    let bytes = |name: &str, count, seed| tensor(name, DataType::U8, &[count], noise(count, seed));
    vec![
        bytes("a_stays", 900, 1),
        bytes("b_moves", 1_500, 100 + step),
        bytes("c_stays", 500, 2),
        bytes("d_moves", 1_000, 200 + step),
        bytes("e_stays_for_three", 300, 300 + step / 3),
        bytes("f_moves", 9_000, 400 + step),
    ]
}

/// An archive of so many steps, encrypted or not.
fn pushed(steps: u64, key: Option<u8>) -> Shelved {
    let place = Shelved::with_options(0, &super::patient(key));
    for step in 1..=steps {
        place.place.save(step, &state(step));
        place.archive.push(&place.store, Step(step)).unwrap();
    }
    place
}

fn pack_bytes(place: &Shelved) -> u64 {
    let objects = place.shelf.objects();
    objects.iter().filter(|(key, _)| key.starts_with("packs/")).map(|(_, bytes)| bytes.len() as u64).sum()
}

#[test]
fn what_is_needed_of_a_pack_moves_and_the_rest_is_freed_as_a_dry_run_says() {
    for key in [None, Some(1)] {
        let place = pushed(6, key);
        let before = pack_bytes(&place);
        let promised = place.archive.prune(&RULES, later(), true).unwrap();
        assert_eq!(pack_bytes(&place), before);
        let done = place.archive.prune(&RULES, later(), false).unwrap();
        assert_eq!(done, promised);
        assert!(done.packs_compacted > 0 && done.rewritten.0 > 1_000, "{done:?}");
        assert_eq!((before - pack_bytes(&place), pack_bytes(&place)), (done.freed.0, done.stored.0));
        let fresh = Shelved::with_options(0, &super::patient(key));
        for step in [5, 6] {
            fresh.archive.push(&place.store, Step(step)).unwrap();
        }
        let [found, least] = [&place, &fresh].map(pack_bytes);
        assert!(found < least + least / 20, "{found} bytes stay, and it takes {least}");
        place.assert_pulls(&[5, 6]);
        for step in [5, 6] {
            assert!(place.archive.verify(Step(step)).unwrap().is_good());
        }
        let again = place.archive.prune(&RULES, later(), false).unwrap();
        assert_eq!((again.packs_compacted, again.freed.0), (0, 0), "what was moved stays");
        place.place.save(7, &state(7));
        let pushed = place.archive.push(&place.store, Step(7)).unwrap();
        assert!(pushed.deduplicated.0 >= 1_400, "what was moved is found: {pushed:?}");
        place.assert_pulls(&[5, 6, 7]);
    }
}

#[test]
fn a_compaction_killed_between_any_two_changes_loses_nothing_and_the_next_ends_it() {
    let every = [Rule::Pinned([Step(2), Step(5)].into())];
    for key in [None, Some(1)] {
        let place = pushed(6, key);
        let begin = place.shelf.objects();
        let done = place.archive.prune(&every, later(), false).unwrap();
        assert!(done.packs_compacted > 0 && done.kept.len() == 3, "{done:?}");
        let expected = place.shelf.summary(&place.access().vault);
        for changes in 0..1_000 {
            place.shelf.set(begin.clone());
            place.shelf.die_after(changes);
            let outcome = place.archive.prune(&every, later(), false);
            place.shelf.heal();
            place.assert_pulls(&[2, 5, 6]);
            place.archive.prune(&every, later(), false).unwrap();
            assert!(place.shelf.summary(&place.access().vault) == expected, "killed after {changes} changes");
            place.assert_pulls(&[2, 5, 6]);
            if outcome.is_ok() {
                assert!(changes > 8, "{changes} changes");
                break;
            }
        }
    }
}

#[test]
fn a_pack_is_compacted_when_less_than_half_of_it_is_needed() {
    for key in [None, Some(1)] {
        let place = pushed(1, key);
        let sound = place.catalog(1);
        let tag = place.access().vault.tag_bytes() as u64;
        let places = sound.chunks.iter().filter_map(|chunk| chunk.form.place()).filter(|place| place.0 == 0);
        let needed: u64 = places.map(|Place(_, _, length)| length + tag).sum();
        assert!(needed > 1_000);
        for (bytes, is_sparse) in [(2 * needed - 1, false), (2 * needed, false), (2 * needed + 2, true)] {
            let mut catalog = sound.clone();
            catalog.packs[0].bytes = bytes;
            let plan = Plan::of(&[&catalog], tag);
            assert_eq!(plan.sparse.contains(&catalog.packs[0]), is_sparse, "{needed} of {bytes}");
        }
    }
}

#[test]
fn a_damaged_chunk_is_not_moved_and_what_was_there_stays() {
    for key in [None, Some(1)] {
        let place = pushed(6, key);
        let catalog = place.catalog(6);
        let tensor = catalog.shards[0].tensors.iter().find(|tensor| tensor.name == "a_stays").unwrap();
        let stays = catalog.chunks[tensor.item.chunks[0]];
        let place_of = stays.form.place().unwrap();
        let key = pack_key(&catalog.packs[place_of.0].blake3);
        let mut objects = place.shelf.objects();
        objects.get_mut(&key).unwrap()[usize::try_from(place_of.1).unwrap() + 5] ^= 1;
        place.shelf.set(objects);
        let refused = place.archive.prune(&RULES, later(), false).unwrap_err();
        assert!(matches!(&refused, Error::Corrupt { key: named, .. } if *named == key), "{refused:?}");
        assert!(place.shelf.objects().contains_key(&key));
        assert_eq!(place.archive.verify(Step(6)).unwrap().problems.len(), 1, "it is still named for what it is");
    }
}
