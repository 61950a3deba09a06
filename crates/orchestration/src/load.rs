//! The load of each user's live jobs: their number and their size in the journal's snapshots.
//!
//! A job counts from its submission to its end, a sweep's specification until its last job has ended. These
//! limits keep one user from filling the platform, and keep snapshots small enough to be written.

use std::collections::BTreeMap;

use gangline_base::{Bytes, Submitter};

use crate::Refusal;
use crate::engine::Engine;
use crate::job::Job;
use crate::sweep::Sweep;

/// The limits on one user's live jobs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UserLimits {
    /// The most jobs that wait or run.
    pub jobs_max: usize,
    /// The most stored bytes of these jobs.
    pub bytes_max: Bytes,
}

impl Default for UserLimits {
    fn default() -> Self {
        UserLimits { jobs_max: 100_000, bytes_max: Bytes(128 << 20) }
    }
}

/// The load of one user, or of all users together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Load {
    /// The number of jobs that wait or run.
    pub jobs: usize,
    /// Their stored bytes.
    pub bytes: Bytes,
}

/// The load of each user. Derived like an index: snapshots don't contain it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Loads {
    users: BTreeMap<Submitter, Load>,
    all: Load,
}

impl Loads {
    fn add(&mut self, user: &Submitter, jobs: usize, bytes: Bytes) {
        for load in [self.users.entry(user.clone()).or_default(), &mut self.all] {
            load.jobs += jobs;
            load.bytes.0 += bytes.0;
        }
    }

    fn take(&mut self, user: &Submitter, jobs: usize, bytes: Bytes) {
        let Some(own) = self.users.get_mut(user) else { return };
        for load in [&mut *own, &mut self.all] {
            load.jobs = load.jobs.saturating_sub(jobs);
            load.bytes.0 = load.bytes.0.saturating_sub(bytes.0);
        }
        if *own == Load::default() {
            self.users.remove(user);
        }
    }

    /// Adds a live job. `has_own_spec` says that the job, not its sweep, holds its specification.
    pub(crate) fn job_came(&mut self, job: &Job, has_own_spec: bool) {
        self.add(&job.spec.submitter, 1, if has_own_spec { job.spec.stored_bytes() } else { Bytes(0) });
    }

    /// Removes a job that has ended.
    pub(crate) fn job_went(&mut self, job: &Job, has_own_spec: bool) {
        self.take(&job.spec.submitter, 1, if has_own_spec { job.spec.stored_bytes() } else { Bytes(0) });
    }

    /// Adds a sweep with a live job.
    pub(crate) fn sweep_came(&mut self, sweep: &Sweep) {
        if let Some(spec) = &sweep.spec {
            self.add(&spec.job.submitter, 0, spec.stored_bytes());
        }
    }

    /// Removes a sweep whose last job has ended.
    pub(crate) fn sweep_went(&mut self, sweep: &Sweep) {
        if let Some(spec) = &sweep.spec {
            self.take(&spec.job.submitter, 0, spec.stored_bytes());
        }
    }
}

impl Engine {
    /// Returns the load of a user's live jobs.
    #[must_use]
    pub fn load_of(&self, user: &Submitter) -> Load {
        self.loads.users.get(user).copied().unwrap_or_default()
    }

    /// Returns the load of all live jobs.
    #[must_use]
    pub fn load(&self) -> Load {
        self.loads.all
    }

    /// Checks whether a user may add this many jobs of this size.
    pub(crate) fn admit_load(&self, user: &Submitter, jobs: usize, bytes: Bytes) -> Result<(), Refusal> {
        let limits = &self.limits;
        if bytes > limits.submission_bytes_max {
            return Err(Refusal::TooLarge { bytes, limit: limits.submission_bytes_max });
        }
        let own = self.load_of(user);
        if own.jobs.saturating_add(jobs) > limits.user.jobs_max {
            let (user, limit) = (user.clone(), limits.user.jobs_max);
            return Err(Refusal::UserJobs { user, live: own.jobs, more: jobs, limit });
        }
        let is_over = |live: Bytes, limit: Bytes| live.0.saturating_add(bytes.0) > limit.0;
        if is_over(own.bytes, limits.user.bytes_max) {
            let (user, limit) = (Some(user.clone()), limits.user.bytes_max);
            return Err(Refusal::Stored { user, live: own.bytes, more: bytes, limit });
        }
        if is_over(self.loads.all.bytes, limits.live_bytes_max) {
            let (live, limit) = (self.loads.all.bytes, limits.live_bytes_max);
            return Err(Refusal::Stored { user: None, live, more: bytes, limit });
        }
        Ok(())
    }
}
