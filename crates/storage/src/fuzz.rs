//! Targets of the fuzzers (`fuzz/`) and the mutation tests: each parser of untrusted bytes, and the
//! properties of accepted input. No parser panics, and none allocates more than a small multiple of
//! its input.

use std::path::Path;

use gangline_compression::{Decoder, decode_tensor};

use crate::alike::Alike;
use crate::archive::Catalog;
use crate::foreign::{ForeignTensor, parse_header, parse_index};
use crate::manifest::{
    FORMAT_VERSION, INDEX_MAGIC, ShardIndex, ShardRecord, TensorRecord, parse_manifest, seal_text, unseal,
};
use crate::refusal;
use crate::shard::{place, read_header};
use crate::{Digest, Step, TENSORS_MAX};

/// The step that manifests and catalogs are parsed for.
const STEP: u64 = 2;
/// Bytes of the copy that notes describe.
const COPY_BYTES: usize = 2 * crate::memory::PAGE;

/// The beginning of a safetensors file: tensors accepted from a foreign file have the same places as in a
/// shard of ours.
pub fn shard_header(file: &[u8]) {
    let file_bytes = file.len() as u64;
    let Ok(header) = read_header(&mut &*file, Path::new("fuzzed"), file_bytes) else { return };
    let Ok(foreign) = parse_header(&header, file_bytes) else { return };
    let end = |tensor: &ForeignTensor| tensor.start + tensor.bytes;
    assert!(foreign.iter().all(|tensor| end(tensor) <= file_bytes), "a tensor lies in its file");
    let record = |tensor: &ForeignTensor| TensorRecord {
        name: tensor.name.clone(),
        data_type: tensor.data_type,
        shape: tensor.shape.clone(),
        blake3: Digest::of(b""),
        part_of: None,
    };
    let tensors = foreign.iter().map(record).collect();
    let record = ShardRecord { rank: 0, bytes: file_bytes, header_blake3: Digest::of(&header), tensors };
    let placed = place(&header, file_bytes, &record).expect("what the stricter reader takes, the other does");
    let is_same = |(foreign, placed): (&ForeignTensor, &crate::shard::Placed<'_>)| {
        (foreign.start, foreign.bytes) == (placed.start, placed.bytes as u64)
    };
    assert!(foreign.iter().zip(&placed).all(is_same), "both readers find a tensor at the same place");
}

/// A manifest, with its own checksum or a corrected one.
pub fn manifest(text: &[u8]) {
    for text in [text.to_vec(), seal_text(text.to_vec())] {
        let Ok(manifest) = parse_manifest(&text, STEP) else { continue };
        let info = manifest.info();
        assert!(info.tensors.len() <= TENSORS_MAX, "a manifest has no more tensors than may be");
        let bytes = info.tensors.iter().try_fold(0_u64, |sum, tensor| sum.checked_add(tensor.bytes.0));
        assert!(bytes.is_some_and(|bytes| bytes <= info.bytes.0), "tensors lie in the files");
    }
}

/// A rank's index of its shard, or its refusal, with its own checksum or a corrected one.
pub fn index(text: &[u8]) {
    for text in [text.to_vec(), seal_text(text.to_vec())] {
        if let Some(error) = refusal::parse_error(&text, Step(STEP)) {
            assert!(error.to_string().contains("commit step"), "it says what came to nothing");
        }
        let Ok(index) = unseal::<ShardIndex>(&text, INDEX_MAGIC, FORMAT_VERSION) else { continue };
        assert!((1..=FORMAT_VERSION).contains(&index.version), "its version is one that is known");
        let alike = index.alike.unwrap_or_default();
        assert!(Alike::found(alike.clone()).difference(&alike).is_none(), "what is equal doesn't differ");
        let _ = Alike::found("0123456789abcdef".to_owned()).difference(&alike);
    }
}

/// An archive's catalog, with its own checksum or a corrected one.
pub fn catalog(text: &[u8]) {
    for text in [text.to_vec(), seal_text(text.to_vec())] {
        let Ok(catalog) = Catalog::read(STEP, &text) else { continue };
        let is_there = |index: &usize| *index < catalog.chunks.len();
        assert!(
            catalog.items().all(|item| item.chunks.iter().all(is_there)),
            "items are made of chunks that are there"
        );
    }
}

/// A note in a staging folder, with its own checksum or a corrected one: an accepted note describes ranges
/// within the copy.
pub fn staged_note(text: &[u8]) {
    for text in [text.to_vec(), seal_text(text.to_vec())] {
        let Some(staged) = crate::staging::parse_note(&text, COPY_BYTES) else { continue };
        assert!(staged.bytes() <= COPY_BYTES as u64, "a save lies in its copy");
    }
}

/// An archive's lease, with its own checksum or a corrected one.
pub fn lease(text: &[u8]) {
    for text in [text.to_vec(), seal_text(text.to_vec())] {
        // An accepted lease has no further property: its names are free text.
        let _ = crate::archive::parse_lease(&text);
    }
}

/// A coded tensor after two bytes, which give the raw length and in the highest bit whether there is a base.
pub fn coded_tensor(input: &[u8]) {
    let Some(([low, high], coded)) = input.split_first_chunk() else { return };
    let length = usize::from(u16::from_le_bytes([*low, *high & 0x7f]));
    let (base, mut raw) = (vec![0x3c; length], vec![0; length]);
    let base = (*high & 0x80 != 0).then_some(base.as_slice());
    // Both a refusal and decoded bytes are fine.
    let _ = decode_tensor(&mut Decoder::new(), coded, base, &mut raw);
}

/// An index of safetensors files: no name in an accepted index leads out of the folder.
pub fn foreign_index(text: &[u8]) {
    let Ok(files) = parse_index(text) else { return };
    for file in files.keys() {
        let parts: Vec<_> = Path::new(file).components().collect();
        assert!(matches!(parts[..], [std::path::Component::Normal(_)]), "{file:?} is a file right in the folder");
    }
}

#[cfg(test)]
pub(crate) mod tests;
