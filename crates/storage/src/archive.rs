//! The archive: where checkpoints go to be kept for long, in fewer bytes, and come back bit for bit.
//!
//! Keeps A-6 (a checkpoint is in the archive once its catalog is, which is put last; deletion never reaches what a remaining
//! one needs), A-9 (catalogs have a version and are not the core types) and A-10 (objects, counts, depths, tries and
//! memory are limited; a push or pull holds a few chunks and a pack, never a checkpoint).
//!
//! An archive is objects by name, in a folder or in S3. `catalogs/step-....json` says what a checkpoint is made of
//! (`catalog`); `packs/<hash>` are 32 to 64 MiB of coded chunks. What the archive has already is only referred to:
//! whole tensors, then chunks of them. What it hasn't is coded against the same tensor in the nearest checkpoint, on
//! its own, or not at all, whichever pays; a bf16 copy that follows from its fp32 master isn't stored. Techniques and
//! their literature are those of `gangline_coding`; content-addressed objects and catalogs last are those of backup programs
//! (Quinlan and Dorward 2002, "Venti: a new approach to archival storage").
//!
//! An archive may be encrypted (`vault`), from its first push on. One program at a time changes an archive (`lease`); any number
//! may read it. What is read while it is pruned may be gone, and that is said.

mod access;
#[cfg(feature = "s3")]
mod aws;
mod catalog;
mod compaction;
mod contents;
mod draft;
mod encode;
mod error;
mod fence;
mod fetch;
mod folder;
mod known;
mod lease;
mod milestone;
mod pack;
mod prune;
mod pull;
mod push;
mod remote;
#[cfg(feature = "s3")]
mod s3;
mod source;
mod vault;

use std::collections::{BTreeMap, BTreeSet};
use std::num::{NonZeroU64, NonZeroUsize};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use gangline_base::{Bytes, Step, Timestamp};
use serde::Serialize;

use crate::lineage::{Line, Moment};
use crate::options::{Clock, system_time};
use crate::prune::list_steps;
use crate::{Branch, CheckpointInfo, Digest, NoteTypes, Problem, Store, VerifyReport};
use access::{Access, Change};
use fetch::Fetcher;
use lease::Lease;
use prune::{Sweep, Thinning};
use remote::{Link, Manners, Remote};
use vault::Vault;

pub use crate::retention::{Reason, Rule};
pub(crate) use catalog::Catalog;
pub use error::{Error, Source};
#[cfg(any(test, feature = "fuzz"))]
pub(crate) use lease::parse_lease;
pub use milestone::Milestone;
pub use prune::Pruned;
pub use pull::Pulled;
pub use push::Pushed;
pub use vault::{KeyError, KeyId, KeyShown, Rotated, Rotation, WrappingKey};

/// How an archive is used.
#[derive(Clone)]
pub struct Options {
    /// The most bytes a second, up and down together; none for as many as go.
    pub bytes_per_second_max: Option<NonZeroU64>,
    /// How long to wait after a first failure before trying again; doubles with each.
    pub first_pause: Duration,
    /// Chunks that a push codes at once, at most eight. More changes nothing but the time and the memory that it takes.
    pub threads: NonZeroUsize,
    /// Settings for S3, named as in the environment of AWS's own tools (`AWS_REGION`, `AWS_ENDPOINT_URL`, `AWS_PROFILE`, ...), and
    /// `HOME`, below which the files of these tools are.
    pub s3: BTreeMap<String, String>,
    /// What opens an encrypted archive. An archive that has nothing yet is encrypted from its first push on if this is given.
    pub key: Option<WrappingKey>,
    /// What leases are dated by; the system's clock by default.
    pub clock: Arc<Clock>,
}

/// How long to wait after a first failure by default.
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
    /// Without the settings for S3, which have secrets.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Options")
            .field("bytes_per_second_max", &self.bytes_per_second_max)
            .field("first_pause", &self.first_pause)
            .field("threads", &self.threads)
            .field("key", &self.key)
            .finish_non_exhaustive()
    }
}

/// Checkpoints in an object store or a folder.
pub struct Archive {
    link: Link,
    threads: NonZeroUsize,
    key: Option<WrappingKey>,
    clock: Arc<Clock>,
    /// What this one's leases are called; held while it has one.
    seat: Mutex<Option<KeyId>>,
}

/// An archived checkpoint, as its catalog tells it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Archived {
    /// The step it holds the state after.
    pub step: Step,
    /// When the store committed it.
    pub saved_at: Timestamp,
    /// Bytes of its shards.
    pub bytes: Bytes,
    /// Bytes of the packs that it needs, with what these hold for others.
    pub packs: Bytes,
    /// How many tensors it has.
    pub tensors: usize,
    /// Over the step and every tensor.
    pub content_hash: Digest,
    /// The branch that it belongs to.
    pub branch: Branch,
    /// Whether the branch of the newest save doesn't go back to it; told of a list.
    pub is_abandoned: bool,
    /// What the trainer noted.
    pub metadata: BTreeMap<String, String>,
    /// What of that was no text.
    pub metadata_types: NoteTypes,
    /// What is left of it, if that isn't all: training can't go on from it.
    pub milestone: Option<Milestone>,
}

