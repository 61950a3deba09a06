//! Budgets are exact to the second over all attempts, and include the grace period.

use std::sync::Arc;
use std::time::Duration;

use gangline_base::{JobId, JobSpec, Money};

use crate::fixture::kind;
use crate::sweep_tests::{World, spec};
use crate::{Configuration, Decision, Event, Fate, FaultCause, Refusal, ShareEnd, StopReason};

fn money(text: &str) -> Money {
    text.parse().expect("money")
}

/// Returns a world with one node of eight accelerators at this price.
fn world(price: &str) -> World {
    let mut world = World::new(1, 8);
    set_price(&mut world, price);
    world
}

fn set_price(world: &mut World, price: &str) -> Vec<Decision> {
    let prices = [(kind(), money(price))].into();
    let configuration = Configuration { prices, ..Configuration::default() };
    world.apply(Event::Configured(Arc::new(configuration))).expect("a sound configuration")
}

/// Submits a job with a grace period of 30 seconds.
fn submit(world: &mut World, devices: u32, budget: &str) -> Result<Vec<Decision>, Refusal> {
    let spec = JobSpec { budget: Some(money(budget)), ..spec(1, devices) };
    world.apply(Event::JobSubmitted(Arc::new(spec)))
}

fn stop(job: u64) -> Decision {
    Decision::Stop { job: JobId(job), attempt: gangline_base::AttemptNumber::FIRST, reason: StopReason::BudgetSpent }
}

fn spent(job: u64, spent: &str, budget: &str) -> Decision {
    Decision::End { job: JobId(job), fate: Fate::BudgetSpent { spent: money(spent), budget: money(budget) } }
}

const SECOND: Duration = Duration::from_secs(1);

#[test]
fn a_job_is_stopped_so_that_its_grace_is_still_paid_for() {
    // Two devices at 3.60 per hour each cost 0.002 per second, so 2 dollars last 1,000 seconds.
    let mut world = world("3.6");
    submit(&mut world, 2, "2").expect("it pays for a start");
    assert_eq!(world.engine.next_deadline(), Some(world.now + SECOND * 970));
    assert_eq!(world.pass(SECOND * 969), []);
    assert_eq!(world.engine.spent(world.now, world.engine.job(JobId(1)).expect("it runs")), money("1.938"));
    assert_eq!(world.pass(SECOND), [stop(1)]);
    world.now = world.now + SECOND * 30;
    assert_eq!(world.end(JobId(1), &ShareEnd::Requeue), [spent(1, "2", "2")]);
    world.check_replay();
}

#[test]
fn attempts_are_paid_for_together() {
    let mut world = world("3.6");
    submit(&mut world, 1, "1").expect("it pays for a start");
    world.pass(SECOND * 400);
    let fault = ShareEnd::fault(FaultCause::Exit(1), world.now);
    let decisions = world.end(JobId(1), &fault);
    assert!(matches!(decisions[..], [Decision::Requeue { .. }, Decision::Place { .. }]), "{decisions:?}");
    // 400 of 1,000 seconds are spent; the rest lasts 600, including 30 for the grace period.
    assert_eq!(world.pass(SECOND * 569), []);
    assert_eq!(world.pass(SECOND).len(), 1);
    world.check_replay();
    world.now = world.now + SECOND;
    assert_eq!(world.end(JobId(1), &ShareEnd::Stopped), [spent(1, "0.971", "1")]);
}

#[test]
fn a_job_whose_rest_pays_for_no_minute_ends_instead_of_waiting() {
    let mut world = world("3.6");
    submit(&mut world, 1, "1").expect("it pays for a start");
    world.pass(SECOND * 911);
    let fault = ShareEnd::fault(FaultCause::Exit(1), world.now);
    assert_eq!(world.end(JobId(1), &fault), [spent(1, "0.911", "1")]);
    // One second earlier, a minute and the grace period are still covered.
    submit(&mut world, 1, "1").expect("it pays for a start");
    world.pass(SECOND * 910);
    assert!(matches!(world.end(JobId(2), &fault)[..], [Decision::Requeue { .. }, Decision::Place { .. }]));
}

#[test]
fn work_that_is_done_beats_a_spent_budget() {
    let mut world = world("3.6");
    submit(&mut world, 1, "1").expect("it pays for a start");
    assert_eq!(world.pass(SECOND * 970), [stop(1)]);
    let done = Decision::End { job: JobId(1), fate: Fate::Succeeded };
    assert_eq!(world.end(JobId(1), &ShareEnd::Succeeded), [done]);
}

#[test]
fn a_new_price_counts_from_now_on() {
    let mut world = world("3.6");
    submit(&mut world, 8, "1.6").expect("it pays for a start");
    submit(&mut world, 8, "0.8").expect("it pays for a start");
    // 100 of 200 seconds are spent; at twice the price the rest lasts 50.
    world.pass(SECOND * 100);
    assert_eq!(set_price(&mut world, "7.2"), [spent(2, "0", "0.8")]);
    assert_eq!(world.engine.next_deadline(), Some(world.now + SECOND * 20));
    assert_eq!(world.pass(SECOND * 20), [stop(1)]);
    world.check_replay();
    // Without a price nothing more is spent.
    world.apply(Event::Configured(Arc::new(Configuration::default()))).expect("no queues");
    world.now = world.now + SECOND * 1_000;
    assert_eq!(world.end(JobId(1), &ShareEnd::Stopped), [spent(1, "1.12", "1.6")]);
    world.check_replay();
}

#[test]
fn a_budget_without_a_price_or_too_small_for_a_start_is_refused() {
    let mut unpriced = World::new(1, 8);
    assert_eq!(submit(&mut unpriced, 1, "100"), Err(Refusal::NoPrice { kind: kind() }));
    let mut world = world("3.6");
    // A minute plus the grace period is 90 seconds.
    let least = money("0.09");
    let budget = money("0.089999999");
    assert_eq!(submit(&mut world, 1, "0.089999999"), Err(Refusal::BudgetTooSmall { budget, least }));
    submit(&mut world, 1, "0.09").expect("it just pays for a start");
    assert_eq!(world.pass(SECOND * 60), [stop(1)]);
}

#[test]
fn a_budget_outlives_a_snapshot() {
    let mut world = world("3.6");
    submit(&mut world, 1, "1").expect("it pays for a start");
    world.pass(SECOND * 100);
    let restored = crate::Engine::restore(crate::Limits::default(), world.engine.snapshot()).expect("sound");
    assert_eq!(restored.next_deadline(), world.engine.next_deadline());
}
