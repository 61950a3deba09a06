//! Which files of a folder are copied: those that no `.gitignore` names, without `.git`.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use gangline_base::Bytes;
use ignore::WalkBuilder;

use super::Error;

/// The most files of a copy.
const FILES_MAX: usize = 20_000;
/// A file that names more to leave out, for what git keeps and jobs don't need.
const OWN_IGNORE_FILE: &str = ".ganglineignore";

/// What is to be copied at a path, relative to the folder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Found {
    pub(super) path: PathBuf,
    pub(super) kind: Kind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Folder,
    File,
    Link,
}

/// Lists what is copied, in the order of paths, without the folders `left_out`.
pub(super) fn files(folder: &Path, left_out: &[&Path], bytes_max: Bytes) -> Result<Vec<Found>, Error> {
    let walk = WalkBuilder::new(folder)
        .standard_filters(false)
        .git_ignore(true)
        .git_exclude(true)
        .parents(true)
        .require_git(false)
        .add_custom_ignore_filename(OWN_IGNORE_FILE)
        .sort_by_file_path(Path::cmp)
        .filter_entry({
            let left_out: Vec<PathBuf> = left_out.iter().map(|folder| folder.to_path_buf()).collect();
            move |entry| entry.file_name() != ".git" && left_out.iter().all(|folder| folder != entry.path())
        })
        .build();
    let mut found = Vec::new();
    let mut sizes = Sizes::default();
    for entry in walk {
        let entry = entry.map_err(|error| failed(folder, error))?;
        let Ok(path) = entry.path().strip_prefix(folder) else { continue };
        if path.as_os_str().is_empty() {
            continue;
        }
        let metadata = entry.path().symlink_metadata().map_err(Error::at(entry.path()))?;
        let kind = metadata.file_type();
        let kind = match (kind.is_dir(), kind.is_file(), kind.is_symlink()) {
            (true, _, _) => Kind::Folder,
            (_, true, _) => Kind::File,
            (_, _, true) => Kind::Link,
            _ => return Err(Error::Special { path: entry.path().to_owned() }),
        };
        if path.to_str().is_none_or(|path| path.contains(['\n', '\r'])) {
            return Err(Error::Name { path: entry.path().to_owned() });
        }
        sizes.add(path, if kind == Kind::File { metadata.len() } else { 0 });
        found.push(Found { path: path.to_owned(), kind });
    }
    sizes.check(bytes_max)?;
    Ok(found)
}

fn failed(folder: &Path, error: ignore::Error) -> Error {
    let text = error.to_string();
    let source = error.into_io_error().unwrap_or_else(|| std::io::Error::other(text));
    Error::Io { path: folder.to_owned(), source }
}

/// The sizes of what lies directly in the folder.
#[derive(Default)]
struct Sizes {
    files: usize,
    bytes: u64,
    by_first: BTreeMap<String, (u64, usize)>,
}

impl Sizes {
    fn add(&mut self, path: &Path, bytes: u64) {
        self.files += 1;
        self.bytes = self.bytes.saturating_add(bytes);
        let first = path.iter().next().unwrap_or_default().to_string_lossy().into_owned();
        let of_first = self.by_first.entry(first).or_default();
        *of_first = (of_first.0.saturating_add(bytes), of_first.1 + 1);
    }

    fn check(&self, bytes_max: Bytes) -> Result<(), Error> {
        if self.bytes > bytes_max.0 {
            let largest = self.by_first.iter().max_by_key(|(_, (bytes, _))| *bytes);
            let largest = largest.map_or_else(String::new, |(name, (bytes, _))| format!("{name} ({})", Bytes(*bytes)));
            return Err(Error::TooLarge { max: bytes_max, largest });
        }
        if self.files > FILES_MAX {
            let largest = self.by_first.iter().max_by_key(|(_, (_, files))| *files);
            let largest = largest.map_or_else(String::new, |(name, (_, files))| format!("{name} ({files})"));
            return Err(Error::TooMany { max: FILES_MAX, largest });
        }
        Ok(())
    }
}
