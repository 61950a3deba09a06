//! Sweeps: how many of a sweep's jobs hold devices at once, and which are stopped early.
//!
//! Early stopping is asynchronous successive halving in its stopping form (ASHA: Li et al., MLSys 2020,
//! algorithm 2). Like Ray Tune and Syne Tune, it stops a job that isn't promoted instead of pausing it, since
//! a paused gang would hold devices. A job that reports its metric at a rung continues if its value is among
//! the best 1/reduction of the values reported there so far, its own included, but at least one job
//! continues; ties are in its favour. A job that has diverged never continues.
//!
//! A rung keeps its values in order of arrival and a verdict counts only earlier values, so it follows from
//! the state no matter when it is computed.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use gangline_base::{EarlyStop, JobId, JobSpec, MetricValue, Step, SweepId, SweepRules, SweepSpec, Timestamp};

use crate::engine::Engine;
use crate::job::Job;
use crate::{Blocker, DryRun, Event, Refusal};

/// The most jobs of one sweep.
pub const SWEEP_JOBS_MAX: usize = 1_000;

/// A sweep with a live job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sweep {
    /// Its id: the number of its first job.
    pub id: SweepId,
    /// The number of its jobs; their ids are consecutive.
    pub jobs: u32,
    /// The submitted specification that its jobs share; none for sweeps from before jobs shared one.
    pub spec: Option<Arc<SweepSpec>>,
    /// The rules its jobs share.
    pub rules: SweepRules,
    /// The values reported at each rung, in order of arrival.
    pub rungs: BTreeMap<u32, Vec<(JobId, MetricValue)>>,
}

/// The rung at which a job's value was not good enough.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MissedRung {
    /// The rung's step.
    pub step: Step,
    /// The value the job reported.
    pub value: MetricValue,
    /// The worst value that would have continued; none if that one has diverged.
    pub bar: Option<MetricValue>,
    /// How many of the values at the rung continue.
    pub kept: u32,
    /// How many values were reported, including this one.
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
    /// Returns the id after that of its last job.
    fn jobs_end(&self) -> JobId {
        JobId(self.id.0.0.saturating_add(u64::from(self.jobs)))
    }

    /// Returns the index of a job's point in the grid.
    fn point_of(&self, job: JobId) -> Option<usize> {
        job.0.checked_sub(self.id.0.0).and_then(|index| usize::try_from(index).ok())
    }

    /// Returns the step of a job's next rung.
    fn next_rung(&self, job: JobId) -> Option<Step> {
        let has_reported = |values: &Vec<(JobId, MetricValue)>| values.iter().any(|(other, _)| *other == job);
        let last = self.rungs.iter().rev().find(|(_, values)| has_reported(values)).map(|(rung, _)| *rung);
        self.rules.early_stop.as_ref()?.rung_step(last.map_or(0, |rung| rung + 1))
    }

    fn report(&mut self, job: JobId, step: Step, value: MetricValue) {
        let Some(rung) = self.rules.early_stop.as_ref().and_then(|rules| rules.rung_at(step)) else { return };
        self.rungs.entry(rung).or_default().push((job, value));
    }

    /// Returns the rung missed if a job's value was not good enough at its last rung.
    fn missed(&self, job: JobId) -> Option<MissedRung> {
        let rules = self.rules.early_stop.as_ref()?;
        let (rung, seen) = self.rungs.iter().rev().find_map(|(rung, values)| {
            let place = values.iter().position(|(other, _)| *other == job)?;
            Some((*rung, &values[..=place]))
        })?;
        judge(rules, seen.iter().map(|(_, value)| *value).collect(), rules.rung_step(rung)?)
    }
}

/// Judges the last of the values at a rung.
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

