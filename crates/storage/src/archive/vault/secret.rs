//! Key material in memory, and the ids that name keys without revealing them.
//!
//! A [`Secret`] is overwritten when it is dropped and never printed. Keys are derived from one another by
//! BLAKE3's key derivation mode (its specification, section 2.3: one context for each purpose), which is
//! one-way: a derived key reveals nothing of its source.

use std::fmt;
use std::fs::File;
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use blake3::Hasher;
use ring::rand::{SecureRandom, SystemRandom};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use zeroize::{Zeroize, Zeroizing};

use super::error::KeyError;

/// Bytes of a key.
pub(crate) const KEY_BYTES: usize = 32;
/// The most bytes of a key file: hexadecimal digits and an end of line.
const KEY_FILE_BYTES_MAX: usize = 2 * KEY_BYTES + 2;
/// The permission bits that let anyone but the owner read or change a file.
const OTHERS: u32 = 0o077;

const KEY_ID: &str = "gangline archive 2026-11-22 id of a key-encryption key";

/// A key of 256 bits, overwritten when it is dropped and never printed.
#[derive(Clone)]
pub(crate) struct Secret(Zeroizing<[u8; KEY_BYTES]>);

impl Secret {
    /// Returns a new key from the operating system's random numbers.
    pub(crate) fn random() -> Result<Secret, KeyError> {
        let mut bytes = Zeroizing::new([0; KEY_BYTES]);
        fill(bytes.as_mut())?;
        Ok(Secret(bytes))
    }

    /// Returns the key with these bytes.
    pub(crate) fn from_bytes(bytes: [u8; KEY_BYTES]) -> Secret {
        Secret(Zeroizing::new(bytes))
    }

    pub(crate) fn bytes(&self) -> &[u8; KEY_BYTES] {
        &self.0
    }

    /// Derives the key for a purpose and these circumstances, each of a fixed length.
    pub(crate) fn derive(&self, purpose: &str, circumstances: &[&[u8]]) -> Secret {
        let mut hasher = Hasher::new_derive_key(purpose);
        hasher.update(self.bytes());
        for part in circumstances {
            hasher.update(part);
        }
        let mut output = hasher.finalize_xof();
        let mut bytes = Zeroizing::new([0; KEY_BYTES]);
        output.fill(bytes.as_mut());
        hasher.zeroize();
        output.zeroize();
        Secret(bytes)
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(..)")
    }
}

/// Fills bytes with the operating system's random numbers.
pub(crate) fn fill(bytes: &mut [u8]) -> Result<(), KeyError> {
    SystemRandom::new().fill(bytes).map_err(|_| KeyError::Randomness)
}

/// An id that distinguishes keys or archives, and reveals nothing else. Printed as 32 hexadecimal digits.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct KeyId([u8; KeyId::BYTES]);

impl KeyId {
    pub(crate) const BYTES: usize = 16;

    pub(crate) fn random() -> Result<KeyId, KeyError> {
        let mut bytes = [0; KeyId::BYTES];
        fill(&mut bytes)?;
        Ok(KeyId(bytes))
    }

    pub(crate) fn from_bytes(bytes: [u8; KeyId::BYTES]) -> KeyId {
        KeyId(bytes)
    }

    /// Returns its 16 bytes.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8; KeyId::BYTES] {
        &self.0
    }

    /// Parses an id; none if the text isn't exactly as an id is printed.
    pub(crate) fn parse(text: &str) -> Option<KeyId> {
        let mut bytes = [0; KeyId::BYTES];
        (read_hex(text.as_bytes(), &mut bytes) && !text.contains(|digit: char| digit.is_uppercase()))
            .then_some(KeyId(bytes))
    }
}

impl fmt::Display for KeyId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for KeyId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

impl Serialize for KeyId {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for KeyId {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        KeyId::parse(&text).ok_or_else(|| serde::de::Error::custom("an id is 32 hexadecimal digits"))
    }
}

/// The key with which an archive's own keys are encrypted. Its owner keeps it in a file, apart from the
/// archive.
#[derive(Clone, Debug)]
pub struct WrappingKey {
    secret: Secret,
    id: KeyId,
}

impl WrappingKey {
    /// Reads a key file: 32 bytes, or 64 hexadecimal digits and an optional end of line.
    ///
    /// # Errors
    /// [`KeyError::FileUnreadable`], [`KeyError::FileOpenToOthers`], [`KeyError::FileMalformed`].
    pub fn from_file(path: &Path) -> Result<WrappingKey, KeyError> {
        let failed = |source| KeyError::FileUnreadable { path: path.to_owned(), source };
        let mut file = File::open(path).map_err(failed)?;
        let mode = file.metadata().map_err(failed)?.mode();
        if mode & OTHERS != 0 {
            return Err(KeyError::FileOpenToOthers { path: path.to_owned(), mode: mode & 0o777 });
        }
        let mut bytes = Zeroizing::new([0; KEY_FILE_BYTES_MAX + 1]);
        let mut length = 0;
        while length < bytes.len() {
            match file.read(&mut bytes[length..]).map_err(failed)? {
                0 => break,
                read => length += read,
            }
        }
        let key = WrappingKey::parse(&bytes[..length]);
        key.ok_or_else(|| KeyError::FileMalformed { path: path.to_owned(), bytes: length })
    }

