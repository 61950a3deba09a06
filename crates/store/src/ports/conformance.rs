//! What every store must pass: the promises of the ports, checked against any store that a [`Subject`] opens.
//!
//! A store's own tests call [`check`]; a second store is accepted by the same call.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};

use gangline_base::{JobId, SweepId, Timestamp};

use super::{Batch, Changes, Journal, Queries};
use crate::codec::tests::examples::Examples;
use crate::db::{Entry, Error, Limits, Record, Sequence};
use crate::model::{JobRecord, KeptAnswer, RequestKey, Standing, StateRecord, Wanted};

/// A store under test. Each value is a store of its own, empty at first; it lives on between openings.
pub(crate) trait Subject {
    type Journal: Journal;
    type Reader: Queries + Clone + Send + Sync;

    /// Opens the store as a control plane does at its start.
    fn open(&self) -> Result<Opened<Self::Journal, Self::Reader>, Error>;
}

/// An opened store.
#[derive(Debug)]
pub(crate) struct Opened<J, R> {
    pub(crate) journal: J,
    pub(crate) reader: R,
    /// The last snapshot, and the number of the last record that it covers.
    pub(crate) snapshot: Option<(Sequence, Vec<u8>)>,
    /// The records after the snapshot.
    pub(crate) records: Vec<Record>,
}

const NOW: Timestamp = Timestamp::from_unix_nanos(1_700_000_000_000_000_000);

/// Checks all promises, each on a new store.
pub(crate) fn check<S: Subject>(new: impl Fn() -> S) {
    an_empty_store_answers(&new());
    batches_come_back_in_order(&new());
    a_failed_batch_leaves_nothing_and_poisons_the_writer(&new());
    a_second_writer_is_refused(&new());
    a_snapshot_shortens_the_start_and_keeps_the_history(&new());
    readers_see_whole_batches_only(&new());
    a_row_is_replaced_and_an_answer_is_kept_under_its_key(&new());
    a_listing_has_the_jobs_that_are_wanted(&new());
}

fn a_listing_has_the_jobs_that_are_wanted<S: Subject>(store: &S) {
    let mut opened = open(store);
    let at = |second: u64| NOW + std::time::Duration::from_secs(second);
    let record = |id: u64, (name, queue, user): (&str, &str, &str), state: StateRecord| JobRecord {
        name: name.to_owned(),
        queue: queue.to_owned(),
        submitter: user.to_owned(),
        submitted_at: at(id),
        state,
        ..job(id)
    };
    let records = [
        record(1, ("Llama-8b", "research", "ada"), StateRecord::Failed),
        record(2, ("bert", "research", "bob"), StateRecord::Waiting),
        record(3, ("llama-70b", "prod", "ada"), StateRecord::Running),
        record(4, ("bert", "prod", "bob"), StateRecord::Succeeded),
    ];
    let rows: Vec<&JobRecord> = records.iter().collect();
    commit(&mut opened.journal, &["a"], &rows).expect("there is room");
    let found = |wanted: Wanted| -> Vec<u64> {
        let listing = opened.reader.jobs(&wanted, None, 10).expect("readable");
        assert!(!listing.has_more);
        let singly = opened.reader.jobs_singly(&wanted, JobId(9), 10).expect("readable");
        assert_eq!(listing.jobs, singly.jobs, "both ways find the same");
        listing.jobs.iter().map(|(record, _)| record.id.0).collect()
    };
    let text = |text: &str| Some(text.to_owned());
    assert_eq!(found(Wanted::default()), [4, 3, 2, 1]);
    assert_eq!(found(Wanted { name: text("LLAMA"), ..Wanted::default() }), [3, 1], "in lower or upper case");
    assert_eq!(found(Wanted { user: text("bob"), queue: text("research"), ..Wanted::default() }), [2]);
    let states = [StateRecord::Failed, StateRecord::Running].into();
    assert_eq!(found(Wanted { states, ..Wanted::default() }), [3, 1]);
    assert_eq!(found(Wanted { since: Some(at(3)), ..Wanted::default() }), [4, 3]);
    assert_eq!(found(Wanted { since: Some(at(2)), standing: Standing::Live, ..Wanted::default() }), [3, 2]);
    let one = Wanted { queue: text("research"), ..Wanted::default() };
    let first = opened.reader.jobs(&one, None, 1).expect("readable");
    assert_eq!((first.jobs[0].0.id, first.has_more), (JobId(2), true));
    let rest = opened.reader.jobs(&one, first.last, 1).expect("readable");
    assert_eq!(rest.jobs[0].0.id, JobId(1), "the cursor goes on behind what was examined");
}

fn open<S: Subject>(store: &S) -> Opened<S::Journal, S::Reader> {
    store.open().expect("the store can be opened")
}

fn entry(body: &str) -> Entry {
    Entry { at: NOW, body: body.as_bytes().to_vec() }
}

fn job(id: u64) -> JobRecord {
    JobRecord::new(JobId(id), &Examples::new(id).spec(), NOW)
}

