//! What can go wrong between a store and its archive, as decisions a caller can make.

use std::path::PathBuf;
use std::time::Duration;

use gangline_base::{Bytes, Step, Timestamp};

use super::vault::KeyError;
use crate::Flaw;

/// What a remote says went wrong, in its own words.
pub type Source = Box<dyn std::error::Error + Send + Sync>;

/// Why the archive refused or failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The archive has no checkpoint of this step, or none at all.
    #[error("find {} in the archive", step.map_or_else(|| "any checkpoint".to_owned(), |step| format!("a checkpoint of step {step}")))]
    NotFound {
        /// The step asked for; none for the newest.
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
    /// The folder holds checkpoints as they were saved, which are no archive.
    #[error("take {} for an archive: it is a folder of checkpoints", path.display())]
    IsStore {
        /// The folder.
        path: PathBuf,
    },
    /// The remote didn't do what it was asked, also after all tries that make sense. What was there before still is; do the
    /// same again later, and it goes on where it was.
    #[error("{act} {key} in the archive, tried {tries} times")]
    Remote {
        /// What was being done.
        act: &'static str,
        /// To which object.
        key: String,
        /// How often.
        tries: u32,
        /// What it said last.
        source: Source,
    },
    /// An object of the archive isn't what was put there.
    #[error("read {key}{} from the archive: {flaw}", item.as_ref().map(|item| format!(", {item}")).unwrap_or_default())]
    Corrupt {
        /// The object.
        key: String,
        /// What it holds that is damaged, if that is known.
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
    /// It is a milestone: what training needs to go on was given up. Pull it as what it is, or another step.
    #[error("pull step {step} as a checkpoint: it is a milestone, which lacks {lacking} tensors of {bytes}")]
    Milestone {
        /// The step.
        step: Step,
        /// How many tensors it lacks.
        lacking: u64,
        /// Their bytes.
        bytes: Bytes,
    },
    /// A milestone was asked for, and this is a whole checkpoint.
    #[error("pull step {step} as a milestone: it is a whole checkpoint")]
    Whole {
        /// The step.
        step: Step,
    },
    /// No tensor of a checkpoint would be left in its milestone.
    #[error("make a milestone of step {step}: no tensor's name is {}", kept.join(" or "))]
    NothingKept {
        /// The step.
        step: Step,
        /// What was to be kept.
        kept: Vec<String>,
    },
    /// The checkpoint wouldn't fit on the disk.
    #[error("pull step {step}: it takes {needed} bytes and the disk has {free} left")]
    NoRoom {
        /// The step.
        step: Step,
        /// Bytes of the checkpoint.
        needed: u64,
        /// Bytes that are free.
        free: u64,
    },
    /// Another program changes the archive. Wait until it is done; if its machine is gone, wait until its lease is over.
    #[error("change the archive: {by} has it, to {purpose}; only one program at a time changes an archive")]
    Held {
        /// Who.
        by: String,
        /// What it does, in words.
        purpose: String,
        /// When it began.
        since: Timestamp,
        /// When its lease is over if it isn't renewed.
        until: Timestamp,
    },
    /// This program was silent for so long, suspended or cut off, that another may have the archive now. Nothing was made visible or
    /// removed since; do the same again.
    #[error("go on changing the archive: its lease is lost after {silence:?} of silence")]
    LeaseLost {
        /// For how long.
        silence: Duration,
    },
    /// A key was refused, or something that is encrypted.
    #[error(transparent)]
    Key(#[from] KeyError),
    /// The store's side failed, or its checkpoint isn't good.
    #[error(transparent)]
    Store(#[from] crate::Error),
}

impl Error {
    /// An object that isn't what was put there.
    pub(crate) fn corrupt(key: impl Into<String>, flaw: Flaw) -> Error {
        Error::Corrupt { key: key.into(), item: None, flaw }
    }

    /// The same, of a part of the object.
    pub(crate) fn damaged(key: impl Into<String>, item: impl Into<String>, flaw: Flaw) -> Error {
        Error::Corrupt { key: key.into(), item: Some(item.into()), flaw }
    }
}