/// A sweep with counts that are derived rather than stored.
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

    /// Reports whether a job has its own specification rather than its sweep's.
    pub(crate) fn has_own_spec(&self, job: &Job) -> bool {
        let of_sweep = job.sweep.and_then(|id| self.get(id)).and_then(|sweep| sweep.spec.as_ref());
        of_sweep.is_none_or(|sweep| !Arc::ptr_eq(&sweep.job, &job.spec))
    }

    /// Counts a new live job of the sweep.
    pub(crate) fn joined(&mut self, id: Option<SweepId>) {
        self.count(id, |sweep| sweep.live += 1);
    }

    /// Removes an ended job; returns the sweep if that was its last job.
    pub(crate) fn left(&mut self, id: Option<SweepId>) -> Option<Sweep> {
        self.count(id, |sweep| sweep.live -= 1);
        let id = id.filter(|id| self.0.get(id).is_some_and(|sweep| sweep.live == 0))?;
        self.0.remove(&id).map(|live| live.sweep)
    }

    /// Counts a job that now holds devices.
    pub(crate) fn took(&mut self, id: Option<SweepId>) {
        self.count(id, |sweep| sweep.holding += 1);
    }

    /// Counts a job that has released its devices.
    pub(crate) fn gave_back(&mut self, id: Option<SweepId>) {
        self.count(id, |sweep| sweep.holding -= 1);
    }

    fn count(&mut self, id: Option<SweepId>, change: impl FnOnce(&mut LiveSweep)) {
        if let Some(sweep) = id.and_then(|id| self.0.get_mut(&id)) {
            change(sweep);
        }
    }

    /// Returns what keeps another job of the sweep from starting.
    pub(crate) fn full(&self, id: Option<SweepId>) -> Option<Blocker> {
        let live = self.0.get(&id?)?;
        let max_parallel = live.sweep.rules.max_parallel?.get();
        let blocker = Blocker::Parallel { sweep: live.sweep.id, holding: live.holding, max_parallel };
        (live.holding >= max_parallel).then_some(blocker)
    }

    /// Returns the numbers of live jobs and of jobs that hold devices.
    pub(crate) fn counts(&self) -> BTreeMap<SweepId, (u32, u32)> {
        self.0.iter().map(|(id, sweep)| (*id, (sweep.live, sweep.holding))).collect()
    }
}

impl Engine {
    /// Returns a sweep that has a live job.
    #[must_use]
    pub fn sweep(&self, id: SweepId) -> Option<&Sweep> {
        self.sweeps.get(id)
    }

    /// Returns the live jobs of a sweep, by id.
    pub fn sweep_jobs(&self, id: SweepId) -> impl Iterator<Item = &Job> {
        let end = self.sweeps.get(id).map_or(id.0, Sweep::jobs_end);
        self.jobs.range(id.0..end).map(|(_, job)| job)
    }

    /// Returns the step from which the job's metric decides whether it continues; none if its metric isn't
    /// needed.
    #[must_use]
    pub fn next_rung(&self, job: &Job) -> Option<Step> {
        self.sweeps.get(job.sweep?)?.next_rung(job.id)
    }

    /// Returns the metric by which the job's sweep compares its jobs.
    #[must_use]
    pub fn metric_of(&self, job: &Job) -> Option<&str> {
        self.sweeps.get(job.sweep?)?.rules.early_stop.as_ref().map(|rules| rules.metric.as_str())
    }

    /// Returns a job's own specification. Jobs of a sweep share one ([`Job::spec`]); here the name and the
    /// environment contain the values of the job's point.
    #[must_use]
    pub fn own_spec(&self, job: &Job) -> Arc<JobSpec> {
        let own = || {
            let sweep = self.sweeps.get(job.sweep?)?;
            sweep.spec.as_ref()?.job(sweep.point_of(job.id)?)
        };
        own().map_or_else(|| job.spec.clone(), Arc::new)
    }

    /// Returns what would happen to the first job of a sweep if it were submitted now.
    ///
    /// # Errors
    /// The [`Refusal`] that the submission would get.
    pub fn dry_run_sweep(&self, now: Timestamp, sweep: &SweepSpec) -> Result<DryRun, Refusal> {
        self.try_out(now, &Event::SweepSubmitted(Arc::new(sweep.clone())))
    }

    /// Returns the rung a job missed, if its value at its last rung was not good enough.
    pub(crate) fn missed_rung(&self, job: &Job) -> Option<MissedRung> {
        self.sweeps.get(job.sweep?)?.missed(job.id)
    }

    /// Admits all points or none. Points don't differ in anything checked here, so the first is checked for
    /// all of them; if the engine has no room for all, the refusal names the first point that would find it
    /// full.
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
        let (waiting, limit) = (self.waiting_count(), self.limits.waiting_max);
        if waiting.saturating_add(points) > limit {
            let waiting = waiting.max(limit);
            return Err(at(limit.saturating_sub(self.waiting_count()), Refusal::QueueFull { waiting }));
        }
        self.admit_folder(&sweep.job).and_then(|()| self.admit_spec(&sweep.job)).map_err(|because| at(0, because))
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
