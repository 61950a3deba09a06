//! Ends of attempts, and what is booked for them.

use std::time::Duration;

use gangline_api::JobState;
use gangline_base::{Bucket, GpuSeconds, JobId, Money};
use gangline_execution::protocol::{FaultCause, Outcome};

use super::super::Error;
use super::world::node;
use super::{BUSY, Supervisor, World, fault, spec};

const SECOND: Duration = Duration::from_secs(1);
const NANOS: u64 = 1_000_000_000;

/// Submits a job on one node and starts its ranks.
fn running(world: &mut World, job: gangline_base::JobSpec) -> (JobId, Supervisor) {
    let job = world.submit(job);
    let now = world.now;
    let mut supervisor = Supervisor::new(&world.launch()[0], now);
    supervisor.runs(now).tell(world);
    (job, supervisor)
}

/// Proves A-8: each share of an attempt is booked once, and its buckets sum to wall time times devices.
#[test]
fn an_attempt_is_booked_once_and_its_buckets_sum() {
    let mut world = World::new(&[("n1", 2)]);
    let (job, mut supervisor) = running(&mut world, spec("a", 1, 2));
    world.pass_slowly(10 * SECOND);
    assert_eq!(world.ledger(job), [], "nothing is booked before the end");
    let now = world.now;
    supervisor.worked(15 * NANOS).ends(now, Outcome::Succeeded).tell(&mut world);
    supervisor.tell(&mut world);
    let (shown, booked) = world.stored(job).expect("the job is there");
    assert_eq!(booked.len(), 1);
    assert_eq!(booked[0].nanos.iter().sum::<u64>(), 20 * NANOS);
    assert_eq!(booked[0].nanos[BUSY as usize], 15 * NANOS);
    assert_eq!(booked[0].nanos[Bucket::Idle as usize], 5 * NANOS);
    assert_eq!((shown.usage.gpu_nanoseconds, shown.usage.cost_nano_dollars), (20 * NANOS, 20_000_000));
    let in_buckets: i64 = shown.usage.buckets.iter().map(|line| line.cost_nano_dollars).sum();
    assert_eq!(in_buckets, shown.usage.cost_nano_dollars);
    assert_eq!(shown.usage.goodput, Some(0.75));
}

#[test]
fn a_price_that_changes_later_changes_nothing_that_runs() {
    let mut world = World::new(&[("n1", 1)]);
    let (job, mut supervisor) = running(&mut world, spec("a", 1, 1));
    world.nodes[0].price_per_hour = Some(Money::from_nano_dollars(1));
    world.crash_and_restart();
    world.nodes.clear();
    world.crash_and_restart();
    world.pass_slowly(3 * SECOND);
    let now = world.now;
    supervisor.ends(now, Outcome::Succeeded).tell(&mut world);
    let price = node("n1", 1).price_per_hour.expect("it has a price");
    assert_eq!(world.ledger(job)[0].price, price);
    assert_eq!(
        world.show(job).usage.cost_nano_dollars,
        price.per_hour_times(GpuSeconds::of(1, 3 * SECOND)).nano_dollars()
    );
}

#[test]
fn a_fault_within_the_budget_is_recovered_from_in_six_phases() {
    let mut world = World::new(&[("n1", 1)]);
    let (job, mut supervisor) = running(&mut world, spec("a", 1, 1));
    let failed_at = world.now + SECOND;
    supervisor.steps(world.now, 40).saved(world.now, 30).tell(&mut world);
    world.pass(2 * SECOND);
    let now = world.now;
    supervisor.ends(now, fault(FaultCause::Signal { signal: 9 }, failed_at)).tell(&mut world);
    let again = world.launch();
    assert_eq!((again[0].attempt, again[0].faults, again[0].high_water_step), (2, 1, 40));
    let mut next = Supervisor::new(&again[0], now);
    let at = |seconds| Some((now + seconds * SECOND).unix_nanos());
    next.report.marks.ranks_started = at(1);
    next.report.marks.restore_began = at(3);
    next.report.marks.restore_ended = at(6);
    next.report.marks.first_step = at(10);
    next.runs(now).tell(&mut world);
    world.pass(SECOND);
    let shown = world.show(job);
    assert_eq!((shown.faults, shown.attempts.len(), shown.recoveries.len()), (1, 2, 1));
    assert_eq!(shown.attempts[0].fault.as_ref().map(|fault| fault.cause.as_str()), Some("killed by signal 9"));
    let phases: Vec<_> = shown.recoveries[0].phases.iter().map(|p| (p.phase.as_str(), p.seconds)).collect();
    let expected =
        [("detect", 0.0), ("cleanup", 1.0), ("rendezvous", 1.0), ("init", 2.0), ("restore", 3.0), ("first_step", 4.0)];
    assert_eq!(phases, expected);
    assert!(shown.recoveries[0].is_complete);
    assert_eq!(shown.checkpoints.count, 1);
    assert_eq!(world.ledger(job).len(), 1, "only the attempt that is over is booked");
}

