//! Sweeps: how many of a sweep's jobs hold devices at once, and which are stopped before their end.
//!
//! Early stopping is asynchronous successive halving in its stopping form (ASHA: Li et al., MLSys 2020, algorithm 2; that a
//! job which isn't promoted is stopped rather than paused is what Ray Tune and Syne Tune do, and what a gang that holds
//! devices wants). A job that reports its metric at a rung goes on if its value is among the best 1/reduction of those
//! seen at that rung so far, its own included, and never fewer than one; a tie counts as among them. A job that has
//! diverged never goes on.
//!
//! A rung keeps its values in the order they came, so a job's verdict follows from the state whenever it is asked for:
//! only what came before it counts.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use gangline_base::{EarlyStop, JobId, JobSpec, MetricValue, Step, SweepId, SweepRules, SweepSpec, Timestamp};

use crate::engine::Engine;
use crate::job::Job;
use crate::{Blocker, DryRun, Refusal};

/// The most jobs of one sweep.
pub const SWEEP_JOBS_MAX: usize = 1_000;

/// A sweep with a live job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sweep {
    /// Its id, which has the number of its first job.
    pub id: SweepId,
    /// How many jobs it has; their ids follow one another.
    pub jobs: u32,
    /// What was submitted, which all its jobs share; none if it came when each job had a specification of its own.
    pub spec: Option<Arc<SweepSpec>>,
    /// The rules they share.
    pub rules: SweepRules,
    /// What its jobs reported at each rung, in the order it came.
    pub rungs: BTreeMap<u32, Vec<(JobId, MetricValue)>>,
}

/// Where a job fell short of those before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MissedRung {
    /// The rung's step.
    pub step: Step,
    /// What the job reported there.
    pub value: MetricValue,
    /// The worst value that would have gone on; none if no other job has reported a number.
    pub bar: Option<MetricValue>,
    /// How many of the values at the rung go on.
    pub kept: u32,
    /// How many values there were, this one included.
    pub seen: u32,
}

impl fmt::Display for MissedRung {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let MissedRung { step, value, bar, kept, seen } = self;
        write!(f, "at step {step} its metric was {value}")?;
        if let Some(bar) = bar {
            write!(f, ", behind {bar}")?;
        }
        write!(f, "; the best {kept} of {seen} so far go on")
    }
}

impl Sweep {
    /// The last of its jobs, and one more.
    fn jobs_end(&self) -> JobId {
        JobId(self.id.0.0.saturating_add(u64::from(self.jobs)))
    }

    /// Which point of the grid a job is.
    fn point_of(&self, job: JobId) -> Option<usize> {
        job.0.checked_sub(self.id.0.0).and_then(|index| usize::try_from(index).ok())
    }

    /// The step of the next rung of a job.
    fn next_rung(&self, job: JobId) -> Option<Step> {
        let has_reported = |values: &Vec<(JobId, MetricValue)>| values.iter().any(|(other, _)| *other == job);
        let last = self.rungs.iter().rev().find(|(_, values)| has_reported(values)).map(|(rung, _)| *rung);
        self.rules.early_stop.as_ref()?.rung_step(last.map_or(0, |rung| rung + 1))
    }

    fn report(&mut self, job: JobId, step: Step, value: MetricValue) {
        let Some(rung) = self.rules.early_stop.as_ref().and_then(|rules| rules.rung_at(step)) else { return };
        self.rungs.entry(rung).or_default().push((job, value));
    }

    /// Whether a job fell short at the last rung it reported at.
    fn missed(&self, job: JobId) -> Option<MissedRung> {
        let rules = self.rules.early_stop.as_ref()?;
        let (rung, seen) = self.rungs.iter().rev().find_map(|(rung, values)| {
            let place = values.iter().position(|(other, _)| *other == job)?;
            Some((*rung, &values[..=place]))
        })?;
        judge(rules, seen.iter().map(|(_, value)| *value).collect(), rules.rung_step(rung)?)
    }
}

/// The verdict on the last of the values at a rung.
fn judge(rules: &EarlyStop, mut values: Vec<MetricValue>, step: Step) -> Option<MissedRung> {
    let value = *values.last()?;
    let seen = u32::try_from(values.len()).expect("a sweep has at most a thousand jobs");
    let kept = (seen / rules.reduction.get()).max(1);
    values.sort_by(|a, b| rules.goal.compare(*a, *b));
    let bar = values[usize::try_from(kept).expect("a usize holds 32 bits") - 1];
    let goes_on = value != MetricValue::Diverged && rules.goal.compare(value, bar).is_le();
    let bar = Some(bar).filter(|bar| *bar != MetricValue::Diverged);
    (!goes_on).then_some(MissedRung { step, value, bar, kept, seen })
}

/// What is counted of a sweep rather than stored.
#[derive(Clone, Debug)]
pub(crate) struct LiveSweep {
    pub(crate) sweep: Sweep,
    live: u32,
    holding: u32,
}

/// The sweeps that have a live job.
#[derive(Clone, Debug, Default)]
pub(crate) struct Sweeps(BTreeMap<SweepId, LiveSweep>);

impl Sweeps {
    pub(crate) fn insert(&mut self, sweep: Sweep) {
        self.0.insert(sweep.id, LiveSweep { sweep, live: 0, holding: 0 });
    }

    pub(crate) fn all(&self) -> impl Iterator<Item = &Sweep> {
        self.0.values().map(|live| &live.sweep)
    }

    pub(crate) fn get(&self, id: SweepId) -> Option<&Sweep> {
        self.0.get(&id).map(|live| &live.sweep)
    }

    /// Whether a job of this sweep, or of none, has its specification to itself.
    pub(crate) fn has_own_spec(&self, id: Option<SweepId>) -> bool {
        id.and_then(|id| self.get(id)).is_none_or(|sweep| sweep.spec.is_none())
    }

