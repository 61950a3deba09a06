//! Notices of jobs: posted to a real HTTP server, after they are durable.

use std::time::Duration;

use gangline_base::{EmailAddress, JobId, JobSpec, Notify, Occasion, WebhookUrl};
use gangline_execution::protocol::{FaultCause, Outcome};

use super::super::Error;
use super::super::handle::Request;
use super::supervisor::fault;
use super::{Supervisor, World, spec};
use crate::delivery::tests::{PATIENCE, courier, http_server};
use crate::views::{Fact, LifeSpan};

const SECOND: Duration = Duration::from_secs(1);

fn telling(url: &str, on: &[Occasion]) -> JobSpec {
    let webhook = Some(WebhookUrl::new(url).expect("a URL"));
    let mut spec = spec("a", 1, 1);
    spec.recovery.max_faults = 0;
    JobSpec { notify: Notify { webhook, email: None, on: on.iter().copied().collect() }, ..spec }
}

#[test]
fn a_webhook_is_told_of_what_it_asked_for_and_of_nothing_else() {
    let (url, posts) = http_server(vec!["200 OK"; 3]);
    let mut world = World::new(&[("n1", 1)]);
    world.stop();
    world.courier = Some(courier(None));
    world.open().expect("the folder opens");
    world.submit(telling(&url, &[Occasion::Start, Occasion::End]));
    let next = || posts.recv_timeout(PATIENCE).expect("a notice");
    let started = next();
    assert_eq!((&started["v"], &started["occasion"], &started["job"]), (&1.into(), &"start".into(), &"job-1".into()));
    let (placed, now) = (world.launch().remove(0), world.now);
    Supervisor::new(&placed, now).ends(now, Outcome::Succeeded).tell(&mut world);
    let ended = next();
    assert_eq!((&ended["occasion"], &ended["state"]), (&"end".into(), &"succeeded".into()));
    assert!(
        ended["text"].as_str().is_some_and(|text| text.starts_with("job-1 a (queue ") && text.ends_with(") succeeded"))
    );
    // Of two jobs that want to hear of failures only the second one fails: its notice is the next one.
    world.submit(telling(&url, &[Occasion::Failure]));
    let (placed, now) = (world.launch().remove(0), world.now);
    Supervisor::new(&placed, now).ends(now, Outcome::Succeeded).tell(&mut world);
    world.submit(telling(&url, &[Occasion::Failure]));
    let (placed, now) = (world.launch().remove(0), world.now);
    Supervisor::new(&placed, now).ends(now, fault(FaultCause::Exit { code: 1 }, now)).tell(&mut world);
    let failed = next();
    assert_eq!((&failed["job"], &failed["state"]), (&"job-3".into(), &"failed".into()));
    let shown = world.show(JobId(3)).notifies;
    assert_eq!(shown, [format!("{}/... on failure", url.trim_end_matches("/hook/sEcReT"))], "the path is a secret");
}

#[test]
fn an_address_is_refused_where_nothing_can_be_mailed() {
    let mut world = World::new(&[("n1", 1)]);
    let email = EmailAddress::new("me@example.org").expect("an address");
    let notify = Notify { webhook: None, email: Some(email.clone()), on: [Occasion::End].into() };
    let spec = Box::new(JobSpec { notify, ..spec("a", 1, 1) });
    let refused = world.ask(|reply| Request::Submit { spec, reply });
    assert_eq!(refused.map(drop), Err(Error::NoMailServer(email)));
}

/// The channel gets the id of an ended job, and each span of the job's life lies within its parent.
#[test]
fn ends_are_told_and_a_life_has_the_phases_that_the_attempts_came_to() {
    let mut world = World::new(&[("n1", 1)]);
    world.stop();
    let (asked, ended) = std::sync::mpsc::sync_channel(2);
    world.ended = Some(asked);
    world.open().expect("the folder opens");
    let job = world.submit(spec("a", 1, 1));
    let (placed, now) = (world.launch().remove(0), world.now);
    Supervisor::new(&placed, now).steps(now, 1).tell(&mut world);
    assert_eq!(world.life(job), None, "it goes on");
    world.pass(SECOND);
    let now = world.now;
    Supervisor::new(&placed, now).ends(now, fault(FaultCause::Signal { signal: 9 }, now)).tell(&mut world);
    world.pass(SECOND);
    let (placed, now) = (world.launch().remove(0), world.now);
    Supervisor::new(&placed, now).ends(now, Outcome::Succeeded).tell(&mut world);
    assert_eq!(ended.try_iter().collect::<Vec<_>>(), [job]);
    let life = world.life(job).expect("it has ended");
    let names: Vec<&str> = life.iter().map(|span| span.name).collect();
    let (first, second) = names.split_at(names.iter().rposition(|name| *name == "queue").expect("it waited twice"));
    assert_eq!(first[..4], ["job", "queue", "attempt", "start"], "{names:?}");
    assert_eq!(second[..2], ["queue", "attempt"], "{names:?}");
    for span in &life[1..] {
        let parent = &life[span.parent.expect("only the job has none")];
        assert!(parent.from <= span.from && span.to <= parent.to, "{span:?} in {parent:?}");
    }
    let attempts: Vec<&LifeSpan> = life.iter().filter(|span| span.name == "attempt").collect();
    let (_, facts) = attempts[0].fault.as_ref().expect("a signal ended it");
    assert!(facts.contains(&("cause", Fact::Text("killed by signal 9".to_owned()))), "{facts:?}");
    assert!(attempts[0].failure.is_some() && attempts[1].failure.is_none() && life[0].failure.is_none());
}
