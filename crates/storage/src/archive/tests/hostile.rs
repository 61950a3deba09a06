//! Catalogs and packs that lie: each lie is refused by name, and no mutation of them makes a panic or a wrong byte.

use std::collections::BTreeMap;
use std::path::Path;

use super::{Shelved, contents, empty_store};
use crate::archive::catalog::{
    CHUNK_BYTES_MAX, Catalog, Chunk, DEPTH_MAX, Form, PACK_BYTES_MAX, Pack, Place, catalog_key, step_of_key,
};
use crate::archive::fetch::Fetcher;
use crate::archive::{Archive, Error};
use crate::fuzz::tests::Draw;
use crate::manifest::seal;
use crate::{Digest, Flaw, Step, Store};

/// A catalog with every form of chunk in it, and the archive it is from.
fn sound() -> (Shelved, Catalog) {
    let place = Shelved::pushed(2);
    let catalog = Catalog::read(2, &place.shelf.objects()[&catalog_key(2)]).unwrap();
    let has = |is: fn(&Form) -> bool| catalog.chunks.iter().any(|chunk| is(&chunk.form));
    assert!(has(|form| matches!(form, Form::Raw(_))));
    assert!(has(|form| matches!(form, Form::Coded(_))));
    assert!(has(|form| matches!(form, Form::Difference { .. })));
    assert!(has(|form| matches!(form, Form::Rounded { .. })));
    (place, catalog)
}

/// The first chunk of a form.
fn first(catalog: &mut Catalog, is: fn(&Form) -> bool) -> &mut Chunk {
    catalog.chunks.iter_mut().find(|chunk| is(&chunk.form)).unwrap()
}

#[test]
fn a_catalog_that_lies_is_refused_by_the_rule_that_it_breaks() {
    let (_, sound) = sound();
    let check = |lie: fn(&mut Catalog), says: &str| {
        let mut catalog = sound.clone();
        lie(&mut catalog);
        let error = Catalog::read(2, &seal(&catalog)).unwrap_err();
        let Error::Corrupt { flaw: Flaw::Malformed { what }, .. } = error else { panic!("{error:?}, not {says:?}") };
        assert!(what.contains(says), "{what:?} does not say {says:?}");
    };
    check(|c| c.magic.push('x'), "magic");
    check(|c| c.step = 3, "another step");
    check(|c| c.shards.clear(), "no shards");
    check(|c| c.bytes += 1, "add up");
    check(|c| c.shards[0].header.bytes = u64::MAX, "add up");
    check(|c| c.manifest.bytes += 1, "don't add up");
    check(|c| c.manifest.chunks.push(usize::MAX), "aren't there");
    check(|c| c.manifest.chunks = vec![c.chunks.len()], "aren't there");
    check(|c| c.shards[0].tensors[0].name.clear(), "name");
    check(|c| c.shards[0].tensors[0].name = "n".repeat(513), "name");
    check(|c| drop(c.metadata.insert("note".to_owned(), "x".repeat(1 << 17))), "metadata");
    check(|c| c.packs.push(c.packs[0]), "twice");
    check(|c| c.packs.push(Pack { blake3: Digest::of(b"x"), bytes: PACK_BYTES_MAX + 1, key: None }), "larger");
    check(|c| c.chunks[0].bytes = 0, "empty");
    check(|c| c.chunks[0].bytes = CHUNK_BYTES_MAX + 1, "larger");
    check(|c| c.chunks[0].bytes = u64::MAX, "larger");
    for place in [Place(usize::MAX, 0, 1), Place(0, u64::MAX, 1), Place(0, 0, u64::MAX), Place(0, 1, PACK_BYTES_MAX)] {
        let mut catalog = sound.clone();
        catalog.chunks[0].form = Form::Coded(place);
        let error = Catalog::read(2, &seal(&catalog)).unwrap_err();
        assert!(error.to_string().contains("outside its pack"), "{error}");
    }
    check(|c| first(c, |form| matches!(form, Form::Raw(_))).bytes += 1, "raw chunk");
    check(|c| first(c, |form| matches!(form, Form::Rounded { .. })).bytes += 2, "another length");
    check(|c| first(c, |form| matches!(form, Form::Difference { .. })).bytes += 4, "another length");
}

