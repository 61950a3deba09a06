//! Who caused an event stays with it, and events of earlier releases have nobody.

use gangline_base::{AttemptNumber, JobId, Principal, Submitter};
use gangline_orchestration::{Entry, Event};
use serde::Deserialize;

use super::super::{Error, decode_entry, encode_entry, encode_event, principal_of};
use super::FIXTURE_BEFORE_HOLDS;

fn event() -> Event {
    Event::CancelRequested { job: JobId(7), by: Submitter("ada".to_owned()) }
}

#[test]
fn an_event_is_read_with_the_principal_that_it_was_written_with() {
    let attempt = Principal::Attempt { job: JobId(7), attempt: AttemptNumber(2) };
    for by in [Principal::Service, Principal::User(Submitter("ada".to_owned())), attempt] {
        let body = encode_event(&event(), &by);
        let read = decode_entry(&body).expect("it is ours").engine();
        assert_eq!(read, Some(Entry::Event(event())));
        assert_eq!(principal_of(&body).expect("it is ours"), Some(by));
    }
}

#[test]
fn an_earlier_release_reads_an_event_with_a_principal() {
    /// A body as earlier releases read it.
    #[derive(Deserialize)]
    struct Before {
        v: u32,
        body: serde_json::Value,
    }
    let new: Before = serde_json::from_slice(&encode_event(&event(), &Principal::Service)).expect("it is readable");
    let old: Before = serde_json::from_slice(&encode_entry(&Entry::Event(event()))).expect("it is readable");
    assert_eq!((new.v, new.body), (old.v, old.body));
}

#[test]
fn entries_of_earlier_releases_have_no_principal() {
    for line in FIXTURE_BEFORE_HOLDS.lines() {
        assert_eq!(principal_of(line.as_bytes()).expect("it is readable"), None, "{line}");
    }
}

#[test]
fn an_unknown_principal_is_refused() {
    let body = br#"{"v":1,"by":"group:all","body":"time_passed"}"#;
    assert!(matches!(principal_of(body), Err(Error::Impossible("principal"))));
}
