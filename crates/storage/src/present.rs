//! Detects that a checkpoint's folder was removed or replaced during a read. Retention may remove it, and a
//! save of the same step may replace it, at any time; a missing file is then no sign of damage.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use gangline_base::Step;

use crate::Error;

/// The identity of a checkpoint's folder when the read began.
#[derive(Clone, Debug)]
pub(crate) struct Present {
    folder: PathBuf,
    step: Step,
    id: (u64, u64),
}

impl Present {
    /// Records the identity of a checkpoint's folder.
    ///
    /// # Errors
    /// [`Error::NotFound`].
    pub(crate) fn find(folder: &Path, step: Step) -> Result<Present, Error> {
        let id = identity(folder).ok_or(Error::NotFound { step })?;
        Ok(Present { folder: folder.to_owned(), step, id })
    }

    /// Returns `Ok` if the folder is still the same.
    ///
    /// # Errors
    /// [`Error::NotFound`] if it was removed or replaced.
    pub(crate) fn check(&self) -> Result<(), Error> {
        let is_same = identity(&self.folder) == Some(self.id);
        is_same.then_some(()).ok_or(Error::NotFound { step: self.step })
    }

    /// Replaces an error of a read by `NotFound`, if the folder was removed or replaced.
    pub(crate) fn explain(&self, error: Error) -> Error {
        match error {
            Error::Corrupt { .. } => self.check().err().unwrap_or(error),
            error => error,
        }
    }
}

fn identity(folder: &Path) -> Option<(u64, u64)> {
    let about = std::fs::metadata(folder).ok().filter(std::fs::Metadata::is_dir)?;
    Some((about.dev(), about.ino()))
}
