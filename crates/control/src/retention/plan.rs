//! Plans removals from the policy and from durable state. Planning changes nothing, so the sweeper and
//! `gangline retention` use the same rules.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::CString;
use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::time::Duration;

use gangline_base::{AttemptNumber, Bytes, JobId, Pin, Timestamp};
use gangline_specs::config::Retention;

use super::checkpoints::DueCheckpoints;
use super::tree::{Walk, names, open_folder, open_root};
use gangline_store::db::{self, Reader};
use gangline_store::model::Kept;
use gangline_store::ports::Queries as _;
use gangline_store::unless_row_damaged;

/// Folder of the attempts' folders, in the data folder.
const JOBS: &str = "jobs";
/// Prefix of attempts' folders that a start puts aside; the time and the old name follow.
const LOST: &str = "lost-";
/// Prefix of the mark in an unknown job's folder; the time at which it was first seen follows.
pub(crate) const UNKNOWN_SINCE: &str = "unknown-since-";

/// Data that is due.
#[derive(Debug)]
pub(crate) struct Plan {
    pub(crate) logs: Vec<DueLogs>,
    /// Folders that belong to no job.
    pub(crate) lost: Vec<DueLost>,
    /// Folders of unknown jobs that have no mark yet.
    pub(crate) unknown: Vec<JobId>,
    /// Marks in the folders of jobs that are known again.
    pub(crate) marks: Vec<(JobId, CString)>,
    /// Jobs that aren't live and whose folder has no files of ours.
    pub(crate) bare: Vec<JobId>,
    /// The last job with a folder, which stays: it shows which ids were given out.
    pub(crate) last_folder: Option<JobId>,
    /// Checkpoints; the newest good one in each folder stays.
    pub(crate) checkpoints: Vec<DueCheckpoints>,
    /// Jobs before this one have no checkpoints to remove, now or later, except those above.
    pub(crate) checkpoints_from: JobId,
    /// Records of single jobs and of whole sweeps, with the latest end.
    pub(crate) jobs: Vec<(Range<JobId>, Timestamp)>,
    /// Bytes above the limit that belong to live jobs alone.
    pub(crate) beyond_max: Option<Bytes>,
}

/// The files of an ended job's attempts up to `through`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct DueLogs {
    pub(crate) job: JobId,
    pub(crate) ended_at: Timestamp,
    pub(crate) through: u32,
    /// The rule's name, and its text.
    pub(crate) rule: &'static str,
    pub(crate) because: String,
    /// Whether the record has the note already, because a pass was interrupted.
    pub(crate) is_noted: bool,
}

/// A lost folder inside a job's folder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct DueLost {
    pub(crate) job: JobId,
    pub(crate) name: CString,
    pub(crate) since: Timestamp,
}

/// The contents of a job's folder, by name.
#[derive(Debug, Default)]
pub(crate) struct JobFolder {
    pub(crate) attempts: BTreeSet<u32>,
    lost: Vec<(Timestamp, CString)>,
    pub(crate) marks: Vec<(Timestamp, CString)>,
}

impl JobFolder {
    fn is_bare(&self) -> bool {
        self.attempts.is_empty() && self.lost.is_empty()
    }
}

/// The input of a plan.
pub(crate) struct Planning<'a> {
    pub(crate) reader: &'a Reader,
    /// The data folder.
    pub(crate) folder: &'a Path,
    pub(crate) policy: &'a Retention,
    pub(crate) now: Timestamp,
    /// The first job whose checkpoints are examined.
    pub(crate) checkpoints_from: JobId,
}

/// The reason why there is no plan.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The read models can't be read.
    #[error(transparent)]
    Database(#[from] db::Error),
    /// The folder of the jobs' folders can't be read.
    #[error("{path} can't be read")]
    Folder {
        /// The folder's path.
        path: String,
        /// The system's error.
        source: io::Error,
    },
}

