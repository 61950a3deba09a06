//! Rows of read models changed by a disk: each is reported on its own, and none is shown with false content.

use std::time::Duration;

use gangline_api::JobState;
use gangline_base::JobId;
use gangline_execution::protocol::Outcome;
use rusqlite::Connection;

use super::{Supervisor, World, spec};
use gangline_store::db;
use gangline_store::model::{Listing, Standing};
use gangline_store::ports::Queries as _;

fn listing(world: &mut World) -> Listing {
    let reader = world.actor().journal.reader();
    reader.jobs(&Standing::Any.into(), None, 100).expect("one bad row hides no other")
}

/// Returns a world with two ended jobs and one that waits.
fn world() -> World {
    let mut world = World::new(&[("n1", 1)]);
    for name in ["first", "second"] {
        world.submit(spec(name, 1, 1));
        let now = world.now;
        let launched = world.launch().remove(0);
        Supervisor::new(&launched, now).runs(now).steps(now, 3).ends(now, Outcome::Succeeded).tell(&mut world);
    }
    world.drain("n1", super::super::DrainWish::WhenFree).expect("the node is there");
    world.submit(spec("waits", 1, 1));
    world
}

fn tamper(world: &World, sql: &str) {
    let connection = Connection::open(world.folder.path().join("journal.sqlite")).expect("the database opens");
    assert_eq!(connection.execute(sql, []).expect("the statement is sound"), 1, "{sql}");
}

#[test]
fn every_flipped_bit_of_a_jobs_row_is_told_and_hides_no_other_job() {
    let mut world = world();
    let reader = world.actor().journal.reader();
    let doc = stored_document(&mut world, JobId(2));
    let connection = Connection::open(world.folder.path().join("journal.sqlite")).expect("the database opens");
    for bit in (0..doc.len() * 8).step_by(97) {
        let mut flipped = doc.clone();
        flipped[bit / 8] ^= 1 << (bit % 8);
        let sql = "UPDATE jobs SET doc = CAST(?1 AS TEXT) WHERE job = 2";
        assert_eq!(connection.execute(sql, [&flipped]).expect("the statement is sound"), 1);
        let found = listing(&mut world);
        assert_eq!(found.damaged, [JobId(2)], "bit {bit}");
        assert_eq!(found.jobs.iter().map(|(job, _)| job.id).collect::<Vec<_>>(), [JobId(3), JobId(1)]);
        let alone = reader.job(JobId(2));
        assert!(matches!(alone, Err(db::Error::Row(_))), "bit {bit}");
    }
}

/// A row that is missing from an index appears in listings but not in searches.
#[test]
fn an_index_that_does_not_fit_its_table_is_found_by_the_daily_pass() {
    let mut world = world();
    let reader = world.actor().journal.reader();
    let told = |reader: &gangline_store::db::Reader| {
        super::super::audit::pass(reader, &|| true).expect("it isn't stopped").summary()
    };
    assert_eq!(told(&reader), None);
    let other = "UPDATE sqlite_schema SET sql = replace(sql, 'is_live = 1', 'is_live = 0') WHERE name = 'jobs_live'";
    let connection = Connection::open(world.folder.path().join("journal.sqlite")).expect("the database opens");
    connection.pragma_update(None, "writable_schema", "ON").expect("it is ours");
    assert_eq!(connection.execute(other, []).expect("the statement is sound"), 1);
    drop(connection);
    world.crash();
    world.open().expect("the folder opens again");
    let reader = world.actor().journal.reader();
    assert_eq!(reader.quick_verdict().expect("it is readable"), None, "what a start looks at doesn't show it");
    let told = told(&reader).expect("it is found");
    assert!(told.contains("jobs_live") && told.ends_with("run gangline rebuild"), "{told}");
}

/// A bill doesn't show false content, and the daily pass counts what it is made of.
#[test]
fn damaged_rows_of_bills_are_told() {
    let mut world = world();
    let reader = world.actor().journal.reader();
    let told = || super::super::audit::pass(&reader, &|| true).expect("it isn't stopped").summary();
    assert_eq!(told(), None);
    tamper(&world, "UPDATE accounts SET user = 'somebody else' WHERE job = 1");
    tamper(&world, "UPDATE capacity SET devices = devices + 1 WHERE state = 'draining'");
    let found = told().expect("it is found");
    assert!(found.contains("2 of the rows that bills are made of"), "{found}");
    let all = (gangline_base::Timestamp::EPOCH, gangline_base::Timestamp::from_unix_nanos(u64::MAX));
    assert!(matches!(reader.usage(all, &mut |_| {}), Err(db::Error::Row(_))));
    assert!(matches!(reader.capacities(all), Err(db::Error::Row(_))));
}

fn stored_document(world: &mut World, job: JobId) -> Vec<u8> {
    let sql = format!("SELECT doc FROM jobs WHERE job = {}", job.0);
    let read = |row: &rusqlite::Row<'_>| Ok(row.get_ref(0)?.as_bytes()?.to_vec());
    world.database().query_row(&sql, [], read).expect("it is there")
}

