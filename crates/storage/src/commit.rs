//! The background half of a save: shard, index, and on rank 0 the manifest and the final name.
//!
//! Each rank publishes its shard and then the shard's index in the gang's partial folder. Rank 0 waits for all
//! indexes, publishes the manifest there, and renames the folder. The others wait until they see a manifest under the
//! final name that holds their own shard. A save that fails clears away what it had written, unless an fsync failed
//! then nothing more is touched.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use gangline_base::Step;

use crate::branching::{Began, Branching, Next};
use crate::check::check;
use crate::course::write_current;
use crate::disk::Disk;
use crate::error::within;
use crate::lease::Lease;
use crate::lineage::{Line, Origin};
use crate::manifest::{
    FILES_MAX, INDEX_MAGIC, Manifest, ShardIndex, ShardRecord, check_parts, read_manifest, read_sealed, seal_within,
    version_of,
};
use crate::options::{Options, Writer};
use crate::prune::{self, Goodness, PrunePolicy, list_names};
use crate::staged::Staged;
use crate::staging::Noted;
use crate::tiering::Tiering;
use crate::{Digest, Error, Flaw, NoteTypes, Pruned, Saved, layout};

/// Between two looks at a file another rank is to write.
const LOOK_INTERVAL: Duration = Duration::from_millis(5);

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
    pub(crate) metadata_types: NoteTypes,
    pub(crate) plan: Digest,
    /// The checkpoint that was loaded since the save before, if one was: see [`Store::resume_from`](crate::Store::resume_from).
    pub(crate) resumed: Option<Origin>,
    /// What others need to finish it, until it has ended.
    pub(crate) noted: Option<Noted>,
}

impl Drop for Work {
    fn drop(&mut self) {
        // Before its copy is used for another save.
        self.noted = None;
    }
}

