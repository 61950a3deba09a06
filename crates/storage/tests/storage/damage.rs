//! Damage to what is on disk is found, named and never offered.

use std::path::Path;

use gangline_storage::{Error, Flaw, Options, Step};

use crate::{files, offered, open, save};

/// A folder with checkpoints of steps 1 and 2, and the files of the second.
fn two_checkpoints(folder: &Path) -> Vec<std::path::PathBuf> {
    let store = open(folder, Options::default());
    save(&store, 1).unwrap();
    save(&store, 2).unwrap();
    files(&folder.join("step-0000000002"))
}

/// Asserts that step 2 is found bad, with `file` named, isn't loaded, and step 1 is offered in its place.
fn check_found(folder: &Path, file: &Path, what: &str) {
    let store = open(folder, Options::reader());
    let report = store.verify(Step(2)).unwrap();
    assert!(report.problems.iter().any(|problem| problem.file == file), "{what}: {report:?}");
    assert!(matches!(store.load(Step(2)), Err(Error::Corrupt { .. })), "{what}");
    let latest = store.latest().unwrap();
    assert_eq!(latest.checkpoint.map(|info| info.step), Some(Step(1)), "{what}");
    assert_eq!(latest.skipped.len(), 1, "{what}");
    assert_eq!(latest.skipped[0].step, Step(2), "{what}");
    assert_eq!(latest.skipped[0].problems, report.problems, "{what}");
}

/// Proves A-6.
#[test]
fn a_flipped_bit_anywhere_in_any_file_is_found_and_the_previous_checkpoint_offered() {
    let folder = tempfile::tempdir().unwrap();
    let files = two_checkpoints(folder.path());
    assert_eq!(files.len(), 2, "a shard and a manifest");
    for file in files {
        let good = std::fs::read(&file).unwrap();
        let stride = good.len().div_ceil(150);
        let ends = [good.len() - 1, good.len() - 2, good.len() - 3];
        for position in (0..good.len()).step_by(stride).chain(ends) {
            let mut bad = good.clone();
            bad[position] ^= 1 << (position % 8);
            std::fs::write(&file, &bad).unwrap();
            check_found(folder.path(), &file, &format!("{} at {position}", file.display()));
        }
        std::fs::write(&file, &good).unwrap();
        assert_eq!(offered(folder.path()), Some(2));
    }
}

/// Proves A-6.
#[test]
fn a_torn_grown_emptied_or_missing_file_is_found_and_the_previous_checkpoint_offered() {
    let folder = tempfile::tempdir().unwrap();
    for file in two_checkpoints(folder.path()) {
        let good = std::fs::read(&file).unwrap();
        for length in [0, 7, 8, good.len() / 2, good.len() - 1] {
            std::fs::write(&file, &good[..length]).unwrap();
            check_found(folder.path(), &file, &format!("{} cut to {length}", file.display()));
        }
        std::fs::write(&file, [&good[..], b"}"].concat()).unwrap();
        check_found(folder.path(), &file, "grown");
        std::fs::remove_file(&file).unwrap();
        check_found(folder.path(), &file, "missing");
        std::fs::write(&file, &good).unwrap();
    }
}

#[test]
fn the_tensor_that_is_wrong_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let files = two_checkpoints(folder.path());
    let shard = files.iter().find(|file| file.extension().is_some_and(|e| e == "safetensors")).unwrap();
    let mut bytes = std::fs::read(shard).unwrap();
    // The file's order is by element size and then name: the last byte belongs to the sly one.
    *bytes.last_mut().unwrap() ^= 1;
    std::fs::write(shard, bytes).unwrap();
    let report = open(folder.path(), Options::reader()).verify(Step(2)).unwrap();
    assert_eq!(report.problems.len(), 1);
    assert_eq!(report.problems[0].tensor.as_deref(), Some("../sly/name"));
    assert_eq!(report.problems[0].flaw, Flaw::Hash);
    assert_eq!(report.tensors_good, 4);
}

#[test]
fn a_checkpoint_moved_to_another_step_is_not_taken_for_it() {
    let folder = tempfile::tempdir().unwrap();
    two_checkpoints(folder.path());
    std::fs::rename(folder.path().join("step-0000000002"), folder.path().join("step-0000000009")).unwrap();
    assert_eq!(offered(folder.path()), Some(1));
}

#[test]
fn a_tensor_swapped_for_another_checkpoints_is_found() {
    let folder = tempfile::tempdir().unwrap();
    two_checkpoints(folder.path());
    let shard = |step: &str| folder.path().join(step).join("shard-00000-of-00001.safetensors");
    std::fs::copy(shard("step-0000000001"), shard("step-0000000002")).unwrap();
    check_found(folder.path(), &shard("step-0000000002"), "another step's shard");
}
