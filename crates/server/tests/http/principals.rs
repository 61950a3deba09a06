//! On whose authority things happen: what the token proves is in the journal with each event.

use gangline_base::{AttemptNumber, JobId, Principal, Submitter};
use gangline_orchestration::{Entry, Event};
use gangline_store::codec::{decode_entry, principal_of};
use gangline_store::db::{Reader, Sequence};
use serde_json::json;

use crate::plane::{Plane, sample};

/// Returns every event of the journal with its principal. A decision has none: it follows from the event before.
fn events(plane: &Plane) -> Vec<(Event, Principal)> {
    let records = Reader::open(plane.folder.path()).and_then(|reader| reader.history(Sequence::ZERO, 10_000));
    let mut events = Vec::new();
    for record in records.expect("the journal is readable") {
        let by = principal_of(&record.body).expect("it is ours");
        match decode_entry(&record.body).expect("it is ours").engine() {
            Some(Entry::Event(event)) => events.push((event, by.expect("each event has a principal"))),
            _ => assert_eq!(by, None, "a decision is nobody's"),
        }
    }
    events
}

/// Proves A-17.
#[test]
fn the_journal_keeps_on_whose_authority_each_event_happened() {
    let plane = Plane::start();
    let id = plane.submit("a", 1);
    let spec = plane.launched();
    plane.store(&spec, &[sample(1)]);
    assert_eq!(plane.post("/nodes/n1/drain", &json!({})).status, 200);
    assert_eq!(plane.post(&format!("/jobs/{id}/cancel"), &json!({})).status, 200);
    let events = events(&plane);
    let of = |is_it: &dyn Fn(&Event) -> bool| {
        let found: Vec<&Principal> = events.iter().filter(|(event, _)| is_it(event)).map(|(_, by)| by).collect();
        assert!(!found.is_empty(), "there is no such event in {events:?}");
        assert!(found.iter().all(|by| *by == found[0]), "{found:?}");
        found[0].clone()
    };
    let user = Principal::User(Submitter("ada".to_owned()));
    assert_eq!(of(&|event| matches!(event, Event::JobSubmitted(_))), user);
    assert_eq!(of(&|event| matches!(event, Event::DrainRequested { .. })), user);
    assert_eq!(of(&|event| matches!(event, Event::CancelRequested { .. })), user);
    assert_eq!(of(&|event| matches!(event, Event::NodeJoined(_))), Principal::Service);
    let attempt = Principal::Attempt { job: JobId(spec.job), attempt: AttemptNumber(spec.attempt) };
    assert_eq!(of(&|event| matches!(event, Event::ShareStarted { .. })), attempt);
}
