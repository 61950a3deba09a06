//! The API's view of the read models: queries whose results are the API's types.
//!
//! Stored records and the API's types don't know each other: the conversions are here.

mod job;
mod logs;
mod parts;
mod recovery;
mod sweep;

use std::path::PathBuf;

use gangline_api::{Explanation, Job, Point, Series, Sweep, Time};
use gangline_base::{JobId, SweepId};

pub(crate) use job::history_to_api;
#[cfg(any(test, feature = "fuzz"))]
pub(crate) use job::{Texts, to_api};
pub use logs::{NoLog, RankLog};
pub(crate) use parts::state;
#[cfg(test)]
pub(crate) use sweep::sweep_to_api;

use gangline_store::db::{self, Reader};
use gangline_store::model::{self, JobRecord, Listing, StateRecord};
pub use gangline_store::model::{JOBS_PER_PAGE_MAX, KeptAnswer, Refused, RequestKey};

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
    /// The last job that was examined.
    pub last: Option<JobId>,
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

    /// Returns the jobs before `before`, newest first. Fails with [`db::Error::Damaged`] at a malformed page
    /// of the database: see [`Views::jobs_singly`].
    pub fn jobs(&self, before: Option<JobId>, count: u32) -> Result<JobPage, db::Error> {
        let listing = self.reader.read(|transaction| model::read_jobs(transaction, before, count))?;
        Ok(self.page(listing))
    }

    /// Returns the jobs before `before`, newest first, looked up one by one around malformed pages.
    pub fn jobs_singly(&self, before: JobId, count: u32) -> Result<JobPage, db::Error> {
        let listing = self.reader.read(|transaction| model::read_jobs_singly(transaction, before, count))?;
        Ok(self.page(listing))
    }

    fn page(&self, Listing { jobs, damaged, last }: Listing) -> JobPage {
        let shown = |(record, booked): &(JobRecord, Vec<_>)| {
            (record.id, job::to_api(&self.folder, record, booked, job::Texts::Cut))
        };
        JobPage { jobs: jobs.iter().map(shown).collect(), damaged, last }
    }

    /// Returns a job, if there is a record of it.
    pub fn job(&self, id: JobId) -> Result<Option<Job>, db::Error> {
        let found = self.reader.read(|transaction| model::read_job(transaction, id))?;
        Ok(found.map(|(record, booked)| job::to_api(&self.folder, &record, &booked, job::Texts::Whole)))
    }

    /// Explains the state of a job that the engine doesn't know any more, if there is a record of it.
    pub fn explain_ended(&self, id: JobId) -> Result<Option<Explanation>, db::Error> {
        let found = self.reader.read(|transaction| model::read_job(transaction, id))?;
        Ok(found.map(|(record, _)| Explanation {
            job: Some(record.id.to_string()),
            state: Some(parts::state(record.state)),
            summary: record.because.clone(),
            blocker: None,
            ahead: 0,
            waiting: 0,
            starts_by: None,
            history: history_to_api(&record),
        }))
    }

    /// Returns a job's training curve with at most `points_max` points, if there is a record of the job.
    pub fn series(&self, id: JobId, points_max: u32) -> Result<Option<Series>, db::Error> {
        self.reader.read(|transaction| {
            let Some((record, _)) = model::read_job(transaction, id)? else { return Ok(None) };
            let thinned_at = record.removed.thinned_at;
            let found = model::read_series(transaction, id, points_max, thinned_at.is_some())?;
            let points = found.points.into_iter().map(point).collect();
            let thinned_at = thinned_at.map(Time);
            Ok(Some(Series { job: id.to_string(), points, thinned_at, damaged: found.damaged }))
        })
    }

    /// Returns a sweep, if there are records of its jobs.
    pub fn sweep(&self, id: SweepId) -> Result<Option<SweepView>, db::Error> {
        let found = self.reader.read(|transaction| model::read_sweep_jobs(transaction, id))?;
        let waiting = found.0.iter().filter(|record| record.state == StateRecord::Waiting).map(|record| record.id);
        Ok(sweep::sweep_to_api(id, &found).map(|sweep| SweepView { sweep, waiting: waiting.collect() }))
    }

    /// Finds the log of a rank; of the last attempt, unless one is given. `None` if there is no record of the
    /// job.
    pub fn log(&self, id: JobId, attempt: Option<u32>, rank: u32) -> Result<Option<Result<RankLog, NoLog>>, db::Error> {
        let found = self.reader.read(|transaction| model::read_job(transaction, id))?;
        Ok(found.map(|(record, _)| logs::find(&self.folder, &record, attempt, rank)))
    }

    /// Returns the answer that is stored under an idempotency key.
    pub fn answer(&self, key: &RequestKey) -> Result<Option<KeptAnswer>, db::Error> {
        self.reader.read(|transaction| model::read_answer(transaction, &key.user, &key.key))
    }
}

fn point(model::SeriesPoint { attempt, at, step, loss, tokens }: model::SeriesPoint) -> Point {
    Point { attempt, at: Time(at), step, loss, tokens }
}
