//! The store's public interface: open, list and load; `saving` has how saves begin.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Sender, SyncSender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use gangline_base::Step;
use serde::Serialize;

use crate::archive::{self, Pushed};
use crate::branches::{BranchInfo, branches};
use crate::check::check;
use crate::commit::{Committer, Shared, Work};
use crate::disk::Disk;
use crate::history::{Heads, origin};
use crate::lease::Lease;
use crate::lineage::{Moment, Origin};
use crate::manifest::read_manifest;
use crate::options::Writer;
use crate::pending::{Slot, Slots};
use crate::prune::{Goodness, clear, list_steps, plan as plan_pruning, plan_one, retire};
use crate::refusal::{Reason, Turn};
use crate::slab::{Allowance, Slabs};
use crate::staging::Staging;
use crate::{
    CheckpointInfo, Error, Options, Problem, PrunePolicy, Pruned, Role, Saved, Snapshot, Tensor, VerifyReport, layout,
};

/// How often [`Store::latest`] starts again because a checkpoint was pruned while it was read.
const LATEST_TRIES_MAX: usize = 4;

/// A folder of checkpoints.
///
/// A writer's store has one background thread that writes. Dropping the store waits until this process's part
/// of every save is on disk, but not for other ranks; [`crate::Pending::wait`] waits for those.
pub struct Store {
    pub(crate) shared: Arc<Shared>,
    pub(crate) slots: Arc<Slots>,
    pub(crate) slabs: Arc<Slabs>,
    /// The checkpoint that was loaded since the last save.
    resumed: Mutex<Option<Origin>>,
    pub(crate) writing: Option<Writing>,
    /// The save that was requested last.
    pub(crate) turn: Mutex<Turn>,
    archiving: Option<JoinHandle<()>>,
}

pub(crate) struct Writing {
    pub(crate) writer: Writer,
    pub(crate) queue: Sender<Job>,
    thread: JoinHandle<()>,
}

pub(crate) enum Job {
    Save {
        work: Box<Work>,
        slot: Slot,
        reply: SyncSender<Result<Saved, Error>>,
    },
    /// Tells the other ranks of the gang that this rank doesn't take part in a save.
    Refuse {
        turn: Turn,
        reason: Reason,
    },
}

/// A checkpoint loaded into memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Checkpoint {
    /// The content of its manifest.
    pub info: CheckpointInfo,
    /// Its tensors, by name.
    pub tensors: Vec<Tensor>,
}

/// The newest good checkpoint, and the newer ones that were skipped.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Latest {
    /// The newest checkpoint whose every byte is as it was saved; none if there is no such checkpoint.
    pub checkpoint: Option<CheckpointInfo>,
    /// Newer checkpoints that are damaged, newest first.
    pub skipped: Vec<Skipped>,
}

/// A damaged checkpoint.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Skipped {
    /// Its step.
    pub step: Step,
    /// What is wrong with it; never empty.
    pub problems: Vec<Problem>,
}

/// A checkpoint's folder with its manifest, or the reason why the manifest can't be read. Tensors are not
/// checked.
#[derive(Debug)]
pub struct Listed {
    /// The step in the folder's name.
    pub step: Step,
    /// The content of the manifest.
    pub manifest: Result<CheckpointInfo, Error>,
}

impl Store {
    /// Opens the folder at `path`. A writer creates the folder, and removes files that dead writers left
    /// half-written.
    ///
    /// # Errors
    /// [`Error::InvalidOptions`] or [`Error::Limit`] for invalid options, [`Error::Io`] if the folder can't
    /// be created, listed or cleared (or doesn't exist, for a reader), [`Error::Held`] if another run writes
    /// to the folder.
    pub fn open(path: impl AsRef<Path>, options: Options) -> Result<Store, Error> {
        options.check()?;
        let root = path.as_ref().to_owned();
        let role = options.role;
        let staging = match (&options.staging, role) {
            (Some(folder), Role::Writer { rank, .. }) => Some(Staging::new(folder, rank)),
            _ => None,
        };
        let allowance = Allowance { max: options.memory_max, is_returned: !options.keeps_memory };
        let shared = Shared::new(root, options);
        let writing = match role {
            Role::Reader => None,
            Role::Writer { rank, world_size, tag } => {
                shared.disk.create_root(&shared.root)?;
                Some(Writing::start(&shared, Writer { rank, world_size, tag })?)
            }
        };
        let newest = Heads::default().history(&shared.root)?.tip().map(|seen| seen.step);
        let archiving = match (&shared.options.archive, role) {
            (Some(tier), Role::Writer { rank: 0, .. }) => Some(shared.tiering.start(&shared.root, tier, newest)?),
            _ => None,
        };
        let (slots, slabs, resumed) = (Arc::default(), Slabs::new(staging, allowance), Mutex::default());
        let turn = Mutex::new(Turn { step: Step(0), number: 0 });
        Ok(Store { shared, slots, slabs, resumed, writing, turn, archiving })
    }

