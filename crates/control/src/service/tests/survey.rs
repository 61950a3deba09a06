//! Nodes that come from the launcher's own system, and gangs that wait in its queue.

use std::time::Duration;

use gangline_api::{JobState, Node};
use gangline_base::{Bytes, Money};
use gangline_execution::launcher::{Openness, Presence, SurveyedNode, Taken};

use super::super::SurveyOptions;
use super::super::handle::{DrainWish, Request};
use super::super::launch::LaunchOutcome;
use super::{Supervisor, World, spec};

const SECOND: Duration = Duration::from_secs(1);

fn seen(name: &str, slots: u32) -> SurveyedNode {
    SurveyedNode {
        name: name.to_owned(),
        address: format!("{name}.test"),
        kind: "cpu".to_owned(),
        accelerators: slots,
        cpus: 0,
        memory: Bytes(0),
        domains: Vec::new(),
        openness: Openness::Open,
        taken: Taken::default(),
    }
}

fn because(text: &str) -> String {
    text.to_owned()
}

fn world() -> World {
    let mut world = World::new(&[]);
    world.survey = Some(SurveyOptions { price_per_hour: Some(Money::from_nano_dollars(3_600_000_000)) });
    world.crash_and_restart();
    world
}

fn survey(world: &mut World, nodes: Vec<SurveyedNode>) {
    world.request(Request::Surveyed { survey: Ok(nodes), allocations: Vec::new() });
}

fn node(world: &mut World, name: &str) -> Node {
    let nodes = world.nodes();
    nodes.into_iter().find(|node| node.name == name).expect("it is there")
}

#[test]
fn nodes_come_close_open_and_go_as_they_are_seen() {
    let mut world = world();
    let silent = SurveyedNode { openness: Openness::Silent { because: because("no answer") }, ..seen("n3", 2) };
    survey(&mut world, vec![seen("n1", 2), seen("n2", 2), silent.clone()]);
    let names: Vec<String> = world.nodes().into_iter().map(|node| node.name).collect();
    assert_eq!(names, ["n1", "n2"], "one that was never well isn't there");
    let closed = SurveyedNode { openness: Openness::Closed { because: because("fan") }, ..seen("n1", 2) };
    survey(
        &mut world,
        vec![closed, SurveyedNode { openness: Openness::Down { because: because("dead") }, ..seen("n2", 2) }],
    );
    let shown = node(&mut world, "n1");
    assert_eq!((shown.status.as_str(), shown.status_reason.as_deref()), ("draining", Some("fan")));
    assert_eq!(node(&mut world, "n2").status, "lost");
    survey(&mut world, vec![seen("n1", 2), SurveyedNode { name: "n2".to_owned(), ..silent.clone() }, seen("n3", 2)]);
    assert_eq!(node(&mut world, "n2").status, "lost", "a lost node that is silent stays lost");
    let ready = |world: &mut World, name: &str| node(world, name).status == "ready";
    assert!(ready(&mut world, "n1") && ready(&mut world, "n3"));
    survey(&mut world, vec![seen("n1", 4), seen("n2", 2)]);
    assert!(ready(&mut world, "n2"));
    assert_eq!(node(&mut world, "n1").slots.len(), 4, "it has a new capacity");
    let gone = node(&mut world, "n3");
    assert_eq!((gone.status.as_str(), gone.status_reason.as_deref()), ("draining", Some("it isn't listed any more")));
}

/// Proves: a restart knows the last survey, and silence changes nothing.
#[test]
fn what_was_seen_outlasts_a_restart_and_silence_changes_nothing() {
    let mut world = world();
    let taken = Taken { accelerators: 1, ..Taken::default() };
    survey(&mut world, vec![SurveyedNode { taken, ..seen("n1", 2) }, seen("n2", 2)]);
    world.drain("n2", DrainWish::WhenFree).expect("it is there");
    world.crash_and_restart();
    world.request(Request::Surveyed { survey: Err(because("Slurm doesn't answer")), allocations: Vec::new() });
    let shown = node(&mut world, "n1");
    assert_eq!((shown.status.as_str(), shown.status_reason.as_deref()), ("ready", Some("others hold 1 of its 2")));
    survey(&mut world, vec![seen("n1", 2), seen("n2", 2)]);
    assert_eq!(node(&mut world, "n2").status, "draining", "an administrator's drain stays");
    assert_eq!(node(&mut world, "n1").status_reason, None);
}

