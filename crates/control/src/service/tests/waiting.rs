//! Holds, changes, dependencies and resumptions: through the journal, a restart, and the records.

use std::time::Duration;

use gangline_api::{self as api, JobState};
use gangline_base::{Container, Dependency, EndCondition, JobId, JobSpec, Priority, QueueName, Submitter};
use gangline_execution::protocol::{Outcome, Silence};
use gangline_orchestration::{Configuration, Fate, JobChange, QueueOrder, QueueSpec, Refusal};

use super::super::handle::Request;
use super::super::{Error, Resumption};
use super::world::submitted;
use super::{Supervisor, World, spec};

fn change(world: &mut World, job: u64, changes: &[JobChange]) -> Result<api::ChangeAnswer, Error> {
    let (job, changes) = (JobId(job), changes.to_vec());
    world.ask(|reply| Request::Change { job, changes, by: Submitter("bob".to_owned()), reply })
}

fn resume(world: &mut World, job: u64, changes: &[JobChange]) -> Result<api::Submitted, Error> {
    let by = Submitter("bob".to_owned());
    let resumption = Resumption { origin: JobId(job), changes: changes.to_vec(), again: false, afresh: false, by };
    world.ask(|reply| Request::Resume { resumption, reply })
}

fn after(job: u64, condition: EndCondition) -> JobSpec {
    JobSpec { after: [Dependency { job: JobId(job), condition }].into(), ..spec("later", 1, 1) }
}

fn submit(world: &mut World, spec: JobSpec) -> Result<api::Answer, Error> {
    world.ask(|reply| Request::Submit { spec: Box::new(spec), reply })
}

/// Runs what was just placed to this end.
fn ends(world: &mut World, outcome: &Outcome) {
    let now = world.now;
    for spec in world.launch() {
        let mut supervisor = Supervisor::new(&spec, now);
        supervisor.runs(now).tell(world);
        supervisor.ends(now, outcome.clone()).tell(world);
    }
}

fn summary(world: &mut World, job: u64) -> api::Explanation {
    world.ask(|reply| Request::Explain { job: JobId(job), reply }).expect("it is live")
}

#[test]
fn a_hold_outlasts_a_restart_and_is_made_once() {
    let mut world = World::new(&[("n1", 1)]);
    world.submit(spec("a", 1, 1));
    world.submit(spec("b", 1, 1));
    assert_eq!(change(&mut world, 2, &[JobChange::Hold]).expect("it waits").changed, ["held"]);
    let entries = world.health().journal_entries;
    assert_eq!(change(&mut world, 2, &[JobChange::Hold]).expect("it waits").changed, [] as [&str; 0]);
    assert_eq!(world.health().journal_entries, entries, "nothing changed, so nothing is journaled");
    world.crash_and_restart();
    assert_eq!(summary(&mut world, 2).blocker, Some(api::Blocker::Held));
    ends(&mut world, &Outcome::Succeeded);
    assert_eq!(world.launches(), [], "a held job doesn't start");
    change(&mut world, 2, &[JobChange::Release]).expect("it waits");
    assert_eq!(world.launch().len(), 1);
    let history: Vec<String> = world.show(JobId(2)).history.into_iter().map(|line| line.text).collect();
    assert_eq!(history[..3], ["submitted by ada", "held by bob", "released by bob"]);
    assert!(history[3].starts_with("attempt 1 placed"), "{history:?}");
}

#[test]
fn changes_reach_the_record_and_a_running_job_is_refused() {
    let mut world = World::new(&[("n1", 1)]);
    world.submit(spec("a", 1, 1));
    world.submit(spec("b", 1, 1));
    let queue = QueueName::new("other").expect("a name");
    let limit = Some(Duration::from_secs(60));
    let changes = [JobChange::Priority(Priority::HIGH), JobChange::Queue(queue), JobChange::TimeLimit(limit)];
    let answer = change(&mut world, 2, &changes).expect("it waits");
    assert_eq!(answer.changed, ["priority set to 750", "queue set to other", "time limit set to 60 s"]);
    let shown = world.show(JobId(2));
    assert_eq!((shown.priority, shown.queue.as_str()), (750, "other"));
    assert_eq!(change(&mut world, 1, &[JobChange::Hold]), Err(Error::Refused(Refusal::NotWaiting(JobId(1)))));
    assert_eq!(change(&mut world, 7, &[JobChange::Hold]), Err(Error::NoJob(JobId(7))));
    let before = world.state();
    world.crash_and_restart();
    assert_eq!(world.state(), before);
}