    /// The folder.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.shared.root
    }

    /// Returns the [`Disk`] through which the folder is changed.
    pub(crate) fn disk(&self) -> &Disk {
        &self.shared.disk
    }

    /// Records that training resumes from this checkpoint. Unless it is the newest of the current branch, the
    /// next save begins a new branch there. Only rank 0's call has an effect.
    ///
    /// # Errors
    /// [`Error::NotFound`]; [`Error::Corrupt`] if the manifest isn't what was saved.
    pub fn resume_from(&self, step: Step) -> Result<(), Error> {
        *self.resumed() = Some(origin(&self.shared.root, step)?);
        Ok(())
    }

    pub(crate) fn resumed(&self) -> MutexGuard<'_, Option<Origin>> {
        self.resumed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the checkpoints that training may resume from, the newest save first: those of the current
    /// branch and of the branches it came from, before [`Options::restore_below`]. None of them is checked.
    ///
    /// # Errors
    /// [`Error::Io`] if the folder can't be read.
    pub fn line(&self) -> Result<Vec<Step>, Error> {
        let counts = |step: &u64| self.shared.options.restore_below.is_none_or(|below| *step < below.0);
        let history = Heads::default().history(&self.shared.root)?;
        Ok(history.on.iter().rev().map(|seen| seen.step).filter(counts).map(Step).collect())
    }

    /// Returns the moment of the newest save on the current line whose manifest can be read.
    pub(crate) fn newest_moment(&self) -> Result<Option<Moment>, Error> {
        let history = Heads::default().history(&self.shared.root)?;
        Ok(history.on.iter().rev().find_map(|seen| seen.head.as_ref()).map(|head| head.moment))
    }

    /// Returns the branches of this folder's saves, the current one last.
    ///
    /// # Errors
    /// [`Error::Io`] if the folder can't be read.
    pub fn branches(&self) -> Result<Vec<BranchInfo>, Error> {
        Ok(branches(&Heads::default().history(&self.shared.root)?))
    }

    /// Returns the newest checkpoint of the current line whose every byte is as it was saved, and the
    /// newer ones that were skipped. Only checkpoints before [`Options::restore_below`] count.
    ///
    /// # Errors
    /// [`Error::Io`] if the folder can't be read.
    pub fn latest(&self) -> Result<Latest, Error> {
        let mut tries = 0;
        'again: loop {
            tries += 1;
            let mut latest = Latest::default();
            for Step(step) in self.line()? {
                match check(&self.shared.root, step) {
                    // It was pruned in the meantime.
                    Err(Error::NotFound { .. }) if tries < LATEST_TRIES_MAX => continue 'again,
                    Err(Error::NotFound { .. }) => {}
                    Ok((Some(manifest), report)) if report.is_good() => {
                        latest.checkpoint = Some(manifest.info());
                        return Ok(latest);
                    }
                    Ok((_, report)) => latest.skipped.push(Skipped { step: Step(step), problems: report.problems }),
                    Err(error) => return Err(error),
                }
            }
            return Ok(latest);
        }
    }

    /// Reads a checkpoint into memory, and checks every byte.
    ///
    /// # Errors
    /// [`Error::NotFound`]; [`Error::Corrupt`] naming the file and tensor that isn't what was saved.
    pub fn load(&self, step: Step) -> Result<Checkpoint, Error> {
        let snapshot = self.open_step(step)?;
        let tensors = snapshot.read_all()?;
        Ok(Checkpoint { info: snapshot.info().clone(), tensors })
    }

    /// Opens a checkpoint to read parts of it, or to read all of it into existing memory.
    ///
    /// # Errors
    /// [`Error::NotFound`]; [`Error::Corrupt`] if the manifest isn't what was saved.
    pub fn open_step(&self, step: Step) -> Result<Snapshot, Error> {
        Snapshot::open(&self.shared.root, step)
    }

    /// Checks every byte of a checkpoint, and reports what is wrong.
    ///
    /// # Errors
    /// [`Error::NotFound`]; [`Error::Io`] if the operating system refuses to read at all.
    pub fn verify(&self, step: Step) -> Result<VerifyReport, Error> {
        check(&self.shared.root, step.0).map(|(_, report)| report)
    }

    /// Lists all checkpoints, oldest first. Reads only their manifests.
    ///
    /// # Errors
    /// [`Error::Io`] if the folder can't be read.
    pub fn list(&self) -> Result<Vec<Listed>, Error> {
        let manifest_of = |step| {
            let folder: PathBuf = self.shared.root.join(layout::checkpoint_folder(step));
            read_manifest(&folder.join(layout::MANIFEST), step).map(|manifest| manifest.info())
        };
        let steps = list_steps(&self.shared.root)?;
        Ok(steps.into_iter().map(|step| Listed { step: Step(step), manifest: manifest_of(step) }).collect())
    }

    /// Returns the outcome of the last push to the archive ([`Options::archive`]), once; none if no push has
    /// ended since the last call. A failed push affects no save; the next push is of a newer
    /// checkpoint and stores all that this one needs.
    pub fn archived(&self) -> Option<Result<Pushed, archive::Error>> {
        self.shared.tiering.outcome()
    }

    /// Waits until nothing is left to push, then returns the outcome as [`Store::archived`] does.
    pub fn wait_archived(&self) -> Option<Result<Pushed, archive::Error>> {
        self.shared.tiering.wait()
    }

    /// Removes old checkpoints, or with `is_dry_run` only reports them. Reads the checkpoints that stay, to
    /// verify that they are good.
    ///
    /// # Errors
    /// [`Error::Io`] if a folder can't be read or removed; [`Error::LastGood`]; [`Error::NoSuchBranch`].
    pub fn prune(&self, policy: &PrunePolicy, is_dry_run: bool) -> Result<Pruned, Error> {
        let root = &self.shared.root;
        let history = Heads::default().history(root)?;
        let pruned = plan_pruning(&history, policy, &Goodness { root, known: &BTreeSet::new() })?;
        let pruned = pruned.but(&self.shared.tiering.needed());
        if !is_dry_run {
            self.remove(&pruned.removed)?;
        }
        Ok(pruned)
    }

    /// Removes one checkpoint, of any branch.
    ///
    /// # Errors
    /// [`Error::NotFound`]; [`Error::LastGood`] if no good checkpoint of the current branch would be left;
    /// [`Error::Io`].
    pub fn delete(&self, step: Step) -> Result<(), Error> {
        let root = &self.shared.root;
        let history = Heads::default().history(root)?;
        let pruned = plan_one(&history, step, &Goodness { root, known: &BTreeSet::new() })?;
        self.remove(&pruned.removed)
    }

    fn remove(&self, steps: &[Step]) -> Result<(), Error> {
        retire(&self.shared.disk, &self.shared.root, steps)?;
        clear(&self.shared.disk, &self.shared.root, steps)
    }
}

