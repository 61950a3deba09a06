//! Holds, changes of waiting jobs and dependencies: in single cases, and in random histories that are
//! replayed.

use std::sync::Arc;
use std::time::Duration;

use gangline_base::{
    AttemptNumber, Dependency, EndCondition, JobId, JobSpec, Money, Priority, Step, Submitter, Timestamp,
};

use crate::fixture::Dice;
use crate::sweep_tests::{World, placed, spec};
use crate::{
    Blocker, BudgetScope, Decision, Event, Fate, FaultCause, JobChange, Refusal, ShareEnd, SpentBudget, StopReason,
};

const SECOND: Duration = Duration::from_secs(1);

fn submit(world: &mut World, spec: JobSpec) -> Vec<Decision> {
    world.apply(Event::JobSubmitted(Arc::new(spec))).expect("there is room")
}

fn change(world: &mut World, job: u64, changes: Vec<JobChange>) -> Result<Vec<Decision>, Refusal> {
    world.apply(Event::ChangeRequested { job: JobId(job), changes, by: Submitter("ada".to_owned()) })
}

fn after(job: u64, condition: EndCondition) -> JobSpec {
    JobSpec { after: [Dependency { job: JobId(job), condition }].into(), ..spec(1, 1) }
}

fn blocker(world: &World, job: u64) -> Blocker {
    world.engine.blocker(world.now, JobId(job)).expect("it waits")
}

/// Returns a world whose only accelerator job 1 holds.
fn busy() -> World {
    let mut world = World::new(1, 1);
    assert_eq!(placed(&submit(&mut world, spec(1, 1))), [1]);
    world
}

#[test]
fn a_held_job_lets_others_pass_and_starts_once_it_is_released() {
    let mut world = busy();
    submit(&mut world, spec(1, 1));
    submit(&mut world, spec(1, 1));
    change(&mut world, 2, vec![JobChange::Hold]).expect("it waits");
    assert_eq!(blocker(&world, 2), Blocker::Held);
    assert_eq!(placed(&world.end(JobId(1), &ShareEnd::Succeeded)), [3]);
    assert_eq!(placed(&world.end(JobId(3), &ShareEnd::Succeeded)), [] as [u64; 0], "nothing starts a held job");
    assert_eq!(placed(&change(&mut world, 2, vec![JobChange::Release]).expect("it waits")), [2]);
    world.check_replay();
}

#[test]
fn a_job_that_is_taken_back_before_its_start_is_placed_again_however_often() {
    let mut world = busy();
    for _ in 0..1_001 {
        assert_eq!(placed(&world.end(JobId(1), &ShareEnd::Withdrawn)), [] as [u64; 0], "after a pause");
        assert_eq!(placed(&world.pass(5 * SECOND)), [1]);
    }
    world.check_replay();
}

/// A budget of everything, or of a user.
fn spent(user: Option<&str>) -> SpentBudget {
    let scope = user.map_or(BudgetScope::Everything, |user| BudgetScope::User(Submitter(user.to_owned())));
    let limit = Money::from_nano_dollars(5_000_000_000);
    SpentBudget { name: "month".to_owned(), scope, limit, until: Timestamp::EPOCH + 1_000 * SECOND, stops: false }
}

/// A budget of everything, or of a user, that stops what runs.
fn stopping(user: Option<&str>) -> SpentBudget {
    SpentBudget { stops: true, ..spent(user) }
}

#[test]
fn of_a_spent_budget_nothing_begins_and_what_has_begun_goes_on() {
    let mut world = busy();
    submit(&mut world, spec(1, 1));
    world.apply(Event::BudgetsSpent(vec![spent(None)])).expect("it is taken");
    submit(&mut world, spec(1, 1));
    for waiting in [2, 3] {
        assert!(matches!(blocker(&world, waiting), Blocker::OverBudget(over) if over.budget == "month"), "{waiting}");
    }
    let fault = ShareEnd::fault(FaultCause::Exit(1), world.now);
    world.end(JobId(1), &fault);
    world.pass(60 * SECOND);
    assert!(world.engine.job(JobId(1)).is_some_and(|job| job.attempts == 2), "it had begun");
    assert_eq!(placed(&world.end(JobId(1), &ShareEnd::Succeeded)), [] as [u64; 0]);
    // A release exempts one job, also from budgets that are spent later.
    assert_eq!(placed(&change(&mut world, 3, vec![JobChange::Release]).expect("it waits")), [3]);
    assert_eq!(placed(&world.end(JobId(3), &ShareEnd::Succeeded)), [] as [u64; 0]);
    world.apply(Event::BudgetsSpent(vec![spent(None), spent(Some("bob"))])).expect("it is taken");
    assert!(matches!(blocker(&world, 2), Blocker::OverBudget(_)));
    assert_eq!(placed(&world.apply(Event::BudgetsSpent(vec![spent(Some("bob"))])).expect("it is taken")), [2]);
    world.check_replay();
}

