//! Tensors that are cut over ranks: saved by their owners, read back in any box by anybody.

use std::path::Path;
use std::time::Duration;

use gangline_storage::archive::Archive;
use gangline_storage::{DataType, Error, Options, PartOf, Role, Saved, Step, Store, TensorView, Wanted};

use crate::{note, open};

/// A rank's part of a matrix of 7 x 6 elements of two bytes: from where, how many rows and columns.
pub(crate) type Part = ([usize; 2], [usize; 2]);

pub(crate) const WHOLE: [usize; 2] = [7, 6];

/// The bytes of a box: each element is its place in the whole.
pub(crate) fn bytes_of((offsets, shape): Part) -> Vec<u8> {
    let rows = offsets[0]..offsets[0] + shape[0];
    let places = rows.flat_map(|row| (offsets[1]..offsets[1] + shape[1]).map(move |column| row * WHOLE[1] + column));
    places.flat_map(|place| u16::try_from(place * 5 + 1).unwrap().to_le_bytes()).collect()
}

/// Every rank saves its part of `weight`, and `bias`, which all hold alike.
pub(crate) fn save_parts(folder: &Path, parts: &[Part], step: u64) -> Vec<Result<Saved, Error>> {
    let world_size = u32::try_from(parts.len()).unwrap();
    let save = |rank: u32, part: Part| {
        let role = Role::Writer { rank, world_size, tag: 1 };
        let store = open(folder, Options { role, commit_timeout: Duration::from_secs(3), ..Options::default() });
        let data = bytes_of(part);
        let part_of = Some(PartOf { shape: &WHOLE, offsets: &part.0 });
        let weight = TensorView { name: "weight", data_type: DataType::Bf16, shape: &part.1, data: &data, part_of };
        let bias = TensorView { name: "bias", data_type: DataType::U8, shape: &[2], data: &[8, 9], part_of: None };
        store.save(Step(step), &[weight, bias], &note())?.wait()
    };
    std::thread::scope(|scope| {
        let ranks: Vec<_> =
            (0..world_size).zip(parts).map(|(rank, part)| scope.spawn(move || save(rank, *part))).collect();
        ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
    })
}

fn read(store: &Store, step: u64, (offsets, shape): Part) -> Result<Vec<u8>, Error> {
    let mut data = vec![0; shape[0] * shape[1] * 2];
    let wanted =
        Wanted { name: "weight", data_type: DataType::Bf16, offsets: &offsets, shape: &shape, data: &mut data };
    store.open_step(Step(step))?.read_into(&mut [wanted])?;
    Ok(data)
}

pub(crate) const ROWS: [Part; 4] = [([0, 0], [2, 6]), ([2, 0], [2, 6]), ([4, 0], [2, 6]), ([6, 0], [1, 6])];
pub(crate) const COLUMNS: [Part; 3] = [([0, 0], [7, 2]), ([0, 2], [7, 2]), ([0, 4], [7, 2])];
pub(crate) const GRID: [Part; 4] = [([0, 0], [4, 3]), ([0, 3], [4, 3]), ([4, 0], [3, 3]), ([4, 3], [3, 3])];

#[test]
fn what_is_cut_in_one_way_is_read_in_any_other() {
    let cuts: [&[Part]; 4] = [&ROWS, &COLUMNS, &GRID, &[([0, 0], WHOLE)]];
    for saved in cuts {
        let folder = tempfile::tempdir().unwrap();
        for outcome in save_parts(folder.path(), saved, 3) {
            outcome.unwrap();
        }
        let store = open(folder.path(), Options::reader());
        for wanted in cuts.into_iter().flatten() {
            assert_eq!(read(&store, 3, *wanted).unwrap(), bytes_of(*wanted), "{saved:?} {wanted:?}");
        }
        let loaded = store.load(Step(3)).unwrap();
        assert_eq!(loaded.tensors.iter().map(|tensor| tensor.name.as_str()).collect::<Vec<_>>(), ["bias", "weight"]);
        assert_eq!(
            (loaded.tensors[1].shape.as_slice(), &loaded.tensors[1].data),
            (&WHOLE[..], &bytes_of(([0, 0], WHOLE)))
        );
        assert_eq!(loaded.info.tensors[1].parts, saved.len());
        assert!(store.verify(Step(3)).unwrap().is_good());
    }
}

