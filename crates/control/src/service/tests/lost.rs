//! Supervisors that are silent, gone, or were never started.

use std::time::Duration;

use gangline_api::JobState;
use gangline_base::{JobId, JobSpec};
use gangline_execution::launcher::FINAL_REPORT_FILE;
use gangline_execution::protocol::{CacheReport, CachedDataset, NodeFinding, Outcome, PROTOCOL_VERSION, Report};
use gangline_orchestration::HealthPolicy;

use super::{Supervisor, World, spec};
use crate::service::handle::{DrainWish, Request};

const SECOND: Duration = Duration::from_secs(1);

fn leave_behind(report: &Report, supervisor: &Supervisor) {
    std::fs::create_dir_all(&supervisor.spec.folder).expect("the folder is writable");
    let text = serde_json::to_vec(report).expect("a report is JSON");
    std::fs::write(supervisor.spec.folder.join(FINAL_REPORT_FILE), text).expect("the folder is writable");
}

fn running(world: &mut World) -> (gangline_base::JobId, Supervisor) {
    let job = world.submit(spec("a", 1, 1));
    let now = world.now;
    let mut supervisor = Supervisor::new(&world.launch()[0], now);
    supervisor.runs(now).tell(world);
    (job, supervisor)
}

/// Proves A-13: the silence of a supervisor that is alive is no fault.
#[test]
fn a_silent_supervisor_that_lives_keeps_its_devices() {
    let mut world = World::new(&[("n1", 1)]);
    let (job, mut supervisor) = running(&mut world);
    world.pass_slowly(60 * SECOND);
    assert_eq!((world.show(job).state, world.launches().len()), (JobState::Running, 0));
    let now = world.now;
    supervisor.ends(now, Outcome::Succeeded).tell(&mut world);
    assert_eq!(world.show(job).state, JobState::Succeeded);
}

#[test]
fn a_supervisor_that_is_gone_is_a_fault_and_the_job_is_placed_again() {
    let mut world = World::new(&[("n1", 1)]);
    let (job, supervisor) = running(&mut world);
    world.dies(&supervisor.spec);
    world.pass_slowly(SECOND);
    assert_eq!(world.show(job).attempts.len(), 1, "its lease isn't over");
    world.pass_slowly(SECOND);
    let shown = world.show(job);
    assert_eq!((shown.attempts.len(), shown.faults, shown.state), (2, 1, JobState::Starting));
    assert_eq!(shown.attempts[0].fault.as_ref().map(|fault| fault.cause.as_str()), Some("the supervisor was lost"));
    assert_eq!(world.launches().len(), 1);
    assert_eq!(world.ledger(job).len(), 1);
}

#[test]
fn the_report_that_a_supervisor_left_behind_counts() {
    let mut world = World::new(&[("n1", 1)]);
    let (job, mut supervisor) = running(&mut world);
    let now = world.now;
    supervisor.worked(7).ends(now, Outcome::Succeeded);
    leave_behind(&supervisor.report, &supervisor);
    world.dies(&supervisor.spec);
    world.pass_slowly(4 * SECOND);
    assert_eq!(world.show(job).state, JobState::Succeeded);
    assert_eq!(world.ledger(job)[0].nanos[super::BUSY as usize], 7);
}

#[test]
fn a_left_report_of_another_attempt_or_without_an_end_does_not_count() {
    let ended = |supervisor: &Supervisor| {
        let mut changed = supervisor.clone();
        changed.ends(gangline_base::Timestamp::EPOCH, Outcome::Succeeded);
        changed.report
    };
    let spoil: [fn(Report) -> Report; 4] = [
        |report| Report { attempt: 2, ..report },
        |report| Report { node: "n2".to_owned(), ..report },
        |report| Report { version: PROTOCOL_VERSION + 1, ..report },
        |report| Report { state: gangline_execution::protocol::NodeState::Preparing, ..report },
    ];
    for change in spoil {
        let mut world = World::new(&[("n1", 1)]);
        let (job, supervisor) = running(&mut world);
        leave_behind(&change(ended(&supervisor)), &supervisor);
        world.dies(&supervisor.spec);
        world.pass_slowly(4 * SECOND);
        assert_eq!(world.show(job).faults, 1);
    }
}

/// Proves the fencing half of: an orphan that doesn't stop by itself is killed before its
/// devices are reused.
#[test]
fn a_stuck_supervisor_is_killed_before_its_devices_are_given_away() {
    let mut world = World::new(&[("n1", 1)]);
    let (job, supervisor) = running(&mut world);
    let orphan_after = world.actor().options.timing.orphan_after;
    world.pass_slowly(2 * orphan_after);
    assert_eq!(world.machines.killed.lock().expect("nobody panicked").len(), 0);
    world.pass(SECOND);
    let killed = world.machines.killed.lock().expect("nobody panicked").clone();
    assert_eq!(killed, std::slice::from_ref(&supervisor.spec.folder));
    assert_eq!(world.show(job).attempts.len(), 1, "its devices are free when it is known to be gone");
    world.pass(SECOND);
    assert_eq!(world.show(job).attempts.len(), 2);
}

/// Proves A-13 where the control plane itself was suspended.
#[test]
fn a_machine_that_slept_or_whose_clock_was_set_kills_nobody() {
    let mut world = World::new(&[("n1", 1)]);
    let (job, _supervisor) = running(&mut world);
    world.pass(Duration::from_hours(10));
    world.pass_slowly(10 * SECOND);
    world.now = gangline_base::Timestamp::from_unix_nanos(world.now.unix_nanos() - 36_000_000_000_000);
    world.pass(SECOND);
    world.pass_slowly(10 * SECOND);
    assert_eq!(world.machines.killed.lock().expect("nobody panicked").len(), 0);
    assert_eq!(world.show(job).attempts.len(), 1);
}

