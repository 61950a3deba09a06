//! Tests of the history archive: archived records are read as if they were in the database, despite
//! interruptions and damage.

use std::fs;

use super::super::archive::Archive;
use super::super::{Archived, Record};
use super::*;

/// Returns options of a journal that counts as nearly full, so that it keeps no record that a snapshot
/// covers.
fn pressed() -> Options {
    Options { bytes_max: gangline_base::Bytes(4_096), ..Options::default() }
}

/// Returns a journal of the records `1` to `count`, with a snapshot after every ten, archived up to the
/// newest.
fn archived(folder: &Path, count: u64) -> Journal {
    let (mut journal, _) = open(folder).expect("a new journal opens");
    for number in 1..=count {
        commit(&mut journal, &[&number.to_string()]).expect("there is room");
        if number % 10 == 0 {
            journal.write_snapshot(b"state").expect("there is room");
            archive(&mut journal);
        }
    }
    journal
}

/// Archives the records that a snapshot covers, and deletes them from the database.
fn archive(journal: &mut Journal) {
    order(journal);
    while journal.is_tidying() {
        journal.tidy().expect("there is room");
    }
}

fn order(journal: &mut Journal) -> Option<Archived> {
    journal.sync_anchor();
    journal.press();
    let archived = journal.order_archive()?.carry_out().expect("there is room");
    journal.archived(archived);
    Some(archived)
}

fn in_database(journal: &Journal) -> Vec<u64> {
    let read = |transaction: &rusqlite::Transaction<'_>| {
        let mut statement = transaction.prepare("SELECT sequence FROM records ORDER BY sequence")?;
        statement.query_map([], |row| row.get::<_, i64>(0).map(i64::cast_unsigned))?.collect()
    };
    journal.reader().read(read).expect("reads go on")
}

fn text(records: &[Record]) -> Vec<String> {
    records.iter().map(|record| String::from_utf8_lossy(&record.body).into_owned()).collect()
}

fn numbers(range: std::ops::RangeInclusive<u64>) -> Vec<String> {
    range.map(|number| number.to_string()).collect()
}

fn history(journal: &Journal, after: u64, count: u32) -> Vec<String> {
    text(&journal.reader().history(Sequence(after), count).expect("it is whole"))
}

#[test]
fn history_is_read_across_archive_and_database_without_a_seam() {
    let folder = folder();
    let journal = archived(folder.path(), 35);
    assert_eq!(in_database(&journal), (31..=35).collect::<Vec<_>>());
    let segments = Archive::of(&folder.path().join("journal.sqlite")).segments().expect("it is there");
    assert_eq!(segments.len(), 3);
    for after in 0..=35 {
        for count in [1, 2, 9, 10, 11, 30, 100] {
            let last = (after + u64::from(count)).min(35);
            assert_eq!(history(&journal, after, count), numbers(after + 1..=last), "{count} after {after}");
        }
    }
    assert!(journal.reader().history(Sequence(36), 1).is_err(), "there is no such record");
    drop(journal);
    assert_eq!(start(folder.path(), Options::default()), "snapshot 30; records 31 32 33 34 35");
}

#[test]
fn what_a_start_may_need_stays_in_the_database_until_room_is_short() {
    let folder = folder();
    let (mut journal, _) = open(folder.path()).expect("a new journal opens");
    for batch in 0..5 {
        let bodies = vec!["x"; 10_000];
        commit(&mut journal, &bodies).expect("there is room");
        journal.write_snapshot(b"state").expect("there is room");
        journal.sync_anchor();
        // The older snapshot of batch 3 is after 30,000 records: 20,000 of 40,000 may go, one segment at a
        // time.
        assert_eq!(journal.order_archive().is_some(), batch >= 2, "batch {batch}");
    }
    let archived = journal.order_archive().expect("there is enough").carry_out().expect("there is room");
    journal.archived(archived);
    journal.tidy().expect("there is room");
    assert_eq!(in_database(&journal).first(), Some(&513), "in slices");
    archive(&mut journal);
    assert_eq!(journal.reader().history(Sequence(9_990), 20).map(|records| records.len()).ok(), Some(20));
}

