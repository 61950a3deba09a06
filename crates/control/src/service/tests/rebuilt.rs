//! Read models rebuilt from the journal equal those that were stored.

use std::time::Duration;

use gangline_base::JobId;
use gangline_execution::protocol::{FaultCause, Outcome};
use rusqlite::Connection;

use super::random::Chaos;
use super::{Supervisor, World, fault, spec};
use gangline_store::ports::Changes;
use gangline_store::rebuild::{Outcome as Rebuilt, rebuild, rebuild_from_history};

/// The number of histories tried.
const SEEDS: u64 = 12;
/// The number of steps in each history.
const STEPS: usize = 80;

fn database(world: &World) -> Connection {
    Connection::open(world.folder.path().join("journal.sqlite")).expect("the database opens")
}

fn change(world: &World, sql: &str) -> usize {
    database(world).execute(sql, []).expect("the statement is sound")
}

fn forget_snapshots(world: &World) {
    std::fs::remove_dir_all(world.folder.path().join(gangline_store::db::SNAPSHOTS)).expect("they are there");
}

/// Returns every row of the ledger, of accounts and of what nodes offered, and the journal-derived part of every job.
fn rows(world: &World) -> (Vec<String>, Vec<String>) {
    let connection = database(world);
    let read = |sql: &str| {
        let mut statement = connection.prepare(sql).expect("the statement is sound");
        let rows = statement.query_map([], |row| row.get::<_, String>(0)).expect("it is readable");
        rows.collect::<Result<Vec<String>, _>>().expect("it is readable")
    };
    let ledger = "SELECT job || ' ' || attempt || ' ' || node || ' ' || queue || ' ' || devices || ' ' || from_unix_nanos
        || ' ' || to_unix_nanos || ' ' || price_nano_dollars_per_hour || ' ' || cost_nano_dollars || ' ' || compute || ' '
        || data_stall || ' ' || checkpoint_stall || ' ' || communication || ' ' || straggler_wait || ' ' || restart || ' '
        || lost_work || ' ' || idle || ' ' || unreported || hex(sum) FROM ledger ORDER BY job, attempt, node";
    let jobs = "SELECT job || ' ' || is_live || hex(doc) FROM jobs ORDER BY job";
    let accounts = "SELECT job || user || name || state || step || hex(sum) FROM accounts ORDER BY job";
    let capacity = "SELECT node || ' ' || from_unix_nanos || state || devices || hex(sum) FROM capacity ORDER BY 1";
    ([ledger, accounts, capacity].into_iter().flat_map(read).collect(), read(jobs))
}

fn check(world: &World) -> Rebuilt {
    rebuild(world.folder.path(), true).expect("nobody holds the folder")
}

/// Proves A-3 and A-8 for the read models: jobs and ledger follow from the journal alone.
#[test]
fn read_models_made_again_from_random_histories_are_those_that_were_stored() {
    for seed in 0..SEEDS {
        let mut chaos = Chaos::new(1_000 + seed);
        (0..STEPS).for_each(|_| chaos.step());
        // Rows of reports may wait a moment for their commit.
        chaos.world.pass(Duration::from_secs(1));
        chaos.world.stop();
        let found = check(&chaos.world);
        assert_eq!(found.differences, Vec::<String>::new(), "seed {seed}");
        assert!(found.is_sound() && found.jobs.lost + found.bookings.lost + found.jobs.remade == 0, "seed {seed}");
        let before = rows(&chaos.world);
        for table in ["jobs", "ledger"] {
            let part = chaos.below(3);
            change(&chaos.world, &format!("DELETE FROM {table} WHERE job % 3 = {part}"));
            let part = chaos.below(3);
            change(&chaos.world, &format!("UPDATE {table} SET sum = zeroblob(8) WHERE job % 3 = {part}"));
        }
        change(&chaos.world, "DELETE FROM accounts WHERE job % 2 = 1");
        change(&chaos.world, "DELETE FROM capacity WHERE from_unix_nanos % 3 = 1");
        change(&chaos.world, "UPDATE capacity SET devices = devices + 1 WHERE from_unix_nanos % 3 = 2");
        let made = rebuild(chaos.world.folder.path(), false).expect("nobody holds the folder");
        assert_eq!(made.jobs.same + made.jobs.remade, before.1.len() as u64, "seed {seed}");
        assert_eq!(rows(&chaos.world).0, before.0, "seed {seed}: the ledger");
        let again = check(&chaos.world);
        assert!(again.is_sound(), "seed {seed}: {:?}", again.differences);
        chaos.world.open().expect("the folder opens again");
    }
}

