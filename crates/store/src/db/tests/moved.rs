//! Tests of a journal in a folder of its own, when it or its data folder is moved.

use super::*;
use crate::db::{journal_folder, place_journal};

/// Makes a data folder with jobs, whose journal is in the given folder.
fn placed(data: &Path, journal: &Path) {
    place_journal(data, journal).expect("it is new");
    written(journal, 2);
    fs::create_dir_all(data.join("jobs/job-1")).expect("a folder");
}

#[test]
fn one_within_the_data_folder_moves_with_it() {
    let root = folder();
    let (before, after) = (root.path().join("before"), root.path().join("after"));
    placed(&before, &before.join("journal"));
    fs::rename(&before, &after).expect("it is ours");
    assert_eq!(journal_folder(&after), after.join("journal"));
    assert_eq!(place_journal(&after, &journal_folder(&after)).expect("it is there"), after.join("journal"));
    assert_eq!(start(&after.join("journal"), Options::default()), "records 1 2");
}

/// Proves A-14 for a journal that isn't in its place: no second journal is made there.
#[test]
fn one_that_is_gone_is_never_begun_anew_and_found_again_once_somebody_says_where_it_is() {
    let root = folder();
    let (data, before, after) = (root.path().join("data"), root.path().join("before"), root.path().join("after"));
    placed(&data, &before);
    fs::rename(&before, &after).expect("it is ours");
    let gone = place_journal(&data, &journal_folder(&data)).expect_err("it isn't there");
    assert!(matches!(gone, Error::JournalGone { .. }) && gone.code() == "G0212", "{gone}");
    assert!(gone.hint().contains("--journal"), "{}", gone.hint());
    let empty = root.path().join("empty");
    let elsewhere = place_journal(&data, &empty).expect_err("there is none either");
    assert!(matches!(elsewhere, Error::JournalElsewhere { .. }), "{elsewhere}");
    assert_eq!(place_journal(&data, &after).expect("there is one"), after);
    assert_eq!(journal_folder(&data), after, "it is remembered");
    assert_eq!(start(&after, Options::default()), "records 1 2");
    written(&before, 1);
    let other = place_journal(&data, &before).expect_err("the one that it has is there");
    assert!(matches!(other, Error::JournalElsewhere { .. }), "{other}");
}

#[test]
fn a_first_start_that_was_cut_short_begins_again() {
    let root = folder();
    let (data, journal) = (root.path().join("data"), root.path().join("journal"));
    place_journal(&data, &journal).expect("it is new");
    assert_eq!(place_journal(&data, &journal_folder(&data)).expect("it has had no jobs"), journal);
}