/// Proves A-3 for the archive: a crash between any two steps leaves every record readable, and the next start
/// continues.
#[test]
fn a_crash_between_any_two_steps_loses_no_record() {
    let original = folder();
    let (mut journal, _) = open(original.path()).expect("a new journal opens");
    for number in 1..=1_000_u64 {
        commit(&mut journal, &[&number.to_string()]).expect("there is room");
    }
    journal.write_snapshot(b"state").expect("there is room");
    let kept = Archive::of(&original.path().join("journal.sqlite"));
    let records = journal.reader().history(Sequence::ZERO, 1_000).expect("it is whole");
    let before = super::super::record::Head::empty();
    let check = |step: &str| {
        let copy = crashed_copy_of_all(original.path());
        let (mut journal, recovered) = open(copy.path()).unwrap_or_else(|error| panic!("after {step}: {error}"));
        assert_eq!((recovered.records.len(), recovered.warnings.len()), (0, 0), "after {step}");
        assert_eq!(history(&journal, 0, 2_000), numbers(1..=1_000), "after {step}");
        archive(&mut journal);
        assert_eq!(in_database(&journal), [0; 0], "after {step}");
        assert_eq!(history(&journal, 0, 2_000), numbers(1..=1_000), "after {step}");
        let names: Vec<_> = fs::read_dir(copy.path().join("history")).expect("it is there").collect();
        assert_eq!(names.len(), 1, "after {step} nothing else is left");
    };
    check("nothing");
    let range = kept.write_aside(before, &records).expect("there is room");
    check("the segment was written aside");
    let aside = original.path().join("history").join(range.name()).with_extension("writing");
    let whole = fs::read(&aside).expect("it is there");
    fs::write(&aside, &whole[..whole.len() / 2]).expect("it is ours");
    check("half of it was written");
    fs::write(&aside, &whole).expect("it is ours");
    kept.publish(range).expect("there is room");
    check("it was renamed");
    let last = kept.verified(range, before).expect("it is whole");
    assert_eq!(last.sequence, Sequence(1_000));
    assert!(order(&mut journal).is_some());
    check("it was verified");
    journal.tidy().expect("there is room");
    assert_eq!(in_database(&journal).len(), 488);
    check("a slice left the database");
    journal.tidy().expect("there is room");
    assert_eq!(in_database(&journal), [0; 0]);
    check("all left the database");
}

#[test]
fn a_segment_that_a_crash_left_damaged_is_written_again() {
    let folder = folder();
    let (mut journal, _) = open(folder.path()).expect("a new journal opens");
    (1..=20).for_each(|number: u64| drop(commit(&mut journal, &[&number.to_string()])));
    journal.write_snapshot(b"state").expect("there is room");
    let kept = Archive::of(&folder.path().join("journal.sqlite"));
    let records = journal.reader().history(Sequence::ZERO, 15).expect("it is whole");
    kept.put(super::super::record::Head::empty(), &records).expect("there is room");
    damage(folder.path(), "history/000000000001-000000000015.segment");
    archive(&mut journal);
    assert_eq!(in_database(&journal), [0; 0]);
    assert_eq!(history(&journal, 0, 100), numbers(1..=20));
    assert!(folder.path().join("history/000000000001-000000000015.aside-1").exists(), "nothing is thrown away");
}

#[test]
fn without_a_sound_snapshot_a_start_reads_the_archive() {
    let folder = folder();
    drop(archived(folder.path(), 35));
    for (newest, expected) in [("000000000030", 21..=35), ("000000000020", 1..=35)] {
        damage(folder.path(), &format!("snapshots/{newest}.snapshot"));
        let said = start(folder.path(), Options::default());
        assert!(said.contains(&format!("records {}; snapshot at", numbers(expected).join(" "))), "{said}");
    }
}

