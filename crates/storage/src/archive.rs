//! The archive: long-term storage of checkpoints in fewer bytes, from which they are restored bit for bit.
//!
//! Keeps A-6 (a checkpoint is in the archive once its catalog, which is put last, is there; deletion never
//! removes data that a remaining one needs), A-9 (catalogs have a version and are not the core types) and
//! A-10 (objects, counts, depths, tries and memory are limited; a push or pull holds a few chunks and a pack
//! in memory, never a checkpoint).
//!
//! An archive is a set of named objects, in a folder or in S3. `catalogs/step-....json` describes a
//! checkpoint's content (`catalog`); `packs/<hash>` are 32 to 64 MiB of coded chunks. Whole tensors and
//! chunks that the archive already has are only referred to. New chunks are coded against the same tensor in
//! the nearest checkpoint, on their own, or not at all, whichever pays; a bf16 copy that follows from its
//! fp32 master isn't stored. The techniques and their literature are those of `gangline_compression`;
//! content-addressed objects with the catalog put last are common in backup programs (Quinlan and Dorward
//! 2002, "Venti: a new approach to archival storage").
//!
//! An archive may be encrypted (`vault`), from its first push on. One program at a time changes an archive
//! (`lease`); any number may read it. Objects that are pruned during a read may be gone; the read then
//! reports an error.

mod access;
mod catalog;
mod compaction;
mod contents;
mod draft;
mod encode;
mod error;
mod fence;
mod fetch;
mod known;
mod lease;
mod milestone;
mod pack;
mod prune;
mod pull;
mod push;
mod source;
mod vault;

use std::collections::{BTreeMap, BTreeSet};
use std::num::{NonZeroU64, NonZeroUsize};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use gangline_base::{Bytes, Step, Timestamp};
use gangline_objects::{Link, Policy, Remote};
use serde::Serialize;

use crate::lineage::{Line, Moment};
use crate::options::{Clock, system_time};
use crate::prune::list_steps;
use crate::{Branch, CheckpointInfo, Digest, NoteTypes, Problem, Store, VerifyReport};
use access::{Access, Change};
use fetch::Fetcher;
use lease::Lease;
use prune::{Sweep, Thinning};
use vault::Vault;

pub use crate::retention::{Reason, Rule};
pub(crate) use catalog::Catalog;
pub use error::Error;
pub use gangline_objects::{Requests, Source};
#[cfg(any(test, feature = "fuzz"))]
pub(crate) use lease::parse_lease;
pub use milestone::Milestone;
pub use prune::Pruned;
pub use pull::Pulled;
pub use push::Pushed;
pub use vault::{KeyError, KeyId, KeyShown, Rotated, Rotation, WrappingKey};

/// Options for using an archive.
#[derive(Clone)]
pub struct Options {
    /// The most bytes per second, up and down together; none for no limit.
    pub bytes_per_second_max: Option<NonZeroU64>,
    /// The pause before the first retry; it doubles with each further one.
    pub first_pause: Duration,
    /// Chunks that a push codes in parallel, at most eight. Affects only time and memory.
    pub threads: NonZeroUsize,
    /// Settings for S3, named as in the environment of AWS's own tools (`AWS_REGION`, `AWS_ENDPOINT_URL`,
    /// `AWS_PROFILE`, ...), and `HOME`, the folder of these tools' files. [`gangline_objects::READS_VARIABLE`] among them names the
    /// folder in which requests and the archive's size are noted.
    pub s3: BTreeMap<String, String>,
    /// The wrapping key of an encrypted archive. If it is given for an empty archive, the archive is
    /// encrypted from its first push on.
    pub key: Option<WrappingKey>,
    /// The clock that dates leases; the system's clock by default.
    pub clock: Arc<Clock>,
}

/// The default pause before the first retry.
const FIRST_PAUSE_DEFAULT: Duration = Duration::from_millis(250);

impl Default for Options {
    fn default() -> Self {
        Options {
            bytes_per_second_max: None,
            first_pause: FIRST_PAUSE_DEFAULT,
            threads: NonZeroUsize::MIN,
            s3: BTreeMap::new(),
            key: None,
            clock: Arc::new(system_time),
        }
    }
}

