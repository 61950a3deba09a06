//! A flipped bit anywhere in the database file: nothing is silently different, and everything but the journal
//! itself is rebuilt.

use std::collections::BTreeMap;

use gangline_api::{self as api, JobState};
use gangline_base::JobId;
use gangline_execution::protocol::Outcome;
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};

use rusqlite::Connection;

use super::super::StartError;
use super::{Supervisor, World, spec};
use gangline_store::db;
use gangline_store::history;
use gangline_store::model::{Booked, Listing, Standing};
use gangline_store::ports::Queries as _;
use gangline_store::rebuild::rebuild;

/// The number of bits flipped, each in a copy of its own.
const FLIPS: usize = 60;
const PAGE_BYTES: usize = 4_096;
/// The number of ended jobs.
const JOBS: u64 = 40;

/// Returns a world with ended jobs, some samples and an answer, all in the database file.
fn world() -> World {
    let mut world = World::new(&[("n1", 1)]);
    for number in 0..JOBS {
        world.submit(spec(&format!("job {number}"), 1, 1));
        let now = world.now;
        let launched = world.launch().remove(0);
        let mut supervisor = Supervisor::new(&launched, now);
        supervisor.runs(now).steps(now, 3 + number).worked(100_000_000 * number).tell(&mut world);
        world.pass(std::time::Duration::from_secs(1 + number));
        supervisor.ends(world.now, Outcome::Succeeded).tell(&mut world);
    }
    world.stop();
    world
}

type Shown = BTreeMap<JobId, (api::Job, Vec<Booked>)>;

fn listing(world: &mut World) -> Result<Listing, db::Error> {
    let reader = world.actor().journal.reader();
    let last = JobId(world.health().last_job + 1);
    match reader.jobs(&Standing::Any.into(), None, 500) {
        Err(db::Error::Damaged { .. }) => reader.jobs_singly(&Standing::Any.into(), last, 500),
        found => found,
    }
}

/// Returns the visible state of each job, and the jobs reported as damaged.
fn shown(world: &mut World) -> Result<(Shown, Vec<JobId>), db::Error> {
    let Listing { jobs, damaged, .. } = listing(world)?;
    let to_api = |(record, booked): (gangline_store::model::JobRecord, Vec<Booked>)| {
        let shown = crate::views::to_api("/data".as_ref(), &record, &booked, crate::views::Texts::Whole);
        (record.id, (shown, booked))
    };
    Ok((jobs.into_iter().map(to_api).collect(), damaged))
}

/// Drops what only a record has: the ranks at its end, and notes of the moment.
fn lasting(shown: &Shown) -> Shown {
    let mut shown = shown.clone();
    for (job, _) in shown.values_mut() {
        job.history.clear();
        job.attempts.iter_mut().flat_map(|attempt| &mut attempt.shares).for_each(|share| share.ranks.clear());
    }
    shown
}

/// The outcome of a start on a damaged folder.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Started {
    Refused,
    Right,
    Told,
}

fn start(world: &mut World, right: &Shown) -> Started {
    match world.open() {
        Err(StartError::Journal(error)) => {
            assert!(!error.hint().is_empty(), "{error}");
            return Started::Refused;
        }
        Err(_) => return Started::Refused,
        Ok(()) => {}
    }
    let health = world.health();
    let (found, damaged) = match shown(world) {
        Ok(found) => found,
        Err(error) => {
            println!("the listing: {} {error:?}", error.code());
            return Started::Told;
        }
    };
    for (id, job) in &found {
        assert!(right.get(id) == Some(job), "{id} is silently different");
    }
    let is_all = right.keys().all(|id| found.contains_key(id) || damaged.contains(id));
    match health.reason {
        _ if found.len() == right.len() && health.status == "ok" => Started::Right,
        Some(_) => Started::Told,
        None if is_all => Started::Told,
        None => panic!("jobs are missing and nothing was told"),
    }
}

/// Proves against bits that a disk has changed.
#[test]
fn a_flipped_bit_anywhere_is_refused_or_told_and_made_good_from_the_journal() {
    let mut sound = world();
    sound.open().expect("it is sound");
    let (right, damaged) = shown(&mut sound).expect("it is sound");
    assert_eq!((right.len() as u64, damaged.len()), (JOBS, 0));
    assert!(right.values().all(|(job, booked)| job.state == JobState::Succeeded && booked.len() == 1));
    sound.stop();
    let database = Connection::open(sound.folder.path().join("journal.sqlite")).expect("it is sound");
    database.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(())).expect("nobody is in the way");
    database.close().expect("nothing is left to do");
    let bytes = std::fs::read(sound.folder.path().join("journal.sqlite")).expect("it is readable");
    let pages = bytes.len() / PAGE_BYTES;
    let mut random = ChaCha8Rng::seed_from_u64(20);
    let (mut refused, mut fine, mut told, mut made, mut hit) = (0, 0, 0, 0, 0);
    for flip in 0..FLIPS {
        let mut world = sound.copy();
        let page = flip * pages / FLIPS;
        let at = page * PAGE_BYTES + usize::try_from(random.next_u32()).expect("small") % PAGE_BYTES;
        let mut flipped = bytes.clone();
        flipped[at] ^= 1 << (random.next_u32() % 8);
        let path = world.folder.path().join("journal.sqlite");
        std::fs::write(&path, &flipped).expect("the file is ours");
        let what = format!("byte {at} of page {page} of {pages}");
        match start(&mut world, &right) {
            Started::Refused => refused += 1,
            Started::Right => fine += 1,
            Started::Told => told += 1,
        }
        world.crash();
        // The copy is of the state before the start, which may have written.
        let mut world = sound.copy();
        std::fs::write(world.folder.path().join("journal.sqlite"), &flipped).expect("the file is ours");
        match rebuild(world.folder.path(), false) {
            Ok(outcome) => {
                made += usize::from(outcome.before.is_some());
                world.open().unwrap_or_else(|error| panic!("{what}: {error:?} after {outcome:?}"));
                let (found, damaged) = shown(&mut world).expect("it is sound");
                assert!(damaged.is_empty(), "{what}: {damaged:?} after {outcome:?}");
                assert_eq!(lasting(&found), lasting(&right), "{what}");
                assert_eq!(world.health().reason, None, "{what}");
            }
            Err(history::Error::Journal(error)) => {
                assert!(!error.hint().is_empty(), "{what}: {error}");
                hit += 1;
            }
            Err(error) => panic!("{what}: {error}"),
        }
    }
    println!("{pages} pages: {refused} refused, {fine} harmless, {told} told; {made} rebuilt, {hit} hit the journal");
    assert!(told > 0 && made > 0 && hit < FLIPS * 3 / 4, "{told} told, {made} rebuilt, {hit} hit the journal");
}
