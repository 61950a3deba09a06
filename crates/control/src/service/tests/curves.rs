//! Curves of ended jobs are packed, and readers see no difference.

use std::time::Duration;

use gangline_base::JobId;
use gangline_execution::protocol::Outcome;
use gangline_specs::config::Retention;
use rusqlite::Connection;

use super::retention::{clean, later, pack_curves, samples, store_curve, succeed};
use super::{Supervisor, World, spec};
use gangline_store::model::Repair;
use gangline_store::ports::Changes;
use gangline_store::ports::{JobCurve, Series as _};
use gangline_store::rebuild::rebuild;

/// Keeps everything for ever except the points of curves.
const KEEPING: Retention = Retention { logs: None, failed_logs: None, jobs: None, ..Retention::DEFAULT };

fn series(world: &mut World, job: JobId, points_max: u32) -> JobCurve {
    world.actor().reader.curve(job, points_max).expect("readable").expect("it is there")
}

/// Returns the number of a job's packed blocks, and of the samples in them.
fn packed(world: &World, job: JobId) -> (u64, u64) {
    let sql = "SELECT count(*), coalesce(sum(points), 0) FROM curves WHERE job = ?1";
    let read =
        |row: &rusqlite::Row<'_>| Ok((row.get::<_, i64>(0)?.cast_unsigned(), row.get::<_, i64>(1)?.cast_unsigned()));
    database(world).query_row(sql, [job.0.cast_signed()], read).expect("readable")
}

fn database(world: &World) -> Connection {
    Connection::open(world.folder.path().join("journal.sqlite")).expect("the database opens")
}

fn damaged_in_audit(world: &mut World) -> u64 {
    world.actor().reader.audit_blocks(0, 1_000).expect("readable").damaged
}

#[test]
fn a_packed_curve_reads_as_before_and_takes_a_fraction() {
    let mut world = World::new(&[("n1", 2)]);
    let (job, _) = succeed(&mut world, "trains");
    store_curve(&mut world, job, 5_000);
    let live = world.submit(spec("goes on", 1, 1));
    let now = world.now;
    let launched = world.launch().remove(0);
    Supervisor::new(&launched, now).runs(now).steps(now, 3).tell(&mut world);
    store_curve(&mut world, live, 500);
    let drawn = [2, 7, 300, 499].map(|points| series(&mut world, job, points));
    let read = |world: &mut World, after| {
        let losses = world.actor().reader.losses((job, 1), after, 700);
        losses.expect("readable")
    };
    let losses = [None, Some(0), Some(127), Some(3_000), Some(4_998), Some(4_999)].map(|after| read(&mut world, after));
    pack_curves(&mut world, Some(1)).expect_err("cut short");
    assert_eq!((samples(&mut world, job).0, packed(&world, job)), (3_000, (16, 2_000)), "and in both places meanwhile");
    let check = |world: &mut World| {
        assert_eq!([2, 7, 300, 499].map(|points| series(world, job, points)), drawn);
        let again = [None, Some(0), Some(127), Some(3_000), Some(4_998), Some(4_999)].map(|after| read(world, after));
        assert_eq!(again, losses);
    };
    check(&mut world);
    world.crash_and_restart();
    pack_curves(&mut world, None).expect("nothing stops it");
    assert_eq!((samples(&mut world, job).0, packed(&world, job).1), (0, 5_000));
    check(&mut world);
    assert_eq!((samples(&mut world, live).0, packed(&world, live)), (500, (0, 0)), "it hasn't ended");
    pack_curves(&mut world, Some(0)).expect("there is nothing left to do");
    let bytes: i64 =
        database(&world).query_row("SELECT sum(length(body)) FROM curves", [], |row| row.get(0)).expect("readable");
    assert!(bytes < 12 * 5_000, "{bytes} bytes");
    assert_eq!(damaged_in_audit(&mut world), 0);
}

#[test]
fn every_flipped_bit_of_a_block_is_told_and_hides_no_other() {
    let mut world = World::new(&[("n1", 1)]);
    let (job, _) = succeed(&mut world, "trains");
    store_curve(&mut world, job, 300);
    pack_curves(&mut world, None).expect("nothing stops it");
    let sound = series(&mut world, job, 300);
    assert_eq!((sound.points.len(), sound.damaged), (300, 0));
    let connection = database(&world);
    let body: Vec<u8> =
        connection.query_row("SELECT body FROM curves WHERE first = 128", [], |row| row.get(0)).expect("readable");
    for bit in (0..body.len() * 8).step_by(13) {
        let mut flipped = body.clone();
        flipped[bit / 8] ^= 1 << (bit % 8);
        connection.execute("UPDATE curves SET body = ?1 WHERE first = 128", [flipped]).expect("it is ours");
        let found = series(&mut world, job, 300);
        assert_eq!((found.points.len(), found.damaged), (172, 128), "bit {bit}");
        assert_eq!(damaged_in_audit(&mut world), 128);
    }
    connection.execute("UPDATE curves SET body = ?1 WHERE first = 128", [body]).expect("it is ours");
    for change in ["first = first + 1", "last = last - 1", "points = 127", "attempt = 2", "job = 7", "sum = x'00'"] {
        connection.execute_batch("SAVEPOINT tried").expect("it is ours");
        let sql = format!("UPDATE curves SET {change} WHERE first = 128");
        assert_eq!(connection.execute(&sql, []).expect("it is sound"), 1);
        connection.execute_batch("RELEASE tried").expect("it is ours");
        assert!(damaged_in_audit(&mut world) > 0, "{change}");
        connection
            .execute("UPDATE curves SET first = 128, last = 255, points = 128, attempt = 1, job = 1 WHERE id = 2", [])
            .expect("it is ours");
    }
}

