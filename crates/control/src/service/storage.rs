//! The thread that measures what is stored, again and again, so that bills have it: the folders of jobs' checkpoints, the logs,
//! and what the control plane itself stores. It may hang on a file system without hurting anybody.
//!
//! A folder is charged to the job that uses it; one that several jobs name, to the last of them. What can't be measured keeps
//! its last size, and the log says why.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::time::{Duration, Instant};

use gangline_accounting::bill::{StorageClass, StorageRate};
use gangline_base::{JobId, Timestamp};
use gangline_specs::config::{FolderPrice, Storage};
use gangline_store::codec::{Noted, StorageClassV1, StorageMeasured, StorageOwner};
use gangline_store::db::{self, Reader};
use gangline_store::model::{JOBS_PER_PAGE_MAX, JobRecord, Standing, Wanted};
use gangline_store::ports::Queries as _;
use tracing::warn;

use super::actor::Actor;
use super::batch::Batch;
use super::handle::Request;
use crate::disk_usage::{Unknown, disk_usage};
use crate::folders::checkpoint_folder;

/// Time from the start to the first pass, or less where passes follow each other faster.
const FIRST_AFTER: Duration = Duration::from_secs(10);
/// Pause of a walk now and then.
const REST: Duration = Duration::from_millis(1);
/// A pass that takes long is followed by a pause of this many times its duration, so that passes take at most a tenth of the
/// time.
const REST_TIMES: u32 = 9;
/// Notes sent to the control thread in one request.
const NOTES_PER_REQUEST: usize = 100;

/// Why a pass ended early.
#[derive(Debug, thiserror::Error)]
pub(super) enum Ended {
    /// The service is stopping.
    #[error("the control plane stops")]
    Stopping,
    /// The journal has failed.
    #[error("the journal takes no notes now")]
    Refused,
    /// The read models can't be read.
    #[error(transparent)]
    Read(#[from] db::Error),
}

/// What is measured: the class of the data, and whom it is charged to.
type Subject = (StorageClass, Option<StorageOwner>);

/// The state of the thread.
pub(super) struct Meter {
    folder: PathBuf,
    journal_folder: PathBuf,
    rules: Storage,
    reader: Reader,
    /// What is noted of each folder.
    noted: BTreeMap<PathBuf, StorageMeasured>,
    /// Folders that the next pass measures whatever is noted of them: those of jobs that were live in the last pass, and those
    /// that it didn't come to or couldn't measure.
    due: BTreeMap<PathBuf, StorageOwner>,
    /// The last job that a pass has seen.
    seen: JobId,
    /// Folders whose failure has been logged.
    told: BTreeSet<PathBuf>,
}

impl Meter {
    pub(super) fn new(folders: (PathBuf, PathBuf), rules: Storage, reader: Reader) -> Meter {
        let (folder, journal_folder) = folders;
        let (noted, due, told) = Default::default();
        Meter { folder, journal_folder, rules, reader, noted, due, seen: JobId(0), told }
    }

    /// Runs until the other end of `stop` is dropped.
    pub(super) fn run(mut self, requests: &SyncSender<Request>, stop: &Receiver<()>) {
        let Some(every) = self.rules.measure_every else { return };
        let mut pause = every.min(FIRST_AFTER);
        let mut is_recalled = false;
        let rest = |pause| matches!(stop.recv_timeout(pause), Err(RecvTimeoutError::Timeout));
        while rest(pause) {
            let began = Instant::now();
            let recalled = if is_recalled { Ok(()) } else { self.recall() };
            is_recalled = recalled.is_ok();
            let passed = recalled.and_then(|()| {
                let mut note = |notes: Vec<Noted>| note(requests, notes);
                self.pass(&mut note, &mut || rest(REST))
            });
            match passed {
                Ok(()) => {}
                Err(Ended::Stopping) => return,
                Err(ended) => warn!("storage isn't measured until a later pass: {ended}"),
            }
            pause = every.max(began.elapsed().saturating_mul(REST_TIMES));
        }
    }

    /// Restores what the journal has noted.
    pub(super) fn recall(&mut self) -> Result<(), Ended> {
        let (noted, now) = (&mut self.noted, Timestamp::from_unix_nanos(u64::MAX));
        self.reader.storage((now, now), &mut |_, measured| {
            // What archives hold is told by those who push to them.
            if measured.class != StorageClassV1::Archives {
                noted.insert(PathBuf::from(&measured.folder), measured);
            }
        })?;
        Ok(())
    }

    /// Measures everything once, and notes what differs.
    pub(super) fn pass(
        &mut self,
        note: &mut dyn FnMut(Vec<Noted>) -> Result<(), Ended>,
        rest: &mut dyn FnMut() -> bool,
    ) -> Result<(), Ended> {
        let (subjects, mut due) = self.subjects()?;
        let folders: BTreeSet<PathBuf> = subjects.keys().cloned().collect();
        let mut changed = Vec::new();
        for (folder, (class, owner)) in subjects {
            let bytes = match disk_usage(&folder, &folders, rest) {
                Ok(bytes) => bytes,
                Err(Unknown::Stopped) => return Err(Ended::Stopping),
                Err(unknown) => {
                    due.insert(folder.clone());
                    if self.told.insert(folder) {
                        warn!("what is stored can't be measured, and its last size counts on: {unknown}");
                    }
                    continue;
                }
            };
            self.told.remove(&folder);
            let price = self.rules.price_of(&folder).map(price_of).map(Into::into);
            let name = folder.to_string_lossy().into_owned();
            let measured = StorageMeasured { folder: name, class: class.into(), bytes, owner, price };
            let known = self.noted.get(&folder);
            if known != Some(&measured) && (known.is_some() || bytes.0 > 0) {
                changed.push((folder, measured));
            }
            if changed.len() == NOTES_PER_REQUEST {
                self.send(std::mem::take(&mut changed), note)?;
            }
        }
        self.send(changed, note)?;
        self.due.retain(|folder, _| due.contains(folder));
        Ok(())
    }