/// Commits one record for each body and one row for each job.
fn commit(journal: &mut impl Journal, bodies: &[&str], jobs: &[&JobRecord]) -> Result<Sequence, Error> {
    let records: Vec<Entry> = bodies.iter().map(|body| entry(body)).collect();
    let given_out = jobs.iter().map(|job| job.id).max().unwrap_or(JobId(0));
    let changes = Changes { at: NOW, jobs, ..Changes::none() };
    journal.commit(Batch { records: &records, given_out, changes }).map(|info| info.last)
}

fn texts(records: &[Record]) -> Vec<(u64, String)> {
    let text = |record: &Record| (record.sequence.0, String::from_utf8_lossy(&record.body).into_owned());
    records.iter().map(text).collect()
}

fn numbered(bodies: &[&str]) -> Vec<(u64, String)> {
    (1..).zip(bodies.iter().map(|body| (*body).to_owned())).collect()
}

fn an_empty_store_answers<S: Subject>(store: &S) {
    let Opened { journal, reader, snapshot, records } = open(store);
    assert_eq!((journal.last(), journal.poison(), snapshot, records), (Sequence::ZERO, None, None, vec![]));
    assert_eq!(reader.job(JobId(1)).expect("readable"), None);
    assert_eq!(reader.jobs(&Standing::Any.into(), None, 10).expect("readable").jobs, []);
    assert_eq!(reader.live_jobs(&BTreeSet::from([JobId(1)])).expect("readable"), []);
    assert_eq!(reader.last_job().expect("readable"), None);
    assert_eq!(reader.next_job(JobId(0)).expect("readable"), None);
    assert!(!reader.is_over(JobId(1)).expect("readable"));
    assert_eq!(reader.sweep_jobs(SweepId(JobId(1))).expect("readable"), (vec![], vec![]));
    assert_eq!(reader.records(Sequence::ZERO, 10).expect("readable"), []);
}

/// Order and durability: a start finds what was committed, numbered without gaps.
fn batches_come_back_in_order<S: Subject>(store: &S) {
    let mut opened = open(store);
    assert_eq!(commit(&mut opened.journal, &["a", "b"], &[&job(1)]).expect("there is room"), Sequence(2));
    assert_eq!(commit(&mut opened.journal, &[], &[]).expect("a batch may be empty"), Sequence(2));
    assert_eq!(commit(&mut opened.journal, &["c"], &[&job(2)]).expect("there is room"), Sequence(3));
    drop(opened);
    let opened = open(store);
    let expected = numbered(&["a", "b", "c"]);
    assert_eq!((opened.journal.last(), texts(&opened.records)), (Sequence(3), expected.clone()));
    assert_eq!(opened.records[0].at, NOW);
    let reader = opened.reader;
    assert_eq!(texts(&reader.records(Sequence::ZERO, 10).expect("readable")), expected);
    assert_eq!(texts(&reader.records(Sequence(1), 1).expect("readable")), expected[1..2]);
    let (record, booked) = reader.job(JobId(2)).expect("readable").expect("it is stored");
    assert_eq!((record, booked), (job(2), vec![]));
    let listing = reader.jobs(&Standing::Any.into(), None, 1).expect("readable");
    assert_eq!((listing.jobs, listing.damaged, listing.last), (vec![(job(2), vec![])], vec![], Some(JobId(2))));
    let older = reader.jobs(&Standing::Any.into(), Some(JobId(2)), 10).expect("readable");
    assert_eq!(older.jobs, [(job(1), vec![])]);
    assert_eq!(reader.jobs_singly(&Standing::Any.into(), JobId(3), 10).expect("readable").jobs.len(), 2);
    let live = reader.jobs(&Standing::Live.into(), None, 10).expect("readable").jobs.len();
    let ended = reader.jobs(&Standing::Ended.into(), None, 10).expect("readable").jobs.len();
    let these = reader.these_jobs(Standing::Live, &[JobId(1), JobId(9)], 10).expect("readable").jobs;
    assert_eq!((live, ended, these), (2, 0, vec![(job(1), vec![])]), "both wait");
    assert_eq!(reader.last_job().expect("readable"), Some(JobId(2)));
    assert_eq!(reader.next_job(JobId(1)).expect("readable"), Some(JobId(2)));
}

