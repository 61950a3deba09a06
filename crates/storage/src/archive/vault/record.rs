//! A data key in an archive: `keys/<id>.json`, the key encrypted once for each wrapping key that opens it.
//!
//! Sealed JSON with a version and limits. The data key and the archive's naming key are
//! encrypted; everything else is authenticated with them, so that no member can be changed. The checksum only
//! distinguishes damage from tampering. A wrap is encrypted under a key derived from the wrapping key, the
//! archive and the data key, with a random nonce of 96 bits: one for each rotation to one wrapping key, of
//! which SP 800-38D (section 8.3) allows 2^32.

use gangline_objects::Link;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use zeroize::Zeroizing;

use super::cipher::{Cipher, TAG_BYTES};
use super::error::KeyError;
use super::secret::{KEY_BYTES, KeyId, Secret, WrappingKey, fill, hex, read_hex};
use crate::Flaw;
use crate::archive::Error;
use crate::archive::fence::{is_mark, unmarked};
use crate::archive::lease::Lease;
use crate::manifest::{seal, unseal};

const MAGIC: &str = "gangline-archive-key";
/// The format version written, and the newest one read.
const VERSION: u32 = 1;
/// The name of the cipher of chunks, catalogs and wraps.
pub(crate) const ALGORITHM: &str = "AES-256-GCM";
/// The most bytes of a record.
const RECORD_BYTES_MAX: u64 = 16 << 10;
/// The most keys of an archive.
pub(crate) const KEYS_MAX: usize = 1_000;
/// The most wraps of a key: one, two during a rotation, or a few after interrupted rotations.
const WRAPS_MAX: usize = 8;
/// Bytes of a nonce.
const NONCE_BYTES: usize = 12;
/// The bytes of a wrap: the data key, the naming key and the tag.
const WRAPPED_BYTES: usize = 2 * KEY_BYTES + TAG_BYTES;

const WRAP: &str = "gangline archive 2026-11-22 wrapping of a data key";

/// A data key, wrapped.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Record {
    pub(crate) magic: String,
    pub(crate) version: u32,
    pub(crate) algorithm: String,
    pub(crate) archive: KeyId,
    pub(crate) id: KeyId,
    /// The archive's first key is number 1; the one with the highest number encrypts new objects.
    pub(crate) number: u64,
    /// When it was made, in nanoseconds since the Unix epoch.
    pub(crate) made_at: u64,
    pub(crate) wraps: Vec<Wrap>,
}

/// The key, encrypted for one wrapping key.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Wrap {
    /// The wrapping key's id.
    pub(crate) key: KeyId,
    /// How often the archive's keys had been rotated, from 1.
    pub(crate) generation: u64,
    nonce: Digits<NONCE_BYTES>,
    wrapped: Digits<WRAPPED_BYTES>,
}

/// A fixed number of bytes, as hexadecimal digits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Digits<const BYTES: usize>([u8; BYTES]);

impl<const BYTES: usize> Serialize for Digits<BYTES> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&hex(&self.0))
    }
}

impl<'de, const BYTES: usize> Deserialize<'de> for Digits<BYTES> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        let mut bytes = [0; BYTES];
        let is_right = read_hex(text.as_bytes(), &mut bytes);
        is_right.then_some(Digits(bytes)).ok_or_else(|| serde::de::Error::custom("not so many hexadecimal digits"))
    }
}

/// The keys that a record wraps.
#[derive(Clone, Debug)]
pub(crate) struct Opened {
    pub(crate) data: Secret,
    pub(crate) naming: Secret,
    pub(crate) generation: u64,
}

impl Record {
    /// Returns a record without wraps.
    pub(crate) fn new(archive: KeyId, id: KeyId, number: u64, made_at: u64) -> Record {
        let (magic, algorithm) = (MAGIC.to_owned(), ALGORITHM.to_owned());
        Record { magic, version: VERSION, algorithm, archive, id, number, made_at, wraps: Vec::new() }
    }

    /// Returns the record's object name.
    pub(crate) fn object(&self) -> String {
        object_of(self.id)
    }

    /// Returns the ids of the keys that it is wrapped for.
    pub(crate) fn wrapped_for(&self) -> Vec<KeyId> {
        self.wraps.iter().map(|wrap| wrap.key).collect()
    }