    fn parse(text: &[u8]) -> Option<WrappingKey> {
        let mut bytes = Zeroizing::new([0; KEY_BYTES]);
        if text.len() == KEY_BYTES {
            bytes.copy_from_slice(text);
        } else {
            let digits = text.strip_suffix(b"\n").unwrap_or(text);
            let digits = digits.strip_suffix(b"\r").unwrap_or(digits);
            if !read_hex(digits, bytes.as_mut()) {
                return None;
            }
        }
        Some(WrappingKey::of(Secret(bytes)))
    }

    pub(crate) fn of(secret: Secret) -> WrappingKey {
        let derived = secret.derive(KEY_ID, &[]);
        let (id, _) = derived.bytes().split_first_chunk().expect("a key is longer than an id");
        WrappingKey { id: KeyId(*id), secret }
    }

    /// Returns the key's id, which is derived from it and reveals nothing of it.
    #[must_use]
    pub fn id(&self) -> KeyId {
        self.id
    }

    pub(crate) fn secret(&self) -> &Secret {
        &self.secret
    }
}

/// Parses hexadecimal digits into `bytes`; returns whether they are exactly that many digits.
pub(crate) fn read_hex(digits: &[u8], bytes: &mut [u8]) -> bool {
    let (pairs, rest) = digits.as_chunks::<2>();
    let value = |digit: u8| char::from(digit).to_digit(16).and_then(|value| u8::try_from(value).ok());
    rest.is_empty()
        && pairs.len() == bytes.len()
        && pairs.iter().zip(bytes).all(|([high, low], byte)| match (value(*high), value(*low)) {
            (Some(high), Some(low)) => {
                *byte = high << 4 | low;
                true
            }
            _ => false,
        })
}

/// Returns bytes as lowercase hexadecimal digits.
pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn check(text: &[u8], mode: u32) -> Result<WrappingKey, KeyError> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("key");
        std::fs::write(&path, text).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
        WrappingKey::from_file(&path)
    }

    #[test]
    fn a_key_is_read_as_bytes_or_as_digits() {
        let raw = check(&[0x5a; 32], 0o600).unwrap();
        for text in ["5a".repeat(32), "5A".repeat(32), "5a".repeat(32) + "\n", "5a".repeat(32) + "\r\n"] {
            assert_eq!(check(text.as_bytes(), 0o400).unwrap().id(), raw.id());
        }
        assert_ne!(check(&[0x5b; 32], 0o600).unwrap().id(), raw.id());
    }

    #[test]
    fn a_key_file_that_others_may_read_or_that_is_no_key_is_refused() {
        for mode in [0o640, 0o604, 0o620, 0o777] {
            let refused = check(&[1; 32], mode).unwrap_err();
            assert!(matches!(refused, KeyError::FileOpenToOthers { mode: found, .. } if found == mode), "{refused}");
        }
        for text in [vec![], vec![1; 31], vec![1; 33], vec![b'a'; 63], vec![b'g'; 64], vec![b'a'; 70]] {
            let refused = check(&text, 0o600).unwrap_err();
            assert!(matches!(refused, KeyError::FileMalformed { .. }), "{} bytes: {refused}", text.len());
        }
        let missing = WrappingKey::from_file(Path::new("/nowhere/key")).unwrap_err();
        assert!(matches!(missing, KeyError::FileUnreadable { .. }));
    }

    #[test]
    fn a_key_is_never_printed() {
        let key = WrappingKey::of(Secret::from_bytes([0xab; 32]));
        let shown = format!("{key:?}");
        assert!(!shown.contains("abab") && !shown.contains("171, 171"), "{shown}");
        assert!(!key.id().to_string().contains("abab"));
    }

    #[test]
    fn purposes_and_circumstances_give_keys_that_differ() {
        let secret = Secret::from_bytes([1; 32]);
        let derived = [
            secret.derive("a", &[]),
            secret.derive("b", &[]),
            secret.derive("a", &[b"x"]),
            Secret::from_bytes([2; 32]).derive("a", &[]),
        ];
        let all: std::collections::BTreeSet<_> = derived.iter().map(|one| *one.bytes()).collect();
        assert_eq!(all.len(), derived.len());
    }

    #[test]
    fn an_id_is_read_only_as_it_is_printed() {
        let id = KeyId([0xc4; 16]);
        assert_eq!(KeyId::parse(&id.to_string()), Some(id));
        for text in ["", "c4", &"C4".repeat(16), &"c4".repeat(17), &"g4".repeat(16)] {
            assert_eq!(KeyId::parse(text), None, "{text}");
        }
    }
}
