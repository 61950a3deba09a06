//! The list of a copy's files, and their contents on disk.
//!
//! A list is text: a first line with the format's version, then a line for each path: its kind (`d`, `-`, `x` for a
//! file that can be executed, `l`), the checksum of its content, and the path. A copy's id is the checksum of its
//! list, so a list that was changed is never unpacked; nor is a content.

use std::fmt::Write as _;
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt, symlink};
use std::path::{Component, Path, PathBuf};

use gangline_base::Bytes;
use rustix::fs::{Timespec, Timestamps, UTIME_NOW, UTIME_OMIT, futimens};

use super::Error;
use super::walk::{Found, Kind};

/// Times of a file that is used again: modified now.
const TOUCHED: Timestamps = Timestamps {
    last_access: Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT },
    last_modification: Timespec { tv_sec: 0, tv_nsec: UTIME_NOW },
};
const VERSION: &str = "gangline-code 1";
/// The largest list that is read.
const LIST_MAX: Bytes = Bytes(64 << 20);
/// The file beside an unpacked copy with its differences from its commit.
const CHANGES_FILE: &str = "changes.diff";

/// The list of a copy's files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Tree {
    list: String,
    changes: Vec<u8>,
}

impl Tree {
    /// Reads the contents of all files, and keeps them in `store` if it is given.
    pub(super) fn read(folder: &Path, found: &[Found], store: Option<&Path>) -> Result<Tree, Error> {
        let mut list = format!("{VERSION}\n");
        for Found { path, kind } in found {
            let full = folder.join(path);
            let failed = Error::at(&full);
            let (letter, content) = match kind {
                Kind::Folder => ('d', None),
                Kind::Link => ('l', Some(fs::read_link(&full).map_err(&failed)?.into_os_string().into_vec())),
                Kind::File => {
                    let (is_program, content) = content(&full).map_err(&failed)?;
                    (if is_program { 'x' } else { '-' }, Some(content))
                }
            };
            let name = path.to_str().expect("the walk refuses other names");
            let digest = content.as_ref().map_or_else(|| "-".to_owned(), |content| digest(content));
            if let (Some(store), Some(content)) = (store, content) {
                keep_content(store, &digest, &content)?;
            }
            writeln!(list, "{letter} {digest} {name}").expect("a text takes everything");
        }
        Ok(Tree { list, changes: Vec::new() })
    }

    /// Adds the differences from the commit.
    pub(super) fn with_changes(mut self, changes: &[u8]) -> Tree {
        if !changes.is_empty() {
            changes.clone_into(&mut self.changes);
            writeln!(self.list, "c {} {CHANGES_FILE}", digest(changes)).expect("a text takes everything");
        }
        self
    }

    /// Returns the copy's content id.
    pub(super) fn id(&self) -> String {
        digest(self.list.as_bytes())
    }

    /// Keeps the list; the contents are kept already. A list that is used again counts as new.
    pub(super) fn keep(&self, store: &Path) -> Result<(), Error> {
        if !self.changes.is_empty() {
            keep_content(store, &digest(&self.changes), &self.changes)?;
        }
        let path = list_of(store, &self.id()).expect("a checksum is a name");
        write(&path, self.list.as_bytes()).map_err(Error::at(&path))
    }

    /// Reads a list that was kept.
    pub(super) fn load(store: &Path, id: &str) -> io::Result<Tree> {
        let path = list_of(store, id).ok_or_else(|| damaged("it has no name of a copy"))?;
        let mut list = String::new();
        File::open(path)?.take(LIST_MAX.0).read_to_string(&mut list)?;
        if digest(list.as_bytes()) != id {
            return Err(damaged("the list of its files was changed"));
        }
        Ok(Tree { list, changes: Vec::new() })
    }

    /// Returns the checksums of all contents.
    pub(super) fn contents(&self) -> impl Iterator<Item = &str> {
        self.lines().filter(|(kind, _, _)| *kind != "d").map(|(_, digest, _)| digest)
    }

