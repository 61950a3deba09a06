//! Folders for Hugging Face's libraries, read by the safetensors crate, which is theirs.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;
use std::sync::Arc;

use gangline_storage::{Bytes, DataType, DiskAct, Error, ExportOptions, Flaw, Options, Precision, Step, Store, Tensor};
use safetensors::SafeTensors;

use crate::sharded::{COLUMNS, GRID, Part, ROWS, WHOLE, bytes_of, save_parts};
use crate::{files, note, open, views};

/// A tensor as a reader finds it: type, shape, bytes.
type Found = (String, Vec<usize>, Vec<u8>);

fn tensor(name: &str, data_type: DataType, shape: &[usize]) -> Tensor {
    let bytes = shape.iter().product::<usize>() * data_type.size();
    let data = (0..bytes).map(|index| u8::try_from((index * 31 + name.len()) % 256).unwrap()).collect();
    Tensor { name: name.to_owned(), data_type, shape: shape.to_vec(), data }
}

/// A training state as the Python package names it.
fn training_state() -> Vec<Tensor> {
    vec![
        tensor("__gangline__.values", DataType::U8, &[77]),
        tensor("model.model.embed.weight", DataType::Bf16, &[40, 8]),
        tensor("model.model.norm.weight", DataType::F32, &[8]),
        tensor("model.steps", DataType::I64, &[]),
        tensor("model.empty", DataType::F16, &[0, 3]),
        tensor("model.mask", DataType::Bool, &[13]),
        tensor("optimizer.state.model.norm.weight.exp_avg", DataType::F32, &[8]),
    ]
}

fn saved(folder: &Path, tensors: &[Tensor]) -> Store {
    let store = open(folder, Options::default());
    store.save(Step(5), &views(tensors), &note()).unwrap().wait().unwrap();
    store
}

/// What the safetensors crate reads of one file.
fn read_file(path: &Path) -> BTreeMap<String, Found> {
    let bytes = std::fs::read(path).unwrap();
    let (_, metadata) = SafeTensors::read_metadata(&bytes).unwrap();
    assert_eq!(metadata.metadata().as_ref().unwrap()["format"], "pt");
    let found = SafeTensors::deserialize(&bytes).unwrap();
    let one = |(name, view): (String, safetensors::tensor::TensorView<'_>)| {
        (name, (view.dtype().to_string(), view.shape().to_vec(), view.data().to_vec()))
    };
    found.tensors().into_iter().map(one).collect()
}

/// What transformers would read of a folder: by its index, or of the only file.
fn read_folder(folder: &Path) -> BTreeMap<String, Found> {
    let Ok(index) = std::fs::read(folder.join("model.safetensors.index.json")) else {
        return read_file(&folder.join("model.safetensors"));
    };
    let index: serde_json::Value = serde_json::from_slice(&index).unwrap();
    let places = index["weight_map"].as_object().unwrap();
    let read = |(name, file): (&String, &serde_json::Value)| {
        (name.clone(), read_file(&folder.join(file.as_str().unwrap())).remove(name).unwrap())
    };
    let all: BTreeMap<String, Found> = places.iter().map(read).collect();
    let bytes: usize = all.values().map(|(_, _, data)| data.len()).sum();
    assert_eq!(index["metadata"]["total_size"], bytes);
    all
}

/// The same of what was saved.
fn expected(tensors: &[Tensor], prefix: &str) -> BTreeMap<String, Found> {
    let ours = tensors.iter().filter(|tensor| !tensor.name.starts_with("__gangline__."));
    let renamed = ours.filter_map(|tensor| {
        let found = (tensor.data_type.name().to_owned(), tensor.shape.clone(), tensor.data.clone());
        Some((tensor.name.strip_prefix(prefix)?.to_owned(), found))
    });
    renamed.collect()
}

fn with_prefix(prefix: &str, shard_bytes_max: u64) -> ExportOptions {
    ExportOptions { prefix: prefix.to_owned(), shard_bytes_max: Bytes(shard_bytes_max), ..ExportOptions::default() }
}

