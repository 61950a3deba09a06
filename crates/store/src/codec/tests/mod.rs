//! Tests of the codec on every kind of entry: it reads back what it wrote, and what version 1 wrote stays
//! readable for ever.

pub(crate) mod examples;
mod principal;

use std::sync::Arc;

use gangline_base::{Epoch, Grid, SweepRules, SweepSpec};
use gangline_orchestration::{
    Account, Decision, Entry, Event, ExternalUsage, Fate, FaultCause, Job, Limits, LossHistory, PreemptionRules,
    QueueOrder, RequeueReason, ShareEnd, Snapshot, SpareRules, StopReason,
};
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::SeedableRng;

use super::{Error, decode_snapshot, encode_entry, encode_snapshot};
use crate::db;
use examples::Examples;

/// Decodes an entry of the engine.
fn decode_entry(body: &[u8]) -> Result<Entry, Error> {
    super::decode_entry(body).map(|recorded| recorded.engine().expect("the engine's"))
}

/// Random rounds; each has every kind of entry.
const SEEDS: u64 = 50;
/// Bodies as version 1 writes them, one per line: entries first, then a snapshot. When the format grows, this
/// file is renamed like those below, and a new one takes its place.
const FIXTURE: &str = include_str!("../../../tests/fixtures/journal_v1.txt");
/// The fixture's path. A test run that finds the file empty writes it, once.
const FIXTURE_PATH: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/journal_v1.txt");
/// Bodies of version 1 from before jobs could be held or come after others.
const FIXTURE_BEFORE_HOLDS: &str = include_str!("../../../tests/fixtures/journal_v1_before_holds.txt");
/// Bodies of version 1 from before epochs were recorded.
const FIXTURE_BEFORE_EPOCHS: &str = include_str!("../../../tests/fixtures/journal_v1_before_epochs.txt");
/// Bodies of version 1 from when each job of a sweep had its own specification.
const FIXTURE_BEFORE_GRIDS: &str = include_str!("../../../tests/fixtures/journal_v1_before_grids.txt");
/// Bodies of version 1 from before stragglers were evicted.
const FIXTURE_BEFORE_EVICTION: &str = include_str!("../../../tests/fixtures/journal_v1_before_eviction.txt");
/// Bodies of version 1 from before faults had categories.
const FIXTURE_BEFORE_LADDER: &str = include_str!("../../../tests/fixtures/journal_v1_before_ladder.txt");
/// Bodies of version 1 from before external usage was recorded.
const FIXTURE_BEFORE_OUTSIDE: &str = include_str!("../../../tests/fixtures/journal_v1_before_outside.txt");
/// Bodies of version 1 from before sweeps and budgets.
const FIXTURE_BEFORE_SWEEPS: &str = include_str!("../../../tests/fixtures/journal_v1_before_sweeps.txt");
/// Bodies of version 1 from before spares.
const FIXTURE_BEFORE_SPARES: &str = include_str!("../../../tests/fixtures/journal_v1_before_spares.txt");
/// Bodies of version 1 from before time sharing among equals.
const FIXTURE_BEFORE_TIME_SHARING: &str = include_str!("../../../tests/fixtures/journal_v1_before_time_sharing.txt");
/// Bodies of version 1 from before queues.
const FIXTURE_BEFORE_QUEUES: &str = include_str!("../../../tests/fixtures/journal_v1_before_queues.txt");
/// Bodies of version 1 from before preemption.
const FIXTURE_BEFORE_PREEMPTION: &str = include_str!("../../../tests/fixtures/journal_v1_before_preemption.txt");

