//! Encodes chunks as the difference to a base, on their own, or not at all, whichever pays. Every coded chunk
//! is decoded again and compared before it is used. Several chunks are coded in parallel, on threads that end
//! before the call returns; the result is the same for any number of threads.

use gangline_compression::{Coder, Decoder, Effort, Element, decode_tensor, encode_tensor};

/// A chunk is coded only if the result is at most this percentage of its length: a smaller gain isn't worth
/// the decoding time.
const WORTHWHILE_PERCENT: usize = 98;

/// A chunk in its stored form.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Coded {
    pub(crate) bytes: Vec<u8>,
    pub(crate) way: Way,
}

/// How it was coded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    Raw,
    Alone,
    Difference,
}

/// Codes chunks of one element type.
pub(crate) struct Encoder {
    coder: Coder,
    decoder: Decoder,
    columns: usize,
}

impl Encoder {
    pub(crate) fn new(element: Element, columns: usize) -> Encoder {
        Encoder { coder: Coder::new(element, Effort::Tiering), decoder: Decoder::new(), columns }
    }

    /// Codes chunks, at most one for each encoder, each on its own thread with the base that `base_of`
    /// returns for it.
    pub(crate) fn encode_all<T: Send, E: Send>(
        encoders: &mut [Encoder],
        chunks: Vec<(Vec<u8>, T)>,
        base_of: impl Fn(&T) -> Result<Option<Vec<u8>>, E> + Sync,
    ) -> Result<Vec<Coded>, E> {
        let base_of = &base_of;
        std::thread::scope(|scope| {
            let threads = encoders
                .iter_mut()
                .zip(chunks)
                .map(|(encoder, (raw, key))| scope.spawn(move || Ok(encoder.encode(raw, base_of(&key)?.as_deref()))));
            let threads: Vec<_> = threads.collect();
            threads.into_iter().map(|thread| thread.join().expect("coding doesn't panic")).collect()
        })
    }

    /// Codes a chunk. `base` must have the length of `raw`, and is used only if that pays.
    pub(crate) fn encode(&mut self, raw: Vec<u8>, base: Option<&[u8]>) -> Coded {
        let mut bytes = Vec::new();
        let source = gangline_compression::Source { raw: &raw, base, columns: self.columns };
        let Ok(blocks) = encode_tensor(&mut self.coder, source, &mut bytes) else {
            return Coded { bytes: raw, way: Way::Raw };
        };
        let needs_base = blocks.iter().any(|block| block.transform.needs_base());
        let mut back = vec![0; raw.len()];
        let decoded = decode_tensor(&mut self.decoder, &bytes, base.filter(|_| needs_base), &mut back);
        if decoded.is_err() || back != raw || bytes.len() > raw.len() / 100 * WORTHWHILE_PERCENT {
            return Coded { bytes: raw, way: Way::Raw };
        }
        Coded { bytes, way: if needs_base { Way::Difference } else { Way::Alone } }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns fp32 values of one exponent, and the same values a little later in training.
    fn weights(shift: u32) -> Vec<u8> {
        (0..4_096_u32).flat_map(|i| (0x3f80_0000 + i * 65_437 % 0x7f_0000 + shift).to_le_bytes()).collect()
    }

    #[test]
    fn a_difference_is_taken_where_it_pays_and_noise_stays_raw() {
        let mut encoder = Encoder::new(Element::F32, 0);
        let coded = encoder.encode(weights(3), Some(&weights(0)));
        assert_eq!(coded.way, Way::Difference);
        assert!(coded.bytes.len() < weights(3).len() / 10, "{}", coded.bytes.len());
        assert_eq!(encoder.encode(weights(3), None).way, Way::Alone);
        let mut noise = vec![0; 1 << 14];
        blake3::Hasher::new().finalize_xof().fill(&mut noise);
        assert_eq!(encoder.encode(noise.clone(), None), Coded { bytes: noise, way: Way::Raw });
    }

    #[test]
    fn what_is_no_whole_number_of_elements_stays_raw() {
        let coded = Encoder::new(Element::F32, 0).encode(vec![0; 1_001], None);
        assert_eq!(coded.way, Way::Raw);
    }
}
