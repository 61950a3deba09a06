//! How a rank of a gang tells the others that a save comes to nothing, so that none waits as long as it may for it.
//!
//! A rank that was refused, or that failed before its shard was durable, publishes a refusal in the gang's partial folder in place
//! of its index. Rank 0, which decides, publishes one whenever its save fails, and all others look for that. Rank 0
//! removes them once all have begun a later save: before, somebody may not have read one.
//!
//! Keeps A-9 (a refusal has a version) and A-10 (what it says is cut).

use std::path::Path;
use std::time::Duration;

use gangline_base::Step;
use serde::{Deserialize, Serialize};

use crate::disk::Disk;
use crate::manifest::{read_sealed, seal};
use crate::options::Writer;
use crate::{Error, layout, with_causes};

/// What a refusal says it is.
const MAGIC: &str = "gangline-refusal";
/// Its format's version.
const VERSION: u32 = 1;
/// The most characters of a reason.
const WHY_CHARACTERS_MAX: usize = 4_096;

/// A save as a rank sees it: which step, and for which time in a row it was asked for. Ranks that save a step again after a failure
/// must not meet what the time before left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Turn {
    pub(crate) step: Step,
    pub(crate) number: u32,
}

/// The file.
#[derive(Debug, Serialize, Deserialize)]
struct Refusal {
    magic: String,
    version: u32,
    step: u64,
    writer: u64,
    world_size: u32,
    turn: u32,
    reason: Reason,
}

/// Why a save comes to nothing.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub(crate) enum Reason {
    /// A rank saved something else than rank 0.
    Disagreement { rank: u32, what: String },
    /// A rank wasn't there in time.
    Timeout { rank: u32, waited_milliseconds: u64 },
    /// A rank was refused, or failed.
    Failed { rank: u32, why: String },
}

impl Reason {
    /// What rank `rank` tells the others of its error.
    pub(crate) fn of(error: &Error, rank: u32) -> Reason {
        match error {
            Error::Disagreement { rank, what, .. } => Reason::Disagreement { rank: *rank, what: what.clone() },
            Error::Abandoned { rank, why, .. } => Reason::Failed { rank: *rank, why: why.clone() },
            Error::Timeout { rank, waited, .. } => {
                let waited_milliseconds = u64::try_from(waited.as_millis()).unwrap_or(u64::MAX);
                Reason::Timeout { rank: *rank, waited_milliseconds }
            }
            error => Reason::failed(rank, &with_causes(error)),
        }
    }

    /// A refusal in words.
    pub(crate) fn failed(rank: u32, why: &str) -> Reason {
        Reason::Failed { rank, why: why.chars().take(WHY_CHARACTERS_MAX).collect() }
    }

    fn into_error(self, step: Step) -> Error {
        match self {
            Reason::Disagreement { rank, what } => Error::Disagreement { step, rank, what },
            Reason::Timeout { rank, waited_milliseconds } => {
                Error::Timeout { step, rank, waited: Duration::from_millis(waited_milliseconds) }
            }
            Reason::Failed { rank, why } => Error::Abandoned { step, rank, why },
        }
    }
}

/// Tells the others of the gang, for whoever looks into its partial folder.
pub(crate) fn publish(disk: &Disk, partial: &Path, writer: Writer, turn: Turn, reason: Reason) -> Result<(), Error> {
    let Writer { rank, world_size, tag } = writer;
    let (magic, version) = (MAGIC.to_owned(), VERSION);
    let refusal = Refusal { magic, version, step: turn.step.0, writer: tag, world_size, turn: turn.number, reason };
    disk.create_folder(partial)?;
    disk.publish(partial, &layout::refusal_file(rank, world_size), &seal(&refusal))
}

/// For fuzzing: what somebody who waits for a save is told by this file.
#[cfg(any(test, feature = "fuzz"))]
pub(crate) fn parse_error(text: &[u8], step: Step) -> Option<Error> {
    crate::manifest::unseal::<Refusal>(text, MAGIC, VERSION).ok().map(|found| found.reason.into_error(step))
}

/// `Ok` unless rank `of` has refused this turn, or a later one. What can't be read as a refusal is none.
pub(crate) fn check(partial: &Path, of: u32, writer: Writer, turn: Turn) -> Result<(), Error> {
    let path = partial.join(layout::refusal_file(of, writer.world_size));
    let Ok(found) = read_sealed::<Refusal>(&path, MAGIC) else { return Ok(()) };
    let is_of_this = (found.step, found.writer, found.world_size) == (turn.step.0, writer.tag, writer.world_size);
    if is_of_this && found.turn >= turn.number { Err(found.reason.into_error(turn.step)) } else { Ok(()) }
}