/// Returns the name of an entry's kind. A new kind doesn't compile without a name here; `KINDS` has to count
/// it.
fn kind(entry: &Entry) -> &'static str {
    match entry {
        Entry::Event(event) => match event {
            Event::NodeJoined(_) => "node joined",
            Event::NodeLost { .. } => "node lost",
            Event::DrainRequested { .. } => "drain requested",
            Event::DrainCancelled { .. } => "drain cancelled",
            Event::NodeObserved { .. } => "node observed",
            Event::NodeFaulty { .. } => "node faulty",
            Event::BudgetsSpent(_) => "budgets spent",
            Event::DatasetsCached { .. } => "datasets cached",
            Event::StragglerFound { .. } => "straggler found",
            Event::Configured(_) => "configured",
            Event::JobSubmitted(_) => "job submitted",
            Event::SweepSubmitted(_) => "sweep submitted",
            Event::SweepCancelRequested { .. } => "sweep cancel requested",
            Event::MetricReported { .. } => "metric reported",
            Event::CancelRequested { .. } => "cancel requested",
            Event::ChangeRequested { .. } => "change requested",
            Event::ShareStarted { .. } => "share started",
            Event::ShareEnded { end, .. } => match end {
                ShareEnd::Succeeded => "succeeded",
                ShareEnd::DoNotRestart => "do not restart",
                ShareEnd::Requeue => "requeue",
                ShareEnd::Fault { cause, .. } => cause_kind(*cause),
                ShareEnd::Stopped => "stopped",
                ShareEnd::Terminated => "terminated",
                ShareEnd::Unable => "unable",
                ShareEnd::Withdrawn => "withdrawn",
            },
            Event::CheckpointCommitted { .. } => "checkpoint committed",
            Event::IdsSkipped { .. } => "ids skipped",
            Event::EpochBegan { .. } => "epoch began",
            Event::TimePassed => "time passed",
        },
        Entry::Decision(decision) => match decision {
            Decision::Place { .. } => "place",
            Decision::Claim { .. } => "claim",
            Decision::Stop { reason, .. } => match reason {
                StopReason::Cancelled => "stop: cancelled",
                StopReason::TimeLimit(_) => "stop: time limit",
                StopReason::PeerEnded => "stop: peer ended",
                StopReason::BudgetSpent => "stop: budget spent",
                StopReason::SharedBudgetSpent => "stop: shared budget spent",
                StopReason::EarlyStop(_) => "stop: early stop",
                StopReason::Preempted { .. } => "stop: preempted",
                StopReason::NodeLeaves { .. } => "stop: node leaves",
                StopReason::Straggler { .. } => "stop: straggler",
                StopReason::Resized { .. } => "stop: resized",
            },
            Decision::Requeue { reason, .. } => requeue_kind(*reason),
            Decision::End { fate, .. } => match fate {
                Fate::Succeeded => "end: succeeded",
                Fate::Cancelled => "end: cancelled",
                Fate::TimedOut => "end: timed out",
                Fate::DoNotRestart => "end: do not restart",
                Fate::FaultsExhausted { .. } => "end: faults exhausted",
                Fate::NoProgress { .. } => "end: no progress",
                Fate::NotRetried { .. } => "end: not retried",
                Fate::RequeuesExhausted { .. } => "end: requeues exhausted",
                Fate::BudgetSpent { .. } => "end: budget spent",
                Fate::EarlyStop(_) => "end: early stop",
                Fate::DependencyFailed(_) => "end: dependency failed",
            },
        },
    }
}

fn cause_kind(cause: FaultCause) -> &'static str {
    match cause {
        FaultCause::Exit(_) => "fault: exit",
        FaultCause::Signal(_) => "fault: signal",
        FaultCause::Setup(_) => "fault: setup",
        FaultCause::Start => "fault: start",
        FaultCause::Rendezvous => "fault: rendezvous",
        FaultCause::Hang => "fault: hang",
        FaultCause::NotFinite { .. } => "fault: not finite",
        FaultCause::SupervisorLost => "fault: supervisor lost",
        FaultCause::NodeLost => "fault: node lost",
    }
}

fn requeue_kind(reason: RequeueReason) -> &'static str {
    match reason {
        RequeueReason::Fault { .. } => "requeue: fault",
        RequeueReason::Asked => "requeue: asked",
        RequeueReason::Orphaned => "requeue: orphaned",
        RequeueReason::Terminated => "requeue: terminated",
        RequeueReason::Unable => "requeue: unable",
        RequeueReason::Withdrawn => "requeue: withdrawn",
        RequeueReason::Preempted { .. } => "requeue: preempted",
        RequeueReason::NodeLeft { .. } => "requeue: node left",
        RequeueReason::Straggler { .. } => "requeue: straggler",
        RequeueReason::Resized { .. } => "requeue: resized",
        RequeueReason::SharedBudgetSpent => "requeue: shared budget spent",
    }
}

