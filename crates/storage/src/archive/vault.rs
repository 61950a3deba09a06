//! Encrypts and decrypts an archive's objects, with keys for an encrypted archive; a plain archive has none.
//!
//! Keeps A-9 (objects have a version) and A-10 (keys, wraps and lengths are limited). The keys form an
//! envelope, as in NIST SP 800-57 part 1 (section 5.3.6) and every key management service:
//!
//! - the **wrapping key** belongs to the owner and is never in the archive (`secret`);
//! - **data keys** encrypt packs and catalogs; they are in `keys/`, wrapped (`record`), so the wrapping key
//!   can be replaced without touching data (`rotation`);
//! - the **naming key** makes ids: those of packs, and of the items and chunks that catalogs list, are keyed
//!   hashes, so that two archives show no equal ids for equal tensors. The whole archive has one naming key,
//!   wrapped with each data key, so that equal content in one archive is still stored once.
//!
//! `cipher` defines how objects are encrypted. An observer without a key sees the number of objects, their
//! sizes and times, the steps in the catalogs' names, and the ids of keys. An attacker who replaces objects
//! by earlier versions can restore an older state of the whole archive, as with any store without an outside
//! record; replacing keys alone is detected, since catalogs record the generation of keys that they were
//! encrypted under.

mod cipher;
mod error;
mod record;
mod rotation;
mod secret;

use std::collections::BTreeMap;

use gangline_objects::Link;

use super::Error;
use super::catalog::Pack;
use super::known::list_catalogs;
use crate::{Digest, Flaw};
use cipher::{Cipher, nonce_at};
use record::{Opened, Record, read_all};
#[cfg(test)]
pub(crate) use secret::Secret;
#[cfg(not(test))]
use secret::Secret;

pub use error::KeyError;
pub use rotation::{KeyShown, Rotated, Rotation};
pub use secret::{KeyId, WrappingKey};

pub(crate) use cipher::TAG_BYTES;
pub(crate) use rotation::{init, rotate, show};

/// The magic of an encrypted catalog.
const CATALOG_MAGIC: &[u8; 8] = b"GLsealed";
/// The version of an encrypted catalog's head.
const CATALOG_VERSION: u32 = 1;
/// The head: magic, version, key, generation, synthetic id.
const HEAD_BYTES: usize = 8 + 4 + KeyId::BYTES + 8 + 32;
/// What encryption adds to a catalog.
pub(crate) const CATALOG_BYTES_ADDED: u64 = (HEAD_BYTES + TAG_BYTES) as u64;

const CONTENT: &str = "gangline archive 2026-11-22 id of an item or a chunk";
const PACK: &str = "gangline archive 2026-11-22 id of a pack";
const CATALOG: &str = "gangline archive 2026-11-22 id of a catalog";
const PACK_KEY: &str = "gangline archive 2026-11-22 key of a pack";
const CATALOG_KEY: &str = "gangline archive 2026-11-22 key of a catalog";

/// Encrypts and decrypts an archive's objects.
pub(crate) enum Vault {
    /// Objects are plain.
    Plain,
    /// Objects are encrypted.
    Sealed(Box<Keys>),
}

/// The keys of an archive.
pub(crate) struct Keys {
    archive: KeyId,
    generation: u64,
    data: BTreeMap<KeyId, Secret>,
    /// The key that encrypts new objects.
    current: KeyId,
    /// The key that makes ids from hashes of content.
    contents: Secret,
    packs: Secret,
    catalogs: Secret,
}

/// The unencrypted head of an encrypted catalog.
struct Head {
    key: KeyId,
    generation: u64,
    id: [u8; 32],
}

impl Vault {
    /// Opens the vault of an archive; none if a key is given for an empty archive.
    pub(crate) fn open(link: &Link, key: Option<&WrappingKey>) -> Result<Option<Vault>, Error> {
        let records = read_all(link)?;
        match key {
            None if records.is_empty() => Ok(Some(Vault::Plain)),
            None => Err(KeyError::Needed { wanted: wanted(&records) }.into()),
            Some(_) if records.is_empty() && is_empty(link)? => Ok(None),
            Some(_) if records.is_empty() => Err(KeyError::Unneeded.into()),
            Some(key) => Ok(Some(Vault::Sealed(Box::new(Keys::open(&records, key)?)))),
        }
    }