    /// Wraps the key for `key` too, and replaces an earlier wrap for that key.
    pub(crate) fn wrap(&mut self, key: &WrappingKey, opened: &Opened) -> Result<(), KeyError> {
        let mut nonce = [0; NONCE_BYTES];
        fill(&mut nonce)?;
        let mut text = Zeroizing::new([0; WRAPPED_BYTES]);
        text[..KEY_BYTES].copy_from_slice(opened.data.bytes());
        text[KEY_BYTES..2 * KEY_BYTES].copy_from_slice(opened.naming.bytes());
        let place = self.place(key.id(), opened.generation);
        self.cipher(key).seal(nonce, &place, text.as_mut());
        self.wraps.retain(|wrap| wrap.key != key.id());
        let (nonce, wrapped) = (Digits(nonce), Digits(*text));
        self.wraps.push(Wrap { key: key.id(), generation: opened.generation, nonce, wrapped });
        Ok(())
    }

    /// Unwraps the key; none if it isn't wrapped for `key`.
    pub(crate) fn open(&self, key: &WrappingKey) -> Result<Option<Opened>, KeyError> {
        let Some(wrap) = self.wraps.iter().find(|wrap| wrap.key == key.id()) else { return Ok(None) };
        let place = self.place(wrap.key, wrap.generation);
        let text = self.cipher(key).open(wrap.nonce.0, &place, wrap.wrapped.0.to_vec());
        let text = Zeroizing::new(text.map_err(|_| KeyError::Altered { object: self.object() })?);
        let (keys, _) = text.as_chunks::<KEY_BYTES>();
        let [data, naming] = keys else { return Err(KeyError::Altered { object: self.object() }) };
        let [data, naming] = [data, naming].map(|key| Secret::from_bytes(*key));
        Ok(Some(Opened { data, naming, generation: wrap.generation }))
    }

    fn cipher(&self, key: &WrappingKey) -> Cipher {
        let wrapping = key.secret().derive(WRAP, &[self.archive.as_bytes(), self.id.as_bytes()]);
        Cipher::new(&wrapping, self.archive, self.id)
    }

    /// Returns the data that is authenticated with a wrap, in addition to the archive and the key.
    fn place(&self, key: KeyId, generation: u64) -> Vec<u8> {
        let numbers = [self.number, self.made_at, generation].map(u64::to_be_bytes);
        [key.as_bytes(), numbers.as_flattened()].concat()
    }

    /// Puts the record into the archive.
    pub(crate) fn put(&self, lease: &Lease<'_>) -> Result<(), Error> {
        lease.commit(&self.object(), &seal(self))
    }

    /// Parses and checks untrusted bytes.
    pub(crate) fn read(id: KeyId, text: &[u8]) -> Result<Record, Error> {
        let refused = |flaw| Error::corrupt(object_of(id), flaw);
        let record: Record = unseal(text, MAGIC, VERSION).map_err(refused)?;
        let fault = if record.id != id {
            Some("it is another key's")
        } else if record.algorithm != ALGORITHM {
            Some("its algorithm isn't known here")
        } else if record.wraps.is_empty() || record.wraps.len() > WRAPS_MAX {
            Some("it is wrapped for no key, or for more than a rotation needs")
        } else {
            None
        };
        fault.map_or(Ok(record), |what| Err(refused(Flaw::Malformed { what })))
    }
}

fn object_of(id: KeyId) -> String {
    format!("keys/{id}.json")
}

/// Returns the ids of the keys in the archive.
pub(crate) fn list(link: &Link) -> Result<Vec<(KeyId, u64)>, Error> {
    let id = |key: &str| KeyId::parse(key.strip_prefix("keys/")?.strip_suffix(".json")?);
    let mut listed = link.list("keys/")?;
    listed.retain(|object| !is_mark(object));
    let ids: Vec<_> = listed.iter().filter_map(|object| Some((id(&object.key)?, object.bytes))).collect();
    crate::error::within("keys of an archive", ids.len(), KEYS_MAX)?;
    Ok(ids)
}

/// Reads all keys of the archive, in the order of their numbers. A plain archive has none.
pub(crate) fn read_all(link: &Link) -> Result<Vec<Record>, Error> {
    let mut records = Vec::new();
    for (id, bytes) in list(link)? {
        if bytes > RECORD_BYTES_MAX {
            return Err(Error::corrupt(object_of(id), Flaw::Malformed { what: "it is larger than 16 KiB" }));
        }
        records.push(Record::read(id, unmarked(&link.get(&object_of(id), 0..bytes)?))?);
    }
    records.sort_by_key(|record| (record.number, record.id));
    Ok(records)
}