/// The number of names that [`kind`] has.
const KINDS: usize = 71;
/// That number before jobs could be held or come after others.
const KINDS_BEFORE_HOLDS: usize = 63;
/// That number before sweeps were grids, and before a platform failure was no fault of a job.
const KINDS_BEFORE_GRIDS: usize = 59;
/// That number before epochs were recorded.
const KINDS_BEFORE_EPOCHS: usize = 58;
/// That number before stragglers were evicted.
const KINDS_BEFORE_EVICTION: usize = 55;
/// That number before faults had categories.
const KINDS_BEFORE_LADDER: usize = 52;
/// That number before external usage was recorded.
const KINDS_BEFORE_OUTSIDE: usize = 50;
/// That number before sweeps and budgets.
const KINDS_BEFORE_SWEEPS: usize = 41;

/// Proves A-9: the journal's types hold everything that the engine's types hold.
#[test]
fn every_kind_of_entry_reads_back_as_written() {
    for seed in 0..SEEDS {
        let entries = Examples::new(seed).entries();
        for entry in &entries {
            let body = encode_entry(entry);
            assert_eq!(&decode_entry(&body).expect("it reads back"), entry, "{}", String::from_utf8_lossy(&body));
        }
        let kinds: std::collections::BTreeSet<&str> = entries.iter().map(kind).collect();
        assert_eq!(kinds.len(), KINDS, "an example for each kind: {kinds:?}");
    }
}

/// Proves A-9 for snapshots.
#[test]
fn snapshots_read_back_as_written() {
    for seed in 0..SEEDS {
        let snapshot = Examples::new(seed).snapshot();
        let body = encode_snapshot(&snapshot);
        assert_eq!(decode_snapshot(&body).expect("it reads back"), snapshot);
    }
}

/// Proves A-9: every later version reads what this version wrote, with the same meaning.
#[test]
fn bodies_of_version_1_stay_readable() {
    let mut examples = Examples::without_network(1);
    let (entries, snapshot) = (examples.entries(), examples.snapshot());
    if FIXTURE.is_empty() {
        let bodies = entries.iter().map(encode_entry).chain([encode_snapshot(&snapshot)]);
        let lines: String = bodies.map(|body| String::from_utf8_lossy(&body).into_owned() + "\n").collect();
        std::fs::write(FIXTURE_PATH, lines).expect("the fixture is writable");
        panic!("the fixture was empty and is written now: look at it and run the tests again");
    }
    let lines: Vec<&str> = FIXTURE.lines().collect();
    let (last, bodies) = lines.split_last().expect("the fixture isn't empty");
    assert_eq!(bodies.len(), entries.len());
    for (body, entry) in bodies.iter().zip(&entries) {
        assert_eq!(&decode_entry(body.as_bytes()).expect("it reads"), entry, "{body}");
    }
    assert_eq!(decode_snapshot(last.as_bytes()).expect("it reads"), snapshot);
}

/// Returns the number of entry kinds in a fixture, whose bodies must all be readable, and its snapshot.
fn read_fixture(fixture: &str) -> (usize, Snapshot) {
    let lines: Vec<&str> = fixture.lines().collect();
    let (last, bodies) = lines.split_last().expect("the fixture isn't empty");
    let entries: Vec<Entry> = bodies.iter().map(|body| decode_entry(body.as_bytes()).expect("it reads")).collect();
    let kinds: std::collections::BTreeSet<&str> = entries.iter().map(kind).collect();
    (kinds.len(), decode_snapshot(last.as_bytes()).expect("it reads"))
}

/// Proves A-9: bodies from before holds and dependencies are readable and have none of them.
#[test]
fn bodies_from_before_holds_stay_readable() {
    let (kinds, snapshot) = read_fixture(FIXTURE_BEFORE_HOLDS);
    assert_eq!(kinds, KINDS_BEFORE_HOLDS);
    let is_free = |job: &Job| !job.is_held_back() && job.spec.after.is_empty() && job.spec.origin.is_none();
    assert!(!snapshot.jobs.is_empty() && snapshot.jobs.iter().all(is_free));
}

