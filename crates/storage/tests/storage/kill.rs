//! The writer killed, or the disk failing, at each change to the disk in turn.

use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use gangline_storage::{DiskAct, DiskHook, Error, Options, Step};

use crate::{names, offered, open, save};

fn with_hook(hook: DiskHook) -> Options {
    Options { disk_hook: Some(hook), ..Options::default() }
}

/// From the `count`th change on nothing happens any more, as if the process had been killed before it.
fn killed_after(count: usize) -> DiskHook {
    let made = AtomicUsize::new(0);
    Arc::new(
        move |_, _| {
            if made.fetch_add(1, Ordering::SeqCst) < count { Ok(()) } else { Err(io::Error::other("killed")) }
        },
    )
}

/// Fails each act of this kind that `is_chosen`, once.
fn failing_once(kind: DiskAct, errno: i32, part: &'static str) -> DiskHook {
    let is_spent = Mutex::new(false);
    Arc::new(move |act, path: &Path| {
        let mut is_spent = is_spent.lock().unwrap();
        if act == kind && !*is_spent && path.to_string_lossy().contains(part) {
            *is_spent = true;
            return Err(io::Error::from_raw_os_error(errno));
        }
        Ok(())
    })
}

const EIO: i32 = 5;
const ENOSPC: i32 = 28;

/// Kills a save of step `second` before each of its changes in turn; the store holds a checkpoint of step 1 already.
/// Returns the number of changes that a whole save makes.
fn kill_everywhere(second: u64) -> usize {
    for count in 0..1_000 {
        let folder = tempfile::tempdir().unwrap();
        save(&open(folder.path(), Options::default()), 1).unwrap();
        let outcome = open_and_save(folder.path(), killed_after(count), second);
        let after = offered(folder.path());
        if outcome.is_ok() {
            assert_eq!(after, Some(second));
            return count;
        }
        assert!(after == Some(1) || after == Some(second), "killed before change {count}: {after:?} is offered");
        // The next process carries on as if nothing had been.
        let next = save(&open(folder.path(), Options::default()), second + 1).unwrap();
        assert!(next.retention.is_ok());
        assert_eq!(offered(folder.path()), Some(second + 1), "after a kill before change {count}");
        let leftovers: Vec<_> = names(folder.path()).into_iter().filter(|name| name.starts_with('.')).collect();
        assert_eq!(leftovers, Vec::<String>::new(), "after a kill before change {count}");
    }
    panic!("a save makes fewer than a thousand changes");
}

fn open_and_save(folder: &Path, hook: DiskHook, step: u64) -> Result<(), Error> {
    let store = gangline_storage::Store::open(folder, with_hook(hook))?;
    save(&store, step)?.retention.map(drop)
}

/// Proves A-6.
#[test]
fn a_writer_killed_at_any_point_leaves_the_last_good_checkpoint_or_the_new_one() {
    assert!(kill_everywhere(2) >= 12, "create, shard, manifest, final name: each with its fsyncs");
}

/// Proves A-6.
#[test]
fn a_writer_killed_while_replacing_a_step_leaves_one_good_checkpoint_of_it() {
    assert!(kill_everywhere(1) >= 12);
}

/// Proves A-6: what is renamed has been synced before, and the folder is synced after.
#[test]
fn changes_are_made_in_the_order_that_survives_a_power_cut() {
    let folder = tempfile::tempdir().unwrap();
    let log = Arc::new(Mutex::new(Vec::new()));
    let hook: DiskHook = {
        let log = Arc::clone(&log);
        Arc::new(move |act, path: &Path| {
            log.lock().unwrap().push((act, path.file_name().unwrap().to_string_lossy().into_owned()));
            Ok(())
        })
    };
    let store = open(folder.path(), with_hook(hook));
    log.lock().unwrap().clear();
    save(&store, 4).unwrap();
    let root = folder.path().file_name().unwrap().to_string_lossy();
    let acts: Vec<String> = log.lock().unwrap().iter().map(|(act, name)| format!("{act:?} {name}")).collect();
    let file = |name: &str| {
        ["CreateFile .aside-", "Write .aside-", "SyncFile .aside-", "Rename "].map(|act| format!("{act}{name}"))
    };
    let mut expected = vec!["CreateFolder .partial-0000000004-by-0-of-1".to_owned()];
    expected.extend(file("shard-00000-of-00001.safetensors"));
    expected.push("SyncFolder .partial-0000000004-by-0-of-1".to_owned());
    expected.extend(file("manifest.json"));
    expected.extend(vec!["SyncFolder .partial-0000000004-by-0-of-1".to_owned(); 2]);
    expected.extend(["Rename step-0000000004".to_owned(), format!("SyncFolder {root}")]);
    expected.push("Remove .partial-0000000004-by-0-of-1".to_owned());
    expected.extend(file("branch.json"));
    expected.push("SyncFolder .gangline".to_owned());
    let mut once = acts.clone();
    once.dedup_by(|a, b| a == b && a.starts_with("Write"));
    assert_eq!(once, expected);
}

/// Proves A-7.
#[test]
fn after_any_failed_fsync_the_store_is_poisoned_and_says_so() {
    let parts = [
        (DiskAct::SyncFile, "safetensors"),
        (DiskAct::SyncFile, "manifest"),
        (DiskAct::SyncFolder, ".partial"),
        (DiskAct::SyncFolder, "ckpt"),
    ];
    for (kind, part) in parts {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("ckpt");
        save(&open(&path, Options::default()), 1).unwrap();
        let store = open(&path, with_hook(failing_once(kind, EIO, part)));
        let failed = save(&store, 2);
        assert!(matches!(failed, Err(Error::Io { .. })), "{part}: {failed:?}");
        for step in 3..5 {
            let refused = save(&store, step);
            assert!(matches!(refused, Err(Error::Poisoned { .. })), "{part}: {refused:?}");
        }
        assert!(offered(&path) >= Some(1), "{part}: the earlier checkpoint can still be read");
        let fresh = open(&path, Options::default());
        save(&fresh, 5).unwrap();
        assert_eq!(offered(&path), Some(5));
    }
}

#[test]
fn a_full_disk_fails_one_save_leaves_nothing_behind_and_does_not_poison() {
    for (kind, part) in [
        (DiskAct::CreateFolder, ".partial"),
        (DiskAct::CreateFile, "safetensors"),
        (DiskAct::Write, "safetensors"),
        (DiskAct::Write, "manifest"),
        (DiskAct::Rename, "step-"),
    ] {
        let folder = tempfile::tempdir().unwrap();
        save(&open(folder.path(), Options::default()), 1).unwrap();
        let store = open(folder.path(), with_hook(failing_once(kind, ENOSPC, part)));
        let failed = save(&store, 2);
        assert!(matches!(failed, Err(Error::NoSpace { .. })), "{part}: {failed:?}");
        assert_eq!(offered(folder.path()), Some(1), "{part}");
        assert_eq!(names(folder.path()).len(), 1, "{part}: space is given back");
        save(&store, 3).unwrap();
        assert_eq!(offered(folder.path()), Some(3), "{part}");
    }
}

#[test]
fn a_failing_retention_does_not_fail_the_save() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path(), with_hook(failing_once(DiskAct::Remove, EIO, ".deleted")));
    for step in 1..=2 {
        save(&store, step).unwrap();
    }
    assert!(save(&store, 3).unwrap().retention.is_err());
    let retention = save(&store, 4).unwrap().retention.unwrap();
    assert_eq!(retention.removed, [Step(1), Step(2)]);
}