#[test]
fn chains_that_are_circles_or_too_long_are_refused() {
    let (_, sound) = sound();
    let check = |based: &dyn Fn(usize, usize) -> usize, says: &str| {
        let mut catalog = sound.clone();
        let begin = catalog.chunks.len();
        let chunk = catalog.chunks[0];
        let place = chunk.form.place().unwrap();
        for index in begin..begin + DEPTH_MAX + 1 {
            let form = Form::Difference { place, base: based(index, begin), age: 1 };
            catalog.chunks.push(Chunk { form, ..chunk });
        }
        let error = Catalog::read(2, &seal(&catalog)).unwrap_err().to_string();
        assert!(error.contains(says), "{error}");
    };
    check(&|index, begin| if index == begin { 0 } else { index - 1 }, "too many others");
    check(&|index, _| index, "a later one");
    check(&|index, _| index + 1, "a later one");
    check(&|_, _| usize::MAX, "a later one");
}

#[test]
fn a_catalog_that_is_no_catalog_is_refused() {
    let check = |text: &[u8]| assert!(matches!(Catalog::read(2, text), Err(Error::Corrupt { .. })));
    let (place, sound) = sound();
    check(b"");
    check(b"{}");
    let mut newer = sound.clone();
    newer.version = 3;
    let error = Catalog::read(2, &seal(&newer)).unwrap_err();
    assert!(matches!(error, Error::Corrupt { flaw: Flaw::Version { found: 3, .. }, .. }), "{error:?}");
    check(&sealed(&format!("{{\"magic\":{}1{}", "[".repeat(100_000), "]".repeat(100_000))));
    let text = String::from_utf8(seal(&sound)).unwrap();
    check(&sealed(&text[..text.len() / 2]));
    let twice = text.replacen("\"step\":2", "\"step\":2,\"step\":2", 1);
    check(&sealed(twice.rsplit_once(",\"checksum\"").unwrap().0));
    for stranger in
        ["catalogs/step-2.json", "catalogs/../step-0000000002.json", "catalogs/", "packs/x", "step-0000000002.json"]
    {
        assert_eq!(step_of_key(stranger), None, "{stranger}");
    }
    // Strangers among the objects are passed over.
    let mut objects = place.shelf.objects();
    objects.insert("catalogs/readme.txt".to_owned(), Vec::new());
    objects.insert("packs/readme.txt".to_owned(), Vec::new());
    place.shelf.set(objects);
    assert_eq!(place.archive.list().unwrap().len(), 2);
    assert!(place.archive.verify(Step(2)).unwrap().is_good());
}

/// A body with a right checksum.
pub(super) fn sealed(body: &str) -> Vec<u8> {
    let body = body.trim_end_matches('}');
    format!("{body},\"checksum\":\"{}\"}}\n", Digest::of(body.as_bytes())).into_bytes()
}

#[test]
fn a_checkpoint_that_promises_more_than_the_disk_has_is_refused_before_anything_is_written() {
    let (place, mut catalog) = sound();
    // 128 TiB out of a catalog of some megabytes.
    let times = 4 << 20;
    catalog.chunks.push(Chunk { bytes: CHUNK_BYTES_MAX, form: Form::Coded(Place(0, 0, 1)), ..catalog.chunks[0] });
    let header = &mut catalog.shards[0].header;
    catalog.bytes = catalog.bytes - header.bytes + times * CHUNK_BYTES_MAX;
    header.bytes = times * CHUNK_BYTES_MAX;
    header.chunks = vec![catalog.chunks.len() - 1; usize::try_from(times).unwrap()];
    let mut objects = place.shelf.objects();
    objects.insert(catalog_key(2), seal(&catalog));
    place.shelf.set(objects);
    let back = place.elsewhere("back");
    let refused = place.archive.pull(Some(Step(2)), &back).unwrap_err();
    assert!(matches!(refused, Error::NoRoom { step: Step(2), .. }), "{refused:?}");
    assert_eq!(contents(back.path()), BTreeMap::new());
}

