//! Why a run failed, sorted by whether trying again can help.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

/// Why a run failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    /// An option or environment variable has a value that makes no sense.
    #[error("use {name} {value:?}: {why}")]
    Setting { name: &'static str, value: String, why: &'static str },
    /// There is nothing to learn from.
    #[error("find text: {found} bytes of .rs files in {places:?}, and at least {needed} are needed (see --corpus)")]
    NoText { places: Vec<PathBuf>, found: usize, needed: usize },
    /// A corpus folder or file can't be read.
    #[error("read {}", path.display())]
    Corpus { path: PathBuf, source: io::Error },
    /// The text or the dataset can't be read.
    #[error("read the data")]
    Data(#[from] gangline_data::Error),
    /// The folder of the samples' log can't be written.
    #[error("write the log of samples")]
    SampleLog { source: io::Error },
    /// The checkpoint is of another model.
    #[error("resume from step {step}: {what} is missing or has another shape there; use the options it was made with")]
    OtherModel { step: u64, what: String },
    /// The store failed.
    #[error("use the checkpoint store")]
    Store(#[from] gangline_storage::Error),
    /// The mathematics failed: a bug, or memory.
    #[error("compute")]
    Compute(#[from] candle_core::Error),
    /// The loss left the numbers; it would do so again.
    #[error("learn: the loss of step {step} is not a finite number; lower --lr")]
    Diverged { step: u64 },
    /// The gang didn't come together.
    #[error("meet the gang at {address} within {waited:?}")]
    Meeting { address: String, waited: Duration, source: io::Error },
    /// A rank has other arguments, text or checkpoints.
    #[error("train with rank {rank}: its options or text differ from rank 0's")]
    Disagreement { rank: u32 },
    /// A rank is at another step: it has resumed from another checkpoint.
    #[error("train with rank {rank}: it isn't at step {step}")]
    OutOfStep { rank: u32, step: u64 },
    /// A rank is gone, or silent for too long.
    #[error("hear from rank {rank} at step {step}: it is gone or stalled")]
    Peer { rank: u32, step: u64, source: io::Error },
}

impl Error {
    /// Whether the same command would fail in the same way again.
    pub(crate) fn is_hopeless(&self) -> bool {
        match self {
            Error::Setting { .. }
            | Error::NoText { .. }
            | Error::OtherModel { .. }
            | Error::Diverged { .. }
            | Error::Disagreement { .. } => true,
            // A store that didn't answer may do so later.
            Error::Data(error) => {
                !matches!(error, gangline_data::Error::Remote { .. } | gangline_data::Error::Io { .. })
            }
            Error::OutOfStep { .. }
            | Error::Corpus { .. }
            | Error::SampleLog { .. }
            | Error::Store(_)
            | Error::Compute(_)
            | Error::Meeting { .. }
            | Error::Peer { .. } => false,
        }
    }
}
