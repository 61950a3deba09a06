//! Tests of damage on disk: what a start drops, what it refuses, and which message it gives.

use std::fs::{self, OpenOptions};

use super::super::{Error, Options, Sequence};
use super::*;

/// Writes five records, changes the database by `sql`, and checks that a start says `expected`.
#[track_caller]
fn check(sql: &str, expected: &str) {
    let folder = folder();
    written(folder.path(), 5);
    tamper(folder.path(), sql);
    assert_eq!(start(folder.path(), Options::default()), expected, "after {sql}");
}

#[test]
fn a_bad_last_record_is_put_aside_with_a_warning() {
    let refused = "G0204 journal is corrupt at record 5: its checksum does not match; the last sound record is 4";
    let put_aside = "records 1 2 3 4; put aside the last record 5: its checksum does not match";
    for sql in [
        "UPDATE records SET body = x'36' WHERE sequence = 5",
        "UPDATE records SET body = x'' WHERE sequence = 5",
        "UPDATE records SET at_unix_nanos = at_unix_nanos + 1 WHERE sequence = 5",
        "UPDATE records SET checksum = zeroblob(16) WHERE sequence = 5",
        "UPDATE records SET checksum = x'00' WHERE sequence = 5",
    ] {
        // The sender was told that the record is durable.
        check(sql, refused);
        let folder = folder();
        written(folder.path(), 4);
        let anchor = ANCHOR.map(|name| fs::read(folder.path().join(name)).expect("there is an anchor"));
        let (mut journal, _) = open(folder.path()).expect("it is sound");
        commit(&mut journal, &["5"]).expect("there is room");
        drop(journal);
        // As after a power cut before the last anchor reached the disk.
        for (name, bytes) in ANCHOR.iter().zip(anchor) {
            fs::write(folder.path().join(name), bytes).expect("the file is ours");
        }
        tamper(folder.path(), sql);
        assert_eq!(start(folder.path(), Options::default()), put_aside, "after {sql}");
    }
}

/// Proves A-14: SQLite accepts a journal that ends at a damaged frame or is a restored copy; the anchor shows
/// that committed records are missing.
#[test]
fn a_journal_that_lost_its_tail_refuses_to_start_and_says_what_is_lost() {
    let folder = folder();
    let (mut journal, _) = open(folder.path()).expect("a new journal opens");
    for number in 1..=20_u64 {
        let records = [entry(&number.to_string())];

        journal.commit_writing(&records, JobId(number / 2), &mut |_| Ok(())).expect("there is room");
    }
    let log = fs::read(folder.path().join("journal.sqlite-wal")).expect("the log is there");
    for (what, damage) in [("cut", None), ("flipped", Some(log.len() / 2))] {
        let copy = crashed_copy(folder.path());
        let mut log = log[..if damage.is_some() { log.len() } else { log.len() / 2 }].to_vec();
        damage.into_iter().for_each(|at| log[at] ^= 1);
        fs::write(copy.path().join("journal.sqlite-wal"), &log).expect("the file is ours");
        let Err(Error::TailLost { last, anchored, given_out, .. }) = open(copy.path()) else {
            panic!("{what}: records are missing");
        };
        assert!(last < Sequence(20), "{what}");
        assert_eq!((anchored, given_out), (Sequence(20), JobId(10)), "{what}");
        let wrong = Options { accept_loss_after: Some(Sequence(last.0 + 1)), ..Options::default() };
        assert!(start(copy.path(), wrong).starts_with("G0210 "), "{what}");
        assert!(fs::read(copy.path().join("journal.sqlite-wal")).expect("it is there") == log, "{what}: unchanged");
        let accepting = Options { accept_loss_after: Some(last), ..Options::default() };
        let said = start(copy.path(), accepting);
        let (said, kept) = said.split_once("; the write-ahead log as it was is kept as ").expect("it says where");
        assert!(said.ends_with("as asked; job ids up to job-10 are not given out again"), "{what}: {said}");
        assert!(fs::read(kept).expect("it is there") == log, "{what}: what may be rescued is kept");
        let (_, recovered) = open(copy.path()).expect("the loss was accepted");
        assert_eq!((recovered.given_out, recovered.warnings.len()), (Some(JobId(10)), 0), "{what}");
    }
}