#[test]
fn a_job_follows_the_one_it_comes_after() {
    let mut world = World::new(&[("n1", 2)]);
    world.submit(spec("a", 1, 1));
    submit(&mut world, after(1, EndCondition::Success)).expect("job 1 is live");
    submit(&mut world, after(1, EndCondition::Failure)).expect("job 1 is live");
    assert_eq!(summary(&mut world, 2).summary, "waits for job-1 to succeed");
    assert_eq!(summary(&mut world, 3).summary, "waits for job-1 to fail");
    world.crash_and_restart();
    ends(&mut world, &Outcome::Succeeded);
    let cancelled = world.show(JobId(3));
    assert_eq!(cancelled.state, JobState::Cancelled);
    assert_eq!(cancelled.because, "job-1 succeeded, and it was to run only if job-1 failed");
    assert_eq!(world.launch().len(), 1, "job 2 starts");
}

#[test]
fn dependencies_on_ended_jobs_are_settled_at_once() {
    let mut world = World::new(&[("n1", 2)]);
    world.submit(spec("a", 1, 1));
    ends(&mut world, &Outcome::Succeeded);
    submit(&mut world, after(1, EndCondition::Success)).expect("job 1 succeeded");
    assert_eq!(world.launch().len(), 1, "nothing is left to wait for");
    let failed = Fate::DependencyFailed(Dependency { job: JobId(1), condition: EndCondition::Failure });
    assert_eq!(submit(&mut world, after(1, EndCondition::Failure)), Err(Error::DependencyFailed(failed)));
    assert_eq!(submit(&mut world, after(9, EndCondition::Any)), Err(Error::NoJob(JobId(9))));
    let dry = world.ask(|reply| Request::DryRun { spec: Box::new(after(2, EndCondition::Any)), reply });
    assert!(matches!(dry, Ok(api::DryRun::WouldWait { .. })), "{dry:?}");
}

#[test]
fn a_job_that_names_no_queue_goes_to_the_default_queue() {
    let mut world = World::new(&[("n1", 1)]);
    let queue = |name: &str| QueueSpec {
        name: QueueName::new(name).expect("a name"),
        parent: None,
        weight: std::num::NonZeroU32::MIN,
        quota: Default::default(),
        borrowing_limit: Default::default(),
    };
    let queues = vec![queue("research"), queue("batch")];
    let configure = |world: &mut World, default: Option<&str>| {
        let default_queue = default.map(|name| QueueName::new(name).expect("a name"));
        let sharing = Configuration { queues: queues.clone(), default_queue, ..world.sharing.clone() };
        world.ask(|reply| Request::Configure { sharing: Box::new(sharing), reply }).expect("it is sound")
    };
    let unnamed = || JobSpec { queue: QueueName::new("default").expect("a name"), ..spec("a", 1, 1) };
    let queue_of = |answer: Result<api::Answer, Error>| answer.map(|answer| submitted(answer).queue);
    configure(&mut world, None);
    let refused = queue_of(submit(&mut world, unnamed()));
    assert!(matches!(refused, Err(Error::Refused(Refusal::UnknownQueue { .. }))), "{refused:?}");
    assert_eq!(configure(&mut world, Some("batch")), ["scheduling"]);
    assert_eq!(queue_of(submit(&mut world, unnamed())), Ok("batch".to_owned()));
    let dry = world.ask(|reply| Request::DryRun { spec: Box::new(unnamed()), reply });
    assert!(matches!(dry, Ok(api::DryRun::WouldWait { .. })), "{dry:?}");
    let list = world.ask(|reply| Request::Queues { reply }).expect("there are queues");
    let of_batch = list.queues.iter().find(|queue| queue.name == "batch").expect("it is configured");
    assert_eq!(
        (list.default.as_deref(), of_batch.running.as_slice()),
        (Some("batch"), ["job-1".to_owned()].as_slice())
    );
}

