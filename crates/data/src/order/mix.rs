//! Well-mixed numbers as a function of what they are for. The constants are SplitMix64's (Steele, Lea and Flood, "Fast
//! Splittable Pseudorandom Number Generators", 2014).

/// SplitMix64's output function, a bijection of 64-bit words.
#[inline]
pub(crate) fn finalize(word: u64) -> u64 {
    let mut z = word.wrapping_add(0x9E37_79B9_7F4A_7C15);
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

/// One number for a sequence of words.
pub(crate) fn mix(words: &[u64]) -> u64 {
    words.iter().fold(0, |state, word| finalize(state ^ word))
}
