//! Files named by their contents. One that is there is whole: it is written aside, synced, and then given its name.

use std::fmt;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use super::Failure;

/// The folder of files that aren't whole yet. What is in it at a start was cut off, and is removed.
const INCOMING: &str = "incoming";

/// The BLAKE3 digest of a file's contents (<https://github.com/BLAKE3-team/BLAKE3-specs>).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Digest(pub [u8; 32]);

/// The folder of the files.
#[derive(Clone, Debug)]
pub struct Blobs {
    folder: PathBuf,
}

/// A file on its way. One that is dropped before its end is removed.
#[derive(Debug)]
pub struct Upload {
    path: PathBuf,
    file: File,
    hasher: Box<blake3::Hasher>,
    bytes: u64,
}

impl Blobs {
    /// Returns the files of a folder, which [`Blobs::prepare`] makes.
    pub fn of(folder: PathBuf) -> Blobs {
        Blobs { folder }
    }

    /// Makes the folder, and removes what was cut off.
    ///
    /// # Errors
    /// If it can't be made or read.
    pub fn prepare(&self) -> Result<(), Failure> {
        let incoming = self.folder.join(INCOMING);
        fs::create_dir_all(&incoming)?;
        for entry in fs::read_dir(&incoming)? {
            fs::remove_file(entry?.path())?;
        }
        Ok(())
    }

    /// Starts a file. `name` is one that no other upload has.
    ///
    /// # Errors
    /// If it can't be made.
    pub fn begin(&self, name: &str) -> Result<Upload, Failure> {
        let path = self.folder.join(INCOMING).join(name);
        let file = OpenOptions::new().read(true).write(true).create_new(true).open(&path)?;
        Ok(Upload { path, file, hasher: Box::default(), bytes: 0 })
    }

    /// Opens a file for reading.
    ///
    /// # Errors
    /// If it isn't there or can't be opened.
    pub fn read(&self, digest: Digest) -> Result<File, Failure> {
        Ok(File::open(self.path(digest))?)
    }

    /// Removes a file, if it is there.
    ///
    /// # Errors
    /// If it can't be removed.
    pub fn remove(&self, digest: Digest) -> Result<(), Failure> {
        match fs::remove_file(self.path(digest)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error.into()),
            _ => Ok(()),
        }
    }

    /// Gives a whole file its name and returns its digest. A file with these contents that is there already is kept.
    ///
    /// # Errors
    /// If it can't be written durably; nothing has its name then.
    pub fn finish(&self, upload: Upload) -> Result<(Digest, u64), Failure> {
        upload.sync()?;
        let (digest, bytes) = upload.contents();
        let path = self.path(digest);
        if !path.exists() {
            let folder = path.parent().unwrap_or(&self.folder);
            fs::create_dir_all(folder)?;
            fs::rename(&upload.path, &path)?;
            sync(folder)?;
            sync(&self.folder)?;
        }
        Ok((digest, bytes))
    }

    pub(super) fn path(&self, digest: Digest) -> PathBuf {
        let name = digest.to_string();
        self.folder.join(&name[..2]).join(&name[2..])
    }
}

fn sync(folder: &Path) -> io::Result<()> {
    File::open(folder)?.sync_all()
}

impl Upload {
    /// Makes what was written so far durable.
    ///
    /// # Errors
    /// If it can't be.
    pub fn sync(&self) -> Result<(), Failure> {
        Ok(self.file.sync_data()?)
    }

    /// Returns the digest and the length of what was written so far.
    #[must_use]
    pub fn contents(&self) -> (Digest, u64) {
        (Digest(*self.hasher.finalize().as_bytes()), self.bytes)
    }

    /// Reads what was written so far.
    pub(super) fn read<T>(&self, read: impl FnOnce(&File) -> T) -> T {
        read(&self.file)
    }

    /// Writes the next bytes.
    ///
    /// # Errors
    /// If they can't be written.
    pub fn write(&mut self, bytes: &[u8]) -> Result<(), Failure> {
        self.file.write_all(bytes)?;
        self.hasher.update(bytes);
        self.bytes += bytes.len() as u64;
        Ok(())
    }
}

impl Drop for Upload {
    fn drop(&mut self) {
        // Fails if the file has its name by now; what can't be removed goes at the next start.
        let _ = fs::remove_file(&self.path);
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        blake3::Hash::from_bytes(self.0).to_hex().fmt(to)
    }
}
