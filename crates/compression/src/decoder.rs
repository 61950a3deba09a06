//! The decoder: turns untrusted bytes into exactly what was coded, or an error.

use crate::block::{self, Method};
use crate::contexts::Clusters;
use crate::error::{Error, malformed};
use crate::model::Model;
use crate::rans::Decoding;
use crate::surroundings::Surroundings;
use crate::wire::Reader;
use crate::{huffman, transform};

/// Decodes blocks of any element type. Reuses its memory (about four times a block) for the next block, and
/// takes no more, whatever the input.
#[derive(Debug, Default)]
pub struct Decoder {
    planes: Vec<Vec<u8>>,
    model: Model,
    memory: Memory,
}

/// Reused memory.
#[derive(Debug, Default)]
struct Memory {
    ids: Vec<u8>,
    tables: Vec<u32>,
    surroundings: Surroundings,
}

impl Decoder {
    /// Returns a decoder.
    #[must_use]
    pub fn new() -> Decoder {
        Decoder::default()
    }

    /// Decodes one block into `raw`, which must have the expected length; `base` is what the block was coded
    /// against, if anything. After an error, the contents of `raw` are unspecified.
    ///
    /// # Errors
    /// [`Error::Version`], [`Error::Length`] if the block isn't of the length of `raw`,
    /// [`Error::BaseMissing`], [`Error::BaseLength`], [`Error::Malformed`] and [`Error::Checksum`].
    pub fn decode(&mut self, coded: &[u8], base: Option<&[u8]>, raw: &mut [u8]) -> Result<(), Error> {
        let mut reader = Reader::new(coded);
        let (header, checksum) = block::read_header(&mut reader)?;
        if header.raw_bytes != raw.len() {
            return Err(Error::Length { expected: raw.len() as u64, found: header.raw_bytes as u64 });
        }
        let base = match (header.transform.needs_base(), base) {
            (false, _) => &[],
            (true, None) => return Err(Error::BaseMissing),
            (true, Some(base)) => base,
        };
        if header.transform.needs_base() && base.len() != raw.len() {
            return Err(Error::BaseLength { bytes: raw.len(), base: base.len() });
        }
        let size = header.element.size();
        self.model.begin(header.element, header.transform, base);
        self.planes.resize(size.max(self.planes.len()), Vec::new());
        let mut entries = Vec::with_capacity(size);
        for _ in 0..size {
            entries.push(block::read_plane_entry(&mut reader)?);
        }
        let mut planes: Vec<&[u8]> = Vec::with_capacity(size);
        for ((method, length), plane) in entries.into_iter().zip(&mut self.planes) {
            let coded = reader.take(length)?;
            plane.resize(raw.len() / size, 0);
            let context = (&mut self.model, &mut self.memory);
            let plane = decode_plane((method, coded), &planes, context, plane)?;
            planes.push(plane);
        }
        reader.end()?;
        planes.reverse();
        transform::join(header.element, header.transform, (&planes, base), raw);
        if header.checksum(raw) == checksum { Ok(()) } else { Err(Error::Checksum) }
    }
}

/// Returns the plane, decoded into `plane` unless the coded bytes hold it raw.
fn decode_plane<'a>(
    (method, coded): (Method, &'a [u8]),
    above: &[&[u8]],
    (model, memory): (&mut Model, &mut Memory),
    plane: &'a mut [u8],
) -> Result<&'a [u8], Error> {
    match method {
        Method::Raw if coded.len() == plane.len() => return Ok(coded),
        Method::Raw => return Err(malformed("a raw plane has another length")),
        Method::Constant => match coded {
            [byte] => plane.fill(*byte),
            _ => return Err(malformed("a constant plane isn't one byte")),
        },
        Method::Huffman => huffman::decode(coded, plane)?,
        Method::Rans => {
            memory.ids.clear();
            memory.ids.resize(plane.len(), 0);
            Decoding::begin(Reader::new(coded), 1, &mut memory.tables)?.run(plane, &memory.ids)?;
        }
        Method::RansByContext => {
            let mut reader = Reader::new(coded);
            let clusters = Clusters::read(&mut reader)?;
            let values = model.values(above).ok_or(malformed("a plane has no contexts"))?;
            clusters.ids(values, &mut memory.ids);
            Decoding::begin(reader, clusters.count(), &mut memory.tables)?.run(plane, &memory.ids)?;
        }
        Method::RansBySurroundings => {
            let mut reader = Reader::new(coded);
            let columns = reader.u32()? as usize;
            if columns == 0 || columns > plane.len() {
                return Err(malformed("a plane has no columns, or more than elements"));
            }
            let clusters = Clusters::read(&mut reader)?;
            let by_value = clusters.by_value();
            let surroundings = &mut memory.surroundings;
            surroundings.begin(columns);
            Decoding::begin(reader, clusters.count(), &mut memory.tables)?.follow(plane, |last| {
                last.into_iter().for_each(|byte| surroundings.push(byte));
                by_value[usize::from(surroundings.value())]
            })?;
        }
    }
    Ok(plane)
}
