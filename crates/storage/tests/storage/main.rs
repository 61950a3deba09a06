//! The checkpoint store at its border: real files in a temporary folder, damage done by hand, kills at every step.

#![expect(clippy::unwrap_used, reason = "a panic is how a test fails, in its helpers too")]

mod archive;
mod branches;
mod claim;
mod compare;
mod damage;
mod export;
mod format;
mod gang;
mod import;
mod kill;
mod lease;
mod many;
mod oracle;
mod pin;
mod readers;
mod retention;
mod round_trip;
mod sharded;
mod staged;
mod tiering;
mod types;
mod unconfirmed;
mod verifying;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use gangline_storage::{DataType, Error, Options, Saved, Step, Store, Tensor, TensorView};

/// A state of a few tensors that differs for each step.
fn state(step: u64) -> Vec<Tensor> {
    let byte = |index: usize| u8::try_from((index as u64 * 7 + step * 13) % 251).expect("below 251");
    let tensor = |name: &str, data_type: DataType, shape: &[usize]| {
        let bytes = shape.iter().product::<usize>() * data_type.size();
        let data = (0..bytes).map(|index| byte(index + name.len())).collect();
        Tensor { name: name.to_owned(), data_type, shape: shape.to_vec(), data }
    };
    vec![
        tensor("model.weight", DataType::F32, &[31, 17]),
        tensor("model.bias", DataType::Bf16, &[31]),
        tensor("optimizer.step", DataType::I64, &[]),
        tensor("empty", DataType::U8, &[0, 5]),
        tensor("../sly/name", DataType::U8, &[3]),
    ]
}

fn views(tensors: &[Tensor]) -> Vec<TensorView<'_>> {
    tensors.iter().map(Tensor::as_view).collect()
}

fn note() -> BTreeMap<String, String> {
    BTreeMap::from([("seed".to_owned(), "7".to_owned())])
}

fn save(store: &Store, step: u64) -> Result<Saved, Error> {
    store.save(Step(step), &views(&state(step)), &note())?.wait()
}

fn open(path: &Path, options: Options) -> Store {
    Store::open(path, options).expect("the store opens")
}

/// The step that `latest` offers, after checking that it loads as it was saved.
fn offered(path: &Path) -> Option<u64> {
    let store = open(path, Options::reader());
    let latest = store.latest().expect("the folder can be read").checkpoint?;
    let loaded = store.load(latest.step).expect("what is offered loads");
    let mut expected = state(latest.step.0);
    expected.sort_by(|a, b| a.name.cmp(&b.name));
    assert_eq!(loaded.tensors, expected);
    assert_eq!(loaded.info, latest);
    Some(latest.step.0)
}

/// What is in a store's folder, but for the folder of what the store notes for itself; sorted.
fn names(folder: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(folder).expect("a folder");
    let names = entries.map(|entry| entry.expect("an entry").file_name().into_string().expect("text"));
    let mut names: Vec<String> = names.filter(|name| name != ".gangline").collect();
    names.sort();
    names
}

/// All files below a folder, sorted.
fn files(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).expect("a folder") {
            let path = entry.expect("an entry").path();
            if path.is_dir() { folders.push(path) } else { found.push(path) }
        }
    }
    found.sort();
    found
}
