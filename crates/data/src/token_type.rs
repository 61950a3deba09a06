//! How a token is stored, and copies of tokens as the numbers that a trainer wants.

use serde::{Deserialize, Serialize};

/// The number that a token is stored as, little-endian.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum TokenType {
    /// Bytes.
    Uint8,
    /// For vocabularies up to 65,536.
    Uint16,
    /// For larger ones.
    Uint32,
    /// As Megatron stores larger ones.
    Int32,
    /// As frameworks hold them.
    Int64,
}

/// What a batch holds each token as.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Width {
    /// As it is stored.
    Stored,
    /// Signed, in 32 bits.
    Int32,
    /// Signed, in 64 bits.
    Int64,
}

impl TokenType {
    /// Bytes of a token.
    #[must_use]
    pub fn bytes(self) -> usize {
        match self {
            TokenType::Uint8 => 1,
            TokenType::Uint16 => 2,
            TokenType::Uint32 | TokenType::Int32 => 4,
            TokenType::Int64 => 8,
        }
    }

    /// numpy's name for it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            TokenType::Uint8 => "uint8",
            TokenType::Uint16 => "uint16",
            TokenType::Uint32 => "uint32",
            TokenType::Int32 => "int32",
            TokenType::Int64 => "int64",
        }
    }

    /// The type with numpy's name.
    #[must_use]
    pub fn of_name(name: &str) -> Option<TokenType> {
        let all = [TokenType::Uint8, TokenType::Uint16, TokenType::Uint32, TokenType::Int32, TokenType::Int64];
        all.into_iter().find(|one| one.name() == name)
    }

    /// The largest token that fits.
    #[must_use]
    pub fn largest(self) -> u64 {
        match self {
            TokenType::Uint8 => u64::from(u8::MAX),
            TokenType::Uint16 => u64::from(u16::MAX),
            TokenType::Uint32 => u64::from(u32::MAX),
            TokenType::Int32 => i32::MAX.cast_unsigned().into(),
            TokenType::Int64 => i64::MAX.cast_unsigned(),
        }
    }

    /// Bytes of a token in a batch.
    #[must_use]
    pub fn bytes_as(self, width: Width) -> usize {
        match width {
            Width::Stored => self.bytes(),
            Width::Int32 => 4,
            Width::Int64 => 8,
        }
    }

    /// Copies tokens as numbers of another width; false if one doesn't fit.
    ///
    /// # Panics
    /// If the lengths don't agree.
    #[must_use]
    pub(crate) fn copy(self, from: &[u8], width: Width, to: &mut [u8]) -> bool {
        match (self, width) {
            (_, Width::Stored) | (TokenType::Int32, Width::Int32) | (TokenType::Int64, Width::Int64) => {
                to.copy_from_slice(from);
                true
            }
            (TokenType::Uint8, Width::Int32) => each(from, to, |[byte]| i32::from(byte).to_le_bytes()),
            (TokenType::Uint8, Width::Int64) => each(from, to, |[byte]| i64::from(byte).to_le_bytes()),
            (TokenType::Uint16, Width::Int32) => each(from, to, |two| i32::from(u16::from_le_bytes(two)).to_le_bytes()),
            (TokenType::Uint16, Width::Int64) => each(from, to, |two| i64::from(u16::from_le_bytes(two)).to_le_bytes()),
            (TokenType::Uint32, Width::Int64) => {
                each(from, to, |four| i64::from(u32::from_le_bytes(four)).to_le_bytes())
            }
            (TokenType::Int32, Width::Int64) => {
                each(from, to, |four| i64::from(i32::from_le_bytes(four)).to_le_bytes())
            }
            (TokenType::Uint32, Width::Int32) => {
                let mut all = 0_u8;
                each(from, to, |four: [u8; 4]| {
                    all |= four[3];
                    four
                });
                all < 0x80
            }
            (TokenType::Int64, Width::Int32) => {
                let mut fits = true;
                each(from, to, |eight: [u8; 8]| {
                    let narrow = i32::try_from(i64::from_le_bytes(eight));
                    fits &= narrow.is_ok();
                    narrow.unwrap_or(0).to_le_bytes()
                });
                fits
            }
        }
    }

    /// A token as a number; negative ones as none.
    pub(crate) fn read(self, bytes: &[u8]) -> Option<u64> {
        let mut wide = [0; 8];
        assert!(self.copy(bytes, Width::Int64, &mut wide), "64 bits hold every token");
        u64::try_from(i64::from_le_bytes(wide)).ok()
    }
}

#[inline]
fn each<const FROM: usize, const TO: usize>(
    from: &[u8],
    to: &mut [u8],
    mut convert: impl FnMut([u8; FROM]) -> [u8; TO],
) -> bool {
    let (from, rest) = from.as_chunks::<FROM>();
    let (to, rest_to) = to.as_chunks_mut::<TO>();
    assert!(rest.is_empty() && rest_to.is_empty() && from.len() == to.len(), "as many tokens in as out");
    for (to, from) in to.iter_mut().zip(from) {
        *to = convert(*from);
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_width_holds_the_same_numbers_and_what_does_not_fit_is_told() {
        let check = |from: TokenType, bytes: &[u8], width: Width, expected: Option<&[u8]>| {
            let mut to = vec![0; bytes.len() / from.bytes() * from.bytes_as(width)];
            let fits = from.copy(bytes, width, &mut to);
            assert_eq!(fits.then_some(to.as_slice()), expected, "{from:?} as {width:?}");
        };
        check(TokenType::Uint8, &[1, 255], Width::Int32, Some(&[1, 0, 0, 0, 255, 0, 0, 0]));
        check(TokenType::Uint16, &[1, 255], Width::Stored, Some(&[1, 255]));
        check(TokenType::Uint16, &[1, 255], Width::Int32, Some(&[1, 255, 0, 0]));
        check(TokenType::Uint16, &[1, 255], Width::Int64, Some(&[1, 255, 0, 0, 0, 0, 0, 0]));
        check(TokenType::Uint32, &[1, 2, 3, 127], Width::Int32, Some(&[1, 2, 3, 127]));
        check(TokenType::Uint32, &[1, 2, 3, 128], Width::Int32, None);
        check(TokenType::Uint32, &[1, 2, 3, 128], Width::Int64, Some(&[1, 2, 3, 128, 0, 0, 0, 0]));
        check(TokenType::Int32, &[255; 4], Width::Int64, Some(&[255; 8]));
        check(TokenType::Int64, &[255; 8], Width::Int32, Some(&[255; 4]));
        check(TokenType::Int64, &[0, 0, 0, 0, 1, 0, 0, 0], Width::Int32, None);
        assert_eq!(TokenType::Int32.read(&[255; 4]), None);
        assert_eq!(TokenType::Uint16.read(&[1, 1]), Some(257));
    }

    #[test]
    fn names_lead_to_types() {
        assert_eq!(TokenType::of_name("uint16"), Some(TokenType::Uint16));
        assert_eq!(TokenType::of_name("float32"), None);
    }
}
