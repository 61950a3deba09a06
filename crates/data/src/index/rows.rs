//! The `index.json` of MosaicML Streaming's shards (MDS) and of LitData's chunks.

use std::path::{Component, Path};

use serde::Deserialize;

use super::FILES_MAX;
use crate::error::Error;

/// The index's name in its folder.
pub(crate) const INDEX: &str = "index.json";

/// What both formats' indexes may have; MDS has shards and LitData chunks.
#[derive(Deserialize)]
pub(crate) struct Index {
    pub(crate) version: Option<u32>,
    pub(crate) shards: Option<Vec<Shard>>,
    pub(crate) chunks: Option<Vec<Chunk>>,
    pub(crate) config: Option<Config>,
}

/// A shard of MDS.
#[derive(Deserialize)]
pub(crate) struct Shard {
    pub(crate) format: String,
    pub(crate) column_names: Vec<String>,
    pub(crate) column_encodings: Vec<String>,
    pub(crate) compression: Option<String>,
    pub(crate) raw_data: Raw,
    /// The compressed file, if it is one.
    pub(crate) zip_data: Option<Raw>,
    pub(crate) samples: u32,
}

#[derive(Deserialize)]
pub(crate) struct Raw {
    pub(crate) basename: String,
    pub(crate) bytes: u64,
}

/// A chunk of LitData.
#[derive(Deserialize)]
pub(crate) struct Chunk {
    pub(crate) filename: String,
    pub(crate) chunk_bytes: u64,
    pub(crate) chunk_size: u32,
    pub(crate) dim: Option<u64>,
}

#[derive(Deserialize)]
pub(crate) struct Config {
    pub(crate) compression: Option<String>,
    pub(crate) encryption: Option<serde_json::Value>,
    pub(crate) data_format: Option<Vec<String>>,
}

/// The files that an index names; nothing outside of its folder.
pub(crate) fn names(path: &Path, text: &[u8]) -> Result<Vec<String>, Error> {
    let index = parse(path, text)?;
    let shards = index.shards.into_iter().flatten().map(|shard| shard.stored().basename.clone());
    let names: Vec<String> = shards.chain(index.chunks.into_iter().flatten().map(|chunk| chunk.filename)).collect();
    match names.iter().find(|name| !is_plain(name) || name.contains('/')) {
        Some(name) => Err(Error::malformed(path, 0, format!("{name:?} is no name of a file in this folder"))),
        None if names.len() > FILES_MAX => {
            Err(Error::malformed(path, 0, format!("it names more than {FILES_MAX} files")))
        }
        None => Ok(names),
    }
}

impl Shard {
    /// Returns the file that there is of it.
    fn stored(&self) -> &Raw {
        self.zip_data.as_ref().filter(|_| self.compression.is_some()).unwrap_or(&self.raw_data)
    }
}

/// Whether a name is one of a file in its folder, or below.
pub(crate) fn is_plain(name: &str) -> bool {
    !name.is_empty() && Path::new(name).components().all(|part| matches!(part, Component::Normal(_)))
}

/// Accepts or refuses an index, for the fuzzer.
#[cfg(feature = "fuzz")]
pub(crate) fn fuzz_index(text: &[u8]) {
    let _ = parse(Path::new("index.json"), text);
}

pub(crate) fn parse(path: &Path, text: &[u8]) -> Result<Index, Error> {
    serde_json::from_slice(text)
        .map_err(|error| Error::malformed(path, 0, format!("no index of MDS or LitData: {error}")))
}