#[test]
fn a_clock_that_was_set_back_does_not_hide_a_lost_supervisor() {
    let mut world = World::new(&[("n1", 1)]);
    let (job, supervisor) = running(&mut world);
    world.now = gangline_base::Timestamp::from_unix_nanos(world.now.unix_nanos() - 36_000_000_000_000);
    world.dies(&supervisor.spec);
    world.pass_slowly(5 * SECOND);
    assert_eq!(world.show(job).attempts.len(), 2);
}

#[test]
fn a_launch_that_takes_its_time_is_not_a_lost_supervisor() {
    let mut world = World::new(&[("n1", 1)]);
    let job = world.submit(spec("a", 1, 1));
    let specs = world.launches();
    world.dies(&specs[0]);
    world.pass_slowly(30 * SECOND);
    assert_eq!(world.show(job).faults, 0, "the launching thread hasn't come to it yet");
    world.launched(&specs[0], None);
    world.pass_slowly(SECOND);
    assert_eq!(world.show(job).faults, 0, "its lease began with the launch");
    world.pass_slowly(SECOND);
    assert_eq!(world.show(job).faults, 1);
}

#[test]
fn a_failed_launch_is_a_fault_that_says_why() {
    let mut world = World::new(&[("n1", 1)]);
    let job = world.submit(spec("a", 1, 1));
    let specs = world.launches();
    world.launched(&specs[0], Some("start the supervisor: no such file"));
    let shown = world.show(job);
    assert_eq!((shown.faults, shown.attempts.len()), (1, 2));
    let cause = shown.attempts[0].fault.as_ref().map(|fault| fault.cause.clone()).unwrap_or_default();
    assert_eq!(cause, "could not be started: start the supervisor: no such file");
    let before = world.show(job);
    world.launched(&specs[0], Some("late"));
    world.pass(SECOND);
    assert_eq!(world.show(job), before, "a failure of an attempt that is over says nothing about the next");
}

/// Proves A-13: a check that finds a fault hurts no running job.
#[test]
fn a_node_with_a_fault_is_suspect_once_and_its_job_goes_on() {
    let mut world = World::new(&[("n1", 1), ("n2", 1), ("n3", 1), ("n4", 1)]);
    world.sharing.health = Some(HealthPolicy::DEFAULT);
    world.crash_and_restart();
    let (job, mut supervisor) = running(&mut world);
    let name = supervisor.spec.node.clone();
    let finding = NodeFinding { place: "gpu gpu 3".to_owned(), measured: "it is lost".to_owned() };
    supervisor.report.findings.push(finding);
    supervisor.tell(&mut world);
    supervisor.tell(&mut world);
    let node = |world: &mut World| world.nodes().into_iter().find(|node| node.name == name).expect("it is there");
    let shown = node(&mut world);
    assert_eq!((shown.status.as_str(), shown.faults), ("suspect", 3.0), "it is counted once");
    assert!(shown.status_reason.is_some_and(|reason| reason.contains("(gpu gpu 3: it is lost)")));
    assert_eq!(world.show(job).state, JobState::Running);
    world.drain(&name, DrainWish::Undo).expect("it is taken back");
    supervisor.tell(&mut world);
    assert_eq!(node(&mut world).status, "ready", "what was known before says nothing new");
}

#[test]
fn a_node_is_told_to_fetch_what_a_waiting_job_reads_until_its_cache_has_it() {
    let mut world = World::new(&[("n1", 1)]);
    world.submit(spec("first", 1, 1));
    let none = Ok(Vec::new());
    assert_eq!(world.agent_cached("n1", None), none);
    let dataset = "s3://bucket/tokens".to_owned();
    world.submit(JobSpec { datasets: [dataset.clone()].into(), ..spec("reader", 1, 1) });
    assert_eq!(world.agent_cached("n1", None), none, "it was looked at just now");
    world.pass(Duration::from_secs(5));
    assert_eq!(world.agent_cached("n1", None), Ok(vec![dataset.clone()]));
    let told =
        |world: &mut World| world.ask(|reply| Request::Explain { job: JobId(2), reply }).expect("it waits").notes;
    assert_eq!(told(&mut world), ["meanwhile its datasets are fetched on n1"]);
    let cache = |here_bytes| CacheReport {
        folder: "/cache".to_owned(),
        datasets: vec![CachedDataset { dataset: dataset.clone(), here_bytes, bytes: 100 }],
    };
    assert_eq!(world.agent_cached("n1", Some(cache(50))), Ok(vec![dataset.clone()]));
    assert_eq!(world.agent_cached("n1", Some(cache(100))), none);
    assert_eq!(told(&mut world), [] as [&str; 0]);
    assert!(world.agent_cached("n9", None).is_err(), "there is no such node");
}

/// What a node's agent finds counts as what a supervisor finds does, whether or not a job runs there.
#[test]
fn a_node_is_suspect_after_its_agent_has_found_a_fault() {
    let mut world = World::new(&[("n1", 1), ("n2", 1), ("n3", 1), ("n4", 1)]);
    world.sharing.health = Some(HealthPolicy::DEFAULT);
    world.crash_and_restart();
    let finding = NodeFinding { place: "kernel-log XID".to_owned(), measured: "XID 79".to_owned() };
    world.agent_found("n2", finding.clone()).expect("the node is there");
    let shown = world.nodes().into_iter().find(|node| node.name == "n2").expect("it is there");
    assert_eq!((shown.status.as_str(), shown.faults), ("suspect", 3.0));
    assert!(shown.status_reason.is_some_and(|reason| reason.contains("(kernel-log XID: XID 79)")));
    assert!(world.agent_found("n9", finding).is_err(), "there is no such node");
}