    /// A job of it is live from now on.
    pub(crate) fn joined(&mut self, id: Option<SweepId>) {
        self.count(id, |sweep| sweep.live += 1);
    }

    /// A job of it has ended; the last one takes the sweep along, which is returned then.
    pub(crate) fn left(&mut self, id: Option<SweepId>) -> Option<Sweep> {
        self.count(id, |sweep| sweep.live -= 1);
        let id = id.filter(|id| self.0.get(id).is_some_and(|sweep| sweep.live == 0))?;
        self.0.remove(&id).map(|live| live.sweep)
    }

    /// A job of it holds devices from now on.
    pub(crate) fn took(&mut self, id: Option<SweepId>) {
        self.count(id, |sweep| sweep.holding += 1);
    }

    /// A job of it has given its devices back.
    pub(crate) fn gave_back(&mut self, id: Option<SweepId>) {
        self.count(id, |sweep| sweep.holding -= 1);
    }

    fn count(&mut self, id: Option<SweepId>, change: impl FnOnce(&mut LiveSweep)) {
        if let Some(sweep) = id.and_then(|id| self.0.get_mut(&id)) {
            change(sweep);
        }
    }

    /// What keeps another job of the sweep from starting.
    pub(crate) fn full(&self, id: Option<SweepId>) -> Option<Blocker> {
        let live = self.0.get(&id?)?;
        let max_parallel = live.sweep.rules.max_parallel?.get();
        let blocker = Blocker::Parallel { sweep: live.sweep.id, holding: live.holding, max_parallel };
        (live.holding >= max_parallel).then_some(blocker)
    }

    /// Live jobs, and those that hold devices.
    pub(crate) fn counts(&self) -> BTreeMap<SweepId, (u32, u32)> {
        self.0.iter().map(|(id, sweep)| (*id, (sweep.live, sweep.holding))).collect()
    }
}

impl Engine {
    /// A sweep that has a live job.
    #[must_use]
    pub fn sweep(&self, id: SweepId) -> Option<&Sweep> {
        self.sweeps.get(id)
    }

    /// The live jobs of a sweep, by id.
    pub fn sweep_jobs(&self, id: SweepId) -> impl Iterator<Item = &Job> {
        let end = self.sweeps.get(id).map_or(id.0, Sweep::jobs_end);
        self.jobs.range(id.0..end).map(|(_, job)| job)
    }

    /// The step from which on the job's metric decides whether it goes on; none unless it has to be reported at all.
    #[must_use]
    pub fn next_rung(&self, job: &Job) -> Option<Step> {
        self.sweeps.get(job.sweep?)?.next_rung(job.id)
    }

    /// The metric that the job's sweep compares its jobs by.
    #[must_use]
    pub fn metric_of(&self, job: &Job) -> Option<&str> {
        self.sweeps.get(job.sweep?)?.rules.early_stop.as_ref().map(|rules| rules.metric.as_str())
    }

    /// What a job asks for as its own. The jobs of a sweep share one specification ([`Job::spec`]): here the values of the
    /// job's point are in its environment and in its name.
    #[must_use]
    pub fn own_spec(&self, job: &Job) -> Arc<JobSpec> {
        let own = || {
            let sweep = self.sweeps.get(job.sweep?)?;
            sweep.spec.as_ref()?.job(sweep.point_of(job.id)?)
        };
        own().map_or_else(|| job.spec.clone(), Arc::new)
    }

    /// What would become of the first job of a sweep if it were submitted now.
    ///
    /// # Errors
    /// The [`Refusal`] that submitting the sweep would meet.
    pub fn dry_run_sweep(&self, now: Timestamp, sweep: &SweepSpec) -> Result<DryRun, Refusal> {
        self.admit_sweep(sweep)?;
        self.dry_run(now, &sweep.job)
    }

    /// Where a job fell short, if it did at its last rung.
    pub(crate) fn missed_rung(&self, job: &Job) -> Option<MissedRung> {
        self.sweeps.get(job.sweep?)?.missed(job.id)
    }

    /// All points or none. They differ in nothing that matters here, so the first stands for all of them, and a queue that
    /// has no room names the first that would find it full.
    pub(crate) fn admit_sweep(&self, sweep: &SweepSpec) -> Result<(), Refusal> {
        let points = sweep.grid.points();
        if points == 0 || points > SWEEP_JOBS_MAX {
            return Err(Refusal::SweepSize { points });
        }
        self.admit_load(&sweep.job.submitter, points, sweep.stored_bytes())?;
        let at = |index: usize, because: Refusal| {
            let point = sweep.job_name(index).unwrap_or_else(|| sweep.job.name.clone());
            Refusal::SweepPoint { point, points, because: Box::new(because) }
        };
        let (waiting, limit) = (self.queues.waiting(), self.limits.waiting_max);
        if waiting.saturating_add(points) > limit {
            let waiting = waiting.max(limit);
            return Err(at(limit.saturating_sub(self.queues.waiting()), Refusal::QueueFull { waiting }));
        }
        self.admit_spec(&sweep.job).map_err(|because| at(0, because))
    }

    pub(crate) fn admit_metric(&self, job: JobId, step: Step) -> Result<(), Refusal> {
        let is_due = self.jobs.get(&job).and_then(|job| self.next_rung(job)).is_some_and(|due| due <= step);
        if is_due { Ok(()) } else { Err(Refusal::MetricNotDue { job, step }) }
    }

    pub(crate) fn note_metric(&mut self, job: JobId, step: Step, value: MetricValue) {
        let id = self.jobs.get(&job).and_then(|job| job.sweep);
        self.sweeps.count(id, |live| live.sweep.report(job, step, value));
    }
}
