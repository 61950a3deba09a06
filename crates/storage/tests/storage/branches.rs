//! Saves belong to branches: what is abandoned is never loaded by itself, and never removed by retention.

use std::num::{NonZeroU64, NonZeroUsize};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use gangline_storage::{Began, Claim, Error, Options, PrunePolicy, Rule, Saved, Step, Store, Timestamp, look_for};

use crate::{names, offered, open, save};

/// A writer as another process would open it, after it has loaded this checkpoint.
fn resumed(path: &Path, step: u64) -> Store {
    let store = open(path, Options::default());
    store.load(Step(step)).unwrap();
    store.resume_from(Step(step)).unwrap();
    store
}

fn fill(path: &Path, steps: &[u64]) {
    let store = open(path, Options { keep: None, ..Options::default() });
    for step in steps {
        save(&store, *step).unwrap();
    }
}

fn removed(saved: Saved) -> Vec<u64> {
    saved.retention.unwrap().removed.into_iter().map(|step| step.0).collect()
}

fn steps(steps: &[Step]) -> Vec<u64> {
    steps.iter().map(|step| step.0).collect()
}

/// Flips a bit of a checkpoint's file.
fn damage(path: &Path, step: u64, file: &str) {
    let file = path.join(format!("step-{step:010}")).join(file);
    let mut bytes = std::fs::read(&file).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 4;
    std::fs::write(file, bytes).unwrap();
}

/// The issue's own case.
#[test]
fn a_run_from_scratch_beside_higher_steps_keeps_what_it_saves() {
    let folder = tempfile::tempdir().unwrap();
    fill(folder.path(), &[1000, 2000]);
    let store = open(folder.path(), Options::default());
    let saved = save(&store, 10).unwrap();
    assert_eq!(saved.began, Some(Began::Anew { beside: Step(2000) }));
    assert!(removed(saved).is_empty());
    assert_eq!(offered(folder.path()), Some(10));
    for (step, gone) in [(20, vec![]), (30, vec![10]), (40, vec![20])] {
        let saved = save(&store, step).unwrap();
        assert_eq!((saved.began, removed(saved)), (None, gone), "step {step}");
    }
    assert_eq!(offered(folder.path()), Some(40));
    let branches = store.branches().unwrap();
    let told: Vec<_> = branches.iter().map(|one| (one.is_current, steps(&one.steps), steps(&one.abandoned))).collect();
    assert_eq!(told, [(false, vec![1000, 2000], vec![1000, 2000]), (true, vec![30, 40], vec![])]);
}

/// The issue's own case.
#[test]
fn what_follows_an_older_checkpoint_is_gone_on_from_and_the_old_course_never_is() {
    let folder = tempfile::tempdir().unwrap();
    fill(folder.path(), &[400, 500, 600, 700]);
    let store = resumed(folder.path(), 500);
    let saved = save(&store, 550).unwrap();
    assert_eq!(saved.began, Some(Began::Fork { from: Step(500), beside: Some(Step(700)) }));
    assert_eq!(removed(saved), [400], "of the line 500 and 550 are the last two");
    assert_eq!(offered(folder.path()), Some(550));
    let info = store.load(Step(550)).unwrap().info;
    assert_eq!(info.parent, Some(Step(500)));
    drop(store);
    // The new branch's only save is lost, by its tensors or by its manifest: back to where it forked, not to 700.
    damage(folder.path(), 550, "shard-00000-of-00001.safetensors");
    assert_eq!(offered(folder.path()), Some(500));
    damage(folder.path(), 550, "manifest.json");
    assert_eq!(offered(folder.path()), Some(500));
    let latest = open(folder.path(), Options::reader()).latest().unwrap();
    assert_eq!(latest.skipped.len(), 1);
    std::fs::remove_dir_all(folder.path().join("step-0000000550")).unwrap();
    assert_eq!(offered(folder.path()), Some(500));
}

