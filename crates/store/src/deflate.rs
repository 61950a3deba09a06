//! DEFLATE for all compressed data at rest. Decompression has a limit, which the reader of each format names
//!

use std::io::{self, Read as _, Write};

use flate2::Compression;
use flate2::read::DeflateDecoder;
use flate2::write::DeflateEncoder;

/// Appends the compressed bytes to `begun`.
pub(crate) fn deflate(begun: Vec<u8>, bytes: &[u8]) -> Vec<u8> {
    deflate_into(begun, bytes, Compression::default()).expect("memory takes all that is written")
}

/// Writes the compressed bytes at the fastest level and returns the writer.
///
/// # Errors
/// Returns the writer's error.
pub(crate) fn deflate_fast<W: Write>(writer: W, bytes: &[u8]) -> io::Result<W> {
    deflate_into(writer, bytes, Compression::fast())
}

fn deflate_into<W: Write>(writer: W, bytes: &[u8], level: Compression) -> io::Result<W> {
    let mut encoder = DeflateEncoder::new(writer, level);
    encoder.write_all(bytes)?;
    encoder.finish()
}

/// Returns the decompressed bytes, or `None` if the stream is damaged or holds more than `length_max` bytes.
pub(crate) fn inflate(packed: &[u8], length_max: u64) -> Option<Vec<u8>> {
    let mut bytes = Vec::new();
    DeflateDecoder::new(packed).take(length_max.saturating_add(1)).read_to_end(&mut bytes).ok()?;
    u64::try_from(bytes.len()).is_ok_and(|length| length <= length_max).then_some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Proves A-10 for decompression.
    #[test]
    fn what_is_cut_or_longer_than_its_limit_is_refused() {
        let text = b"abc".repeat(1_000);
        let packed = deflate(b"begun".to_vec(), &text);
        let packed = packed.strip_prefix(b"begun").expect("it is appended");
        assert_eq!(inflate(packed, 3_000).as_deref(), Some(&text[..]));
        assert_eq!(inflate(packed, 2_999), None, "one byte more than allowed");
        assert_eq!(inflate(&packed[..packed.len() / 2], 3_000), None, "it breaks off");
        assert_eq!(inflate(packed, u64::MAX).as_deref(), Some(&text[..]));
    }
}