/// What a catalog's tensors are, if all of it can be read.
fn read_all(place: &Shelved, catalog: &Catalog) -> Option<BTreeMap<String, Vec<u8>>> {
    let access = place.access();
    let mut fetcher = Fetcher::new(&access, catalog);
    let mut found = BTreeMap::new();
    for (name, item) in
        catalog.shards.iter().flat_map(|shard| &shard.tensors).map(|tensor| (&tensor.name, &tensor.item))
    {
        let mut bytes = Vec::new();
        fetcher
            .item(item, |part| {
                bytes.extend_from_slice(part);
                Ok::<(), Error>(())
            })
            .ok()?;
        found.insert(format!("{name} {}", item.blake3), bytes);
    }
    Some(found)
}

#[test]
fn no_mutation_of_a_catalog_makes_a_panic_or_a_wrong_byte() {
    let (place, catalog) = sound();
    let text = String::from_utf8(seal(&catalog)).unwrap();
    let body = text.rsplit_once(",\"checksum\"").unwrap().0.as_bytes();
    let mut draw = Draw(7);
    let (mut readable, mut pulls) = (0, 0);
    for round in 0..5_000 {
        let mut mutated = body.to_vec();
        draw.mutate(&mut mutated);
        let Ok(body) = String::from_utf8(mutated) else { continue };
        let text = sealed(&body);
        let Ok(catalog) = Catalog::read(2, &text) else { continue };
        readable += 1;
        for (name, bytes) in read_all(&place, &catalog).unwrap_or_default() {
            assert!(name.ends_with(&Digest::of(&bytes).to_string()), "round {round}: {name}");
        }
        if pulls < 40 {
            pulls += 1;
            let mut objects = place.shelf.objects();
            objects.insert(catalog_key(2), text);
            place.shelf.set(objects);
            assert_pulls_right_or_not_at_all(&place.archive, &place.store, place.place.folder.path());
        }
    }
    assert!(readable > 50, "{readable} mutations still were catalogs");
}

fn assert_pulls_right_or_not_at_all(archive: &Archive, store: &Store, folder: &Path) {
    let folder = tempfile::tempdir_in(folder).unwrap();
    let back = empty_store(folder.path());
    match archive.pull(Some(Step(2)), &back) {
        Ok(_) => {
            let name = crate::layout::checkpoint_folder(2);
            assert_eq!(contents(&back.path().join(&name)), contents(&store.path().join(&name)));
        }
        Err(_) => assert_eq!(contents(back.path()), BTreeMap::new()),
    }
}

#[test]
fn every_damage_to_a_pack_is_found_and_the_tensor_named() {
    let (place, _) = sound();
    let sound = place.shelf.objects();
    let packs: Vec<&String> = sound.keys().filter(|key| key.starts_with("packs/")).collect();
    let mut draw = Draw(11);
    let (mut found, mut missed) = (0, 0);
    for round in 0..2_000 {
        let mut objects = sound.clone();
        let key = packs[draw.below(packs.len())];
        let pack = objects.get_mut(key).unwrap();
        let before = pack.clone();
        draw.mutate(pack);
        if *pack == before {
            continue;
        }
        let differs_in = |at: usize| objects[key].get(at) != before.get(at);
        let is_only_magic = (0..8).any(differs_in) && objects[key].get(8..) == before.get(8..);
        place.shelf.set(objects);
        let reports = [1, 2].map(|step| place.archive.verify(Step(step)));
        let is_found = reports.iter().any(|report| report.as_ref().map_or(true, |report| !report.is_good()));
        assert!(is_found || is_only_magic, "round {round}: a change of {key} went unseen");
        found += usize::from(is_found);
        missed += usize::from(!is_found);
        for problem in reports.into_iter().flatten().flat_map(|report| report.problems) {
            assert!(problem.file.starts_with("packs"), "{problem}");
        }
    }
    assert!(found > 1_500 && missed < 50, "{found} found, {missed} in what packs begin with");
}