#[test]
fn a_budget_that_stops_jobs_has_them_save_first_and_the_least_loss_goes_first() {
    let mut world = World::new(3, 1);
    for _ in 0..3 {
        submit(&mut world, spec(1, 1));
    }
    world.pass(60 * SECOND);
    let saved = Event::CheckpointCommitted { job: JobId(3), attempt: AttemptNumber(1), step: Step(5) };
    world.apply(saved).expect("it runs");
    world.pass(SECOND);
    let stopped = |decisions: &[Decision]| -> Vec<(u64, StopReason)> {
        let stop = |decision: &Decision| match decision {
            Decision::Stop { job, reason, .. } => Some((job.0, *reason)),
            _ => None,
        };
        decisions.iter().filter_map(stop).collect()
    };
    let told = world.apply(Event::BudgetsSpent(vec![stopping(None)])).expect("it is taken");
    assert_eq!(stopped(&told), [3, 1, 2].map(|job| (job, StopReason::SharedBudgetSpent)));
    for job in [1, 2, 3] {
        world.end(JobId(job), &ShareEnd::Stopped);
        assert!(matches!(blocker(&world, job), Blocker::OverBudget(_)), "job {job} waits for money");
    }
    // A release exempts a job that had begun as well.
    assert_eq!(placed(&change(&mut world, 2, vec![JobChange::Release]).expect("it waits")), [2]);
    assert_eq!(stopped(&world.pass(SECOND)), []);
    // More money lets the others go on, and they have lost no fault for it.
    assert_eq!(placed(&world.apply(Event::BudgetsSpent(Vec::new())).expect("it is taken")), [1, 3]);
    assert!(world.engine.jobs().all(|job| (job.faults, job.requeues, job.preemptions) == (0, 0, 0)));
    world.check_replay();
}

#[test]
fn a_fault_under_a_budget_that_stops_jobs_restarts_nothing_in_place() {
    let mut world = busy();
    world.apply(Event::BudgetsSpent(vec![stopping(None)])).expect("it is taken");
    let fault = ShareEnd::fault(FaultCause::Exit(1), world.now);
    assert_eq!(placed(&world.end(JobId(1), &fault)), [] as [u64; 0]);
    world.pass(60 * SECOND);
    assert!(matches!(blocker(&world, 1), Blocker::OverBudget(_)));
    assert_eq!(placed(&world.apply(Event::BudgetsSpent(Vec::new())).expect("it is taken")), [1]);
    world.check_replay();
}

#[test]
fn a_hold_wins_no_place_in_the_queue() {
    let mut world = busy();
    submit(&mut world, spec(1, 1));
    change(&mut world, 2, vec![JobChange::Hold]).expect("it waits");
    world.pass(SECOND);
    submit(&mut world, spec(1, 1));
    world.pass(SECOND);
    change(&mut world, 2, vec![JobChange::Release]).expect("it waits");
    assert_eq!(placed(&world.end(JobId(1), &ShareEnd::Succeeded)), [3], "it came while job 2 was held");
    world.check_replay();
}

#[test]
fn a_waiting_job_gets_another_priority_and_time_limit() {
    let mut world = busy();
    submit(&mut world, spec(1, 1));
    submit(&mut world, spec(1, 1));
    let changes = vec![JobChange::Priority(Priority::HIGH), JobChange::TimeLimit(Some(SECOND * 5))];
    change(&mut world, 3, changes).expect("it waits");
    assert_eq!(placed(&world.end(JobId(1), &ShareEnd::Succeeded)), [3]);
    let stopped = world.pass(SECOND * 5);
    assert!(matches!(stopped[..], [Decision::Stop { job: JobId(3), .. }]), "{stopped:?}");
    world.check_replay();
}

