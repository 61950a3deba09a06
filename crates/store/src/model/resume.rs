//! The specification of an ended job, put together again from its record.

use gangline_base::{CodeCopy, JobSpec, Notify, PlannedRate, Priority, QueueName, Submitter};

use super::record::JobRecord;
use crate::codec::{Error, SpecV1};

/// Returns the first line of a job's history.
pub(super) fn submission(spec: &JobSpec) -> String {
    match spec.origin {
        Some(origin) => format!("submitted by {} to resume {origin}", spec.submitter),
        None => format!("submitted by {}", spec.submitter),
    }
}

impl JobRecord {
    /// Returns whom the job tells when it starts or ends.
    pub fn notify(&self) -> Notify {
        let of_sweep = || self.shared.as_ref().and_then(|sweep| sweep.spec());
        self.spec.as_deref().or_else(of_sweep).map(SpecV1::notify).unwrap_or_default()
    }

    /// Returns the copy of the code in which the job runs.
    pub fn code(&self) -> Option<CodeCopy> {
        let of_sweep = || self.shared.as_ref().and_then(|sweep| sweep.spec());
        self.spec.as_deref().or_else(of_sweep).and_then(SpecV1::code)
    }

    /// Returns the image in which the job's commands run.
    #[must_use]
    pub fn image(&self) -> Option<String> {
        let of_sweep = || self.shared.as_ref().and_then(|sweep| sweep.spec());
        self.spec.as_deref().or_else(of_sweep).and_then(SpecV1::image).map(str::to_owned)
    }

    /// Returns the rate that the job should reach by its plan.
    #[must_use]
    pub fn planned(&self) -> Option<PlannedRate> {
        let of_sweep = || self.shared.as_ref().and_then(|sweep| sweep.spec());
        self.spec.as_deref().or_else(of_sweep).and_then(SpecV1::planned)
    }

    /// Returns the specification with which the job was submitted, with the changes that were made to it since; none
    /// for a job submitted to an earlier release, which did not keep it. For a job of a sweep, the values of its point
    /// are in its environment.
    ///
    /// # Errors
    /// [`Error`] if the record has a value that no specification has.
    pub fn resumable(&self) -> Result<Option<JobSpec>, Error> {
        let of_sweep = || self.shared.as_ref().and_then(|sweep| sweep.spec());
        let Some(stored) = self.spec.as_deref().or_else(of_sweep) else { return Ok(None) };
        let mut spec = JobSpec::try_from(stored.clone())?;
        let program = self.program();
        spec.name.clone_from(&self.name);
        spec.queue = QueueName::new(&self.queue).map_err(|_| Error::Impossible("queue"))?;
        spec.priority = Priority::new(self.priority).ok_or(Error::Impossible("priority"))?;
        program.run.clone_into(&mut spec.program.run);
        program.workdir.clone_into(&mut spec.program.workdir);
        spec.checkpoint.path = program.checkpoint_path.map(str::to_owned);
        spec.submitter = Submitter(self.submitter.clone());
        let parameters = self.sweep_parameters().into_iter();
        spec.program.envs.extend(parameters.map(|(name, value)| (name.to_owned(), value.to_owned())));
        spec.after.clear();
        Ok(Some(spec))
    }
}
