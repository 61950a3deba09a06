//! Refusals: how a rank of a gang tells the others that a save has failed, so that none waits until its
//! timeout.
//!
//! A rank that was refused, or that failed before its shard was durable, publishes a refusal in the gang's
//! partial folder instead of its index. Rank 0, which decides, publishes one whenever its save fails, and all
//! others look for it. Rank 0 removes refusals once all ranks have begun a later save: before that, some rank
//! may not have read them.
//!
//! Keeps A-9 (a refusal has a version) and A-10 (its text is truncated to a limit).

use std::path::Path;
use std::time::Duration;

use gangline_base::Step;
use serde::{Deserialize, Serialize};

use crate::disk::Disk;
use crate::manifest::{read_sealed, seal};
use crate::options::Writer;
use crate::{Error, layout, with_causes};

/// The magic of a refusal.
const MAGIC: &str = "gangline-refusal";
/// The version of the format.
const VERSION: u32 = 1;
/// The most characters of a reason.
const WHY_CHARACTERS_MAX: usize = 4_096;

/// A save as a rank counts it: the step, and how many times in a row it was requested. Ranks that repeat a
/// failed save of a step must not read files left by the earlier turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Turn {
    pub(crate) step: Step,
    pub(crate) number: u32,
}

/// The content of the file.
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

/// Why a save failed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub(crate) enum Reason {
    /// A rank saved a state that differs from rank 0's.
    Disagreement { rank: u32, what: String },
    /// A rank didn't arrive in time.
    Timeout { rank: u32, waited_milliseconds: u64 },
    /// A rank was refused, or failed.
    Failed { rank: u32, why: String },
}

impl Reason {
    /// Returns the reason that rank `rank` tells the others for its error.
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

    /// Returns a reason with this text.
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

/// Publishes a refusal in the gang's partial folder.
pub(crate) fn publish(disk: &Disk, partial: &Path, writer: Writer, turn: Turn, reason: Reason) -> Result<(), Error> {
    let Writer { rank, world_size, tag } = writer;
    let (magic, version) = (MAGIC.to_owned(), VERSION);
    let refusal = Refusal { magic, version, step: turn.step.0, writer: tag, world_size, turn: turn.number, reason };
    disk.create_folder(partial)?;
    disk.publish(partial, &layout::refusal_file(rank, world_size), &seal(&refusal))
}

/// For fuzzing: returns the error that a waiting rank would get from this file.
#[cfg(any(test, feature = "fuzz"))]
pub(crate) fn parse_error(text: &[u8], step: Step) -> Option<Error> {
    crate::manifest::unseal::<Refusal>(text, MAGIC, VERSION).ok().map(|found| found.reason.into_error(step))
}

/// Returns `Ok` unless rank `of` has refused this turn or a later one. A file that can't be parsed counts as
/// none.
pub(crate) fn check(partial: &Path, of: u32, writer: Writer, turn: Turn) -> Result<(), Error> {
    let path = partial.join(layout::refusal_file(of, writer.world_size));
    let Ok(found) = read_sealed::<Refusal>(&path, MAGIC) else { return Ok(()) };
    let is_of_this = (found.step, found.writer, found.world_size) == (turn.step.0, writer.tag, writer.world_size);
    if is_of_this && found.turn >= turn.number { Err(found.reason.into_error(turn.step)) } else { Ok(()) }
}
