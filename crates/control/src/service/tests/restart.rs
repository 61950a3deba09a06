//! Restarts of the control plane.

use std::time::Duration;

use gangline_api::JobState;
use gangline_execution::launcher::IDENTITY_FILE;
use gangline_execution::protocol::Outcome;

use gangline_base::{JobId, Level};

use super::super::handle::{DrainWish, Request};
use super::super::{Error, StartError};
use super::world::node;
use super::{Supervisor, World, spec};
use gangline_store::{db, ports};

const SECOND: Duration = Duration::from_secs(1);

fn started(supervisor: &Supervisor) {
    std::fs::create_dir_all(&supervisor.spec.folder).expect("the folder is writable");
    std::fs::write(supervisor.spec.folder.join(IDENTITY_FILE), "{}").expect("the folder is writable");
}

/// Proves A-3: after a crash the state is what it was before.
#[test]
fn a_crash_leaves_the_state_as_it_was() {
    let mut world = World::new(&[("n1", 1), ("n2", 2)]);
    let first = world.submit(spec("first", 1, 2));
    world.submit(spec("second", 1, 2));
    let now = world.now;
    let mut supervisor = Supervisor::new(&world.launch()[0], now);
    started(&supervisor);
    supervisor.runs(now).saved(now, 3).tell(&mut world);
    world.drain("n1", DrainWish::WhenFree).expect("the node is there");
    let state = world.state();
    let shown = world.show(first);
    world.crash_and_restart();
    assert_eq!(world.state(), state);
    assert_eq!(world.show(first), shown);
    assert!(world.launches().is_empty(), "what was started is not started again");
    world.stop();
    world.open().expect("the folder opens again");
    assert_eq!(world.state(), state, "a snapshot gives the same as the journal");
}

#[test]
fn a_start_after_a_stop_replays_nothing() {
    let mut world = World::new(&[("n1", 1)]);
    world.submit(spec("a", 1, 1));
    world.stop();
    world.open().expect("the folder opens again");
    assert_eq!(world.actor().entries_since_snapshot, 1, "only that its epoch began");
}

#[test]
fn a_gang_whose_launch_a_crash_cut_off_is_launched_by_the_next_start() {
    let mut world = World::new(&[("n1", 1), ("n2", 1)]);
    world.submit(spec("gang", 2, 1));
    let now = world.now;
    let specs = world.launches();
    started(&Supervisor::new(&specs[0], now));
    world.crash_and_restart();
    let again = world.launches();
    assert_eq!(again, [specs[1].clone()], "only what was never started, and exactly as before");
}

#[test]
fn a_share_whose_ranks_ran_is_never_launched_again() {
    let mut world = World::new(&[("n1", 1)]);
    world.submit(spec("a", 1, 1));
    let now = world.now;
    Supervisor::new(&world.launch()[0], now).runs(now).tell(&mut world);
    world.crash_and_restart();
    assert!(world.launches().is_empty(), "even if its folder is gone");
}

#[test]
fn a_stop_leaves_nothing_behind_that_was_reported() {
    let mut world = World::new(&[("n1", 1)]);
    let job = world.submit(spec("a", 1, 1));
    let now = world.now;
    let mut supervisor = Supervisor::new(&world.launch()[0], now);
    started(&supervisor);
    supervisor.runs(now).tell(&mut world);
    supervisor.steps(now, 8).tell(&mut world);
    world.stop();
    world.open().expect("the folder opens again");
    assert_eq!((world.show(job).progress.step, world.sampled(job)), (Some(8), Some(8)));
}

/// Proves A-13: the lease of a supervisor begins anew with each start.
#[test]
fn a_long_absence_of_the_control_plane_is_no_fault_of_its_supervisors() {
    let mut world = World::new(&[("n1", 1)]);
    let job = world.submit(spec("a", 1, 1));
    let now = world.now;
    let mut supervisor = Supervisor::new(&world.launch()[0], now);
    started(&supervisor);
    supervisor.runs(now).tell(&mut world);
    world.crash();
    world.now = world.now + Duration::from_hours(5);
    world.open().expect("the folder opens again");
    world.pass_slowly(2 * SECOND);
    let now = world.now;
    supervisor.steps(now, 3).ends(now, Outcome::Succeeded).tell(&mut world);
    let shown = world.show(job);
    assert_eq!((shown.state, shown.faults), (JobState::Succeeded, 0));
    assert!(world.machines.killed.lock().expect("nobody panicked").is_empty());
    assert_eq!(world.ledger(job).len(), 1);
}