#[test]
fn a_damaged_or_missing_segment_is_named_and_keeps_no_journal_from_starting() {
    let folder = folder();
    drop(archived(folder.path(), 35));
    let name = "history/000000000011-000000000020.segment";
    let whole = fs::read(folder.path().join(name)).expect("it is there");
    for what in ["its checksum does not match", "it is missing"] {
        if what == "it is missing" {
            fs::remove_file(folder.path().join(name)).expect("it is there");
        } else {
            damage(folder.path(), name);
        }
        let (journal, recovered) = open(folder.path()).expect("a start needs none of it");
        assert_eq!(bodies(&recovered), "31 32 33 34 35");
        let found = journal.reader().history(Sequence(5), 100).expect_err("it isn't whole");
        let examined = journal.order_examination().carry_out().expect_err("it isn't whole");
        for error in [found, examined] {
            assert_eq!(error.code(), "G0215");
            let message = error.to_string();
            assert!(message.starts_with("the history of records 11 to 20 can't be read from "), "{message}");
            assert!(message.contains(name) && message.ends_with(what), "{message}");
        }
        assert_eq!(history(&journal, 20, 100), numbers(21..=35));
        assert_eq!(history(&journal, 0, 10), numbers(1..=10));
    }
    // Without a snapshot the archive is needed; the user accepts the loss by name.
    let snapshots = ["snapshots/000000000020.snapshot", "snapshots/000000000030.snapshot"];
    snapshots.iter().for_each(|name| fs::remove_file(folder.path().join(name)).expect("it is there"));
    let said = start(folder.path(), Options::default());
    assert!(said.starts_with("G0215 the history of records 11 to 20 can't be read"), "{said}");
    let accepting = |last: u64| Options { accept_loss_after: Some(Sequence(last)), ..Options::default() };
    assert!(start(folder.path(), accepting(20)).starts_with("G0215 "));
    let copy = crashed_copy_of_all(folder.path());
    let said = start(copy.path(), accepting(10));
    assert!(
        said.starts_with(&format!("records {}; put aside 5 records after 10, as asked", numbers(1..=10).join(" "))),
        "{said}"
    );
    assert_eq!(start(copy.path(), Options::default()), format!("records {}", numbers(1..=10).join(" ")));
    fs::write(folder.path().join(name), whole).expect("it is ours");
    assert_eq!(start(folder.path(), Options::default()), format!("records {}", numbers(1..=35).join(" ")));
}

/// Proves A-14 for the files beside the database: they show that the database lacks records.
#[test]
fn a_database_that_was_put_back_is_told_from_its_archive_and_snapshots() {
    let folder = folder();
    drop(archived(folder.path(), 15));
    let old = crashed_copy_of_closed(folder.path());
    let mut journal = open(folder.path()).expect("it is sound").0;
    (16..=30).for_each(|number: u64| drop(commit(&mut journal, &[&number.to_string()])));
    journal.write_snapshot(b"state").expect("there is room");
    archive(&mut journal);
    drop(journal);
    fs::copy(old.path().join("journal.sqlite"), folder.path().join("journal.sqlite")).expect("the file is ours");
    remove_anchor(folder.path());
    let said = start(folder.path(), Options::default());
    assert!(said.contains("it ends at record 15, but record 30 had been committed"), "{said}");
    let accepting = Options { accept_loss_after: Some(Sequence(15)), ..Options::default() };
    let said = start(folder.path(), accepting);
    assert!(said.contains("went on after record 15 without those up to 30"), "{said}");
    let (mut journal, recovered) = open(folder.path()).expect("the loss was accepted");
    assert_eq!((bodies(&recovered).as_str(), recovered.warnings.len()), ("11 12 13 14 15", 0));
    (16..=25).for_each(|number: u64| drop(commit(&mut journal, &[&format!("other {number}")])));
    journal.write_snapshot(b"state").expect("there is room");
    archive(&mut journal);
    assert_eq!(history(&journal, 0, 16), [numbers(1..=15), vec!["other 16".to_owned()]].concat());
}