    fn send(
        &mut self,
        changed: Vec<(PathBuf, StorageMeasured)>,
        note: &mut dyn FnMut(Vec<Noted>) -> Result<(), Ended>,
    ) -> Result<(), Ended> {
        if changed.is_empty() {
            return Ok(());
        }
        note(changed.iter().map(|(_, measured)| Noted::Storage(measured.clone())).collect())?;
        self.noted.extend(changed);
        Ok(())
    }

    /// Returns what is to be measured, by folder, and the folders of live jobs. All that jobs own is due until it is measured.
    fn subjects(&mut self) -> Result<(BTreeMap<PathBuf, Subject>, BTreeSet<PathBuf>), Ended> {
        let mut subjects: BTreeMap<PathBuf, Subject> = BTreeMap::new();
        let shared = [
            (self.journal_folder.clone(), StorageClass::Platform),
            (self.folder.clone(), StorageClass::Platform),
            (self.folder.join("jobs"), StorageClass::Logs),
        ];
        subjects.extend(shared.map(|(folder, class)| (folder, (class, None))));
        let is_kept = |measured: &&StorageMeasured| measured.bytes.0 > 0;
        let kept = self.noted.iter().filter(|(_, measured)| is_kept(measured));
        let kept = kept.filter_map(|(folder, measured)| Some((folder.clone(), measured.owner.clone()?)));
        let due = self.due.iter().map(|(folder, owner)| (folder.clone(), owner.clone()));
        for (folder, owner) in kept.chain(due) {
            charge(&mut subjects, folder, owner);
        }
        let (mut live, mut newest) = (BTreeSet::new(), self.seen);
        for (record, is_new) in self.records(self.seen)? {
            if is_new {
                newest = newest.max(record.id);
            }
            let folder = checkpoint_folder(&self.folder, record.id, record.checkpoint_path.as_deref());
            if !record.state.is_final() {
                live.insert(folder.clone());
            }
            charge(&mut subjects, folder, owner_of(&record));
        }
        self.seen = newest;
        let owned = subjects.iter().filter_map(|(folder, (_, owner))| Some((folder.clone(), owner.clone()?)));
        self.due = owned.collect();
        Ok((subjects, live))
    }

    /// Returns the records of live jobs, and of all jobs after `seen`; the latter are marked.
    fn records(&self, seen: JobId) -> Result<Vec<(JobRecord, bool)>, Ended> {
        let mut records = Vec::new();
        for (standing, is_new) in [(Standing::Any, true), (Standing::Live, false)] {
            let (wanted, mut before) = (Wanted::from(standing), None);
            loop {
                let listing = self.reader.jobs(&wanted, before, JOBS_PER_PAGE_MAX)?;
                let count = listing.jobs.len();
                let found = listing.jobs.into_iter().map(|(record, _)| record);
                let found: Vec<JobRecord> = found.filter(|record| !is_new || record.id > seen).collect();
                let is_last = found.len() < count || !listing.has_more;
                records.extend(found.into_iter().map(|record| (record, is_new)));
                before = listing.last.filter(|_| !is_last);
                if before.is_none() {
                    break;
                }
            }
        }
        Ok(records)
    }
}

/// Charges a folder to a job, unless a later one has it.
fn charge(subjects: &mut BTreeMap<PathBuf, Subject>, folder: PathBuf, owner: StorageOwner) {
    let (_, charged) = subjects.entry(folder).or_insert((StorageClass::Checkpoints, None));
    if charged.as_ref().is_none_or(|charged| charged.job <= owner.job) {
        *charged = Some(owner);
    }
}

pub(super) fn owner_of(record: &JobRecord) -> StorageOwner {
    let JobRecord { id, name, submitter, queue, .. } = record;
    StorageOwner { job: *id, name: name.clone(), user: submitter.clone(), queue: queue.clone() }
}

pub(super) fn price_of(FolderPrice { per_month, unit, month_hours, .. }: &FolderPrice) -> StorageRate {
    StorageRate { per_month: *per_month, unit: *unit, month_hours: *month_hours }
}

/// Has the control thread note what was measured; the notes are durable when this returns.
fn note(requests: &SyncSender<Request>, notes: Vec<Noted>) -> Result<(), Ended> {
    let (reply, answer) = sync_channel(1);
    requests.send(Request::Note { notes, reply }).map_err(|_| Ended::Stopping)?;
    match answer.recv() {
        Ok(true) => Ok(()),
        Ok(false) => Err(Ended::Refused),
        Err(_) => Err(Ended::Stopping),
    }
}

impl Actor {
    /// Journals notes for bills, and answers whether they are durable.
    pub(super) fn note(&mut self, now: Timestamp, (notes, reply): (Vec<Noted>, SyncSender<bool>), batch: &mut Batch) {
        if self.journal.poison().is_none() {
            for noted in notes {
                self.note_for_bills(now, noted, batch);
            }
        }
        batch.answers.push(Box::new(move |committed| {
            // The thread may have been told to stop.
            let _ = reply.send(committed.is_ok());
        }));
    }

    /// Journals a note for bills.
    pub(super) fn note_for_bills(&mut self, now: Timestamp, noted: Noted, batch: &mut Batch) {
        batch.push_noted(now, &noted);
        self.rows.noted.push((now, noted));
    }
}