    /// Returns the id of content with this hash.
    pub(crate) fn name(&self, content: Digest) -> Digest {
        match self {
            Vault::Plain => content,
            Vault::Sealed(keys) => blake3::keyed_hash(keys.contents.bytes(), content.as_bytes()).into(),
        }
    }

    /// Returns the bytes that each chunk of a pack takes in addition to its own.
    pub(crate) fn tag_bytes(&self) -> usize {
        if matches!(self, Vault::Plain) { 0 } else { TAG_BYTES }
    }

    /// Names a pack, and encrypts its chunks in place. `places` gives their locations, each followed by room
    /// for its tag.
    pub(crate) fn close_pack(&self, bytes: &mut [u8], places: &[(usize, usize)]) -> Pack {
        let length = bytes.len() as u64;
        let Vault::Sealed(keys) = self else {
            return Pack { blake3: Digest::of(bytes), bytes: length, key: None };
        };
        let mut hasher = blake3::Hasher::new_keyed(keys.packs.bytes());
        hasher.update(keys.current.as_bytes()).update(&(places.len() as u64).to_be_bytes());
        for (offset, length) in places {
            hasher.update([*offset as u64, *length as u64].map(u64::to_be_bytes).as_flattened());
        }
        let id: Digest = hasher.update(bytes).finalize().into();
        let pack = Pack { blake3: id, bytes: length, key: Some(keys.current) };
        let cipher = keys.pack_cipher(&pack, keys.current).expect("the current key is one of the keys");
        for (offset, length) in places {
            let piece = &mut bytes[*offset..offset + length + TAG_BYTES];
            let at = *offset as u64;
            cipher.seal(nonce_at(at), &place_of(at, *length as u64), piece);
        }
        pack
    }

    /// Decrypts a chunk of a pack, which was read from `offset` with its tag.
    pub(crate) fn open_chunk(&self, pack: &Pack, offset: u64, chunk: Vec<u8>) -> Result<Vec<u8>, Flaw> {
        let refused = |what| Err(Flaw::Malformed { what });
        match (self, pack.key) {
            (Vault::Plain, None) => Ok(chunk),
            (Vault::Plain, Some(_)) => refused("its pack is encrypted, in an archive that isn't"),
            (Vault::Sealed(_), None) => refused("its pack isn't encrypted, in an archive that is"),
            (Vault::Sealed(keys), Some(key)) => {
                let length = chunk.len().checked_sub(TAG_BYTES).ok_or(Flaw::Forged)?;
                let Some(cipher) = keys.pack_cipher(pack, key) else {
                    return refused("the key of its pack isn't in the archive's keys/: put it back from a copy");
                };
                cipher.open(nonce_at(offset), &place_of(offset, length as u64), chunk)
            }
        }
    }

    /// Encrypts a catalog that is put under `object`.
    pub(crate) fn close_catalog(&self, object: &str, text: Vec<u8>) -> Vec<u8> {
        let Vault::Sealed(keys) = self else { return text };
        let mut hasher = blake3::Hasher::new_keyed(keys.catalogs.bytes());
        hasher.update(keys.current.as_bytes()).update(&keys.generation.to_be_bytes());
        // An object's name contains no line breaks.
        hasher.update(object.as_bytes()).update(b"\n").update(&text);
        let head = Head { key: keys.current, generation: keys.generation, id: *hasher.finalize().as_bytes() };
        let cipher = keys.catalog_cipher(&head).expect("the current key is one of the keys");
        let mut bytes = head.write();
        bytes.extend_from_slice(&text);
        bytes.extend_from_slice(&[0; TAG_BYTES]);
        let (clear, piece) = bytes.split_at_mut(HEAD_BYTES);
        cipher.seal(nonce_at(0), &[clear, object.as_bytes()].concat(), piece);
        bytes
    }