#[test]
fn weights_leave_under_the_names_of_the_model_in_one_file_or_many() {
    let folder = tempfile::tempdir().unwrap();
    let state = training_state();
    let snapshot = saved(&folder.path().join("store"), &state).open_step(Step(5)).unwrap();
    for (prefix, bytes_max, count) in [("model.", 1 << 30, 1), ("model.", 64, 3), ("model.", 1, 5), ("", 1 << 30, 1)] {
        let out = folder.path().join(format!("out-{bytes_max}-{prefix}"));
        let exported = snapshot.export(&out, &with_prefix(prefix, bytes_max)).unwrap();
        assert_eq!(exported.files.len(), count, "{exported:?}");
        assert_eq!(files(&out).len(), if count == 1 { 1 } else { count + 1 });
        let wanted = expected(&state, prefix);
        assert_eq!((exported.tensors, exported.left_out), (wanted.len(), state.len() - wanted.len()));
        assert_eq!(read_folder(&out), wanted);
    }
}

#[test]
fn what_was_cut_over_ranks_leaves_whole() {
    for parts in [&ROWS[..], &COLUMNS, &GRID] {
        let folder = tempfile::tempdir().unwrap();
        let store = folder.path().join("store");
        save_parts(&store, parts, 3).into_iter().for_each(|outcome| drop(outcome.unwrap()));
        let out = folder.path().join("out");
        open(&store, Options::reader()).open_step(Step(3)).unwrap().export(&out, &ExportOptions::default()).unwrap();
        let whole: Part = ([0, 0], WHOLE);
        let found = read_folder(&out);
        assert_eq!(found["weight"], ("BF16".to_owned(), WHOLE.to_vec(), bytes_of(whole)));
        assert_eq!(found["bias"].2, [8, 9]);
    }
}

#[test]
fn tensors_of_many_segments_leave_whole() {
    let folder = tempfile::tempdir().unwrap();
    let state = [
        tensor("large", DataType::F32, &[5_000, 1_001]),
        tensor("odd", DataType::U8, &[8_388_609]),
        tensor("pages", DataType::F32, &[3, 1 << 20]),
        tensor("small", DataType::F32, &[7]),
    ];
    let snapshot = saved(&folder.path().join("store"), &state).open_step(Step(5)).unwrap();
    let out = folder.path().join("out");
    snapshot.export(&out, &ExportOptions::default()).unwrap();
    assert!(read_folder(&out) == expected(&state, ""));
}

#[test]
fn fp32_is_rounded_to_bf16_if_asked_for_and_nothing_else_is() {
    let folder = tempfile::tempdir().unwrap();
    let values =
        [1.0_f32, f32::from_bits(0x3f80_8000), f32::from_bits(0x3f80_8001), -2.5, f32::INFINITY, f32::MAX, 1e-40, 0.0];
    let rounded = [0x3f80_u16, 0x3f80, 0x3f81, 0xc020, 0x7f80, 0x7f80, 0x0001, 0x0000];
    let data = values.iter().flat_map(|value| value.to_le_bytes()).collect();
    let master = Tensor { name: "master".to_owned(), data_type: DataType::F32, shape: vec![2, 4], data };
    let others = [tensor("half", DataType::F16, &[3]), tensor("wide", DataType::F64, &[2])];
    let state = [vec![master], others.to_vec()].concat();
    let snapshot = saved(&folder.path().join("store"), &state).open_step(Step(5)).unwrap();
    let out = folder.path().join("out");
    let options = ExportOptions { precision: Precision::Bf16, ..ExportOptions::default() };
    let exported = snapshot.export(&out, &options).unwrap();
    assert_eq!(exported.bytes, Bytes(16 + 6 + 16));
    let mut expected = expected(&others, "");
    let data = rounded.iter().flat_map(|value| value.to_le_bytes()).collect();
    expected.insert("master".to_owned(), ("BF16".to_owned(), vec![2, 4], data));
    assert_eq!(read_folder(&out), expected);
}