#[test]
fn a_step_of_the_old_course_is_replaced_and_the_rest_of_it_stays_given_up() {
    let folder = tempfile::tempdir().unwrap();
    fill(folder.path(), &[500, 600, 700]);
    let store = resumed(folder.path(), 500);
    save(&store, 600).unwrap();
    assert_eq!(steps(&store.line().unwrap()), [600, 500]);
    assert_eq!(removed(save(&store, 700).unwrap()), [500]);
    assert_eq!(store.branches().unwrap().len(), 1);
    drop(store);
    assert_eq!(names(folder.path()), ["step-0000000600", "step-0000000700"]);
}

#[test]
fn going_on_from_the_newest_or_without_a_word_from_a_higher_step_stays_in_the_branch() {
    let folder = tempfile::tempdir().unwrap();
    fill(folder.path(), &[1, 2]);
    assert_eq!(save(&resumed(folder.path(), 2), 3).unwrap().began, None);
    assert_eq!(save(&open(folder.path(), Options::default()), 4).unwrap().began, None);
    assert_eq!(save(&open(folder.path(), Options::default()), 4).unwrap().began, None, "the same step again");
    assert_eq!(open(folder.path(), Options::reader()).branches().unwrap().len(), 1);
}

/// Between two saves of one process, without a load.
#[test]
fn a_lower_step_than_the_last_begins_anew() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path(), Options::default());
    save(&store, 100).unwrap();
    save(&store, 200).unwrap();
    let saved = save(&store, 10).unwrap();
    assert_eq!(saved.began, Some(Began::Anew { beside: Step(200) }));
    assert!(removed(saved).is_empty());
    assert_eq!(offered(folder.path()), Some(10));
}

/// A folder from before there were branches.
#[test]
fn checkpoints_without_a_lineage_are_one_branch_in_the_order_of_their_steps() {
    let folder = tempfile::tempdir().unwrap();
    let fixture = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/version-1");
    let name = std::fs::read_dir(&fixture).unwrap().next().unwrap().unwrap().file_name();
    let step: u64 = name.to_str().unwrap().strip_prefix("step-").unwrap().parse().unwrap();
    let to = folder.path().join(&name);
    std::fs::create_dir(&to).unwrap();
    for entry in std::fs::read_dir(fixture.join(&name)).unwrap() {
        let entry = entry.unwrap();
        std::fs::copy(entry.path(), to.join(entry.file_name())).unwrap();
    }
    let store = resumed(folder.path(), step);
    let info = store.load(Step(step)).unwrap().info;
    assert_eq!((info.saved_at, info.run, info.branch.to_string()), (None, None, "0".repeat(16)));
    let saved = save(&store, step + 5).unwrap();
    assert_eq!((saved.began, saved.branch.to_string()), (None, "0".repeat(16)));
    assert_eq!(steps(&store.line().unwrap()), [step + 5, step]);
    let fork = save(&resumed(folder.path(), step), step + 2).unwrap();
    assert!(matches!(fork.began, Some(Began::Fork { .. })));
    assert_eq!(steps(&open(folder.path(), Options::reader()).line().unwrap()), [step + 2, step]);
}

/// The order of saves doesn't depend on the clock alone.
#[test]
fn a_clock_that_goes_back_changes_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let time = Arc::new(AtomicU64::new(1_000));
    let ticking = Arc::clone(&time);
    let clock = Arc::new(move || Timestamp::from_unix_nanos(ticking.fetch_sub(7, Ordering::SeqCst)));
    let options = || Options { clock: clock.clone(), run: Some("a run".to_owned()), ..Options::default() };
    for step in [5, 6, 7] {
        save(&open(folder.path(), options()), step).unwrap();
    }
    let store = open(folder.path(), options());
    assert_eq!(steps(&store.line().unwrap()), [7, 6]);
    let info = store.load(Step(7)).unwrap().info;
    assert_eq!((info.run.as_deref(), info.parent), (Some("a run"), Some(Step(6))));
    assert!(info.saved_at < Some(Timestamp::from_unix_nanos(1_000)));
}

