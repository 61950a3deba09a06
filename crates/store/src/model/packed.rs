//! Compressed documents of ended jobs: they are kept for long, rarely read, and repetitive across ranks.
//!
//! A packed document is a byte that can't begin JSON, followed by a DEFLATE stream. Other documents are plain
//! JSON, as in earlier releases.

use std::borrow::Cow;

use crate::deflate::{deflate, inflate};

/// The first byte of a packed document.
const PACKED: u8 = 1;
/// Smaller documents aren't compressed, because it gains nothing.
const PACKED_BYTES_MIN: usize = 512;
/// The largest decompressed document, far above what a record may hold (A-10).
const DOCUMENT_BYTES_MAX: u64 = 64 << 20;

/// Returns the stored form of a document.
pub(super) fn pack(doc: String) -> Vec<u8> {
    if doc.len() < PACKED_BYTES_MIN {
        return doc.into_bytes();
    }
    let packed = deflate(vec![PACKED], doc.as_bytes());
    if packed.len() < doc.len() { packed } else { doc.into_bytes() }
}

/// Returns the JSON of a stored document, or `None` if it can't be decompressed.
pub(super) fn unpack(stored: &[u8]) -> Option<Cow<'_, [u8]>> {
    let Some((&PACKED, stream)) = stored.split_first() else { return Some(Cow::Borrowed(stored)) };
    inflate(stream, DOCUMENT_BYTES_MAX).map(Cow::Owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_packed_document_is_what_it_was_and_much_smaller() {
        let ranks: Vec<String> =
            (0..8).map(|rank| format!(r#"{{"rank":{rank},"phase":"compute","step":{}}}"#, rank * 7)).collect();
        let doc = format!(r#"{{"ranks":[{}],"text":"{}"}}"#, ranks.join(","), "x".repeat(400));
        let packed = pack(doc.clone());
        assert!(packed.len() < doc.len() / 3, "{} of {}", packed.len(), doc.len());
        assert_eq!(unpack(&packed).as_deref(), Some(doc.as_bytes()));
        for plain in ["", "{}", r#"{"short":true}"#] {
            assert_eq!(pack(plain.to_owned()), plain.as_bytes());
            assert_eq!(unpack(plain.as_bytes()).as_deref(), Some(plain.as_bytes()));
        }
    }

    /// Proves A-10 for decompression.
    #[test]
    fn what_is_cut_or_grows_without_end_is_refused() {
        let doc = "abc".repeat(1_000);
        let packed = pack(doc);
        assert_eq!(unpack(&packed[..packed.len() / 2]), None, "it breaks off");
        let bomb = deflate(vec![PACKED], &vec![b' '; 65 << 20]);
        assert_eq!(unpack(&bomb), None);
    }
}