#[test]
fn a_change_of_what_does_not_wait_is_refused_whole() {
    let mut world = busy();
    assert_eq!(change(&mut world, 1, vec![JobChange::Hold]), Err(Refusal::NotWaiting(JobId(1))));
    assert_eq!(change(&mut world, 9, vec![JobChange::Hold]), Err(Refusal::UnknownJob(JobId(9))));
    submit(&mut world, spec(1, 1));
    world.apply(Event::Configured(Arc::new(one_queue()))).expect("a sound configuration");
    let both = vec![JobChange::Hold, JobChange::Queue(crate::fixture::queue("nowhere"))];
    let refused = change(&mut world, 2, both);
    assert!(matches!(refused, Err(Refusal::UnknownQueue { .. })), "{refused:?}");
    assert!(!world.engine.job(JobId(2)).expect("it waits").is_held, "no part of the change was made");
    world.check_replay();
}

/// Returns a configuration whose only queue is "team".
fn one_queue() -> crate::Configuration {
    let queue = crate::QueueSpec {
        name: crate::fixture::queue("team"),
        parent: None,
        weight: std::num::NonZeroU32::MIN,
        quota: [(crate::fixture::kind(), 1)].into(),
        borrowing_limit: [].into(),
    };
    crate::Configuration { queues: vec![queue], ..crate::Configuration::default() }
}

#[test]
fn a_job_moves_to_another_queue() {
    let mut world = busy();
    submit(&mut world, spec(1, 1));
    world.apply(Event::Configured(Arc::new(one_queue()))).expect("a sound configuration");
    change(&mut world, 2, vec![JobChange::Queue(crate::fixture::queue("team"))]).expect("the queue takes jobs");
    assert_eq!(placed(&world.end(JobId(1), &ShareEnd::Succeeded)), [2]);
    assert_eq!(world.engine.job(JobId(2)).expect("it runs").spec.queue, crate::fixture::queue("team"));
    world.check_replay();
}

#[test]
fn a_job_of_a_sweep_changes_alone() {
    let mut world = busy();
    let grid = gangline_base::Grid::new(vec![("SEED".to_owned(), vec!["1".to_owned(), "2".to_owned()])]);
    let sweep = gangline_base::SweepSpec { job: Arc::new(spec(1, 1)), grid, rules: Default::default() };
    world.apply(Event::SweepSubmitted(Arc::new(sweep))).expect("room for two jobs");
    change(&mut world, 3, vec![JobChange::Priority(Priority::HIGH)]).expect("it waits");
    world.check_replay();
    assert_eq!(world.engine.job(JobId(2)).expect("it waits").spec.priority, Priority::NORMAL);
    assert_eq!(placed(&world.end(JobId(1), &ShareEnd::Succeeded)), [3]);
    world.end(JobId(3), &ShareEnd::Succeeded);
    world.end(JobId(2), &ShareEnd::Succeeded);
    assert_eq!(world.engine.load(), crate::Load::default());
}

#[test]
fn a_job_starts_when_the_job_before_it_has_ended_as_it_needs() {
    use EndCondition::{Any, Failure, Success};
    let failed = ShareEnd::DoNotRestart;
    for (condition, end, starts) in [
        (Success, &ShareEnd::Succeeded, true),
        (Success, &failed, false),
        (Failure, &ShareEnd::Succeeded, false),
        (Failure, &failed, true),
        (Any, &ShareEnd::Succeeded, true),
        (Any, &failed, true),
    ] {
        let mut world = World::new(1, 2);
        submit(&mut world, spec(1, 1));
        let dependency = Dependency { job: JobId(1), condition };
        assert_eq!(placed(&submit(&mut world, after(1, condition))), [] as [u64; 0], "a device is free, but it waits");
        assert_eq!(blocker(&world, 2), Blocker::After { dependencies: vec![dependency], more: 0 });
        world.check_replay();
        let decisions = world.end(JobId(1), end);
        let broken = Decision::End { job: JobId(2), fate: Fate::DependencyFailed(dependency) };
        assert_eq!(placed(&decisions) == [2], starts, "{decisions:?}");
        assert_eq!(decisions.contains(&broken), !starts, "{decisions:?}");
        world.check_replay();
    }
}

