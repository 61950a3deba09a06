//! The store's front: open, save, look, load.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Sender, SyncSender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use gangline_base::Step;
use serde::Serialize;

use crate::alike::Alike;
use crate::archive::{self, Pushed};
use crate::check::check;
use crate::commit::{Committer, Shared, Work};
use crate::digest::FramedHasher;
use crate::disk::Disk;
use crate::manifest::{check_metadata, hash_declaration, read_manifest};
use crate::options::Writer;
use crate::pending::{Slot, Slots};
use crate::prune::{clear, list_steps, plan as plan_pruning, retire};
use crate::refusal::{Reason, Turn};
use crate::slab::Slabs;
use crate::staged::Staged;
use crate::staging::{Noted, Staging};
use crate::tensor::{check_tensors, share};
use crate::{
    AlikeValue, CheckpointInfo, Digest, Error, Options, Pending, Problem, PrunePolicy, Pruned, Role, Saved, Snapshot,
    Tensor, TensorView, VerifyReport, layout, with_causes,
};

/// How often [`Store::latest`] starts again because a checkpoint was pruned under its eyes.
const LATEST_TRIES_MAX: usize = 4;

/// A folder of checkpoints.
///
/// A writer's store has one thread that does the writing. Dropping the store waits until this process's part of all
/// saves is on disk, but not for other ranks: [`Pending::wait`] does.
pub struct Store {
    shared: Arc<Shared>,
    slots: Arc<Slots>,
    slabs: Arc<Slabs>,
    writing: Option<Writing>,
    /// The save that was asked for last.
    turn: Mutex<Turn>,
    archiving: Option<JoinHandle<()>>,
}

struct Writing {
    writer: Writer,
    queue: Sender<Job>,
    thread: JoinHandle<()>,
}

enum Job {
    Save {
        work: Box<Work>,
        slot: Slot,
        reply: SyncSender<Result<Saved, Error>>,
    },
    /// Tell the others of the gang that this rank has no part in a save.
    Refuse {
        turn: Turn,
        reason: Reason,
    },
}

/// A checkpoint in memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Checkpoint {
    /// What its manifest says.
    pub info: CheckpointInfo,
    /// Its tensors, by name.
    pub tensors: Vec<Tensor>,
}

/// The newest good checkpoint, and what was passed over to find it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Latest {
    /// The newest checkpoint whose every byte is as it was saved; none if there is none.
    pub checkpoint: Option<CheckpointInfo>,
    /// Newer ones that aren't good, newest first.
    pub skipped: Vec<Skipped>,
}

/// A checkpoint that isn't good.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Skipped {
    /// Its step.
    pub step: Step,
    /// What is wrong with it; at least one thing.
    pub problems: Vec<Problem>,
}

/// A checkpoint's folder with what its manifest says, or why that can't be read. The tensors are not checked.
#[derive(Debug)]
pub struct Listed {
    /// The step in the folder's name.
    pub step: Step,
    /// What the manifest says.
    pub manifest: Result<CheckpointInfo, Error>,
}

impl Store {
    /// Opens the folder at `path`. A writer creates it, and clears away what dead writers left half-written.
    ///
    /// # Errors
    /// [`Error::InvalidOptions`] or [`Error::Limit`] for options that make no sense, [`Error::Io`] if the folder can't
    /// be made, listed or cleared (or isn't there, for a reader).
    pub fn open(path: impl AsRef<Path>, options: Options) -> Result<Store, Error> {
        options.check()?;
        let root = path.as_ref().to_owned();
        let role = options.role;
        let staging = match (&options.staging, role) {
            (Some(folder), Role::Writer { rank, .. }) => Some(Staging::new(folder, rank)),
            _ => None,
        };
        let shared = Shared::new(root, options);
        let writing = match role {
            Role::Reader => None,
            Role::Writer { rank, world_size, tag } => {
                shared.disk.create_root(&shared.root)?;
                Some(Writing::start(&shared, Writer { rank, world_size, tag })?)
            }
        };
        let newest = list_steps(&shared.root)?.last().copied();
        let archiving = match (&shared.options.archive, role) {
            (Some(tier), Role::Writer { rank: 0, .. }) => Some(shared.tiering.start(&shared.root, tier, newest)?),
            _ => None,
        };
        let turn = Mutex::new(Turn { step: Step(0), number: 0 });
        Ok(Store { shared, slots: Arc::default(), slabs: Slabs::new(staging), writing, turn, archiving })
    }