#[test]
fn a_copy_that_was_put_back_is_told_from_the_journal_that_it_replaced() {
    let folder = folder();
    written(folder.path(), 3);
    let copy = crashed_copy_of_closed(folder.path());
    let (mut journal, _) = open(folder.path()).expect("it is sound");
    commit(&mut journal, &["4"]).expect("there is room");
    drop(journal);
    fs::copy(copy.path().join("journal.sqlite"), folder.path().join("journal.sqlite")).expect("the file is ours");
    let said = start(folder.path(), Options::default());
    assert!(said.contains("it ends at record 3, but record 4 had been committed"), "{said}");
    // Neither another history of the same length nor a longer one is accepted.
    let (mut other, _) = open(copy.path()).expect("a sound copy");
    commit(&mut other, &["another"]).expect("there is room");
    commit(&mut other, &["and one more"]).expect("there is room");
    drop(other);
    fs::copy(copy.path().join("journal.sqlite"), folder.path().join("journal.sqlite")).expect("the file is ours");
    let said = start(folder.path(), Options::default());
    assert!(said.contains("record 4 is another; it ends at record 5"), "{said}");
    for name in ["journal.sqlite", "journal.sqlite-wal", "journal.sqlite-shm"] {
        // Some of these files may not exist.
        let _ = fs::remove_file(folder.path().join(name));
    }
    let said = start(folder.path(), Options::default());
    assert!(said.contains("it ends at record 0, but record 4 had been committed"), "{said}");
    let afresh = Options { accept_loss_after: Some(Sequence::ZERO), ..Options::default() };
    assert!(start(folder.path(), afresh).starts_with("records ; went on after record 0 "));
}

/// Proves A-14 for an anchor that was restored with the journal, as by `cp backup/journal.* .`.
#[test]
fn an_anchor_that_was_put_back_with_its_journal_is_told() {
    let folder = folder();
    written(folder.path(), 3);
    let copy = crashed_copy_of_closed(folder.path());
    fs::copy(folder.path().join(ANCHOR[0]), copy.path().join(ANCHOR[0])).expect("there is an anchor");
    let (mut journal, _) = open(folder.path()).expect("it is sound");
    commit(&mut journal, &["4"]).expect("there is room");
    drop(journal);
    for name in ["journal.sqlite", ANCHOR[0]] {
        fs::copy(copy.path().join(name), folder.path().join(name)).expect("the file is ours");
    }
    let said = start(folder.path(), Options::default());
    assert!(said.contains("it ends at record 3, but record 4 had been committed"), "{said}");
}

#[test]
fn a_journal_without_an_anchor_starts_and_gets_one() {
    let folder = folder();
    written(folder.path(), 2);
    remove_anchor(folder.path());
    assert!(start(folder.path(), Options::default()).starts_with("records 1 2; there is no readable anchor"));
    assert_eq!(start(folder.path(), Options::default()), "records 1 2");
}

#[test]
fn a_flipped_byte_before_the_last_record_refuses_to_start_and_names_it() {
    let refused = |at: u64| {
        let last_sound = at - 1;
        format!(
            "G0204 journal is corrupt at record {at}: its checksum does not match; the last sound record is {last_sound}"
        )
    };
    for at in 1..=4 {
        check(&format!("UPDATE records SET body = x'00' WHERE sequence = {at}"), &refused(at));
        check(&format!("UPDATE records SET checksum = zeroblob(16) WHERE sequence = {at}"), &refused(at));
    }
}

#[test]
fn missing_and_swapped_records_refuse_to_start() {
    check(
        "DELETE FROM records WHERE sequence = 3",
        "G0204 journal is corrupt at record 3: it is missing; the last sound record is 2",
    );
    check(
        "DELETE FROM records WHERE sequence = 4",
        "G0204 journal is corrupt at record 4: it is missing; the last sound record is 3",
    );
    check(
        "UPDATE records SET sequence = -1 WHERE sequence = 2; UPDATE records SET sequence = 2 WHERE sequence = 3;
         UPDATE records SET sequence = 3 WHERE sequence = -1",
        "G0204 journal is corrupt at record 2: its checksum does not match; the last sound record is 1",
    );
}

#[test]
fn a_record_put_aside_is_kept_and_the_journal_goes_on_in_its_place() {
    let folder = folder();
    written(folder.path(), 3);
    tamper(folder.path(), "UPDATE records SET body = x'00' WHERE sequence = 3");
    remove_anchor(folder.path());
    let (mut journal, recovered) = open(folder.path()).expect("only the last record is bad");
    assert!(recovered.may_read_models_be_ahead());
    let kept: Vec<u8> = journal
        .reader()
        .read(|transaction| transaction.query_row("SELECT body FROM dropped WHERE sequence = 3", [], |row| row.get(0)))
        .expect("it is in the table of dropped records");
    assert_eq!(kept, [0]);
    assert_eq!(commit(&mut journal, &["again"]).expect("there is room"), Sequence(3));
    drop(journal);
    assert_eq!(start(folder.path(), Options::default()), "records 1 2 again");
}

