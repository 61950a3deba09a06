//! Describes an archived checkpoint by its manifest, which is stored in the archive as one more item. No
//! tensor is read.
//!
//! Keeps A-10: the manifest's length is limited, whatever the catalog says.

use super::Error;
use super::access::Access;
use super::catalog::{Catalog, catalog_key};
use super::fetch::Fetcher;
use crate::manifest::{MANIFEST_BYTES_MAX, parse_manifest};
use crate::{CheckpointInfo, Flaw};

/// Reads the manifest of the catalog's checkpoint.
pub(crate) fn info(access: &Access<'_>, catalog: &Catalog) -> Result<CheckpointInfo, Error> {
    let corrupt = |flaw| Error::corrupt(catalog_key(catalog.step), flaw);
    if catalog.manifest.bytes > MANIFEST_BYTES_MAX {
        return Err(corrupt(Flaw::Malformed { what: "its manifest is larger than 512 MiB" }));
    }
    let mut text = Vec::new();
    Fetcher::new(access, catalog).item(&catalog.manifest, |bytes| {
        text.extend_from_slice(bytes);
        Ok::<(), Error>(())
    })?;
    let manifest = parse_manifest(&text, catalog.step).map_err(corrupt)?;
    if manifest.content_blake3 != catalog.content_blake3 {
        return Err(corrupt(Flaw::Malformed { what: "its manifest is another's" }));
    }
    Ok(manifest.info())
}
