//! Encrypted archives: they give back every byte, show none, and notice whatever is changed, moved, renamed or replaced.

use std::collections::{BTreeMap, BTreeSet};

use super::{Shelved, contents, empty_store, key, patient, state, tensor};
use crate::archive::catalog::{Form, catalog_key, pack_key};
use crate::archive::{Error, KeyError, Rule};
use crate::fuzz::tests::Draw;
use crate::{DataType, Flaw, Step};

type Objects = BTreeMap<String, Vec<u8>>;

/// An encrypted archive of three steps.
fn sealed() -> Shelved {
    Shelved::pushed_with(3, Some(1))
}

fn windows(objects: &Objects, from: usize) -> BTreeSet<Vec<u8>> {
    let packs = objects.iter().filter(|(key, _)| key.starts_with("packs/"));
    packs.flat_map(|(_, bytes)| bytes[from..].windows(16).map(<[u8]>::to_vec)).collect()
}

fn changed(place: &Shelved, change: impl FnOnce(&mut Objects)) {
    let mut objects = place.shelf.objects();
    change(&mut objects);
    place.shelf.set(objects);
}

#[test]
fn every_byte_comes_back_and_none_can_be_read_in_the_archive() {
    let place = sealed();
    place.assert_pulls(&[3, 1, 2]);
    for step in 1..=3 {
        assert!(place.archive.verify(Step(step)).unwrap().is_good());
        assert!(place.archive.push(&place.store, Step(step)).unwrap().was_archived);
    }
    let (shown, plain) = (place.shelf.objects(), Shelved::pushed(3).shelf.objects());
    for (key, bytes) in &shown {
        for told in ["master", "frozen", "loss", "blake3", "shards", "metadata"] {
            let is_told = bytes.windows(told.len()).any(|window| window == told.as_bytes());
            assert!(!is_told, "{key} says {told:?}");
        }
    }
    let in_clear = windows(&plain, 8);
    assert!(in_clear.len() > 10_000);
    assert_eq!(windows(&shown, 8).intersection(&in_clear).count(), 0);
}

#[test]
fn equal_tensors_have_equal_ids_within_an_archive_and_others_in_another() {
    let [one, other] = [sealed(), sealed()];
    let plain = Shelved::pushed(3);
    let ids = |place: &Shelved| -> BTreeSet<String> {
        let catalog = place.catalog(3);
        let chunks = catalog.chunks.iter().map(|chunk| chunk.blake3);
        let items = catalog.items().map(|item| item.blake3);
        chunks.chain(items).chain(catalog.packs.iter().map(|pack| pack.blake3)).map(|id| id.to_string()).collect()
    };
    let all = [ids(&one), ids(&other), ids(&plain)];
    assert!(all.iter().all(|ids| ids.len() == all[0].len() && ids.len() > 10));
    for (a, b) in [(0, 1), (0, 2), (1, 2)] {
        assert_eq!(all[a].intersection(&all[b]).count(), 0);
    }
    let sizes = |place: &Shelved| place.archive.push(&place.store, Step(4)).unwrap();
    for place in [&one, &plain] {
        place.store_state(4);
    }
    let (sealed, plain) = (sizes(&one), sizes(&plain));
    assert_eq!(
        (sealed.deduplicated, sealed.differences, sealed.derived),
        (plain.deduplicated, plain.differences, plain.derived)
    );
}

#[test]
fn a_push_killed_between_any_two_objects_goes_on_where_it_was() {
    let place = Shelved::pushed_with(1, Some(1));
    place.store_state(2);
    let begin = place.shelf.objects();
    place.archive.push(&place.store, Step(2)).unwrap();
    let whole = place.shelf.objects();
    for changes in 0..1_000 {
        place.shelf.set(begin.clone());
        place.shelf.die_after(changes);
        let outcome = place.archive.push(&place.store, Step(2));
        place.shelf.heal();
        if outcome.is_ok() {
            assert!(changes > 3);
            return;
        }
        assert_eq!(place.archive.list().unwrap().len(), 1, "killed after {changes} changes");
        let again = place.archive.push(&place.store, Step(2)).unwrap();
        assert_eq!(again.packs_resumed, changes.saturating_sub(1), "killed after {changes} changes");
        assert!(place.shelf.objects() == whole, "the same to the last bit, after {changes} changes");
    }
    panic!("a push makes fewer than a thousand changes");
}