impl std::fmt::Debug for Options {
    /// Omits the settings for S3, which contain secrets.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Options")
            .field("bytes_per_second_max", &self.bytes_per_second_max)
            .field("first_pause", &self.first_pause)
            .field("threads", &self.threads)
            .field("key", &self.key)
            .finish_non_exhaustive()
    }
}

/// An archive of checkpoints in an object store or a folder.
pub struct Archive {
    link: Link,
    threads: NonZeroUsize,
    key: Option<WrappingKey>,
    clock: Arc<Clock>,
    /// The name of this archive's leases; locked while it holds one.
    seat: Mutex<Option<KeyId>>,
    /// The folder in which its size is noted, and its address there.
    notes: Option<(PathBuf, String)>,
}

/// The description of an archived checkpoint, from its catalog.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Archived {
    /// The step after which the state was saved.
    pub step: Step,
    /// When the store committed it.
    pub saved_at: Timestamp,
    /// The total size of its shards.
    pub bytes: Bytes,
    /// The total size of the packs that it needs, including their chunks of other checkpoints.
    pub packs: Bytes,
    /// The number of its tensors.
    pub tensors: usize,
    /// Hash over the step and every tensor.
    pub content_hash: Digest,
    /// The branch that it belongs to.
    pub branch: Branch,
    /// Whether the branch of the newest save doesn't go back to it; set only in a list.
    pub is_abandoned: bool,
    /// Metadata that the trainer saved with the tensors.
    pub metadata: BTreeMap<String, String>,
    /// The types of the metadata values that are not text.
    pub metadata_types: NoteTypes,
    /// Set if only a part is left: training can't resume from it.
    pub milestone: Option<Milestone>,
}

/// A checkpoint's catalog, or the reason why it can't be read.
#[derive(Debug)]
pub struct Listed {
    /// The step in the catalog's name.
    pub step: Step,
    /// The content of the catalog.
    pub catalog: Result<Archived, Error>,
}

/// Refuses a folder that holds a store's checkpoints: an archive's objects would be mixed with them.
fn refuse_store(path: &Path) -> Result<(), Error> {
    let has_catalogs = path.join("catalogs").is_dir();
    // If the folder can't be listed, the first operation on it reports the error.
    let is_store = list_steps(path).is_ok_and(|steps| !steps.is_empty());
    if is_store && !has_catalogs { Err(Error::IsStore { path: path.to_owned() }) } else { Ok(()) }
}

impl Archive {
    /// Opens the archive at `s3://bucket/prefix`, `file:///folder` or a path. Creates nothing before the
    /// first push.
    ///
    /// # Errors
    /// [`Error::Address`]; [`Error::IsStore`].
    pub fn open(url: &str, options: &Options) -> Result<Archive, Error> {
        if let Some(path) = gangline_objects::folder_of(url) {
            refuse_store(path)?;
        }
        let folder = gangline_objects::folder_of(url);
        let address = folder.map_or_else(|| url.trim_end_matches('/').to_owned(), address_of);
        // A folder bills nothing.
        let counted = if folder.is_some() { &BTreeMap::new() } else { &options.s3 };
        let meter = gangline_objects::meter_of(counted, &address);
        let remote = gangline_objects::open_metered(url, &options.s3, meter)?;
        let notes = options.s3.get(gangline_objects::READS_VARIABLE).filter(|folder| !folder.is_empty());
        let notes = notes.map(|folder| (PathBuf::from(folder), address));
        Ok(Archive { notes, ..Archive::over(remote, options) })
    }

    pub(crate) fn over(remote: Box<dyn Remote>, options: &Options) -> Archive {
        let Options { bytes_per_second_max, first_pause, threads, .. } = *options;
        Archive {
            link: Link::new(remote, Policy { bytes_per_second_max, first_pause }),
            threads,
            key: options.key.clone(),
            clock: Arc::clone(&options.clock),
            seat: Mutex::new(None),
            notes: None,
        }
    }