#[test]
fn parts_that_leave_a_gap_or_overlap_are_not_committed() {
    let folder = tempfile::tempdir().unwrap();
    for parts in [&ROWS[..3], &[ROWS[0], ROWS[1], ROWS[1], ROWS[3]]] {
        let outcomes = save_parts(folder.path(), parts, 4);
        let why = outcomes[0].as_ref().unwrap_err().to_string();
        assert!(why.contains("\"weight\"") && why.contains("don't fill it"), "{why}");
    }
    assert!(open(folder.path(), Options::reader()).list().unwrap().is_empty());
}

#[test]
fn what_is_not_there_is_refused_and_named() {
    let folder = tempfile::tempdir().unwrap();
    save_parts(folder.path(), &ROWS, 3).into_iter().for_each(|outcome| drop(outcome.unwrap()));
    let store = open(folder.path(), Options::reader());
    let snapshot = store.open_step(Step(3)).unwrap();
    let refused = |name, data_type, shape: &[usize], why: &str| {
        let mut data = [0; 12];
        let wanted = Wanted { name, data_type, offsets: &[6, 0], shape, data: &mut data };
        let error = snapshot.read_into(&mut [wanted]).unwrap_err().to_string();
        assert!(error.contains(why) && error.contains(name), "{error}");
    };
    refused("wait", DataType::Bf16, &[1, 6], "no such tensor");
    refused("weight", DataType::F16, &[1, 6], "another element type");
    refused("weight", DataType::Bf16, &[2, 3], "isn't within the shape");
    refused("weight", DataType::Bf16, &[1, 5], "bytes don't fit");
}

/// Proves A-6 for reading in boxes.
#[test]
fn a_flipped_bit_is_found_by_who_reads_the_part_it_is_in() {
    let folder = tempfile::tempdir().unwrap();
    save_parts(folder.path(), &ROWS, 3).into_iter().for_each(|outcome| drop(outcome.unwrap()));
    let path = folder.path().join("step-0000000003/shard-00001-of-00004.safetensors");
    let mut bytes = std::fs::read(&path).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    std::fs::write(&path, bytes).unwrap();
    let store = open(folder.path(), Options::reader());
    assert_eq!(read(&store, 3, ROWS[0]).unwrap(), bytes_of(ROWS[0]), "another rank's part");
    let error = read(&store, 3, COLUMNS[0]).unwrap_err().to_string();
    assert!(error.contains("shard-00001") && error.contains("\"weight\""), "{error}");
}

#[test]
fn the_header_says_where_parts_lie_as_pytorch_asks() {
    let folder = tempfile::tempdir().unwrap();
    save_parts(folder.path(), &ROWS[..], 3).into_iter().for_each(|outcome| drop(outcome.unwrap()));
    let bytes = std::fs::read(folder.path().join("step-0000000003/shard-00002-of-00004.safetensors")).unwrap();
    let length = usize::try_from(u64::from_le_bytes(bytes[..8].try_into().unwrap())).unwrap();
    let header: serde_json::Value = serde_json::from_slice(&bytes[8..8 + length]).unwrap();
    let info = header["__metadata__"]["DCP_SHARDING_INFO"].as_str().unwrap();
    let info: serde_json::Value = serde_json::from_str(info).unwrap();
    assert_eq!(info["weight"], serde_json::json!({ "saved_offsets": [4, 0] }));
}

#[test]
fn what_is_cut_comes_back_from_an_archive_as_it_was() {
    let folder = tempfile::tempdir().unwrap();
    let [from, back] = ["store", "back"].map(|name| folder.path().join(name));
    for (step, cut) in [(3, GRID.as_slice()), (4, ROWS.as_slice())] {
        for outcome in save_parts(&from, cut, step) {
            outcome.unwrap();
        }
    }
    let place = folder.path().join("archive");
    let archive = Archive::open(place.to_str().unwrap(), &gangline_storage::archive::Options::default()).unwrap();
    let (store, back) = (open(&from, Options::reader()), open(&back, Options::default()));
    for step in [3, 4] {
        archive.push(&store, Step(step)).unwrap();
        archive.pull(Some(Step(step)), &back).unwrap();
        assert_eq!(read(&back, step, ([1, 1], [5, 4])).unwrap(), bytes_of(([1, 1], [5, 4])));
        assert!(archive.verify(Step(step)).unwrap().is_good());
    }
}
