//! Options for opening a store.

use std::fmt;
use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, SystemTime};

use gangline_base::Timestamp;

use crate::disk::DiskHook;
use crate::error::within;
use crate::lineage::RUN_BYTES_MAX;
use crate::manifest::WORLD_SIZE_MAX;
use crate::retention::Rule;
use crate::{Bytes, Compare, Error, Step, Tier};

/// A source of the current time.
pub type Clock = dyn Fn() -> Timestamp + Send + Sync;

/// Returns the system clock's time.
pub(crate) fn system_time() -> Timestamp {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    Timestamp::EPOCH + since
}

/// Returns the random name of the run for which this process saves by default.
fn own_run() -> &'static str {
    static OWN: OnceLock<String> = OnceLock::new();
    OWN.get_or_init(|| {
        // The standard library seeds each `RandomState` from the operating system's random numbers.
        let random = std::hash::BuildHasher::hash_one(&std::hash::RandomState::new(), std::process::id());
        format!("run-{random:016x}")
    })
}

/// Options of a [`Store`](crate::Store). The default is a single writer that keeps the last two checkpoints.
#[derive(Clone)]
pub struct Options {
    /// The role of this process.
    pub role: Role,
    /// How many good checkpoints stay after each commit; `None` keeps all.
    pub keep: Option<NonZeroUsize>,
    /// Rules that keep additional checkpoints of the current line. Retention removes nothing of other
    /// branches.
    pub rules: Vec<Rule>,
    /// The run that saves, at most 128 bytes. Two attempts of one run may take the folder over from each
    /// other; no other run may write there meanwhile. `None` stands for a run of this process alone.
    pub run: Option<String>,
    /// The clock that dates saves; the system's clock by default.
    pub clock: Arc<Clock>,
    /// How long rank 0 waits for the other ranks' shards, and the other ranks for rank 0's commit.
    pub commit_timeout: Duration,
    /// How ranks compare replicated tensors.
    pub compare: Compare,
    /// A folder in memory (tmpfs) that outlives this process; Gangline's supervisor passes one to its ranks
    /// in `GANGLINE_STAGING_DIR`. Saves are copied there, and [`finish_staged`](crate::finish_staged)
    /// finishes a save whose rank dies after the copy. A copy that doesn't fit there goes to the process's
    /// own memory.
    pub staging: Option<PathBuf>,
    /// The most host memory that copies of this process's saves take, in flight and kept for later saves;
    /// `None` for up to two copies. A save that would exceed it waits until an earlier save is durable; a
    /// save that is larger by itself is refused.
    pub memory_max: Option<Bytes>,
    /// Whether the memory of copies is kept for later saves until the store is dropped, which makes them
    /// several times faster. Otherwise it returns to the system as soon as a save is durable.
    pub keeps_memory: bool,
    /// An archive to which rank 0 pushes checkpoints in the background, newest first. Dropping the store
    /// waits for it.
    pub archive: Option<Tier>,
    /// Only checkpoints before this step count as the newest. Gangline's supervisor passes the step in
    /// `GANGLINE_RESTORE_BELOW` when training diverged: later checkpoints may hold the cause.
    pub restore_below: Option<Step>,
    /// A hook that is called before each change to the disk, for tests that fail or kill the writer there.
    pub disk_hook: Option<DiskHook>,
}

/// The role in which a store is opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Only reads: opening changes nothing on disk, and [`Store::save`](crate::Store::save) is refused.
    Reader,
    /// A rank that saves. Opening creates the folder and removes files that dead writers left half-written.
    Writer {
        /// This process's rank, from 0.
        rank: u32,
        /// The number of ranks in the gang, all of which save the same replicated state.
        world_size: u32,
        /// Grows with each attempt (for example, the attempt's number) and is equal on all ranks of one
        /// attempt. Half-written saves of another tag are never mixed in, and those of a lower tag are
        /// removed.
        tag: u64,
    },
}

/// How many checkpoints stay by default: two, so that a good one survives the loss of the newest.
const KEEP_DEFAULT: NonZeroUsize = NonZeroUsize::new(2).expect("two is not zero");
/// How long a gang waits for its slowest rank by default.
const COMMIT_TIMEOUT_DEFAULT: Duration = Duration::from_secs(120);

impl Default for Options {
    fn default() -> Self {
        Options {
            role: Role::Writer { rank: 0, world_size: 1, tag: 0 },
            keep: Some(KEEP_DEFAULT),
            rules: Vec::new(),
            run: None,
            clock: Arc::new(system_time),
            commit_timeout: COMMIT_TIMEOUT_DEFAULT,
            compare: Compare::default(),
            staging: None,
            memory_max: None,
            keeps_memory: true,
            archive: None,
            restore_below: None,
            disk_hook: None,
        }
    }
}

impl Options {
    /// Returns the options of a reader, which may also prune.
    #[must_use]
    pub fn reader() -> Self {
        Options { role: Role::Reader, ..Options::default() }
    }

    /// Returns the options of one rank of a gang; see [`Role::Writer`].
    #[must_use]
    pub fn writer(rank: u32, world_size: u32, tag: u64) -> Self {
        Options { role: Role::Writer { rank, world_size, tag }, ..Options::default() }
    }

    /// Returns the run that saves.
    pub(crate) fn run(&self) -> &str {
        self.run.as_deref().unwrap_or_else(|| own_run())
    }

    pub(crate) fn check(&self) -> Result<(), Error> {
        within("bytes of the run's name", self.run.as_ref().map_or(0, String::len), RUN_BYTES_MAX)?;
        if self.rules.iter().any(|rule| matches!(rule, Rule::Milestones { .. } | Rule::Abandoned)) {
            return Err(Error::InvalidOptions { why: "milestones and other branches are an archive's to keep" });
        }
        let Role::Writer { rank, world_size, .. } = self.role else { return Ok(()) };
        if world_size > WORLD_SIZE_MAX {
            return Err(Error::Limit { what: "ranks", value: world_size.into(), max: WORLD_SIZE_MAX.into() });
        }
        if rank >= world_size {
            return Err(Error::InvalidOptions { why: "the rank is not below the world size" });
        }
        Ok(())
    }
}

impl fmt::Debug for Options {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Options")
            .field("role", &self.role)
            .field("keep", &self.keep)
            .field("rules", &self.rules)
            .field("run", &self.run)
            .field("commit_timeout", &self.commit_timeout)
            .field("compare", &self.compare)
            .field("staging", &self.staging)
            .field("memory_max", &self.memory_max)
            .field("keeps_memory", &self.keeps_memory)
            .field("archive", &self.archive)
            .field("restore_below", &self.restore_below)
            .finish_non_exhaustive()
    }
}

/// Identifies the writer of a save.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Writer {
    pub(crate) rank: u32,
    pub(crate) world_size: u32,
    pub(crate) tag: u64,
}

impl Writer {
    /// Returns the folder in which this writer's gang builds the checkpoint of `step`.
    pub(crate) fn partial(self, step: Step) -> crate::layout::Partial {
        crate::layout::Partial { step: step.0, tag: self.tag, world_size: self.world_size }
    }
}