#[test]
fn a_damaged_sample_is_not_packed_and_still_told() {
    let mut world = World::new(&[("n1", 1)]);
    let (job, _) = succeed(&mut world, "trains");
    store_curve(&mut world, job, 300);
    database(&world).execute("UPDATE samples SET loss = 7.5 WHERE number = 50", []).expect("it is ours");
    let before = series(&mut world, job, 300);
    assert_eq!((before.points.len(), before.damaged), (299, 1));
    pack_curves(&mut world, None).expect("nothing stops it");
    assert_eq!((samples(&mut world, job).0, packed(&world, job).1), (1, 299));
    assert_eq!(series(&mut world, job, 300), before);
}

#[test]
fn a_packed_curve_is_thinned_to_the_points_that_an_unpacked_one_keeps() {
    let thinned = [false, true].map(|is_packed| {
        let mut world = World::new(&[("n1", 1)]);
        let (job, _) = succeed(&mut world, "trains");
        store_curve(&mut world, job, 10_000);
        if is_packed {
            pack_curves(&mut world, None).expect("nothing stops it");
        }
        later(&mut world, 30);
        let swept = clean(&mut world, KEEPING);
        assert_eq!(clean(&mut world, KEEPING).points, 0, "and only once");
        let (rows, blocks) = (samples(&mut world, job).0, packed(&world, job).1);
        assert_eq!((rows > 0, blocks > 0), (!is_packed, is_packed));
        (
            swept.points,
            rows + blocks,
            series(&mut world, job, 1_000).points.iter().map(|point| point.step).collect::<Vec<_>>(),
        )
    });
    assert_eq!(thinned[0], thinned[1]);
    assert!((290..=302).contains(&thinned[0].1), "{}", thinned[0].1);
}

#[test]
fn packed_samples_go_with_the_records_and_come_through_a_rebuild() {
    let mut world = World::new(&[("n1", 1)]);
    let (job, _) = succeed(&mut world, "old");
    store_curve(&mut world, job, 1_000);
    let (last, _) = succeed(&mut world, "last");
    store_curve(&mut world, last, 400);
    pack_curves(&mut world, None).expect("nothing stops it");
    let drawn = series(&mut world, job, 300);
    world.stop();
    database(&world).execute("DELETE FROM ledger WHERE job = 1", []).expect("it is ours");
    let made = rebuild(world.folder.path(), false).expect("nobody holds the folder");
    assert_eq!((made.lost_samples, made.bookings.remade), (0, 1));
    world.open().expect("the folder opens again");
    assert_eq!(series(&mut world, job, 300), drawn);
    later(&mut world, 500);
    clean(&mut world, Retention::DEFAULT);
    clean(&mut world, Retention::DEFAULT);
    assert_eq!((world.stored(job).is_some(), packed(&world, job)), (false, (0, 0)));
    assert!(packed(&world, last).1 > 0, "the newest record stays, and its curve");
}

/// Tests an accepted loss of records: the job is live again, and its supervisor goes on with its samples.
#[test]
fn an_attempt_that_goes_on_again_has_each_sample_once() {
    let mut world = World::new(&[("n1", 1)]);
    let job = world.submit(spec("trains", 1, 1));
    let launched = world.launch().remove(0);
    let now = world.now;
    Supervisor::new(&launched, now).runs(now).steps(now, 3).ends(now, Outcome::Succeeded).tell(&mut world);
    store_curve(&mut world, job, 300);
    pack_curves(&mut world, None).expect("nothing stops it");
    world.stop();
    let repairs = [Repair::Rewind { job, placed: 1, closed: 0 }];
    world.change_rows(Changes { repairs: &repairs, ..Changes::none() });
    world.open().expect("the folder opens again");
    assert_eq!((samples(&mut world, job).0, packed(&world, job)), (300, (0, 0)));
    // These samples were packed in the meantime and are reported again.
    pack_curves(&mut world, None).expect("nothing stops it");
    store_curve(&mut world, job, 350);
    let drawn = series(&mut world, job, 500);
    let steps: Vec<u64> = drawn.points.iter().map(|point| point.step).skip(1).collect();
    assert_eq!((steps.len(), steps.is_sorted_by(|one, next| one < next)), (349, true));
    for _ in 0..2 {
        pack_curves(&mut world, None).expect("nothing stops it");
        assert_eq!(series(&mut world, job, 500), drawn);
    }
    assert_eq!((samples(&mut world, job).0, packed(&world, job).1), (0, 350));
    world.pass(Duration::from_secs(1));
}