    /// The folder.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.shared.root
    }

    /// The hands by which its folder is changed.
    pub(crate) fn disk(&self) -> &Disk {
        &self.shared.disk
    }

    /// Copies this rank's share of the tensors to host memory, which is all the caller waits for, and writes them in
    /// the background. Every rank of a gang passes all tensors that they hold alike, and its own parts of those that are cut
    /// ([`PartOf`](crate::PartOf)).
    ///
    /// The memory of the copies is kept for the next saves until the store is dropped: as much as the largest save takes,
    /// once for each that was under way at the same time.
    ///
    /// With [`SAVES_IN_FLIGHT_MAX`](crate::SAVES_IN_FLIGHT_MAX) saves under way it waits for one to end first.
    ///
    /// # Errors
    /// [`Error::InvalidTensor`], [`Error::Limit`], [`Error::ReadOnly`], or [`Error::Poisoned`] after a failed fsync.
    pub fn save(
        &self,
        step: Step,
        tensors: &[TensorView<'_>],
        metadata: &BTreeMap<String, String>,
    ) -> Result<Pending, Error> {
        self.save_with_values(step, tensors, metadata, &[])
    }

    /// The same, for ranks that agree on values besides: a commit is refused if they differ ([`Error::Disagreement`]).
    ///
    /// # Errors
    /// As for [`Store::save`]. The other ranks are told, and fail with [`Error::Abandoned`].
    pub fn save_with_values(
        &self,
        step: Step,
        tensors: &[TensorView<'_>],
        metadata: &BTreeMap<String, String>,
        values: &[AlikeValue<'_>],
    ) -> Result<Pending, Error> {
        let writing = self.writing.as_ref().ok_or(Error::ReadOnly)?;
        self.shared.disk.check_poison()?;
        let turn = self.next_turn(step);
        let staged = self.stage(writing.writer, turn, tensors, metadata);
        let (mut work, slot) = staged.inspect_err(|error| writing.refuse(turn, &with_causes(error)))?;
        if writing.writer.world_size > 1 {
            work.alike = Some(Alike::of(tensors, metadata, values, self.shared.options.compare));
        }
        work.noted = Noted::write(&work, &self.shared.root, writing.writer);
        let (reply, pending) = Pending::new(step);
        writing.queue.send(Job::Save { work: Box::new(work), slot, reply }).map_err(|_| Error::Closed)?;
        Ok(pending)
    }

    /// Instead of a save, for a rank of a gang whose caller can't take part in it: the others are told why, and fail soon
    /// ([`Error::Abandoned`]). It is told in the background.
    ///
    /// # Errors
    /// [`Error::ReadOnly`].
    pub fn refuse(&self, step: Step, why: &str) -> Result<(), Error> {
        let writing = self.writing.as_ref().ok_or(Error::ReadOnly)?;
        writing.refuse(self.next_turn(step), why);
        Ok(())
    }

    /// Counts how many times in a row this step is to be saved.
    fn next_turn(&self, step: Step) -> Turn {
        let mut turn = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
        let number = if turn.step == step { turn.number.saturating_add(1) } else { 1 };
        *turn = Turn { step, number };
        *turn
    }

    /// Copies this rank's share.
    fn stage(
        &self,
        writer: Writer,
        turn: Turn,
        tensors: &[TensorView<'_>],
        metadata: &BTreeMap<String, String>,
    ) -> Result<(Work, Slot), Error> {
        check_tensors(tensors)?;
        check_metadata(metadata)?;
        let slot = self.slots.take(turn.step)?;
        let mine = share(tensors, writer.rank, writer.world_size);
        let mut mine: Vec<&TensorView<'_>> = mine.into_iter().map(|index| &tensors[index]).collect();
        // Wide elements first keeps every tensor aligned to its element, as safetensors' own writer does.
        mine.sort_by(|a, b| (b.data_type.size(), a.name).cmp(&(a.data_type.size(), b.name)));
        let staged = Staged::copy(&mine, &self.slabs)?;
        let plan = plan(tensors, metadata);
        let Turn { step, number } = turn;
        let metadata = metadata.clone();
        Ok((Work { step, staged, metadata, plan, turn: number, alike: None, is_taken_over: false, noted: None }, slot))
    }

    /// The newest checkpoint whose every byte is as it was saved, and what was passed over: of those before
    /// [`Options::restore_below`].
    ///
    /// # Errors
    /// [`Error::Io`] if the folder can't be read.
    pub fn latest(&self) -> Result<Latest, Error> {
        let mut tries = 0;
        'again: loop {
            tries += 1;
            let mut latest = Latest::default();
            let counts = |step: &u64| self.shared.options.restore_below.is_none_or(|below| *step < below.0);
            for step in list_steps(&self.shared.root)?.into_iter().filter(counts).rev() {
                let checked = check(&self.shared.root, step);
                let is_gone = !self.shared.root.join(layout::checkpoint_folder(step)).is_dir();
                if is_gone && tries < LATEST_TRIES_MAX {
                    continue 'again;
                }
                match checked? {
                    (Some(manifest), report) if report.is_good() => {
                        latest.checkpoint = Some(manifest.info());
                        return Ok(latest);
                    }
                    (_, report) => latest.skipped.push(Skipped { step: Step(step), problems: report.problems }),
                }
            }
            return Ok(latest);
        }
    }

    /// Reads a checkpoint, checking every byte.
    ///
    /// # Errors
    /// [`Error::NotFound`]; [`Error::Corrupt`] naming the file and tensor that isn't what was saved.
    pub fn load(&self, step: Step) -> Result<Checkpoint, Error> {
        let snapshot = self.open_step(step)?;
        let tensors = snapshot.read_all()?;
        Ok(Checkpoint { info: snapshot.info().clone(), tensors })
    }

    /// Opens a checkpoint to read some of it, or all of it into memory that is there.
    ///
    /// # Errors
    /// [`Error::NotFound`]; [`Error::Corrupt`] if its manifest isn't what was saved.
    pub fn open_step(&self, step: Step) -> Result<Snapshot, Error> {
        Snapshot::open(&self.shared.root, step)
    }

    /// Checks every byte of a checkpoint and names what is wrong.
    ///
    /// # Errors
    /// [`Error::NotFound`]; [`Error::Io`] if the operating system refuses to read at all.
    pub fn verify(&self, step: Step) -> Result<VerifyReport, Error> {
        check(&self.shared.root, step.0).map(|(_, report)| report)
    }

    /// All checkpoints, oldest first, by their manifests alone.
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

    /// What became of the last push to the archive ([`Options::archive`]) since somebody asked; none if none has ended. A push that
    /// failed hurts no save; the next one has what it would have put there.
    pub fn archived(&self) -> Option<Result<Pushed, archive::Error>> {
        self.shared.tiering.outcome()
    }

    /// The same, after waiting until every checkpoint is in the archive that is to go there.
    pub fn wait_archived(&self) -> Option<Result<Pushed, archive::Error>> {
        self.shared.tiering.wait()
    }

    /// Removes old checkpoints, or says which it would remove. Reads those that stay, to be sure that they are good.
    ///
    /// # Errors
    /// [`Error::Io`] if a folder can't be read or removed.
    pub fn prune(&self, policy: PrunePolicy, is_dry_run: bool) -> Result<Pruned, Error> {
        let (disk, root) = (&self.shared.disk, &self.shared.root);
        let pruned = plan_pruning(root, policy, &BTreeSet::new())?.but(&self.shared.tiering.needed());
        if !is_dry_run {
            retire(disk, root, &pruned.removed)?;
            clear(disk, root, &pruned.removed)?;
        }
        Ok(pruned)
    }
}

impl Drop for Store {
    fn drop(&mut self) {
        *self.shared.closing.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.shared.closed.notify_all();
        if let Some(Writing { queue, thread, .. }) = self.writing.take() {
            drop(queue);
            // A panic there was a bug and has been printed; whoever waits for the save is told that it is closed.
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
        let mut committer = Committer::new(Arc::clone(shared), writer);
        committer.clear_leftovers()?;
        let (queue, jobs) = channel::<Job>();
        let work = move || {
            for job in jobs {
                let (work, slot, reply) = match job {
                    Job::Save { work, slot, reply } => (*work, slot, reply),
                    Job::Refuse { turn, reason } => {
                        // The others then wait as long as they may.
                        let _ = committer.refuse(turn, reason);
                        continue;
                    }
                };
                let outcome = committer.run(work);
                drop(slot);
                // Nobody may be waiting.
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

    /// Has the others of the gang told that this rank has no part in a save.
    fn refuse(&self, turn: Turn, why: &str) {
        if self.writer.world_size > 1 {
            // If the thread is gone, so is the store.
            let _ = self.queue.send(Job::Refuse { turn, reason: Reason::failed(self.writer.rank, why) });
        }
    }
}

/// What all ranks of a gang must agree on: the tensors that all of them hold, and the metadata.
fn plan(tensors: &[TensorView<'_>], metadata: &BTreeMap<String, String>) -> Digest {
    let mut sorted: Vec<&TensorView<'_>> = tensors.iter().filter(|tensor| tensor.part_of.is_none()).collect();
    sorted.sort_by_key(|tensor| tensor.name);
    let mut hasher = FramedHasher::new("gangline checkpoint plan 1");
    hasher.number(sorted.len() as u64);
    for tensor in sorted {
        hash_declaration(&mut hasher, tensor.name, tensor.data_type, tensor.shape);
    }
    for (name, value) in metadata {
        hasher.field(name.as_bytes());
        hasher.field(value.as_bytes());
    }
    hasher.finish()
}
