//! The background part of a save: writes the shard and its index, and on rank 0 the manifest, and renames the
//! folder.
//!
//! Each rank publishes its shard and then the shard's index in the gang's partial folder. Rank 0 waits for
//! all indexes, publishes the manifest there, and renames the folder. The other ranks wait until a manifest
//! under the final name holds their own shard. A rank that fails tells the others (see `refusal`), so that
//! none waits in vain. A failed save removes what it had written, unless an fsync failed: then nothing
//! more is touched. Once its index is published, a rank that only timed out leaves its shard: rank 0 may be
//! about to commit it.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex};

use gangline_base::Step;

use crate::alike::Alike;
use crate::awaiting::identity;
use crate::branching::{Began, Branching, Next};
use crate::check::check;
use crate::confirmation::{Gate, Unconfirmed};
use crate::disk::Disk;
use crate::error::within;
use crate::history::write_current;
use crate::lease::Lease;
use crate::lineage::{Line, Origin};
use crate::manifest::{
    FILES_MAX, INDEX_MAGIC, Manifest, ShardIndex, ShardRecord, check_parts, seal_within, version_of,
};
use crate::options::{Options, Writer};
use crate::pending::SLOT_WAIT_MAX;
use crate::prune::{self, Goodness, PrunePolicy, list_names};
use crate::refusal::{self, Reason, Turn};
use crate::staged::Staged;
use crate::staging::Noted;
use crate::tiering::Tiering;
use crate::{Digest, Error, NoteTypes, Pruned, Saved, layout};

/// The most consecutive failed saves whose refusals are kept.
const REFUSED_MAX: usize = 64;

/// State that a store's handle and its thread share.
pub(crate) struct Shared {
    pub(crate) root: PathBuf,
    pub(crate) options: Options,
    pub(crate) disk: Disk,
    /// Set when the store is dropped: stops waiting for other ranks.
    pub(crate) closing: Mutex<bool>,
    pub(crate) closed: Condvar,
    /// The queue of checkpoints to archive.
    pub(crate) tiering: Arc<Tiering>,
}

impl Shared {
    pub(crate) fn new(root: PathBuf, options: Options) -> Arc<Shared> {
        let disk = Disk::new(options.disk_hook.clone());
        Arc::new(Shared {
            root,
            options,
            disk,
            closing: Mutex::new(false),
            closed: Condvar::new(),
            tiering: Arc::default(),
        })
    }
}

/// A copied save, ready to be written.
pub(crate) struct Work {
    pub(crate) step: Step,
    /// The copy of this rank's part.
    pub(crate) staged: Staged,
    pub(crate) metadata: BTreeMap<String, String>,
    pub(crate) metadata_types: NoteTypes,
    pub(crate) plan: Digest,
    /// The checkpoint that was loaded since the previous save, if any: see
    /// [`Store::resume_from`](crate::Store::resume_from).
    pub(crate) resumed: Option<Origin>,
    /// How many times in a row this step was requested, this time included.
    pub(crate) turn: u32,
    /// Digests of the replicated tensors and values; none for a lone writer.
    pub(crate) alike: Option<Alike>,
    /// Whether another process made the copy: what that process had already written counts.
    pub(crate) is_taken_over: bool,
    /// The note with which others can finish the save; removed when the save has ended.
    pub(crate) noted: Option<Noted>,
    /// Opened once the caller confirms that nothing changed during the copy; none if it waited for the copy.
    pub(crate) gate: Option<Gate>,
}

impl Work {
    pub(crate) fn turn(&self) -> Turn {
        Turn { step: self.step, number: self.turn }
    }
}

impl Drop for Work {
    fn drop(&mut self) {
        // Removes the note before the copy's memory is used for another save.
        self.noted = None;
    }
}

/// When a save failed.
enum Failed {
    /// Before the other ranks could count on this one, or on rank 0.
    Alone(Error),
    /// Afterwards: this rank's part is durable, and rank 0 decides.
    Waiting(Error),
}

impl Failed {
    fn error(&self) -> &Error {
        let (Failed::Alone(error) | Failed::Waiting(error)) = self;
        error
    }

    fn into_error(self) -> Error {
        let (Failed::Alone(error) | Failed::Waiting(error)) = self;
        error
    }
}