#[test]
fn what_is_only_counted_is_said_at_submit_and_in_explain() {
    let mut world = World::new(&[("n1", 2)]);
    let asking = || {
        let mut asking = spec("a", 1, 1);
        asking.gang.memory_per_node = gangline_base::Bytes(1 << 30);
        asking
    };
    let note = "what it asks for is counted, but memory not enforced on these machines";
    let answer = submit(&mut world, asking()).expect("undeclared memory is no limit");
    assert_eq!(submitted(answer).notes, [note]);
    assert_eq!(summary(&mut world, 1).notes, [note]);
    let answer = submit(&mut world, spec("b", 1, 1)).expect("there is room");
    assert_eq!(submitted(answer).notes, [] as [&str; 0]);
}

#[test]
fn an_image_that_nothing_runs_here_is_refused_at_submit_and_by_a_dry_run() {
    let mut world = World::new(&[("n1", 2)]);
    let in_image = |image: &str| {
        let mut job = spec("a", 1, 1);
        job.program.container = Some(Container { image: image.to_owned(), volumes: Vec::new() });
        job
    };
    let expected = Error::NoContainers {
        image: "/images/torch.sif".to_owned(),
        why: "apptainer isn't installed on these machines".to_owned(),
    };
    assert_eq!(submit(&mut world, in_image("/images/torch.sif")), Err(expected.clone()));
    let dry = world.ask(|reply| Request::DryRun { spec: Box::new(in_image("/images/torch.sif")), reply });
    assert_eq!(dry, Err(expected));
    submit(&mut world, in_image("python:3.12")).expect("something runs it");
}

#[test]
fn explain_tells_of_a_rank_without_progress_and_when_it_is_given_up() {
    let mut world = World::new(&[("n1", 1)]);
    world.submit(spec("a", 1, 1));
    let now = world.now;
    let mut supervisor = Supervisor::new(&world.launch().remove(0), now);
    supervisor.runs(now).tell(&mut world);
    assert!(!summary(&mut world, 1).summary.contains("no progress"));
    supervisor.report.silence = Some(Silence { rank: 0, silent_ms: 12_400, limit_ms: 40_000 });
    supervisor.tell(&mut world);
    let expected = "no progress of rank 0 for 12 s (measured); given up as hung after 40 s";
    assert!(summary(&mut world, 1).summary.contains(expected), "{:?}", summary(&mut world, 1).summary);
    supervisor.report.silence = None;
    supervisor.tell(&mut world);
    assert!(!summary(&mut world, 1).summary.contains("no progress"), "it goes on");
}

#[test]
fn the_configuration_is_replaced_while_jobs_wait_and_survives_a_restart() {
    let mut world = World::new(&[("n1", 1)]);
    world.submit(spec("a", 1, 1));
    world.submit(spec("b", 1, 1));
    let ordered = Configuration { order: QueueOrder::ShortestExpected, ..world.sharing.clone() };
    let configure = |world: &mut World, sharing: &Configuration| {
        let sharing = Box::new(sharing.clone());
        world.ask(|reply| Request::Configure { sharing, reply })
    };
    assert_eq!(configure(&mut world, &ordered), Ok(vec!["order".to_owned()]));
    let entries = world.health().journal_entries;
    assert_eq!(configure(&mut world, &ordered), Ok(Vec::new()));
    assert_eq!(world.health().journal_entries, entries, "nothing changed, so nothing is journaled");
    let looped = QueueSpec {
        name: QueueName::new("a").expect("a name"),
        parent: QueueName::new("a").ok(),
        weight: std::num::NonZeroU32::MIN,
        quota: Default::default(),
        borrowing_limit: Default::default(),
    };
    let invalid = Configuration { queues: vec![looped], ..ordered.clone() };
    let refused = configure(&mut world, &invalid);
    assert!(matches!(refused, Err(Error::Refused(Refusal::Configuration(_)))), "{refused:?}");
    assert_eq!(*world.actor().engine.configuration(), ordered, "it goes on under the rules before");
    world.sharing = ordered.clone();
    world.crash_and_restart();
    assert_eq!(*world.actor().engine.configuration(), ordered);
    assert_eq!(world.health().journal_entries, entries + 1, "only the start's own entry is added");
}

