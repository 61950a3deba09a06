//! Artifacts with their contents: the files and the table of paths, changed together.

use std::fs::File;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use gangline_tracking::UnixMillis;

use super::{ArtifactEntry, Blobs, Failure, Handle, StoredArtifact, Upload};

/// Keeps artifacts. Cheap to clone. Everything blocks.
#[derive(Clone, Debug)]
pub struct ArtifactStore {
    handle: Handle,
    blobs: Blobs,
    /// Held while a path gets contents, or contents are removed that no path has: so nothing is removed that an artifact is
    /// about to have.
    naming: Arc<Mutex<()>>,
}

impl ArtifactStore {
    /// Returns the store of a folder, which [`ArtifactStore::prepare`] makes.
    pub fn of(folder: PathBuf, handle: Handle) -> ArtifactStore {
        ArtifactStore { handle, blobs: Blobs::of(folder), naming: Arc::default() }
    }

    /// Makes the folder, and removes uploads that were cut off.
    ///
    /// # Errors
    /// If it can't be made or read.
    pub fn prepare(&self) -> Result<(), Failure> {
        self.blobs.prepare()
    }

    /// Starts the upload of an artifact. `name` is one that no other upload has.
    ///
    /// # Errors
    /// If its file can't be made.
    pub fn begin(&self, name: &str) -> Result<Upload, Failure> {
        self.blobs.begin(name)
    }

    /// Gives a whole upload its path, in place of what had it. It is listed only from then on, and durable.
    ///
    /// # Errors
    /// If it can't be written, or can't have the path; nothing is listed then that wasn't before.
    pub fn put(&self, path: String, upload: Upload, now: UnixMillis) -> Result<StoredArtifact, Failure> {
        upload.sync()?;
        let _naming = self.naming.lock().unwrap_or_else(PoisonError::into_inner);
        let (digest, bytes) = self.blobs.finish(upload)?;
        let stored = StoredArtifact { digest, bytes };
        let unused = self.handle.write(move |writing| writing.put_artifact(&path, stored, now))?;
        unused.map_or(Ok(()), |digest| self.blobs.remove(digest))?;
        Ok(stored)
    }

    /// Opens an artifact for reading.
    ///
    /// # Errors
    /// If there is none, or it can't be opened.
    pub fn read(&self, path: &str) -> Result<(File, StoredArtifact), Failure> {
        let stored = self.handle.read(|reading| reading.artifact(path))?;
        Ok((self.blobs.read(stored.digest)?, stored))
    }

    /// Removes an artifact, or a folder of them.
    ///
    /// # Errors
    /// If nothing is there, or it can't be removed.
    pub fn remove(&self, path: String) -> Result<(), Failure> {
        let _naming = self.naming.lock().unwrap_or_else(PoisonError::into_inner);
        let unused = self.handle.write(move |writing| writing.remove_artifacts(&path))?;
        unused.into_iter().try_for_each(|digest| self.blobs.remove(digest))
    }

    /// Lists what lies in a folder.
    ///
    /// # Errors
    /// If the path leads elsewhere.
    pub fn list(&self, folder: &str) -> Result<Vec<ArtifactEntry>, Failure> {
        self.handle.read(|reading| reading.list_artifacts(folder))
    }
}