#[test]
fn a_folder_with_anything_in_it_is_left_alone() {
    let folder = tempfile::tempdir().unwrap();
    let snapshot = saved(&folder.path().join("store"), &training_state()).open_step(Step(5)).unwrap();
    let out = folder.path().join("out");
    std::fs::create_dir(&out).unwrap();
    snapshot.export(&out, &with_prefix("model.", 64)).unwrap();
    let before = files(&out);
    let refused = snapshot.export(&out, &with_prefix("model.", 64)).unwrap_err();
    assert!(matches!(&refused, Error::Occupied { path } if *path == out), "{refused:?}");
    assert_eq!(files(&out), before);
    let file = folder.path().join("file");
    std::fs::write(&file, "x").unwrap();
    assert!(matches!(snapshot.export(&file, &ExportOptions::default()), Err(Error::Io { .. })));
    let nothing = snapshot.export(&folder.path().join("none"), &with_prefix("modle.", 64)).unwrap_err();
    assert!(nothing.to_string().contains("modle."), "{nothing}");
    assert!(!folder.path().join("none").exists());
}

/// Proves A-6 for exports.
#[test]
fn a_flipped_bit_is_named_and_nothing_is_left_behind() {
    let folder = tempfile::tempdir().unwrap();
    let store = saved(&folder.path().join("store"), &training_state());
    let shard = files(store.path()).into_iter().find(|path| path.extension().is_some_and(|e| e == "safetensors"));
    let shard = shard.unwrap();
    let mut bytes = std::fs::read(&shard).unwrap();
    let place = bytes.len() - 5; // elements of one byte come last, by name
    bytes[place] ^= 1;
    std::fs::write(&shard, bytes).unwrap();
    let snapshot = store.open_step(Step(5)).unwrap();
    for was_there in [false, true] {
        let out = folder.path().join("out");
        if was_there {
            std::fs::create_dir(&out).unwrap();
        }
        let error = snapshot.export(&out, &with_prefix("", 64)).unwrap_err();
        let is_named = |name: &Option<String>| name.as_deref() == Some("model.mask");
        assert!(matches!(&error, Error::Corrupt { tensor, flaw: Flaw::Hash, .. } if is_named(tensor)), "{error:?}");
        assert_eq!(out.exists(), was_there);
        assert!(!was_there || files(&out).is_empty());
    }
}

#[test]
fn a_disk_that_fills_at_any_change_leaves_no_folder_that_looks_whole() {
    let folder = tempfile::tempdir().unwrap();
    let snapshot = saved(&folder.path().join("store"), &training_state()).open_step(Step(5)).unwrap();
    let count = |fails_at: usize| {
        let seen = Arc::new(std::sync::atomic::AtomicUsize::new(0));
        let counted = Arc::clone(&seen);
        let hook = move |act: DiskAct, _: &Path| {
            let number = counted.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
            let is_it = number == fails_at && act != DiskAct::Remove;
            if is_it { Err(io::Error::from(io::ErrorKind::StorageFull)) } else { Ok(()) }
        };
        let out = folder.path().join(format!("out-{fails_at}"));
        let options = ExportOptions { disk_hook: Some(Arc::new(hook)), ..with_prefix("model.", 64) };
        let outcome = snapshot.export(&out, &options);
        (outcome, out, seen.load(std::sync::atomic::Ordering::SeqCst))
    };
    let (_, _, changes) = count(usize::MAX);
    for number in 0..changes {
        let (outcome, out, _) = count(number);
        assert!(matches!(outcome, Err(Error::NoSpace { .. })), "{number}: {outcome:?}");
        let index = out.join("model.safetensors.index.json");
        // Only the last fsync, of the folder, comes after the index has its name.
        assert!(!index.exists() || number + 1 == changes, "{number} of {changes}");
    }
}
