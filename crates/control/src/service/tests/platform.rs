//! Problems on the platform's own side, which are no job's fault.

use std::io;
use std::time::Duration;

use gangline_api::{Health, JobState};
use gangline_execution::launcher::{AllocationEnd, GangAllocation, LaunchError, Presence};
use gangline_execution::protocol::Outcome;
use gangline_orchestration::HealthPolicy;

use super::{Supervisor, World, spec};
use crate::service::handle::Request;
use crate::service::launch::LaunchOutcome;

const SECOND: Duration = Duration::from_secs(1);

fn health(world: &mut World) -> Health {
    world.ask(|reply| Request::Health { reply }).expect("it is a question")
}

fn running(world: &mut World) -> (gangline_base::JobId, Supervisor) {
    let job = world.submit(spec("a", 1, 1));
    let now = world.now;
    let mut supervisor = Supervisor::new(&world.launch()[0], now);
    supervisor.runs(now).tell(world);
    (job, supervisor)
}

fn out_of_files() -> LaunchOutcome {
    let source = io::Error::from_raw_os_error(24);
    Err(LaunchError::Start { program: "gangline".into(), source }).into()
}

/// Proves A-13 for jobs that wait to be started: a lack on the control plane's side costs them nothing.
#[test]
fn a_launch_that_the_platform_has_no_means_for_is_tried_again_later_and_later() {
    let mut world = World::new(&[("n1", 1)]);
    let job = world.submit(spec("a", 1, 1));
    let mut pauses = Vec::new();
    for _ in 0..7 {
        let mut waited = 0;
        let gang = loop {
            let gang = world.launches();
            if !gang.is_empty() {
                break gang;
            }
            waited += 1;
            world.pass(SECOND);
        };
        pauses.push(waited);
        let gang = gang.into_iter().map(|spec| (spec, out_of_files())).collect();
        world.request(Request::Launched { gang });
    }
    assert_eq!(pauses, [0, 2, 4, 8, 16, 30, 30]);
    let shown = world.show(job);
    assert_eq!((shown.state, shown.faults, shown.attempts.len()), (JobState::Starting, 0, 1));
    assert!(shown.because.contains("waits to be started: start the supervisor gangline: Too many open files"));
    let unwell = health(&mut world);
    assert_eq!(unwell.status, "unwell");
    assert!(unwell.reason.is_some_and(|reason| reason.starts_with("on n1 supervisors can't be started: ")));
    assert_eq!(world.nodes()[0].status, "unwell");
    world.pass(30 * SECOND);
    assert_eq!(world.launch().len(), 1);
    assert_eq!((health(&mut world).status, world.nodes()[0].status.clone()), ("ok".to_owned(), "ready".to_owned()));
}

#[test]
fn nodes_of_a_gang_do_not_wait_for_one_that_cannot_be_started_until_that_is_a_fault() {
    let mut world = World::new(&[("n1", 1), ("n2", 1)]);
    let job = world.submit(spec("a", 2, 1));
    let gang = world.launches();
    let (mut first, second) = (Supervisor::new(&gang[0], world.now), gang[1].clone());
    let outcomes = vec![(gang[0].clone(), LaunchOutcome::Started), (gang[1].clone(), out_of_files())];
    world.request(Request::Launched { gang: outcomes });
    while world.show(job).attempts[0].shares.len() == 2 && world.show(job).state == JobState::Starting {
        first.tell(&mut world);
        world.pass(SECOND);
        let again = world.launches();
        if !again.is_empty() {
            assert_eq!(again[0].node, second.node);
            let gang = again.into_iter().map(|spec| (spec, out_of_files())).collect();
            world.request(Request::Launched { gang });
        }
    }
    assert_eq!((world.show(job).state, world.show(job).faults), (JobState::Stopping, 0));
    let now = world.now;
    first.ends(now, Outcome::Stopped).tell(&mut world);
    assert_eq!((world.show(job).state, world.show(job).faults), (JobState::Waiting, 0));
}

#[test]
fn a_node_that_can_start_no_ranks_is_unwell_and_its_job_waits_without_a_fault() {
    let mut world = World::new(&[("n1", 1)]);
    let (job, mut supervisor) = running(&mut world);
    let now = world.now;
    let message = "start in /work: Resource temporarily unavailable (os error 11)".to_owned();
    supervisor.ends(now, Outcome::Unable { message }).tell(&mut world);
    let shown = world.show(job);
    assert_eq!((shown.state, shown.faults), (JobState::Waiting, 0));
    assert!(shown.because.contains("could not be started on n1, through no fault of its own"), "{}", shown.because);
    assert_eq!(world.nodes()[0].status, "unwell");
    world.pass(15 * SECOND);
    let (now, again) = (world.now, world.launch());
    Supervisor::new(&again[0], now).runs(now).tell(&mut world);
    assert_eq!((world.nodes()[0].status.clone(), health(&mut world).status), ("ready".to_owned(), "ok".to_owned()));
}

