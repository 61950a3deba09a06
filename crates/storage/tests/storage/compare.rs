//! What became of tensors between two checkpoints, by their hashes and, where those say nothing, by their bytes.

use gangline_storage::{DataType, Error, Flaw, Options, PartOf, Role, Snapshot, Step, TensorView, Verdict, compare};

use crate::sharded::{COLUMNS, GRID, ROWS, save_parts};
use crate::{files, note, open, save};

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

/// Saves one tensor of floats, cut after so many of them into two ranks' parts.
fn save_floats(folder: &std::path::Path, step: u64, floats: &[f32], at: usize) {
    let rank = |rank: u32, (from, floats): (usize, &[f32]), whole: usize| {
        let role = Role::Writer { rank, world_size: 2, tag: 1 };
        let store = open(folder, Options { role, keep: None, ..Options::default() });
        let data: Vec<u8> = floats.iter().flat_map(|float| float.to_le_bytes()).collect();
        let part_of = Some(PartOf { shape: &[whole], offsets: &[from] });
        let shape = [floats.len()];
        let view = TensorView { name: "w", data_type: DataType::F32, shape: &shape, data: &data, part_of };
        store.save(Step(step), &[view], &note()).unwrap().wait().unwrap();
    };
    std::thread::scope(|scope| {
        scope.spawn(|| rank(0, (0, &floats[..at]), floats.len()));
        scope.spawn(|| rank(1, (at, &floats[at..]), floats.len()));
    });
}

#[test]
fn what_has_changed_is_measured_however_it_was_cut() {
    let folder = tempfile::tempdir().unwrap();
    // More than one block and more than one segment.
    let mut floats = vec![2_f32; 5 << 20];
    (floats[3], floats[4]) = (f32::NAN, f32::INFINITY);
    save_floats(folder.path(), 1, &floats, 1_000);
    floats[0] = 5.0;
    floats[1] = -2.0;
    floats[2] = f32::NEG_INFINITY;
    floats[4_000_000] = f32::from_bits(2_f32.to_bits() + 1);
    save_floats(folder.path(), 2, &floats, 4_999_999);
    let store = open(folder.path(), Options::reader());
    let [before, after] = [1, 2].map(|step| store.open_step(Step(step)).unwrap());
    let measured = before.measure(&after, &["w"]).unwrap()[0].unwrap();
    assert_eq!((measured.elements, measured.changed, measured.max_abs), (5 << 20, 4, 4.0));
    assert_eq!((measured.nan_before, measured.nan_after), (1, 1));
    assert_eq!((measured.infinite_before, measured.infinite_after), (1, 2));
    // 3 and 4 squared, among all but the three that are infinite or no number on a side.
    let finite = f64::from((5 << 20) - 3);
    assert!((measured.rms().unwrap() - (25.0 / finite).sqrt()).abs() < 1e-12, "{measured:?}");
    assert!((measured.relative_l2().unwrap() - (25.0 / (4.0 * finite)).sqrt()).abs() < 1e-12, "{measured:?}");
    assert_eq!(before.measure(&before, &["w"]).unwrap()[0].unwrap().changed, 0);
    assert!(matches!(before.measure(&after, &["none"]), Err(Error::InvalidTensor { .. })));

    let damaged =
        files(folder.path()).into_iter().rfind(|path| path.ends_with("shard-00000-of-00002.safetensors")).unwrap();
    let mut bytes = std::fs::read(&damaged).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    std::fs::write(&damaged, bytes).unwrap();
    for (one, other) in [(&before, &after), (&after, &before)] {
        let error = one.measure(other, &["w"]).unwrap_err();
        assert!(matches!(error, Error::Corrupt { tensor: Some(_), flaw: Flaw::Hash, .. }), "{error:?}");
    }
}