/// Real times aren't whole milliseconds, but the journal stores durations in milliseconds.
#[test]
fn a_wait_that_was_rounded_in_words_is_no_difference() {
    let mut world = World::new(&[("n1", 1)]);
    world.drain("n1", super::super::DrainWish::WhenFree).expect("the node is there");
    world.submit(spec("waits", 1, 1));
    world.pass(Duration::from_nanos(4_050_500_000));
    world.drain("n1", super::super::DrainWish::Undo).expect("the node is there");
    assert_eq!(world.launch().len(), 1);
    world.stop();
    assert_eq!(check(&world).differences, Vec::<String>::new());
}

/// Returns a world with one job that failed once and then succeeded, with a checkpoint and samples, and one
/// job that waits.
fn world() -> World {
    let mut world = World::new(&[("n1", 1)]);
    world.submit(spec("first", 1, 1));
    for outcome in [fault(FaultCause::Exit { code: 1 }, world.now), Outcome::Succeeded] {
        world.pass_slowly(Duration::from_secs(40));
        let now = world.now;
        let launched = world.launch().remove(0);
        let mut supervisor = Supervisor::new(&launched, now);
        supervisor.runs(now).steps(now, 3).worked(700_000_000).tell(&mut world);
        world.pass(Duration::from_secs(1));
        supervisor.ends(world.now, outcome).tell(&mut world);
    }
    world.drain("n1", super::super::DrainWish::WhenFree).expect("the node is there");
    world.submit(spec("waits", 1, 1));
    world
}

#[test]
fn a_lost_row_comes_back_with_its_figures() {
    let mut world = world();
    let (shown, booked) = world.stored(JobId(1)).expect("it is there");
    world.stop();
    change(&world, "DELETE FROM jobs WHERE job = 1");
    change(&world, "DELETE FROM ledger WHERE job = 1 AND attempt = 2");
    change(&world, "UPDATE ledger SET cost_nano_dollars = cost_nano_dollars + 1 WHERE job = 1 AND attempt = 1");
    let told = check(&world);
    assert_eq!(
        told.differences,
        [
            "what attempt 1 of job-1 cost on n1 is damaged or missing",
            "what attempt 2 of job-1 cost on n1 is damaged or missing",
            "the row of job-1 is missing"
        ]
    );
    assert_eq!(check(&world).differences_total, 3, "a check changes nothing");
    let made = rebuild(world.folder.path(), false).expect("nobody holds the folder");
    assert_eq!((made.jobs.remade, made.jobs.same, made.bookings.remade), (1, 1, 2));
    assert!(made.before.is_some_and(|path| path.exists()));
    world.open().expect("the folder opens again");
    let (again, booked_again) = world.stored(JobId(1)).expect("it is there");
    assert_eq!(booked_again, booked);
    assert_eq!(again.usage, shown.usage);
    assert_eq!((again.progress, again.checkpoints, again.faults), (shown.progress, shown.checkpoints, shown.faults));
    assert_eq!(again.attempts.len(), shown.attempts.len());
    assert_eq!(again.attempts[0].fault, shown.attempts[0].fault);
    assert_eq!(again.recoveries, shown.recoveries);
}

/// Proves A-8 for the journal of an earlier release: what that journal doesn't contain is kept, and never
/// invented.
#[test]
fn what_an_earlier_release_ended_is_kept_and_its_loss_is_told() {
    let mut world = world();
    let booked = world.ledger(JobId(1));
    let journal = world.folder.path().join("journal.sqlite");
    world.stop();
    without_closed(&world);
    let found = check(&world);
    assert!(found.is_sound(), "{:?}", found.differences);
    assert_eq!((found.bookings.kept, found.bookings.same), (2, 0));
    change(&world, "DELETE FROM ledger WHERE job = 1 AND attempt = 2");
    change(&world, "DELETE FROM jobs WHERE job = 1");
    let made = rebuild(world.folder.path(), false).expect("nobody holds the folder");
    assert_eq!((made.bookings.kept, made.bookings.lost, made.jobs.remade), (1, 1, 1));
    assert_eq!(
        made.differences,
        [
            "what attempt 2 of job-1 cost on n1 is lost: an earlier release ended it",
            "the row of job-1 is missing",
            "how far job-1 came isn't in the journal: an earlier release ended its attempts"
        ]
    );
    assert!(journal.exists());
    assert!(check(&world).is_sound(), "what is lost is told once");
    world.open().expect("the folder opens again");
    assert_eq!(world.ledger(JobId(1)), booked[..1]);
    assert!(world.show(JobId(1)).history.iter().any(|line| line.text.starts_with("part of what it cost is lost")));
}