/// Atomicity, and A-7: nothing of a refused batch is visible, and its writer takes no other.
fn a_failed_batch_leaves_nothing_and_poisons_the_writer<S: Subject>(store: &S) {
    let mut opened = open(store);
    commit(&mut opened.journal, &["a"], &[]).expect("there is room");
    let too_large = "x".repeat(usize::try_from(Limits::RECORD.0).expect("it fits") + 1);
    let refused = commit(&mut opened.journal, &["b", &too_large], &[&job(1)]);
    assert!(matches!(refused, Err(Error::TooLarge { .. })), "{refused:?}");
    assert!(opened.journal.poison().is_some());
    let next = commit(&mut opened.journal, &["c"], &[]);
    assert!(matches!(next, Err(Error::Poisoned { .. })), "{next:?}");
    let snapshot = opened.journal.write_snapshot(b"state");
    assert!(matches!(snapshot, Err(Error::Poisoned { .. })), "{snapshot:?}");
    assert_eq!(texts(&opened.reader.records(Sequence::ZERO, 10).expect("reads go on")), numbered(&["a"]));
    assert_eq!(opened.reader.job(JobId(1)).expect("reads go on"), None);
    drop(opened);
    let mut again = open(store);
    assert_eq!(texts(&again.records), numbered(&["a"]));
    assert_eq!(commit(&mut again.journal, &["d"], &[]).expect("a start heals the writer"), Sequence(2));
}

fn a_second_writer_is_refused<S: Subject>(store: &S) {
    let first = open(store);
    let second = store.open().map(|opened| opened.journal.last());
    assert!(matches!(second, Err(Error::InUse { .. })), "{second:?}");
    drop(first);
    assert_eq!(open(store).journal.last(), Sequence::ZERO);
}

fn a_snapshot_shortens_the_start_and_keeps_the_history<S: Subject>(store: &S) {
    let mut opened = open(store);
    commit(&mut opened.journal, &["a", "b"], &[]).expect("there is room");
    opened.journal.write_snapshot(b"state after b").expect("there is room");
    commit(&mut opened.journal, &["c"], &[]).expect("there is room");
    drop(opened);
    let opened = open(store);
    assert_eq!(opened.snapshot, Some((Sequence(2), b"state after b".to_vec())));
    assert_eq!(texts(&opened.records), [(3, "c".to_owned())]);
    assert_eq!(texts(&opened.reader.records(Sequence::ZERO, 10).expect("readable")), numbered(&["a", "b", "c"]));
}

/// Visibility: beside a writer that commits two records and two jobs at a time, nobody sees an odd number, and
/// whoever asks after a commit sees it.
fn readers_see_whole_batches_only<S: Subject>(store: &S) {
    const BATCHES: u64 = 40;
    let mut opened = open(store);
    let (reader, is_done) = (opened.reader.clone(), AtomicBool::new(false));
    std::thread::scope(|scope| {
        let watch = scope.spawn(|| {
            let mut seen = BTreeSet::new();
            while !is_done.load(Ordering::Acquire) {
                let records = reader.records(Sequence::ZERO, 1_000).expect("reads go on").len();
                let jobs = reader.jobs(&Standing::Any.into(), None, 500).expect("reads go on").jobs.len();
                assert_eq!((records % 2, jobs % 2), (0, 0), "a part of a batch was seen");
                seen.insert(records);
            }
            seen
        });
        for batch in 0..BATCHES {
            let jobs = [job(2 * batch + 1), job(2 * batch + 2)];
            let last = commit(&mut opened.journal, &["a", "b"], &[&jobs[0], &jobs[1]]).expect("there is room");
            assert_eq!(last, Sequence(2 * batch + 2));
            assert_eq!(opened.reader.last_job().expect("reads go on"), Some(jobs[1].id));
        }
        is_done.store(true, Ordering::Release);
        let seen = watch.join().expect("no part of a batch was seen");
        assert!(seen.iter().all(|records| records % 2 == 0));
    });
}

fn a_row_is_replaced_and_an_answer_is_kept_under_its_key<S: Subject>(store: &S) {
    let mut opened = open(store);
    let (mut record, key) = (job(1), |name: &str| RequestKey {
        user: "ada".to_owned(),
        key: name.to_owned(),
        request: blake3::hash(b"request"),
    });
    commit(&mut opened.journal, &["a"], &[&record]).expect("there is room");
    record.because = "another reason".to_owned();
    let answer = KeptAnswer { request: blake3::hash(b"request"), body: "{}".to_owned(), is_whole: true };
    let changes = Changes { at: NOW, jobs: &[&record], answers: &[(key("once"), answer.clone())], ..Changes::none() };
    opened.journal.commit(Batch { records: &[entry("b")], given_out: JobId(1), changes }).expect("there is room");
    let reader = &opened.reader;
    assert_eq!(reader.job(JobId(1)).expect("readable"), Some((record.clone(), vec![])));
    assert_eq!(reader.live_jobs(&BTreeSet::from([JobId(1), JobId(9)])).expect("readable"), [record]);
    assert_eq!(reader.live_jobs(&BTreeSet::new()).expect("readable"), [], "only expected jobs are returned");
    assert_eq!(reader.answer(&key("once")).expect("readable"), Some(answer));
    assert_eq!(reader.answer(&key("other")).expect("readable"), None);
    let mut keys = Vec::new();
    reader.answer_keys(&mut |user, key| keys.push((user.to_owned(), key.to_owned()))).expect("readable");
    assert_eq!(keys, [("ada".to_owned(), "once".to_owned())]);
}
