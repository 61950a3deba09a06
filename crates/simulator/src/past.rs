//! A control plane's past as a workload: the external events in its journal, for simulation with another
//! policy, cluster or fault load.
//!
//! The workload contains submissions (time, accelerators, user, queue, limit) and the jobs' actual work. Work
//! is the time in which an attempt's shares ran, from the first start to the last end, over all attempts; for
//! an attempt that ended with a fault, only up to its last durable checkpoint. The engine's decisions and the
//! failures are left out, since the simulation makes its own. Assumptions:
//!
//! - a job of a sweep is a job like any other: how many of them ran at once isn't limited;
//! - a job would have done the same work elsewhere, at the same speed, in one piece;
//! - a job that was cancelled, timed out or gave up would have stopped after the same work;
//! - a job that still ran when the journal ends did all its work until then; one that never ran is left out;
//! - a gang is as many accelerators as it requested, on as few nodes as possible.

use std::collections::BTreeMap;
use std::time::Duration;

use gangline_base::{AcceleratorKind, JobId, JobSpec, Timestamp};
use gangline_orchestration::{Configuration, Decision, Engine, Entry, Event, Limits, NodeSpec, Refusal, ShareEnd};

use super::workload::{Labels, TraceJob, Workload};

/// What is known of a job so far.
#[derive(Clone, Debug)]
struct PastJob {
    id: JobId,
    submitted: Timestamp,
    gpus: u32,
    kind: AcceleratorKind,
    user: String,
    queue: String,
    limit: Option<Duration>,
    /// Work of earlier attempts.
    work: Duration,
    attempt: Option<PastAttempt>,
}

/// The present attempt.
#[derive(Clone, Copy, Debug)]
struct PastAttempt {
    started: Timestamp,
    checkpoint: Option<Timestamp>,
    ended: Option<Timestamp>,
    has_failed: bool,
}

impl PastJob {
    fn new(id: JobId, submitted: Timestamp, spec: &JobSpec) -> Self {
        PastJob {
            id,
            submitted,
            gpus: spec.gang.devices(),
            kind: spec.gang.accelerator.clone(),
            user: spec.submitter.0.clone(),
            queue: spec.queue.to_string(),
            limit: spec.time_limit,
            work: Duration::ZERO,
            attempt: None,
        }
    }

    /// Books the work of the attempt, which has ended (or still runs when the journal ends).
    fn close(&mut self, at: Timestamp) {
        let Some(attempt) = self.attempt.take() else { return };
        let end = if attempt.has_failed { attempt.checkpoint } else { Some(attempt.ended.unwrap_or(at)) };
        self.work += end.map_or(Duration::ZERO, |end| end.since(attempt.started));
    }
}

/// A journal being read, entry by entry.
#[derive(Clone, Debug)]
pub struct Past {
    engine: Engine,
    jobs: BTreeMap<JobId, PastJob>,
    at: Timestamp,
}

impl Default for Past {
    fn default() -> Self {
        Past { engine: Engine::new(Limits::default()), jobs: BTreeMap::new(), at: Timestamp::EPOCH }
    }
}

impl Past {
    /// Reads the next entry.
    ///
    /// # Errors
    /// A [`Refusal`] if it contradicts the entries before.
    pub fn take_in(&mut self, at: Timestamp, entry: &Entry) -> Result<(), Refusal> {
        let id = self.engine.next_job_id();
        self.engine.replay(at, entry)?;
        self.at = self.at.max(at);
        match entry {
            Entry::Event(Event::JobSubmitted(spec)) => {
                self.jobs.insert(id, PastJob::new(id, at, spec));
            }
            Entry::Event(Event::SweepSubmitted(sweep)) => {
                let ids = (id.0..).map(JobId).take(sweep.grid.points());
                self.jobs.extend(ids.map(|id| (id, PastJob::new(id, at, &sweep.job))));
            }
            Entry::Event(event) => self.happened(at, event),
            Entry::Decision(Decision::Requeue { job, .. } | Decision::End { job, .. }) => {
                if let Some(job) = self.jobs.get_mut(job) {
                    job.close(at);
                }
            }
            Entry::Decision(_) => {}
        }
        Ok(())
    }

