//! Tests of commits, snapshots, limits, the lock, and the state after a failure.

use std::fs;
use std::path::PathBuf;

use gangline_base::{Bytes, JobId};

use super::super::{Entry, Error, Limits, Options, Sequence};
use super::*;

/// Proves A-3 for the journal: numbers, times, bodies and order are those of the commits.
#[test]
fn committed_records_come_back_in_order_after_a_crash() {
    let folder = folder();
    let (mut journal, _) = open(folder.path()).expect("a new journal opens");
    assert_eq!(commit(&mut journal, &["a", "b"]).expect("there is room"), Sequence(2));
    assert_eq!(commit(&mut journal, &[]).expect("a batch may be empty"), Sequence(2));
    assert_eq!(commit(&mut journal, &["c"]).expect("there is room"), Sequence(3));
    let copy = crashed_copy(folder.path());
    let (again, recovered) = open(copy.path()).expect("a crash leaves a sound journal");
    assert_eq!(bodies(&recovered), "a b c");
    assert_eq!(recovered.records[2].sequence, Sequence(3));
    assert_eq!(recovered.records[2].at, entry("c").at);
    assert_eq!((recovered.warnings.len(), again.last()), (0, Sequence(3)));
}

#[test]
fn read_models_become_durable_with_their_records_or_not_at_all() {
    let folder = folder();
    let (mut journal, _) = open(folder.path()).expect("a new journal opens");
    let records = [entry("a")];
    let mut writes = |transaction: &rusqlite::Transaction<'_>| {
        transaction.execute_batch("CREATE TABLE probe (id INTEGER PRIMARY KEY) STRICT; INSERT INTO probe VALUES (7)")
    };
    journal.commit_writing(&records, JobId(0), &mut writes).expect("the statements are sound");
    let mut fails = |transaction: &rusqlite::Transaction<'_>| {
        transaction.execute("INSERT INTO probe VALUES (8)", [])?;
        transaction.execute("INSERT INTO probe VALUES (7)", []).map(|_| ())
    };
    let refused = journal.commit_writing(&records, JobId(0), &mut fails);
    assert_eq!(refused.map_err(|error| error.code()), Err("G0208"));
    let rows: (i64, i64) = journal
        .reader()
        .read(|transaction| {
            transaction.query_row("SELECT sum(id), (SELECT count(*) FROM records) FROM probe", [], |row| {
                Ok((row.get(0)?, row.get(1)?))
            })
        })
        .expect("reads work");
    assert_eq!(rows, (7, 1));
}

/// Proves A-7, with a full disk as the failure.
#[test]
fn a_full_disk_poisons_the_journal_and_reads_go_on() {
    let folder = folder();
    let small = Options { bytes_max: Bytes(200 << 10), ..Options::default() };
    let (mut journal, _) = Journal::open(folder.path(), small).expect("a new journal fits");
    let body = "x".repeat(10_000);
    let mut committed = Sequence::ZERO;
    let full = loop {
        match commit(&mut journal, &[&body]) {
            Ok(last) => committed = last,
            Err(error) => break error,
        }
    };
    assert!(matches!(full, Error::DiskFull { .. }), "{full:?}");
    assert!(committed > Sequence(5), "only {committed} records fitted");
    let again = commit(&mut journal, &["small enough to fit"]).expect_err("a poisoned journal refuses");
    assert!(matches!(&again, Error::Poisoned { cause } if cause.contains("full")), "{again:?}");
    assert!(journal.poison().is_some_and(|cause| cause.contains("no space left")));
    let snapshot = journal.write_snapshot(b"state").expect_err("a poisoned journal refuses");
    assert_eq!(snapshot.code(), "G0207");
    let readable = journal.reader().history(Sequence::ZERO, 1_000).expect("reads go on");
    drop(journal);
    let (mut journal, recovered) = open(folder.path()).expect("what was committed is sound");
    assert_eq!(recovered.records, readable);
    assert_eq!(recovered.records.last().map(|record| record.sequence), Some(committed));
    assert_eq!(commit(&mut journal, &["on"]).expect("there is room again"), committed.next());
}

#[test]
fn a_snapshot_over_the_limit_leaves_the_journal_as_it_was() {
    let folder = folder();
    let (mut journal, _) = open(folder.path()).expect("a new journal opens");
    commit(&mut journal, &["a"]).expect("there is room");
    let size = usize::try_from(Limits::SNAPSHOT.0).expect("usize holds the limit") + 1;
    let refused = journal.write_snapshot(&vec![0; size]).expect_err("it is larger than a snapshot may be");
    assert_eq!(refused.code(), "G0209");
    assert_eq!(commit(&mut journal, &["b"]).expect("there is room"), Sequence(2));
    drop(journal);
    assert_eq!(start(folder.path(), Options::default()), "records a b");
}

