//! Documents of jobs that have ended, packed: they are kept for long and read rarely, and say the same of each of many ranks.
//!
//! A packed document is a byte that no JSON begins with and a DEFLATE stream. Others are JSON as it is, as earlier releases wrote all.

use std::borrow::Cow;

use crate::deflate::{deflate, inflate};

/// What a packed document begins with.
const PACKED: u8 = 1;
/// Below this size packing gains nothing.
const PACKED_BYTES_MIN: usize = 512;
/// The largest document that is unpacked, far above what a record may hold (A-10).
const DOCUMENT_BYTES_MAX: u64 = 64 << 20;

/// The document as it is stored.
pub(super) fn pack(doc: String) -> Vec<u8> {
    if doc.len() < PACKED_BYTES_MIN {
        return doc.into_bytes();
    }
    let packed = deflate(vec![PACKED], doc.as_bytes());
    if packed.len() < doc.len() { packed } else { doc.into_bytes() }
}

/// The JSON of a stored document; none if it can't be unpacked.
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

    /// Proves A-10 for what is unpacked.
    #[test]
    fn what_is_cut_or_grows_without_end_is_refused() {
        let doc = "abc".repeat(1_000);
        let packed = pack(doc);
        assert_eq!(unpack(&packed[..packed.len() / 2]), None, "it breaks off");
        let bomb = deflate(vec![PACKED], &vec![b' '; 65 << 20]);
        assert_eq!(unpack(&bomb), None);
    }
}