    /// Unpacks it aside and gives it its name when it is whole.
    pub(super) fn unpack(&self, store: &Path, folder: &Path) -> io::Result<()> {
        let parent = folder.parent().ok_or_else(|| damaged("it has no place"))?;
        fs::DirBuilder::new().recursive(true).mode(0o700).create(parent)?;
        let aside = folder.with_extension("aside");
        remove_all(&aside)?;
        fs::create_dir(&aside)?;
        for (kind, digest, name) in self.lines() {
            let below = Path::new(name);
            if !below.components().all(|part| matches!(part, Component::Normal(_))) {
                return Err(damaged("a path leads out of it"));
            }
            let path = aside.join(below);
            match kind {
                "d" => fs::create_dir(&path)?,
                "c" => fs::write(parent.join(CHANGES_FILE), kept_content(store, digest)?)?,
                "l" => symlink(std::ffi::OsStr::from_bytes(&kept_content(store, digest)?), &path)?,
                "-" | "x" => {
                    let mode = if kind == "x" { 0o755 } else { 0o644 };
                    let mut file = fs::OpenOptions::new().write(true).create_new(true).mode(mode).open(&path)?;
                    file.write_all(&kept_content(store, digest)?)?;
                }
                _ => return Err(damaged("it was made by a newer release")),
            }
        }
        fs::rename(&aside, folder)
    }

    fn lines(&self) -> impl Iterator<Item = (&str, &str, &str)> {
        self.list.lines().skip(1).filter_map(|line| {
            let (kind, rest) = line.split_once(' ')?;
            let (digest, name) = rest.split_once(' ')?;
            Some((kind, digest, name))
        })
    }
}

fn damaged(why: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, why)
}

fn digest(bytes: &[u8]) -> String {
    blake3::hash(bytes).to_hex().to_string()
}

/// Reports whether a text can be a checksum, and so a name.
fn is_digest(text: &str) -> bool {
    text.len() == 64 && text.bytes().all(|byte| byte.is_ascii_hexdigit())
}

/// Returns the place of a list.
pub(super) fn list_of(store: &Path, id: &str) -> Option<PathBuf> {
    is_digest(id).then(|| store.join("trees").join(id))
}

/// Returns the place of a content.
fn place_of(store: &Path, digest: &str) -> Option<PathBuf> {
    is_digest(digest).then(|| store.join("contents").join(&digest[..2]).join(&digest[2..]))
}

/// Returns whether a file can be executed, and its content. A file that grows while it is read is cut.
fn content(path: &Path) -> io::Result<(bool, Vec<u8>)> {
    let file = File::open(path)?;
    let metadata = file.metadata()?;
    let mut content = Vec::new();
    file.take(metadata.len()).read_to_end(&mut content)?;
    Ok((metadata.permissions().mode() & 0o111 != 0, content))
}

fn keep_content(store: &Path, digest: &str, content: &[u8]) -> Result<(), Error> {
    let place = place_of(store, digest).expect("a checksum is a name");
    let is_kept = place.metadata().is_ok_and(|kept| usize::try_from(kept.len()) == Ok(content.len()));
    let kept = if is_kept {
        // It counts as new, so that no pruning takes it before its list is kept.
        File::open(&place).and_then(|kept| Ok(futimens(kept, &TOUCHED)?))
    } else {
        write(&place, content)
    };
    kept.map_err(Error::at(&place))
}

fn kept_content(store: &Path, name: &str) -> io::Result<Vec<u8>> {
    let content = fs::read(place_of(store, name).ok_or_else(|| damaged("it names no content"))?)?;
    if digest(&content) != name {
        return Err(damaged("a file's content was changed"));
    }
    Ok(content)
}

/// Writes a file aside, and gives it its name when it is whole and on the disk.
pub(super) fn write(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let parent = path.parent().ok_or_else(|| damaged("it has no place"))?;
    fs::DirBuilder::new().recursive(true).mode(0o700).create(parent)?;
    // Two submissions may write the same file at once.
    let mut random = [0; 8];
    getrandom::fill(&mut random).map_err(io::Error::other)?;
    let aside = path.with_extension(format!("aside-{:016x}", u64::from_ne_bytes(random)));
    let mut file = fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(&aside)?;
    let written = file.write_all(bytes).and_then(|()| file.sync_all()).and_then(|()| fs::rename(&aside, path));
    if written.is_err() {
        let _ = fs::remove_file(&aside);
    }
    written
}

/// Removes a folder and what is in it, if it is there.
pub(super) fn remove_all(folder: &Path) -> io::Result<()> {
    match fs::remove_dir_all(folder) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}