/// A checkpoint's catalog, or why it can't be read.
#[derive(Debug)]
pub struct Listed {
    /// The step in the catalog's name.
    pub step: Step,
    /// What it says.
    pub catalog: Result<Archived, Error>,
}

/// Refuses a folder that holds checkpoints as they were saved: an archive in it would be mixed with them.
fn refuse_store(path: PathBuf) -> Result<PathBuf, Error> {
    let has_catalogs = path.join("catalogs").is_dir();
    // One that can't be listed is told of by the first act on it.
    let is_store = list_steps(&path).is_ok_and(|steps| !steps.is_empty());
    if is_store && !has_catalogs { Err(Error::IsStore { path }) } else { Ok(path) }
}

impl Archive {
    /// Opens the archive at `s3://bucket/prefix`, `file:///folder` or a path. Nothing is made before the first push.
    ///
    /// # Errors
    /// [`Error::Address`]; [`Error::IsStore`].
    pub fn open(url: &str, options: &Options) -> Result<Archive, Error> {
        let remote: Box<dyn Remote> = match folder::folder_of(url) {
            Some(path) => Box::new(folder::Folder::new(refuse_store(PathBuf::from(path))?)),
            None => other_remote(url, options)?,
        };
        Ok(Archive::over(remote, options))
    }

    pub(crate) fn over(remote: Box<dyn Remote>, options: &Options) -> Archive {
        let Options { bytes_per_second_max, first_pause, threads, .. } = *options;
        Archive {
            link: Link::new(remote, Manners { rate: bytes_per_second_max, first_pause }),
            threads,
            key: options.key.clone(),
            clock: Arc::clone(&options.clock),
            seat: Mutex::new(None),
        }
    }

