//! Decodes the elements of each data type as numbers.

use crate::DataType;

/// How bytes are decoded as numbers.
#[derive(Clone, Debug)]
pub(crate) enum Elements {
    F64,
    F32,
    F16,
    Bf16,
    I64,
    I32,
    I16,
    U64,
    U32,
    U16,
    /// A table of the value of each byte.
    Bytes(Box<[f64; 256]>),
    /// A table of the value of each half byte; the lower half comes first.
    Halves(Box<[f64; 16]>),
}

/// The format of a small float: the bits of its exponent and of its mantissa, and the exponent's bias.
#[derive(Clone, Copy)]
struct Small {
    exponent: u32,
    mantissa: u32,
    bias: i32,
    specials: Specials,
}

/// The bit patterns that are not finite numbers.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Specials {
    /// As in IEEE 754: the largest exponent encodes infinities and NaN.
    Ieee,
    /// No infinity; all ones is NaN ("fn").
    AllOnes,
    /// No infinity; minus zero is NaN ("fnuz").
    MinusZero,
    /// Every pattern is finite.
    None,
}

const F16: Small = Small { exponent: 5, mantissa: 10, bias: 15, specials: Specials::Ieee };

impl Elements {
    /// Returns the decoder of a type; none if elements don't fill whole or half bytes.
    pub(crate) fn of(data_type: DataType) -> Option<Elements> {
        let small = |exponent, mantissa, bias, specials| {
            let small = Small { exponent, mantissa, bias, specials };
            Elements::Bytes(Box::new(std::array::from_fn(|bits| small.value(bits))))
        };
        let bytes = |value: fn(u8) -> f64| {
            Elements::Bytes(Box::new(std::array::from_fn(|bits| value(u8::try_from(bits).expect("256 of them")))))
        };
        Some(match data_type {
            DataType::F64 => Elements::F64,
            DataType::F32 | DataType::C64 => Elements::F32,
            DataType::F16 => Elements::F16,
            DataType::Bf16 => Elements::Bf16,
            DataType::I64 => Elements::I64,
            DataType::I32 => Elements::I32,
            DataType::I16 => Elements::I16,
            DataType::U64 => Elements::U64,
            DataType::U32 => Elements::U32,
            DataType::U16 => Elements::U16,
            DataType::I8 => bytes(|byte| f64::from(byte.cast_signed())),
            DataType::U8 | DataType::Bool => bytes(f64::from),
            DataType::F8E4m3 => small(4, 3, 7, Specials::AllOnes),
            DataType::F8E5m2 => small(5, 2, 15, Specials::Ieee),
            DataType::F8E4m3Fnuz => small(4, 3, 8, Specials::MinusZero),
            DataType::F8E5m2Fnuz => small(5, 2, 16, Specials::MinusZero),
            DataType::F8E8m0 => bytes(|byte| if byte == 255 { f64::NAN } else { 2_f64.powi(i32::from(byte) - 127) }),
            DataType::F4 => {
                let small = Small { exponent: 2, mantissa: 1, bias: 1, specials: Specials::None };
                Elements::Halves(Box::new(std::array::from_fn(|bits| small.value(bits))))
            }
            DataType::F6E2m3 | DataType::F6E3m2 => return None,
        })
    }

    /// Visits the elements of two byte slices in pairs, with whether their bits differ.
    #[expect(clippy::cast_precision_loss, reason = "how far integers of 64 bits are apart is told in f64")]
    pub(crate) fn each_pair(&self, a: &[u8], b: &[u8], visit: impl FnMut(f64, f64, bool)) {
        match self {
            Elements::F64 => pairs(a, b, f64::from_le_bytes, visit),
            Elements::F32 => pairs(a, b, |bytes| f64::from(f32::from_le_bytes(bytes)), visit),
            Elements::F16 => pairs(a, b, |bytes| F16.value(u16::from_le_bytes(bytes).into()), visit),
            Elements::Bf16 => {
                pairs(a, b, |[low, high]| f64::from(f32::from_le_bytes([0, 0, low, high])), visit);
            }
            Elements::I64 => pairs(a, b, |bytes| i64::from_le_bytes(bytes) as f64, visit),
            Elements::I32 => pairs(a, b, |bytes| i32::from_le_bytes(bytes).into(), visit),
            Elements::I16 => pairs(a, b, |bytes| i16::from_le_bytes(bytes).into(), visit),
            Elements::U64 => pairs(a, b, |bytes| u64::from_le_bytes(bytes) as f64, visit),
            Elements::U32 => pairs(a, b, |bytes| u32::from_le_bytes(bytes).into(), visit),
            Elements::U16 => pairs(a, b, |bytes| u16::from_le_bytes(bytes).into(), visit),
            Elements::Bytes(values) => pairs(a, b, |[byte]| values[usize::from(byte)], visit),
            Elements::Halves(values) => {
                let mut visit = visit;
                for (a, b) in a.iter().zip(b) {
                    for shift in [0, 4] {
                        let (a, b) = (a >> shift & 15, b >> shift & 15);
                        visit(values[usize::from(a)], values[usize::from(b)], a != b);
                    }
                }
            }
        }
    }
}

