//! Gangline's own flat format: a folder with `manifest.json`, files of little-endian tokens, and the ends of documents. Each
//! MiB of tokens has a checksum (XXH3, 64 bits), which is compared when the block is first read.

use std::path::Path;

use xxhash_rust::xxh3::xxh3_64;

use crate::error::Error;
use crate::index::INDEX_BYTES_MAX;
use crate::index::native::{Described, MANIFEST, documents_name, parse, tokens_name};
use crate::sealed::{BLOCK_BYTES, hex};
use crate::source::Files;
use crate::source::flat::check_ends;
use crate::source::layout::{Ends, Layout};
use crate::token_type::TokenType;

/// Reads a folder by its manifest.
pub(crate) fn read(files: &Files<'_>, folder: &Path) -> Result<Layout, Error> {
    let path = folder.join(MANIFEST);
    let size = std::fs::metadata(&path).map_err(Error::io("open", &path))?.len();
    if size > INDEX_BYTES_MAX {
        return Err(Error::malformed(&path, 0, format!("it has {size} bytes, more than {INDEX_BYTES_MAX}")));
    }
    let manifest = parse(&path, &std::fs::read(&path).map_err(Error::io("read", &path))?)?;
    let mut layout = Layout::new(manifest.data_type);
    for (number, described) in manifest.files.iter().enumerate() {
        let file = files.open(&folder.join(tokens_name(number)))?;
        let bytes = file.len();
        if bytes as u64 != described.bytes || described.blocks.len() != bytes.div_ceil(BLOCK_BYTES) {
            let problem = format!(
                "the manifest says {} bytes in {} blocks, and it has {bytes}",
                described.bytes,
                described.blocks.len()
            );
            return Err(Error::malformed(file.path(), bytes, problem));
        }
        layout.sums.push(sums(&path, &described.blocks)?);
        let at = layout.add_file(file)?;
        layout.add_piece(at, 0, bytes)?;
        layout.ends.push(ends(&folder.join(documents_name(number)), described, manifest.data_type)?);
    }
    if layout.tokens() != manifest.tokens {
        let problem = format!("the manifest says {} tokens, and its files have {}", manifest.tokens, layout.tokens());
        return Err(Error::malformed(&path, 0, problem));
    }
    Ok(layout)
}

fn ends(path: &Path, described: &Described, data_type: TokenType) -> Result<Ends, Error> {
    let size = std::fs::metadata(path).map_err(Error::io("open", path))?.len();
    if Some(size) != described.documents.checked_mul(8) {
        let problem = format!("{} documents have no {size} bytes of ends", described.documents);
        return Err(Error::malformed(path, 0, problem));
    }
    let bytes = std::fs::read(path).map_err(Error::io("read", path))?;
    if hex(xxh3_64(&bytes)) != described.documents_xxh3 {
        return Err(Error::malformed(path, 0, "its checksum differs: copy it again"));
    }
    check_ends(path, &bytes, described.bytes / data_type.bytes() as u64)?;
    Ok(Ends::Offsets(bytes))
}

fn sums(path: &Path, blocks: &[String]) -> Result<Vec<u64>, Error> {
    let parse = |text: &String| u64::from_str_radix(text, 16).ok().filter(|_| text.len() == 16);
    let sums = blocks.iter().map(parse).collect::<Option<Vec<u64>>>();
    sums.ok_or_else(|| Error::malformed(path, 0, "a checksum isn't 16 hexadecimal digits"))
}
