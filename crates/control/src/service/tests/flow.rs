//! The path of a job: submit, place, launch, report.

use std::path::PathBuf;
use std::time::Duration;

use gangline_api::JobState;
use gangline_base::{AttemptNumber, Epoch, JobId};
use gangline_execution::protocol::{Notice, Outcome, Rendezvous};
use gangline_store::rebuild::rebuild;

use super::super::Error;
use super::super::handle::Request;
use super::{Supervisor, World, spec};
use crate::views::Views;

const SECOND: Duration = Duration::from_secs(1);

#[test]
fn a_placed_gang_is_launched_whole_and_each_node_knows_its_place() {
    let mut world = World::new(&[("n1", 2), ("n2", 2)]);
    let job = world.submit(spec("gang", 2, 2));
    let specs = world.launch();
    let places: Vec<_> = specs.iter().map(|s| (s.node.as_str(), s.node_rank, s.node_count, &s.devices[..])).collect();
    assert_eq!(places, [("n1", 0, 2, &[0, 1][..]), ("n2", 1, 2, &[0, 1][..])]);
    assert_eq!(specs[0].address, "n1.test");
    assert_eq!((specs[0].faults, specs[0].high_water_step, specs[0].envs["LR"].as_str()), (0, 0, "3e-4"));
    let secrets = world.actor().options.secrets.clone();
    assert!(secrets.is_attempt(&specs[1].token, job, AttemptNumber::FIRST, Epoch(specs[1].epoch)));
    assert_eq!(world.show(job).state, JobState::Starting);
    assert!(world.launches().is_empty(), "nothing is launched twice");
}

#[test]
fn what_does_not_fit_waits_and_starts_when_there_is_room() {
    let mut world = World::new(&[("n1", 2)]);
    let first = world.submit(spec("first", 1, 2));
    let second = world.submit(spec("second", 1, 1));
    assert_eq!(world.launch().len(), 1);
    let explained = world.ask(|reply| Request::Explain { job: second, reply }).expect("it waits");
    assert_eq!((explained.ahead, explained.waiting), (0, 1));
    assert!(explained.summary.contains(&format!("held by {first}")), "{}", explained.summary);
    let reasons = world.ask(|reply| Request::WaitReasons { jobs: vec![first, second], reply }).expect("an answer");
    assert_eq!(reasons, [(second, explained.summary)].into());
    let now = world.now;
    let attempt = world.actor().engine.job(first).and_then(|job| job.attempt()).expect("it is placed").clone();
    let specs = world.actor().supervisor_specs(first, attempt.number, &attempt.shares);
    Supervisor::new(&specs[0], now).ends(now, Outcome::Succeeded).tell(&mut world);
    assert_eq!(world.launch()[0].job, second.0);
}

#[test]
fn what_could_never_fit_is_refused_and_leaves_nothing_behind() {
    let mut world = World::new(&[("n1", 2)]);
    let before = world.actor().engine.snapshot();
    let refused = world.ask(|reply| Request::Submit { spec: Box::new(spec("huge", 1, 3)), reply });
    assert!(matches!(refused, Err(Error::Refused(_))), "{refused:?}");
    assert_eq!(world.actor().engine.snapshot(), before);
    assert!(world.stored(JobId(1)).is_none());
    assert!(world.actor().records.is_empty());
}

#[test]
fn reports_take_a_job_from_starting_through_running_to_success() {
    let mut world = World::new(&[("n1", 1), ("n2", 1)]);
    let job = world.submit(spec("gang", 2, 1));
    let mut gang: Vec<Supervisor> = world.launch().iter().map(|spec| Supervisor::new(spec, world.now)).collect();
    for supervisor in &mut gang {
        assert_eq!(supervisor.tell(&mut world).stop, None);
    }
    let now = world.now;
    gang[0].runs(now).tell(&mut world);
    assert_eq!(world.show(job).state, JobState::Starting, "a gang runs when all of it does");
    gang[1].runs(now).tell(&mut world);
    assert_eq!(world.show(job).state, JobState::Running);
    gang[0].steps(now, 4).tell(&mut world);
    gang[1].steps(now, 3).tell(&mut world);
    gang[0].ends(now, Outcome::Succeeded);
    let orders = gang[0].tell(&mut world);
    assert!(orders.end_acknowledged && orders.stay, "the other is still there");
    assert_eq!(world.show(job).progress.step, Some(3), "the slowest rank tells how far the gang is");
    assert!(!world.show(job).state.is_final());
    let orders = gang[1].ends(now, Outcome::Succeeded).tell(&mut world);
    assert!(orders.end_acknowledged && !orders.stay);
    assert!(!gang[0].tell(&mut world).stay, "nobody is left to stay for");
    let shown = world.show(job);
    assert_eq!((shown.state, shown.ended_at.is_some()), (JobState::Succeeded, true));
    assert!(world.actor().records.is_empty(), "ended jobs leave the memory");
}

