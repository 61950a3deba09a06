//! The archive against folders and against remotes that fail, lie or stop.

mod compaction;
mod faults;
mod fence;
mod hostile;
mod keys;
mod lease;
mod milestones;
mod round_trip;
mod sealed;
mod shelf;

use std::collections::BTreeMap;
use std::num::NonZeroUsize;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use gangline_base::Timestamp;
use tempfile::TempDir;

use shelf::Shelf;

use super::access::Access;
use super::vault::Secret;
use super::{Archive, Catalog, Options, WrappingKey};
use crate::{DataType, Step, Store, Tensor, TensorView};

/// A store and an archive in a folder.
struct Place {
    folder: TempDir,
    store: Store,
    archive: Archive,
}

impl Place {
    fn new() -> Place {
        let folder = tempfile::tempdir().unwrap();
        // Equal states are equal bytes, whenever they are saved.
        let clock = Arc::new(|| Timestamp::from_unix_nanos(1_000_000));
        let run = Some("test".to_owned());
        let options = crate::Options { keep: None, run, clock, ..crate::Options::default() };
        let store = Store::open(folder.path().join("store"), options).unwrap();
        let archive = Archive::open(folder.path().join("archive").to_str().unwrap(), &Options::default()).unwrap();
        Place { folder, store, archive }
    }

    fn save(&self, step: u64, tensors: &[Tensor]) {
        let views: Vec<TensorView<'_>> = tensors.iter().map(Tensor::as_view).collect();
        let note = BTreeMap::from([("loss".to_owned(), (1_000 - step).to_string())]);
        self.store.save(Step(step), &views, &note).unwrap().wait().unwrap();
    }

    /// Another store, empty.
    fn elsewhere(&self, name: &str) -> Store {
        empty_store(&self.folder.path().join(name))
    }

    /// Pulls these steps into an empty folder, and compares every byte.
    fn assert_pulls(&self, archive: &Archive, steps: &[u64]) {
        let folder = tempfile::tempdir_in(self.folder.path()).unwrap();
        let back = empty_store(folder.path());
        for step in steps {
            archive.pull(Some(Step(*step)), &back).unwrap();
            let name = crate::layout::checkpoint_folder(*step);
            assert_eq!(contents(&back.path().join(&name)), contents(&self.store.path().join(&name)), "step {step}");
        }
    }
}

/// An empty folder, and a store that nobody saves to.
fn empty_store(folder: &Path) -> Store {
    std::fs::create_dir_all(folder).unwrap();
    Store::open(folder, crate::Options::reader()).unwrap()
}

/// The same with an archive on a shelf.
struct Shelved {
    place: Place,
    shelf: Shelf,
    store: Store,
    archive: Archive,
}

impl Shelved {
    /// A store of checkpoints of steps 1, 2, ..., and an empty archive.
    fn with_steps(steps: u64) -> Shelved {
        Shelved::with_threads(steps, 2)
    }

    fn with_threads(steps: u64, threads: usize) -> Shelved {
        let threads = NonZeroUsize::new(threads).unwrap();
        Shelved::with_options(steps, &Options { threads, ..patient(None) })
    }

    fn with_options(steps: u64, options: &Options) -> Shelved {
        let place = Place::new();
        let shelf = Shelf::default();
        let archive = Archive::over(Box::new(shelf.clone()), options);
        let store = Store::open(place.store.path(), crate::Options::reader()).unwrap();
        let shelved = Shelved { place, shelf, store, archive };
        (1..=steps).for_each(|step| shelved.store_state(step));
        shelved
    }

    /// The same, all pushed.
    fn pushed(steps: u64) -> Shelved {
        Shelved::pushed_with(steps, None)
    }

    /// The same, encrypted if there is a key.
    fn pushed_with(steps: u64, key: Option<u8>) -> Shelved {
        let place = Shelved::with_options(steps, &patient(key));
        for step in 1..=steps {
            place.archive.push(&place.store, Step(step)).unwrap();
        }
        place
    }

    /// Another program's view of the same archive.
    fn other(&self, options: &Options) -> Archive {
        Archive::over(Box::new(self.shelf.clone()), options)
    }

    fn access(&self) -> Access<'_> {
        self.archive.access().unwrap()
    }

    /// The catalog of a step, as it is put.
    fn catalog(&self, step: u64) -> Catalog {
        super::known::find_catalog(&self.access(), Some(Step(step))).unwrap()
    }

    fn store_state(&self, step: u64) {
        self.place.save(step, &state(step));
    }

    fn elsewhere(&self, name: &str) -> Store {
        self.place.elsewhere(name)
    }

    fn assert_pulls(&self, steps: &[u64]) {
        self.place.assert_pulls(&self.archive, steps);
    }
}

/// A wrapping key.
fn key(byte: u8) -> WrappingKey {
    WrappingKey::of(Secret::from_bytes([byte; 32]))
}

/// Options that don't wait, with a key if there is one.
fn patient(with: Option<u8>) -> Options {
    let threads = NonZeroUsize::new(2).unwrap();
    Options { first_pause: Duration::ZERO, threads, key: with.map(key), ..Options::default() }
}

/// Bytes that look like trained weights: fp32 around zero, moved a little with each step.
fn weights(count: usize, step: u64) -> Vec<u8> {
    let mut word = 0x9E37_79B9_7F4A_7C15_u64;
    let mut bytes = Vec::with_capacity(4 * count);
    for _ in 0..count {
        // xorshift64 (Marsaglia 2003).
        word ^= word << 13;
        word ^= word >> 7;
        word ^= word << 17;
        let [a, b, c, ..] = word.to_le_bytes();
        let base = 0x3c00_0000 | u32::from_le_bytes([a, b, c & 0x7f, 0]);
        let moved = u32::try_from(word % (1 + 8 * step)).unwrap();
        bytes.extend((base ^ moved).to_le_bytes());
    }
    bytes
}

fn tensor(name: &str, data_type: DataType, shape: &[usize], data: Vec<u8>) -> Tensor {
    Tensor { name: name.to_owned(), data_type, shape: shape.to_vec(), data }
}

/// A state of trained, derived, frozen, tied, odd and empty tensors.
fn state(step: u64) -> Vec<Tensor> {
    let master = weights(6_000, step);
    let mut copy = Vec::new();
    gangline_compression::derive_bf16(&master, gangline_compression::Rounding::NearestEven, &mut copy);
    vec![
        tensor("master", DataType::F32, &[60, 100], master.clone()),
        tensor("copy", DataType::Bf16, &[60, 100], copy),
        tensor("tied", DataType::F32, &[60, 100], master),
        tensor("moment", DataType::F32, &[3_000], weights(3_000, step + 40)),
        tensor("scale", DataType::F64, &[1_500], weights(3_000, step + 80)),
        tensor("frozen", DataType::F32, &[5_000], weights(5_000, 0)),
        tensor("../sly", DataType::U8, &[3], vec![1, 2, u8::try_from(step % 256).unwrap()]),
        tensor("steps", DataType::I64, &[], step.to_le_bytes().to_vec()),
        tensor("empty", DataType::F32, &[0, 4], Vec::new()),
    ]
}

/// All files below a folder with their bytes.
fn contents(folder: &Path) -> BTreeMap<String, Vec<u8>> {
    let mut found = BTreeMap::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(next) = folders.pop() {
        for entry in std::fs::read_dir(next).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else {
                let name = path.strip_prefix(folder).unwrap().to_str().unwrap().to_owned();
                found.insert(name, std::fs::read(&path).unwrap());
            }
        }
    }
    found
}
