//! A preview of the next pass for users: by the same plan, with sizes.

use std::path::Path;

use gangline_api::Time;
use gangline_base::{JobId, Timestamp};
use gangline_specs::config::Retention;
use serde::Serialize;

use super::checkpoints::size_of_due;
use super::plan::{Error, Plan, Planning, name_of, open_jobs};
use super::tree::{Walk, open_folder};
use gangline_store::db::{Reader, journal_folder};
use gangline_store::ports::Queries as _;

/// The data that a pass would remove now.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Preview {
    /// The time for the age of data: the system's, unless that is far ahead of the time that the control
    /// plane has seen pass.
    pub as_of: Time,
    /// The data that is due, by rule; rules without any are left out.
    pub due: Vec<Due>,
    /// Bytes above `logs_max` that belong to live jobs alone.
    pub bytes_of_live_jobs_beyond_max: u64,
}

/// The data that is due by one rule.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Due {
    /// The key in `[retention]`.
    pub rule: String,
    /// The number of jobs that lose data.
    pub jobs: u64,
    /// The number of files and folders, checkpoints, or records.
    pub entries: u64,
    /// Bytes on disk; not known for records.
    pub bytes: Option<u64>,
    /// The end of the job that ended first or, for files that belong to no job, when they lost it.
    pub oldest: Time,
    /// The same for the job that ended last.
    pub newest: Time,
}

/// Returns the data that a pass on this data folder would remove now. Changes nothing; the control plane may
/// run meanwhile.
///
/// # Errors
/// [`Error`].
pub fn preview(folder: &Path, policy: &Retention, wall: Timestamp) -> Result<Preview, Error> {
    let reader = Reader::open(&journal_folder(folder))?;
    let noted = reader.retention_clock()?;
    // Between two passes the system's clock moves on; a larger advance isn't trusted yet.
    let now = noted.map_or(wall, |noted| wall.min(noted + policy.every.saturating_mul(2)));
    let planning = Planning { reader: &reader, folder, policy, now, checkpoints_from: JobId(0) };
    let plan = planning.plan()?;
    let mut due: Vec<Due> = Vec::new();
    add_files(folder, &plan, &mut due);
    for checkpoints in &plan.checkpoints {
        let (count, bytes) = size_of_due(&checkpoints.folder);
        add(&mut due, "checkpoints", checkpoints.ended_at, (1, count, Some(bytes)));
    }
    for (jobs, at) in &plan.jobs {
        let count = jobs.end.0 - jobs.start.0;
        add(&mut due, "jobs", *at, (count, count, None));
    }
    let beyond = plan.beyond_max.map_or(0, |bytes| bytes.0);
    Ok(Preview { as_of: Time(now), due, bytes_of_live_jobs_beyond_max: beyond })
}

fn add_files(folder: &Path, plan: &Plan, due: &mut Vec<Due>) {
    let Ok(Some(jobs)) = open_jobs(folder) else { return };
    let count = |job: JobId, names: &[std::ffi::CString]| {
        let mut walk = Walk::counting();
        if let Ok(folder) = open_folder(&jobs, &name_of(job)) {
            // Nothing is removed, so nothing stops the walk.
            names.iter().for_each(|name| drop(walk.tree(std::os::fd::AsFd::as_fd(&folder), name)));
        }
        (walk.removed.entries, walk.removed.bytes)
    };
    for logs in &plan.logs {
        let attempts = super::read_job_folder(&jobs, logs.job).unwrap_or_default().attempts;
        let names: Vec<_> =
            attempts.range(..=logs.through).map(|number| name_of(gangline_base::AttemptNumber(*number))).collect();
        let (entries, bytes) = count(logs.job, &names);
        add(due, logs.rule, logs.ended_at, (1, entries, Some(bytes)));
    }
    for lost in &plan.lost {
        let (entries, bytes) = count(lost.job, std::slice::from_ref(&lost.name));
        add(due, "lost", lost.since, (1, entries, Some(bytes)));
    }
}

fn add(due: &mut Vec<Due>, rule: &str, at: Timestamp, (jobs, entries, bytes): (u64, u64, Option<u64>)) {
    let found = due.iter().position(|due| due.rule == rule).unwrap_or_else(|| {
        due.push(Due { rule: rule.to_owned(), jobs: 0, entries: 0, bytes: None, oldest: Time(at), newest: Time(at) });
        due.len() - 1
    });
    let sum = &mut due[found];
    sum.jobs += jobs;
    sum.entries += entries;
    sum.bytes = bytes.map(|bytes| bytes + sum.bytes.unwrap_or(0)).or(sum.bytes);
    (sum.oldest, sum.newest) = (Time(sum.oldest.0.min(at)), Time(sum.newest.0.max(at)));
}