#[test]
fn records_over_the_limit_are_refused() {
    let folder = folder();
    let (mut journal, _) = open(folder.path()).expect("a new journal opens");
    let size = usize::try_from(Limits::RECORD.0).expect("usize holds the limit") + 1;
    let records = [Entry { body: vec![0; size], ..entry("") }];
    let refused = journal.commit_writing(&records, JobId(0), &mut |_| Ok(()));
    assert_eq!(
        refused.map_err(|error| error.to_string()),
        Err("record of 4.0 MiB is over the limit of 4.0 MiB".to_owned())
    );
    assert_eq!(commit(&mut journal, &["a"]).map_err(|error| error.code()), Err("G0207"));
}

/// The cost of a start depends on the records since the last snapshot, not on the history.
#[test]
fn a_start_reads_only_what_came_after_the_snapshot() {
    let folder = folder();
    let (mut journal, _) = open(folder.path()).expect("a new journal opens");
    for batch in 0..20 {
        let records = vec![entry("x"); 500];
        journal.commit_writing(&records, JobId(0), &mut |_| Ok(())).expect("there is room");
        if batch % 5 == 0 {
            journal.write_snapshot(b"older state").expect("there is room");
        }
    }
    journal.write_snapshot(b"state").expect("there is room");
    commit(&mut journal, &["a", "b", "c"]).expect("there is room");
    let snapshots = fs::read_dir(folder.path().join("snapshots")).expect("it is there").count();
    let history = journal.reader().history(Sequence::ZERO, 20_000).map(|records| records.len());
    assert_eq!((history.expect("reads go on"), snapshots), (10_003, 2), "history stays, and two snapshots");
    drop(journal);
    assert_eq!(start(folder.path(), Options::default()), "snapshot 10000; records a b c");
}

#[test]
fn a_second_control_plane_on_the_folder_is_refused_until_the_first_lets_go() {
    let folder = folder();
    let (journal, _) = open(folder.path()).expect("a new journal opens");
    let refused = open(folder.path()).expect_err("the folder is held");
    let expected = format!("data folder {} is in use by process {}", folder.path().display(), std::process::id());
    assert_eq!((refused.code(), refused.to_string()), ("G0201", expected));
    drop(journal);
    assert!(open(folder.path()).is_ok());
}

#[test]
fn a_folder_that_cannot_be_made_is_refused_by_name() {
    let folder = folder();
    let file = folder.path().join("file");
    fs::write(&file, b"").expect("the folder is ours");
    let refused = open(&file.join("data")).expect_err("a file is no folder");
    assert_eq!(refused.code(), "G0202");
    assert!(refused.to_string().ends_with("file/data"), "{refused}");
}

#[test]
fn readers_see_only_whole_committed_batches() {
    let folder = folder();
    let (mut journal, _) = open(folder.path()).expect("a new journal opens");
    let reader = journal.reader();
    let seen = |reader: &super::super::Reader| reader.history(Sequence::ZERO, 10).map(|records| records.len()).ok();
    let records = [entry("a"), entry("b")];
    let mut during = None;
    let mut look = |_: &rusqlite::Transaction<'_>| {
        during = seen(&reader);
        Ok(())
    };
    journal.commit_writing(&records, JobId(0), &mut look).expect("there is room");
    assert_eq!((during, seen(&reader)), (Some(0), Some(2)));
    assert!(reader.read(|transaction| transaction.execute("DELETE FROM records", [])).is_err(), "a reader wrote");
}

#[test]
fn history_is_read_in_pages() {
    let folder = folder();
    written(folder.path(), 5);
    let (journal, _) = open(folder.path()).expect("it is sound");
    let reader = journal.reader();
    let page = |after, count| reader.history(Sequence(after), count).map(|records| records.len()).ok();
    assert_eq!(
        (page(0, 2), page(2, 2), page(4, 2), page(5, 2), page(6, 2)),
        (Some(2), Some(2), Some(1), Some(0), None)
    );
}

#[test]
fn every_error_code_has_its_page() {
    let pages = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../docs/errors");
    for number in 201..=209 {
        let page = pages.join(format!("G0{number}.md"));
        let text = fs::read_to_string(&page).unwrap_or_default();
        assert!(text.starts_with(&format!("# G0{number}")), "{} is missing or has no title", page.display());
    }
}