/// A year's jobs are kept, and the records of their ranks repeat each other.
#[test]
fn the_record_of_a_job_that_has_ended_is_packed_and_reads_as_before() {
    let mut world = world();
    let (shown, ended, waits) =
        (world.show(JobId(1)), stored_document(&mut world, JobId(1)), stored_document(&mut world, JobId(3)));
    assert_eq!((shown.state, shown.attempts.len()), (JobState::Succeeded, 1));
    assert!(waits.starts_with(b"{"), "one that changes yet isn't packed");
    assert!(!ended.starts_with(b"{") && ended.len() < 1_000, "{} bytes", ended.len());
    // The record is stored as an earlier release did.
    let reader = world.actor().journal.reader();
    let (record, _) = reader.job(JobId(1)).expect("read").expect("it is there");
    let plain = serde_json::to_string(&record).expect("a record is JSON");
    let connection = Connection::open(world.folder.path().join("journal.sqlite")).expect("the database opens");
    let sql = "UPDATE jobs SET doc = ?1, sum = NULL WHERE job = 1";
    assert_eq!(connection.execute(sql, [&plain]).expect("the statement is sound"), 1);
    assert!(ended.len() < plain.len() / 2, "{} of {}", ended.len(), plain.len());
    assert_eq!(world.show(JobId(1)), shown);
}

#[test]
fn ended_jobs_share_pages() {
    const JOBS: u32 = 60;
    let mut world = World::new(&[("n1", 1)]);
    for _ in 0..JOBS {
        let mut long = spec("long", 1, 1);
        long.program.run = "train ".repeat(500);
        world.submit(long);
    }
    for number in 1..=JOBS {
        let now = world.now;
        let mut supervisor = Supervisor::new(&world.launch()[0], now);
        supervisor.runs(now).ends(now, Outcome::Succeeded).tell(&mut world);
        assert_eq!(world.show(JobId(number.into())).state, JobState::Succeeded);
    }
    let sql = "SELECT count(*) FROM dbstat WHERE name = 'jobs'";
    let pages: u32 = world.database().query_row(sql, [], |row| row.get(0)).expect("counted");
    assert!(pages < JOBS / 2, "{pages} pages for {JOBS} jobs");
}

#[test]
fn every_changed_column_of_the_ledger_is_told() {
    let columns = [
        "queue",
        "devices",
        "from_unix_nanos",
        "to_unix_nanos",
        "price_nano_dollars_per_hour",
        "cost_nano_dollars",
        "compute",
        "data_stall",
        "checkpoint_stall",
        "communication",
        "straggler_wait",
        "restart",
        "lost_work",
        "idle",
        "unreported",
    ];
    for column in columns {
        let mut world = world();
        let value = if column == "queue" { "'other'".to_owned() } else { format!("{column} + 1") };
        tamper(&world, &format!("UPDATE ledger SET {column} = {value} WHERE job = 1"));
        assert_eq!(listing(&mut world).damaged, [JobId(1)], "{column}");
    }
}

#[test]
fn the_row_of_a_job_that_has_not_ended_is_made_anew_at_the_start() {
    let mut world = world();
    world.crash();
    tamper(&world, "UPDATE jobs SET doc = replace(doc, 'waits', 'wants') WHERE job = 3");
    world.open().expect("the folder opens again");
    let shown = world.show(JobId(3));
    assert_eq!((shown.name.as_str(), shown.state), ("waits", JobState::Waiting));
    assert!(listing(&mut world).damaged.is_empty());
    world.crash();
    tamper(&world, "UPDATE jobs SET is_live = 0 WHERE job = 3");
    world.open().expect("the folder opens again");
    assert_eq!(world.show(JobId(3)).state, JobState::Waiting);
}

#[test]
fn samples_of_all_nodes_are_acknowledged() {
    let mut world = World::new(&[("n1", 1), ("n2", 1)]);
    world.submit(spec("gang", 2, 1));
    let now = world.now;
    let mut supervisors: Vec<Supervisor> = world.launch().iter().map(|spec| Supervisor::new(spec, now)).collect();
    for supervisor in &mut supervisors {
        supervisor.runs(now).steps(now, 3).tell(&mut world);
    }
    world.pass(Duration::from_secs(1));
    for supervisor in &mut supervisors {
        assert_eq!(supervisor.tell(&mut world).samples_stored, 1, "{}", supervisor.spec.node);
    }
    assert_eq!(world.sampled(JobId(1)), Some(3));
}

#[test]
fn damage_is_said_in_the_health_at_the_next_start_and_a_lost_booking_is_damage() {
    let mut world = world();
    assert_eq!(world.health().reason, None);
    world.crash();
    tamper(&world, "DELETE FROM ledger WHERE job = 2");
    world.open().expect("the folder opens again");
    let health = world.health();
    assert_eq!(health.status, "degraded");
    let told = "damaged on disk: 1 of the jobs; run gangline rebuild";
    assert_eq!(health.reason.as_deref(), Some(told));
    assert_eq!(listing(&mut world).damaged, [JobId(2)]);
}
