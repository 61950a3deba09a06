//! Crashes and damage: what was acknowledged is there, and what is lost is counted.

use std::fs::{self, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};

use super::{BEGIN, all, ask, losses, numbers, open, take, values};
use crate::series::error::Error;
use crate::series::head::Limits;
use crate::series::merge::Keep;
use crate::series::segment::MAGIC;
use crate::series::store::{Damage, Store};

fn files(folder: &Path, prefix: &str) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).expect("a folder").map(|entry| entry.expect("an entry").path());
    let has = |path: &PathBuf| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(prefix));
    let mut found: Vec<PathBuf> = entries.filter(has).collect();
    found.sort();
    found
}

fn damage(store: &Store) -> Damage {
    *store.shared().damage.read().expect("nobody panicked")
}

fn flip(path: &Path, place: usize) {
    let mut bytes = fs::read(path).expect("a file");
    bytes[place] ^= 0x10;
    fs::write(path, bytes).expect("a file");
}

/// A log that was cut anywhere keeps the records before the cut, and the next rows follow on.
#[test]
fn a_torn_tail_costs_only_the_record_that_it_tore() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut store = open(folder.path());
    let ends: Vec<u64> = (0..5)
        .map(|batch| {
            take(&mut store, losses(1, batch * 10, 10));
            fs::metadata(&files(folder.path(), "log-")[0]).expect("a log").len()
        })
        .collect();
    let whole = fs::read(&files(folder.path(), "log-")[0]).expect("a log");
    drop(store);
    let edges = ends.iter().flat_map(|end| [end - 1, *end]).map(|end| usize::try_from(end).expect("small"));
    for cut in (0..whole.len()).step_by(29).chain(edges) {
        let other = tempfile::tempdir().expect("a folder");
        fs::write(other.path().join("log-0000000001"), &whole[..cut]).expect("a log");
        let mut store = open(other.path());
        let records =
            u32::try_from(ends.iter().filter(|end| **end <= u64::try_from(cut).expect("small")).count()).expect("few");
        assert_eq!(values(&store, 1), numbers(0..records * 10), "cut at {cut}");
        let rest = u64::try_from(cut).expect("small")
            - records.checked_sub(1).map_or(0, |last| ends[usize::try_from(last).expect("few")]);
        assert_eq!(damage(&store), Damage { torn_bytes: rest, ..Damage::default() });
        take(&mut store, losses(1, u64::from(records) * 10, 10));
        drop(store);
        assert_eq!(values(&open(other.path()), 1), numbers(0..records * 10 + 10), "cut at {cut}, and on");
    }
}

#[test]
fn a_damaged_record_is_skipped_and_counted() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut store = open(folder.path());
    (0..3).for_each(|batch| _ = take(&mut store, losses(1, batch * 10, 10)));
    drop(store);
    let log = &files(folder.path(), "log-")[0];
    let middle = usize::try_from(fs::metadata(log).expect("a log").len()).expect("small") / 2;
    flip(log, middle);
    let store = open(folder.path());
    assert_eq!(values(&store, 1), [numbers(0..10), numbers(20..30)].concat());
    assert_eq!(damage(&store), Damage { records: 1, ..Damage::default() });
}

/// Damage anywhere in a segment is noticed, costs what it hit, and is counted.
#[test]
fn damage_in_a_segment_is_noticed_wherever_it_is() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut store = open(folder.path());
    take(&mut store, losses(1, 0, 100));
    store.flush().expect("a segment");
    drop(store);
    let segment = files(folder.path(), "segment-").remove(0);
    let whole = fs::read(&segment).expect("a segment");
    // From the end of the version on: a newer version is another test.
    for place in (0..MAGIC.len()).step_by(3).chain((12..whole.len()).step_by(7)) {
        fs::write(&segment, &whole).expect("a segment");
        flip(&segment, place);
        let store = open(folder.path());
        let answer = ask(&store, &all(1));
        let lost = damage(&store).segments + answer.damaged_files;
        let unreadable: u64 = answer.curves.iter().map(|curve| curve.unreadable).sum();
        let points: u64 = answer.curves.iter().flat_map(|curve| &curve.buckets).map(super::super::Bucket::points).sum();
        assert!(points == 100 || points == 0 && (lost > 0 || unreadable > 0), "byte {place}: {answer:?}");
        if points == 100 {
            assert_eq!(values(&store, 1), numbers(0..100), "byte {place} is of a coarser resolution");
        }
    }
    fs::write(&segment, &whole[..whole.len() - 1]).expect("a segment");
    assert_eq!(damage(&open(folder.path())).segments, 1);
}

#[test]
fn a_newer_releases_segment_is_refused_and_kept() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut store = open(folder.path());
    take(&mut store, losses(1, 0, 100));
    store.flush().expect("a segment");
    drop(store);
    let segment = files(folder.path(), "segment-").remove(0);
    let mut bytes = fs::read(&segment).expect("a segment");
    bytes[8] = 2;
    fs::write(&segment, &bytes).expect("a segment");
    let refused = Store::open(folder.path(), Limits::default(), Keep::default(), BEGIN).expect_err("it is newer");
    assert!(matches!(refused, Error::Newer { found: 2, known: 1, .. }), "{refused}");
    assert_eq!(fs::read(&segment).expect("a segment"), bytes);
}

/// A crash between any two steps of writing a segment or merging leaves each point once.
#[test]
fn what_a_crash_leaves_of_a_flush_or_a_merge_counts_once() {
    let folder = tempfile::tempdir().expect("a folder");
    let before = tempfile::tempdir().expect("a folder");
    let keep = |prefix| {
        files(folder.path(), prefix).iter().for_each(|path| {
            fs::copy(path, before.path().join(path.file_name().expect("a name"))).expect("a copy");
        })
    };
    let mut store = open(folder.path());
    for part in 0..8 {
        take(&mut store, losses(1, part * 10, 10));
        keep("log-");
        store.flush().expect("a segment");
    }
    keep("segment-");
    assert!(store.shared().merge(BEGIN).expect("a merge"));
    assert_eq!(files(folder.path(), "segment-").len(), 1);
    assert!(files(folder.path(), "log-").is_empty());
    drop(store);
    // All that was ever there comes back: logs of segments, and segments that were merged.
    for path in fs::read_dir(before.path()).expect("a folder").map(|entry| entry.expect("an entry").path()) {
        fs::copy(&path, folder.path().join(path.file_name().expect("a name"))).expect("a copy");
    }
    let mut unfinished =
        OpenOptions::new().create(true).append(true).open(folder.path().join("segment-0000000099.unfinished"));
    unfinished.as_mut().expect("a file").write_all(b"GLSER").expect("a file");
    let store = open(folder.path());
    assert_eq!(values(&store, 1), numbers(0..80));
    assert_eq!(fs::read_dir(folder.path()).expect("a folder").count(), 1, "what is replaced is gone");
    assert_eq!(damage(&store), Damage::default());
}
