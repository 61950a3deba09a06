//! What goes in comes out, and what can't go in is refused.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};

use gangline_storage::{Bytes, DataType, DiskAct, Error, Options, Role, Step, Store, TensorView};

use crate::{files, note, offered, open, save, state, views};

#[test]
fn a_saved_state_loads_as_it_was() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(&folder.path().join("a/b/ckpt"), Options::default());
    assert_eq!(store.latest().unwrap().checkpoint, None);
    let saved = save(&store, 100).unwrap();
    assert_eq!(saved.step, Step(100));
    assert_eq!(offered(store.path()), Some(100));
    let loaded = store.load(Step(100)).unwrap();
    assert_eq!(loaded.info.content_hash, saved.content_hash);
    assert_eq!(loaded.info.metadata, note());
    let on_disk: u64 = files(&store.path().join("step-0000000100"))
        .iter()
        .filter(|path| path.extension().is_some_and(|extension| extension == "safetensors"))
        .map(|path| path.metadata().unwrap().len())
        .sum();
    assert_eq!(saved.bytes, Bytes(on_disk));
    assert!(store.verify(Step(100)).unwrap().is_good());
    let listed = store.list().unwrap();
    assert_eq!(listed.len(), 1);
    assert_eq!(listed[0].manifest.as_ref().unwrap(), &loaded.info);
}

#[test]
fn the_content_hash_tells_states_steps_names_and_shapes_apart_and_nothing_else() {
    let hash = |step: u64, name: &str, shape: &[usize], data: &[u8], note: &str| {
        let folder = tempfile::tempdir().unwrap();
        let store = open(folder.path(), Options::writer(0, 1, data.len() as u64));
        let tensors = [TensorView { name, data_type: DataType::U8, shape, data, part_of: None }];
        let metadata = BTreeMap::from([("note".to_owned(), note.to_owned())]);
        store.save(Step(step), &tensors, &metadata).unwrap().wait().unwrap().content_hash
    };
    let base = hash(1, "a", &[2, 2], &[1, 2, 3, 4], "x");
    assert_eq!(base, hash(1, "a", &[2, 2], &[1, 2, 3, 4], "y"));
    assert_ne!(base, hash(2, "a", &[2, 2], &[1, 2, 3, 4], "x"));
    assert_ne!(base, hash(1, "b", &[2, 2], &[1, 2, 3, 4], "x"));
    assert_ne!(base, hash(1, "a", &[4], &[1, 2, 3, 4], "x"));
    assert_ne!(base, hash(1, "a", &[2, 2], &[1, 2, 3, 5], "x"));
}

#[test]
fn the_order_in_which_tensors_are_passed_changes_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path(), Options::default());
    let mut tensors = state(1);
    let first = store.save(Step(1), &views(&tensors), &note()).unwrap().wait().unwrap();
    tensors.reverse();
    let second = store.save(Step(1), &views(&tensors), &note()).unwrap().wait().unwrap();
    assert_eq!(first.content_hash, second.content_hash);
}

#[test]
fn a_checkpoint_without_tensors_round_trips() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path(), Options::default());
    store.save(Step(3), &[], &BTreeMap::new()).unwrap().wait().unwrap();
    assert_eq!(store.load(Step(3)).unwrap().tensors, []);
    assert_eq!(store.latest().unwrap().checkpoint.unwrap().step, Step(3));
}

#[test]
fn saves_in_flight_all_become_durable_in_order_even_if_nobody_waits() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path(), Options { keep: None, ..Options::default() });
    for step in 1..=10 {
        drop(store.save(Step(step), &views(&state(step)), &note()).unwrap());
    }
    drop(store);
    let steps: Vec<Step> = open(folder.path(), Options::reader()).list().unwrap().iter().map(|l| l.step).collect();
    assert_eq!(steps, (1..=10).map(Step).collect::<Vec<_>>());
}

#[test]
fn an_outcome_can_be_asked_for_without_waiting() {
    let folder = tempfile::tempdir().unwrap();
    let (release, gate) = std::sync::mpsc::channel::<()>();
    let gate = std::sync::Mutex::new(gate);
    let hook = move |act, _: &std::path::Path| {
        if act == DiskAct::Write {
            gate.lock().unwrap().recv().map_err(std::io::Error::other)?;
        }
        Ok(())
    };
    let store = open(folder.path(), Options { disk_hook: Some(std::sync::Arc::new(hook)), ..Options::default() });
    let pending = store.save(Step(1), &views(&state(1)), &note()).unwrap();
    assert!(pending.try_wait().is_none(), "the write waits at the gate");
    assert_eq!(pending.step(), Step(1));
    drop(release);
    assert!(matches!(pending.wait(), Err(Error::Io { .. })));
}

