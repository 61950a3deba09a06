//! Folders of files that trackers wrote.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use crate::failure::Failure;

/// How deep folders are searched.
const DEPTH_MAX: usize = 16;

/// Files by their folders.
pub(super) type Folders = BTreeMap<PathBuf, Vec<PathBuf>>;

/// Returns the real path of a folder, and the files at or below it whose names are wanted, sorted.
pub(super) fn with(root: &Path, is_wanted: impl Fn(&str) -> bool) -> Result<(PathBuf, Folders), Failure> {
    let unlisted = |error: io::Error| Failure::local(format!("{} can't be listed: {error}", root.display()), "");
    let root = root.canonicalize().map_err(unlisted)?;
    let mut found = Folders::new();
    find(&root, DEPTH_MAX, &is_wanted, &mut found).map_err(unlisted)?;
    found.values_mut().for_each(|files| files.sort());
    Ok((root, found))
}

fn find(folder: &Path, depth: usize, is_wanted: &dyn Fn(&str) -> bool, found: &mut Folders) -> io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let is_folder = entry.file_type()?.is_dir();
        if is_folder && depth > 0 {
            find(&entry.path(), depth - 1, is_wanted, found)?;
        } else if !is_folder && is_wanted(&entry.file_name().to_string_lossy()) {
            found.entry(folder.to_owned()).or_default().push(entry.path());
        }
    }
    Ok(())
}
