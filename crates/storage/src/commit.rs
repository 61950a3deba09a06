//! The background half of a save: shard, index, and on rank 0 the manifest and the final name.
//!
//! Each rank publishes its shard and then the shard's index in the gang's partial folder. Rank 0 waits for all
//! indexes, publishes the manifest there, and renames the folder. The others wait until they see a manifest under the
//! final name that holds their own shard. Whoever fails tells the others (see `refusal`), so that none waits for what won't come.
//! A save that fails clears away what it had written, unless an fsync failed: then nothing more is touched. Once its index is
//! published, a rank that only waited in vain leaves its shard: rank 0 may be about to commit it.

use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use gangline_base::Step;

use crate::alike::Alike;
use crate::check::check;
use crate::disk::Disk;
use crate::manifest::{
    INDEX_MAGIC, Manifest, ShardIndex, ShardRecord, check_parts, read_manifest, read_sealed, seal, version_of,
};
use crate::options::{Options, Writer};
use crate::prune::{self, PrunePolicy, list_names};
use crate::refusal::{self, Reason, Turn};
use crate::staged::Staged;
use crate::staging::Noted;
use crate::tiering::Tiering;
use crate::{Digest, Error, Flaw, Pruned, Saved, layout};

/// Between two looks at a file another rank is to write.
const LOOK_INTERVAL: Duration = Duration::from_millis(5);

/// The most saves in a row that came to nothing whose refusals are kept.
const REFUSED_MAX: usize = 64;

/// What a store's handle and its thread share.
pub(crate) struct Shared {
    pub(crate) root: PathBuf,
    pub(crate) options: Options,
    pub(crate) disk: Disk,
    /// Set when the store is dropped: stop waiting for other ranks.
    pub(crate) closing: Mutex<bool>,
    pub(crate) closed: Condvar,
    /// What goes to the archive.
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

/// A save, copied and ready to be written.
pub(crate) struct Work {
    pub(crate) step: Step,
    /// This rank's part.
    pub(crate) staged: Staged,
    pub(crate) metadata: BTreeMap<String, String>,
    pub(crate) plan: Digest,
    /// Of the times in a row that this step was to be saved, which one this is.
    pub(crate) turn: u32,
    /// What all ranks hold alike; none for a lone writer.
    pub(crate) alike: Option<Alike>,
    /// Whether another process copied it: what that one had begun counts.
    pub(crate) is_taken_over: bool,
    /// What others need to finish it, until it has ended.
    pub(crate) noted: Option<Noted>,
}

impl Work {
    fn turn(&self) -> Turn {
        Turn { step: self.step, number: self.turn }
    }
}

impl Drop for Work {
    fn drop(&mut self) {
        // Before its copy is used for another save.
        self.noted = None;
    }
}

/// How a save failed.
enum Failed {
    /// Before the others of the gang could count on this rank, or on rank 0.
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

/// What tells a file from another that takes its name while it is there.
fn identity(path: &Path) -> Option<(u64, u64)> {
    std::fs::metadata(path).ok().map(|found| (found.dev(), found.ino()))
}

/// Does the saves of one writer.
pub(crate) struct Committer {
    shared: Arc<Shared>,
    writer: Writer,
    /// Checkpoints this process committed or checked: retention needn't read them again.
    known_good: BTreeSet<u64>,
    /// Checkpoints that retention took the names of, and whose bytes go once the save has been reported.
    retired: Vec<Step>,
    /// Why some of them couldn't be removed; told with the next save.
    not_cleared: Option<Error>,
    /// Rank 0: where refusals of its own lie. The others may read them until all have begun a later save.
    refused: Vec<PathBuf>,
}

impl Committer {
    pub(crate) fn new(shared: Arc<Shared>, writer: Writer) -> Self {
        Committer {
            shared,
            writer,
            known_good: BTreeSet::new(),
            retired: Vec::new(),
            not_cleared: None,
            refused: Vec::new(),
        }
    }