    fn happened(&mut self, at: Timestamp, event: &Event) {
        match event {
            Event::ShareStarted { job, .. } => {
                let started = PastAttempt { started: at, checkpoint: None, ended: None, has_failed: false };
                if let Some(job) = self.jobs.get_mut(job) {
                    job.attempt.get_or_insert(started);
                }
            }
            Event::ShareEnded { job, end, .. } => {
                if let Some(attempt) = self.jobs.get_mut(job).and_then(|job| job.attempt.as_mut()) {
                    attempt.ended = Some(at);
                    attempt.has_failed |= matches!(end, ShareEnd::Fault { .. });
                }
            }
            Event::CheckpointCommitted { job, .. } => {
                if let Some(attempt) = self.jobs.get_mut(job).and_then(|job| job.attempt.as_mut()) {
                    attempt.checkpoint = Some(at);
                }
            }
            Event::NodeLost { node } => {
                // The engine ends shares on a lost node as faults, without an event for each.
                let is_there = |job: &PastJob| {
                    let attempt = self.engine.job(job.id).and_then(|job| job.attempt());
                    attempt.is_some_and(|attempt| attempt.share_index(*node).is_some())
                };
                let hit: Vec<JobId> = self.jobs.values().filter(|job| is_there(job)).map(|job| job.id).collect();
                for job in hit {
                    if let Some(attempt) = self.jobs.get_mut(&job).and_then(|job| job.attempt.as_mut()) {
                        attempt.has_failed = true;
                    }
                }
            }
            _ => {}
        }
    }

    /// Returns the nodes at the journal's end, as they last joined.
    #[must_use]
    pub fn nodes(&self) -> Vec<NodeSpec> {
        self.engine.cluster().nodes().map(|node| node.spec.clone()).collect()
    }

    /// Returns the configuration at the journal's end.
    #[must_use]
    pub fn sharing(&self) -> &Configuration {
        self.engine.configuration()
    }