/// Opens the folder of all jobs' folders; returns `None` if there is none.
pub(crate) fn open_jobs(data: &Path) -> io::Result<Option<OwnedFd>> {
    match open_root(&data.join(JOBS)) {
        Ok(folder) => Ok(Some(folder)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// Returns the name of a job's or an attempt's folder.
pub(crate) fn name_of(id: impl ToString) -> CString {
    CString::new(id.to_string()).expect("ids have no null")
}

/// Parses the number after a prefix, if it is in our own format.
fn number<T: std::str::FromStr + ToString>(name: &CString, prefix: &str) -> Option<T> {
    let digits = name.to_str().ok()?.strip_prefix(prefix)?;
    digits.parse::<T>().ok().filter(|number| number.to_string() == digits)
}

/// Returns the jobs that have a folder.
fn jobs_in(jobs: &OwnedFd) -> io::Result<BTreeSet<JobId>> {
    let named = names(jobs)?;
    Ok(named
        .iter()
        .filter(|(_, is_folder)| *is_folder)
        .filter_map(|(name, _)| number(name, "job-").map(JobId))
        .collect())
}

/// Lists a job's folder.
pub(crate) fn read_job_folder(jobs: &OwnedFd, job: JobId) -> io::Result<JobFolder> {
    let mut found = JobFolder::default();
    for (name, is_folder) in names(open_folder(jobs, &name_of(job))?)? {
        let text = name.to_str().unwrap_or_default();
        if let Some(attempt) = number(&name, "attempt-").filter(|_| is_folder) {
            found.attempts.insert(attempt);
        } else if let Some(nanos) = text.strip_prefix(LOST).and_then(|rest| rest.split('-').next()?.parse().ok()) {
            found.lost.push((Timestamp::from_unix_nanos(nanos), name));
        } else if let Some(nanos) = number(&name, UNKNOWN_SINCE) {
            found.marks.push((Timestamp::from_unix_nanos(nanos), name));
        }
    }
    Ok(found)
}

/// An ended job with files.
struct Ended {
    kept: Kept,
    ended_at: Timestamp,
    folder: JobFolder,
}

impl Planning<'_> {
    /// Returns everything that is due now.
    ///
    /// # Errors
    /// [`Error`].
    pub(crate) fn plan(&self) -> Result<Plan, Error> {
        let mut plan = Plan {
            logs: Vec::new(),
            lost: Vec::new(),
            unknown: Vec::new(),
            marks: Vec::new(),
            bare: Vec::new(),
            last_folder: None,
            checkpoints: Vec::new(),
            checkpoints_from: self.checkpoints_from,
            jobs: Vec::new(),
            beyond_max: None,
        };
        let failed = |source| Error::Folder { path: self.folder.join(JOBS).display().to_string(), source };
        let jobs = open_jobs(self.folder).map_err(failed)?;
        let mut with_files = jobs.as_ref().map_or(Ok(BTreeSet::new()), jobs_in).map_err(failed)?;
        plan.last_folder = with_files.last().copied();
        if let Some(jobs) = &jobs {
            self.plan_files(jobs, &with_files, &mut plan)?;
        }
        for job in &plan.bare {
            with_files.remove(job);
        }
        self.plan_checkpoints(&mut plan)?;
        self.plan_jobs(&with_files, &mut plan)?;
        Ok(plan)
    }

    /// Returns the durable facts about a job: `None` if its row is damaged, `Some(None)` if it has no row.
    pub(super) fn kept(&self, job: JobId) -> Result<Option<Option<Kept>>, db::Error> {
        unless_row_damaged(self.reader.kept(job))
    }

    pub(super) fn is_old(&self, since: Timestamp, age: Option<Duration>) -> bool {
        age.is_some_and(|age| self.now.since(since) >= age)
    }

    fn plan_files(&self, jobs: &OwnedFd, with_files: &BTreeSet<JobId>, plan: &mut Plan) -> Result<(), Error> {
        let (mut ended, mut live) = (Vec::new(), Vec::new());
        for job in with_files {
            // The folder may just have been removed; an unreadable one is reported when it is due.
            let Ok(folder) = read_job_folder(jobs, *job) else { continue };
            match self.kept(*job)? {
                // Nothing is known of a job with a damaged row, so it stays.
                None => {}
                Some(None) => self.plan_unknown(*job, folder, plan),
                Some(Some(kept)) => match kept.ended_at {
                    None => live.push(*job),
                    Some(ended_at) => {
                        plan.marks.extend(folder.marks.iter().map(|(_, mark)| (*job, mark.clone())));
                        let lost = folder.lost.iter().filter(|(since, _)| self.is_old(*since, self.policy.lost));
                        let due = |(since, name): &(Timestamp, CString)| DueLost {
                            job: *job,
                            name: name.clone(),
                            since: *since,
                        };
                        plan.lost.extend(lost.map(due));
                        plan.bare.extend(folder.is_bare().then_some(*job));
                        ended.push(Ended { kept, ended_at, folder });
                    }
                },
            }
        }
        plan.logs.extend(ended.iter().filter_map(|job| self.due_logs(job)));
        if let Some(max) = self.policy.logs_max {
            self.plan_beyond_max(jobs, (max, &ended, &live), plan);
        }
        Ok(())
    }

    /// Plans for a job without a record: its folder is from before this start, or the record was lost. The
    /// files become due some time after that was first seen.
    fn plan_unknown(&self, job: JobId, folder: JobFolder, plan: &mut Plan) {
        let Some(since) = folder.marks.iter().map(|(since, _)| *since).min() else {
            let plan = if folder.is_bare() { &mut plan.bare } else { &mut plan.unknown };
            plan.push(job);
            return;
        };
        if self.is_old(since, self.policy.lost) {
            let attempts = folder.attempts.into_iter().map(|attempt| name_of(AttemptNumber(attempt)));
            let names = attempts.chain(folder.lost.into_iter().map(|(_, name)| name));
            plan.lost.extend(names.map(|name| DueLost { job, name, since }));
        }
    }

    fn due_logs(&self, job: &Ended) -> Option<DueLogs> {
        let Ended { kept, ended_at, folder } = job;
        if kept.pins.contains(&Pin::Logs) {
            return None;
        }
        let policy = self.policy;
        let newest = folder.attempts.last().copied().unwrap_or(0).max(kept.attempts);
        let (rule, age) = if kept.has_failed { ("failed_logs", policy.failed_logs) } else { ("logs", policy.logs) };
        let says =
            |rule: &str, age: Option<Duration>| format!("retention.{rule} is {}", shown(age.unwrap_or_default()));
        let (through, rule, because) = if self.is_old(*ended_at, age) {
            (newest, rule, says(rule, age))
        } else if self.is_old(*ended_at, policy.older_attempts) {
            let rule = "older_attempts";
            let because = format!("{}, for all but the newest {}", says(rule, policy.older_attempts), policy.attempts);
            (newest.saturating_sub(policy.attempts), rule, because)
        } else {
            (0, "", String::new())
        };
        let noted = kept.removed.logs_through();
        let is_noted = noted >= through;
        let through = through.max(noted);
        let has_some = folder.attempts.first().is_some_and(|first| *first <= through);
        has_some.then_some(DueLogs { job: kept.id, ended_at: *ended_at, through, rule, because, is_noted })
    }

    /// Plans removals above the limit, the job that ended first coming first. Files of live jobs count, but
    /// stay.
    fn plan_beyond_max(&self, jobs: &OwnedFd, (max, ended, live): (Bytes, &[Ended], &[JobId]), plan: &mut Plan) {
        let due: BTreeMap<JobId, u32> = plan.logs.iter().map(|due| (due.job, due.through)).collect();
        let mut total: u64 = live.iter().map(|job| measure(jobs, *job, None)).sum();
        let mut oldest_first: Vec<(&Ended, u64)> = Vec::new();
        for job in ended {
            let through = due.get(&job.kept.id).copied().unwrap_or(0);
            let staying = job.folder.attempts.range(through.saturating_add(1)..);
            let bytes = staying.map(|attempt| measure(jobs, job.kept.id, Some(*attempt))).sum();
            total += bytes;
            if bytes > 0 && !job.kept.pins.contains(&Pin::Logs) {
                oldest_first.push((job, bytes));
            }
        }
        oldest_first.sort_by_key(|(job, _)| job.ended_at);
        for (job, bytes) in oldest_first {
            if total <= max.0 {
                break;
            }
            total -= bytes;
            plan.logs.retain(|due| due.job != job.kept.id);
            let through = job.folder.attempts.last().copied().unwrap_or(0).max(job.kept.attempts);
            let because = format!("retention.logs_max is {max}, and of all jobs with files it ended first");
            let is_noted = job.kept.removed.logs_through() >= through;
            let (job, ended_at) = (job.kept.id, job.ended_at);
            plan.logs.push(DueLogs { job, ended_at, through, rule: "logs_max", because, is_noted });
        }
        plan.beyond_max = total.checked_sub(max.0).filter(|beyond| *beyond > 0).map(Bytes);
    }

    /// Plans the removal of records. The newest stays: its row shows which ids were given out.
    fn plan_jobs(&self, with_files: &BTreeSet<JobId>, plan: &mut Plan) -> Result<(), Error> {
        let Some(newest) = self.reader.last_job()? else { return Ok(()) };
        let mut after = JobId(0);
        while let Some(job) = self.reader.next_job(after)? {
            after = job;
            let Some(kept) = self.kept(job)?.flatten() else { continue };
            if !self.is_old(kept.submitted_at, self.policy.jobs) {
                break;
            }
            if !kept.pins.is_empty() {
                continue;
            }
            let siblings = kept.siblings;
            if job == siblings.start && siblings.end <= newest && with_files.range(siblings.clone()).next().is_none() {
                plan.jobs.extend(self.last_end(&siblings)?.map(|at| (siblings, at)));
            }
        }
        Ok(())
    }

    /// Returns the latest end of these jobs, if all ended long enough ago.
    fn last_end(&self, jobs: &Range<JobId>) -> Result<Option<Timestamp>, Error> {
        let mut last = None;
        let mut after = JobId(jobs.start.0.saturating_sub(1));
        while let Some(job) = self.reader.next_job(after)?.filter(|job| *job < jobs.end) {
            after = job;
            let ended_at = self.kept(job)?.flatten().and_then(|kept| kept.ended_at);
            match ended_at.filter(|at| self.is_old(*at, self.policy.jobs)) {
                Some(at) => last = last.max(Some(at)),
                None => return Ok(None),
            }
        }
        Ok(last)
    }
}

/// Returns the bytes of the files of a job or of one attempt. Unreadable files count as empty.
pub(crate) fn measure(jobs: &OwnedFd, job: JobId, attempt: Option<u32>) -> u64 {
    let mut walk = Walk::counting();
    let whole = match attempt {
        None => walk.tree(jobs.as_fd(), &name_of(job)),
        Some(attempt) => open_folder(jobs, &name_of(job))
            .and_then(|folder| walk.tree(folder.as_fd(), &name_of(AttemptNumber(attempt)))),
    };
    // A folder that has just been removed has no bytes.
    whole.map_or(0, |_| walk.removed.bytes)
}

/// Returns a duration in the configuration's format.
pub(crate) fn shown(age: Duration) -> String {
    let seconds = age.as_secs();
    let units = [(86_400, "d"), (3_600, "h"), (60, "m"), (1, "s")];
    let (length, unit) =
        units.into_iter().find(|(length, _)| seconds >= *length && seconds.is_multiple_of(*length)).unwrap_or((1, "s"));
    format!("{}{unit}", seconds / length)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_shown_as_they_are_written() {
        let shown = [0, 1, 90, 120, 7_200, 86_400, 30 * 86_400].map(|seconds| shown(Duration::from_secs(seconds)));
        assert_eq!(shown, ["0s", "1s", "90s", "2m", "2h", "1d", "30d"]);
    }

    #[test]
    fn only_names_as_we_write_them_are_ours() {
        let parse = |name: &str| number::<u64>(&CString::new(name).expect("no null"), "job-");
        assert_eq!(
            ["job-7", "job-07", "job-", "job-+7", "Job-7", "job-7x", "job-7-old"].map(parse),
            [Some(7), None, None, None, None, None, None]
        );
    }
}
