//! Who reads while a writer prunes and replaces is told of damage only where there is some.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use gangline_storage::{Error, Options, Step};

use crate::{open, save};

/// How long reader and writer run against each other.
const TIME: Duration = Duration::from_millis(1_500);

#[test]
fn a_reader_of_what_is_pruned_or_replaced_meanwhile_is_told_that_it_is_gone_and_never_that_it_is_damaged() {
    let place = std::path::Path::new("/dev/shm");
    let folder = if place.is_dir() { tempfile::tempdir_in(place) } else { tempfile::tempdir() }.unwrap();
    let is_over = AtomicBool::new(false);
    let (mut reads, mut gone) = (0, 0);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let store = open(folder.path(), Options { keep: std::num::NonZeroUsize::new(1), ..Options::default() });
            let started = Instant::now();
            for step in 0.. {
                // Each step twice: the second save replaces the first.
                save(&store, step / 2).unwrap();
                if started.elapsed() > TIME {
                    break;
                }
            }
            is_over.store(true, Ordering::SeqCst);
        });
        let reader = loop {
            if let Ok(reader) = gangline_storage::Store::open(folder.path(), Options::reader()) {
                break reader;
            }
        };
        while !is_over.load(Ordering::SeqCst) {
            for Step(step) in reader.line().unwrap() {
                match (reader.load(Step(step)), reader.verify(Step(step))) {
                    (Err(Error::NotFound { .. }), _) | (_, Err(Error::NotFound { .. })) => gone += 1,
                    (Ok(_), Ok(report)) => assert!(report.is_good(), "{report:?}"),
                    (loaded, verified) => panic!("{:?} {verified:?}", loaded.err()),
                }
                reads += 1;
            }
            assert!(reader.latest().unwrap().skipped.is_empty());
        }
    });
    assert!(reads > 10 && gone > 0, "{reads} reads, {gone} of what had gone: too few to tell");
}