#[test]
fn a_supervisor_that_could_begin_nothing_is_no_fault() {
    let mut world = World::new(&[("n1", 1)]);
    let job = world.submit(spec("a", 1, 1));
    let folder = world.launch()[0].folder.clone();
    let unable = Presence::Unable { why: "no space left on device".to_owned() };
    world.machines.told.lock().expect("nobody panicked").insert(folder, unable);
    world.pass_slowly(3 * SECOND);
    let shown = world.show(job);
    assert_eq!((shown.state, shown.faults), (JobState::Waiting, 0));
    assert!(shown.because.ends_with("no space left on device"), "{}", shown.because);
}

#[test]
fn somebody_elses_order_to_end_is_told_as_such() {
    let mut world = World::new(&[("n1", 1)]);
    let (job, mut supervisor) = running(&mut world);
    let now = world.now;
    supervisor.ends(now, Outcome::Terminated).tell(&mut world);
    assert_eq!(world.show(job).attempts.len(), 1, "it may become known who it was");
    world.pass(11 * SECOND);
    let shown = world.show(job);
    assert_eq!((shown.faults, shown.attempts.len()), (0, 2));
    let ended = shown.attempts[0].ended_because.clone().unwrap_or_default();
    assert_eq!(
        ended,
        "queued again after a pause of 10 s: its supervisors were told to end (SIGTERM), not by this control plane"
    );
}

/// What the launcher's system says of the end decides whether the job goes on by itself.
#[test]
fn a_job_that_somebody_cancelled_is_held_and_others_go_on() {
    let check = |end: AllocationEnd, has_saved: bool, is_held: bool, said: &str| {
        let mut world = World::new(&[("n1", 1)]);
        let (job, mut supervisor) = running(&mut world);
        let now = world.now;
        if has_saved {
            supervisor.saved(now, 5).tell(&mut world);
        }
        supervisor.ends(now, Outcome::Terminated).tell(&mut world);
        let gang = supervisor.spec.folder.parent().expect("a share is below its gang").to_path_buf();
        let ended = GangAllocation { from: Some(now), to: Some(now), is_suspended: false, end: Some(end) };
        let allocations = vec![("/of/another".into(), ended), (gang, ended)];
        world.request(Request::Surveyed { survey: Err("not now".to_owned()), allocations });
        world.pass(11 * SECOND);
        let shown = world.show(job);
        let is_told = shown.history.iter().any(|line| line.text.starts_with(said));
        assert_eq!((shown.attempts.len(), shown.faults, is_told), (if is_held { 1 } else { 2 }, 0, true), "{shown:#?}");
        let because = shown.attempts[0].ended_because.clone().unwrap_or_default();
        let (_, verdict) = because.rsplit_once("; ").unwrap_or_default();
        assert!(!verdict.is_empty() && said.starts_with(verdict), "{because}");
    };
    check(AllocationEnd::Cancelled, true, true, "somebody cancelled its Slurm job (scancel); it is held");
    check(AllocationEnd::TimeLimit, false, false, "its Slurm job reached the time limit");
    check(AllocationEnd::Preempted, false, false, "Slurm preempted its job");
    check(AllocationEnd::NodeFailed, false, false, "a node of its Slurm job failed");
}

#[test]
fn a_job_whose_gang_somebody_cancelled_in_the_queue_is_held() {
    let mut world = World::new(&[("n1", 1)]);
    let job = world.submit(spec("a", 1, 1));
    let folder = world.launch()[0].folder.clone();
    let gang = folder.parent().expect("a share is below its gang").to_path_buf();
    world.machines.told.lock().expect("nobody panicked").insert(folder, Presence::Withdrawn);
    world.pass_slowly(3 * SECOND);
    let ended =
        GangAllocation { from: None, to: Some(world.now), is_suspended: false, end: Some(AllocationEnd::Cancelled) };
    world.request(Request::Surveyed { survey: Err("not now".to_owned()), allocations: vec![(gang, ended)] });
    world.pass(20 * SECOND);
    let shown = world.show(job);
    let is_told = shown
        .history
        .iter()
        .any(|line| line.text.starts_with("somebody cancelled its Slurm job (scancel); it is held"));
    assert_eq!((shown.attempts.len(), shown.faults, is_told), (1, 0, true), "{shown:#?}");
    assert!(shown.attempts[0].allocation.as_ref().is_none_or(|allocation| allocation.from.is_none()), "{shown:#?}");
}