#[test]
fn saving_a_step_again_replaces_it_in_one_step() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path(), Options::default());
    save(&store, 5).unwrap();
    store.save(Step(5), &views(&state(6)), &note()).unwrap().wait().unwrap();
    assert_eq!(store.load(Step(5)).unwrap().tensors.len(), state(6).len());
    assert!(store.verify(Step(5)).unwrap().is_good());
    assert_eq!(crate::names(folder.path()).len(), 1);
}

/// Proves A-6.
#[test]
fn while_a_step_is_replaced_there_is_a_checkpoint_of_it_at_every_instant() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path(), Options::default());
    save(&store, 5).unwrap();
    let manifest = folder.path().join("step-0000000005/manifest.json");
    let is_done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let watcher = scope.spawn(|| {
            while !is_done.load(Ordering::Relaxed) {
                assert!(manifest.exists(), "there was an instant without a checkpoint");
            }
        });
        let all_saved = (0..50).all(|_| save(&store, 5).is_ok());
        is_done.store(true, Ordering::Relaxed);
        watcher.join().unwrap();
        assert!(all_saved);
    });
}

#[test]
fn a_reader_changes_nothing_and_may_not_save() {
    let folder = tempfile::tempdir().unwrap();
    let missing = folder.path().join("missing");
    assert!(matches!(Store::open(&missing, Options::reader()), Err(Error::Io { .. })));
    assert!(!missing.exists());
    let leftover = folder.path().join(".partial-0000000001-by-0-of-1");
    std::fs::create_dir(&leftover).unwrap();
    let store = open(folder.path(), Options::reader());
    assert!(leftover.exists());
    assert!(matches!(save(&store, 1), Err(Error::ReadOnly)));
    assert!(matches!(store.load(Step(1)), Err(Error::NotFound { step: Step(1) })));
    assert!(matches!(store.verify(Step(1)), Err(Error::NotFound { step: Step(1) })));
}

#[test]
fn senseless_options_and_oversized_notes_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let refused = |rank, world_size| {
        let role = Role::Writer { rank, world_size, tag: 0 };
        Store::open(folder.path(), Options { role, ..Options::default() }).map(drop)
    };
    assert!(matches!(refused(0, 0), Err(Error::InvalidOptions { .. })));
    assert!(matches!(refused(2, 2), Err(Error::InvalidOptions { .. })));
    assert!(matches!(refused(0, u32::MAX), Err(Error::Limit { .. })));
    let store = open(folder.path(), Options::default());
    let note = BTreeMap::from([("note".to_owned(), "x".repeat(1 << 17))]);
    assert!(matches!(store.save(Step(1), &[], &note), Err(Error::Limit { .. })));
    let bad = TensorView { name: "a", data_type: DataType::F32, shape: &[2], data: &[0; 7], part_of: None };
    assert!(matches!(store.save(Step(1), &[bad], &BTreeMap::new()), Err(Error::InvalidTensor { .. })));
}

/// What a run does whose numbers went bad: it goes on from before, and saves the same steps anew.
#[test]
fn a_run_that_rolls_back_goes_on_from_before_and_saves_over_what_went_bad() {
    let folder = tempfile::tempdir().unwrap();
    let before = open(folder.path(), Options { keep: None, ..Options::writer(0, 1, 1) });
    for step in [10, 20, 30] {
        save(&before, step).unwrap();
    }
    drop(before);
    let options = Options { restore_below: Some(Step(30)), keep: None, ..Options::writer(0, 1, 2) };
    let store = open(folder.path(), options);
    let newest = |store: &Store| store.latest().unwrap().checkpoint.map(|info| info.step.0);
    assert_eq!(newest(&store), Some(20));
    save(&store, 30).unwrap();
    save(&store, 40).unwrap();
    assert_eq!(newest(&store), Some(20), "the run goes on; only who restores is told what counts");
    drop(store);
    assert_eq!(newest(&open(folder.path(), Options::reader())), Some(40));
    let none = Options { restore_below: Some(Step(10)), ..Options::reader() };
    assert_eq!(newest(&open(folder.path(), none)), None);
}