    /// Clears away what dead writers left: on every rank its own files of this tag, on rank 0 everything of lower tags.
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
                // What the gang's ranks told each other before this one opened the store is of saves that it has no part in.
                self.remove_refusals(&root.join(&name))?;
            }
        }
        Ok(())
    }

    fn remove_own_files(&self, partial: &Path) -> Result<(), Error> {
        let Writer { rank, world_size, .. } = self.writer;
        // The index goes first: without it the shard is nobody's.
        for name in [layout::index_file, layout::shard_file, layout::refusal_file].map(|name| name(rank, world_size)) {
            self.shared.disk.remove_file(&partial.join(&name))?;
            self.shared.disk.remove_file(&partial.join(format!("{}{name}", layout::ASIDE_PREFIX)))?;
        }
        Ok(())
    }

    /// Rank 0, once all ranks have told of a later save and so know the end of earlier ones: removes what is left of those.
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

    /// Tells the others of the gang that this rank has no part in a save.
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

    /// Clears away what a failed save had written, and tells the others.
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
    pub(crate) fn run(&mut self, work: Work) -> Result<Saved, Error> {
        self.shared.disk.check_poison()?;
        let partial = self.shared.root.join(self.writer.partial(work.step).to_string());
        let committed = self.write_and_commit(&partial, &work);
        if let Err(failed) = &committed
            && self.shared.disk.check_poison().is_ok()
        {
            // The save has failed already and that is what is reported; what can't be removed now goes at the next open.
            let _ = self.abandon(&partial, &work, failed);
        }
        drop(work);
        let manifest = committed.map_err(Failed::into_error)?;
        if self.writer.rank == 0 && self.shared.options.archive.is_some() {
            self.shared.tiering.want(manifest.step);
        }
        Ok(Saved { retention: self.retain(manifest.step), ..Saved::of(&manifest) })
    }

    fn write_and_commit(&mut self, partial: &Path, work: &Work) -> Result<Manifest, Failed> {
        let Writer { rank, world_size, .. } = self.writer;
        let index = self.write(partial, work).map_err(Failed::Alone)?;
        if rank > 0 {
            // Rank 0 can't commit before it has seen the index: what is there by now is an earlier checkpoint of this step.
            let earlier = if work.is_taken_over { None } else { identity(&self.manifest_path(work.step)) };
            let name = layout::index_file(rank, world_size);
            self.shared.disk.publish(partial, &name, &seal(&index)).map_err(Failed::Alone)?;
            return self.await_commit(partial, work.turn(), &index.shard, earlier).map_err(Failed::Waiting);
        }
        self.gather_and_commit(partial, work, index).map_err(Failed::Alone)
    }

    /// Writes this rank's shard.
    fn write(&self, partial: &Path, work: &Work) -> Result<ShardIndex, Error> {
        let Writer { rank, world_size, tag } = self.writer;
        let Work { step, staged, plan, turn, alike, .. } = work;
        let disk = &self.shared.disk;
        disk.create_folder(partial)?;
        let (published, record) = std::thread::scope(|scope| {
            let hashing = scope.spawn(|| staged.record(rank));
            let published = disk.publish_image(partial, &layout::shard_file(rank, world_size), staged);
            (published, hashing.join().expect("hashing doesn't panic"))
        });
        published?;
        Ok(ShardIndex {
            magic: INDEX_MAGIC.to_owned(),
            version: version_of(std::slice::from_ref(&record)),
            step: step.0,
            writer: tag,
            world_size,
            plan_blake3: *plan,
            turn: Some(*turn),
            alike: alike.as_ref().map(|alike| alike.digests.clone()),
            shard: record,
        })
    }

    /// Rank 0: waits for the other ranks' shards, and commits them with its own.
    fn gather_and_commit(&mut self, partial: &Path, work: &Work, index: ShardIndex) -> Result<Manifest, Error> {
        let mut shards = vec![index.shard.clone()];
        for rank in 1..self.writer.world_size {
            shards.push(self.await_shard(partial, rank, &index, work)?);
        }
        let manifest = Manifest::over(work.step, self.writer.tag, shards, work.metadata.clone());
        check_parts(&manifest.tensors())?;
        self.clear_refused(partial)?;
        self.commit(partial, manifest)
    }

    /// Rank 0: waits for another rank's index, which has to be of the same save as `mine`.
    fn await_shard(&self, partial: &Path, rank: u32, mine: &ShardIndex, work: &Work) -> Result<ShardRecord, Error> {
        let path = partial.join(layout::index_file(rank, self.writer.world_size));
        let step = work.step;
        let index: ShardIndex =
            self.await_file(step, rank, || match read_sealed::<ShardIndex>(&path, INDEX_MAGIC) {
                // What the time before left, until the rank writes another in its place.
                Ok(index) if index.turn.is_some_and(|turn| turn < work.turn) => {
                    Err(Error::corrupt(&path, Flaw::Missing))
                }
                Err(missing @ Error::Corrupt { flaw: Flaw::Missing, .. }) => {
                    refusal::check(partial, rank, self.writer, work.turn()).and(Err(missing))
                }
                found_or_failed => found_or_failed,
            })?;
        let is_same_save = (index.step, index.writer, index.world_size, index.shard.rank)
            == (mine.step, mine.writer, mine.world_size, rank);
        if !is_same_save {
            return Err(Error::corrupt(&path, Flaw::Malformed { what: "it is of another save" }));
        }
        if index.turn.is_some_and(|turn| turn > work.turn) {
            refusal::check(partial, rank, self.writer, work.turn())?;
            return Err(Error::Abandoned { step, rank, why: "it has given it up and begun anew".to_owned() });
        }
        let difference = match (&work.alike, &index.alike) {
            (Some(mine), Some(others)) => mine.difference(others),
            _ => None,
        };
        let is_other = index.plan_blake3 != mine.plan_blake3;
        match difference.or_else(|| is_other.then(|| "its tensors or metadata".to_owned())) {
            Some(what) => Err(Error::Disagreement { step, rank, what }),
            None => Ok(index.shard),
        }
    }

    /// Another rank: waits until rank 0 has committed a manifest that holds `mine`.
    fn await_commit(
        &self,
        partial: &Path,
        turn: Turn,
        mine: &ShardRecord,
        earlier: Option<(u64, u64)>,
    ) -> Result<Manifest, Error> {
        let step = turn.step;
        let path = self.manifest_path(step);
        let is_ours = |manifest: &Manifest| {
            manifest.writer == self.writer.tag && manifest.shards.get(mine.rank as usize) == Some(mine)
        };
        // An older checkpoint of this step, even a broken one, may be there until rank 0's takes its place.
        self.await_file(step, 0, || match read_manifest(&path, step.0) {
            Ok(manifest) if is_ours(&manifest) && (earlier.is_none() || identity(&path) != earlier) => Ok(manifest),
            Ok(_) | Err(Error::Corrupt { .. }) => {
                refusal::check(partial, 0, self.writer, turn).and(Err(Error::corrupt(&path, Flaw::Missing)))
            }
            Err(error) => Err(error),
        })
    }

    fn manifest_path(&self, step: Step) -> PathBuf {
        self.shared.root.join(layout::checkpoint_folder(step.0)).join(layout::MANIFEST)
    }

    /// Looks again and again while `look` says that the file is missing.
    fn await_file<T>(&self, step: Step, rank: u32, look: impl Fn() -> Result<T, Error>) -> Result<T, Error> {
        let started = Instant::now();
        loop {
            match look() {
                Err(Error::Corrupt { flaw: Flaw::Missing, .. }) => {}
                found_or_failed => return found_or_failed,
            }
            if started.elapsed() >= self.shared.options.commit_timeout {
                return Err(Error::Timeout { step, rank, waited: self.shared.options.commit_timeout });
            }
            let closing = self.shared.closing.lock().unwrap_or_else(PoisonError::into_inner);
            let (closing, _) = self
                .shared
                .closed
                .wait_timeout_while(closing, LOOK_INTERVAL, |closing| !*closing)
                .unwrap_or_else(PoisonError::into_inner);
            if *closing {
                return Err(Error::Closed);
            }
        }
    }

    /// Rank 0: the manifest, then the final name.
    fn commit(&self, partial: &Path, manifest: Manifest) -> Result<Manifest, Error> {
        let (disk, root) = (&self.shared.disk, &self.shared.root);
        self.check_not_superseded(manifest.step)?;
        disk.publish(partial, layout::MANIFEST, &seal(&manifest))?;
        for rank in 1..manifest.world_size {
            disk.remove_file(&partial.join(layout::index_file(rank, manifest.world_size)))?;
        }
        disk.sync_folder(partial)?;
        disk.rename_folder(partial, &root.join(layout::checkpoint_folder(manifest.step)))?;
        disk.sync_folder(root)?;
        // If a checkpoint of this step was there, it has taken the partial folder's name.
        disk.remove_folder(partial)?;
        Ok(manifest)
    }

    /// A process of an attempt that is over must not replace what its successor saved.
    fn check_not_superseded(&self, step: u64) -> Result<(), Error> {
        match check(&self.shared.root, step) {
            Ok((Some(manifest), report)) if manifest.writer > self.writer.tag && report.is_good() => {
                Err(Error::Superseded { step: Step(step), writer: self.writer.tag, by: manifest.writer })
            }
            Ok(_) | Err(Error::NotFound { .. }) => Ok(()),
            Err(error) => Err(error),
        }
    }

    fn retain(&mut self, committed: u64) -> Result<Pruned, Error> {
        self.known_good.insert(committed);
        match self.shared.options.keep {
            Some(keep) if self.writer.rank == 0 => {
                if let Some(error) = self.not_cleared.take() {
                    return Err(error);
                }
                let pruned = prune::plan(&self.shared.root, PrunePolicy { keep }, &self.known_good)?;
                let pruned = pruned.but(&self.shared.tiering.needed());
                prune::retire(&self.shared.disk, &self.shared.root, &pruned.removed)?;
                self.retired.clone_from(&pruned.removed);
                self.known_good.retain(|step| pruned.kept.contains(&Step(*step)));
                Ok(pruned)
            }
            _ => Ok(Pruned::default()),
        }
    }

    /// Removes what retention took the names of. It takes as long as the file system needs to free the blocks, and nobody
    /// needs to wait for that. What can't be removed now goes at the next open.
    pub(crate) fn clear_retired(&mut self) {
        let retired = std::mem::take(&mut self.retired);
        self.not_cleared = prune::clear(&self.shared.disk, &self.shared.root, &retired).err();
    }
}
