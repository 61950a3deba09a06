//! Copies of a store that is written to and merged meanwhile.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use super::{BEGIN, losses, numbers, open, take, values};
use crate::series::copy::{copy, is_of_store};

/// Whatever the store does meanwhile, each copy has the rows from the first on without gaps, and all that were acknowledged before.
#[test]
fn a_copy_of_a_running_store_has_all_that_was_acknowledged_before() {
    let folder = tempfile::tempdir().expect("a folder");
    let (from, copies) = (folder.path().join("series"), folder.path().join("copies"));
    let mut store = open(&from);
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let copying = scope.spawn(|| {
            let mut made = Vec::new();
            while !is_over.load(Ordering::Relaxed) || made.is_empty() {
                let to = copies.join(made.len().to_string());
                made.push((copy(&from, &to).expect("there is room"), to));
            }
            made
        });
        for batch in 0..100 {
            take(&mut store, losses(1, batch * 10, 10));
            if batch % 2 == 0 {
                store.flush().expect("there is room");
            }
            while store.shared().merge(BEGIN).expect("there is room") {}
        }
        let last = copies.join("last");
        let names = copy(&from, &last).expect("there is room");
        assert_eq!(values(&open(&last), 1), numbers(0..1_000));
        assert!(names.iter().all(|name| is_of_store(name)), "{names:?}");
        is_over.store(true, Ordering::Relaxed);
        let mut before = 0;
        for (names, to) in copying.join().expect("nobody panicked") {
            assert!(names.iter().all(|name| to.join(name).exists()), "{names:?}");
            let found = values(&open(&to), 1);
            assert_eq!(found, numbers(0..u32::try_from(found.len()).expect("few")));
            assert!(found.len() >= before, "{} after {before}", found.len());
            before = found.len();
        }
    });
}

#[test]
fn no_store_is_no_file_and_only_its_own_names_are_its() {
    let folder = tempfile::tempdir().expect("a folder");
    let nowhere = folder.path().join("nowhere");
    assert_eq!(copy(&nowhere, &folder.path().join("to")).expect("nothing to do"), Vec::<String>::new());
    assert!(["segment-0000000001", "log-0000000012"].iter().all(|name| is_of_store(name)));
    let others = [
        "segment-1",
        "log-x",
        "log-0000000012.new",
        "../log-0000000012",
        "segment-",
        Path::new("a/b").to_str().expect("text"),
    ];
    assert!(others.iter().all(|name| !is_of_store(name)));
}
