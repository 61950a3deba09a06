//! Removes folders that ranks could write to. Whatever ranks left there, nothing outside is touched: links
//! are removed and never followed, mounts stay, and every name is resolved relative to the open folder in
//! which it was found.
//!
//! Keeps A-10: depth is limited, and a callback is asked before each removal, so that the caller can slow it
//! down or stop it.

use std::ffi::CStr;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, Stat, fstat, open, openat, statat, unlinkat};

/// The deepest nesting of folders.
const DEPTH_MAX: u32 = 64;
/// The unit of a file's block count.
const BLOCK_BYTES: u64 = 512;

/// Counts of what was removed, or would be.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Removed {
    /// Files and folders.
    pub(crate) entries: u64,
    /// Bytes on disk.
    pub(crate) bytes: u64,
    /// Entries that couldn't be removed.
    pub(crate) left: u64,
}

impl Removed {
    /// Adds another count.
    pub(crate) fn add(&mut self, other: Removed) {
        self.entries += other.entries;
        self.bytes += other.bytes;
        self.left += other.left;
    }
}

/// Opens the folder to work in; its own name may be a link.
pub(crate) fn open_root(path: &Path) -> io::Result<OwnedFd> {
    Ok(open(path, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?)
}

/// Opens the folder `name` in an open one; refuses a link.
pub(crate) fn open_folder(parent: impl AsFd, name: &CStr) -> io::Result<OwnedFd> {
    Ok(openat(parent, name, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())?)
}

/// Returns the names in a folder, and whether each is a folder itself.
pub(crate) fn names(folder: impl AsFd) -> io::Result<Vec<(std::ffi::CString, bool)>> {
    let mut names = Vec::new();
    for entry in Dir::read_from(&folder)? {
        let entry = entry?;
        let name = entry.file_name();
        if matches!(name.to_bytes(), b"." | b"..") {
            continue;
        }
        let is_folder = match entry.file_type() {
            // Some file systems don't report the type.
            FileType::Unknown => is_folder(&statat(&folder, name, AtFlags::SYMLINK_NOFOLLOW)?),
            kind => kind == FileType::Directory,
        };
        names.push((name.to_owned(), is_folder));
    }
    Ok(names)
}

fn is_folder(stat: &Stat) -> bool {
    FileType::from_raw_mode(stat.st_mode) == FileType::Directory
}

/// Walks trees and removes them, or only counts.
pub(crate) struct Walk<'a> {
    /// Called before each removal; an error ends the walk. `None`: nothing is removed.
    pub(crate) removing: Option<&'a mut dyn FnMut() -> io::Result<()>>,
    pub(crate) removed: Removed,
    /// The first failed removal, and the error.
    pub(crate) failure: Option<String>,
}

