//! The API's view of the read models: queries whose results are the API's types.
//!
//! Stored records and the API's types don't know each other: the conversions are here.

mod cost;
mod job;
mod lifecycle;
mod logs;
mod parts;
mod recovery;
mod sweep;

use std::path::PathBuf;

use gangline_api::{Explanation, Job, Sweep};
use gangline_base::{JobId, SweepId};

pub use cost::By;
pub(crate) use job::history_to_api;
#[cfg(any(test, feature = "fuzz"))]
pub(crate) use job::{Texts, to_api};
pub use lifecycle::{Fact, LifeSpan};
pub use logs::{LogKind, NoLog, RankLog};
pub(crate) use parts::state;
#[cfg(test)]
pub(crate) use sweep::sweep_to_api;

use gangline_store::db::{self, Reader};
pub use gangline_store::model::{JOBS_PER_PAGE_MAX, KeptAnswer, Refused, RequestKey, Standing, StateRecord, Wanted};
use gangline_store::model::{JobRecord, Listing};
use gangline_store::ports::Queries as _;

/// Answers questions about jobs from the read models, so it shows only durable state. Cheap to clone. Queries
/// block, so run them where blocking is allowed; they fail with the reader's errors ([`Reader::read`]).
#[derive(Clone, Debug)]
pub struct Views {
    reader: Reader,
    /// The data folder.
    folder: PathBuf,
}

/// A page of the list of jobs.
#[derive(Debug, Default)]
pub struct JobPage {
    /// Newest first, with long texts cut.
    pub jobs: Vec<(JobId, Job)>,
    /// Jobs with a damaged row.
    pub damaged: Vec<JobId>,
    /// The last job that was examined, if there may be more beyond it.
    pub next: Option<JobId>,
}

/// A sweep, and those of its jobs that wait.
#[derive(Debug)]
pub struct SweepView {
    /// The sweep with its jobs.
    pub sweep: Sweep,
    /// Jobs that wait, whose reason the service knows.
    pub waiting: Vec<JobId>,
}

impl Views {
    /// Returns the views of a data folder, whose read models `reader` reads.
    #[must_use]
    pub fn new(reader: Reader, folder: PathBuf) -> Views {
        Views { reader, folder }
    }

    /// Returns the wanted jobs before `before`, newest first. Fails with [`db::Error::Damaged`] at a malformed page
    /// of the database: see [`Views::jobs_singly`].
    pub fn jobs(&self, wanted: &Wanted, before: Option<JobId>, count: u32) -> Result<JobPage, db::Error> {
        let listing = self.reader.jobs(wanted, before, count)?;
        Ok(self.page(listing))
    }

    /// Returns the jobs before `before`, newest first, looked up one by one around malformed pages.
    pub fn jobs_singly(&self, wanted: &Wanted, before: JobId, count: u32) -> Result<JobPage, db::Error> {
        let listing = self.reader.jobs_singly(wanted, before, count)?;
        Ok(self.page(listing))
    }

    /// Returns those of these jobs that are live, in this order, `count` at most.
    pub fn live_among(&self, ids: &[JobId], count: u32) -> Result<JobPage, db::Error> {
        let listing = self.reader.these_jobs(Standing::Live, ids, count)?;
        Ok(self.page(listing))
    }

    fn page(&self, Listing { jobs, damaged, last, has_more }: Listing) -> JobPage {
        let shown = |(record, booked): &(JobRecord, Vec<_>)| {
            (record.id, job::to_api(&self.folder, record, booked, job::Texts::Cut))
        };
        JobPage { jobs: jobs.iter().map(shown).collect(), damaged, next: last.filter(|_| has_more) }
    }

    /// Returns a job, if there is a record of it.
    pub fn job(&self, id: JobId) -> Result<Option<Job>, db::Error> {
        let Some((record, booked)) = self.reader.job(id)? else { return Ok(None) };
        let mut job = job::to_api(&self.folder, &record, &booked, job::Texts::Whole);
        let fetches = self.reader.requests_of(id)?.into_iter().filter(|made| made.fetch.is_some());
        job.dataset_reads = parts::dataset_reads(&record, fetches.flat_map(|made| made.reads));
        Ok(Some(job))
    }

    /// Explains the state of a job that the engine doesn't know any more, if there is a record of it.
    pub fn explain_ended(&self, id: JobId) -> Result<Option<Explanation>, db::Error> {
        let found = self.reader.job(id)?;
        Ok(found.map(|(record, _)| Explanation {
            job: Some(record.id.to_string()),
            state: Some(parts::state(record.state)),
            summary: record.because.clone(),
            blocker: None,
            ahead: 0,
            waiting: 0,
            starts_by: None,
            first_by: None,
            notes: Vec::new(),
            history: history_to_api(&record),
        }))
    }

    /// Returns a sweep, if there are records of its jobs.
    pub fn sweep(&self, id: SweepId) -> Result<Option<SweepView>, db::Error> {
        let found = self.reader.sweep_jobs(id)?;
        let waiting = found.0.iter().filter(|record| record.state == StateRecord::Waiting).map(|record| record.id);
        Ok(sweep::sweep_to_api(id, &found).map(|sweep| SweepView { sweep, waiting: waiting.collect() }))
    }

    /// Finds the log of a rank; of the last attempt, unless one is given. `None` if there is no record of the
    /// job.
    pub fn log(
        &self,
        id: JobId,
        attempt: Option<u32>,
        rank: u32,
        kind: LogKind,
    ) -> Result<Option<Result<RankLog, NoLog>>, db::Error> {
        let found = self.reader.job(id)?;
        Ok(found.map(|(record, _)| logs::find(&self.folder, &record, attempt, (rank, kind))))
    }

    /// Returns the answer that is stored under an idempotency key.
    pub fn answer(&self, key: &RequestKey) -> Result<Option<KeptAnswer>, db::Error> {
        self.reader.answer(key)
    }
}