#[test]
fn a_first_push_killed_between_any_two_objects_leaves_an_archive_that_opens() {
    for changes in 0..1_000 {
        let place = Shelved::with_options(1, &patient(Some(1)));
        place.shelf.die_after(changes);
        let outcome = place.archive.push(&place.store, Step(1));
        place.shelf.heal();
        place.archive.push(&place.store, Step(1)).unwrap();
        assert_eq!(place.archive.keys().unwrap().len(), 1);
        place.assert_pulls(&[1]);
        if outcome.is_ok() {
            assert!(changes > 3);
            return;
        }
    }
    panic!("a push makes fewer than a thousand changes");
}

#[test]
fn without_the_key_or_with_another_nothing_is_read_or_changed() {
    let place = sealed();
    place.store_state(4);
    let before = place.shelf.objects();
    let back = place.elsewhere("back");
    for (with, is_right) in [
        (
            None,
            (|error| matches!(error, KeyError::Needed { wanted } if wanted == [key(1).id()])) as fn(KeyError) -> bool,
        ),
        (
            Some(2),
            |error| matches!(error, KeyError::Wrong { given, wanted } if given == key(2).id() && wanted == [key(1).id()]),
        ),
    ] {
        let archive = place.other(&patient(with));
        let refused = [
            archive.list().map(drop),
            archive.pull(None, &back).map(drop),
            archive.verify(Step(1)).map(drop),
            archive.push(&place.store, Step(4)).map(drop),
            archive.prune(&[Rule::Last(1)], gangline_base::Timestamp::EPOCH, false).map(drop),
        ];
        for refused in refused {
            let Err(Error::Key(error)) = refused else { panic!("{refused:?}") };
            assert!(is_right(error));
        }
    }
    assert!(place.shelf.objects() == before);
    assert_eq!(contents(back.path()), Objects::new());
}

#[test]
fn a_key_for_an_archive_that_is_plain_is_refused_and_so_is_one_whose_keys_are_gone() {
    let place = Shelved::pushed(1);
    let keyed = place.other(&patient(Some(1)));
    assert!(matches!(keyed.list(), Err(Error::Key(KeyError::Unneeded))));
    assert!(matches!(keyed.push(&place.store, Step(1)), Err(Error::Key(KeyError::Unneeded))));
    let place = sealed();
    changed(&place, |objects| objects.retain(|key, _| !key.starts_with("keys/")));
    assert!(matches!(place.archive.list(), Err(Error::Key(KeyError::Unneeded))), "never taken for a new archive");
    let listed = place.other(&patient(None)).list().unwrap();
    assert!(listed[0].catalog.as_ref().unwrap_err().to_string().contains("put them back"), "{listed:?}");
}

/// Two steps of noise, so that chunks of equal length lie beside one another as they are.
fn noisy(with: Option<u8>) -> Shelved {
    let place = Shelved::with_options(0, &patient(with));
    for step in 1..=2 {
        let mut noise = vec![0; 20_000];
        blake3::Hasher::new().update(&[step]).finalize_xof().fill(&mut noise);
        place.place.save(step.into(), &[tensor("noise", DataType::U8, &[20_000], noise)]);
        place.archive.push(&place.store, Step(step.into())).unwrap();
    }
    place
}

#[test]
fn a_chunk_elsewhere_or_a_pack_renamed_is_named_with_its_tensor() {
    let place = noisy(Some(1));
    let catalog = place.catalog(2);
    let noise = &catalog.shards[0].tensors[0].item;
    let spots: Vec<(String, usize, usize)> = noise
        .chunks
        .iter()
        .map(|index| {
            let Form::Raw(spot) = catalog.chunks[*index].form else { panic!("noise is stored as it is") };
            let [offset, length] = [spot.1, spot.2 + 16].map(|number| usize::try_from(number).unwrap());
            (pack_key(&catalog.packs[spot.0].blake3), offset, length)
        })
        .collect();
    let neighbours = spots.iter().zip(&spots[1..]).find(|(a, b)| a.0 == b.0 && a.2 == b.2);
    let (a, b) = neighbours.expect("two chunks of one pack");
    let (pack, first, length, second) = (&a.0, a.1, a.2, b.1);
    let other = &spots.iter().find(|spot| spot.0 != *pack).unwrap().0;
    let sound = place.shelf.objects();
    let check = |what: &str, change: &dyn Fn(&mut Objects)| {
        place.shelf.set(sound.clone());
        changed(&place, change);
        let report = place.archive.verify(Step(2)).unwrap();
        let is_named = report.problems.iter().any(|problem| {
            problem.flaw == Flaw::Forged
                && problem.tensor.as_deref() == Some("noise")
                && problem.file.to_string_lossy() == *pack
        });
        assert!(is_named, "{what}: {report:?}");
        let back = place.elsewhere("back");
        let refused = place.archive.pull(Some(Step(2)), &back).unwrap_err();
        assert!(matches!(refused, Error::Corrupt { flaw: Flaw::Forged, .. }), "{what}: {refused:?}");
        assert_eq!(contents(back.path()), Objects::new());
    };
    let swap = |objects: &mut Objects| {
        let bytes = objects.get_mut(pack).unwrap();
        let (head, tail) = bytes.split_at_mut(second);
        head[first..first + length].swap_with_slice(&mut tail[..length]);
    };
    check("two chunks swapped", &swap);
    check("a chunk twice", &|objects| {
        objects.get_mut(pack).unwrap().copy_within(first..first + length, second);
    });
    check("another pack under its name", &|objects| {
        let other = objects[other].clone();
        let bytes = objects.get_mut(pack).unwrap();
        let common = bytes.len().min(other.len());
        bytes[..common].copy_from_slice(&other[..common]);
    });
    for bit in [0, 7, 8 * (length - 16), 8 * length - 1] {
        check("a bit flipped", &|objects| objects.get_mut(pack).unwrap()[first + bit / 8] ^= 1 << (bit % 8));
    }
}