#[test]
fn a_repeated_report_changes_nothing() {
    let mut world = World::new(&[("n1", 1)]);
    let job = world.submit(spec("a", 1, 1));
    let now = world.now;
    let mut supervisor = Supervisor::new(&world.launch()[0], now);
    supervisor.runs(now).steps(now, 1).steps(now, 2).saved(now, 2);
    world.report(&supervisor.report);
    world.pass(SECOND);
    let seen = |world: &mut World| (world.actor().journal.last(), world.actor().engine.snapshot(), world.sampled(job));
    let (state, shown) = (seen(&mut world), world.show(job));
    for _ in 0..3 {
        let orders = world.report(&supervisor.report);
        assert_eq!(orders.samples_stored, 2);
        world.pass(SECOND);
    }
    assert_eq!(seen(&mut world), state);
    let mut again = world.show(job);
    again.progress.tokens_per_second = shown.progress.tokens_per_second;
    again.progress.steps_per_second = shown.progress.steps_per_second;
    assert_eq!(again, shown);
}

#[test]
fn a_report_that_an_end_has_overtaken_does_not_undo_it() {
    let mut world = World::new(&[("n1", 1), ("n2", 1)]);
    let job = world.submit(spec("gang", 2, 1));
    let now = world.now;
    let mut gang: Vec<Supervisor> = world.launch().iter().map(|spec| Supervisor::new(spec, now)).collect();
    let late = gang[0].runs(now).clone();
    gang[1].runs(now).tell(&mut world);
    gang[0].worked(500).ends(now, Outcome::Succeeded).tell(&mut world);
    assert_eq!(world.report(&late.report).stop, None);
    world.pass(SECOND);
    let shown = world.show(job);
    assert_eq!((shown.attempts[0].shares[0].state.as_str(), shown.state), ("ended", JobState::Starting));
}

/// Proves the half of A-3 that a supervisor relies on: acknowledged samples are on disk.
#[test]
fn samples_are_acknowledged_once_they_are_durable_and_counted_once() {
    let mut world = World::new(&[("n1", 1)]);
    let job = world.submit(spec("a", 1, 1));
    let now = world.now;
    let mut supervisor = Supervisor::new(&world.launch()[0], now);
    supervisor.runs(now).tell(&mut world);
    supervisor.steps(now, 1).steps(now, 2).steps(now, 3);
    assert_eq!(world.report(&supervisor.report).samples_stored, 0, "they still wait for a commit");
    assert_eq!(world.sampled(job), None);
    supervisor.steps(now, 4);
    assert_eq!(world.report(&supervisor.report).samples_stored, 0);
    world.pass(SECOND);
    assert_eq!(world.report(&supervisor.report).samples_stored, 4);
    supervisor.tell(&mut world);
    assert_eq!((supervisor.report.samples_from, supervisor.report.samples.len()), (4, 0));
    supervisor.steps(now, 5).tell(&mut world);
    world.crash_and_restart();
    assert_eq!(world.sampled(job), Some(4), "the fifth was lost unacknowledged");
    supervisor.tell(&mut world);
    world.pass(SECOND);
    world.pass(SECOND);
    assert_eq!(world.sampled(job), Some(5), "and sent again");
}

#[test]
fn a_supervisor_of_an_attempt_that_is_over_is_told_to_stop() {
    let mut world = World::new(&[("n1", 1)]);
    let job = world.submit(spec("a", 1, 1));
    let now = world.now;
    let mut current = Supervisor::new(&world.launch()[0], now);
    let before = world.actor().engine.snapshot();
    for (number, attempt, node) in [(job.0, 7, "n1"), (99, 1, "n1"), (job.0, 1, "n2"), (job.0, 1, "no name!")] {
        let mut stray = current.clone();
        (stray.report.job, stray.report.attempt, stray.report.node) = (number, attempt, node.to_owned());
        stray.report.samples_from = u64::MAX;
        let orders = world.report(&stray.runs(now).steps(now, 1).report);
        assert!(orders.end_acknowledged);
        assert_eq!(orders.stop.map(|stop| stop.grace_ms), Some(0));
    }
    assert_eq!(world.actor().engine.snapshot(), before);
    assert_eq!(current.tell(&mut world).stop, None);
}