/// Commits the saves of one writer.
pub(crate) struct Committer {
    pub(crate) shared: Arc<Shared>,
    pub(crate) writer: Writer,
    /// The lease of the folder's checkpoints; only rank 0 has one, and only if the file system supports
    /// locks.
    lease: Option<Arc<Lease>>,
    /// Rank 0's position among the branches.
    branching: Branching,
    /// A branch that a save began and that isn't recorded yet as the current one, with that save's order.
    begun: Option<(u64, Line)>,
    /// Checkpoints that this process committed or checked; retention doesn't read them again.
    known_good: BTreeSet<u64>,
    /// Checkpoints that retention has renamed; their bytes are removed after the save has been reported.
    retired: Vec<Step>,
    /// The error of a failed removal; reported with the next save.
    not_cleared: Option<Error>,
    /// Rank 0: the folders of its own refusals. The others may read these until all ranks have begun a later
    /// save.
    refused: Vec<PathBuf>,
}

impl Committer {
    pub(crate) fn new(shared: Arc<Shared>, writer: Writer, lease: Option<Arc<Lease>>) -> Self {
        Committer {
            shared,
            writer,
            lease,
            branching: Branching::default(),
            begun: None,
            known_good: BTreeSet::new(),
            retired: Vec::new(),
            not_cleared: None,
            refused: Vec::new(),
        }
    }

    /// Removes what dead writers left: on every rank its own files of this tag, on rank 0 everything of lower
    /// tags.
    pub(crate) fn clear_leftovers(&self) -> Result<(), Error> {
        let (disk, root) = (&self.shared.disk, &self.shared.root);
        for name in list_names(root)? {
            let is_dead = |partial: layout::Partial| {
                partial.tag < self.writer.tag
                    || partial.tag == self.writer.tag
                        && (self.writer.world_size == 1 || partial.world_size != self.writer.world_size)
            };
            let partial = layout::Partial::parse(&name);
            if self.writer.rank == 0 && (partial.is_some_and(is_dead) || name.starts_with(layout::DELETED_PREFIX)) {
                disk.remove_folder(&root.join(&name))?;
            } else if partial.is_some_and(|partial| partial.tag == self.writer.tag) {
                self.remove_own_files(&root.join(&name))?;
                // Refusals from before this store was opened concern saves in which it has no part.
                self.remove_refusals(&root.join(&name))?;
            }
        }
        Ok(())
    }

    fn remove_own_files(&self, partial: &Path) -> Result<(), Error> {
        let Writer { rank, world_size, .. } = self.writer;
        let names = [layout::index_file(rank, world_size), layout::refusal_file(rank, world_size)]
            .into_iter()
            .chain((0..FILES_MAX).map(|file| layout::rank_file(rank, world_size, file)));
        // The index goes first: a shard without one is never committed.
        for (place, name) in names.enumerate() {
            let paths = [partial.join(&name), layout::aside(partial, &name)];
            // Files are numbered without gaps.
            if place > 2 && !paths.iter().any(|path| path.exists()) {
                break;
            }
            paths.iter().try_for_each(|path| self.shared.disk.remove_file(path))?;
        }
        Ok(())
    }

    /// Rank 0: removes the refusals of earlier saves. Called once all ranks have published for a later save,
    /// so all know how the earlier ones ended.
    fn clear_refused(&mut self, partial: &Path) -> Result<(), Error> {
        while let Some(refused) = self.refused.pop() {
            if refused == partial {
                self.remove_refusals(partial)?;
            } else {
                self.shared.disk.remove_folder(&refused)?;
            }
        }
        Ok(())
    }

    fn remove_refusals(&self, partial: &Path) -> Result<(), Error> {
        let names = list_names(partial).unwrap_or_default();
        let mut refusals = names.iter().filter(|name| layout::is_refusal(name));
        refusals.try_for_each(|refusal| self.shared.disk.remove_file(&partial.join(refusal)))
    }

    /// Tells the other ranks of the gang that this rank doesn't take part in a save.
    pub(crate) fn refuse(&mut self, turn: Turn, reason: Reason) -> Result<(), Error> {
        self.shared.disk.check_poison()?;
        let partial = self.shared.root.join(self.writer.partial(turn.step).to_string());
        self.tell(&partial, turn, reason)
    }

    fn tell(&mut self, partial: &Path, turn: Turn, reason: Reason) -> Result<(), Error> {
        if self.writer.rank == 0 && !self.refused.iter().any(|refused| refused == partial) {
            if self.refused.len() == REFUSED_MAX {
                self.shared.disk.remove_folder(&self.refused.remove(0))?;
            }
            self.refused.push(partial.to_owned());
        }
        refusal::publish(&self.shared.disk, partial, self.writer, turn, reason)
    }

