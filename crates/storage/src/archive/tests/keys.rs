//! Keys of an encrypted archive: replaced without touching data, refused when changed, mixed up or put back.

use std::collections::BTreeMap;

use super::hostile::sealed;
use super::{Shelved, key, patient};
use crate::Step;
use crate::archive::{Archive, Error, KeyError, KeyId, Rotation};
use crate::fuzz::tests::Draw;

type Objects = BTreeMap<String, Vec<u8>>;

fn to(byte: u8) -> Rotation {
    Rotation { new_key: Some(key(byte)), with_new_data_key: false }
}

fn with_data_key() -> Rotation {
    Rotation { new_key: None, with_new_data_key: true }
}

fn data(objects: &Objects) -> Objects {
    objects
        .iter()
        .filter(|(key, _)| !key.starts_with("keys/"))
        .map(|(key, bytes)| (key.clone(), bytes.clone()))
        .collect()
}

fn opens(place: &Shelved, with: u8) -> bool {
    place.other(&patient(Some(with))).list().is_ok()
}

fn refusal<T: std::fmt::Debug>(result: Result<T, Error>) -> KeyError {
    match result {
        Err(Error::Key(error)) => error,
        other => panic!("{other:?}"),
    }
}

/// An encrypted archive of two steps with two data keys, each used by one.
fn with_two_keys() -> Shelved {
    let place = Shelved::pushed_with(1, Some(1));
    place.archive.rotate_keys(&with_data_key()).unwrap();
    place.store_state(2);
    place.archive.push(&place.store, Step(2)).unwrap();
    place
}

#[test]
fn a_rotation_changes_who_opens_the_archive_and_no_data() {
    let place = with_two_keys();
    let before = place.shelf.objects();
    let rotated = place.archive.rotate_keys(&to(2)).unwrap();
    assert_eq!((rotated.rewrapped, rotated.wrapping_key), (2, key(2).id()));
    assert_eq!(data(&place.shelf.objects()), data(&before));
    assert!(opens(&place, 2) && !opens(&place, 1));
    let archive = place.other(&patient(Some(2)));
    place.place.assert_pulls(&archive, &[1, 2]);
    place.store_state(3);
    archive.push(&place.store, Step(3)).unwrap();
    place.place.assert_pulls(&archive, &[1, 2, 3]);
}

#[test]
fn what_is_pushed_after_a_new_data_key_uses_that_and_both_are_shown() {
    let place = with_two_keys();
    let shown = place.archive.keys().unwrap();
    assert_eq!(
        shown.iter().map(|one| (one.number, one.catalogs, one.is_current)).collect::<Vec<_>>(),
        [(1, 1, false), (2, 1, true)]
    );
    assert!(shown.iter().all(|one| one.packs.unwrap().0 > 0 && one.wrapped_for == [key(1).id()]));
    let without = place.other(&patient(None)).keys().unwrap();
    assert!(without.iter().all(|one| one.packs.is_none() && one.catalogs == 1), "catalogs say their key in clear");
    assert!(Shelved::pushed(1).archive.keys().unwrap().is_empty());
    place.assert_pulls(&[1, 2]);
}

#[test]
fn at_every_instant_of_a_rotation_one_key_opens_all_and_a_rotation_cut_off_is_run_again() {
    let place = with_two_keys();
    let begin = place.shelf.objects();
    let both = Rotation { new_key: Some(key(2)), with_new_data_key: true };
    for changes in 0..100 {
        place.shelf.set(begin.clone());
        place.shelf.die_after(changes);
        let outcome = place.archive.rotate_keys(&both);
        place.shelf.heal();
        let opened: Vec<u8> = [1, 2].into_iter().filter(|with| opens(&place, *with)).collect();
        assert!(!opened.is_empty(), "neither opens after {changes} changes");
        for with in opened {
            place.place.assert_pulls(&place.other(&patient(Some(with))), &[1, 2]);
        }
        place.archive.rotate_keys(&to(2)).unwrap();
        assert!(opens(&place, 2) && !opens(&place, 1), "after {changes} changes");
        assert_eq!(data(&place.shelf.objects()), data(&begin));
        if outcome.is_ok() {
            assert!(changes >= 6, "{changes} changes");
            return;
        }
    }
    panic!("a rotation makes fewer than a hundred changes");
}

#[test]
fn a_rotation_that_cannot_be_is_refused_and_changes_nothing() {
    let place = with_two_keys();
    let before = place.shelf.objects();
    let unchanged = refusal(place.archive.rotate_keys(&Rotation::default()));
    assert!(matches!(unchanged, KeyError::Unchanged));
    assert!(matches!(refusal(place.archive.rotate_keys(&to(1))), KeyError::Unchanged));
    let wrong = refusal(place.other(&patient(Some(3))).rotate_keys(&to(4)));
    assert!(matches!(wrong, KeyError::Wrong { given, .. } if given == key(3).id()));
    assert!(matches!(refusal(place.other(&patient(None)).rotate_keys(&to(4))), KeyError::Needed { .. }));
    assert!(place.shelf.objects() == before);
    let plain = Shelved::pushed(1);
    assert!(matches!(refusal(plain.other(&patient(Some(1))).rotate_keys(&to(2))), KeyError::Plain));
}

