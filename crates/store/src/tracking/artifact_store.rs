//! Artifacts with their contents: the files or objects and the table of paths, changed together.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use gangline_base::with_causes;
use gangline_tracking::UnixMillis;

use super::artifact_reader::ArtifactReader;
use super::{ArtifactEntry, Blobs, Failure, Handle, Remotes, StoredArtifact, Upload};

/// How long an address at which an artifact can be read is valid.
const SIGNED_FOR: Duration = Duration::from_hours(1);

/// Keeps artifacts. Cheap to clone. Everything blocks.
#[derive(Clone, Debug)]
pub struct ArtifactStore {
    handle: Handle,
    blobs: Blobs,
    remotes: Remotes,
    /// Held while a path gets contents, or contents are removed that no path has: so nothing is removed that an artifact is
    /// about to have.
    naming: Arc<Mutex<()>>,
}

impl ArtifactStore {
    /// Returns the store of a folder, which [`ArtifactStore::prepare`] makes. Uploads arrive there; new contents stay there or
    /// go where `remotes` says.
    pub fn of(folder: PathBuf, handle: Handle, remotes: Remotes) -> ArtifactStore {
        ArtifactStore { handle, blobs: Blobs::of(folder), remotes, naming: Arc::default() }
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
        let place = self.remotes.address().map(str::to_owned);
        let (digest, bytes) = upload.contents();
        let stored = StoredArtifact { digest, bytes, place };
        // What takes long comes before the lock, under which only contents that were removed meanwhile are sent again.
        self.send(&stored, &upload)?;
        let _naming = self.naming.lock().unwrap_or_else(PoisonError::into_inner);
        match &stored.place {
            None => drop(self.blobs.finish(upload)?),
            Some(_) => self.send(&stored, &upload)?,
        }
        let row = stored.clone();
        let unused = self.handle.write(move |writing| writing.put_artifact(&path, &row, now))?;
        unused.into_iter().for_each(|unused| self.remove_contents(&unused));
        Ok(stored)
    }

    /// Makes an upload durable: its file, or its object.
    fn send(&self, stored: &StoredArtifact, upload: &Upload) -> Result<(), Failure> {
        match &stored.place {
            None => upload.sync(),
            Some(address) => upload.read(|file| self.remotes.keep(address, &self.key(stored)?, file, stored.bytes)),
        }
    }

    /// Opens an artifact for reading.
    ///
    /// # Errors
    /// If there is none, or it can't be opened.
    pub fn read(&self, path: &str) -> Result<ArtifactReader, Failure> {
        let stored = self.handle.read(|reading| reading.artifact(path))?;
        match stored.place {
            None => Ok(ArtifactReader::of_file(self.blobs.read(stored.digest)?, stored)),
            Some(_) => Ok(ArtifactReader::of_object(self.remotes.clone(), self.key(&stored)?, stored)),
        }
    }

    /// Reports whether clients are to download by [`ArtifactStore::signed_url`].
    #[must_use]
    pub fn is_direct(&self) -> bool {
        self.remotes.is_direct()
    }

    /// Returns an artifact, and an address at which anybody can read it for an hour, if its contents are where there are such.
    ///
    /// # Errors
    /// If there is no such artifact.
    pub fn signed_url(&self, path: &str) -> Result<(StoredArtifact, Option<String>), Failure> {
        let stored = self.handle.read(|reading| reading.artifact(path))?;
        let Some(address) = &stored.place else { return Ok((stored, None)) };
        let url = self.remotes.signed_url(address, &self.key(&stored)?, SIGNED_FOR)?;
        Ok((stored, url))
    }

    /// Removes an artifact, or a folder of them.
    ///
    /// # Errors
    /// If nothing is there, or it can't be removed.
    pub fn remove(&self, path: String) -> Result<(), Failure> {
        let _naming = self.naming.lock().unwrap_or_else(PoisonError::into_inner);
        let unused = self.handle.write(move |writing| writing.remove_artifacts(&path))?;
        unused.into_iter().for_each(|unused| self.remove_contents(&unused));
        Ok(())
    }

    /// Removes contents that no artifact has. What can't be removed costs space and nothing else.
    fn remove_contents(&self, stored: &StoredArtifact) {
        let removed = match &stored.place {
            None => self.blobs.remove(stored.digest),
            Some(address) => self.key(stored).and_then(|key| self.remotes.remove(address, &key)),
        };
        if let Err(failure) = removed {
            let (digest, place) = (stored.digest.to_string(), stored.place.as_deref().unwrap_or("the data folder"));
            tracing::warn!(error = with_causes(&failure), digest, place, "contents that no artifact has stay");
        }
    }

    /// Returns the name of the object with these contents.
    fn key(&self, stored: &StoredArtifact) -> Result<String, Failure> {
        Ok(format!("{}/{}", self.handle.read(|reading| reading.installation())?, stored.digest))
    }

    /// Lists what lies in a folder.
    ///
    /// # Errors
    /// If the path leads elsewhere.
    pub fn list(&self, folder: &str) -> Result<Vec<ArtifactEntry>, Failure> {
        self.handle.read(|reading| reading.list_artifacts(folder))
    }
}
