//! Element types as the coder distinguishes them: the width, and the position of a float's exponent.

/// The type of a tensor's elements, little-endian.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Element {
    /// Brain float: sign, 8 bits of exponent, 7 of mantissa.
    Bf16,
    /// IEEE half: sign, 5 bits of exponent, 10 of mantissa.
    F16,
    /// IEEE single: sign, 8 bits of exponent, 23 of mantissa.
    F32,
    /// IEEE double: sign, 11 bits of exponent, 52 of mantissa.
    F64,
    /// Integers, flags and floats of one byte.
    Word8,
    /// Integers of two bytes.
    Word16,
    /// Integers of four bytes.
    Word32,
    /// Integers of eight bytes.
    Word64,
}

impl Element {
    /// Every type, in the order of their codes on disk.
    pub const ALL: [Element; 8] = [
        Element::Bf16,
        Element::F16,
        Element::F32,
        Element::F64,
        Element::Word8,
        Element::Word16,
        Element::Word32,
        Element::Word64,
    ];

    /// Returns the bytes of one element: 1, 2, 4 or 8.
    #[must_use]
    pub const fn size(self) -> usize {
        match self {
            Element::Word8 => 1,
            Element::Bf16 | Element::F16 | Element::Word16 => 2,
            Element::F32 | Element::Word32 => 4,
            Element::F64 | Element::Word64 => 8,
        }
    }

    /// Reports whether it has a sign and an exponent.
    #[must_use]
    pub const fn is_float(self) -> bool {
        matches!(self, Element::Bf16 | Element::F16 | Element::F32 | Element::F64)
    }

    /// Returns its code on disk.
    pub(crate) const fn code(self) -> u8 {
        match self {
            Element::Bf16 => 0,
            Element::F16 => 1,
            Element::F32 => 2,
            Element::F64 => 3,
            Element::Word8 => 4,
            Element::Word16 => 5,
            Element::Word32 => 6,
            Element::Word64 => 7,
        }
    }

    /// Returns the type with this code, if there is one.
    pub(crate) fn of(code: u8) -> Option<Element> {
        Element::ALL.get(usize::from(code)).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_on_disk_are_positions_in_the_list() {
        for element in Element::ALL {
            assert_eq!(Element::of(element.code()), Some(element));
        }
        assert_eq!(Element::of(8), None);
    }
}