#[test]
fn a_job_waits_for_what_others_hold() {
    let mut world = world();
    let taken = Taken { accelerators: 2, ..Taken::default() };
    survey(&mut world, vec![SurveyedNode { taken, ..seen("n1", 2) }]);
    let job = world.submit(spec("a", 1, 1));
    assert!(world.launches().is_empty());
    survey(&mut world, vec![seen("n1", 2)]);
    assert_eq!(world.launch().len(), 1);
    assert_eq!(world.show(job).state, JobState::Starting);
}

#[test]
fn a_gang_that_can_not_be_started_for_now_is_started_later_at_no_cost() {
    let mut world = World::new(&[("n1", 1)]);
    let job = world.submit(spec("a", 1, 1));
    let gang = world.launches();
    let later = |spec: &_| (Clone::clone(spec), LaunchOutcome::Later(because("nobody answers")));
    world.request(Request::Launched { gang: gang.iter().map(later).collect() });
    // Rows of read models wait a little for a commit.
    world.pass(SECOND);
    assert!(world.show(job).because.contains("nobody answers"));
    world.pass_slowly(10 * SECOND);
    let again = world.launch();
    assert_eq!(again, gang, "it is tried again, once");
    let now = world.now;
    Supervisor::new(&again[0], now).runs(now).tell(&mut world);
    let shown = world.show(job);
    assert_eq!((shown.state, shown.faults, shown.attempts.len()), (JobState::Running, 0, 1));
}

#[test]
fn a_gang_that_waits_too_long_is_taken_back_and_waits_again_without_a_fault() {
    let mut world = World::new(&[("n1", 1)]);
    let job = world.submit(spec("a", 1, 1));
    let folder = world.launch()[0].folder.clone();
    let tell = |world: &World, presence: Presence| {
        world.machines.told.lock().expect("nobody panicked").insert(folder.clone(), presence);
    };
    let waiting = |is_overdue| Presence::Waiting { since: SECOND, why: because("Resources"), is_overdue };
    tell(&world, waiting(false));
    world.pass_slowly(30 * 60 * SECOND);
    let shown = world.show(job);
    assert_eq!((shown.state, shown.attempts.len()), (JobState::Starting, 1), "a wait is no fault, however long");
    assert!(shown.because.contains("Resources"), "{}", shown.because);
    assert!(world.machines.killed.lock().expect("nobody panicked").is_empty());
    tell(&world, waiting(true));
    world.pass_slowly(5 * SECOND);
    assert!(world.machines.killed.lock().expect("nobody panicked").contains(&folder));
    tell(&world, Presence::Withdrawn);
    world.pass_slowly(10 * SECOND);
    let shown = world.show(job);
    assert_eq!((shown.attempts.len(), shown.faults), (2, 0));
    let ended = shown.attempts[0].ended_because.as_deref().unwrap_or_default();
    assert!(ended.contains("waited for nodes that were not allocated, and was taken back"), "{ended}");
}

/// Proves A-5: a node on which nobody answers is lost with its jobs, unless another supervisor there reports.
#[test]
fn a_silent_node_is_lost_only_if_nobody_there_is_heard() {
    let mut world = World::new(&[("n1", 2), ("n2", 2)]);
    let (first, second) = (world.submit(spec("a", 1, 1)), world.submit(spec("b", 1, 1)));
    let now = world.now;
    let mut both: Vec<Supervisor> = world.launch().iter().map(|spec| Supervisor::new(spec, now)).collect();
    both.iter_mut().for_each(|supervisor| drop(supervisor.runs(now).tell(&mut world)));
    assert_eq!(both[0].spec.node, both[1].spec.node, "the fullest node takes both");
    let folder = both[0].spec.folder.clone();
    world.machines.told.lock().expect("nobody panicked").insert(folder, Presence::Unreachable);
    for _ in 0..10 {
        world.pass(SECOND);
        both[1].tell(&mut world);
    }
    assert_eq!(world.show(first).attempts.len(), 1, "the other supervisor is heard");
    let folder = both[1].spec.folder.clone();
    world.machines.told.lock().expect("nobody panicked").insert(folder, Presence::Unreachable);
    world.pass_slowly(10 * SECOND);
    for job in [first, second] {
        let shown = world.show(job);
        assert_eq!(shown.attempts.len(), 2, "{:?}", shown.because);
        assert_eq!(shown.attempts[1].shares[0].node, "n2");
    }
}
