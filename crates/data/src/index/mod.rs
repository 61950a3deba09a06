//! What says which files a dataset has: manifests and indexes, as they are parsed.

pub(crate) mod native;
pub(crate) mod rows;

use std::path::Path;

use crate::error::Error;

/// The most files of a source.
pub const FILES_MAX: usize = 100_000;
/// The largest index that is read.
pub(crate) const INDEX_BYTES_MAX: u64 = 256 << 20;
/// The files that say which others a folder has.
pub(crate) const INDEXES: [&str; 2] = [native::MANIFEST, rows::INDEX];

/// The files that a manifest or an index of this name says that there are.
pub(crate) fn names_in(path: &Path, name: &str, text: &[u8]) -> Result<Vec<String>, Error> {
    if name == rows::INDEX {
        return rows::names(path, text);
    }
    let manifest = native::parse(path, text)?;
    let names = |number| [native::tokens_name(number), native::documents_name(number)];
    Ok((0..manifest.files.len()).flat_map(names).collect())
}
