//! The element types that safetensors had no name for at first: saved, cut, read back, imported, exported and archived.

use std::time::Duration;

use gangline_storage::archive::{Archive, Options as ArchiveOptions};
use gangline_storage::{
    DataType, Error, ExportOptions, Options, PartOf, Role, Step, Store, Tensor, TensorView, Wanted,
};
use safetensors::tensor::{Dtype, SafeTensors, TensorView as ForeignView, serialize_to_file};

use crate::{note, open, views};

/// Each with its name for others, a shape and that one's bytes.
const TYPES: [(DataType, Dtype, [usize; 2], usize); 7] = [
    (DataType::F8E8m0, Dtype::F8_E8M0, [3, 5], 15),
    (DataType::F8E4m3Fnuz, Dtype::F8_E4M3FNUZ, [3, 5], 15),
    (DataType::F8E5m2Fnuz, Dtype::F8_E5M2FNUZ, [3, 5], 15),
    (DataType::F6E2m3, Dtype::F6_E2M3, [3, 8], 18),
    // The rows don't end with whole bytes, and all of it does.
    (DataType::F6E3m2, Dtype::F6_E3M2, [4, 5], 15),
    (DataType::F4, Dtype::F4, [2, 5], 5),
    (DataType::C64, Dtype::C64, [3, 2], 48),
];

fn state() -> Vec<Tensor> {
    let tensor = |(data_type, _, shape, bytes): (DataType, Dtype, [usize; 2], usize)| Tensor {
        name: format!("model.{}", data_type.name()),
        data_type,
        shape: shape.to_vec(),
        data: (0..bytes).map(|at| u8::try_from(at * 37 % 251).unwrap()).collect(),
    };
    let mut tensors: Vec<Tensor> = TYPES.into_iter().map(tensor).collect();
    tensors.sort_by(|a, b| a.name.cmp(&b.name));
    tensors
}

#[test]
fn every_type_comes_back_from_the_store_an_export_and_an_archive() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path(), Options::default());
    store.save(Step(1), &views(&state()), &note()).unwrap().wait().unwrap();
    assert!(store.verify(Step(1)).unwrap().is_good());
    assert_eq!(store.load(Step(1)).unwrap().tensors, state());
    let manifest = std::fs::read_to_string(folder.path().join("step-0000000001/manifest.json")).unwrap();
    assert!(manifest.contains("\"version\":3,"), "older programs refuse it by its version: {manifest}");

    let out = folder.path().join("out");
    store.open_step(Step(1)).unwrap().export(&out, &ExportOptions::default()).unwrap();
    let bytes = std::fs::read(out.join("model.safetensors")).unwrap();
    let read = SafeTensors::deserialize(&bytes).unwrap();
    for ((data_type, dtype, shape, _), tensor) in
        TYPES.iter().map(|one| (*one, state().into_iter().find(|tensor| tensor.data_type == one.0).unwrap()))
    {
        let found = read.tensor(&format!("model.{}", data_type.name())).unwrap();
        assert_eq!((found.dtype(), found.shape(), found.data()), (dtype, &shape[..], &tensor.data[..]));
    }

    let (place, back) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let archive = Archive::open(place.path().to_str().unwrap(), &ArchiveOptions::default()).unwrap();
    archive.push(&store, Step(1)).unwrap();
    let pulled = open(back.path(), Options::default());
    archive.pull(None, &pulled).unwrap();
    assert_eq!(pulled.load(Step(1)).unwrap().tensors, state());
}

#[test]
fn a_file_of_others_with_every_type_is_imported() {
    let folder = tempfile::tempdir().unwrap();
    let state = state();
    let file = folder.path().join("model.safetensors");
    let foreign = state.iter().map(|tensor| {
        let (_, dtype, shape, _) = TYPES.into_iter().find(|one| one.0 == tensor.data_type).unwrap();
        (tensor.name.clone(), ForeignView::new(dtype, shape.to_vec(), &tensor.data).unwrap())
    });
    serialize_to_file(foreign, None, &file).unwrap();
    let store = open(&folder.path().join("store"), Options::default());
    store.import(&file, Step(2), "").unwrap();
    assert_eq!(store.load(Step(2)).unwrap().tensors, state);
}

/// Saves rows of a matrix of 3 x 8 elements of four bits by two ranks, cut at a column.
fn save_cut(store: &std::path::Path, at: usize) -> Result<(), Error> {
    let rank = |rank: u32| {
        let role = Role::Writer { rank, world_size: 2, tag: 1 };
        let store = Store::open(store, Options { role, commit_timeout: Duration::from_secs(5), ..Options::default() })?;
        let (from, columns) = if rank == 0 { (0, at) } else { (at, 8 - at) };
        // Row by row, two elements in a byte.
        let byte = |row: u8, two: usize| row * 16 + u8::try_from(from / 2 + two).unwrap();
        let data: Vec<u8> = (0..3).flat_map(|row| (0..columns / 2).map(move |two| byte(row, two))).collect();
        let part_of = Some(PartOf { shape: &[3, 8], offsets: &[0, from] });
        let view = TensorView { name: "fp4", data_type: DataType::F4, shape: &[3, columns], data: &data, part_of };
        store.save(Step(1), &[view], &note())?.wait().map(drop)
    };
    std::thread::scope(|scope| {
        let ranks = [0, 1].map(|number| scope.spawn(move || rank(number)));
        ranks.into_iter().try_for_each(|rank| rank.join().unwrap())
    })
}

#[test]
fn elements_of_half_a_byte_are_cut_between_bytes_only() {
    let folder = tempfile::tempdir().unwrap();
    save_cut(folder.path(), 6).unwrap();
    let store = open(folder.path(), Options::reader());
    let whole: Vec<u8> = (0..3).flat_map(|row| (0..4).map(move |two| row * 16 + two)).collect();
    assert_eq!(store.load(Step(1)).unwrap().tensors[0].data, whole);

    let read = |from: usize, columns: usize| {
        let mut data = vec![0; 2 * columns / 2];
        let (offsets, shape) = ([1, from], [2, columns]);
        let wanted = Wanted { name: "fp4", data_type: DataType::F4, offsets: &offsets, shape: &shape, data: &mut data };
        store.open_step(Step(1))?.read_into(&mut [wanted]).map(|()| data)
    };
    // Across both parts.
    assert_eq!(read(4, 4).unwrap(), [0x12, 0x13, 0x22, 0x23]);
    assert!(read(3, 2).unwrap_err().to_string().contains("within a byte"));
    let refused = save_cut(&folder.path().join("odd"), 5).unwrap_err().to_string();
    assert!(refused.contains("don't fit its type") || refused.contains("within a byte"), "{refused}");
}