#[test]
fn a_chain_ends_with_its_first_failure() {
    let mut world = busy();
    for before in 1..4 {
        submit(&mut world, after(before, EndCondition::Success));
    }
    let decisions = world.end(JobId(1), &ShareEnd::DoNotRestart);
    let ended: Vec<u64> = decisions.iter().map(|decision| decision.job().0).collect();
    assert_eq!(ended, [1, 2, 3, 4]);
    assert_eq!(world.engine.jobs().len(), 0);
    world.check_replay();
}

#[test]
fn a_job_that_comes_after_another_can_be_cancelled_and_counts_against_the_limit() {
    let mut world = busy();
    for _ in 0..50 {
        submit(&mut world, after(1, EndCondition::Any));
    }
    let full = world.apply(Event::JobSubmitted(Arc::new(spec(1, 1))));
    assert_eq!(full, Err(Refusal::QueueFull { waiting: 50 }));
    let cancelled = world.apply(Event::CancelRequested { job: JobId(2), by: Submitter("ada".to_owned()) });
    assert_eq!(cancelled, Ok(vec![Decision::End { job: JobId(2), fate: Fate::Cancelled }]));
    assert!(world.engine.dependents(JobId(1)).all(|job| job != JobId(2)));
    world.check_replay();
}

/// Proves A-3 for holds, changes and dependencies: replay gives the same state after random histories, in
/// which no job is forgotten.
#[test]
fn random_histories_forget_no_job() {
    for seed in 0..40 {
        let (mut world, mut dice) = (World::new(2, 2), Dice(seed));
        for _ in 0..120 {
            world.now = world.now + SECOND;
            step(&mut world, &mut dice);
        }
        world.check_replay();
        finish(&mut world);
        assert_eq!(world.engine.jobs().len(), 0, "seed {seed}");
        world.check_replay();
    }
}

fn step(world: &mut World, dice: &mut Dice) {
    let newest = world.engine.next_job_id().0;
    let job = JobId(1 + u64::from(dice.below(12)) + newest.saturating_sub(12));
    match dice.below(7) {
        0 => drop(world.apply(Event::JobSubmitted(Arc::new(spec(1 + dice.below(2), 1 + dice.below(2)))))),
        6 => {
            let budgets = [vec![], vec![spent(None)], vec![spent(Some("bob"))], vec![stopping(None)]];
            let which = usize::try_from(dice.below(4)).expect("small");
            drop(world.apply(Event::BudgetsSpent(budgets[which].clone())));
        }
        1 => {
            let condition = EndCondition::ALL[usize::try_from(dice.below(3)).expect("small")];
            drop(world.apply(Event::JobSubmitted(Arc::new(after(job.0, condition)))));
        }
        2 => drop(change(
            world,
            job.0,
            vec![[JobChange::Hold, JobChange::Release][usize::from(dice.below(2) == 0)].clone()],
        )),
        3 => {
            let priority = Priority::new(u16::try_from(dice.below(1_000)).expect("small")).expect("at most 1000");
            let limit = (dice.below(2) == 0).then_some(SECOND * (1 + dice.below(50)));
            drop(change(world, job.0, vec![JobChange::Priority(priority), JobChange::TimeLimit(limit)]));
        }
        _ => {
            let end = match dice.below(4) {
                0 => ShareEnd::DoNotRestart,
                1 => ShareEnd::fault(FaultCause::Exit(1), world.now),
                _ => ShareEnd::Succeeded,
            };
            let running = world.engine.jobs().find(|job| job.attempt().is_some()).map(|job| job.id);
            running.into_iter().for_each(|job| drop(world.end(job, &end)));
        }
    }
}

/// Releases every job and ends what runs until nothing is left.
fn finish(world: &mut World) {
    world.apply(Event::BudgetsSpent(Vec::new())).expect("it is taken");
    for _ in 0..500 {
        let held = world.engine.jobs().find(|job| job.is_held && job.attempt().is_none()).map(|job| job.id);
        if let Some(job) = held {
            change(world, job.0, vec![JobChange::Release]).expect("it waits");
        }
        let running = world.engine.jobs().find(|job| job.attempt().is_some()).map(|job| job.id);
        running.into_iter().for_each(|job| drop(world.end(job, &ShareEnd::Succeeded)));
        world.pass(Duration::from_mins(2));
    }
}