impl Drop for Store {
    fn drop(&mut self) {
        *self.shared.closing.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.shared.closed.notify_all();
        if let Some(Writing { queue, thread, .. }) = self.writing.take() {
            drop(queue);
            // A panic of that thread was a bug and has been printed; callers that wait for its saves get
            // `Closed`.
            let _ = thread.join();
        }
        self.shared.tiering.close();
        if let Some(archiving) = self.archiving.take() {
            let _ = archiving.join();
        }
    }
}

impl Writing {
    fn start(shared: &Arc<Shared>, writer: Writer) -> Result<Writing, Error> {
        let lease = match writer.rank {
            0 => Lease::take(&shared.root, shared.options.run(), writer.tag)?,
            _ => None,
        };
        let mut committer = Committer::new(Arc::clone(shared), writer, lease);
        committer.clear_leftovers()?;
        let (queue, jobs) = channel::<Job>();
        let work = move || {
            for job in jobs {
                let (work, slot, reply) = match job {
                    Job::Save { work, slot, reply } => (*work, slot, reply),
                    Job::Refuse { turn, reason } => {
                        // If this fails, the other ranks wait until their timeout.
                        let _ = committer.refuse(turn, reason);
                        continue;
                    }
                };
                let outcome = committer.run(work);
                drop(slot);
                // The receiver may be gone.
                let _ = reply.send(outcome);
                committer.clear_retired();
            }
        };
        let thread = std::thread::Builder::new()
            .name("gangline-store".to_owned())
            .spawn(work)
            .map_err(|source| Error::io("start the writing thread of", &shared.root, source))?;
        Ok(Writing { writer, queue, thread })
    }

    /// Queues a refusal: the background thread tells the gang that this rank doesn't take part in the save.
    pub(crate) fn refuse(&self, turn: Turn, why: &str) {
        if self.writer.world_size > 1 {
            // If the thread is gone, the store is gone too.
            let _ = self.queue.send(Job::Refuse { turn, reason: Reason::failed(self.writer.rank, why) });
        }
    }
}
