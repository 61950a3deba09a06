//! A write-ahead log that loses its tail after a part of it was checkpointed: the database file then has pages
//! from after the loss, so that the read models are ahead of the journal.

use std::fs;
use std::path::Path;

use gangline_base::JobId;
use rusqlite::Connection;
use rusqlite::config::DbConfig;

use super::super::StartError;
use super::World;
use super::random::Chaos;
use gangline_store::db;
use gangline_store::rebuild::rebuild;

/// The number of histories tried.
const SEEDS: u64 = 48;
const STEPS_BEFORE: usize = 50;
const STEPS_AFTER: usize = 20;
const DATABASE: &str = "journal.sqlite";
const LOG: &str = "journal.sqlite-wal";

/// Checkpoints the log as far as it goes. The returned connection keeps the log from being begun anew, as a
/// slow reader does.
fn checkpointed(folder: &Path) -> Connection {
    let connection = Connection::open(folder.join(DATABASE)).expect("the database opens");
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, true).expect("the option is known");
    connection.execute_batch("BEGIN; SELECT count(*) FROM records; PRAGMA user_version;").expect("it is readable");
    let other = Connection::open(folder.join(DATABASE)).expect("the database opens");
    let all = other.query_row("PRAGMA wal_checkpoint(PASSIVE)", [], |row| row.get::<_, i64>(0));
    assert_eq!(all, Ok(0), "nobody else checkpoints");
    connection
}

/// Crashes the control plane and leaves the given part of its log.
fn crash_with_log(world: &mut World, part: (u64, u64)) {
    let folder = world.folder.path().to_owned();
    let files = [DATABASE, LOG].map(|name| fs::read(folder.join(name)).expect("the control plane is up"));
    world.crash();
    let [database, log] = files;
    let length = usize::try_from(log.len() as u64 * part.0 / part.1).expect("the log is small");
    fs::write(folder.join(DATABASE), database).expect("there is room");
    fs::write(folder.join(LOG), &log[..length]).expect("there is room");
    // Its index may not exist any more.
    let _ = fs::remove_file(folder.join("journal.sqlite-shm"));
}

/// Opens the folder and accepts the loss that is told. Returns whether records were lost; none if the
/// database's pages don't fit together, so that only a backup helps.
fn open_with_loss(world: &mut World) -> Option<bool> {
    let last = match world.open() {
        Ok(()) => return Some(false),
        Err(StartError::Journal(db::Error::TailLost { last, .. })) => last,
        Err(StartError::Journal(db::Error::Corrupt { last_sound, .. })) => last_sound,
        Err(StartError::Journal(db::Error::Damaged { .. })) => return None,
        Err(other) => panic!("{other:?}"),
    };
    world.journal.accept_loss_after = Some(last);
    match world.open() {
        Ok(()) => Some(true),
        Err(StartError::Journal(db::Error::Damaged { .. })) => None,
        Err(other) => panic!("{other:?}"),
    }
}

/// Checks that exactly the ended attempts of every job are booked, with the times that its record has.
fn check_books(world: &mut World, jobs: u64, seed: u64) {
    for job in (1..=jobs).map(JobId) {
        let Some((shown, booked)) = world.stored(job) else { continue };
        let rows: Vec<(u32, String)> = booked.iter().map(|row| (row.attempt, row.node.clone())).collect();
        let ended = shown.attempts.iter().filter(|attempt| attempt.ended_at.is_some());
        let mut shares: Vec<(u32, String)> =
            ended.flat_map(|attempt| attempt.shares.iter().map(|share| (attempt.number, share.node.clone()))).collect();
        shares.sort();
        assert_eq!(rows, shares, "seed {seed}: {job}");
    }
}

/// Proves: what the lost records had booked isn't booked any more.
#[test]
fn a_log_that_lost_its_tail_after_a_checkpoint_leaves_no_bookings_of_lost_records() {
    let mut losses = 0;
    for seed in 0..SEEDS {
        let mut chaos = Chaos::new(9_000 + seed);
        (0..STEPS_BEFORE).for_each(|_| chaos.step());
        let reader = checkpointed(chaos.world.folder.path());
        (0..STEPS_AFTER).for_each(|_| chaos.step());
        let kept = 1 + u64::from(chaos.below(8));
        let jobs = chaos.jobs.len() as u64;
        crash_with_log(&mut chaos.world, (kept, 10));
        drop(reader);
        if open_with_loss(&mut chaos.world) == Some(true) {
            losses += 1;
            check_books(&mut chaos.world, jobs, seed);
            chaos.world.stop();
            let found = rebuild(chaos.world.folder.path(), true).expect("nobody holds the folder");
            assert!(found.is_sound(), "seed {seed}: {:?}", found.differences);
        }
    }
    assert!(losses >= SEEDS / 4, "only {losses} histories lost something");
}
