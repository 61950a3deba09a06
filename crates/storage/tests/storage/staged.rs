//! Ranks that are killed once they have copied a save, and what others make of the copies. Each rank is a process of its own: this
//! program again, with [`RANK`] in its environment.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use gangline_storage::{DiskAct, Error, Finished, Flaw, Options, Step, finish_staged};

use crate::{files, note, offered, open, save, state, views};

/// What makes a process of this program a rank: its rank and its world size.
const RANK: &str = "GANGLINE_TEST_STAGED_RANK";
/// The folder in which `checkpoints` and `staging` are.
const FOLDER: &str = "GANGLINE_TEST_STAGED_FOLDER";
const PATIENCE: Duration = Duration::from_secs(60);
const IMPATIENCE: Duration = Duration::from_millis(100);

/// A folder with a store, which has a checkpoint of step 1, and a staging folder.
struct Place(tempfile::TempDir);

impl Place {
    fn new() -> Place {
        let place = Place(tempfile::tempdir().unwrap());
        save(&open(&place.checkpoints(), Options::default()), 1).unwrap();
        std::fs::create_dir(place.staging()).unwrap();
        place
    }

    fn checkpoints(&self) -> PathBuf {
        self.0.path().join("checkpoints")
    }

    fn staging(&self) -> PathBuf {
        self.0.path().join("staging")
    }

    /// A rank that copies a save of step 7 and is killed before anything of it is on disk.
    fn kill_rank(&self, test: &str, rank: u32, world_size: u32) {
        let mut child = self.start_rank(test, &format!("{rank} {world_size}"));
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        assert!(lines.any(|line| line.unwrap().contains("copied")), "the rank says so");
        child.kill().unwrap();
        child.wait().unwrap();
    }

    fn start_rank(&self, test: &str, rank: &str) -> Child {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args([&format!("staged::{test}"), "--exact", "--nocapture"]);
        command.env(RANK, rank).env(FOLDER, self.0.path()).stdout(Stdio::piped()).spawn().unwrap()
    }

    fn finish(&self, wait_max: Duration) -> Vec<Finished> {
        finish_staged(&self.staging(), wait_max).unwrap()
    }
}

/// If this process is to be a rank it never comes back.
fn be_a_rank_if_told() {
    let (Ok(rank), Some(folder)) = (std::env::var(RANK), std::env::var_os(FOLDER)) else { return };
    let (rank, world_size) = rank.split_once(' ').unwrap();
    let hang = |act, _: &Path| {
        if act == DiskAct::CreateFile {
            std::thread::sleep(PATIENCE);
        }
        Ok(())
    };
    let options = Options {
        staging: Some(Path::new(&folder).join("staging")),
        disk_hook: Some(Arc::new(hang)),
        ..Options::writer(rank.parse().unwrap(), world_size.parse().unwrap(), 3)
    };
    let store = open(&Path::new(&folder).join("checkpoints"), options);
    let _pending = store.save(Step(7), &views(&state(7)), &note()).unwrap();
    #[expect(clippy::print_stdout, reason = "the parent waits for it")]
    {
        println!("copied");
    }
    std::thread::sleep(PATIENCE);
    unreachable!("it is killed");
}

/// Proves A-6: what is finished is complete and as it was saved.
#[test]
fn what_a_killed_process_had_copied_is_finished() {
    be_a_rank_if_told();
    let place = Place::new();
    place.kill_rank("what_a_killed_process_had_copied_is_finished", 0, 1);
    assert_eq!(offered(&place.checkpoints()), Some(1), "it had not come to the disk");
    let finished = place.finish(PATIENCE);
    let saved = finished[0].outcome.as_ref().unwrap();
    assert_eq!((finished.len(), finished[0].rank, saved.step), (1, 0, Step(7)));
    assert_eq!(offered(&place.checkpoints()), Some(7));
    let info = open(&place.checkpoints(), Options::reader()).latest().unwrap().checkpoint.unwrap();
    assert_eq!((info.metadata, info.writer, info.content_hash), (note(), 3, saved.content_hash));
    assert_eq!(files(&place.staging()), Vec::<PathBuf>::new());
    assert_eq!(place.finish(PATIENCE).len(), 0, "once");
    // The next attempt finds nothing half-done.
    save(&open(&place.checkpoints(), Options::writer(0, 1, 4)), 8).unwrap();
    assert_eq!(offered(&place.checkpoints()), Some(8));
}

