//! bf16 copies that follow from an fp32 master: mixed-precision training (Micikevicius et al. 2018, arXiv
//! 1710.03740) keeps both, and the copy need not be stored if it can be recomputed bit for bit.
//!
//! The opposite, a bf16 copy and 16 more bits for the master, is ambiguous where the master lies halfway
//! between two bf16 values; so the master is kept.

/// How a bf16 value is rounded from an fp32 one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Rounding {
    /// To the nearest, ties to even (IEEE 754). NaN stays NaN with its sign and first bits, made quiet. Same
    /// as hardware and `torch.Tensor.bfloat16`, except for NaN.
    NearestEven,
    /// The lower half is cut off.
    Truncation,
}

impl Rounding {
    fn bf16(self, master: u32) -> u16 {
        let [_, _, low, high] = match self {
            Rounding::Truncation => master,
            // Rounding could carry a NaN to infinity, or to a zero.
            Rounding::NearestEven if master & 0x7fff_ffff > 0x7f80_0000 => master | 0x0040_0000,
            Rounding::NearestEven => master.wrapping_add(0x7fff + ((master >> 16) & 1)),
        }
        .to_le_bytes();
        u16::from_le_bytes([low, high])
    }
}

/// Returns the rounding by which all of `copy` (bf16, little-endian) follows from `master` (fp32,
/// little-endian), if there is one. An empty copy follows from an empty master.
#[must_use]
pub fn derives_bf16(master: &[u8], copy: &[u8]) -> Option<Rounding> {
    let is_half = master.len().is_multiple_of(4) && master.len() == 2 * copy.len();
    let pairs = || master.as_chunks().0.iter().zip(copy.as_chunks().0);
    let is_made_by = |rounding: &Rounding| {
        pairs().all(|(master, copy)| rounding.bf16(u32::from_le_bytes(*master)) == u16::from_le_bytes(*copy))
    };
    [Rounding::NearestEven, Rounding::Truncation].into_iter().find(|rounding| is_half && is_made_by(rounding))
}

/// Appends the bf16 copy of `master` (fp32, little-endian; bytes after its last whole element are ignored).
pub fn derive_bf16(master: &[u8], rounding: Rounding, out: &mut Vec<u8>) {
    let masters = master.as_chunks().0.iter();
    out.extend(masters.flat_map(|bytes| rounding.bf16(u32::from_le_bytes(*bytes)).to_le_bytes()));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(values: &[u32]) -> Vec<u8> {
        values.iter().flat_map(|value| value.to_le_bytes()).collect()
    }

    #[test]
    fn halves_round_to_even_and_nan_stays_nan() {
        let check = |master: u32, copy: u16| assert_eq!(Rounding::NearestEven.bf16(master), copy, "{master:#x}");
        check(0x3f80_0000, 0x3f80);
        check(0x3f80_8000, 0x3f80);
        check(0x3f80_8001, 0x3f81);
        check(0x3f81_8000, 0x3f82);
        check(0x3f7f_ffff, 0x3f80);
        check(0xff7f_ffff, 0xff80);
        check(0x7f80_0000, 0x7f80);
        check(0x7f80_0001, 0x7fc0);
        check(0xffff_ffff, 0xffff);
        check(0x0000_8001, 0x0001);
    }

    #[test]
    fn a_copy_is_recognised_by_every_bit_of_it() {
        let master = bytes(&[0x3f80_8001, 0xbf81_8000, 0x7f80_0001, 0]);
        for rounding in [Rounding::NearestEven, Rounding::Truncation] {
            let mut copy = Vec::new();
            derive_bf16(&master, rounding, &mut copy);
            assert_eq!(derives_bf16(&master, &copy), Some(rounding));
            for bit in 0..8 * copy.len() {
                let mut other = copy.clone();
                other[bit / 8] ^= 1 << (bit % 8);
                assert_eq!(derives_bf16(&master, &other), None, "{bit}");
            }
        }
    }

    #[test]
    fn what_has_another_length_is_not_a_copy() {
        assert_eq!(derives_bf16(&[], &[]), Some(Rounding::NearestEven));
        assert_eq!(derives_bf16(&[0; 4], &[]), None);
        assert_eq!(derives_bf16(&[0; 4], &[0; 4]), None);
        assert_eq!(derives_bf16(&[0; 6], &[0; 3]), None);
    }
}
