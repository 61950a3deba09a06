//! Very many tensors: more than one file's header has room for, by several ranks.

use std::collections::BTreeMap;
use std::num::NonZeroUsize;
use std::path::Path;
use std::time::Duration;

use gangline_storage::{DataType, Error, Options, PartOf, PrunePolicy, Role, Step, Store, TensorView};
use safetensors::SafeTensors;

use crate::{note, open};

/// Tensors that all ranks hold alike.
const ALIKE: usize = 60_000;
/// Tensors of rank 1 alone, with names as long as they may be: their places as parts are in the header too.
const OWN: usize = 90_000;

fn names(count: usize, bytes: usize) -> Vec<String> {
    (0..count).map(|number| format!("{number:0>bytes$}")).collect()
}

/// Two ranks save: one fits one file, the other doesn't.
fn save(folder: &Path, step: u64, (alike, own): (&[String], &[String])) -> Result<(), Error> {
    let rank = |rank: u32| {
        let role = Role::Writer { rank, world_size: 2, tag: 1 };
        let options = Options { role, commit_timeout: Duration::from_secs(120), ..Options::default() };
        let store = Store::open(folder, options)?;
        let data: Vec<u8> = (0..=255).collect();
        let view = |(number, name): (usize, &'_ String), part_of| (number % 256, name.clone(), part_of);
        let all = alike.iter().enumerate().map(|one| view(one, false));
        let own = own.iter().enumerate().filter(|_| rank == 1).map(|one| view(one, true));
        let all: Vec<(usize, String, bool)> = all.chain(own).collect();
        let views: Vec<TensorView<'_>> = (all.iter())
            .map(|(byte, name, is_part)| TensorView {
                name,
                data_type: DataType::U8,
                shape: &[1],
                data: &data[*byte..=*byte],
                part_of: is_part.then_some(PartOf { shape: &[1], offsets: &[0] }),
            })
            .collect();
        store.save(Step(step), &views, &note())?.wait().map(drop)
    };
    std::thread::scope(|scope| {
        let ranks = [0, 1].map(|number| scope.spawn(move || rank(number)));
        ranks.into_iter().try_for_each(|rank| rank.join().unwrap())
    })
}

fn files(folder: &Path) -> Vec<String> {
    let mut names: Vec<String> =
        std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

/// Names and the bytes of all tensors.
fn contents(store: &Store, step: u64) -> BTreeMap<String, Vec<u8>> {
    let loaded = store.load(Step(step)).unwrap();
    assert_eq!(loaded.info.world_size, 2);
    loaded.tensors.into_iter().map(|tensor| (tensor.name, tensor.data)).collect()
}

#[test]
fn a_rank_whose_tensors_overflow_a_header_writes_several_files() {
    let folder = tempfile::tempdir().unwrap();
    let (alike, own) = (names(ALIKE, 16), names(OWN, 512));
    save(folder.path(), 1, (&alike, &own)).unwrap();
    let checkpoint = folder.path().join("step-0000000001");
    let shards = (0..3).map(|number| format!("shard-{number:05}-of-00003.safetensors"));
    assert_eq!(files(&checkpoint), std::iter::once("manifest.json".to_owned()).chain(shards).collect::<Vec<_>>());
    let manifest = std::fs::read(checkpoint.join("manifest.json")).unwrap();
    assert!(manifest.starts_with(b"{\"magic\":\"gangline-checkpoint\",\"version\":3,"), "only then is it version 3");

    let store = open(folder.path(), Options::reader());
    assert_eq!(store.verify(Step(1)).unwrap().problems, []);
    let saved = contents(&store, 1);
    assert_eq!(saved.len(), ALIKE + OWN);
    assert!(alike.iter().chain(&own).all(|name| saved[name] == [u8::try_from(place(name)).unwrap()]));

    // Others read each file by itself.
    let read = |name: String| SafeTensors::deserialize(&std::fs::read(checkpoint.join(name)).unwrap()).unwrap().len();
    let counts: Vec<usize> = (0..3).map(|number| read(format!("shard-{number:05}-of-00003.safetensors"))).collect();
    assert_eq!(counts.iter().sum::<usize>(), ALIKE + OWN);
    assert!(counts.iter().all(|count| *count > 0), "{counts:?}");

    // A missing file is damage, and what is smaller again takes its place in the older format.
    std::fs::remove_file(checkpoint.join("shard-00002-of-00003.safetensors")).unwrap();
    assert_eq!(store.verify(Step(1)).unwrap().problems.len(), 1);
    save(folder.path(), 1, (&alike[..2], &own[..2])).unwrap();
    assert_eq!(files(&checkpoint).len(), 3);
    let manifest = std::fs::read(checkpoint.join("manifest.json")).unwrap();
    assert!(manifest.starts_with(b"{\"magic\":\"gangline-checkpoint\",\"version\":2,"));
    assert_eq!(
        store.prune(&PrunePolicy::Keep { last: NonZeroUsize::MIN, rules: Vec::new() }, false).unwrap().removed,
        []
    );
}

fn place(name: &str) -> usize {
    name.parse::<usize>().unwrap() % 256
}