#[test]
fn a_loss_is_accepted_only_where_it_is_named() {
    let folder = folder();
    written(folder.path(), 5);
    tamper(folder.path(), "UPDATE records SET body = x'00' WHERE sequence = 3");
    let accepting = |last: u64| Options { accept_loss_after: Some(Sequence(last)), ..Options::default() };
    let refused = "G0204 journal is corrupt at record 3: its checksum does not match; the last sound record is 2";
    assert_eq!(start(folder.path(), accepting(1)), refused);
    assert_eq!(start(folder.path(), accepting(3)), refused);
    let accepted = "records 1 2; put aside 3 records after 2, as asked; went on after record 2 without those up to 5, as \
                    asked; job ids up to job-0 are not given out again";
    assert_eq!(start(folder.path(), accepting(2)), accepted);
    assert_eq!(start(folder.path(), accepting(2)), "records 1 2; no loss to accept: the journal is sound");
    assert_eq!(start(folder.path(), Options::default()), "records 1 2");
}

/// Proves A-10 for the logs that are kept when a loss is accepted.
#[test]
fn the_newest_logs_of_accepted_losses_are_kept_and_only_so_many() {
    let folder = folder();
    written(folder.path(), 5);
    let put = |name: &str| std::fs::write(folder.path().join(name), "no frame").expect("the folder is writable");
    (1..=11).for_each(|time| put(&format!("journal.sqlite-wal.lost-{time}")));
    // The clock was ahead once.
    let ahead = u128::MAX.to_string();
    put(&format!("journal.sqlite-wal.lost-{ahead}"));
    put("journal.sqlite-wal.lost-notes");
    let kept = || {
        let entries = std::fs::read_dir(folder.path()).expect("the folder is readable").flatten();
        let names = entries.map(|entry| entry.file_name().to_string_lossy().into_owned());
        let times = names.filter_map(|name| name.strip_prefix("journal.sqlite-wal.lost-").map(str::to_owned));
        times.collect::<std::collections::BTreeSet<String>>()
    };
    let before = kept();
    let accepting = |last: u64| Options { accept_loss_after: Some(Sequence(last)), ..Options::default() };
    put("journal.sqlite-wal");
    assert!(start(folder.path(), accepting(5)).contains("no loss to accept"));
    assert_eq!(kept(), before, "nothing was lost, so no log is kept and none goes");
    tamper(folder.path(), "UPDATE records SET body = x'00' WHERE sequence = 3");
    put("journal.sqlite-wal");
    assert!(start(folder.path(), accepting(2)).contains("went on after record 2"));
    let after = kept();
    let are_kept = (4..=11).all(|time: u32| after.contains(&time.to_string()));
    assert!(are_kept && after.contains(&ahead) && after.contains("notes"), "{after:?}");
    assert_eq!(after.len(), 11, "nine old logs, the new one, and a file that isn't one: {after:?}");
}

#[test]
fn a_corrupt_snapshot_falls_back_to_the_one_before_and_then_to_the_whole_journal() {
    let folder = folder();
    let (mut journal, _) = open(folder.path()).expect("a new journal opens");
    for number in 1..=6_u64 {
        commit(&mut journal, &[&number.to_string()]).expect("there is room");
        if number % 2 == 0 {
            journal.write_snapshot(b"state").expect("there is room");
        }
    }
    drop(journal);
    assert_eq!(start(folder.path(), Options::default()), "snapshot 6; records ");
    damage(folder.path(), "snapshots/000000000006.snapshot");
    assert_eq!(
        start(folder.path(), Options::default()),
        "snapshot 4; records 5 6; snapshot at record 6 failed its checksum and was not used"
    );
    damage(folder.path(), "snapshots/000000000004.snapshot");
    assert_eq!(
        start(folder.path(), Options::default()),
        "records 1 2 3 4 5 6; snapshot at record 4 failed its checksum and was not used"
    );
}

