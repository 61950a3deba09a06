//! Changes with an idempotency key: made once, answered alike.

use gangline_api as api;
use gangline_base::{Principal, Submitter};
use tokio::sync::oneshot;

use super::super::Error;
use super::super::handle::{Reply, Request};
use super::disk::tear;
use super::{World, spec};
use gangline_store::model::RequestKey;

/// Returns a key for a request with the content `asked`.
fn key(key: &str, asked: &str) -> RequestKey {
    RequestKey { user: "ada".to_owned(), key: key.to_owned(), request: blake3::hash(asked.as_bytes()) }
}

fn submit(name: &str, key: RequestKey, reply: Reply<api::Answer>) -> Request {
    Request::Asked {
        by: Principal::Service,
        key: Some(key),
        request: Box::new(Request::Submit { spec: Box::new(spec(name, 1, 1)), reply }),
    }
}

fn jobs(world: &mut World) -> u64 {
    world.actor().engine.next_job_id().0 - 1
}

/// Proves A-3 for keyed answers: they survive a crash together with their change.
#[test]
fn a_change_with_a_key_is_made_once_across_a_crash() {
    let mut world = World::new(&[("n1", 1)]);
    let first = world.ask(|reply| submit("a", key("k", "a"), reply)).expect("a sound job");
    let again = world.ask(|reply| submit("a", key("k", "a"), reply)).expect("the same");
    assert_eq!((&first, jobs(&mut world)), (&again, 1));
    world.crash_and_restart();
    let after = world.ask(|reply| submit("a", key("k", "a"), reply)).expect("the same");
    assert_eq!((&first, jobs(&mut world)), (&after, 1));
    let other = world.ask(|reply| submit("b", key("k", "b"), reply));
    assert_eq!(other, Err(Error::KeyReused("k".to_owned())));
    let newer = world.ask(|reply| submit("a", key("k2", "a"), reply)).expect("another job");
    assert_ne!((&newer, jobs(&mut world)), (&first, 1));
}

#[test]
fn two_requests_with_a_key_in_one_batch_make_one_change() {
    let mut world = World::new(&[("n1", 1)]);
    let (replies, mut answers): (Vec<_>, Vec<_>) = (0..3).map(|_| oneshot::channel()).unzip();
    let asked = ["a", "a", "b"];
    let requests: Vec<Request> =
        asked.into_iter().zip(replies).map(|(name, reply)| submit(name, key("k", name), reply)).collect();
    let now = world.now;
    world.actor().turn(now, requests.into_iter());
    let answers: Vec<_> = answers.iter_mut().map(|answer| answer.try_recv().expect("it is answered")).collect();
    assert_eq!((&answers[0], jobs(&mut world)), (&answers[1], 1));
    assert!(answers[0].is_ok());
    assert_eq!(answers[2], Err(Error::KeyReused("k".to_owned())));
}

/// A change that finds nothing to do is also an answer, and equally durable.
#[test]
fn an_answer_that_changed_nothing_is_kept_and_a_refusal_is_not() {
    let mut world = World::new(&[("n1", 1)]);
    let job = world.submit(spec("a", 1, 1));
    let cancel = |key: RequestKey, reply| {
        let request = Request::Cancel { job, by: Submitter("ada".to_owned()), reply };
        Request::Asked { by: Principal::Service, key: Some(key), request: Box::new(request) }
    };
    world.cancel(job).expect("it runs");
    let noted = world.ask(|reply| cancel(key("again", "cancel"), reply)).expect("it is stopping");
    world.crash_and_restart();
    assert_eq!(world.ask(|reply| cancel(key("again", "cancel"), reply)), Ok(noted));
    let huge = |reply| {
        let request = Request::Submit { spec: Box::new(spec("huge", 1, 3)), reply };
        Request::Asked { by: Principal::Service, key: Some(key("huge", "huge")), request: Box::new(request) }
    };
    assert!(matches!(world.ask(huge), Err(Error::Refused(_))));
    world.ask(|reply| submit("b", key("huge", "b"), reply)).expect("the refused request left its key free");
}

/// Proves A-3 for keys when the journal lost its last record: the answer to a lost change is lost as well.
#[test]
fn the_answer_to_a_change_that_was_put_aside_is_forgotten() {
    let mut world = World::new(&[("n1", 1)]);
    let kept = world.ask(|reply| submit("a", key("kept", "a"), reply)).expect("a sound job");
    world.drain("n1", super::super::handle::DrainWish::WhenFree).expect("the node is there");
    let lost = world.ask(|reply| submit("b", key("lost", "b"), reply)).expect("a sound job");
    world.crash();
    tear(&world);
    world.open().expect("a torn last record is put aside");
    assert_eq!(world.ask(|reply| submit("a", key("kept", "a"), reply)), Ok(kept));
    let again = world.ask(|reply| submit("b", key("lost", "b"), reply)).expect("a sound job");
    assert_ne!(again, lost, "it is made anew, under an id of its own");
}