    /// Returns its jobs that want such accelerators, with times relative to the first submission; jobs that never ran are named
    /// apart. A job's line is its number.
    #[must_use]
    pub fn into_workload(mut self, is_wanted: impl Fn(&AcceleratorKind) -> bool) -> Workload {
        self.jobs.retain(|_, job| is_wanted(&job.kind));
        let mut labels = Labels::new();
        let first = self.jobs.values().map(|job| job.submitted).min().unwrap_or(Timestamp::EPOCH);
        let mut workload = Workload::default();
        for job in self.jobs.values_mut() {
            let has_run = job.attempt.is_some() || !job.work.is_zero();
            job.close(self.at);
            if !has_run {
                workload.never_ran.push(job.id);
                continue;
            }
            workload.jobs.push(TraceJob {
                line: u32::try_from(job.id.0).unwrap_or(u32::MAX),
                submitted: Timestamp::EPOCH + job.submitted.since(first),
                duration: job.work,
                gpus: job.gpus,
                user: labels.of(&job.user),
                queue: labels.of(&job.queue),
                model: labels.of(""),
                limit: job.limit,
            });
        }
        workload.jobs.sort_by_key(|job| job.submitted);
        workload.labels = labels.into_texts();
        workload
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use std::num::NonZeroU32;

    use gangline_base::{
        AcceleratorKind, AttemptNumber, Bytes, CheckpointPolicy, GangShape, Grid, HangTimeout, Launch, NodeId,
        Priority, Program, QueueName, RecoveryPolicy, Step, Submitter, SweepRules, SweepSpec, TopologyRequest,
    };
    use gangline_orchestration::FaultCause;

    use super::*;
    use crate::tests::nodes;

    /// An engine, its clock, and the past read from its journal.
    struct Lived {
        engine: Engine,
        past: Past,
        now: Timestamp,
    }

    impl Lived {
        fn new() -> Self {
            let (engine, past) = (Engine::new(Limits::default()), Past::default());
            let mut lived = Lived { engine, past, now: Timestamp::EPOCH + Duration::from_secs(1_700_000_000) };
            for node in nodes(1, 8) {
                lived.happens(0, Event::NodeJoined(node));
            }
            lived
        }

        fn happens(&mut self, seconds_later: u64, event: Event) {
            self.now = self.now + Duration::from_secs(seconds_later);
            let decisions = self.engine.apply(self.now, &event).expect("the event applies");
            self.past.take_in(self.now, &Entry::Event(event)).expect("the entry follows");
            for decision in decisions {
                self.past.take_in(self.now, &Entry::Decision(decision)).expect("the entry follows");
            }
        }

        fn submit(&mut self, seconds_later: u64, gpus: u32) {
            let spec = JobSpec {
                name: "a job".to_owned(),
                queue: QueueName::new("research").expect("it is a name"),
                priority: Priority::NORMAL,
                gang: GangShape {
                    pool: gangline_base::PoolName::default(),
                    nodes: NonZeroU32::MIN,
                    accelerator: AcceleratorKind("GPU".to_owned()),
                    accelerators_per_node: NonZeroU32::new(gpus).expect("a gang has an accelerator"),
                    cpus_per_node: 0,
                    memory_per_node: Bytes(0),
                    launch: Launch::PerAccelerator,
                    topology: TopologyRequest::default(),
                },
                elastic: None,
                program: Program {
                    workdir: "/".to_owned(),
                    code: None,
                    container: None,
                    envs: BTreeMap::new(),
                    setup: None,
                    run: String::new(),
                },
                checkpoint: CheckpointPolicy { path: None, is_shared: false, grace: Duration::from_secs(30) },
                recovery: RecoveryPolicy {
                    max_faults: 9,
                    no_progress_limit: 9,
                    hang_timeout: HangTimeout::Learned,
                    evicts_stragglers: false,
                },
                time_limit: Some(Duration::from_hours(5)),
                budget: None,
                spares: 0,
                datasets: Default::default(),
                planned: None,
                pins: Default::default(),
                after: Default::default(),
                notify: Default::default(),
                origin: None,
                submitter: Submitter("ann".to_owned()),
            };
            self.happens(seconds_later, Event::JobSubmitted(Arc::new(spec)));
        }

        fn starts(&mut self, job: u64, attempt: u32) {
            let node = NodeId(0);
            self.happens(0, Event::ShareStarted { job: JobId(job), attempt: AttemptNumber(attempt), node });
        }

        fn ends(&mut self, seconds_later: u64, job: u64, attempt: u32, end: ShareEnd) {
            let node = NodeId(0);
            self.happens(
                seconds_later,
                Event::ShareEnded { job: JobId(job), attempt: AttemptNumber(attempt), node, end },
            );
        }
    }

    fn work(past: Past) -> Vec<(u32, u64, u32, u64)> {
        let workload = past.into_workload(|_| true);
        let seconds = |job: &TraceJob| (job.submitted.since(Timestamp::EPOCH).as_secs(), job.duration.as_secs());
        workload.jobs.iter().map(|job| (job.line, seconds(job).0, job.gpus, seconds(job).1)).collect()
    }

    /// Job 1 works for 100 s, 60 of them durable, fails, and works for 50 s more. Job 2 waits 10 s for room
    /// and still runs after 30 s, when the journal ends. Job 3 never ran.
    #[test]
    fn work_is_what_ran_and_lasted() {
        let mut lived = Lived::new();
        lived.submit(0, 8);
        lived.starts(1, 1);
        let (job, attempt) = (JobId(1), AttemptNumber(1));
        lived.happens(60, Event::CheckpointCommitted { job, attempt, step: Step(6) });
        let fault = ShareEnd::fault(FaultCause::Exit(1), lived.now);
        lived.ends(40, 1, 1, fault);
        lived.starts(1, 2);
        lived.submit(10, 8);
        lived.ends(40, 1, 2, ShareEnd::Succeeded);
        lived.starts(2, 1);
        lived.submit(30, 8);
        assert_eq!((lived.past.nodes().len(), lived.past.sharing().queues.len()), (1, 0));
        let workload = lived.past.clone().into_workload(|_| true);
        assert_eq!((&workload.never_ran[..], workload.label(workload.jobs[0].queue)), (&[JobId(3)][..], "research"));
        assert_eq!(workload.jobs[0].limit, Some(Duration::from_hours(5)));
        assert_eq!(work(lived.past), [(1, 0, 8, 110), (2, 110, 8, 30)]);
    }

    #[test]
    fn each_job_of_a_sweep_has_run_for_itself() {
        let mut lived = Lived::new();
        lived.submit(0, 8);
        let job = lived.past.engine.job(JobId(1)).expect("it was submitted").spec.clone();
        let grid = Grid::new(vec![("LR".to_owned(), vec!["1".to_owned(), "2".to_owned()])]);
        let sweep = SweepSpec { job, grid, rules: SweepRules::default() };
        lived.happens(5, Event::SweepSubmitted(Arc::new(sweep)));
        lived.starts(1, 1);
        lived.ends(9, 1, 1, ShareEnd::Succeeded);
        lived.starts(2, 1);
        lived.ends(7, 2, 1, ShareEnd::Succeeded);
        assert_eq!(lived.past.clone().into_workload(|_| true).never_ran, [JobId(3)]);
        assert_eq!(work(lived.past), [(1, 0, 8, 9), (2, 5, 8, 7)]);
    }

    #[test]
    fn a_lost_node_takes_the_work_since_the_last_checkpoint() {
        let mut lived = Lived::new();
        lived.submit(0, 8);
        lived.starts(1, 1);
        let (job, attempt) = (JobId(1), AttemptNumber(1));
        lived.happens(60, Event::CheckpointCommitted { job, attempt, step: Step(6) });
        lived.happens(40, Event::NodeLost { node: NodeId(0) });
        assert_eq!(work(lived.past), [(1, 0, 8, 60)]);
    }

    #[test]
    fn entries_of_another_journal_are_refused() {
        let mut past = Past::default();
        let (job, attempt) = (JobId(7), AttemptNumber(1));
        let stray = Entry::Event(Event::ShareStarted { job, attempt, node: NodeId(0) });
        assert_eq!(past.take_in(Timestamp::EPOCH, &stray), Err(Refusal::UnknownJob(job)));
    }
}