#[test]
fn keys_are_made_once_and_only_for_an_archive_that_has_nothing() {
    let place = Shelved::with_options(1, &patient(Some(1)));
    let made = place.archive.init_keys().unwrap();
    assert!(matches!(refusal(place.archive.init_keys()), KeyError::Taken { what: "keys" }));
    place.archive.push(&place.store, Step(1)).unwrap();
    assert_eq!(place.archive.keys().unwrap().iter().map(|one| one.id).collect::<Vec<KeyId>>(), [made]);
    let plain = Shelved::pushed(1);
    assert!(matches!(refusal(plain.other(&patient(Some(1))).init_keys()), KeyError::Taken { .. }));
    assert!(matches!(refusal(Shelved::with_steps(0).archive.init_keys()), KeyError::Needed { .. }));
}

/// What is in `keys/`.
fn records(objects: &Objects) -> Vec<(String, Vec<u8>)> {
    objects
        .iter()
        .filter(|(key, _)| key.starts_with("keys/"))
        .map(|(key, bytes)| (key.clone(), bytes.clone()))
        .collect()
}

fn put(place: &Shelved, records: Vec<(String, Vec<u8>)>) {
    let mut objects = place.shelf.objects();
    objects.extend(records);
    place.shelf.set(objects);
}

#[test]
fn keys_put_back_are_noticed() {
    let place = with_two_keys();
    let old = records(&place.shelf.objects());
    place.archive.rotate_keys(&to(2)).unwrap();
    let new = place.other(&patient(Some(2)));
    let rotated = place.shelf.objects();
    put(&place, vec![old[0].clone()]);
    let refused = refusal(new.list());
    assert!(matches!(&refused, KeyError::Unwrapped { object, .. } if *object == old[0].0), "{refused}");
    put(&place, old.clone());
    assert!(matches!(refusal(new.list()), KeyError::Wrong { .. }));
    place.shelf.set(rotated);
    place.store_state(3);
    new.push(&place.store, Step(3)).unwrap();
    put(&place, old);
    let refused = refusal(place.archive.verify(Step(3)));
    assert!(matches!(refused, KeyError::RolledBack { found: 2, known: 1, .. }), "{refused}");
    let listed = place.archive.list().unwrap();
    assert!(listed[0].catalog.is_ok() && listed[2].catalog.is_err());
}

#[test]
fn a_key_that_is_missing_or_another_archives_is_named() {
    let place = with_two_keys();
    let newest = place.archive.keys().unwrap()[1].id;
    let sound = place.shelf.objects();
    let mut objects = sound.clone();
    objects.remove(&format!("keys/{newest}.json")).unwrap();
    place.shelf.set(objects);
    let lost = refusal(place.archive.verify(Step(2)));
    assert!(matches!(lost, KeyError::Lost { key, .. } if key == newest), "{lost}");
    place.shelf.set(sound);
    let stranger = Shelved::pushed_with(1, Some(1));
    put(&place, records(&stranger.shelf.objects()));
    assert!(matches!(refusal(place.archive.list()), KeyError::Altered { .. }));
}

/// Also where the checksum is made to fit: what holds is the encryption's own check.
#[test]
fn no_mutation_of_a_wrapped_key_opens_as_anything_else() {
    let place = with_two_keys();
    let sound = place.shelf.objects();
    let (name, bytes) = records(&sound).remove(0);
    let text = String::from_utf8(bytes).unwrap();
    let body = text.rsplit_once(",\"checksum\"").unwrap().0.as_bytes();
    let expected = place.archive.keys().unwrap();
    let mut draw = Draw(5);
    let (mut altered, mut unread) = (0, 0);
    for round in 0..3_000 {
        let mut mutated = body.to_vec();
        draw.mutate(&mut mutated);
        let Ok(mutated) = String::from_utf8(mutated) else { continue };
        put(&place, vec![(name.clone(), sealed(&mutated))]);
        match place.archive.list() {
            Err(Error::Key(KeyError::Altered { object })) => {
                assert_eq!(object, name);
                altered += 1;
            }
            Err(_) => unread += 1,
            Ok(listed) => {
                assert!(listed.iter().all(|one| one.catalog.is_ok()), "round {round}: {mutated}");
                let found = place.archive.keys().unwrap();
                assert_eq!(found, expected, "round {round}: {mutated}");
            }
        }
    }
    // The record is new in each run, so what a mutation hits varies: 200 to 400 were altered.
    assert!(altered > 50 && unread > 200, "{altered} altered, {unread} unread");
}

#[test]
fn nothing_that_is_printed_or_put_has_key_material() {
    let place = with_two_keys();
    let options = patient(Some(1));
    let archive = Archive::open("/nowhere", &options).unwrap();
    let refused = place.other(&patient(Some(2))).list().unwrap_err();
    let shown = format!("{options:?} {refused} {refused:?} {:?}", place.archive.keys().unwrap());
    let secret = "01".repeat(32);
    assert!(!shown.contains(&secret) && !shown.contains("[1, 1, 1, 1"), "{shown}");
    for (key, bytes) in place.shelf.objects() {
        let has = |needle: &[u8]| bytes.windows(needle.len()).any(|window| window == needle);
        assert!(!has(secret.as_bytes()) && !has(&[1; 32]), "{key}");
    }
    assert!(archive.list().unwrap().is_empty(), "a new archive has nothing, with a key or without");
}