    /// Removes what a failed save had written, and tells the others.
    fn abandon(&mut self, partial: &Path, work: &Work, failed: &Failed) -> Result<(), Error> {
        if self.writer.world_size == 1 {
            return self.shared.disk.remove_folder(partial);
        }
        match failed {
            Failed::Alone(_) => {}
            Failed::Waiting(Error::Disagreement { .. } | Error::Abandoned { .. }) => {
                return self.remove_own_files(partial);
            }
            Failed::Waiting(_) => return Ok(()),
        }
        let removed = self.remove_own_files(partial);
        self.tell(partial, work.turn(), Reason::of(failed.error(), self.writer.rank))?;
        removed
    }

    /// Makes `work` durable.
    pub(crate) fn run(&mut self, mut work: Work) -> Result<Saved, Error> {
        self.shared.disk.check_poison()?;
        let partial = self.shared.root.join(self.writer.partial(work.step).to_string());
        let committed = self.write_and_commit(&partial, &mut work);
        if let Err(failed) = &committed
            && self.shared.disk.check_poison().is_ok()
        {
            // The save's own error is reported; what can't be removed now is removed at the next open.
            let _ = self.abandon(&partial, &work, failed);
        }
        drop(work);
        let (manifest, began) = committed.map_err(Failed::into_error)?;
        if self.writer.rank == 0 && self.shared.options.archive.is_some() {
            self.shared.tiering.want(manifest.step);
        }
        Ok(Saved { retention: self.retain(manifest.step), began, ..Saved::of(&manifest) })
    }

    fn write_and_commit(&mut self, partial: &Path, work: &mut Work) -> Result<(Manifest, Option<Began>), Failed> {
        let Writer { rank, world_size, .. } = self.writer;
        let index = self.write(partial, work).map_err(Failed::Alone)?;
        if let Some(gate) = work.gate.take() {
            let passed = gate.pass(&self.shared.closing, SLOT_WAIT_MAX);
            passed.map_err(|unconfirmed| Failed::Alone(given_up(work.step, unconfirmed)))?;
            // Only now is the copy known to be whole, so that others may finish the save.
            work.noted = Noted::write(work, &self.shared.root, (self.shared.options.run(), self.writer));
        }
        if rank > 0 {
            // Rank 0 can't commit before it has seen the index: a manifest that exists by now is an earlier
            // checkpoint of this step.
            let earlier = if work.is_taken_over { None } else { identity(&self.manifest_path(work.step)) };
            let name = layout::index_file(rank, world_size);
            let text = seal_within(&index, "bytes of shard index").map_err(Failed::Alone)?;
            self.shared.disk.publish(partial, &name, &text).map_err(Failed::Alone)?;
            let committed = self.await_commit(partial, work.turn(), &index, earlier);
            return committed.map(|manifest| (manifest, None)).map_err(Failed::Waiting);
        }
        self.gather_and_commit(partial, work, index).map_err(Failed::Alone)
    }

    /// Writes this rank's shard.
    fn write(&self, partial: &Path, work: &Work) -> Result<ShardIndex, Error> {
        let Writer { rank, world_size, tag } = self.writer;
        let Work { step, staged, plan, turn, alike, .. } = work;
        let disk = &self.shared.disk;
        disk.create_folder(partial)?;
        let (published, mut records) = std::thread::scope(|scope| {
            let hashing = scope.spawn(|| staged.records(rank));
            let published = staged.images().enumerate().try_for_each(|(file, image)| {
                disk.publish_image(partial, &layout::rank_file(rank, world_size, file), image)
            });
            (published, hashing.join().expect("hashing doesn't panic"))
        });
        published?;
        let version = version_of(&records);
        let more = records.split_off(1);
        Ok(ShardIndex {
            magic: INDEX_MAGIC.to_owned(),
            version,
            step: step.0,
            writer: tag,
            world_size,
            plan_blake3: *plan,
            turn: Some(*turn),
            alike: alike.as_ref().map(|alike| alike.digests.clone()),
            shard: records.pop().expect("a save has a file, if one without tensors"),
            more,
        })
    }

    /// Rank 0: waits for the other ranks' shards, and commits them with its own.
    fn gather_and_commit(
        &mut self,
        partial: &Path,
        work: &Work,
        index: ShardIndex,
    ) -> Result<(Manifest, Option<Began>), Error> {
        let mut shards: Vec<ShardRecord> = index.files().cloned().collect();
        for rank in 1..self.writer.world_size {
            shards.extend(self.await_shards(partial, rank, &index, work)?);
        }
        within("files of tensors", shards.len(), FILES_MAX)?;
        let named = (self.shared.options.run(), (self.shared.options.clock)());
        let Next { lineage, is_first, began } =
            self.branching.next(&self.shared.root, work.step, work.resumed.clone(), named)?;
        let notes = (work.metadata.clone(), work.metadata_types.clone());
        let manifest = Manifest::over(work.step, self.writer.tag, shards, notes, Some(lineage.clone()));
        check_parts(&manifest.tensors())?;
        self.clear_refused(partial)?;
        let manifest = self.commit(partial, manifest)?;
        self.branching.committed(&lineage, work.step);
        if is_first {
            self.begun = Some((lineage.order, lineage.line));
        }
        Ok((manifest, began))
    }