/// Proves A-9: bodies from before sweeps and budgets are readable and have none of them.
#[test]
fn bodies_from_before_sweeps_stay_readable() {
    let (kinds, snapshot) = read_fixture(FIXTURE_BEFORE_SWEEPS);
    assert_eq!(kinds, KINDS_BEFORE_SWEEPS);
    let has_none = |job: &Job| job.sweep.is_none() && job.account == Account::default() && job.spec.budget.is_none();
    assert!(!snapshot.jobs.is_empty() && snapshot.jobs.iter().all(has_none));
    assert!(snapshot.sweeps.is_empty() && snapshot.configuration.prices.is_empty());
}

/// Proves A-9: bodies from before epochs are readable and get the epoch that stands for that time.
#[test]
fn bodies_from_before_epochs_stay_readable() {
    let (kinds, snapshot) = read_fixture(FIXTURE_BEFORE_EPOCHS);
    assert_eq!((kinds, snapshot.epoch), (KINDS_BEFORE_EPOCHS, Epoch::default()));
    let attempts: Vec<_> = snapshot.jobs.iter().filter_map(Job::attempt).collect();
    assert!(!attempts.is_empty() && attempts.iter().all(|attempt| attempt.epoch == Epoch::default()));
}

/// Proves A-9: bodies from when each job of a sweep had its own specification are readable: a sweep becomes
/// the grid that its points came from, and the jobs in a snapshot keep their own specification.
#[test]
fn bodies_from_before_grids_stay_readable() {
    let (kinds, snapshot) = read_fixture(FIXTURE_BEFORE_GRIDS);
    assert_eq!(kinds, KINDS_BEFORE_GRIDS);
    assert!(!snapshot.sweeps.is_empty() && snapshot.sweeps.iter().all(|sweep| sweep.spec.is_none()));
    let entries = FIXTURE_BEFORE_GRIDS.lines().filter_map(|body| decode_entry(body.as_bytes()).ok());
    let sweep = entries.into_iter().find_map(|entry| match entry {
        Entry::Event(Event::SweepSubmitted(sweep)) => Some(sweep),
        _ => None,
    });
    let sweep = sweep.expect("a sweep was submitted");
    let own = sweep.job(0).expect("it has a point").program.envs;
    assert_eq!((sweep.grid.points(), own.get("B").map(String::as_str)), (1, Some("zwei\nZeilen\t\\")));
}

/// A record's size follows the submission, not the number of points: a sweep's jobs share its specification.
#[test]
fn a_sweep_takes_as_much_as_was_sent() {
    let values = |count: u32| (0..count).map(|number| number.to_string()).collect::<Vec<_>>();
    let prompt = "x".repeat(5_000);
    let parameters = vec![("PROMPT".to_owned(), vec![prompt]), ("SEED".to_owned(), values(1_000))];
    let job = Arc::new(Examples::new(3).spec());
    let sweep = SweepSpec { job, grid: Grid::new(parameters), rules: SweepRules::default() };
    let stored = usize::try_from(sweep.stored_bytes().0).expect("small");
    let body = encode_entry(&Entry::Event(Event::SweepSubmitted(Arc::new(sweep))));
    assert!((10_000..20_000).contains(&body.len()), "{} bytes", body.len());
    assert!(body.len() <= stored, "{} bytes, counted as {stored}", body.len());
}

/// Proves A-10: a submission's record never takes more bytes than the submission is counted as.
#[test]
fn no_submission_takes_more_than_it_is_counted_as() {
    for seed in 0..SEEDS {
        for entry in Examples::new(seed).entries() {
            let counted = match &entry {
                Entry::Event(Event::JobSubmitted(spec)) => spec.stored_bytes(),
                Entry::Event(Event::SweepSubmitted(sweep)) => sweep.stored_bytes(),
                _ => continue,
            };
            let taken = encode_entry(&entry).len();
            assert!(u64::try_from(taken).is_ok_and(|taken| taken <= counted.0), "{taken} bytes, counted as {counted}");
        }
    }
}

