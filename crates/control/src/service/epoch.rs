//! Steps of a start that keep ids, attempts and folders from being used twice, whatever happened to the
//! journal. A start begins a new epoch, skips ids that were given out before, puts aside attempts that
//! the journal doesn't know, and, in a copied data folder, leaves the jobs to the original.

use std::collections::BTreeSet;
use std::fs::read_dir;
use std::path::{Path, PathBuf};

use gangline_base::{AttemptNumber, Epoch, JobId, Submitter, Timestamp};
use gangline_execution::launcher::spec_epoch;
use gangline_orchestration::{Event, ShareEnd};
use tracing::{info, warn};

use super::actor::Actor;
use super::batch::Batch;
use super::start::StartError;
use gangline_store::db;
use gangline_store::ports::Queries as _;

/// Folder of the attempts, below the data folder.
const JOBS: &str = "jobs";
/// Folder of checkpoints of jobs without a path of their own, below the data folder.
const CHECKPOINTS: &str = "checkpoints";
/// Named as the one who ended the jobs of a copy.
const COPY: &str = "a copy's start";

impl Actor {
    /// Returns the last job id ever given out, by the anchor, the read models and the jobs' folders.
    /// Supervisors, final reports and checkpoints of a lost job may still exist and must not be taken for a
    /// new job's.
    pub(super) fn given_out(
        &self,
        anchored: Option<JobId>,
        with_folders: &BTreeSet<JobId>,
    ) -> Result<JobId, db::Error> {
        let stored = self.journal.reader().last_job()?;
        let with_checkpoints = jobs_in(&self.options.folder.join(CHECKPOINTS));
        let on_disk = [with_folders, &with_checkpoints].map(|jobs| jobs.last().copied());
        Ok([anchored, stored].into_iter().chain(on_disk).flatten().max().unwrap_or(JobId(0)))
    }

    /// Returns the jobs whose attempts have folders.
    pub(super) fn jobs_with_folders(&self) -> BTreeSet<JobId> {
        jobs_in(&self.options.folder.join(JOBS))
    }

    /// Begins an epoch that no other start has, and skips the ids that were given out before.
    pub(super) fn begin_epoch(
        &mut self,
        now: Timestamp,
        given_out: JobId,
        batch: &mut Batch,
    ) -> Result<(), StartError> {
        let mut bytes = [0; 8];
        getrandom::fill(&mut bytes).map_err(StartError::NoEpoch)?;
        let epoch = Epoch(u64::from_le_bytes(bytes).max(1));
        info!(%epoch, "an epoch begins");
        let mut events = vec![Event::EpochBegan { epoch }];
        if given_out >= self.engine.next_job_id() {
            warn!(last = %given_out, "jobs that the journal doesn't know keep their ids");
            events.push(Event::IdsSkipped { below: JobId(given_out.0 + 1) });
        }
        for event in events {
            if let Err(refusal) = self.apply(now, event, batch) {
                warn!(%refusal, "an epoch could not begin");
            }
        }
        Ok(())
    }

    /// Puts aside attempts that have folders but are unknown to the journal, because their records were lost.
    /// Processes that may still run are killed. Folders of live jobs' attempts are renamed, because their
    /// numbers will be used again.
    pub(super) fn put_aside_lost_attempts(&mut self, now: Timestamp, with_folders: BTreeSet<JobId>) {
        let root = self.options.folder.join(JOBS);
        for job in with_folders {
            let folder = root.join(job.to_string());
            let Some(live) = self.engine.job(job) else {
                if job >= self.engine.next_job_id() {
                    attempts_in(&folder).into_iter().for_each(|(_, attempt)| self.fence(&attempt));
                }
                continue;
            };
            let current = live.attempt().map(|attempt| (attempt.number, attempt.epoch));
            let known = live.attempts;
            for (number, attempt) in attempts_in(&folder) {
                let is_of_another = current.is_some_and(|(current, epoch)| {
                    current == number && shares_in(&attempt).iter().any(|share| is_of_another_epoch(share, epoch))
                });
                if number.0 > known || is_of_another {
                    self.fence(&attempt);
                    self.put_aside(now, job, &attempt);
                }
            }
        }
    }