impl<'a> Walk<'a> {
    /// Returns a walk that only counts.
    pub(crate) fn counting() -> Walk<'a> {
        Walk { removing: None, removed: Removed::default(), failure: None }
    }

    /// Returns a walk that calls `ask` before each removal.
    pub(crate) fn removing(ask: &'a mut dyn FnMut() -> io::Result<()>) -> Walk<'a> {
        Walk { removing: Some(ask), ..Walk::counting() }
    }

    /// Removes or counts `name` in an open folder with all its contents. Returns true if all of it is gone.
    ///
    /// # Errors
    /// The error of `ask`. An entry that can't be removed is counted rather than an error, and the rest is
    /// removed.
    pub(crate) fn tree(&mut self, parent: BorrowedFd<'_>, name: &CStr) -> io::Result<bool> {
        match fstat(parent) {
            Ok(stat) => self.entry(parent, name, stat.st_dev, 0),
            Err(error) => Ok(self.leave(name, error.into())),
        }
    }

    fn entry(&mut self, parent: BorrowedFd<'_>, name: &CStr, device: u64, depth: u32) -> io::Result<bool> {
        let stat = match statat(parent, name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => stat,
            Err(rustix::io::Errno::NOENT) => return Ok(true),
            Err(error) => return Ok(self.leave(name, error.into())),
        };
        if stat.st_dev != device {
            return Ok(self.leave(name, io::Error::other("something is mounted there")));
        }
        if is_folder(&stat) {
            if depth == DEPTH_MAX {
                return Ok(self.leave(name, io::Error::other("too many folders lie within each other")));
            }
            if !self.folder(parent, name, device, depth)? {
                return Ok(false);
            }
        }
        self.remove(parent, name, &stat)
    }

    /// Removes or counts all contents of the folder. Returns true if it is then empty.
    fn folder(&mut self, parent: BorrowedFd<'_>, name: &CStr, device: u64, depth: u32) -> io::Result<bool> {
        let opened = open_folder(parent, name).and_then(|folder| Ok((names(&folder)?, folder)));
        let (names, folder) = match opened {
            Ok(opened) => opened,
            Err(error) => return Ok(self.leave(name, error)),
        };
        let mut is_empty = true;
        for (name, _) in names {
            is_empty &= self.entry(folder.as_fd(), &name, device, depth + 1)?;
        }
        Ok(is_empty)
    }

    fn remove(&mut self, parent: BorrowedFd<'_>, name: &CStr, stat: &Stat) -> io::Result<bool> {
        if let Some(ask) = &mut self.removing {
            ask()?;
            let flags = if is_folder(stat) { AtFlags::REMOVEDIR } else { AtFlags::empty() };
            match unlinkat(parent, name, flags) {
                Ok(()) | Err(rustix::io::Errno::NOENT) => {}
                Err(error) => return Ok(self.leave(name, error.into())),
            }
        }
        self.removed.entries += 1;
        // Another name of the file keeps its bytes.
        if is_folder(stat) || stat.st_nlink == 1 {
            self.removed.bytes += u64::try_from(stat.st_blocks).unwrap_or(0).saturating_mul(BLOCK_BYTES);
        }
        Ok(true)
    }

    fn leave(&mut self, name: &CStr, error: io::Error) -> bool {
        self.removed.left += 1;
        self.failure.get_or_insert_with(|| format!("{}: {error}", name.to_string_lossy()));
        false
    }
}

#[cfg(test)]
mod tests {
    use std::ffi::{CString, OsStr};
    use std::os::unix::ffi::OsStrExt;
    use std::os::unix::fs::{PermissionsExt, symlink};
    use std::path::PathBuf;

    use super::*;

    fn remove(root: &Path, name: &str) -> (bool, Removed, Option<String>) {
        let mut ask = || Ok(());
        let mut walk = Walk::removing(&mut ask);
        let parent = open_root(root).expect("it is there");
        let name = CString::new(name).expect("no null");
        let is_gone = walk.tree(parent.as_fd(), &name).expect("nobody stops it");
        (is_gone, walk.removed, walk.failure)
    }

    fn tree(root: &Path) -> PathBuf {
        let tree = root.join("tree");
        std::fs::create_dir_all(tree.join("logs/deep")).expect("folders");
        std::fs::write(tree.join("logs/rank-0.log"), vec![b'x'; 8_192]).expect("a file");
        std::fs::write(tree.join("logs/deep/file"), "x").expect("a file");
        tree
    }

    #[test]
    fn links_lead_nowhere_and_odd_names_are_removed() {
        let root = tempfile::tempdir().expect("a folder");
        let outside = root.path().join("outside");
        std::fs::create_dir(&outside).expect("a folder");
        std::fs::write(outside.join("kept"), "kept").expect("a file");
        let tree = tree(root.path());
        symlink(&outside, tree.join("to a folder")).expect("a link");
        symlink(outside.join("kept"), tree.join("to a file")).expect("a link");
        symlink("/nowhere", tree.join("to nothing")).expect("a link");
        symlink("..", tree.join("up")).expect("a link");
        std::fs::hard_link(outside.join("kept"), tree.join("hard")).expect("another name");
        for odd in [&b"-rf *"[..], b"new\nline", b"not \xff text", b"...", b" ", b"proc"] {
            std::fs::write(tree.join(OsStr::from_bytes(odd)), "x").expect("a file");
        }
        assert!(std::process::Command::new("mkfifo").arg(tree.join("fifo")).status().is_ok_and(|made| made.success()));
        let (is_gone, removed, failure) = remove(root.path(), "tree");
        assert_eq!((is_gone, removed.entries, removed.left, failure), (true, 17, 0, None));
        assert!(removed.bytes >= 8_192, "{removed:?}");
        assert_eq!(std::fs::read(outside.join("kept")).expect("it is there"), b"kept");
        assert_eq!(std::fs::read_dir(root.path()).expect("it is there").count(), 1, "the root stays");
        symlink(&outside, root.path().join("link")).expect("a link");
        assert!(remove(root.path(), "link").0, "a link itself goes");
        assert!(outside.join("kept").exists());
        assert!(remove(root.path(), "link").0, "what isn't there is gone");
    }