#[test]
fn an_attempt_that_asks_to_be_queued_again_is_followed_by_one_whose_start_is_shown() {
    let mut world = World::new(&[("n1", 1)]);
    let (job, mut supervisor) = running(&mut world, spec("a", 1, 1));
    world.pass(SECOND);
    let now = world.now;
    supervisor.ends(now, Outcome::Requeue).tell(&mut world);
    world.pass(SECOND);
    let (again, now) = (world.launch(), world.now);
    let mut next = Supervisor::new(&again[0], now);
    let at = |seconds| Some((now + seconds * SECOND).unix_nanos());
    (next.report.marks.ranks_started, next.report.marks.first_step) = (at(1), at(3));
    next.runs(now).tell(&mut world);
    world.pass(SECOND);
    let shown = world.show(job);
    assert_eq!((shown.faults, shown.recoveries.len()), (0, 1));
    let phases: Vec<_> = shown.recoveries[0].phases.iter().map(|p| (p.phase.as_str(), p.seconds)).collect();
    assert_eq!(phases, [("rendezvous", 1.0), ("init", 2.0)]);
}

#[test]
fn a_cancelled_job_is_told_to_stop_within_its_grace_and_stays_cancelled() {
    let mut world = World::new(&[("n1", 1)]);
    let (job, mut supervisor) = running(&mut world, spec("a", 1, 1));
    assert_eq!(world.cancel(job).map(|answer| answer.state), Ok(JobState::Stopping));
    let entries = world.actor().journal.last();
    assert_eq!(world.cancel(job).map(|answer| answer.state), Ok(JobState::Stopping), "twice does no harm");
    assert_eq!(world.actor().journal.last(), entries, "and is noted once");
    let stop = supervisor.tell(&mut world).stop.expect("an order to stop");
    assert_eq!((stop.grace_ms, stop.reason.as_str()), (7_000, "cancelled by a user"));
    let now = world.now;
    assert!(supervisor.ends(now, Outcome::Stopped).tell(&mut world).end_acknowledged);
    assert_eq!(world.show(job).state, JobState::Cancelled);
    assert_eq!(world.cancel(job), Err(Error::JobEnded(job)));
    assert_eq!(world.cancel(JobId(99)), Err(Error::NoJob(JobId(99))));
    assert_eq!(world.ledger(job).len(), 1);
}

#[test]
fn a_waiting_job_that_is_cancelled_ends_at_once_and_costs_nothing() {
    let mut world = World::new(&[("n1", 1)]);
    world.submit(spec("first", 1, 1));
    let second = world.submit(spec("second", 1, 1));
    assert_eq!(world.cancel(second).map(|answer| answer.state), Ok(JobState::Cancelled));
    assert_eq!(world.show(second).usage.cost_nano_dollars, 0);
}

#[test]
fn a_job_beyond_its_time_limit_is_stopped() {
    let mut world = World::new(&[("n1", 1)]);
    let limited = gangline_base::JobSpec { time_limit: Some(5 * SECOND), ..spec("a", 1, 1) };
    let (job, mut supervisor) = running(&mut world, limited);
    world.pass(4 * SECOND);
    assert_eq!(supervisor.tell(&mut world).stop, None);
    world.pass(SECOND);
    assert!(supervisor.tell(&mut world).stop.is_some_and(|stop| stop.reason.contains("time limit")));
    let now = world.now;
    supervisor.ends(now, Outcome::Stopped).tell(&mut world);
    let shown = world.show(job);
    assert_eq!((shown.state, shown.because.as_str()), (JobState::Failed, "reached its time limit"));
}

#[test]
fn a_gang_stops_when_one_of_its_nodes_has_failed() {
    let mut world = World::new(&[("n1", 1), ("n2", 1)]);
    let job = world.submit(spec("gang", 2, 1));
    let now = world.now;
    let mut gang: Vec<Supervisor> = world.launch().iter().map(|spec| Supervisor::new(spec, now)).collect();
    gang[0].runs(now).tell(&mut world);
    gang[1].runs(now).tell(&mut world);
    gang[1].ends(now, fault(FaultCause::Exit { code: 3 }, now)).tell(&mut world);
    assert!(world.launches().is_empty(), "nothing starts before all of the attempt is gone");
    assert!(gang[0].tell(&mut world).stop.is_some());
    gang[0].ends(now, Outcome::Stopped).tell(&mut world);
    assert_eq!(world.launches().len(), 2);
    let booked = world.ledger(job);
    assert_eq!(booked.iter().map(|row| (row.attempt, row.node.as_str())).collect::<Vec<_>>(), [(1, "n1"), (1, "n2")]);
    assert_eq!(world.show(job).attempts[0].fault.as_ref().map(|fault| fault.node.as_str()), Some("n2"));
}