    fn fence(&self, attempt: &Path) {
        for share in shares_in(attempt) {
            if let Err(failure) = self.options.launcher.kill(&share) {
                warn!(folder = %share.display(), %failure, "what is left of a lost attempt can't be killed");
            }
        }
    }

    fn put_aside(&mut self, now: Timestamp, job: JobId, attempt: &Path) {
        let Some(name) = attempt.file_name().and_then(|name| name.to_str()) else { return };
        let aside = attempt.with_file_name(format!("lost-{}-{name}", now.unix_nanos()));
        let text = match std::fs::rename(attempt, &aside) {
            Ok(()) => format!("{name} of lost journal records was put aside as {}", aside.display()),
            Err(error) => format!("{name} of lost journal records can't be put aside: {error}"),
        };
        warn!(%job, "{text}");
        if let Some(record) = self.records.get_mut(&job) {
            record.note(now, text);
            self.rows.jobs.insert(job);
        }
    }

    /// Ends the unfinished jobs of a copied data folder: they belong to the original, whose processes aren't
    /// touched. They end as cancelled at the time of the last record, so that nothing is booked that the copy
    /// never held.
    pub(super) fn leave_jobs_to(&mut self, original: &Path, batch: &mut Batch) {
        let now = self.engine.now();
        let original = original.display();
        warn!(
            "this data folder is a copy of {original}: its unfinished jobs belong there and end here (--take-over would have gone \
             on with them)"
        );
        // Pending jobs end first, so that none of them is given the devices that the others release.
        let (holding, waiting): (Vec<JobId>, Vec<JobId>) = self
            .engine
            .jobs()
            .map(|job| job.id)
            .partition(|job| self.engine.job(*job).is_some_and(|job| job.attempt().is_some()));
        for job in waiting.into_iter().chain(holding) {
            if let Some(record) = self.records.get_mut(&job) {
                record.note(now, format!("belongs to {original}, of which this data folder is a copy"));
                self.rows.jobs.insert(job);
            }
            self.end_in_copy(now, job, batch);
        }
    }

    fn end_in_copy(&mut self, now: Timestamp, job: JobId, batch: &mut Batch) {
        let mut events = vec![Event::CancelRequested { job, by: Submitter(COPY.to_owned()) }];
        if let Some(attempt) = self.engine.job(job).and_then(|job| job.attempt()) {
            let end = |share: &gangline_orchestration::Share| Event::ShareEnded {
                job,
                attempt: attempt.number,
                node: share.node,
                end: ShareEnd::Stopped,
            };
            events.extend(attempt.shares.iter().map(end));
        }
        for event in events {
            // A share that had ended before is refused, and stays as it was.
            if let Err(refusal) = self.apply(now, event, batch) {
                info!(%job, %refusal, "a share had ended already");
            }
        }
    }
}

/// Returns the jobs that have a folder in `root`.
fn jobs_in(root: &Path) -> BTreeSet<JobId> {
    let entries = read_dir(root).into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.strip_prefix("job-")?.parse().ok().map(JobId)).collect()
}

/// Returns the attempts that have a folder in a job's folder.
fn attempts_in(job: &Path) -> Vec<(AttemptNumber, PathBuf)> {
    let entries = read_dir(job).into_iter().flatten().flatten();
    let attempt = |entry: std::fs::DirEntry| {
        let number = entry.file_name().to_str()?.strip_prefix("attempt-")?.parse().ok()?;
        Some((AttemptNumber(number), entry.path()))
    };
    entries.filter_map(attempt).collect()
}

/// Returns the folders of an attempt's nodes.
fn shares_in(attempt: &Path) -> Vec<PathBuf> {
    read_dir(attempt).into_iter().flatten().flatten().map(|entry| entry.path()).filter(|path| path.is_dir()).collect()
}

/// Reports whether a share's stored spec names another epoch.
fn is_of_another_epoch(share: &Path, epoch: Epoch) -> bool {
    spec_epoch(share).is_some_and(|found| found != epoch)
}
