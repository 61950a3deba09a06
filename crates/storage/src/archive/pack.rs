//! Packs under construction: chunks one after the other, in an encrypted archive each followed by room for a
//! tag.

use std::collections::BTreeMap;

use gangline_objects::Object;

use super::Error;
use super::access::Change;
use super::catalog::{PACK_BYTES, Pack, pack_key};
use super::vault::Vault;

/// The magic of packs, which identifies them.
pub(crate) const PACK_MAGIC: &[u8; 8] = b"GLpack\x00\x01";

/// A pack that accepts more chunks.
pub(crate) struct OpenPack {
    bytes: Vec<u8>,
    places: Vec<(usize, usize)>,
}

/// A complete pack.
pub(crate) struct Closed {
    pub(crate) pack: Pack,
    pub(crate) bytes: Vec<u8>,
}

impl OpenPack {
    pub(crate) fn new() -> OpenPack {
        OpenPack { bytes: PACK_MAGIC.to_vec(), places: Vec::new() }
    }

    /// Adds a chunk. Returns its offset, and whether the pack is now full.
    pub(crate) fn add(&mut self, vault: &Vault, chunk: &[u8]) -> (u64, bool) {
        let offset = self.bytes.len();
        self.places.push((offset, chunk.len()));
        self.bytes.extend_from_slice(chunk);
        self.bytes.resize(self.bytes.len() + vault.tag_bytes(), 0);
        (offset as u64, self.bytes.len() >= PACK_BYTES)
    }

    pub(crate) fn close(mut self, vault: &Vault) -> Closed {
        let pack = vault.close_pack(&mut self.bytes, &self.places);
        Closed { pack, bytes: self.bytes }
    }
}

/// Puts a pack, unless a good copy is already there. Returns whether it was put.
pub(crate) fn put(change: &Change<'_>, listed: &BTreeMap<String, Object>, closed: &Closed) -> Result<bool, Error> {
    let Closed { pack, bytes } = closed;
    let key = pack_key(&pack.blake3);
    if pack.check(listed.get(&key)).is_ok() {
        match change.access.link.get(&key, 0..pack.bytes) {
            Ok(there) if there == *bytes => return Ok(false),
            Ok(_) | Err(gangline_objects::Error::Missing { .. } | gangline_objects::Error::Length { .. }) => {}
            Err(error) => return Err(error.into()),
        }
    }
    change.put(&key, bytes)?;
    Ok(true)
}
