//! Errors of an archive, one variant for each decision a caller can make.

use std::path::PathBuf;
use std::time::Duration;

use gangline_base::{Bytes, Step, Timestamp};
use gangline_objects::Source;

use super::vault::KeyError;
use crate::Flaw;

/// Why the archive refused or failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The archive has no checkpoint of this step, or none at all.
    #[error("find {} in the archive", step.map_or_else(|| "any checkpoint".to_owned(), |step| format!("a checkpoint of step {step}")))]
    NotFound {
        /// The requested step; none for the newest.
        step: Option<Step>,
    },
    /// The address names no place that this program can reach.
    #[error("open the archive {url:?}: {why}")]
    Address {
        /// The address.
        url: String,
        /// What is wrong with it, and what to write instead.
        why: String,
    },
    /// The folder holds a store's checkpoints and can't be an archive.
    #[error("take {} for an archive: it is a folder of checkpoints", path.display())]
    IsStore {
        /// The folder.
        path: PathBuf,
    },
    /// The remote failed to perform an operation, after all sensible retries. What was done before stays, and
    /// the operation itself may still take effect; repeated later, the command continues from there.
    #[error("{act} {key} in the archive, tried {tries} times")]
    Remote {
        /// The operation that failed.
        act: &'static str,
        /// The object.
        key: String,
        /// The number of tries.
        tries: u32,
        /// The last error of the remote.
        source: Source,
    },
    /// An object of the archive is damaged: it isn't what was put.
    #[error("read {key}{} from the archive: {flaw}", item.as_ref().map(|item| format!(", {item}")).unwrap_or_default())]
    Corrupt {
        /// The object.
        key: String,
        /// The damaged part of the object, if known.
        item: Option<String>,
        /// What is wrong with it.
        flaw: Flaw,
    },
    /// The store has another good checkpoint of this step, which is not replaced. Pull into another folder.
    #[error("pull step {step}: the store has a good checkpoint of it with other content")]
    Occupied {
        /// The step.
        step: Step,
    },
    /// The checkpoint is a milestone: training can't resume from it. Pull it as a milestone, or pull another
    /// step.
    #[error("pull step {step} as a checkpoint: it is a milestone, which lacks {lacking} tensors of {bytes}")]
    Milestone {
        /// The step.
        step: Step,
        /// The number of tensors that it lacks.
        lacking: u64,
        /// The bytes of these tensors.
        bytes: Bytes,
    },
    /// A milestone was requested, and this is a whole checkpoint.
    #[error("pull step {step} as a milestone: it is a whole checkpoint")]
    Whole {
        /// The step.
        step: Step,
    },
    /// A milestone of the checkpoint would keep no tensor.
    #[error("make a milestone of step {step}: no tensor's name is {}", kept.join(" or "))]
    NothingKept {
        /// The step.
        step: Step,
        /// The name patterns of the tensors to keep.
        kept: Vec<String>,
    },
    /// The checkpoint doesn't fit on the disk.
    #[error("pull step {step}: it takes {needed} bytes and the disk has {free} left")]
    NoRoom {
        /// The step.
        step: Step,
        /// The bytes of the checkpoint.
        needed: u64,
        /// The free bytes.
        free: u64,
    },
    /// Another program is changing the archive. Wait until it is done; if its machine is gone, wait until its
    /// lease expires.
    #[error("change the archive: {by} has it, to {purpose}; only one program at a time changes an archive")]
    Held {
        /// The holder of the lease.
        by: String,
        /// Its operation, in words.
        purpose: String,
        /// When it took the lease.
        since: Timestamp,
        /// When its lease expires unless it is renewed.
        until: Timestamp,
    },
    /// This program failed to renew its lease for so long, suspended or disconnected, that another may hold
    /// it now. It has made nothing visible and removed nothing since; repeat the operation.
    #[error("go on changing the archive: its lease is lost after {silence:?} of silence")]
    LeaseLost {
        /// The time since the last renewal.
        silence: Duration,
    },
    /// A key, or an encrypted object, was refused.
    #[error(transparent)]
    Key(#[from] KeyError),
    /// The store failed, or its checkpoint isn't good.
    #[error(transparent)]
    Store(#[from] crate::Error),
}

impl From<gangline_objects::Error> for Error {
    /// An object that is missing or too short is damage of the archive; other errors are the remote's.
    fn from(error: gangline_objects::Error) -> Error {
        use gangline_objects::Error as E;
        match error {
            E::Address { url, why } => Error::Address { url, why },
            E::Missing { key } => Error::corrupt(key, Flaw::Missing),
            E::Changed { key } => Error::Remote { act: "read", key, tries: 1, source: "it was changed".into() },
            E::Length { key, expected, found } => Error::corrupt(key, Flaw::Length { expected, found }),
            E::Failed { act, key, tries, source } => Error::Remote { act, key, tries, source },
        }
    }
}

impl Error {
    /// Returns a `Corrupt` error about an object.
    pub(crate) fn corrupt(key: impl Into<String>, flaw: Flaw) -> Error {
        Error::Corrupt { key: key.into(), item: None, flaw }
    }

    /// Returns a `Corrupt` error about a part of an object.
    pub(crate) fn damaged(key: impl Into<String>, item: impl Into<String>, flaw: Flaw) -> Error {
        Error::Corrupt { key: key.into(), item: Some(item.into()), flaw }
    }
}
