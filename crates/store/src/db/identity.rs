//! The identity of a folder: a file that holds its own inode and time of birth. A copy of the folder has
//! others, so it can be distinguished from the original. A renamed folder keeps its identity, and so
//! does one that was moved to another disk of the same machine, because nothing is left at its old place.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;

use serde::{Deserialize, Serialize};

use super::Error;

const FILE: &str = "folder.json";
const FILE_MODE: u32 = 0o600;
const VERSION: u32 = 1;
const FILE_BYTES_MAX: u64 = 64 << 10;

/// The identity stored in the file.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Marks {
    v: u32,
    /// The folder's path when this was written.
    path: PathBuf,
    host: String,
    inode: u64,
    /// Nanoseconds since 1970; `None` if the file system doesn't record it.
    born: Option<u128>,
}

/// The folder's identity, used by the folder's holder.
#[derive(Debug)]
pub(super) struct Identity {
    folder: PathBuf,
    file: File,
    original: Option<PathBuf>,
}

impl Identity {
    /// Reads the folder's identity. Changes nothing: a copy remains a copy until [`Identity::own`].
    pub(super) fn open(folder: &Path) -> Result<Identity, Error> {
        let path = folder.join(FILE);
        let refused = |source| Error::Folder { path: path.clone(), source };
        let mut options = OpenOptions::new();
        let options = options.read(true).write(true).create(true).truncate(false).mode(FILE_MODE);
        let mut file = options.open(&path).map_err(refused)?;
        let mut text = String::new();
        let _length = (&mut file).take(FILE_BYTES_MAX).read_to_string(&mut text).map_err(refused)?;
        // Empty or cut after a crash at its first writing: that was the first start, so there is no original.
        let said: Option<Marks> = serde_json::from_str(&text).ok();
        let own = marks(folder, &file).map_err(refused)?;
        let is_copy = |said: &Marks| !(said.is_same_file(&own) || said.host == own.host && said.is_gone());
        let original = said.filter(is_copy).map(|said| said.path);
        Ok(Identity { folder: folder.to_owned(), file, original })
    }

    /// Returns the original's path if this folder is a copy.
    pub(super) fn original(&self) -> Option<&Path> {
        self.original.as_deref()
    }

    /// Makes this folder an original.
    pub(super) fn own(&mut self) -> Result<(), Error> {
        let path = self.folder.join(FILE);
        let refused = |source| Error::Folder { path: path.clone(), source };
        let own = marks(&self.folder, &self.file).map_err(refused)?;
        let text = serde_json::to_vec(&own).map_err(|error| refused(error.into()))?;
        rewrite(&mut self.file, &text).map_err(refused)?;
        self.original = None;
        Ok(())
    }
}

impl Marks {
    fn is_same_file(&self, other: &Marks) -> bool {
        (self.inode, self.born) == (other.inode, other.born)
    }

    /// Reports whether the folder is gone from its recorded place.
    fn is_gone(&self) -> bool {
        let there = File::open(self.path.join(FILE)).and_then(|file| marks(&self.path, &file));
        !there.is_ok_and(|there| self.is_same_file(&there))
    }
}

fn marks(folder: &Path, file: &File) -> io::Result<Marks> {
    let metadata = file.metadata()?;
    let born = metadata.created().ok().and_then(|born| born.duration_since(UNIX_EPOCH).ok());
    let path = std::path::absolute(folder)?;
    let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
    Ok(Marks { v: VERSION, path, host, inode: metadata.ino(), born: born.map(|born| born.as_nanos()) })
}

/// Writes in place, because another file would have another inode.
fn rewrite(file: &mut File, text: &[u8]) -> io::Result<()> {
    use std::io::Seek as _;
    file.set_len(0)?;
    file.rewind()?;
    file.write_all(text)?;
    file.sync_all()
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    fn original(folder: &Path) -> Option<PathBuf> {
        let mut identity = Identity::open(folder).expect("it opens");
        let original = identity.original().map(Path::to_owned);
        identity.own().expect("it is ours");
        original
    }

    #[test]
    fn a_copy_is_told_from_a_folder_that_was_renamed() {
        let parent = tempfile::tempdir().expect("a folder");
        let [first, renamed, copy] = ["first", "renamed", "copy"].map(|name| parent.path().join(name));
        std::fs::create_dir(&first).expect("a folder");
        assert_eq!((original(&first), original(&first)), (None, None));
        std::fs::rename(&first, &renamed).expect("it is ours");
        assert_eq!(original(&renamed), None);
        let copied = Command::new("cp").args(["-a"]).args([&renamed, &copy]).status().expect("cp runs");
        assert!(copied.success());
        assert_eq!(original(&copy), Some(renamed.clone()));
        assert_eq!((original(&copy), original(&renamed)), (None, None), "a copy is a folder of its own from then on");
        let moved = parent.path().join("moved");
        let copied = Command::new("cp").args(["-a"]).args([&copy, &moved]).status().expect("cp runs");
        assert!(copied.success());
        std::fs::remove_dir_all(&copy).expect("it is ours");
        assert_eq!(original(&moved), None, "as mv does from one disk to another");
    }

    #[test]
    fn a_first_start_that_was_cut_off_is_begun_again() {
        let folder = tempfile::tempdir().expect("a folder");
        std::fs::write(folder.path().join(FILE), "").expect("it is ours");
        assert_eq!((original(folder.path()), original(folder.path())), (None, None));
    }
}