#[test]
fn absurd_numbers_in_a_report_hurt_nobody() {
    let mut world = World::new(&[("n1", 2)]);
    let job = world.submit(spec("a", 1, 2));
    let now = world.now;
    let mut supervisor = Supervisor::new(&world.launch()[0], now);
    supervisor.runs(now).steps(now, 1).steps(now, 2);
    supervisor.report.samples_from = u64::MAX - 1;
    (supervisor.report.checkpoints, supervisor.report.checkpoint_bytes) = (u32::MAX, u64::MAX);
    supervisor.report.ranks.iter_mut().for_each(|rank| rank.tokens = u64::MAX);
    supervisor.report.ranks.extend(supervisor.report.ranks.clone());
    supervisor.report.started_at = u64::MAX;
    supervisor.worked(u64::MAX);
    world.report(&supervisor.report);
    world.pass(SECOND);
    let shown = world.show(job);
    assert_eq!((shown.progress.tokens, shown.attempts[0].shares[0].ranks.len()), (u64::MAX, 2));
    supervisor.ends(now, Outcome::Succeeded);
    assert!(world.report(&supervisor.report).end_acknowledged);
    let booked = world.ledger(job);
    assert_eq!(booked[0].nanos.iter().sum::<u64>(), 2 * 1_000_000_000);
}

#[test]
fn the_first_node_offers_the_rendezvous_and_the_others_learn_of_it() {
    let mut world = World::new(&[("n1", 1), ("n2", 1)]);
    world.submit(spec("gang", 2, 1));
    let now = world.now;
    let mut gang: Vec<Supervisor> = world.launch().iter().map(|spec| Supervisor::new(spec, now)).collect();
    assert_eq!(gang[1].tell(&mut world).rendezvous, None);
    let place = Rendezvous { address: "n1.test".to_owned(), port: 29_500 };
    gang[0].report.rendezvous = Some(place.clone());
    assert_eq!(gang[0].tell(&mut world).rendezvous, Some(place.clone()));
    assert_eq!(gang[1].tell(&mut world).rendezvous, Some(place));
}

#[test]
fn a_checkpoint_reaches_the_engine_once() {
    let mut world = World::new(&[("n1", 1)]);
    let job = world.submit(spec("a", 1, 1));
    let now = world.now;
    let mut supervisor = Supervisor::new(&world.launch()[0], now);
    supervisor.runs(now).saved(now, 10).tell(&mut world);
    let after = world.actor().journal.last();
    supervisor.tell(&mut world);
    assert_eq!(world.actor().journal.last(), after);
    assert_eq!(world.actor().engine.job(job).and_then(|job| job.checkpoint).map(|step| step.0), Some(10));
    assert_eq!(world.show(job).checkpoints.last_step, Some(10));
}

/// A notice drains the node for every job, so it counts only where supervisors were told to look for one.
#[test]
fn a_notice_that_nobody_was_told_to_look_for_drains_no_node() {
    for (source, status) in [(None, "ready"), (Some("aws".to_owned()), "draining")] {
        let mut world = World::new(&[("n1", 1)]);
        world.submit(spec("a", 1, 1));
        world.actor().options.notice_source = source;
        let now = world.now;
        let mut supervisor = Supervisor::new(&world.launch()[0], now);
        supervisor.report.notice = Some(Notice { text: "60".to_owned(), seen_at: now.unix_nanos() });
        supervisor.runs(now).tell(&mut world);
        assert_eq!(world.nodes()[0].status, status);
    }
}

#[test]
fn what_a_token_costs_counts_those_of_all_nodes_and_comes_through_a_rebuild() {
    let mut world = World::new(&[("n1", 1), ("n2", 1)]);
    let job = world.submit(spec("gang", 2, 1));
    let now = world.now;
    let mut gang: Vec<Supervisor> = world.launch().iter().map(|spec| Supervisor::new(spec, now)).collect();
    for step in [1, 11] {
        for node in &mut gang {
            node.runs(now).steps(now, step).worked(1_000_000_000).tell(&mut world);
        }
        world.pass(SECOND);
    }
    let now = world.now;
    for node in &mut gang {
        node.ends(now, Outcome::Succeeded).tell(&mut world);
    }
    let cost = |world: &mut World| {
        let views = Views::new(world.actor().journal.reader(), PathBuf::new());
        views.job_cost(job, now).expect("readable").expect("it is there")
    };
    let shown = cost(&mut world);
    // Each of the two ranks has ten tokens a step.
    let expected = shown.total.cost_nano_dollars * 1_000_000 / (11 * 20);
    assert!(expected > 0, "{shown:?}");
    assert_eq!(shown.nano_dollars_per_million_tokens, Some(expected));
    world.stop();
    let database = world.database();
    database.execute("DELETE FROM jobs WHERE job = 1", []).expect("the row is there");
    drop(database);
    rebuild(world.folder.path(), false).expect("nobody holds the folder");
    world.open().expect("the folder opens again");
    assert_eq!(cost(&mut world).nano_dollars_per_million_tokens, Some(expected));
}