#[test]
fn rules_keep_more_than_the_last_and_only_of_the_line() {
    let folder = tempfile::tempdir().unwrap();
    fill(folder.path(), &[700, 900]);
    let every = NonZeroU64::new(20).unwrap();
    let store = open(
        folder.path(),
        Options { keep: NonZeroUsize::new(1), rules: vec![Rule::EverySteps(every)], ..Options::default() },
    );
    for step in (10..=70).step_by(10) {
        save(&store, step).unwrap();
    }
    assert_eq!(steps(&store.line().unwrap()), [70, 60, 40, 20, 10]);
    assert_eq!(names(folder.path()).len(), 7, "700 and 900 are another branch's");
    let rules = vec![Rule::Abandoned];
    let refused = Store::open(folder.path(), Options { rules, ..Options::default() }).err().unwrap();
    assert!(matches!(refused, Error::InvalidOptions { .. }), "{refused}");
}

#[test]
fn what_is_above_a_step_or_was_given_up_goes_when_it_is_asked_for() {
    let folder = tempfile::tempdir().unwrap();
    fill(folder.path(), &[400, 500, 600, 700]);
    save(&open(folder.path(), Options { keep: None, ..Options::default() }), 50).unwrap();
    save(&resumed_keeping_all(folder.path(), 500), 510).unwrap();
    save(&resumed_keeping_all(folder.path(), 500), 520).unwrap();
    let store = open(folder.path(), Options::reader());
    assert_eq!(steps(&store.line().unwrap()), [520, 500, 400]);
    let of_510 = store.load(Step(510)).unwrap().info.branch;
    let pruned = store.prune(&PrunePolicy::Abandoned(Some(of_510)), false).unwrap();
    assert_eq!(steps(&pruned.removed), [510]);
    let refused = store.prune(&PrunePolicy::Abandoned(Some(of_510)), false).unwrap_err();
    assert!(matches!(refused, Error::NoSuchBranch { .. }), "{refused}");
    let planned = store.prune(&PrunePolicy::Abandoned(None), true).unwrap();
    assert_eq!(planned, store.prune(&PrunePolicy::Abandoned(None), false).unwrap());
    assert_eq!(steps(&planned.removed), [50, 600, 700]);
    assert_eq!(steps(&store.prune(&PrunePolicy::Above(Step(450)), false).unwrap().removed), [500, 520]);
    assert_eq!(offered(folder.path()), Some(400));
    let refused = store.prune(&PrunePolicy::Above(Step(3)), false).unwrap_err();
    assert!(matches!(refused, Error::LastGood { step: Step(400) }), "{refused}");
    assert_eq!(offered(folder.path()), Some(400));
}

fn resumed_keeping_all(path: &Path, step: u64) -> Store {
    let store = open(path, Options { keep: None, ..Options::default() });
    store.resume_from(Step(step)).unwrap();
    store
}

#[test]
fn one_checkpoint_is_removed_by_its_step_unless_it_is_the_last_good_one() {
    let folder = tempfile::tempdir().unwrap();
    fill(folder.path(), &[1, 2, 3]);
    let store = open(folder.path(), Options::reader());
    damage(folder.path(), 1, "shard-00000-of-00001.safetensors");
    store.delete(Step(3)).unwrap();
    assert_eq!(offered(folder.path()), Some(2));
    let refused = store.delete(Step(2)).unwrap_err();
    assert!(matches!(refused, Error::LastGood { .. }), "{refused}");
    store.delete(Step(1)).unwrap();
    assert!(matches!(store.delete(Step(1)), Err(Error::NotFound { .. })));
    assert_eq!(offered(folder.path()), Some(2));
}

#[test]
fn a_claim_of_a_step_is_looked_for_on_the_current_line() {
    let folder = tempfile::tempdir().unwrap();
    fill(folder.path(), &[1000, 2000]);
    save(&open(folder.path(), Options::default()), 10).unwrap();
    let claim = |step| look_for(folder.path(), Step(step)).unwrap();
    assert_eq!((claim(10), claim(9)), (Claim::Durable, Claim::Durable));
    assert_eq!(claim(11), Claim::Absent, "2000 says nothing of a branch that is at 10");
    assert_eq!(claim(1000), Claim::Durable, "it is there");
}
