//! A whole tensor: its blocks behind an index, so that they can be decoded in parallel and read at random.
//!
//! Layout, little-endian: the four bytes of [`MAGIC`] (the last one is the version); the raw length, 8 bytes;
//! the coded length of each block, 4 bytes each; the blocks. All blocks except the last code [`BLOCK_BYTES`].

use std::ops::Range;

use crate::block::{BLOCK_BYTES, BLOCK_OVERHEAD_MAX};
use crate::error::malformed;
use crate::wire::{Reader, length32};
use crate::{Coder, Decoder, Error, Source, Summary};

/// "Gangline tensor", version 1.
const MAGIC: [u8; 4] = *b"GLt\x01";
/// The newest known version.
const VERSION: u8 = MAGIC[3];

/// The locations of a coded tensor's blocks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layout {
    raw_bytes: usize,
    blocks: Vec<Range<usize>>,
}

impl Layout {
    /// Returns the bytes that the tensor decodes to.
    #[must_use]
    pub fn raw_bytes(&self) -> usize {
        self.raw_bytes
    }

    /// Returns for each block the range of raw bytes and the range of coded bytes; both in order and without
    /// gaps.
    pub fn blocks(&self) -> impl Iterator<Item = (Range<usize>, Range<usize>)> + '_ {
        let raw = |place: usize| place * BLOCK_BYTES..((place + 1) * BLOCK_BYTES).min(self.raw_bytes);
        self.blocks.iter().enumerate().map(move |(place, coded)| (raw(place), coded.clone()))
    }
}

/// Appends a coded tensor and returns the summary of each block.
///
/// # Errors
/// [`Error::Ragged`] and [`Error::BaseLength`]; nothing is appended then.
pub fn encode_tensor(coder: &mut Coder, source: Source<'_>, out: &mut Vec<u8>) -> Result<Vec<Summary>, Error> {
    coder.check(&source)?;
    let Source { raw, base, columns } = source;
    let count = raw.len().div_ceil(BLOCK_BYTES);
    out.extend(MAGIC);
    out.extend((raw.len() as u64).to_le_bytes());
    let index = out.len();
    out.resize(index + 4 * count, 0);
    let mut summaries = Vec::with_capacity(count);
    for (place, block) in raw.chunks(BLOCK_BYTES).enumerate() {
        let base = base.map(|base| &base[place * BLOCK_BYTES..][..block.len()]);
        let summary = coder.encode(Source { raw: block, base, columns }, out)?;
        out[index + 4 * place..][..4].copy_from_slice(&length32(summary.coded_bytes).to_le_bytes());
        summaries.push(summary);
    }
    Ok(summaries)
}

/// Reads the index of a coded tensor that must decode to `raw_bytes`.
///
/// # Errors
/// [`Error::Version`], [`Error::Length`] and [`Error::Malformed`]; also if a byte is missing or left over.
pub fn layout(coded: &[u8], raw_bytes: usize) -> Result<Layout, Error> {
    let mut reader = Reader::new(coded);
    match *reader.take(MAGIC.len())? {
        [b'G', b'L', b't', VERSION] => {}
        [b'G', b'L', b't', found] => return Err(Error::Version { found, known: VERSION }),
        _ => return Err(malformed("it doesn't begin as a coded tensor does")),
    }
    let found = reader.u64()?;
    if found != raw_bytes as u64 {
        return Err(Error::Length { expected: raw_bytes as u64, found });
    }
    let count = raw_bytes.div_ceil(BLOCK_BYTES);
    let mut index = Reader::new(reader.take(count * size_of::<u32>())?);
    let mut end = coded.len() - reader.rest().len();
    let mut blocks = Vec::with_capacity(count);
    for _ in 0..count {
        let length = index.u32()? as usize;
        if length > BLOCK_BYTES + BLOCK_OVERHEAD_MAX {
            return Err(malformed("a coded block is longer than one can be"));
        }
        blocks.push(end..end + length);
        end += length;
    }
    if end == coded.len() { Ok(Layout { raw_bytes, blocks }) } else { Err(malformed("its blocks end elsewhere")) }
}

/// Decodes a whole tensor into `raw`, which must have the expected length; `base` as in [`Decoder::decode`].
///
/// # Errors
/// Those of [`layout`] and [`Decoder::decode`].
pub fn decode_tensor(decoder: &mut Decoder, coded: &[u8], base: Option<&[u8]>, raw: &mut [u8]) -> Result<(), Error> {
    if let Some(base) = base.filter(|base| base.len() != raw.len()) {
        return Err(Error::BaseLength { bytes: raw.len(), base: base.len() });
    }
    for (place, lies) in layout(coded, raw.len())?.blocks() {
        decoder.decode(&coded[lies], base.map(|base| &base[place.clone()]), &mut raw[place])?;
    }
    Ok(())
}
