//! Reads an archived checkpoint chunk by chunk, each verified by its hash before another is decoded from it.
//!
//! Memory is limited to a few chunks and windows: a chunk, its base, its coded bytes, and the bytes
//! read with them, whatever a catalog says.

use std::borrow::Cow;

use gangline_compression::{Decoder, decode_tensor, derive_bf16};

use super::Error;
use super::access::Access;
use super::catalog::{Catalog, Chunk, Form, Item, Place, catalog_key, pack_key};
use crate::{Digest, Flaw};

/// The fewest bytes read from a pack at once: small tensors lie side by side, and each request has its
/// latency.
const WINDOW_BYTES: u64 = 4 << 20;
/// Windows that are kept: a chunk and its base lie in different packs.
const WINDOWS_MAX: usize = 4;

/// Reads the chunks of one catalog.
pub(crate) struct Fetcher<'a> {
    access: &'a Access<'a>,
    catalog: &'a Catalog,
    decoder: Decoder,
    /// The windows, the most recently used last.
    windows: Vec<Window>,
}

/// A range of bytes of a pack.
struct Window {
    pack: usize,
    offset: u64,
    bytes: Vec<u8>,
}

impl Window {
    fn part(&self, Place(pack, offset, length): Place) -> Option<&[u8]> {
        let begin = usize::try_from(offset.checked_sub(self.offset)?).ok()?;
        let end = begin.checked_add(usize::try_from(length).ok()?)?;
        if pack == self.pack { self.bytes.get(begin..end) } else { None }
    }
}

impl<'a> Fetcher<'a> {
    pub(crate) fn new(access: &'a Access<'a>, catalog: &'a Catalog) -> Self {
        Fetcher { access, catalog, decoder: Decoder::new(), windows: Vec::new() }
    }

    /// Reads an item, passes its bytes on piece by piece, and at the end returns an error unless all were
    /// valid. The caller must not make them visible before that.
    pub(crate) fn item<E: From<Error>>(
        &mut self,
        item: &Item,
        mut sink: impl FnMut(&[u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        let mut hasher = blake3::Hasher::new();
        for index in &item.chunks {
            let raw = self.chunk(*index)?;
            hasher.update(&raw);
            sink(&raw)?;
        }
        if self.access.vault.name(hasher.finalize().into()) == item.blake3 {
            Ok(())
        } else {
            let what = format!("an item of {} bytes", item.bytes);
            Err(Error::damaged(catalog_key(self.catalog.step), what, Flaw::Hash).into())
        }
    }

    /// Returns a chunk's raw bytes, verified.
    pub(crate) fn chunk(&mut self, index: usize) -> Result<Vec<u8>, Error> {
        let mut chain = vec![index];
        // The catalog's reader has checked that bases come earlier and chains are limited.
        chain.extend(std::iter::successors(self.catalog.chunks[index].form.base(), |index| {
            self.catalog.chunks[*index].form.base()
        }));
        let mut raw = Vec::new();
        for index in chain.into_iter().rev() {
            let base = raw;
            let chunk = self.catalog.chunks[index];
            let stored = chunk.form.place().map_or(Ok(Vec::new()), |place| self.stored(place))?;
            raw = self.rebuild(chunk, Cow::Owned(stored), &base)?;
            self.check(index, &raw)?;
        }
        Ok(raw)
    }

    /// Returns a chunk's bytes as they are stored, after verifying the raw bytes that they decode to. The
    /// chunk must have stored bytes.
    pub(crate) fn coded(&mut self, index: usize) -> Result<Vec<u8>, Error> {
        let chunk = self.catalog.chunks[index];
        let base = chunk.form.base().map_or(Ok(Vec::new()), |base| self.chunk(base))?;
        let stored = chunk.form.place().map_or(Ok(Vec::new()), |place| self.stored(place))?;
        let raw = self.rebuild(chunk, Cow::Borrowed(&stored), &base)?;
        self.check(index, &raw)?;
        Ok(stored)
    }

    fn check(&self, index: usize, raw: &[u8]) -> Result<(), Error> {
        let is_right = self.access.vault.name(Digest::of(raw)) == self.catalog.chunks[index].blake3;
        if is_right { Ok(()) } else { Err(self.damaged(index, Flaw::Hash)) }
    }

    fn rebuild(&mut self, chunk: Chunk, stored: Cow<'_, [u8]>, base: &[u8]) -> Result<Vec<u8>, Error> {
        let mut raw = Vec::new();
        match chunk.form {
            Form::Raw(_) => return Ok(stored.into_owned()),
            Form::Rounded { nearest_even, .. } => derive_bf16(base, Form::rounding(nearest_even), &mut raw),
            Form::Coded(place) | Form::Difference { place, .. } => {
                raw.resize(usize::try_from(chunk.bytes).expect("64-bit Linux only"), 0);
                let base = chunk.form.base().map(|_| base);
                let decoded = decode_tensor(&mut self.decoder, &stored, base, &mut raw);
                decoded.map_err(|_| self.damaged_at(place, Flaw::Malformed { what: "it can't be decoded" }))?;
            }
        }
        Ok(raw)
    }

    /// Returns the decrypted bytes at a location.
    fn stored(&mut self, place: Place) -> Result<Vec<u8>, Error> {
        let Place(pack, offset, length) = place;
        let of = self.catalog.packs[pack];
        let bytes = self.read(Place(pack, offset, length + of.tag_bytes()))?;
        self.access.vault.open_chunk(&of, offset, bytes).map_err(|flaw| self.damaged_at(place, flaw))
    }

    fn read(&mut self, place: Place) -> Result<Vec<u8>, Error> {
        if let Some(at) = self.windows.iter().position(|window| window.part(place).is_some()) {
            let window = self.windows.remove(at);
            let bytes = window.part(place).map(<[u8]>::to_vec);
            self.windows.push(window);
            return Ok(bytes.expect("the window was chosen for it"));
        }
        let Place(pack, offset, length) = place;
        let of = &self.catalog.packs[pack];
        let key = pack_key(&of.blake3);
        if length >= WINDOW_BYTES {
            return Ok(self.access.link.get(&key, offset..offset + length)?);
        }
        let end = (offset + WINDOW_BYTES).min(of.bytes);
        let bytes = self.access.link.get(&key, offset..end)?;
        let part = bytes[..usize::try_from(length).expect("less than a window")].to_vec();
        if self.windows.len() == WINDOWS_MAX {
            self.windows.remove(0);
        }
        self.windows.push(Window { pack, offset, bytes });
        Ok(part)
    }

    fn damaged(&self, index: usize, flaw: Flaw) -> Error {
        match self.catalog.chunks[index].form.place() {
            Some(place) => self.damaged_at(place, flaw),
            None => Error::damaged(catalog_key(self.catalog.step), format!("chunk {index}"), flaw),
        }
    }

    fn damaged_at(&self, Place(pack, offset, length): Place, flaw: Flaw) -> Error {
        Error::damaged(pack_key(&self.catalog.packs[pack].blake3), format!("{length} bytes from {offset}"), flaw)
    }
}