/// Proves A-6.
#[test]
fn a_gangs_save_is_finished_if_every_rank_had_copied_it() {
    be_a_rank_if_told();
    let test = "a_gangs_save_is_finished_if_every_rank_had_copied_it";
    let place = Place::new();
    for rank in 0..3 {
        place.kill_rank(test, rank, 3);
    }
    let finished = place.finish(PATIENCE);
    assert!(finished.iter().all(|finished| finished.outcome.is_ok()), "{finished:?}");
    assert_eq!(finished.iter().map(|finished| finished.rank).collect::<Vec<_>>(), [0, 1, 2]);
    assert_eq!(offered(&place.checkpoints()), Some(7));

    let place = Place::new();
    place.kill_rank(test, 0, 2);
    let finished = place.finish(IMPATIENCE);
    assert!(matches!(finished[0].outcome, Err(Error::Timeout { rank: 1, .. })), "{finished:?}");
    assert_eq!(offered(&place.checkpoints()), Some(1), "a part alone is nothing");
    assert_eq!(files(&place.staging()), Vec::<PathBuf>::new());
    drop(open(&place.checkpoints(), Options::writer(0, 2, 4)));
    let steps = crate::names(&place.checkpoints()).len();
    assert_eq!(steps, 1, "the next attempt finds nothing of it");
}

#[test]
fn what_was_saved_is_not_saved_again_and_a_living_store_keeps_its_copies() {
    let place = Place::new();
    let options = Options { staging: Some(place.staging()), ..Options::writer(0, 1, 3) };
    let store = open(&place.checkpoints(), options.clone());
    save(&store, 2).unwrap();
    save(&store, 3).unwrap();
    assert_eq!(files(&place.staging()).len(), 1, "one copy, used twice, and no note");
    assert_eq!(place.finish(PATIENCE).len(), 0);
    assert_eq!(offered(&place.checkpoints()), Some(3));
    let other = open(&place.checkpoints(), options);
    save(&other, 4).unwrap();
    assert_eq!(files(&place.staging()).len(), 2, "another store of the rank has its own");
    drop((store, other));
    assert_eq!(files(&place.staging()), Vec::<PathBuf>::new());
}

#[test]
fn without_a_staging_folder_a_save_is_copied_to_the_process_alone() {
    let place = Place::new();
    std::fs::remove_dir(place.staging()).unwrap();
    let options = Options { staging: Some(place.staging()), ..Options::default() };
    save(&open(&place.checkpoints(), options), 2).unwrap();
    assert_eq!(offered(&place.checkpoints()), Some(2));
    assert!(matches!(finish_staged(&place.staging(), PATIENCE), Err(Error::Io { .. })));
}

#[test]
fn a_folder_in_memory_that_is_too_small_costs_no_save() {
    let place = Place::new();
    let target = place.0.path().join("small");
    std::fs::create_dir(&target).unwrap();
    let mounted = Command::new("mount").args(["-t", "tmpfs", "-o", "size=12k", "tmpfs"]).arg(&target).status();
    if !mounted.is_ok_and(|status| status.success()) {
        println!("skipped: mounting a file system in memory takes root");
        return;
    }
    let options = Options { staging: Some(target.clone()), ..Options::default() };
    let store = open(&place.checkpoints(), options);
    let saved = save(&store, 2);
    let taken = files(&target);
    drop(store);
    Command::new("umount").arg(&target).status().unwrap();
    assert_eq!((saved.unwrap().step, taken), (Step(2), Vec::new()), "more than half of it would be taken");
}

#[test]
fn a_damaged_note_or_copy_is_refused_by_name_and_nothing_is_saved() {
    be_a_rank_if_told();
    let test = "a_damaged_note_or_copy_is_refused_by_name_and_nothing_is_saved";
    let place = Place::new();
    place.kill_rank(test, 0, 1);
    let (copy, note) = (place.staging().join("rank-00000-0"), place.staging().join("rank-00000-0.json"));
    let text = std::fs::read(&note).unwrap();
    let mut damaged = text.clone();
    damaged[40] ^= 1;
    std::fs::write(&note, &damaged).unwrap();
    let refused = finish_staged(&place.staging(), PATIENCE);
    assert!(matches!(&refused, Err(Error::Corrupt { path, flaw: Flaw::Hash, .. }) if *path == note), "{refused:?}");
    std::fs::write(&note, &text).unwrap();
    std::fs::OpenOptions::new().write(true).open(&copy).unwrap().set_len(4_096).unwrap();
    let refused = &place.finish(PATIENCE)[0].outcome;
    assert!(matches!(refused, Err(Error::Corrupt { flaw: Flaw::Malformed { .. }, .. })), "{refused:?}");
    assert_eq!(offered(&place.checkpoints()), Some(1));
}
