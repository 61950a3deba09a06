//! Checkpoints that go to an archive in the background.

use std::num::{NonZeroU64, NonZeroUsize};
use std::path::Path;
use std::time::{Duration, Instant};

use gangline_storage::archive::{self, Archive};
use gangline_storage::{Error, Options, PrunePolicy, Step, Tier};

use crate::{offered, open, save};

fn to(address: &Path, options: archive::Options) -> Options {
    let tier = Tier { address: address.display().to_string(), options };
    Options { archive: Some(tier), keep: NonZeroUsize::new(1), ..Options::default() }
}

fn archived(address: &Path) -> Vec<Step> {
    let archive = Archive::open(&address.display().to_string(), &archive::Options::default()).unwrap();
    let listed = archive.list().unwrap();
    assert!(listed.iter().all(|one| archive.verify(one.step).unwrap().is_good()));
    listed.into_iter().map(|one| one.step).collect()
}

#[test]
fn the_newest_checkpoint_is_in_the_archive_when_the_store_is_closed() {
    let folder = tempfile::tempdir().unwrap();
    let (checkpoints, address) = (folder.path().join("checkpoints"), folder.path().join("archive"));
    let store = open(&checkpoints, to(&address, archive::Options::default()));
    save(&store, 1).unwrap();
    assert_eq!(store.wait_archived().unwrap().unwrap().step, Step(1));
    assert!(store.archived().is_none(), "it is told once");
    for step in 2..=6 {
        save(&store, step).unwrap();
    }
    drop(store);
    let steps = archived(&address);
    assert_eq!((steps.first(), steps.last()), (Some(&Step(1)), Some(&Step(6))));
    assert_eq!(offered(&checkpoints), Some(6));
    let left = crate::names(&checkpoints).len();
    assert!(left <= 2, "beside what is kept, at most what was under way: {left}");
}

/// Proves A-6: what is being read for the archive is not removed under it.
#[test]
fn retention_leaves_what_is_under_way_and_the_newest_goes_next() {
    let folder = tempfile::tempdir().unwrap();
    let (checkpoints, address) = (folder.path().join("checkpoints"), folder.path().join("archive"));
    // A catalog's bytes take about a second after a pack's.
    let slow = archive::Options { bytes_per_second_max: NonZeroU64::new(2_500), ..archive::Options::default() };
    let store = open(&checkpoints, to(&address, slow));
    save(&store, 1).unwrap();
    let first = checkpoints.join("step-0000000001");
    let packs = address.join("packs");
    let deadline = Instant::now() + Duration::from_secs(20);
    while !packs.is_dir() && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(1));
    }
    for step in 2..=4 {
        save(&store, step).unwrap();
        assert!(first.is_dir(), "it is under way");
    }
    assert_eq!(
        store.prune(&PrunePolicy::Keep { last: NonZeroUsize::MIN, rules: Vec::new() }, true).unwrap().removed,
        []
    );
    drop(store);
    assert_eq!(archived(&address), [Step(1), Step(4)], "those between are passed over");
}

#[test]
fn what_a_process_left_the_next_takes_up_and_an_archive_out_of_reach_hurts_no_save() {
    let folder = tempfile::tempdir().unwrap();
    let (checkpoints, address) = (folder.path().join("checkpoints"), folder.path().join("archive"));
    save(&open(&checkpoints, Options::default()), 7).unwrap();
    std::fs::write(&address, "a file is no folder").unwrap();
    let store = open(&checkpoints, to(&address, archive::Options::default()));
    assert!(matches!(store.wait_archived(), Some(Err(archive::Error::Remote { .. }))));
    save(&store, 8).unwrap();
    assert!(store.wait_archived().unwrap().is_err());
    std::fs::remove_file(&address).unwrap();
    drop(store);
    let store = open(&checkpoints, to(&address, archive::Options::default()));
    assert_eq!(store.wait_archived().unwrap().unwrap().step, Step(8));
    drop(store);
    assert_eq!(archived(&address), [Step(8)]);
    let nowhere = Options {
        archive: Some(Tier { address: "ftp://x".to_owned(), options: archive::Options::default() }),
        ..Options::default()
    };
    let refused = gangline_storage::Store::open(&checkpoints, nowhere).err();
    assert!(matches!(refused, Some(Error::Archive { .. })), "{refused:?}");
}
