//! The block: up to [`BLOCK_BYTES`] of a tensor, coded independently and described by its own header.
//!
//! Layout, little-endian: version, element, transform and a zero, one byte each; the raw length, 4 bytes; the
//! xxh3-64 checksum of the raw bytes, seeded with the eight bytes before it, 8 bytes; for each plane, from
//! the highest down, its method (the upper 4 bits) and its coded length (the lower 28); the coded planes in
//! the same order. The checksum detects accidents, including a wrong base; against tampering the store has
//! its BLAKE3 digests.

use crate::element::Element;
use crate::error::malformed;
use crate::planes::PLANES_MAX;
use crate::transform::Transform;
use crate::wire::Reader;
use crate::{Error, wire};

/// The most bytes of a tensor in one block: large enough to amortize its tables, small enough for the L2
/// cache.
pub const BLOCK_BYTES: usize = 1 << 20;
/// The most bytes by which a coded block is longer than its raw bytes.
pub const BLOCK_OVERHEAD_MAX: usize = FIXED_BYTES + 4 * PLANES_MAX;

/// The version written, and the newest one read.
const VERSION: u8 = 1;
/// Bytes of the header before the list of planes.
const FIXED_BYTES: usize = 16;
/// Bits of a coded plane's length.
const LENGTH_BITS: u32 = 28;

/// How a plane is coded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Method {
    /// Uncoded.
    Raw,
    /// One byte, which all bytes equal.
    Constant,
    /// [`crate::huffman`].
    Huffman,
    /// [`crate::rans`] with one table.
    Rans,
    /// [`crate::rans`] with tables by the contexts of [`crate::model`].
    RansByContext,
    /// [`crate::rans`] with tables by the contexts of [`crate::surroundings`].
    RansBySurroundings,
}

impl Method {
    const ALL: [Method; 6] = [
        Method::Raw,
        Method::Constant,
        Method::Huffman,
        Method::Rans,
        Method::RansByContext,
        Method::RansBySurroundings,
    ];

    const fn code(self) -> u32 {
        match self {
            Method::Raw => 0,
            Method::Constant => 1,
            Method::Huffman => 2,
            Method::Rans => 3,
            Method::RansByContext => 4,
            Method::RansBySurroundings => 5,
        }
    }
}

/// The header of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// The type of its elements.
    pub element: Element,
    /// The transform of its elements; all except [`Transform::Plain`] need the base to decode.
    pub transform: Transform,
    /// The bytes it decodes to: at most [`BLOCK_BYTES`], and whole elements.
    pub raw_bytes: usize,
}

impl Header {
    fn bytes(&self) -> [u8; 8] {
        let [a, b, c, d] = wire::length32(self.raw_bytes).to_le_bytes();
        [VERSION, self.element.code(), self.transform.code(), 0, a, b, c, d]
    }

    /// Returns the checksum of a block with this header and these raw bytes; it also detects a changed
    /// header.
    pub(crate) fn checksum(&self, raw: &[u8]) -> u64 {
        xxhash_rust::xxh3::xxh3_64_with_seed(raw, u64::from_le_bytes(self.bytes()))
    }
}

/// Reads the header of a block without decoding it.
///
/// # Errors
/// [`Error::Version`] and [`Error::Malformed`].
pub fn inspect(coded: &[u8]) -> Result<Header, Error> {
    read_header(&mut Reader::new(coded)).map(|(header, _)| header)
}

/// Reads a header and its checksum, and leaves the reader at the list of planes.
pub(crate) fn read_header(reader: &mut Reader<'_>) -> Result<(Header, u64), Error> {
    let version = reader.byte()?;
    if version != VERSION {
        return Err(Error::Version { found: version, known: VERSION });
    }
    let element = Element::of(reader.byte()?).ok_or(malformed("a block's type of elements isn't known"))?;
    let transform = Transform::of(reader.byte()?).ok_or(malformed("a block's transform isn't known"))?;
    if reader.byte()? != 0 {
        return Err(malformed("a block's reserved byte isn't zero"));
    }
    let raw_bytes = reader.u32()? as usize;
    if !transform.fits(element) {
        return Err(malformed("a block's transform doesn't fit its elements"));
    }
    if raw_bytes > BLOCK_BYTES || !raw_bytes.is_multiple_of(element.size()) {
        return Err(malformed("a block has more bytes than it may, or no whole number of elements"));
    }
    Ok((Header { element, transform, raw_bytes }, reader.u64()?))
}

/// Appends the header of these raw bytes and room for the list of planes; returns the list's offset.
pub(crate) fn write_header(header: &Header, raw: &[u8], out: &mut Vec<u8>) -> usize {
    out.extend(header.bytes());
    out.extend(header.checksum(raw).to_le_bytes());
    let list = out.len();
    out.resize(list + 4 * header.element.size(), 0);
    list
}

/// Returns a plane's entry in the list.
pub(crate) fn plane_entry(method: Method, length: usize) -> [u8; 4] {
    let length = wire::length32(length);
    assert!(length >> LENGTH_BITS == 0, "a plane is never longer than a block");
    (method.code() << LENGTH_BITS | length).to_le_bytes()
}

/// Reads the next entry of the list: a plane's method and its coded length.
pub(crate) fn read_plane_entry(reader: &mut Reader<'_>) -> Result<(Method, usize), Error> {
    let entry = reader.u32()?;
    let method = Method::ALL.into_iter().find(|method| method.code() == entry >> LENGTH_BITS);
    let method = method.ok_or(malformed("a plane's method isn't known"))?;
    Ok((method, (entry & ((1 << LENGTH_BITS) - 1)) as usize))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header() -> Vec<u8> {
        let mut out = Vec::new();
        let header = Header { element: Element::F32, transform: Transform::Xor, raw_bytes: 8 };
        write_header(&header, &[0; 8], &mut out);
        assert_eq!(inspect(&out), Ok(header));
        out
    }

    #[test]
    fn a_header_that_lies_is_refused() {
        let check = |place: usize, value: u8, says: &str| {
            let mut bytes = header();
            bytes[place] = value;
            let error = inspect(&bytes).unwrap_err().to_string();
            assert!(error.contains(says), "{error}");
        };
        check(0, 2, "version 2");
        check(1, 8, "elements isn't known");
        check(2, 3, "transform isn't known");
        check(1, Element::F64.code(), "doesn't fit");
        check(3, 1, "reserved");
        check(4, 7, "whole number");
        check(7, 1, "more bytes");
        assert!(inspect(&header()[..15]).is_err());
    }
}