/// Does the saves of one writer.
pub(crate) struct Committer {
    shared: Arc<Shared>,
    writer: Writer,
    /// The right to change the folder's checkpoints; rank 0's, unless the file system keeps no locks.
    lease: Option<Arc<Lease>>,
    /// Rank 0's place among the branches.
    branching: Branching,
    /// A branch that a save began and that isn't written down yet as the current one, with that save's order.
    begun: Option<(u64, Line)>,
    /// Checkpoints this process committed or checked: retention needn't read them again.
    known_good: BTreeSet<u64>,
    /// Checkpoints that retention took the names of, and whose bytes go once the save has been reported.
    retired: Vec<Step>,
    /// Why some of them couldn't be removed; told with the next save.
    not_cleared: Option<Error>,
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
            }
        }
        Ok(())
    }

    fn remove_own_files(&self, partial: &Path) -> Result<(), Error> {
        let Writer { rank, world_size, .. } = self.writer;
        // The index goes first: without it the shard is nobody's.
        let names = std::iter::once(layout::index_file(rank, world_size))
            .chain((0..FILES_MAX).map(|file| layout::rank_file(rank, world_size, file)));
        for (place, name) in names.enumerate() {
            let paths = [partial.join(&name), layout::aside(partial, &name)];
            // Files come one after the other.
            if place > 1 && !paths.iter().any(|path| path.exists()) {
                break;
            }
            paths.iter().try_for_each(|path| self.shared.disk.remove_file(path))?;
        }
        Ok(())
    }

    /// Makes `work` durable.
    pub(crate) fn run(&mut self, work: Work) -> Result<Saved, Error> {
        self.shared.disk.check_poison()?;
        let partial = self.shared.root.join(self.writer.partial(work.step).to_string());
        let committed = self.write_and_commit(&partial, &work);
        if committed.is_err() && self.shared.disk.check_poison().is_ok() {
            // The save has failed already and that is what is reported; what can't be removed now goes at the next open.
            let _ = if self.writer.rank == 0 {
                self.shared.disk.remove_folder(&partial)
            } else {
                self.remove_own_files(&partial)
            };
        }
        drop(work);
        let (manifest, began) = committed?;
        if self.writer.rank == 0 && self.shared.options.archive.is_some() {
            self.shared.tiering.want(manifest.step);
        }
        Ok(Saved { retention: self.retain(manifest.step), began, ..Saved::of(&manifest) })
    }

    fn write_and_commit(&mut self, partial: &Path, work: &Work) -> Result<(Manifest, Option<Began>), Error> {
        let Writer { rank, world_size, tag } = self.writer;
        let Work { step, staged, plan, .. } = work;
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
        let index = ShardIndex {
            magic: INDEX_MAGIC.to_owned(),
            version,
            step: step.0,
            writer: tag,
            world_size,
            plan_blake3: *plan,
            shard: records.pop().expect("a save has a file, if one without tensors"),
            more,
        };
        if rank > 0 {
            let text = seal_within(&index, "bytes of shard index")?;
            disk.publish(partial, &layout::index_file(rank, world_size), &text)?;
            return Ok((self.await_commit(*step, &index)?, None));
        }
        let mut shards: Vec<ShardRecord> = index.files().cloned().collect();
        for rank in 1..world_size {
            shards.extend(self.await_shards(partial, rank, &index)?);
        }
        within("files of tensors", shards.len(), FILES_MAX)?;
        let named = (self.shared.options.run(), (self.shared.options.clock)());
        let Next { lineage, is_first, began } =
            self.branching.next(&self.shared.root, *step, work.resumed.clone(), named)?;
        let notes = (work.metadata.clone(), work.metadata_types.clone());
        let manifest = Manifest::over(*step, tag, shards, notes, Some(lineage.clone()));
        check_parts(&manifest.tensors())?;
        let manifest = self.commit(partial, manifest)?;
        self.branching.committed(&lineage, *step);
        if is_first {
            self.begun = Some((lineage.order, lineage.line));
        }
        Ok((manifest, began))
    }

    /// Rank 0: waits for another rank's index, which has to be of the same save as `mine`.
    fn await_shards(&self, partial: &Path, rank: u32, mine: &ShardIndex) -> Result<Vec<ShardRecord>, Error> {
        let path = partial.join(layout::index_file(rank, self.writer.world_size));
        let step = Step(mine.step);
        let index: ShardIndex = self.await_file(step, rank, || read_sealed(&path, INDEX_MAGIC))?;
        let is_same_save = (index.step, index.writer, index.world_size) == (mine.step, mine.writer, mine.world_size)
            && index.files().all(|file| file.rank == rank);
        if !is_same_save {
            return Err(Error::corrupt(&path, Flaw::Malformed { what: "it is of another save" }));
        }
        if index.plan_blake3 != mine.plan_blake3 {
            return Err(Error::Disagreement { step, rank });
        }
        Ok(std::iter::once(index.shard).chain(index.more).collect())
    }

    /// Another rank: waits until rank 0 has committed a manifest that holds `mine`.
    fn await_commit(&self, step: Step, mine: &ShardIndex) -> Result<Manifest, Error> {
        let path = self.shared.root.join(layout::checkpoint_folder(step.0)).join(layout::MANIFEST);
        let is_ours = |manifest: &Manifest| {
            let files = manifest.shards.iter().filter(|file| file.rank == mine.shard.rank);
            manifest.writer == self.writer.tag && files.eq(mine.files())
        };
        // An older checkpoint of this step, even a broken one, may be there until rank 0's takes its place.
        self.await_file(step, 0, || match read_manifest(&path, step.0) {
            Ok(manifest) if is_ours(&manifest) => Ok(manifest),
            Ok(_) | Err(Error::Corrupt { .. }) => Err(Error::corrupt(&path, Flaw::Missing)),
            Err(error) => Err(error),
        })
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
        // If a checkpoint of this step was there, it has taken the partial folder's name.
        disk.remove_folder(partial)?;
        Ok(manifest)
    }

    /// Gives the files of ranks that have several the numbers by which the manifest knows them.
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

    /// A process of an attempt that is over must not replace what its successor saved.
    fn check_not_superseded(&self, mine: &Manifest) -> Result<(), Error> {
        let run = |manifest: &Manifest| manifest.lineage.as_ref().map(|lineage| lineage.run.clone());
        // Attempts of another run are counted from 1 as well, and say nothing of this one's.
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
                let course = self.branching.heads.course(root)?;
                let policy = PrunePolicy::Keep { last: keep, rules: self.shared.options.rules.clone() };
                let pruned = prune::plan(&course, &policy, &Goodness { root, known: &self.known_good })?;
                let pruned = pruned.but(&self.shared.tiering.needed());
                prune::retire(disk, root, &pruned.removed)?;
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