fn pairs<const N: usize>(a: &[u8], b: &[u8], value: impl Fn([u8; N]) -> f64, mut visit: impl FnMut(f64, f64, bool)) {
    for (a, b) in a.as_chunks::<N>().0.iter().zip(b.as_chunks::<N>().0) {
        visit(value(*a), value(*b), a != b);
    }
}

impl Small {
    /// Returns the value of these bits.
    fn value(self, bits: usize) -> f64 {
        let bits = u32::try_from(bits).expect("16 bits at most");
        let (ones, largest) = ((1 << self.mantissa) - 1, (1 << self.exponent) - 1);
        let (mantissa, exponent) = (bits & ones, bits >> self.mantissa & largest);
        let is_negative = bits >> (self.mantissa + self.exponent) & 1 == 1;
        match self.specials {
            Specials::Ieee if exponent == largest && mantissa > 0 => return f64::NAN,
            Specials::Ieee if exponent == largest => return if is_negative { -f64::INFINITY } else { f64::INFINITY },
            Specials::AllOnes if exponent == largest && mantissa == ones => return f64::NAN,
            Specials::MinusZero if is_negative && exponent == 0 && mantissa == 0 => return f64::NAN,
            _ => {}
        }
        let (implied, power) = if exponent == 0 { (0, 1) } else { (1 << self.mantissa, exponent.cast_signed()) };
        let scale = power - self.bias - self.mantissa.cast_signed();
        let value = f64::from(implied + mantissa) * power_of_two(scale);
        if is_negative { -value } else { value }
    }
}

/// Returns two to a power, which must be the exponent of a normal number.
fn power_of_two(power: i32) -> f64 {
    f64::from_bits(u64::from((1_023 + power).cast_unsigned()) << 52)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn values(data_type: DataType, bytes: &[u8]) -> Vec<f64> {
        let mut values = Vec::new();
        Elements::of(data_type).unwrap().each_pair(bytes, bytes, |value, _, is_changed| {
            assert!(!is_changed);
            values.push(value);
        });
        values
    }

    #[test]
    fn small_floats_are_what_their_formats_say() {
        assert_eq!(
            values(DataType::F16, &[0, 0x3c, 1, 0, 0xff, 0x7b, 0, 0xfc]),
            [1.0, 5.960_464_477_539_063e-8, 65_504.0, f64::NEG_INFINITY]
        );
        assert_eq!(values(DataType::Bf16, &[0x80, 0x3f, 0x80, 0xc0]), [1.0, -4.0]);
        assert_eq!(values(DataType::F8E4m3, &[0x38, 0x7e, 0x01, 0xb8]), [1.0, 448.0, 0.001_953_125, -1.0]);
        assert_eq!(values(DataType::F8E5m2, &[0x3c, 0x7b, 0x7c]), [1.0, 57_344.0, f64::INFINITY]);
        assert_eq!(values(DataType::F8E4m3Fnuz, &[0x40, 0x7f]), [1.0, 240.0]);
        assert_eq!(values(DataType::F8E5m2Fnuz, &[0x40, 0x7f]), [1.0, 57_344.0]);
        assert_eq!(values(DataType::F8E8m0, &[127, 0, 254]), [1.0, 2_f64.powi(-127), 2_f64.powi(127)]);
        assert_eq!(values(DataType::F4, &[0x10, 0x72, 0xf3]), [0.0, 0.5, 1.0, 6.0, 1.5, -6.0]);
        for (data_type, bits) in
            [(DataType::F8E4m3, 0x7f), (DataType::F8E5m2, 0x7d), (DataType::F8E4m3Fnuz, 0x80), (DataType::F8E8m0, 255)]
        {
            assert!(values(data_type, &[bits])[0].is_nan(), "{data_type:?}");
        }
    }

    #[test]
    fn integers_are_read_with_their_signs_and_bits_are_compared_not_values() {
        assert_eq!(values(DataType::I8, &[255, 127]), [-1.0, 127.0]);
        assert_eq!(values(DataType::I16, &[0xfe, 0xff]), [-2.0]);
        let mut changed = 0;
        let zero = Elements::of(DataType::F32).unwrap();
        zero.each_pair(&[0; 8], &[0, 0, 0, 0x80, 0, 0, 0, 0], |a, b, is_changed| {
            assert!(a == b);
            changed += u32::from(is_changed);
        });
        assert_eq!(changed, 1, "minus zero has other bits");
        assert!(Elements::of(DataType::F6E2m3).is_none());
    }
}