    /// Decrypts a catalog that was put under `object`.
    pub(crate) fn open_catalog(&self, object: &str, bytes: Vec<u8>) -> Result<Vec<u8>, Error> {
        let refused = |flaw| Error::corrupt(object, flaw);
        let is_sealed = bytes.starts_with(CATALOG_MAGIC);
        let keys = match self {
            Vault::Plain if is_sealed => {
                let what = "it is encrypted, and there are no keys in keys/: put them back from a copy";
                return Err(refused(Flaw::Malformed { what }));
            }
            Vault::Plain => return Ok(bytes),
            Vault::Sealed(_) if !is_sealed => {
                return Err(refused(Flaw::Malformed { what: "it isn't encrypted, in an archive that is" }));
            }
            Vault::Sealed(keys) => keys,
        };
        let head = Head::read(&bytes).map_err(refused)?;
        let cipher = keys.catalog_cipher(&head);
        let cipher = cipher.ok_or_else(|| KeyError::Lost { object: object.to_owned(), key: head.key })?;
        let place = [&bytes[..HEAD_BYTES], object.as_bytes()].concat();
        let text = cipher.open(nonce_at(0), &place, bytes[HEAD_BYTES..].to_vec()).map_err(refused)?;
        if head.generation > keys.generation {
            let (found, known) = (head.generation, keys.generation);
            return Err(KeyError::RolledBack { object: object.to_owned(), found, known }.into());
        }
        Ok(text)
    }

    /// Returns the key id in a catalog's head; none if the catalog isn't encrypted.
    pub(crate) fn key_of_catalog(bytes: &[u8]) -> Option<KeyId> {
        Head::read(bytes).ok().map(|head| head.key)
    }
}

impl Head {
    fn write(&self) -> Vec<u8> {
        let Head { key, generation, id } = self;
        let version = CATALOG_VERSION.to_be_bytes();
        [CATALOG_MAGIC.as_slice(), &version, key.as_bytes(), &generation.to_be_bytes(), id].concat()
    }

    fn read(bytes: &[u8]) -> Result<Head, Flaw> {
        let cut_off = Flaw::Malformed { what: "it ends within its head" };
        let rest = bytes.strip_prefix(CATALOG_MAGIC).ok_or(cut_off.clone())?;
        let (version, rest) = rest.split_first_chunk().ok_or(cut_off.clone())?;
        match u32::from_be_bytes(*version) {
            CATALOG_VERSION => {}
            found => return Err(Flaw::Version { found, known: CATALOG_VERSION }),
        }
        let (key, rest) = rest.split_first_chunk().ok_or(cut_off.clone())?;
        let (generation, rest) = rest.split_first_chunk().ok_or(cut_off.clone())?;
        let (id, _) = rest.split_first_chunk().ok_or(cut_off)?;
        Ok(Head { key: KeyId::from_bytes(*key), generation: u64::from_be_bytes(*generation), id: *id })
    }
}

/// Returns the data that is authenticated with a chunk, in addition to the archive and the key.
fn place_of(offset: u64, length: u64) -> [u8; 16] {
    let mut place = [0; 16];
    place[..8].copy_from_slice(&offset.to_be_bytes());
    place[8..].copy_from_slice(&length.to_be_bytes());
    place
}

impl Keys {
    /// Opens all keys of an archive. All must be wrapped for the same wrapping key and be of one generation.
    fn open(records: &[Record], key: &WrappingKey) -> Result<Keys, KeyError> {
        let mut opened: Vec<(&Record, Opened)> = Vec::new();
        let mut closed = None;
        for record in records {
            match record.open(key)? {
                Some(secrets) => opened.push((record, secrets)),
                None => closed = closed.or(Some(record)),
            }
        }
        let Some((newest, secrets)) = opened.last() else {
            return Err(KeyError::Wrong { given: key.id(), wanted: wanted(records) });
        };
        let differs = |(record, other): &&(&Record, Opened)| {
            record.archive != newest.archive || other.naming.bytes() != secrets.naming.bytes()
        };
        if let Some((record, _)) = opened.iter().find(differs) {
            return Err(KeyError::Altered { object: record.object() });
        }
        let generation = opened.iter().map(|(_, secrets)| secrets.generation).max().unwrap_or(0);
        let behind = opened.iter().find(|(_, secrets)| secrets.generation != generation).map(|(record, _)| *record);
        if let Some(record) = closed.or(behind) {
            let (object, wanted) = (record.object(), record.wrapped_for());
            return Err(KeyError::Unwrapped { object, given: key.id(), wanted });
        }
        let [contents, packs, catalogs] = [CONTENT, PACK, CATALOG].map(|purpose| secrets.naming.derive(purpose, &[]));
        let (archive, current) = (newest.archive, newest.id);
        let data = opened.into_iter().map(|(record, secrets)| (record.id, secrets.data)).collect();
        Ok(Keys { archive, generation, data, current, contents, packs, catalogs })
    }

