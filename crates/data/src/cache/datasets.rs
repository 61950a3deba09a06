//! What a cache holds of each dataset, for placing jobs near their data: a program that opens a dataset writes a list of its
//! objects' copies, and any program that may read the folder can measure how much of these copies is there.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::copy::Copy;
use super::{Cache, DATASETS, OBJECTS, put};
use crate::error::Error;
use crate::sealed;

/// The environment variable that says where the cache is.
pub const CACHE_VARIABLE: &str = "GANGLINE_DATA_CACHE";
/// The most datasets of a cache that are looked at.
const DATASETS_MAX: usize = 1_024;
/// Bytes of a block by which file systems say what a file takes.
const BLOCK_BYTES: u64 = 512;

/// What a cache holds of a dataset.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DatasetHolding {
    /// The dataset's address, as it was opened.
    pub url: String,
    /// Bytes that are in the cache, by what its files take on the disk.
    pub here: u64,
    /// Bytes of the dataset.
    pub bytes: u64,
}

/// The copies of a dataset's objects.
#[derive(Serialize, Deserialize)]
struct Listed {
    url: String,
    /// The name and the bytes of each copy.
    copies: BTreeMap<String, u64>,
}

/// Lists the copies of a dataset, in place of those that were listed when it was last opened.
pub(super) fn list(cache: &Cache, url: &str, copies: &[Copy]) -> Result<(), Error> {
    let copies = copies.iter().map(|copy| (copy.item().key.clone(), copy.item().bytes)).collect();
    let text = sealed::seal(&Listed { url: url.to_owned(), copies });
    let name = &blake3::hash(url.as_bytes()).to_hex()[..32];
    let path = cache.options.root.join(DATASETS).join(name);
    if fs::read(&path).is_ok_and(|known| known == text) {
        return Ok(());
    }
    put(&path, &text)
}

/// Returns what the cache in a folder holds of the datasets that were opened there, without those of which it holds nothing.
/// It takes no lock and one look at each object's file. The lists of datasets whose copies are gone are removed.
///
/// # Errors
/// If the folder is there and can't be read.
pub fn holdings_of(root: &Path) -> Result<Vec<DatasetHolding>, Error> {
    let folder = root.join(DATASETS);
    let entries = match fs::read_dir(&folder) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries.map_err(Error::io("list", &folder))?,
    };
    let mut found = Vec::new();
    // A list that is being written has an extension.
    let lists = entries.flatten().filter(|entry| entry.path().extension().is_none());
    for entry in lists.take(DATASETS_MAX) {
        let listed = fs::read(entry.path()).ok().and_then(|text| sealed::unseal::<Listed>(&text).ok());
        let Some((Listed { url, copies }, true)) = listed else { continue };
        let files = copies.iter().map(|(key, bytes)| Some((fs::metadata(root.join(OBJECTS).join(key)).ok()?, *bytes)));
        let files: Vec<(fs::Metadata, u64)> = files.flatten().collect();
        if files.is_empty() {
            // Its copies made room for others; whoever opens it again lists them again.
            let _ = fs::remove_file(entry.path());
            continue;
        }
        let here = files.iter().map(|(file, bytes)| (file.blocks() * BLOCK_BYTES).min(*bytes)).sum();
        if here > 0 {
            found.push(DatasetHolding { url, here, bytes: copies.values().sum() });
        }
    }
    found.sort_by(|one, other| other.here.cmp(&one.here).then_with(|| one.url.cmp(&other.url)));
    Ok(found)
}

/// Returns the folder of the cache that a program with this environment uses: what [`CACHE_VARIABLE`] says, or
/// `gangline/data` in the user's folder for caches.
#[must_use]
pub fn cache_folder(environment: &BTreeMap<OsString, OsString>) -> Option<PathBuf> {
    let of = |name: &str| environment.get(&OsString::from(name)).filter(|value| !value.is_empty()).map(PathBuf::from);
    let default = || Some(of("XDG_CACHE_HOME").or_else(|| Some(of("HOME")?.join(".cache")))?.join("gangline/data"));
    of(CACHE_VARIABLE).or_else(default)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_folder_is_the_one_that_is_named_or_the_users() {
        let of = |pairs: &[(&str, &str)]| {
            cache_folder(&pairs.iter().map(|(name, value)| ((*name).into(), (*value).into())).collect())
        };
        assert_eq!(of(&[("HOME", "/h"), (CACHE_VARIABLE, "/c"), ("XDG_CACHE_HOME", "/x")]), Some("/c".into()));
        assert_eq!(
            of(&[("HOME", "/h"), (CACHE_VARIABLE, ""), ("XDG_CACHE_HOME", "/x")]),
            Some("/x/gangline/data".into())
        );
        assert_eq!(of(&[("HOME", "/h")]), Some("/h/.cache/gangline/data".into()));
        assert_eq!(of(&[]), None);
    }
}