#[test]
fn damage_that_a_snapshot_covers_does_not_keep_the_journal_from_starting_but_an_audit_finds_it() {
    let folder = folder();
    written(folder.path(), 4);
    let (mut journal, _) = open(folder.path()).expect("it is sound");
    journal.write_snapshot(b"state").expect("there is room");
    commit(&mut journal, &["5"]).expect("there is room");
    drop(journal);
    tamper(folder.path(), "UPDATE records SET body = x'00' WHERE sequence = 2");
    let (journal, recovered) = open(folder.path()).expect("the damage is before the snapshot");
    assert_eq!(bodies(&recovered), "5");
    let found = journal.reader().history(Sequence::ZERO, 100);
    assert!(matches!(found, Err(Error::Corrupt { at: Sequence(2), last_sound: Sequence(1), .. })), "{found:?}");
}

#[test]
fn a_database_that_is_cut_short_or_scrambled_refuses_to_start() {
    let folder = folder();
    written(folder.path(), 2_000);
    let path = folder.path().join("journal.sqlite");
    let whole = fs::read(&path).expect("the database is there");
    let as_it_was = whole.clone();
    for (what, bytes) in [
        ("empty", Vec::new()),
        ("cut in the header", whole[..50].to_vec()),
        ("cut in the middle", whole[..whole.len() / 2].to_vec()),
        ("without its last page", whole[..whole.len() - 4_096].to_vec()),
        ("another file", b"not a database, but long enough to look like one to a careless reader ".repeat(100)),
    ] {
        fs::write(&path, &bytes).expect("the file is ours");
        let said = start(folder.path(), Options::default());
        assert!(said.starts_with("G0203 "), "{what}: {said}");
        assert!(fs::read(&path).expect("it is there") == bytes, "{what}: the damaged file was changed");
    }
    fs::write(&path, as_it_was).expect("the file is ours");
    assert!(start(folder.path(), Options::default()).starts_with("records 1 2 3 "));
}

#[test]
fn a_log_without_its_database_is_damage_and_not_a_fresh_start() {
    let folder = folder();
    let (mut journal, _) = open(folder.path()).expect("a new journal opens");
    commit(&mut journal, &["a"]).expect("there is room");
    let copy = crashed_copy(folder.path());
    fs::remove_file(copy.path().join("journal.sqlite")).expect("it was copied");
    assert!(start(copy.path(), Options::default()).starts_with("G0203 "));
}

#[test]
fn a_log_cut_anywhere_leaves_whole_batches() {
    let folder = folder();
    let (mut journal, _) = open(folder.path()).expect("a new journal opens");
    for batch in 0..20 {
        let first = (batch * 3).to_string();
        commit(&mut journal, &[&first, "middle", "end"]).expect("there is room");
    }
    let length = fs::metadata(folder.path().join("journal.sqlite-wal")).expect("the log is there").len();
    let mut counts = Vec::new();
    for cut in 0..=50 {
        let copy = crashed_copy(folder.path());
        let log = OpenOptions::new().write(true).open(copy.path().join("journal.sqlite-wal")).expect("it was copied");
        log.set_len(length * cut / 50).expect("the file is ours");
        // With the anchor, a start would report the loss and refuse.
        remove_anchor(copy.path());
        let (_, recovered) = open(copy.path()).expect("a torn log is no damage");
        assert_eq!(recovered.records.len() % 3, 0, "a batch came back in part");
        counts.push(recovered.records.len());
    }
    assert!(counts.is_sorted() && counts[0] == 0 && counts[50] == 60, "{counts:?}");
}

#[test]
fn an_unfinished_first_start_is_begun_again() {
    let folder = folder();
    fs::write(folder.path().join("journal.sqlite.new"), b"half").expect("the folder is ours");
    assert_eq!(start(folder.path(), Options::default()), "records ");
}

#[test]
fn a_newer_schema_is_refused() {
    let folder = folder();
    written(folder.path(), 1);
    tamper(folder.path(), "UPDATE meta SET value = 999 WHERE key = 'schema_version'");
    let said = start(folder.path(), Options::default());
    assert!(said.starts_with("G0205 data folder has schema 999, this gangline knows up to "), "{said}");
}

#[test]
fn an_older_schema_is_brought_up_to_date() {
    let folder = folder();
    tamper(
        folder.path(),
        "CREATE TABLE meta (key TEXT PRIMARY KEY, value INTEGER NOT NULL) STRICT, WITHOUT ROWID;
         INSERT INTO meta VALUES ('schema_version', 0)",
    );
    written(folder.path(), 2);
    assert_eq!(start(folder.path(), Options::default()), "records 1 2");
}
