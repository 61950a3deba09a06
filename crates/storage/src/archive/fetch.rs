//! Reading an archived checkpoint: chunk by chunk, each checked by its hash before anything follows from it.
//!
//! Memory is bounded by a few chunks: a chunk, what it follows from, and its coded bytes, whatever a catalog says.

use gangline_coding::{Decoder, decode_tensor, derive_bf16};

use super::Error;
use super::catalog::{Catalog, Chunk, Form, Item, Place, catalog_key, pack_key};
use super::remote::Link;
use crate::{Digest, Flaw};

/// Reads the chunks of one catalog.
pub(crate) struct Fetcher<'a> {
    link: &'a Link,
    catalog: &'a Catalog,
    decoder: Decoder,
}

impl<'a> Fetcher<'a> {
    pub(crate) fn new(link: &'a Link, catalog: &'a Catalog) -> Self {
        Fetcher { link, catalog, decoder: Decoder::new() }
    }

    /// Reads an item, hands its bytes on piece by piece, and at the end says whether they were all right. The caller makes
    /// nothing of them visible before that.
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
        if Digest::from(hasher.finalize()) == item.blake3 {
            Ok(())
        } else {
            let what = format!("an item of {} bytes", item.bytes);
            Err(Error::damaged(catalog_key(self.catalog.step), what, Flaw::Hash).into())
        }
    }

    /// A chunk's raw bytes, checked.
    pub(crate) fn chunk(&mut self, index: usize) -> Result<Vec<u8>, Error> {
        let mut chain = vec![index];
        // A catalog's chunks follow from earlier ones over a bounded number of others: its reader has checked that.
        chain.extend(std::iter::successors(self.catalog.chunks[index].form.base(), |index| {
            self.catalog.chunks[*index].form.base()
        }));
        let mut raw = Vec::new();
        for index in chain.into_iter().rev() {
            let base = raw;
            raw = self.rebuild(self.catalog.chunks[index], &base)?;
            if Digest::of(&raw) != self.catalog.chunks[index].blake3 {
                return Err(self.damaged(index, Flaw::Hash));
            }
        }
        Ok(raw)
    }

    fn rebuild(&mut self, chunk: Chunk, base: &[u8]) -> Result<Vec<u8>, Error> {
        let mut raw = Vec::new();
        match chunk.form {
            Form::Raw(place) => return self.stored(place),
            Form::Rounded { nearest_even, .. } => derive_bf16(base, Form::rounding(nearest_even), &mut raw),
            Form::Coded(place) | Form::Difference { place, .. } => {
                let coded = self.stored(place)?;
                raw.resize(usize::try_from(chunk.bytes).expect("64-bit Linux only"), 0);
                let base = chunk.form.base().map(|_| base);
                let decoded = decode_tensor(&mut self.decoder, &coded, base, &mut raw);
                decoded.map_err(|_| self.damaged_at(place, Flaw::Malformed { what: "it can't be decoded" }))?;
            }
        }
        Ok(raw)
    }

    fn stored(&self, Place(pack, offset, length): Place) -> Result<Vec<u8>, Error> {
        self.link.get(&pack_key(&self.catalog.packs[pack].blake3), offset..offset + length)
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
