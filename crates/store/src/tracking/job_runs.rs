//! The runs of jobs: what rank 0 reports to its supervisor, as a run that MLflow's clients see.
//!
//! A job has one run, whatever its attempts. Rows are numbered within an attempt, and the number of the next one is kept with
//! the run, so a report that is sent again is logged once.

use gangline_tracking::{Entry, ExperimentId, RunStatus, UnixMillis, limits};
use rusqlite::{OptionalExtension, Row, params};

use super::metrics::Logged;
use super::runs::{NewRun, RunChange};
use super::{Failure, NewExperiment, Reading, Writing};

/// The most open runs that are returned at once.
const OPEN_MAX: u32 = 10_000;

/// What rank 0 of a job reported.
#[derive(Clone, Debug)]
pub struct JobReport {
    /// The number of the job.
    pub job: u64,
    /// The number of the attempt.
    pub attempt: u32,
    /// The number of the first row; an attempt numbers them from 0.
    pub first: u64,
    /// The rows, each with its metrics.
    pub rows: Vec<Vec<Logged>>,
}

/// The run of a job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JobRun {
    /// The number of the job.
    pub job: u64,
    /// The id of the run.
    pub run: String,
}

impl Reading<'_> {
    /// Returns the run of a job, if it has one.
    ///
    /// # Errors
    /// If it can't be read.
    pub fn job_run(&self, job: u64) -> Result<Option<String>, Failure> {
        let sql = "SELECT run FROM job_run WHERE job = ?1";
        Ok(self.0.prepare_cached(sql)?.query_row([job.cast_signed()], |row| row.get(0)).optional()?)
    }

    /// Returns the runs of jobs that haven't ended yet, as far as is known here.
    ///
    /// # Errors
    /// If they can't be read.
    pub fn open_job_runs(&self) -> Result<Vec<JobRun>, Failure> {
        let sql = "SELECT job, run FROM job_run WHERE is_open = 1 ORDER BY job LIMIT ?1";
        let run = |row: &Row<'_>| Ok(JobRun { job: row.get::<_, i64>(0)?.cast_unsigned(), run: row.get(1)? });
        Ok(self.0.prepare_cached(sql)?.query_map([OPEN_MAX], run)?.collect::<Result<_, _>>()?)
    }
}

impl Writing<'_> {
    /// Makes the run of a job, in the experiment of this name, which is made too if there is none. Changes nothing if the job
    /// has a run.
    ///
    /// # Errors
    /// If the experiment is deleted, or something can't be kept.
    pub fn create_job_run(&self, job: u64, experiment: &str, new: NewRun, params: &[Entry]) -> Result<(), Failure> {
        if self.reading().job_run(job)?.is_some() {
            return Ok(());
        }
        let found = self.reading().experiment_by_name(experiment)?.map(|experiment| experiment.id);
        let make = || {
            let new_experiment =
                NewExperiment { name: experiment.to_owned(), artifact_location: None, tags: Vec::new() };
            self.create_experiment(new_experiment, new.start)
        };
        let experiment: ExperimentId = found.map_or_else(make, Ok)?;
        let run = self.create_run(NewRun { experiment, ..new })?.info.id;
        params.iter().try_for_each(|param| self.log_param(&run, param.clone()))?;
        let sql = "INSERT INTO job_run (job, run, attempt, next, is_open) VALUES (?1, ?2, 0, 0, 1)";
        self.0.execute(sql, params![job.cast_signed(), run])?;
        Ok(())
    }

    /// Logs what rank 0 of a job reported, but for rows that are logged already, and metrics whose names MLflow doesn't allow.
    /// A job without a run, or whose run was deleted, logs nothing.
    ///
    /// # Errors
    /// If it can't be kept.
    pub fn log_of_job(&self, report: JobReport) -> Result<(), Failure> {
        let sql = "SELECT run, attempt, next FROM job_run WHERE job = ?1";
        let known = |row: &Row<'_>| Ok((row.get(0)?, row.get(1)?, row.get::<_, i64>(2)?.cast_unsigned()));
        let job = report.job.cast_signed();
        let known: Option<(String, u32, u64)> = self.0.prepare_cached(sql)?.query_row([job], known).optional()?;
        let Some((run, attempt, next)) = known.filter(|(_, attempt, _)| *attempt <= report.attempt) else {
            return Ok(());
        };
        let next = if attempt == report.attempt { next } else { 0 };
        let end = report.first + report.rows.len() as u64;
        if end <= next {
            return Ok(());
        }
        let skipped = usize::try_from(next.saturating_sub(report.first)).unwrap_or(usize::MAX);
        let mut metrics: Vec<Logged> = report.rows.into_iter().skip(skipped).flatten().collect();
        metrics.retain(|logged| limits::check_key("key", &logged.metric.key).is_ok());
        match self.reading().active_run(&run) {
            Ok((row, info)) => self.write_metrics(row, &info, metrics)?,
            Err(Failure::Refused(_)) => {}
            Err(failure) => return Err(failure),
        }
        let sql = "UPDATE job_run SET attempt = ?2, next = ?3 WHERE job = ?1";
        self.0.prepare_cached(sql)?.execute(params![job, report.attempt, end.cast_signed()])?;
        Ok(())
    }

    /// Ends the run of a job, if it is still there.
    ///
    /// # Errors
    /// If it can't be kept.
    pub fn end_job_run(&self, run: &JobRun, status: RunStatus, end: UnixMillis) -> Result<(), Failure> {
        let change = RunChange { status: Some(status), end: Some(end), name: None };
        match self.update_run(&run.run, change) {
            Ok(_) | Err(Failure::Refused(_)) => {}
            Err(failure) => return Err(failure),
        }
        self.0.execute("UPDATE job_run SET is_open = 0 WHERE job = ?1", [run.job.cast_signed()])?;
        Ok(())
    }
}