/// Proves A-10: a snapshot of waiting jobs takes little more than the jobs are counted as, so the most jobs
/// that may be live fit into the largest snapshot.
#[test]
fn a_snapshot_takes_what_live_jobs_are_counted_as() {
    const JOB_BYTES: u64 = 640;
    let mut examples = Examples::without_network(5);
    let mut snapshot = Snapshot { jobs: Vec::new(), sweeps: Vec::new(), ..examples.snapshot() };
    let empty = encode_snapshot(&snapshot).len();
    let count = 200;
    let mut counted = 0;
    for _ in 0..count {
        let job = examples.waiting_job();
        counted += job.spec.stored_bytes().0;
        snapshot.jobs.push(job);
    }
    let taken = u64::try_from(encode_snapshot(&snapshot).len() - empty).expect("small");
    assert!(taken <= counted + count * JOB_BYTES, "{taken} bytes, counted as {counted}");
    let limits = Limits::default();
    let most = limits.live_bytes_max.0 + u64::try_from(limits.waiting_max).expect("small") * JOB_BYTES;
    assert!(most < db::Limits::SNAPSHOT.0, "{most} bytes");
    assert!(limits.submission_bytes_max < db::Limits::RECORD);
}

/// Proves A-9: bodies from before stragglers were evicted are readable: then no job left one.
#[test]
fn bodies_from_before_eviction_stay_readable() {
    let (kinds, snapshot) = read_fixture(FIXTURE_BEFORE_EVICTION);
    assert_eq!(kinds, KINDS_BEFORE_EVICTION);
    assert!(snapshot.jobs.iter().all(|job| !job.spec.recovery.evicts_stragglers));
    let attempts: Vec<_> = snapshot.jobs.iter().filter_map(Job::attempt).collect();
    assert!(!attempts.is_empty() && attempts.iter().all(|attempt| attempt.straggler.is_none()));
}

/// Proves A-9: bodies from before fault categories and the recovery ladder are readable: then every job was
/// queued again.
#[test]
fn bodies_from_before_the_ladder_stay_readable() {
    let (kinds, snapshot) = read_fixture(FIXTURE_BEFORE_LADDER);
    assert_eq!(kinds, KINDS_BEFORE_LADDER);
    assert!(snapshot.jobs.iter().all(|job| job.kept.is_none() && job.rollback.is_none()));
    let attempts: Vec<_> = snapshot.jobs.iter().filter_map(Job::attempt).collect();
    assert!(!attempts.is_empty() && attempts.iter().all(|attempt| attempt.allocated_at == attempt.placed_at));
}

/// Proves A-9: bodies from before external usage was recorded are readable and have none.
#[test]
fn bodies_from_before_others_were_seen_stay_readable() {
    let (kinds, snapshot) = read_fixture(FIXTURE_BEFORE_OUTSIDE);
    assert_eq!(kinds, KINDS_BEFORE_OUTSIDE);
    assert!(!snapshot.nodes.is_empty());
    assert!(snapshot.nodes.iter().all(|(_, standing)| standing.outside == ExternalUsage::default()));
}

/// Proves A-9: bodies from before spares are readable: then none were kept, and no losses were recorded.
#[test]
fn bodies_from_before_spares_stay_readable() {
    let (kinds, snapshot) = read_fixture(FIXTURE_BEFORE_SPARES);
    assert_eq!(kinds, KINDS_BEFORE_OUTSIDE);
    assert!(!snapshot.jobs.is_empty());
    assert!(snapshot.jobs.iter().all(|job| !job.is_recovering && job.spec.spares == 0));
    assert_eq!(snapshot.configuration.spares, SpareRules::default());
    assert_eq!(snapshot.losses, LossHistory { at: snapshot.at, ..LossHistory::default() });
}

/// Proves A-9: bodies from before time sharing among equals are readable: then there was none.
#[test]
fn bodies_from_before_time_sharing_stay_readable() {
    let (kinds, snapshot) = read_fixture(FIXTURE_BEFORE_TIME_SHARING);
    assert_eq!(kinds, KINDS_BEFORE_OUTSIDE);
    let rules = snapshot.configuration.preemption;
    assert!(!snapshot.jobs.is_empty() && !rules.share_time && !rules.consolidate);
}

/// Proves A-9: bodies from before queues are readable, with the defaults of that time.
#[test]
fn bodies_from_before_queues_stay_readable() {
    let (kinds, snapshot) = read_fixture(FIXTURE_BEFORE_QUEUES);
    assert_eq!(kinds, 35, "all kinds of the time");
    assert!(!snapshot.jobs.is_empty() && snapshot.usages.is_empty() && snapshot.configuration.queues.is_empty());
}