/// Proves A-14 for resumptions: the work goes on under a new id and from the same checkpoints, and the ended job
/// stays as it was.
#[test]
fn a_resumed_job_is_a_new_one_with_the_same_program_and_checkpoints() {
    let mut world = World::new(&[("n1", 1)]);
    let mut original = spec("a", 1, 1);
    original.program.envs.insert("LR".to_owned(), "3e-4".to_owned());
    original.time_limit = Some(Duration::from_secs(3_600));
    world.submit(original);
    assert_eq!(resume(&mut world, 1, &[]), Err(Error::NotEnded(JobId(1))));
    assert_eq!(resume(&mut world, 5, &[]), Err(Error::NoJob(JobId(5))));
    let original = world.actor().engine.job(JobId(1)).expect("it runs").spec.clone();
    let placed = world.launch().remove(0);
    world.cancel(JobId(1)).expect("it is live");
    let now = world.now;
    Supervisor::new(&placed, now).ends(now, Outcome::Stopped).tell(&mut world);
    let ended = world.stored(JobId(1));
    let longer = [JobChange::TimeLimit(Some(Duration::from_secs(7_200)))];
    assert_eq!(resume(&mut world, 1, &longer).expect("it has ended").job, "job-2");
    let resumed = world.actor().engine.job(JobId(2)).expect("it is live").spec.clone();
    let expected = JobSpec {
        checkpoint: gangline_base::CheckpointPolicy {
            path: resumed.checkpoint.path.clone(),
            ..original.checkpoint.clone()
        },
        time_limit: Some(Duration::from_secs(7_200)),
        origin: Some(JobId(1)),
        submitter: Submitter("bob".to_owned()),
        ..(*original).clone()
    };
    assert_eq!(*resumed, expected);
    assert_eq!(world.launch()[0].checkpoint_dir, placed.checkpoint_dir);
    assert_eq!(world.stored(JobId(1)), ended, "the ended job stays as it was");
    assert_eq!(world.show(JobId(2)).origin.as_deref(), Some("job-1"));
}

#[test]
fn a_job_that_is_done_afresh_saves_in_a_folder_of_its_own_and_continues_nothing() {
    let mut world = World::new(&[("n1", 1)]);
    world.submit(spec("a", 1, 1));
    let placed = world.launch().remove(0);
    let now = world.now;
    Supervisor::new(&placed, now).ends(now, Outcome::Succeeded).tell(&mut world);
    let by = Submitter("bob".to_owned());
    let resumption = Resumption { origin: JobId(1), changes: Vec::new(), again: false, afresh: true, by };
    let afresh = world.ask(|reply| Request::Resume { resumption, reply });
    assert_eq!(afresh.map(|submitted| submitted.job), Ok("job-2".to_owned()));
    let again = world.launch().remove(0);
    assert_ne!(again.checkpoint_dir, placed.checkpoint_dir);
    assert_eq!((again.run, world.show(JobId(2)).origin), (placed.run, None));
}

#[test]
fn a_job_that_succeeded_is_resumed_only_if_that_is_said() {
    let mut world = World::new(&[("n1", 1)]);
    world.submit(spec("a", 1, 1));
    let placed = world.launch().remove(0);
    let now = world.now;
    Supervisor::new(&placed, now).ends(now, Outcome::Succeeded).tell(&mut world);
    assert_eq!(resume(&mut world, 1, &[]), Err(Error::Finished(JobId(1))));
    let by = Submitter("bob".to_owned());
    let resumption = Resumption { origin: JobId(1), changes: Vec::new(), again: true, afresh: false, by };
    let again = world.ask(|reply| Request::Resume { resumption, reply });
    assert_eq!(again.map(|submitted| submitted.job), Ok("job-2".to_owned()));
}
