//! Sweeps and budgets: from the request to the journal, the ranks' samples, the read models and back.

use std::num::{NonZeroU32, NonZeroU64};
use std::sync::Arc;
use std::time::Duration;

use gangline_api::{self as api, JobState};
use gangline_base::{
    AcceleratorKind, EarlyStop, Goal, Grid, JobId, JobSpec, Money, Reduction, Submitter, SweepId, SweepRules, SweepSpec,
};
use gangline_execution::protocol::{Outcome, SampleMetric};
use gangline_orchestration::Refusal;

use super::super::Error;
use super::super::handle::Request;
use super::{Supervisor, World, spec};
use crate::views::sweep_to_api;
use gangline_store::ports::Queries as _;

const SECOND: Duration = Duration::from_secs(1);

fn sweep(points: u32, rules: SweepRules) -> SweepSpec {
    let values = (0..points).map(|number| number.to_string()).collect();
    SweepSpec { job: Arc::new(spec("sft", 1, 1)), grid: Grid::new(vec![("SEED".to_owned(), values)]), rules }
}

fn rules(max_parallel: u32) -> SweepRules {
    let early_stop = EarlyStop {
        metric: "accuracy".to_owned(),
        goal: Goal::Maximize,
        min_steps: NonZeroU64::new(10).expect("at least one"),
        reduction: Reduction::new(2).expect("at least two"),
    };
    SweepRules { max_parallel: NonZeroU32::new(max_parallel), early_stop: Some(early_stop) }
}

fn submit(world: &mut World, sweep: SweepSpec) -> Result<api::SweepSubmitted, Error> {
    let answer = world.ask(|reply| Request::SubmitSweep { sweep: Box::new(sweep), reply })?;
    match answer {
        api::Answer::SweepSubmitted(submitted) => Ok(submitted),
        other => panic!("not a sweep that was taken: {other:?}"),
    }
}

fn show(world: &mut World, points: u64) -> api::Sweep {
    let reader = world.actor().journal.reader();
    let found = reader.sweep_jobs(SweepId(JobId(1)));
    let sweep = sweep_to_api(SweepId(JobId(1)), &found.expect("the read models are readable")).expect("a sweep");
    assert_eq!(u64::try_from(sweep.points.len() + sweep.damaged.len()), Ok(points));
    sweep
}

/// Starts the supervisors of what was just placed; their ranks run.
fn started(world: &mut World) -> Vec<Supervisor> {
    let now = world.now;
    let mut supervisors: Vec<_> = world.launch().iter().map(|spec| Supervisor::new(spec, now)).collect();
    supervisors.iter_mut().for_each(|supervisor| drop(supervisor.runs(now).tell(world)));
    supervisors
}

#[test]
fn the_worse_of_a_sweeps_jobs_is_stopped_and_the_next_one_starts() {
    let mut world = World::new(&[("n1", 4)]);
    let submitted = submit(&mut world, sweep(3, rules(2))).expect("a sound sweep");
    assert_eq!((submitted.sweep.as_str(), submitted.jobs.len()), ("sweep-1", 3));
    let mut running = started(&mut world);
    assert_eq!(running.len(), 2);
    let specs: Vec<_> =
        running.iter().map(|one| (one.spec.envs["SEED"].as_str(), one.spec.metric.as_deref())).collect();
    assert_eq!(specs, [("0", Some("accuracy")), ("1", Some("accuracy"))]);
    let now = world.now;
    assert_eq!(running[0].measures(now, 9, SampleMetric::Nanos(1)).tell(&mut world).stop, None);
    assert_eq!(running[0].measures(now, 12, SampleMetric::Nanos(500_000_000)).tell(&mut world).stop, None);
    // Values reported at a rung survive a restart of the control plane.
    world.crash_and_restart();
    let worse = running[1].measures(now, 10, SampleMetric::Nanos(250_000_000)).tell(&mut world);
    let reason = "stopped early: at step 10 its metric was 0.25, behind 0.5; the best 1 of 2 so far go on";
    assert_eq!(worse.stop.map(|stop| stop.reason), Some(reason.to_owned()));
    running[1].ends(now, Outcome::Requeue).tell(&mut world);
    let stopped = world.show(JobId(2));
    assert_eq!((stopped.state, stopped.because.as_str()), (JobState::Stopped, reason));
    assert_eq!(started(&mut world)[0].spec.envs["SEED"], "2");
    let shown = show(&mut world, 3);
    let metrics: Vec<_> =
        shown.points.iter().map(|point| point.metric.map(|metric| (metric.step, metric.value))).collect();
    assert_eq!(metrics, [Some((12, Some(0.5))), Some((10, Some(0.25))), None]);
    assert_eq!(shown.points[2].parameters, [api::Parameter { name: "SEED".to_owned(), value: "2".to_owned() }]);
    assert_eq!(shown.ranking, ["job-1", "job-2"], "the third has no metric yet");
    assert_eq!(shown.ranked_by, "accuracy at the last rung that each reached, highest first (measured)");
    assert_eq!(shown.early_stop.map(|rules| rules.goal), Some("maximize".to_owned()));
}