    fn access(&self) -> Result<Access<'_>, Error> {
        // An empty archive has nothing encrypted.
        let vault = Vault::open(&self.link, self.key.as_ref())?.unwrap_or(Vault::Plain);
        Ok(Access { link: &self.link, vault })
    }

    /// Runs `act` under the archive's lease, so that no other program changes the archive meanwhile.
    fn alone<T>(&self, purpose: &str, act: impl FnOnce(&Lease<'_>) -> Result<T, Error>) -> Result<T, Error> {
        let mut seat = self.seat.lock().unwrap_or_else(PoisonError::into_inner);
        let name = seat.map_or_else(KeyId::random, Ok)?;
        *seat = Some(name);
        let lease = Lease::take(&self.link, &*self.clock, name, purpose)?;
        let done = act(&lease);
        lease.release();
        done
    }

    /// Puts a checkpoint of the store into the archive. A checkpoint that is already there only costs a
    /// lookup.
    ///
    /// # Errors
    /// [`Error::Held`] and [`Error::LeaseLost`], [`Error::Key`], [`Error::Store`] if the checkpoint isn't
    /// good, [`Error::Remote`], and [`Error::Corrupt`] if a pack that was put isn't listed at the end. Then
    /// nothing of the checkpoint is visible, and the next push continues from there.
    pub fn push(&self, store: &Store, step: Step) -> Result<Pushed, Error> {
        let source = source::Source::open(store.path(), step)?;
        let pushed = self.alone(&format!("push step {step}"), |lease| {
            let vault = match (Vault::open(&self.link, self.key.as_ref())?, &self.key) {
                (None, Some(key)) => {
                    vault::init(lease, key, (self.clock)())?;
                    Vault::open(&self.link, Some(key))?.unwrap_or(Vault::Plain)
                }
                (vault, _) => vault.unwrap_or(Vault::Plain),
            };
            let access = Access { link: &self.link, vault };
            push::push(&Change { access, lease }, &source, self.threads)
        })?;
        self.note_size();
        Ok(pushed)
    }

    /// Notes how much the archive holds, where somebody wants to know. What has been done is done, so a failure costs the note alone.
    fn note_size(&self) {
        let Some((folder, address)) = &self.notes else { return };
        let sizes = ["packs/", "catalogs/"]
            .map(|kind| self.link.list(kind).map(|objects| objects.iter().map(|object| object.bytes).sum::<u64>()));
        if let [Ok(packs), Ok(catalogs)] = sizes {
            gangline_objects::note_stored(folder, address, Bytes(packs.saturating_add(catalogs)));
        }
    }

    /// Rebuilds a checkpoint (the newest, without a step) in the store's folder, bit for bit.
    ///
    /// # Errors
    /// [`Error::NotFound`], [`Error::Milestone`], [`Error::Key`], [`Error::Remote`], [`Error::Corrupt`] for a
    /// damaged object, [`Error::Occupied`] if the store has a good checkpoint of this step with other
    /// content, [`Error::NoRoom`], [`Error::Store`]. The store's folder is then unchanged.
    pub fn pull(&self, step: Option<Step>, store: &Store) -> Result<Pulled, Error> {
        let access = self.access()?;
        let catalog = known::find_catalog(&access, step)?;
        match &catalog.milestone {
            Some(milestone) => Err(milestone::refusal(Step(catalog.step), milestone)),
            None => pull::pull(&access, &catalog, store),
        }
    }

    /// Pulls the newest checkpoint, if it was saved after the newest of the store's current line. It replaces
    /// a checkpoint of its step in the store, which is then an older save.
    ///
    /// # Errors
    /// As [`Archive::pull`], except [`Error::Occupied`]; an archive without checkpoints gives none.
    pub fn pull_newer(&self, store: &Store) -> Result<Option<Pulled>, Error> {
        let access = self.access()?;
        let catalog = match known::find_catalog(&access, None) {
            Err(Error::NotFound { .. }) => return Ok(None),
            found => found?,
        };
        let here = store.newest_moment()?;
        if catalog.milestone.is_some() || here.is_some_and(|here| here >= catalog.moment()) {
            return Ok(None);
        }
        pull::rebuild(&access, &catalog, store).map(Some)
    }

    /// Writes the tensors of a milestone to a folder, bit for bit, as a safetensors file for each rank. The
    /// result is not a checkpoint.
    ///
    /// # Errors
    /// [`Error::NotFound`], [`Error::Whole`], [`Error::Key`], [`Error::Remote`], [`Error::Corrupt`],
    /// [`Error::Store`].
    pub fn pull_milestone(&self, step: Step, folder: &Path) -> Result<Archived, Error> {
        let access = self.access()?;
        let catalog = known::find_catalog(&access, Some(step))?;
        if catalog.milestone.is_none() {
            return Err(Error::Whole { step });
        }
        milestone::write(&access, &catalog, folder)?;
        Ok(catalog.archived())
    }

    /// Lists all checkpoints, oldest first. Reads only their catalogs.
    ///
    /// # Errors
    /// [`Error::Key`], [`Error::Remote`].
    pub fn list(&self) -> Result<Vec<Listed>, Error> {
        let access = self.access()?;
        let mut all = Vec::new();
        let mut newest = (Moment::default(), Line::default());
        let mut moments = Vec::new();
        for listed in known::list_catalogs(access.link)? {
            let catalog = match known::read_catalog(access.link, &access.vault, listed) {
                Err(error @ Error::Remote { .. }) => return Err(error),
                catalog => catalog,
            };
            let moment = catalog.as_ref().map(Catalog::moment).unwrap_or_default();
            if let Ok(catalog) = &catalog
                && moment >= newest.0
            {
                newest = (moment, catalog.line());
            }
            moments.push(moment);
            all.push(Listed { step: Step(listed.0), catalog: catalog.map(|catalog| catalog.archived()) });
        }
        for (listed, moment) in all.iter_mut().zip(moments) {
            if let Ok(archived) = &mut listed.catalog {
                archived.is_abandoned = !newest.1.holds(archived.branch, moment);
            }
        }
        Ok(all)
    }

    /// Returns the content of a checkpoint's manifest (the newest, without a step).
    ///
    /// # Errors
    /// [`Error::NotFound`], [`Error::Key`], [`Error::Remote`]; [`Error::Corrupt`] if the catalog or the
    /// manifest is damaged.
    pub fn info(&self, step: Option<Step>) -> Result<CheckpointInfo, Error> {
        let access = self.access()?;
        contents::info(&access, &known::find_catalog(&access, step)?)
    }

    /// Reads every byte of a checkpoint, and reports what is damaged.
    ///
    /// # Errors
    /// [`Error::NotFound`], [`Error::Key`], [`Error::Remote`]; [`Error::Corrupt`] if the catalog itself is
    /// damaged.
    pub fn verify(&self, step: Step) -> Result<VerifyReport, Error> {
        let access = self.access()?;
        let catalog = known::find_catalog(&access, Some(step))?;
        let mut fetcher = Fetcher::new(&access, &catalog);
        let mut report = VerifyReport { step, tensors_good: 0, bytes_good: Bytes(0), problems: Vec::new() };
        let listed = known::list_packs(&self.link)?;
        for pack in &catalog.packs {
            if let Err(Error::Corrupt { key, flaw, .. }) = pack.check(listed.get(&catalog::pack_key(&pack.blake3))) {
                report.problems.push(Problem { file: key.into(), tensor: None, flaw });
            }
        }
        let names = catalog.shards.iter().flat_map(|shard| {
            let tensors = shard.tensors.iter().map(|tensor| (Some(&tensor.name), &tensor.item));
            std::iter::once((None, &shard.header)).chain(tensors)
        });
        for (name, item) in names.chain([(None, &catalog.manifest)]) {
            match fetcher.item(item, |_| Ok(())) {
                Ok(()) => {
                    report.tensors_good += usize::from(name.is_some());
                    report.bytes_good = report.bytes_good + Bytes(item.bytes);
                }
                Err(Error::Corrupt { key, flaw, .. }) => {
                    report.problems.push(Problem { file: key.into(), tensor: name.cloned(), flaw });
                }
                Err(error) => return Err(error),
            }
        }
        Ok(report)
    }

    /// Removes the checkpoints that no rule keeps, or with `is_dry_run` only reports them, and removes packs
    /// that no checkpoint needs. Packs of which less than half is needed are rewritten. The newest checkpoint
    /// always stays, as does everything that remaining checkpoints need.
    ///
    /// # Errors
    /// [`Error::Held`] and [`Error::LeaseLost`], [`Error::Key`], [`Error::Remote`]; [`Error::Corrupt`] if a
    /// catalog can't be read or a remaining checkpoint lacks a pack: then nothing is removed.
    pub fn prune(&self, rules: &[Rule], now: Timestamp, is_dry_run: bool) -> Result<Pruned, Error> {
        if is_dry_run {
            let access = self.access()?;
            let thinning = Thinning::of(&access, rules)?;
            return Ok(Sweep::of(&access, rules, now, &thinning)?.told());
        }
        let pruned = self.alone("prune", |lease| {
            let change = Change { access: self.access()?, lease };
            let thinning = Thinning::of(&change.access, rules)?;
            // A dry check first, so that an error is found before anything is changed.
            Sweep::of(&change.access, rules, now, &thinning)?;
            let milestones_put = thinning.execute(&change)?;
            let sweep = Sweep::of(&change.access, rules, now, &thinning)?;
            sweep.execute(&change)?;
            Ok(Pruned { milestones_put, ..sweep.told() })
        })?;
        self.note_size();
        Ok(pruned)
    }

    /// Creates the keys of an empty archive, for [`Options::key`], as a first push does. Returns the id of
    /// the data key.
    ///
    /// # Errors
    /// [`KeyError::Taken`] if it has keys or checkpoints, [`KeyError::Needed`] without a key;
    /// [`Error::Held`], [`Error::Remote`].
    pub fn init_keys(&self) -> Result<KeyId, Error> {
        let key = self.wrapping_key()?;
        self.alone("make keys", |lease| vault::init(lease, key, (self.clock)()))
    }

    /// Wraps the archive's data keys for another key than [`Options::key`], or makes a new data key, or both.
    /// Encrypted data stays as it is, and at every instant the old or the new key opens the archive. After an
    /// interruption, run it again.
    ///
    /// # Errors
    /// [`Error::Key`], [`Error::Held`], [`Error::LeaseLost`], [`Error::Remote`].
    pub fn rotate_keys(&self, change: &Rotation) -> Result<Rotated, Error> {
        let key = self.wrapping_key()?;
        self.alone("rotate keys", |lease| vault::rotate(lease, key, change, (self.clock)()))
    }

    /// Returns the archive's data keys, oldest first, and what they encrypt; empty if the archive is plain.
    /// The packs that they encrypt are known only with [`Options::key`].
    ///
    /// # Errors
    /// [`Error::Key`], [`Error::Remote`], [`Error::Corrupt`].
    pub fn keys(&self) -> Result<Vec<KeyShown>, Error> {
        vault::show(&self.link, self.key.as_ref())
    }

    /// Reports whether changes are fenced: a program that was suspended for longer than its lease can't
    /// change the archive any more. This needs a remote that keeps conditions, which is tried when the
    /// archive is first changed; none before that.
    pub fn is_fenced(&self) -> Option<bool> {
        self.link.known_conditions()
    }

    /// Returns the billed requests sent so far through this archive, retries included. A folder bills
    /// nothing.
    #[must_use]
    pub fn requests(&self) -> Requests {
        self.link.requests()
    }

    fn wrapping_key(&self) -> Result<&WrappingKey, Error> {
        Ok(self.key.as_ref().ok_or(KeyError::Needed { wanted: Vec::new() })?)
    }
}

/// Returns the address of an archive in a folder.
fn address_of(folder: &Path) -> String {
    let folder = std::path::absolute(folder).unwrap_or_else(|_| folder.to_owned());
    format!("file://{}", folder.display())
}

impl Catalog {
    fn archived(&self) -> Archived {
        let packs: BTreeSet<_> = self.packs.iter().collect();
        Archived {
            step: Step(self.step),
            saved_at: Timestamp::from_unix_nanos(self.saved_at),
            bytes: Bytes(self.bytes),
            packs: Bytes(packs.iter().map(|pack| pack.bytes).sum()),
            tensors: self.shards.iter().map(|shard| shard.tensors.len()).sum(),
            content_hash: self.content_blake3,
            branch: self.line().branch,
            is_abandoned: false,
            metadata: self.metadata.clone(),
            metadata_types: self.metadata_types.clone(),
            milestone: self.milestone.clone(),
        }
    }
}

#[cfg(test)]
mod tests;