    fn access(&self) -> Result<Access<'_>, Error> {
        // What has nothing yet has nothing encrypted.
        let vault = Vault::open(&self.link, self.key.as_ref())?.unwrap_or(Vault::Plain);
        Ok(Access { link: &self.link, vault })
    }

    /// Does something that nobody else may do meanwhile.
    fn alone<T>(&self, purpose: &str, act: impl FnOnce(&Lease<'_>) -> Result<T, Error>) -> Result<T, Error> {
        let mut seat = self.seat.lock().unwrap_or_else(PoisonError::into_inner);
        let name = seat.map_or_else(KeyId::random, Ok)?;
        *seat = Some(name);
        let lease = Lease::take(&self.link, &*self.clock, name, purpose)?;
        let done = act(&lease);
        lease.release();
        done
    }

    /// Puts a checkpoint of the store into the archive; one that is there already costs a look.
    ///
    /// # Errors
    /// [`Error::Held`] and [`Error::LeaseLost`], [`Error::Key`], [`Error::Store`] if the checkpoint isn't good, [`Error::Remote`], and [`Error::Corrupt`] if a pack that was put isn't
    /// there at the end. Nothing of the checkpoint is visible then, and the next push goes on where this one was.
    pub fn push(&self, store: &Store, step: Step) -> Result<Pushed, Error> {
        let source = source::Source::open(store.path(), step)?;
        self.alone(&format!("push step {step}"), |lease| {
            let vault = match (Vault::open(&self.link, self.key.as_ref())?, &self.key) {
                (None, Some(key)) => {
                    vault::init(lease, key, (self.clock)())?;
                    Vault::open(&self.link, Some(key))?.unwrap_or(Vault::Plain)
                }
                (vault, _) => vault.unwrap_or(Vault::Plain),
            };
            let access = Access { link: &self.link, vault };
            push::push(&Change { access, lease }, &source, self.threads)
        })
    }

    /// Rebuilds a checkpoint (the newest, without a step) in the store's folder, bit for bit.
    ///
    /// # Errors
    /// [`Error::NotFound`], [`Error::Milestone`], [`Error::Key`], [`Error::Remote`], [`Error::Corrupt`] for what isn't as it was put, [`Error::Occupied`] if the store
    /// has a good one of other content, [`Error::NoRoom`], [`Error::Store`]. The store's folder is as before then.
    pub fn pull(&self, step: Option<Step>, store: &Store) -> Result<Pulled, Error> {
        let access = self.access()?;
        let catalog = known::find_catalog(&access, step)?;
        match &catalog.milestone {
            Some(milestone) => Err(milestone::refusal(Step(catalog.step), milestone)),
            None => pull::pull(&access, &catalog, store),
        }
    }

    /// Does the same with the newest checkpoint, if it was saved after the newest of the store's current line. A checkpoint of its step that
    /// the store has is then an older save, and replaced.
    ///
    /// # Errors
    /// As [`Archive::pull`], but for [`Error::Occupied`]; an archive without checkpoints is none.
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

    /// Writes the tensors of a milestone to a folder, bit for bit, as a safetensors file for each rank. It is no checkpoint.
    ///
    /// # Errors
    /// [`Error::NotFound`], [`Error::Whole`], [`Error::Key`], [`Error::Remote`], [`Error::Corrupt`], [`Error::Store`].
    pub fn pull_milestone(&self, step: Step, folder: &Path) -> Result<Archived, Error> {
        let access = self.access()?;
        let catalog = known::find_catalog(&access, Some(step))?;
        if catalog.milestone.is_none() {
            return Err(Error::Whole { step });
        }
        milestone::write(&access, &catalog, folder)?;
        Ok(catalog.archived())
    }

    /// All checkpoints, oldest first, by their catalogs alone.
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

    /// What the manifest of a checkpoint (the newest, without a step) says.
    ///
    /// # Errors
    /// [`Error::NotFound`], [`Error::Key`], [`Error::Remote`]; [`Error::Corrupt`] if the catalog or the manifest isn't what was put.
    pub fn info(&self, step: Option<Step>) -> Result<CheckpointInfo, Error> {
        let access = self.access()?;
        contents::info(&access, &known::find_catalog(&access, step)?)
    }

    /// Reads every byte of a checkpoint and names what isn't as it was put.
    ///
    /// # Errors
    /// [`Error::NotFound`], [`Error::Key`], [`Error::Remote`]; [`Error::Corrupt`] if the catalog itself is damaged.
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

    /// Removes the checkpoints that no rule keeps, or says what it would remove, and packs that nothing needs; packs of which
    /// less than half is needed are written anew. The newest always stays, and what others need of those that go.
    ///
    /// # Errors
    /// [`Error::Held`] and [`Error::LeaseLost`], [`Error::Key`], [`Error::Remote`]; [`Error::Corrupt`] if a catalog can't be read or one that stays lacks a pack: nothing is removed then.
    pub fn prune(&self, rules: &[Rule], now: Timestamp, is_dry_run: bool) -> Result<Pruned, Error> {
        if is_dry_run {
            let access = self.access()?;
            let thinning = Thinning::of(&access, rules)?;
            return Ok(Sweep::of(&access, rules, now, &thinning)?.told());
        }
        self.alone("prune", |lease| {
            let change = Change { access: self.access()?, lease };
            let thinning = Thinning::of(&change.access, rules)?;
            // Whatever would keep the rest from being done is found before anything is changed.
            Sweep::of(&change.access, rules, now, &thinning)?;
            let milestones_put = thinning.execute(&change)?;
            let sweep = Sweep::of(&change.access, rules, now, &thinning)?;
            sweep.execute(&change)?;
            Ok(Pruned { milestones_put, ..sweep.told() })
        })
    }

    /// Makes the keys of an archive that has nothing yet, for [`Options::key`]; a first push does the same. The id of the data key.
    ///
    /// # Errors
    /// [`KeyError::Taken`] if it has keys or checkpoints, [`KeyError::Needed`] without a key; [`Error::Held`], [`Error::Remote`].
    pub fn init_keys(&self) -> Result<KeyId, Error> {
        let key = self.wrapping_key()?;
        self.alone("make keys", |lease| vault::init(lease, key, (self.clock)()))
    }

    /// Wraps the archive's data keys for another key than [`Options::key`], or makes a new data key, or both. Nothing that is
    /// encrypted is touched, and at every instant the one or the other key opens the archive; what was cut off is run again.
    ///
    /// # Errors
    /// [`Error::Key`], [`Error::Held`], [`Error::LeaseLost`], [`Error::Remote`].
    pub fn rotate_keys(&self, change: &Rotation) -> Result<Rotated, Error> {
        let key = self.wrapping_key()?;
        self.alone("rotate keys", |lease| vault::rotate(lease, key, change, (self.clock)()))
    }

    /// The archive's data keys, oldest first, and what they encrypt; none if it is plain. What packs they encrypt is known only
    /// with [`Options::key`].
    ///
    /// # Errors
    /// [`Error::Key`], [`Error::Remote`], [`Error::Corrupt`].
    pub fn keys(&self) -> Result<Vec<KeyShown>, Error> {
        vault::show(&self.link, self.key.as_ref())
    }

    /// Whether a program that was suspended for longer than its lease can't change the archive any more, whatever it looked at
    /// before. That takes a place that keeps conditions, which is tried when the archive is first changed: none before.
    pub fn is_fenced(&self) -> Option<bool> {
        self.link.known_conditions()
    }

    fn wrapping_key(&self) -> Result<&WrappingKey, Error> {
        Ok(self.key.as_ref().ok_or(KeyError::Needed { wanted: Vec::new() })?)
    }
}

#[cfg(feature = "s3")]
fn other_remote(url: &str, options: &Options) -> Result<Box<dyn Remote>, Error> {
    Ok(Box::new(s3::Bucket::open(url, &options.s3)?))
}

#[cfg(not(feature = "s3"))]
fn other_remote(url: &str, _: &Options) -> Result<Box<dyn Remote>, Error> {
    let why = "write a path or file:///folder; this program was built without S3".to_owned();
    Err(Error::Address { url: url.to_owned(), why })
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