#[test]
fn nodes_follow_the_configuration() {
    let mut world = World::new(&[("n1", 1)]);
    let job = world.submit(spec("a", 1, 1));
    let now = world.now;
    let mut supervisor = Supervisor::new(&world.launch()[0], now);
    started(&supervisor);
    supervisor.runs(now).tell(&mut world);
    world.nodes = vec![node("n2", 4)];
    world.crash_and_restart();
    let list = world.ask(|reply| Request::Nodes { reply }).expect("an answer").nodes;
    let shown: Vec<_> = list.iter().map(|n| (n.name.as_str(), n.status.as_str(), n.slots.len())).collect();
    assert_eq!(shown, [("n1", "draining", 1), ("n2", "ready", 4)]);
    assert_eq!(list[0].slots[0].job.as_deref(), Some("job-1"), "what runs there goes on");
    let undrained = world.drain("n1", DrainWish::Undo);
    assert!(matches!(undrained, Err(Error::NotConfigured(_))), "nobody knows its address any more: {undrained:?}");
    supervisor.ends(now, Outcome::Succeeded).tell(&mut world);
    assert_eq!(world.show(job).state, JobState::Succeeded);
    world.submit(spec("b", 1, 3));
    assert_eq!(world.launches()[0].node, "n2");
    world.nodes = vec![node("n1", 1), node("n2", 8)];
    world.crash_and_restart();
    assert_eq!(world.drain("n1", DrainWish::Undo).map(|node| node.status), Ok("ready".to_owned()));
    let slots = world.ask(|reply| Request::Nodes { reply }).expect("an answer").nodes[1].slots.len();
    assert_eq!(slots, 8, "a node may grow");
}

#[test]
fn a_rack_moves_with_all_its_nodes() {
    let mut world = World::new(&[("n1", 1), ("n2", 1)]);
    for block in ["b1", "b2"] {
        let names = [(Level::Rack, "r1".to_owned()), (Level::Block, block.to_owned())];
        world.nodes.iter_mut().for_each(|node| node.location = names.clone().into_iter().collect());
        world.crash_and_restart();
        let blocks: Vec<_> = world.actor().engine.cluster().nodes().map(|n| n.spec.location.at(Level::Block)).collect();
        assert_eq!(blocks, [Some(block); 2]);
    }
}

#[test]
fn a_start_without_changes_writes_only_that_its_epoch_began() {
    let mut world = World::new(&[("n1", 1)]);
    world.submit(spec("a", 1, 1));
    let (last, epoch) = (world.actor().journal.last(), world.actor().engine.epoch());
    world.crash_and_restart();
    assert_eq!(world.actor().journal.last(), last.next());
    assert_ne!(world.actor().engine.epoch(), epoch);
}

#[test]
fn nodes_beyond_reason_are_refused_at_the_start() {
    let mut world = World::new(&[("n1", 1)]);
    world.crash();
    world.nodes = vec![node("n1", 1), node("n1", 2)];
    assert!(matches!(world.open(), Err(StartError::Nodes(_))));
    world.nodes = (0..300).map(|number| node(&format!("n{number}"), 1_024)).collect();
    assert!(matches!(world.open(), Err(StartError::Nodes(_))));
}

#[test]
fn a_body_of_a_newer_gangline_is_refused_and_named() {
    let mut world = World::new(&[("n1", 1)]);
    world.crash();
    let (mut journal, _) = db::Journal::open(world.folder.path(), db::Options::default()).expect("the folder opens");
    let body = br#"{"v":6,"body":"time_flew"}"#.to_vec();
    let entry = db::Entry { at: world.now, body };
    journal
        .commit(ports::Batch { records: &[entry], given_out: JobId(0), changes: ports::Changes::none() })
        .expect("there is room");
    drop(journal);
    let refused = world.open().expect_err("it can't be understood");
    let StartError::Body { sequence, source } = refused else { panic!("{refused:?}") };
    assert_eq!(sequence, 4);
    assert_eq!(source.to_string(), "a journal body has version 6, this gangline reads up to 5");
}
