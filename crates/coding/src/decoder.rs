//! The decoder: bytes that may lie in, exactly what was coded out, or a refusal.

use crate::block::{self, Method};
use crate::contexts::Clusters;
use crate::error::{Error, malformed};
use crate::model::Model;
use crate::rans::Decoding;
use crate::surroundings::Surroundings;
use crate::wire::Reader;
use crate::{huffman, transform};

/// Decodes blocks of any type of elements. It keeps its memory (about four times a block) from one to the next, and takes no
/// more whatever the bytes say.
#[derive(Debug, Default)]
pub struct Decoder {
    planes: Vec<Vec<u8>>,
    model: Model,
    memory: Memory,
}

/// Memory that is used again.
#[derive(Debug, Default)]
struct Memory {
    ids: Vec<u8>,
    tables: Vec<u32>,
    surroundings: Surroundings,
}

impl Decoder {
    /// A decoder.
    #[must_use]
    pub fn new() -> Decoder {
        Decoder::default()
    }

    /// Decodes one block into `raw`, which has the length that the caller expects; `base` is what it was coded against, if it
    /// was. After an error, `raw` holds anything.
    ///
    /// # Errors
    /// [`Error::Version`], [`Error::Length`] when it isn't of the length of `raw`, [`Error::BaseMissing`],
    /// [`Error::BaseLength`], [`Error::Malformed`] and [`Error::Checksum`].
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

/// The plane, decoded into `plane` unless it lies in the coded bytes as it is.
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
