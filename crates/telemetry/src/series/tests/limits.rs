//! Names, batches and memory have limits, and what is refused is counted.

use std::sync::mpsc::channel;
use std::time::Duration;

use gangline_base::Timestamp;

use super::{BEGIN, all, ask, losses, numbers, open, source, take, values};
use crate::series::head::Limits;
use crate::series::key::{Batch, Row};
use crate::series::merge::Keep;
use crate::series::store::Store;
use crate::series::{Error, Handle, Options, Service, Stored};

fn clock() -> Timestamp {
    BEGIN
}

const OPTIONS: fn() -> Options = || Options { limits: Limits::default(), keep: Keep::default(), clock };

fn stored(handle: &Handle, batch: Batch) -> Result<Stored, Error> {
    let (reply, answer) = channel();
    handle.take(batch, move |outcome| drop(reply.send(outcome)));
    answer.recv_timeout(Duration::from_secs(30)).expect("an answer")
}

/// A rank with ten thousand names keeps its first thousand; the others are counted, and other ranks lose nothing.
#[test]
fn a_rank_with_ten_thousand_names_is_bounded_and_counted() {
    let folder = tempfile::tempdir().expect("a folder");
    let service = Service::start(folder.path().to_owned(), OPTIONS()).expect("a store");
    let handle = service.handle();
    let names: Vec<String> = (0..10_000).map(|number| format!("metric-{number}")).collect();
    let values = (0..10_000).map(|name| (name, 1.0)).collect();
    let rows = vec![Row { at: BEGIN, step: None, values }];
    let flood = Batch { source: source(1, 7), first: 0, names, rows };
    assert_eq!(stored(&handle, flood.clone()).expect("it is stored"), Stored { next: 1, refused: 9_000 });
    let again = Batch { first: 1, ..flood };
    assert_eq!(stored(&handle, again).expect("it is stored").refused, 9_000, "the limit outlasts the batch");
    assert_eq!(stored(&handle, losses(1, 0, 5)).expect("it is stored"), Stored { next: 5, refused: 0 });
    assert_eq!(handle.query(&all(1)).expect("an answer").curves.len(), 1_000, "as many as were asked for");
    let summary = handle.summary();
    assert_eq!((summary.refused, summary.head_points, summary.failure), (18_000, 2_005, None));
    service.stop();
    assert!(matches!(stored(&handle, losses(1, 5, 1)), Err(Error::Closed { .. })));
}

#[test]
fn names_that_are_empty_too_long_or_have_control_characters_are_refused() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut store = open(folder.path());
    let names = ["", "a\nb", "good", &"x".repeat(201)].map(str::to_owned);
    let rows = vec![Row { at: BEGIN, step: None, values: vec![(0, 1.0), (1, 1.0), (2, 1.0), (3, 1.0), (9, 1.0)] }];
    let batch = Batch { source: source(1, 0), first: 0, names: names.into(), rows };
    let taken = store.take(&[batch], BEGIN).remove(0).expect("it is stored");
    assert_eq!((taken.values, taken.refused), (1, 4));
}

#[test]
fn a_batch_beyond_the_limits_is_refused_whole_and_others_beside_it_are_not() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut store = open(folder.path());
    let outcomes =
        store.take(&[losses(1, 0, 10_001), losses(2, 0, 10), Batch { first: u64::MAX, ..losses(3, 0, 2) }], BEGIN);
    let is_refused = |place: usize| matches!(outcomes[place], Err(Error::Refused { .. }));
    assert!(is_refused(0) && outcomes[1].is_ok() && is_refused(2), "{outcomes:?}");
    assert_eq!((values(&store, 1), values(&store, 2)), (vec![], numbers(0..10)));
}

/// Values that are refused are in the log all the same, so the log's size asks for a segment too.
#[test]
fn a_log_of_refused_values_does_not_grow_for_ever() {
    let folder = tempfile::tempdir().expect("a folder");
    let limits = Limits { log_bytes: 10_000, ..Limits::default() };
    let mut store = Store::open(folder.path(), limits, Keep::default(), BEGIN).expect("a store");
    let nameless = |first| Batch { names: vec![String::new()], ..losses(1, first, 100) };
    let mut first = 0;
    while !store.is_head_full() {
        first = take(&mut store, nameless(first));
        assert!(first < 10_000, "the log is never full");
    }
    store.flush().expect("a segment");
    assert!(!store.is_head_full());
    let mut store = open(folder.path());
    assert_eq!(take(&mut store, nameless(0)), first, "what was taken in is remembered");
    assert!(ask(&store, &all(1)).curves.is_empty());
}

#[test]
fn sources_beyond_the_limit_are_refused_and_those_that_are_known_go_on() {
    let folder = tempfile::tempdir().expect("a folder");
    let limits = Limits { sources_max: 2, ..Limits::default() };
    let mut store = Store::open(folder.path(), limits, Keep::default(), BEGIN).expect("a store");
    for job in 1..=3 {
        take(&mut store, losses(job, 0, 10));
    }
    take(&mut store, losses(1, 10, 10));
    assert_eq!([values(&store, 1), values(&store, 2), values(&store, 3)], [numbers(0..20), numbers(0..10), vec![]]);
}