    fn pack_cipher(&self, pack: &Pack, key: KeyId) -> Option<Cipher> {
        self.cipher(PACK_KEY, key, pack.blake3.as_bytes())
    }

    fn catalog_cipher(&self, head: &Head) -> Option<Cipher> {
        self.cipher(CATALOG_KEY, head.key, &head.id)
    }

    fn cipher(&self, purpose: &str, key: KeyId, id: &[u8; 32]) -> Option<Cipher> {
        let key_of_object = self.data.get(&key)?.derive(purpose, &[self.archive.as_bytes(), id]);
        Some(Cipher::new(&key_of_object, self.archive, key))
    }
}

/// Returns the ids of the wrapping keys that open the archive.
fn wanted(records: &[Record]) -> Vec<KeyId> {
    let ids: std::collections::BTreeSet<KeyId> = records.iter().flat_map(Record::wrapped_for).collect();
    ids.into_iter().collect()
}

/// Reports whether the archive is empty.
fn is_empty(link: &Link) -> Result<bool, Error> {
    Ok(list_catalogs(link)?.is_empty() && link.list("packs/")?.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns vaults that differ only in the naming key.
    fn vault(naming: u8) -> Vault {
        let [archive, current] = [1, 2].map(|byte| KeyId::from_bytes([byte; KeyId::BYTES]));
        let naming = Secret::from_bytes([naming; 32]);
        let [contents, packs, catalogs] = [CONTENT, PACK, CATALOG].map(|purpose| naming.derive(purpose, &[]));
        let data = BTreeMap::from([(current, Secret::from_bytes([3; 32]))]);
        Vault::Sealed(Box::new(Keys { archive, generation: 1, data, current, contents, packs, catalogs }))
    }

    #[test]
    fn no_name_can_be_told_without_the_naming_key() {
        let names = |vault: &Vault| {
            let mut bytes = [7; 8 + 100 + TAG_BYTES];
            let pack = vault.close_pack(&mut bytes, &[(8, 100)]).blake3;
            let catalog = vault.close_catalog("catalogs/x", b"text".to_vec());
            let id = Head::read(&catalog).unwrap().id;
            [*pack.as_bytes(), id, *vault.name(Digest::of(b"content")).as_bytes()]
        };
        assert_eq!(names(&vault(4)), names(&vault(4)));
        for (one, other) in names(&vault(4)).into_iter().zip(names(&vault(5))) {
            assert_ne!(one, other);
        }
    }

    #[test]
    fn packs_that_differ_only_in_where_chunks_end_have_other_names_and_keys() {
        let vault = vault(4);
        let close = |places: &[(usize, usize)]| {
            let mut bytes = [7; 8 + 60 + 2 * TAG_BYTES];
            (vault.close_pack(&mut bytes, places), bytes)
        };
        let (one, bytes) = close(&[(8, 20), (8 + 20 + TAG_BYTES, 40)]);
        let (other, _) = close(&[(8, 40), (8 + 40 + TAG_BYTES, 20)]);
        assert_ne!(one.blake3, other.blake3);
        let chunk = bytes[8..8 + 20 + TAG_BYTES].to_vec();
        assert_eq!(vault.open_chunk(&one, 8, chunk.clone()), Ok(vec![7; 20]));
        assert_eq!(vault.open_chunk(&other, 8, chunk), Err(Flaw::Forged));
    }
}