#[test]
fn what_cannot_be_understood_is_refused_with_its_reason() {
    let check = |body: &str, expected: &str| {
        let refused = decode_entry(body.as_bytes()).expect_err("a refusal");
        assert_eq!(refused.to_string(), expected, "{body}");
    };
    check(r#"{"v":6,"body":"time_passed"}"#, "a journal body has version 6, this gangline reads up to 5");
    check(r#"{"v":9,"shape":"unknown"}"#, "a journal body has version 9, this gangline reads up to 5");
    check(r#"{"v":0,"body":"time_passed"}"#, "a journal body holds an impossible version");
    for malformed in ["", "[]", "{}", r#"{"v":1}"#, r#"{"v":-1,"body":"time_passed"}"#, r#"{"v":1,"body":"time_flew"}"#]
    {
        check(malformed, "a journal body is not readable");
    }
    let body = String::from_utf8(encode_entry(&Examples::new(1).submitted())).expect("JSON is text");
    let at = body.find("\"priority\":").expect("a priority is written") + "\"priority\":".len();
    let end = at + body[at..].find(',').expect("more follows");
    check(&format!("{}1001{}", &body[..at], &body[end..]), "a journal body holds an impossible priority");
    let newer = decode_snapshot(br#"{"v":6,"body":{}}"#);
    assert!(matches!(newer, Err(Error::Newer { found: 6 })));
}

#[test]
fn a_sweep_of_more_points_than_anybody_could_submit_is_refused() {
    let mut sweep = Examples::new(1).sweep_spec();
    let values = |count: usize| (0..count).map(|value| value.to_string()).collect::<Vec<_>>();
    let mut of = |first: usize| {
        sweep.grid = Grid::new(vec![("A".to_owned(), values(first)), ("B".to_owned(), values(1 << 10))]);
        decode_entry(&encode_entry(&Entry::Event(Event::SweepSubmitted(Arc::new(sweep.clone())))))
    };
    assert!(of(1 << 10).is_ok());
    assert_eq!(of((1 << 10) + 1).expect_err("a refusal").to_string(), "a journal body holds an impossible sweep");
}

/// Proves A-10 for what one request may add: truncated or changed bodies are refused without a panic.
#[test]
fn damaged_bodies_are_refused_without_a_panic() {
    use rand_chacha::rand_core::Rng;
    let mut random = ChaCha8Rng::seed_from_u64(7);
    for entry in Examples::new(2).entries() {
        let body = encode_entry(&entry);
        for _ in 0..50 {
            let mut damaged = body.clone();
            let place = usize::try_from(random.next_u32()).expect("usize holds a u32") % body.len();
            if random.next_u32().is_multiple_of(2) {
                damaged.truncate(place);
                assert!(decode_entry(&damaged).is_err(), "{}", String::from_utf8_lossy(&damaged));
            } else {
                damaged[place] = random.next_u32().to_le_bytes()[0];
                // A changed digit may still be valid: the journal's checksum detects it, not the codec.
                drop(decode_entry(&damaged));
            }
        }
    }
}

/// Proves A-9: bodies from before preemption are readable: then no job was stopped for another.
#[test]
fn bodies_from_before_preemption_stay_readable() {
    let lines: Vec<&str> = FIXTURE_BEFORE_PREEMPTION.lines().collect();
    let (last, bodies) = lines.split_last().expect("the fixture isn't empty");
    let entries: Vec<Entry> = bodies.iter().map(|body| decode_entry(body.as_bytes()).expect("it reads")).collect();
    let kinds: std::collections::BTreeSet<&str> = entries.iter().map(kind).collect();
    assert_eq!(kinds.len(), 36, "all kinds of the time");
    let snapshot = decode_snapshot(last.as_bytes()).expect("it reads");
    assert!(!snapshot.jobs.is_empty() && snapshot.jobs.iter().all(|job| job.claim.is_none()));
    assert_eq!(snapshot.configuration.preemption, PreemptionRules::OFF);
    assert_eq!(snapshot.configuration.order, QueueOrder::Fifo);
    assert!(snapshot.histories.is_empty() && snapshot.jobs.iter().all(|job| job.turn == job.submitted_at));
}