#[test]
fn a_job_that_comes_no_further_within_the_time_limit_is_held() {
    let check = |steps: &[Option<u64>], attempts: usize| {
        let mut world = World::new(&[("n1", 1)]);
        let (job, mut supervisor) = running(&mut world);
        for step in steps {
            let now = world.now;
            if let Some(step) = step {
                supervisor.steps(now, *step);
            }
            supervisor.ends(now, Outcome::Terminated).tell(&mut world);
            let gang = supervisor.spec.folder.parent().expect("a share is below its gang").to_path_buf();
            let ended = GangAllocation {
                from: Some(now),
                to: Some(now),
                is_suspended: false,
                end: Some(AllocationEnd::TimeLimit),
            };
            let allocations = vec![(gang, ended)];
            world.request(Request::Surveyed { survey: Err("not now".to_owned()), allocations });
            world.pass(11 * SECOND);
            for spec in world.launch() {
                supervisor = Supervisor::new(&spec, world.now);
                supervisor.runs(world.now).tell(&mut world);
            }
        }
        let shown = world.show(job);
        let is_held = shown.history.iter().any(|line| line.text.contains("it came no further than before; it is held"));
        assert_eq!((shown.attempts.len(), is_held), (attempts, attempts == steps.len()), "{steps:?}: {shown:#?}");
    };
    check(&[Some(5), Some(5)], 2);
    check(&[Some(5), Some(3)], 2);
    check(&[Some(5), Some(6)], 3);
    check(&[None, None], 3);
}

fn record(supervisor: &Supervisor, rank: u32, end: &str) {
    std::fs::create_dir_all(&supervisor.spec.folder).expect("the folder is writable");
    let text = format!(r#"{{"event":"ended","at":1,"end":{{{end}}},"last_lines":[],"dropped":0}}"#);
    std::fs::write(supervisor.spec.folder.join(format!("rank-{rank}.exit")), text).expect("the folder is writable");
}

#[test]
fn work_that_was_done_when_its_supervisor_was_killed_is_not_done_again() {
    let mut world = World::new(&[("n1", 2)]);
    let job = world.submit(spec("a", 1, 2));
    let now = world.now;
    let mut supervisor = Supervisor::new(&world.launch()[0], now);
    supervisor.runs(now).tell(&mut world);
    record(&supervisor, 0, r#""exit":0"#);
    record(&supervisor, 1, r#""exit":0"#);
    world.dies(&supervisor.spec);
    world.pass_slowly(4 * SECOND);
    let shown = world.show(job);
    assert_eq!((shown.state, shown.attempts.len()), (JobState::Succeeded, 1));
    assert!(shown.history.iter().any(|line| line.text.contains("all its ranks had ended with 0")));
}

#[test]
fn work_of_which_a_rank_failed_or_has_no_record_is_done_again() {
    for last in [Some(r#""exit":1"#), Some(r#""signal":9"#), None] {
        let mut world = World::new(&[("n1", 2)]);
        let job = world.submit(spec("a", 1, 2));
        let now = world.now;
        let mut supervisor = Supervisor::new(&world.launch()[0], now);
        supervisor.runs(now).tell(&mut world);
        record(&supervisor, 0, r#""exit":0"#);
        last.into_iter().for_each(|end| record(&supervisor, 1, end));
        world.dies(&supervisor.spec);
        world.pass_slowly(4 * SECOND);
        assert_eq!(world.show(job).attempts.len(), 2, "{last:?}");
    }
}

/// Proves A-5 for processes that can't be killed: their devices stay held, and the reason is reported.
#[test]
fn what_a_lost_supervisor_left_and_cannot_be_killed_keeps_its_devices_and_is_told() {
    let mut world = World::new(&[("n1", 1), ("n2", 1), ("n3", 1), ("n4", 1)]);
    world.sharing.health = Some(HealthPolicy::DEFAULT);
    world.crash_and_restart();
    let (job, supervisor) = running(&mut world);
    world.dies(&supervisor.spec);
    let folder = supervisor.spec.folder.clone();
    world.machines.undying.lock().expect("nobody panicked").insert(folder.clone());
    world.pass_slowly(60 * SECOND);
    let shown = world.show(job);
    assert_eq!((shown.state, shown.attempts.len(), shown.faults), (JobState::Running, 1, 0));
    assert!(shown.because.contains("its devices stay held") && shown.because.contains("4711 (python3, state D)"));
    let node = world.nodes().into_iter().find(|node| node.name == supervisor.spec.node).expect("it is there");
    assert_eq!(node.status, "suspect");
    assert!(node.status_reason.is_some_and(|reason| reason.contains("4711")));
    world.machines.undying.lock().expect("nobody panicked").clear();
    world.pass_slowly(SECOND);
    assert_eq!((world.show(job).attempts.len(), world.show(job).faults), (2, 1));
}

/// Proves A-13 where a file system hangs or somebody set a trap: nothing in place of a final report is waited
/// for.
#[test]
fn a_fifo_in_place_of_the_final_report_is_not_waited_for() {
    let mut world = World::new(&[("n1", 1)]);
    let (job, supervisor) = running(&mut world);
    std::fs::create_dir_all(&supervisor.spec.folder).expect("the folder is writable");
    let fifo = supervisor.spec.folder.join(gangline_execution::launcher::FINAL_REPORT_FILE);
    assert!(std::process::Command::new("mkfifo").arg(fifo).status().is_ok_and(|status| status.success()));
    world.dies(&supervisor.spec);
    world.pass_slowly(4 * SECOND);
    assert_eq!(world.show(job).faults, 1);
}
