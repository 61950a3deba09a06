//! A disk that is really full: batches are refused, nothing that is stored is harmed, and it goes on when there is room.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::{BEGIN, losses, numbers, values};
use crate::series::error::Error;
use crate::series::head::Limits;
use crate::series::merge::Keep;
use crate::series::store::Store;

/// A file system of its own size, unmounted at the end.
struct SmallDisk(PathBuf);

impl SmallDisk {
    /// None if mounting isn't permitted here.
    fn mount(path: &Path) -> Option<SmallDisk> {
        let mounted =
            Command::new("mount").args(["-t", "tmpfs", "-o", "size=400k,mode=700", "tmpfs"]).arg(path).output();
        mounted.is_ok_and(|output| output.status.success()).then(|| SmallDisk(path.to_owned()))
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.0).output();
    }
}

/// Takes what is left of the disk.
fn fill(folder: &Path) {
    let mut rest = fs::File::create(folder.join("rest")).expect("an entry of a folder takes no room");
    while rest.write_all(&[0; 4_096]).is_ok() {}
}

fn empty(folder: &Path) {
    for name in ["filler", "rest"] {
        // Not both are there.
        let _ = fs::remove_file(folder.join(name));
    }
}

#[test]
fn a_full_disk_refuses_batches_and_loses_nothing_that_was_acknowledged() {
    let folder = tempfile::tempdir().expect("a folder");
    let Some(_disk) = SmallDisk::mount(folder.path()) else {
        println!("skipped: mounting a tmpfs is not permitted here");
        return;
    };
    let limits = Limits { head_points_max: 3_000, ..Limits::default() };
    let open = || Store::open(folder.path(), limits, Keep::default(), BEGIN).expect("a store");
    let mut store = open();
    fs::write(folder.path().join("filler"), vec![0; 300 << 10]).expect("there is room");
    let mut stored = 0;
    let refused = loop {
        match store.take(&[losses(1, stored, 500)], BEGIN).remove(0) {
            Ok(taken) => stored = taken.next,
            Err(error) => break error,
        }
        assert!(stored < 100_000, "the disk is never full");
    };
    assert!(
        matches!(&refused, Error::Io { source, .. } if source.kind() == std::io::ErrorKind::StorageFull),
        "{refused:?}"
    );
    fill(folder.path());
    assert!(stored > 0 && store.flush().is_err(), "a segment has no room either");
    let acknowledged = numbers(0..u32::try_from(stored).expect("small"));
    assert_eq!(values(&store, 1), acknowledged, "what is stored can be read");
    assert_eq!(values(&open(), 1), acknowledged, "and outlives a crash on the full disk");

    let mut store = open();
    assert!(store.take(&[losses(1, stored, 500)], BEGIN).remove(0).is_err());
    empty(folder.path());
    while stored < 3_000 {
        stored = store.take(&[losses(1, stored, 500)], BEGIN).remove(0).expect("there is room").next;
    }
    // Full memory is refused only once a segment couldn't be written.
    fill(folder.path());
    assert!(store.flush().is_err());
    let refused = store.take(&[losses(1, stored, 500)], BEGIN).remove(0).expect_err("memory is full");
    assert!(matches!(refused, Error::Full { .. }) && refused.is_passing(), "{refused:?}");
    empty(folder.path());
    store.flush().expect("a segment");
    stored = store.take(&[losses(1, stored, 500)], BEGIN).remove(0).expect("there is room").next;
    assert_eq!(values(&store, 1), numbers(0..u32::try_from(stored).expect("small")));
    assert_eq!(values(&open(), 1), numbers(0..u32::try_from(stored).expect("small")));
}
