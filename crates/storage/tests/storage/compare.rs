//! What became of tensors between two checkpoints, by their hashes and, where those say nothing, by their bytes.

use gangline_storage::{Error, Flaw, Options, Snapshot, Step, Verdict, compare};

use crate::sharded::{COLUMNS, GRID, ROWS, save_parts};
use crate::{files, open, save};

fn verdicts(before: &Snapshot, after: &Snapshot) -> Vec<(String, Verdict)> {
    compare(before.info(), after.info()).iter().map(|one| (one.tensor().name.clone(), one.verdict)).collect()
}

#[test]
fn whole_tensors_are_compared_by_their_hashes() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path(), Options::default());
    save(&store, 1).unwrap();
    save(&store, 2).unwrap();
    let [first, second] = [1, 2].map(|step| store.open_step(Step(step)).unwrap());
    let changed =
        ["../sly/name", "model.bias", "model.weight", "optimizer.step"].map(|n| (n.to_owned(), Verdict::Changed));
    let mut expected = changed.to_vec();
    expected.insert(1, ("empty".to_owned(), Verdict::Equal));
    assert_eq!(verdicts(&first, &second), expected);
    assert!(verdicts(&first, &first).iter().all(|(_, verdict)| *verdict == Verdict::Equal));
    assert!(!first.is_equal_to(&second, "model.weight").unwrap());
    assert!(first.is_equal_to(&second, "empty").unwrap());
    assert!(matches!(first.is_equal_to(&second, "none"), Err(Error::InvalidTensor { .. })));
}

#[test]
fn tensors_that_were_cut_otherwise_are_compared_by_their_bytes() {
    let folder = tempfile::tempdir().unwrap();
    let cuts = [&ROWS[..], &COLUMNS, &GRID];
    let saved = |index: usize| {
        let store = folder.path().join(index.to_string());
        save_parts(&store, cuts[index], 3).into_iter().for_each(|outcome| drop(outcome.unwrap()));
        open(&store, Options::reader()).open_step(Step(3)).unwrap()
    };
    let snapshots = [saved(0), saved(1), saved(2)];
    for before in &snapshots {
        for after in &snapshots {
            let is_same = std::ptr::eq(before, after);
            let weight = if is_same { Verdict::Equal } else { Verdict::Recut };
            assert_eq!(verdicts(before, after), [("bias".to_owned(), Verdict::Equal), ("weight".to_owned(), weight)]);
            assert!(before.is_equal_to(after, "weight").unwrap());
        }
    }
}

/// Proves A-6 for comparisons: what differs only because it is damaged is said to be that.
#[test]
fn damage_is_not_taken_for_a_change() {
    let folder = tempfile::tempdir().unwrap();
    let [good, bad] = ["good", "bad"].map(|name| folder.path().join(name));
    save_parts(&good, &ROWS, 3).into_iter().for_each(|outcome| drop(outcome.unwrap()));
    save_parts(&bad, &COLUMNS, 3).into_iter().for_each(|outcome| drop(outcome.unwrap()));
    let shard = files(&bad).into_iter().rfind(|path| path.extension().is_some_and(|e| e == "safetensors")).unwrap();
    let mut bytes = std::fs::read(&shard).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    std::fs::write(&shard, bytes).unwrap();
    let [good, bad] = [&good, &bad].map(|store| open(store, Options::reader()).open_step(Step(3)).unwrap());
    for (one, other) in [(&good, &bad), (&bad, &good)] {
        let error = one.is_equal_to(other, "weight").unwrap_err();
        assert!(matches!(error, Error::Corrupt { tensor: Some(_), flaw: Flaw::Hash, .. }), "{error:?}");
    }
}