/// Copies the files, including those beside the database, while the writer lives.
fn crashed_copy_of_all(from: &Path) -> TempDir {
    let copy = folder();
    let names = fs::read_dir(from).expect("it is there").map(|entry| entry.expect("it is there").file_name());
    for name in names.filter(|name| name != "lock" && name != "folder.json" && name != "journal.sqlite-shm") {
        let (from, to) = (from.join(&name), copy.path().join(&name));
        if from.is_dir() {
            fs::create_dir(&to).expect("the folder is ours");
            for entry in fs::read_dir(&from).expect("it is there") {
                let entry = entry.expect("it is there");
                fs::copy(entry.path(), to.join(entry.file_name())).expect("the file is there");
            }
        } else {
            fs::copy(from, to).expect("the file is there");
        }
    }
    copy
}

/// A snapshot of an earlier release is read, and leaves the table once there are two newer ones.
#[test]
fn a_snapshot_of_an_earlier_release_is_read_from_its_table() {
    let folder = folder();
    let (mut journal, _) = open(folder.path()).expect("a new journal opens");
    (1..=5).for_each(|number: u64| drop(commit(&mut journal, &[&number.to_string()])));
    journal.keep_in_table(b"old state");
    commit(&mut journal, &["6"]).expect("there is room");
    drop(journal);
    assert_eq!(start(folder.path(), Options::default()), "snapshot 5; records 6");
    let (mut journal, recovered) = open(folder.path()).expect("it is sound");
    assert_eq!(recovered.snapshot.map(|snapshot| snapshot.body), Some(b"old state".to_vec()));
    let rows = |journal: &Journal| {
        let count = |transaction: &rusqlite::Transaction<'_>| {
            transaction.query_row("SELECT count(*) FROM snapshots", [], |row| row.get::<_, i64>(0))
        };
        journal.reader().read(count).expect("reads go on")
    };
    for (number, left) in [(7, 1), (8, 0)] {
        journal.write_snapshot(b"state").expect("there is room");
        commit(&mut journal, &[&number.to_string()]).expect("there is room");
        assert_eq!(rows(&journal), left, "after {number}");
    }
    drop(journal);
    assert_eq!(start(folder.path(), pressed()), "snapshot 7; records 8");
}

/// A folder `history` that was left behind, or copied there by hand.
#[test]
fn a_segment_of_another_journal_is_put_aside_and_never_read_as_this_ones() {
    let (folder, other) = (folder(), folder());
    drop(archived(other.path(), 10));
    let (mut journal, _) = open(folder.path()).expect("a new journal opens");
    (1..=10).for_each(|number: u64| drop(commit(&mut journal, &[&format!("own {number}")])));
    journal.write_snapshot(b"state").expect("there is room");
    let name = "history/000000000001-000000000010.segment";
    fs::create_dir(folder.path().join("history")).expect("the folder is ours");
    fs::copy(other.path().join(name), folder.path().join(name)).expect("it is there");
    assert_eq!(history(&journal, 0, 1), ["own 1"]);
    archive(&mut journal);
    assert_eq!(in_database(&journal), [0; 0]);
    let own: Vec<String> = (1..=10).map(|number| format!("own {number}")).collect();
    assert_eq!(history(&journal, 0, 100), own);
    // A segment copied over the journal's own is recognised as another journal's.
    fs::copy(other.path().join(name), folder.path().join(name)).expect("it is there");
    for error in [
        journal.order_examination().carry_out().expect_err("it is another's"),
        journal
            .reader()
            .history(Sequence(10), 1)
            .map(|_| ())
            .and(journal.reader().history(Sequence::ZERO, 100).map(|_| ()))
            .expect_err("it is another's"),
    ] {
        assert!(error.to_string().ends_with("its chain isn't the journal's"), "{error}");
    }
}