#[test]
fn a_refused_sweep_leaves_nothing_behind() {
    let mut world = World::new(&[("n1", 4)]);
    let mut large = sweep(2, SweepRules::default());
    large.job = Arc::new(spec("sft", 1, 5));
    let refusal = submit(&mut world, large).expect_err("no node has five");
    assert!(matches!(refusal, Error::Refused(Refusal::SweepPoint { ref point, .. }) if point == "sft/SEED=0"));
    assert_eq!(world.submit(spec("a", 1, 1)), JobId(1));
}

#[test]
fn a_cancelled_sweep_ends_whole() {
    let mut world = World::new(&[("n1", 4)]);
    submit(&mut world, sweep(3, rules(1))).expect("a sound sweep");
    let mut running = started(&mut world);
    let cancel = |reply| Request::CancelSweep { sweep: SweepId(JobId(1)), by: Submitter("ada".to_owned()), reply };
    let states: Vec<_> = world.ask(cancel).expect("it is live").jobs.into_iter().map(|job| job.state).collect();
    assert_eq!(states, [JobState::Stopping, JobState::Cancelled, JobState::Cancelled]);
    let now = world.now;
    running[0].ends(now, Outcome::Stopped).tell(&mut world);
    assert_eq!(show(&mut world, 3).points.iter().filter(|point| point.state == JobState::Cancelled).count(), 3);
    assert_eq!(world.ask(cancel), Err(Error::Refused(Refusal::UnknownSweep(SweepId(JobId(1))))));
}

#[test]
fn a_job_ends_when_its_budget_is_spent() {
    let mut world = World::new(&[("n1", 4)]);
    let budget = Some(Money::from_nano_dollars(200_000_000));
    let job = JobSpec { budget, ..spec("a", 1, 1) };
    let unpriced = world.ask(|reply| Request::Submit { spec: Box::new(job.clone()), reply });
    assert!(matches!(unpriced, Err(Error::Refused(Refusal::NoPrice { .. }))), "{unpriced:?}");
    // The price is a thousandth of a dollar a second: 200 seconds, including seven of grace.
    let price = Money::from_nano_dollars(3_600_000_000);
    world.sharing.prices.insert(AcceleratorKind("cpu".to_owned()), price);
    world.crash_and_restart();
    let job = world.submit(job);
    let mut running = started(&mut world);
    world.pass_slowly(100 * SECOND);
    running[0].tell(&mut world);
    world.pass_slowly(SECOND);
    let shown = world.show(job).budget.expect("it has one");
    assert_eq!((shown.spent_nano_dollars, shown.limit_nano_dollars), (101_000_000, 200_000_000));
    let end = world.now + 92 * SECOND;
    assert_eq!(shown.ends_at, Some(api::Time(end)));
    world.crash_and_restart();
    world.pass_slowly(91 * SECOND);
    assert_eq!(running[0].tell(&mut world).stop, None);
    world.pass_slowly(SECOND);
    assert!(running[0].tell(&mut world).stop.is_some_and(|stop| stop.reason.contains("budget")));
    world.pass_slowly(2 * SECOND);
    let now = world.now;
    running[0].ends(now, Outcome::Requeue).tell(&mut world);
    let shown = world.show(job);
    // After 195 seconds; dollars are shown with two decimals.
    let because = "spent $0.20 (estimated) of its budget of $0.20";
    assert_eq!((shown.state, shown.because.as_str()), (JobState::Stopped, because));
    assert_eq!(shown.budget.map(|budget| (budget.spent_nano_dollars, budget.ends_at)), Some((195_000_000, None)));
}

#[test]
fn a_damaged_row_of_a_sweep_fails_itself_alone() {
    let mut world = World::new(&[("n1", 1)]);
    submit(&mut world, sweep(3, SweepRules { max_parallel: None, early_stop: None })).expect("it is taken");
    let database = rusqlite::Connection::open(world.folder.path().join("journal.sqlite")).expect("it opens");
    for (damaged, jobs) in [(2, vec!["job-2"]), (1, vec!["job-1", "job-2"])] {
        let sql = format!("UPDATE jobs SET sum = x'00' WHERE job = {damaged}");
        database.execute(&sql, []).expect("it is ours");
        let shown = show(&mut world, 3);
        assert_eq!(
            (shown.damaged, shown.points.len()),
            (jobs.iter().map(|job| (*job).to_owned()).collect(), 3 - jobs.len())
        );
        assert_eq!((shown.name.as_str(), shown.queue.as_str()), ("sft", "research"));
    }
    database.execute("UPDATE jobs SET sum = x'00'", []).expect("it is ours");
    let reader = world.actor().journal.reader();
    let refused = reader.sweep_jobs(SweepId(JobId(1))).expect_err("nothing is left");
    assert_eq!(refused.code(), "G0213");
    let none = reader.sweep_jobs(SweepId(JobId(9))).expect("there is nothing");
    assert!(sweep_to_api(SweepId(JobId(9)), &none).is_none());
}
