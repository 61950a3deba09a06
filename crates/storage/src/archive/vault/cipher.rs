//! The encryption of bytes: AES-256-GCM (NIST SP 800-38D) under a separate key for each object, so that no
//! nonce is used twice with one key.
//!
//! An object's key is derived from the archive's data key and the object's synthetic id, which is a keyed
//! BLAKE3 hash of everything that is encrypted: the idea of SIV (Rogaway and Shrimpton 2006, "A
//! provable-security treatment of the key-wrap problem"). Objects that differ have different ids, except for
//! a collision of 256 bits, and so different keys; an object made again is identical to the last bit, so that
//! an interrupted push can be continued. There are no random nonces, hence no limit on the number of objects
//! that one data key encrypts (SP 800-38D, section 8.3, would allow 2^32).
//!
//! Within an object a nonce is the offset of its first byte, and no two chunks of a pack begin at one offset.
//! A pack has at most 64 MiB and a catalog 512 MiB, far below the 2^36 bytes that GCM allows for one nonce
//! (section 5.2.1.1).
//!
//! The data authenticated with each piece names the archive, the key and the location, so that no piece can
//! be moved. The library keeps an object's expanded key in memory that it doesn't overwrite; it decrypts only
//! that object.

use ring::aead::{AES_256_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};

use super::KeyId;
use super::secret::Secret;
use crate::Flaw;

/// The bytes by which an encrypted piece is longer than the plain one.
pub(crate) const TAG_BYTES: usize = 16;

/// Encrypts and decrypts the pieces of one object.
pub(crate) struct Cipher {
    key: LessSafeKey,
    /// Data that is authenticated with every piece: the archive and the data key.
    circumstances: [u8; 2 * KeyId::BYTES],
}

impl Cipher {
    /// Returns a cipher with a key that is used for this object alone.
    pub(crate) fn new(key: &Secret, archive: KeyId, id: KeyId) -> Cipher {
        let key = UnboundKey::new(&AES_256_GCM, key.bytes()).expect("the key has the cipher's length");
        let mut circumstances = [0; 2 * KeyId::BYTES];
        circumstances[..KeyId::BYTES].copy_from_slice(archive.as_bytes());
        circumstances[KeyId::BYTES..].copy_from_slice(id.as_bytes());
        Cipher { key: LessSafeKey::new(key), circumstances }
    }

    /// Encrypts `piece`, whose last [`TAG_BYTES`] are room for the tag. `place` is authenticated as well.
    pub(crate) fn seal(&self, nonce: [u8; NONCE_LEN], place: &[u8], piece: &mut [u8]) {
        let at = piece.len().checked_sub(TAG_BYTES).expect("a piece has room for its tag");
        let (text, room) = piece.split_at_mut(at);
        let aad = Aad::from([&self.circumstances, place].concat());
        let tag = self.key.seal_in_place_separate_tag(Nonce::assume_unique_for_key(nonce), aad, text);
        room.copy_from_slice(tag.expect("pieces are shorter than the cipher's limit").as_ref());
    }

    /// Decrypts a piece that [`Cipher::seal`] made, and removes the tag.
    pub(crate) fn open(&self, nonce: [u8; NONCE_LEN], place: &[u8], mut piece: Vec<u8>) -> Result<Vec<u8>, Flaw> {
        let aad = Aad::from([&self.circumstances, place].concat());
        match self.key.open_in_place(Nonce::assume_unique_for_key(nonce), aad, &mut piece) {
            Ok(text) => {
                let length = text.len();
                piece.truncate(length);
                Ok(piece)
            }
            Err(_) => Err(Flaw::Forged),
        }
    }
}

/// Returns the nonce of a piece at an offset of its object.
pub(crate) fn nonce_at(offset: u64) -> [u8; NONCE_LEN] {
    let mut nonce = [0; NONCE_LEN];
    nonce[NONCE_LEN - 8..].copy_from_slice(&offset.to_be_bytes());
    nonce
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cipher(key: u8, archive: u8, id: u8) -> Cipher {
        let [archive, id] = [archive, id].map(|byte| KeyId::from_bytes([byte; KeyId::BYTES]));
        Cipher::new(&Secret::from_bytes([key; 32]), archive, id)
    }

    #[test]
    fn what_is_sealed_opens_only_with_everything_as_it_was() {
        let mut piece = b"seventeen bytes..".to_vec();
        piece.extend([0; TAG_BYTES]);
        cipher(1, 2, 3).seal(nonce_at(8), b"place", &mut piece);
        let open = |cipher: Cipher, offset, place: &[u8], piece: Vec<u8>| cipher.open(nonce_at(offset), place, piece);
        assert_eq!(open(cipher(1, 2, 3), 8, b"place", piece.clone()).unwrap(), b"seventeen bytes..");
        for other in [cipher(9, 2, 3), cipher(1, 9, 3), cipher(1, 2, 9)] {
            assert_eq!(open(other, 8, b"place", piece.clone()), Err(Flaw::Forged));
        }
        assert_eq!(open(cipher(1, 2, 3), 9, b"place", piece.clone()), Err(Flaw::Forged));
        assert_eq!(open(cipher(1, 2, 3), 8, b"plaice", piece.clone()), Err(Flaw::Forged));
        for bit in 0..8 * piece.len() {
            let mut flipped = piece.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(open(cipher(1, 2, 3), 8, b"place", flipped), Err(Flaw::Forged), "bit {bit}");
        }
        for length in 0..piece.len() {
            assert_eq!(open(cipher(1, 2, 3), 8, b"place", piece[..length].to_vec()), Err(Flaw::Forged));
        }
    }
}
