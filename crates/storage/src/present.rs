//! Whether a checkpoint's folder is still the one that a reader began with. Retention may remove it, and a save of the same step replace
//! it, at any time: what is missing then says nothing of damage.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use gangline_base::Step;

use crate::Error;

/// A checkpoint's folder as it was found.
#[derive(Clone, Debug)]
pub(crate) struct Present {
    folder: PathBuf,
    step: Step,
    id: (u64, u64),
}

impl Present {
    /// Finds it.
    ///
    /// # Errors
    /// [`Error::NotFound`].
    pub(crate) fn find(folder: &Path, step: Step) -> Result<Present, Error> {
        let id = identity(folder).ok_or(Error::NotFound { step })?;
        Ok(Present { folder: folder.to_owned(), step, id })
    }

    /// Whether it is there still.
    ///
    /// # Errors
    /// [`Error::NotFound`] if it was removed or replaced.
    pub(crate) fn check(&self) -> Result<(), Error> {
        let is_same = identity(&self.folder) == Some(self.id);
        is_same.then_some(()).ok_or(Error::NotFound { step: self.step })
    }

    /// The error of a read of it: that it is gone, if it is.
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
