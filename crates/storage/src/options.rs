//! How a store is opened.

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

/// What tells the time.
pub type Clock = dyn Fn() -> Timestamp + Send + Sync;

/// The system's clock.
pub(crate) fn system_time() -> Timestamp {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    Timestamp::EPOCH + since
}

/// The name of this process's runs, random.
fn own_run() -> &'static str {
    static OWN: OnceLock<String> = OnceLock::new();
    OWN.get_or_init(|| {
        // The standard library's hashers are keyed at random by the operating system.
        let random = std::hash::BuildHasher::hash_one(&std::hash::RandomState::new(), std::process::id());
        format!("run-{random:016x}")
    })
}

/// How a [`Store`](crate::Store) is opened. The default is a lone writer that keeps the last two checkpoints.
#[derive(Clone)]
pub struct Options {
    /// Who opens it.
    pub role: Role,
    /// How many good checkpoints stay after each commit; `None` keeps all.
    pub keep: Option<NonZeroUsize>,
    /// Reasons to keep more checkpoints of the current line than these. Nothing of another branch is removed by retention.
    pub rules: Vec<Rule>,
    /// The run that saves, at most 128 bytes: two attempts of one run may take the folder over from each other, and no other run may
    /// write there meanwhile. `None` is a run of this process alone.
    pub run: Option<String>,
    /// What saves are dated by; the system's clock by default.
    pub clock: Arc<Clock>,
    /// How long a gang's rank 0 waits for the other ranks' shards, and they for its commit.
    pub commit_timeout: Duration,
    /// How ranks compare what they hold alike.
    pub compare: Compare,
    /// A folder in memory (tmpfs) that outlives this process, as Gangline's supervisor gives its ranks one in
    /// `GANGLINE_STAGING_DIR`: saves are copied there, and one that is copied when its rank dies is finished by
    /// [`finish_staged`](crate::finish_staged). What there is no room for is copied to the process's own memory.
    pub staging: Option<PathBuf>,
    /// The most host memory that the copies of this process's saves take, under way and kept for the next; `None` for up to two
    /// copies. A save that would take more waits until an earlier one is durable; one that takes more by itself is refused.
    pub memory_max: Option<Bytes>,
    /// Whether the memory of copies is kept for the next saves, which are several times faster for that, until the store is
    /// dropped; else it goes back to the system as soon as a save is durable.
    pub keeps_memory: bool,
    /// An archive to which rank 0 pushes checkpoints in the background, the newest first. Dropping the store waits for that.
    pub archive: Option<Tier>,
    /// Only checkpoints before this step count as the newest, as Gangline's supervisor tells its ranks in
    /// `GANGLINE_RESTORE_BELOW` when numbers went bad: later ones may hold what made them so.
    pub restore_below: Option<Step>,
    /// Asked before each change to the disk; for tests that kill or fill it there.
    pub disk_hook: Option<DiskHook>,
}

/// Who opens a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Somebody who looks: opening changes nothing on disk, and [`Store::save`](crate::Store::save) is refused.
    Reader,
    /// A rank that saves. Opening creates the folder and clears away what dead writers left half-written.
    Writer {
        /// This process's rank, from 0.
        rank: u32,
        /// Ranks in the gang, all saving the same replicated state.
        world_size: u32,
        /// Grows with each attempt (its number, say) and is equal on all ranks of one. Half-written saves of another
        /// tag are never mixed in, those of a lower one are cleared away.
        tag: u64,
    },
}

/// How many checkpoints stay by default: one good one always survives the loss of the last.
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
    /// For somebody who only looks (or prunes).
    #[must_use]
    pub fn reader() -> Self {
        Options { role: Role::Reader, ..Options::default() }
    }

    /// For one rank of a gang; see [`Role::Writer`].
    #[must_use]
    pub fn writer(rank: u32, world_size: u32, tag: u64) -> Self {
        Options { role: Role::Writer { rank, world_size, tag }, ..Options::default() }
    }

    /// The run that saves.
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

/// One save's place in time: which step, by whom.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Writer {
    pub(crate) rank: u32,
    pub(crate) world_size: u32,
    pub(crate) tag: u64,
}

impl Writer {
    /// The folder in which this writer's gang builds the checkpoint of `step`.
    pub(crate) fn partial(self, step: Step) -> crate::layout::Partial {
        crate::layout::Partial { step: step.0, tag: self.tag, world_size: self.world_size }
    }
}
