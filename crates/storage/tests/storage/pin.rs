//! What is pinned stays, and takes no room of its own while the checkpoint is there.

use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use gangline_storage::{DiskAct, Error, Options, Pinned, Step, Store};

use crate::{names, offered, open, save};

/// Pins the checkpoint of a step, whatever it holds.
fn pin(store: &Store, step: u64) -> Result<Pinned, Error> {
    store.pin(Step(step), store.open_step(Step(step))?.info().content_hash)
}

#[test]
fn what_is_pinned_outlives_retention_and_a_save_of_the_same_step() {
    let folder = tempfile::tempdir().unwrap();
    let writer = open(folder.path(), Options { keep: None, ..Options::default() });
    save(&writer, 1).unwrap();
    save(&writer, 2).unwrap();
    let reader = open(folder.path(), Options::reader());
    let pinned = pin(&reader, 1).unwrap();
    assert_eq!(pinned.folder, pin(&reader, 1).unwrap().folder, "pinning twice is pinning once");
    let shard = "step-0000000001/shard-00000-of-00001.safetensors";
    let inode = |path: &Path| std::fs::metadata(path.join(shard)).unwrap().ino();
    assert_eq!(inode(folder.path()), inode(&pinned.folder), "no byte is copied");

    // Training goes back and saves other values under the same step.
    writer.save(Step(1), &[], &<_>::default()).unwrap().wait().unwrap();
    save(&writer, 3).unwrap();
    reader.delete(Step(1)).unwrap();
    assert_eq!(offered(&pinned.folder), Some(1));
    assert!(open(&pinned.folder, Options::reader()).verify(Step(1)).unwrap().is_good());
    assert_eq!(names(folder.path()), ["step-0000000002", "step-0000000003"]);

    reader.unpin(pinned.info.content_hash).unwrap();
    assert!(!pinned.folder.exists());
    reader.unpin(pinned.info.content_hash).unwrap();
}

#[test]
fn a_step_that_was_saved_anew_is_not_pinned_as_what_it_was() {
    let folder = tempfile::tempdir().unwrap();
    let writer = open(folder.path(), Options { keep: None, ..Options::default() });
    save(&writer, 1).unwrap();
    let reader = open(folder.path(), Options::reader());
    let before = reader.open_step(Step(1)).unwrap().info().content_hash;
    writer.save(Step(1), &[], &<_>::default()).unwrap().wait().unwrap();
    let refused = reader.pin(Step(1), before);
    assert!(matches!(refused, Err(Error::NotFound { step: Step(1) })), "{refused:?}");
}

#[test]
fn what_is_not_there_is_not_pinned() {
    let folder = tempfile::tempdir().unwrap();
    save(&open(folder.path(), Options::default()), 1).unwrap();
    let refused = pin(&open(folder.path(), Options::reader()), 7);
    assert!(matches!(refused, Err(Error::NotFound { step: Step(7) })), "{refused:?}");
    std::fs::remove_file(folder.path().join("step-0000000001/shard-00000-of-00001.safetensors")).unwrap();
    let refused = pin(&open(folder.path(), Options::reader()), 1);
    assert!(matches!(refused, Err(Error::Corrupt { .. })), "{refused:?}");
}

/// Proves A-6.
#[test]
fn a_pin_killed_at_any_point_is_whole_or_not_there_and_can_be_made_again() {
    for count in 0..100 {
        let folder = tempfile::tempdir().unwrap();
        save(&open(folder.path(), Options::default()), 1).unwrap();
        let made = AtomicUsize::new(0);
        let hook = move |_: DiskAct, _: &Path| {
            if made.fetch_add(1, Ordering::SeqCst) < count { Ok(()) } else { Err(io::Error::other("killed")) }
        };
        let killed = open(folder.path(), Options { disk_hook: Some(Arc::new(hook)), ..Options::reader() });
        let outcome = pin(&killed, 1);
        let pins = folder.path().join(".gangline/pinned");
        let is_final = |name: &String| !name.starts_with('.');
        let found: Vec<String> =
            std::fs::read_dir(&pins).map(|_| names(&pins).into_iter().filter(is_final).collect()).unwrap_or_default();
        for name in &found {
            assert_eq!(offered(&pins.join(name)), Some(1), "after a kill before change {count}");
        }
        if outcome.is_ok() {
            assert!(count >= 6, "folders, links and fsyncs");
            return;
        }
        let again = pin(&open(folder.path(), Options::reader()), 1).unwrap();
        assert_eq!(offered(&again.folder), Some(1));
        // If the kill came after the pin had its name, what was left of its build is harmless.
        assert_eq!(found.len() + names(&pins).len(), if found.is_empty() { 1 } else { 2 }, "before change {count}");
    }
    panic!("a pin makes fewer than a hundred changes");
}
