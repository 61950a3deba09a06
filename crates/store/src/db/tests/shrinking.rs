//! Tests of shrinking: the database file returns free pages, concurrently with commits and however the
//! process ends.

use std::fs;

use super::*;
use crate::db::Reader;

/// Fills an otherwise unused table with rows.
fn fill(journal: &mut Journal, megabytes: u32) {
    for _ in 0..megabytes {
        let mut add = |transaction: &rusqlite::Transaction<'_>| {
            let sql = "INSERT INTO dropped (sequence, at_unix_nanos, body, checksum, reason) VALUES (1, 1, zeroblob(1000), x'', '')";
            (0..1_000).try_for_each(|_| transaction.prepare_cached(sql)?.execute([]).map(drop))
        };
        journal.commit_writing(&[], JobId(0), &mut add).expect("there is room");
    }
}

fn empty(journal: &mut Journal, until: u32) {
    let mut remove = |transaction: &rusqlite::Transaction<'_>| {
        transaction.execute("DELETE FROM dropped WHERE id <= ?1", [until]).map(drop)
    };
    journal.commit_writing(&[], JobId(0), &mut remove).expect("there is room");
}

fn file_size(folder: &Path) -> u64 {
    fs::metadata(folder.join("journal.sqlite")).expect("it is there").len()
}

fn verdict(reader: &Reader) -> String {
    reader.read(|transaction| transaction.query_row("PRAGMA integrity_check", [], |row| row.get(0))).expect("readable")
}

#[test]
fn what_nothing_uses_is_given_back_beside_commits() {
    let folder = folder();
    let (mut journal, _) = open(folder.path()).expect("a new journal opens");
    assert!(journal.order_shrink().is_none());
    fill(&mut journal, 30);
    empty(&mut journal, 25_000);
    let before = journal.room();
    assert!(before.free.0 > 20 << 20, "{before:?}");
    let mut orders = 0;
    while let Some(order) = journal.order_shrink() {
        let shrinking = std::thread::spawn(|| order.carry_out());
        for _ in 0..20 {
            commit(&mut journal, &["meanwhile"]).expect("a commit only waits a moment");
        }
        journal.shrunk(shrinking.join().expect("no panic").expect("there is nothing in the way"));
        orders += 1;
        assert!(orders < 100, "it ends");
    }
    assert!(orders > 1, "an order is a part of it");
    assert_eq!(verdict(&journal.reader()), "ok");
    let last = journal.last();
    drop(journal);
    assert!(file_size(folder.path()) < before.used.0 + (16 << 20), "{} {before:?}", file_size(folder.path()));
    let (journal, _) = open(folder.path()).expect("it opens again");
    assert_eq!(journal.last(), last);
    assert!(journal.order_shrink().is_none(), "what comes and goes is used again");
}

#[test]
fn a_small_database_of_an_earlier_release_learns_to_shrink() {
    let folder = folder();
    written(folder.path(), 3);
    let mode = |folder: &Path| -> i64 {
        let connection = Connection::open(folder.join("journal.sqlite")).expect("it opens");
        connection.query_row("PRAGMA auto_vacuum", [], |row| row.get(0)).expect("readable")
    };
    assert_eq!(mode(folder.path()), 2);
    tamper(folder.path(), "PRAGMA auto_vacuum = NONE; VACUUM;");
    assert_eq!(mode(folder.path()), 0);
    let (journal, recovered) = open(folder.path()).expect("it opens");
    assert_eq!(bodies(&recovered), "1 2 3");
    assert_eq!(verdict(&journal.reader()), "ok");
    drop(journal);
    assert_eq!(mode(folder.path()), 2);
}