#[test]
fn a_catalog_elsewhere_cut_short_or_of_another_archive_is_refused() {
    let (place, stranger) = (sealed(), sealed());
    let sound = place.shelf.objects();
    let [second, third] = [2, 3].map(catalog_key);
    let check = |change: &dyn Fn(&mut Objects), is_right: fn(&Error) -> bool| {
        place.shelf.set(sound.clone());
        changed(&place, change);
        for refused in [
            place.archive.verify(Step(2)).unwrap_err(),
            place.archive.pull(Some(Step(2)), &place.elsewhere("back")).unwrap_err(),
        ] {
            assert!(is_right(&refused), "{refused:?}");
        }
        let listed = place.archive.list().unwrap();
        assert!(listed.iter().any(|one| one.step == Step(2) && one.catalog.is_err()));
    };
    let forged = |error: &Error| matches!(error, Error::Corrupt { flaw: Flaw::Forged, .. });
    check(&|objects| drop(objects.insert(second.clone(), objects[&third].clone())), forged);
    check(&|objects| *objects.get_mut(&second).unwrap().last_mut().unwrap() ^= 1, forged);
    check(&|objects| objects.get_mut(&second).unwrap().truncate(200), forged);
    check(&|objects| objects.get_mut(&second).unwrap()[40] ^= 1, forged);
    check(&|objects| objects.get_mut(&second).unwrap()[28..36].fill(0), forged);
    check(&|objects| objects.get_mut(&second).unwrap().truncate(50), |error| {
        matches!(error, Error::Corrupt { flaw: Flaw::Malformed { .. }, .. })
    });
    check(&|objects| objects.get_mut(&second).unwrap()[11] = 9, |error| {
        matches!(error, Error::Corrupt { flaw: Flaw::Version { found: 9, .. }, .. })
    });
    let plain = Shelved::pushed(2).shelf.objects()[&second].clone();
    check(
        &|objects| drop(objects.insert(second.clone(), plain.clone())),
        |error| matches!(error, Error::Corrupt { flaw: Flaw::Malformed { what }, .. } if what.contains("isn't encrypted")),
    );
    let theirs = stranger.shelf.objects()[&second].clone();
    check(&|objects| drop(objects.insert(second.clone(), theirs.clone())), |error| {
        matches!(error, Error::Key(KeyError::Lost { .. }))
    });
}

#[test]
fn no_mutation_of_any_object_makes_a_panic_or_a_wrong_byte() {
    let place = sealed();
    let sound = place.shelf.objects();
    let keys: Vec<&String> = sound.keys().collect();
    let mut draw = Draw(23);
    let mut refused = 0;
    for round in 0..600 {
        place.shelf.set(sound.clone());
        let name = keys[draw.below(keys.len())];
        changed(&place, |objects| draw.mutate(objects.get_mut(name).unwrap()));
        let folder = tempfile::tempdir_in(place.place.folder.path()).unwrap();
        let back = empty_store(folder.path());
        match place.archive.pull(Some(Step(3)), &back) {
            Ok(_) => {
                let name = crate::layout::checkpoint_folder(3);
                let [found, expected] = [&back, &place.store].map(|store| contents(&store.path().join(&name)));
                assert_eq!(found, expected, "round {round}");
            }
            Err(_) => {
                refused += 1;
                assert_eq!(contents(back.path()), Objects::new(), "round {round}");
            }
        }
    }
    assert!(refused > 200, "{refused} refused");
    assert_eq!(state(1).len(), place.store.load(Step(1)).unwrap().tensors.len());
}