    /// Rank 0: publishes the manifest, then renames the folder.
    fn commit(&self, partial: &Path, manifest: Manifest) -> Result<Manifest, Error> {
        let (disk, root) = (&self.shared.disk, &self.shared.root);
        self.check_not_superseded(&manifest)?;
        let text = seal_within(&manifest, "bytes of manifest")?;
        self.number_files(partial, &manifest)?;
        disk.publish(partial, layout::MANIFEST, &text)?;
        for rank in 1..manifest.world_size {
            disk.remove_file(&partial.join(layout::index_file(rank, manifest.world_size)))?;
        }
        disk.sync_folder(partial)?;
        self.lease.as_ref().map_or(Ok(()), |lease| lease.check())?;
        disk.rename_folder(partial, &root.join(layout::checkpoint_folder(manifest.step)))?;
        disk.sync_folder(root)?;
        // If a checkpoint of this step existed, the rename has moved it to the partial folder's name.
        disk.remove_folder(partial)?;
        Ok(manifest)
    }

    /// Renames the files of ranks that have several to the numbers in the manifest.
    fn number_files(&self, partial: &Path, manifest: &Manifest) -> Result<(), Error> {
        if manifest.shards.len() == manifest.world_size as usize {
            return Ok(());
        }
        let mut of_rank = (0, 0);
        for (name, record) in manifest.files() {
            of_rank = if of_rank.0 == record.rank { of_rank } else { (record.rank, 0) };
            let now = layout::rank_file(record.rank, manifest.world_size, of_rank.1);
            self.shared.disk.rename_file(&partial.join(now), &partial.join(name))?;
            of_rank.1 += 1;
        }
        Ok(())
    }

    /// Refuses a commit that would replace a checkpoint of a newer attempt.
    fn check_not_superseded(&self, mine: &Manifest) -> Result<(), Error> {
        let run = |manifest: &Manifest| manifest.lineage.as_ref().map(|lineage| lineage.run.clone());
        // Attempts of another run have their own numbers, which can't be compared with this run's.
        let is_newer = |there: &Manifest| {
            there.writer > mine.writer && run(there).is_none_or(|there| run(mine).is_none_or(|mine| mine == there))
        };
        match check(&self.shared.root, mine.step) {
            Ok((Some(there), report)) if is_newer(&there) && report.is_good() => {
                Err(Error::Superseded { step: Step(mine.step), writer: mine.writer, by: there.writer })
            }
            Ok(_) | Err(Error::NotFound { .. }) => Ok(()),
            Err(error) => Err(error),
        }
    }

    fn retain(&mut self, committed: u64) -> Result<Pruned, Error> {
        self.known_good.insert(committed);
        let (disk, root) = (&self.shared.disk, &self.shared.root);
        if let Some((order, line)) = &self.begun {
            write_current(disk, root, *order, line)?;
            self.begun = None;
        }
        match self.shared.options.keep {
            Some(keep) if self.writer.rank == 0 => {
                if let Some(error) = self.not_cleared.take() {
                    return Err(error);
                }
                let history = self.branching.heads.history(root)?;
                let policy = PrunePolicy::Keep { last: keep, rules: self.shared.options.rules.clone() };
                let pruned = prune::plan(&history, &policy, &Goodness { root, known: &self.known_good })?;
                let pruned = pruned.but(&self.shared.tiering.needed());
                prune::retire(disk, root, &pruned.removed)?;
                self.retired.clone_from(&pruned.removed);
                self.known_good.retain(|step| pruned.kept.contains(&Step(*step)));
                Ok(pruned)
            }
            _ => Ok(Pruned::default()),
        }
    }

    /// Removes the bytes of checkpoints that retention has renamed. This takes as long as the file system
    /// needs to free the blocks, so it runs after the save has been reported. What can't be removed now is
    /// removed at the next open.
    pub(crate) fn clear_retired(&mut self) {
        let retired = std::mem::take(&mut self.retired);
        self.not_cleared = prune::clear(&self.shared.disk, &self.shared.root, &retired).err();
    }
}

fn given_up(step: Step, unconfirmed: Unconfirmed) -> Error {
    match unconfirmed {
        Unconfirmed::Changed(what) => Error::Changed { step, what },
        Unconfirmed::GivenUp => Error::Closed,
    }
}