    #[test]
    fn counting_removes_nothing() {
        let root = tempfile::tempdir().expect("a folder");
        let tree = tree(root.path());
        let mut walk = Walk::counting();
        let parent = open_root(root.path()).expect("it is there");
        walk.tree(parent.as_fd(), c"tree").expect("nobody stops it");
        assert_eq!((walk.removed.entries, walk.removed.left), (5, 0));
        assert!(tree.join("logs/deep/file").exists() && tree.join("logs/rank-0.log").exists());
    }

    #[test]
    fn what_is_mounted_there_stays() {
        let root = tempfile::tempdir().expect("a folder");
        let tree = tree(root.path());
        let parent = open_root(root.path()).expect("it is there");
        let mut ask = || Ok(());
        let mut walk = Walk::removing(&mut ask);
        let device = fstat(&parent).expect("it is there").st_dev;
        // As if the tree were on another file system than its folder.
        assert!(!walk.entry(parent.as_fd(), c"tree", device + 1, 0).expect("nobody stops it"));
        assert_eq!(walk.failure.as_deref(), Some("tree: something is mounted there"));
        assert!(tree.join("logs/deep/file").exists());
    }

    #[test]
    fn what_cannot_be_removed_is_told_and_the_rest_goes() {
        let root = tempfile::tempdir().expect("a folder");
        let tree = tree(root.path());
        std::fs::set_permissions(tree.join("logs/deep"), std::fs::Permissions::from_mode(0o500)).expect("it is ours");
        let path = root.path().to_owned();
        let is_root = rustix::process::geteuid().is_root();
        if is_root {
            // Root may do anything, so a thread becomes a user who owns all but `logs/deep`.
            for path in [root.path(), &tree, &tree.join("logs"), &tree.join("logs/rank-0.log")] {
                std::os::unix::fs::chown(path, Some(65_534), None).expect("we are root");
            }
        }
        let removal = std::thread::spawn(move || {
            if is_root {
                let nobody = rustix::process::Uid::from_raw(65_534);
                rustix::thread::set_thread_uid(nobody).expect("this thread may become anybody");
            }
            remove(&path, "tree")
        });
        let (is_gone, removed, failure) = removal.join().expect("no panic");
        let failure = failure.expect("something stays");
        assert!(!is_gone && removed.left >= 1 && failure.contains("Permission denied"), "{removed:?} {failure}");
        assert!(!tree.join("logs/rank-0.log").exists() && tree.join("logs/deep/file").exists());
        std::fs::set_permissions(tree.join("logs/deep"), std::fs::Permissions::from_mode(0o700)).expect("it is ours");
    }

    /// Proves A-10: a tree that is too deep is reported, and stays.
    #[test]
    fn a_tree_that_is_too_deep_is_left_and_one_who_stops_is_obeyed() {
        let root = tempfile::tempdir().expect("a folder");
        let deep = (0..70).fold(root.path().join("tree"), |path, _| path.join("d"));
        std::fs::create_dir_all(&deep).expect("folders");
        let (is_gone, removed, failure) = remove(root.path(), "tree");
        assert_eq!((is_gone, removed.left), (false, 1));
        assert_eq!(failure.as_deref(), Some("d: too many folders lie within each other"));
        let mut left = 2;
        let mut ask = || {
            left -= 1;
            if left < 0 { Err(io::Error::other("stop")) } else { Ok(()) }
        };
        let other = root.path().join("other");
        std::fs::create_dir(&other).expect("a folder");
        (0..9).for_each(|name| std::fs::write(other.join(name.to_string()), "x").expect("a file"));
        let parent = open_root(root.path()).expect("it is there");
        Walk::removing(&mut ask).tree(parent.as_fd(), c"other").expect_err("it is stopped");
        assert_eq!(std::fs::read_dir(&other).expect("it is there").count(), 7);
    }
}