/// Removes from the journal what this release adds, and chains the rest again.
fn without_closed(world: &World) {
    let folder = world.folder.path();
    let records = gangline_store::db::Reader::open(folder)
        .and_then(|reader| reader.history(gangline_store::db::Sequence::ZERO, 10_000));
    let bodies: Vec<gangline_store::db::Entry> = records
        .expect("it is sound")
        .into_iter()
        .filter(|record| !record.body.starts_with(br#"{"v":3"#))
        .map(|record| gangline_store::db::Entry { at: record.at, body: record.body })
        .collect();
    forget_snapshots(world);
    change(world, "DELETE FROM records");
    for anchor in ["journal.anchor", "high-water"] {
        std::fs::remove_file(folder.join(anchor)).expect("it is there");
    }
    let (mut journal, _) = gangline_store::db::Journal::open(folder, world.journal).expect("it opens");
    let batch = gangline_store::ports::Batch { records: &bodies, given_out: JobId(2), changes: Changes::none() };
    journal.commit(batch).expect("the disk takes it");
}

/// With a damaged record, everything that follows from a later snapshot is rebuilt, and the rest stays as it
/// is.
#[test]
fn a_damaged_record_is_gone_around_and_told() {
    let mut world = world();
    world.stop();
    world.open().expect("the folder opens again");
    let later = world.submit(spec("later", 1, 1));
    world.crash();
    change(&world, "UPDATE records SET body = x'00' WHERE sequence = 4");
    let (_, jobs) = rows(&world);
    change(&world, "UPDATE jobs SET sum = zeroblob(8) WHERE job = 3");
    let made = rebuild(world.folder.path(), false).expect("there is a state after it");
    let told = "journal is corrupt at record 4: its checksum does not match; the last sound record is 3";
    assert_eq!((made.journal.as_deref(), made.known_from), (Some(told), Some(later)));
    assert_eq!((made.jobs.remade, made.differences.as_slice()), (1, &["the row of job-3 is damaged".to_owned()][..]));
    assert_eq!(rows(&world).1[..2], jobs[..2], "these are as they were");
    world.open().expect("the folder opens again");
    assert_eq!(world.show(later).name, "later");
    world.crash();
    forget_snapshots(&world);
    let refused = rebuild(world.folder.path(), true).expect_err("nothing covers it");
    assert!(refused.to_string().starts_with("journal is corrupt at record 4"), "{refused}");
}

#[test]
fn a_folder_that_a_control_plane_holds_is_refused() {
    let world = world();
    let refused = rebuild(world.folder.path(), true).expect_err("it is held");
    assert!(
        matches!(refused, gangline_store::history::Error::Journal(gangline_store::db::Error::InUse { .. })),
        "{refused}"
    );
    let empty = tempfile::tempdir().expect("the temporary folder is writable");
    assert!(rebuild(empty.path(), true).is_err());
}

/// Jobs removed by age are no damage and don't come back; their cost stays in the ledger.
#[test]
fn jobs_that_were_removed_on_purpose_stay_away() {
    let mut world = world();
    world.stop();
    let ledger = rows(&world).0;
    let removals = [gangline_store::model::Removal::Jobs { jobs: JobId(1)..JobId(2) }];
    world.change_rows(Changes { at: world.now, removals: &removals, ..Changes::none() });
    let found = check(&world);
    assert_eq!((found.differences.clone(), found.jobs.removed), (Vec::new(), 1));
    change(&world, "UPDATE jobs SET sum = zeroblob(8)");
    let made = rebuild(world.folder.path(), false).expect("nobody holds the folder");
    assert_eq!((made.jobs.remade, made.jobs.removed), (1, 1));
    assert_eq!((rows(&world).0, rows(&world).1.len()), (ledger, 1));
    let again = check(&world);
    assert!(again.is_sound() && again.jobs.removed == 1, "{:?}", again.differences);
}

/// Proves A-14 where the database is gone: archive and snapshots are restored, the rest is reported as lost,
/// and no id is reused.
#[test]
fn a_lost_database_is_begun_anew_from_history_and_snapshots() {
    let mut world = super::room::small();
    let first = world.submit(spec("ends", 1, 1));
    let now = world.now;
    let launched = world.launch().remove(0);
    Supervisor::new(&launched, now).runs(now).steps(now, 3).worked(700).ends(now, Outcome::Succeeded).tell(&mut world);
    let (taken, _) = super::room::fill(&mut world);
    world.pass_slowly(Duration::from_secs(5));
    let (shown, booked) = world.stored(first).expect("it is there");
    world.submit(spec("in the database alone", 1, 1));
    let last = world.submit(spec("too", 1, 1));
    world.crash();
    let path = world.folder.path().join("journal.sqlite");
    std::fs::write(&path, vec![0; 8_192]).expect("it is ours");
    rebuild(world.folder.path(), false).expect_err("there is no schema");
    let made = rebuild_from_history(world.folder.path()).expect("history and snapshots are there");
    assert!(made.before.as_ref().is_some_and(|before| before.exists()), "the lost one is kept");
    let told = made.journal.clone().unwrap_or_default();
    assert_eq!((made.jobs.remade, made.bookings.remade), (1, 1));
    let refused = world.open().expect_err("the loss has to be accepted").to_string();
    assert!(refused.contains("journal") && told.contains("--accept-loss-after"), "{refused} {told}");
    let after = made.differences[0].split(['d', ';']).find_map(|part| part.trim().parse().ok()).expect("it says where");
    world.journal.accept_loss_after = Some(gangline_store::db::Sequence(after));
    world.open().expect("it opens");
    let (again, booked_again) = world.stored(first).expect("it is made again");
    assert_eq!((again.state, again.ended_at, booked_again), (shown.state, shown.ended_at, booked));
    assert!(world.submit(spec("next", 1, 1)) > last, "no id is given out again");
    assert!(world.stored(taken[0]).is_some(), "what waits is known by the state");
}

/// Proves A-14: an attempt that is live again, because records were lost, is booked as the journal says.
#[test]
fn an_attempt_whose_end_was_lost_is_booked_as_the_journal_has_it() {
    let mut world = World::new(&[("n1", 1)]);
    let job = world.submit(spec("runs again", 1, 1));
    let now = world.now;
    let first = world.launch().remove(0);
    let mut supervisor = Supervisor::new(&first, now);
    supervisor.runs(now).steps(now, 3).worked(700).tell(&mut world);
    let newest = "SELECT max(sequence) FROM records";
    let last: i64 = database(&world).query_row(newest, [], |row| row.get(0)).expect("there are some");
    world.pass(Duration::from_secs(2));
    let now = world.now;
    supervisor.ends(now, Outcome::Requeue).tell(&mut world);
    world.pass_slowly(Duration::from_secs(60));
    let second = world.launch().remove(0);
    let now = world.now;
    Supervisor::new(&second, now).runs(now).ends(now, Outcome::Succeeded).tell(&mut world);
    assert_eq!(world.show(job).state, gangline_api::JobState::Succeeded);
    world.crash();
    let damage = format!("UPDATE records SET body = zeroblob(9) WHERE sequence = {}", last + 1);
    database(&world).execute(&damage, []).expect("it is there");
    world.open().expect_err("a record in the middle is damaged");
    world.journal.accept_loss_after =
        Some(gangline_store::db::Sequence(u64::try_from(last).expect("it is counted from 1")));
    world.open().expect("the loss is accepted");
    assert_eq!(world.show(job).attempts.len(), 1, "its first attempt is live again");
    // The job's supervisor is gone.
    world.dies(&first);
    world.pass_slowly(Duration::from_secs(60));
    assert!(world.show(job).attempts.len() > 1);
    world.stop();
    let found = check(&world);
    assert!(found.is_sound(), "{:?}", found.differences);
}

#[test]
fn without_history_and_snapshots_nothing_is_begun_anew() {
    let folder = tempfile::tempdir().expect("a folder");
    std::fs::write(folder.path().join("journal.sqlite"), "lost").expect("it is ours");
    let refused = rebuild_from_history(folder.path()).expect_err("there is nothing");
    assert!(refused.to_string().contains("history"), "{refused}");
    assert_eq!(
        std::fs::read(folder.path().join("journal.sqlite")).expect("it is there"),
        b"lost",
        "nothing has been changed"
    );
}
