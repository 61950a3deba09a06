//! Megatron-Core's pair of `.bin` (tokens) and `.idx` (lengths and places of sequences), as its `IndexedDataset` writes them
//! (megatron/core/datasets/indexed_dataset.py). The stream is the `.bin`, which the index has to cover without gaps.

use std::path::Path;

use crate::error::Error;
use crate::source::Files;
use crate::source::layout::{Ends, Layout};
use crate::token_type::TokenType;

/// At the beginning of an index.
pub(crate) const MAGIC: &[u8; 9] = b"MMIDIDX\0\0";
/// Magic, version, type, counts of sequences and of documents.
const HEADER_BYTES: usize = 34;
/// The numbers of the types.
const CODES: [(u8, TokenType); 4] =
    [(1, TokenType::Uint8), (4, TokenType::Int32), (5, TokenType::Int64), (8, TokenType::Uint16)];

/// What an index says.
#[derive(Debug)]
pub(crate) struct Index<'a> {
    pub(crate) data_type: TokenType,
    /// Of the sequences, 32 bits each.
    pub(crate) lengths: &'a [[u8; 4]],
    /// Bytes of the tokens.
    pub(crate) bytes: u64,
}

/// Reads the pair of this `.bin` and the `.idx` beside it.
pub(crate) fn read(files: &Files<'_>, path: &Path, layout: &mut Option<Layout>) -> Result<(), Error> {
    let index_path = path.with_extension("idx");
    let index_file = files.open(&index_path)?;
    let (data_type, lengths, covered) = index_file.read(0..index_file.len(), |bytes| {
        let index = parse(&index_path, bytes)?;
        Ok::<_, Error>((index.data_type, index.lengths.as_flattened().to_vec(), index.bytes))
    })??;
    let file = files.open(path)?;
    if file.len() as u64 != covered {
        let problem = format!("its index covers {covered} bytes, and the file has {}", file.len());
        return Err(Error::malformed(path, file.len(), problem));
    }
    let layout = layout.get_or_insert_with(|| Layout::new(data_type));
    if layout.data_type != data_type {
        let problem = format!(
            "{} holds {}, and the files before it {}",
            path.display(),
            data_type.name(),
            layout.data_type.name()
        );
        return Err(Error::refused("source", problem));
    }
    let bytes = file.len();
    let number = layout.add_file(file)?;
    layout.add_piece(number, 0, bytes)?;
    layout.ends.push(Ends::Lengths(lengths));
    Ok(())
}

/// Parses an index, and checks that its sequences follow each other.
pub(crate) fn parse<'a>(path: &Path, bytes: &'a [u8]) -> Result<Index<'a>, Error> {
    let bad = |offset, problem: String| Err(Error::malformed(path, offset, problem));
    let cut = || Error::malformed(path, bytes.len(), "the index is cut off");
    if !bytes.starts_with(MAGIC) {
        return bad(0, "no index of Megatron's: it doesn't begin with MMIDIDX".to_owned());
    }
    let header = bytes.get(..HEADER_BYTES).ok_or_else(cut)?;
    let word = |at: usize| u64::from_le_bytes(*header[at..].first_chunk().expect("the header is long enough"));
    if word(9) != 1 {
        return bad(9, format!("version {} of the index is unknown; there is 1", word(9)));
    }
    let Some((_, data_type)) = CODES.into_iter().find(|(code, _)| *code == header[17]) else {
        return bad(
            17,
            format!("type {} is none of tokens: 1 (uint8), 4 (int32), 5 (int64) or 8 (uint16)", header[17]),
        );
    };
    let sized = |count: u64, width: usize| {
        usize::try_from(count).ok().and_then(|count| count.checked_mul(width)).ok_or_else(cut)
    };
    let (lengths, pointers) = (sized(word(18), 4)?, sized(word(18), 8)?);
    let rest = &bytes[HEADER_BYTES..];
    let (lengths, rest) = rest.split_at_checked(lengths).ok_or_else(cut)?;
    let (pointers, rest) = rest.split_at_checked(pointers).ok_or_else(cut)?;
    rest.get(..sized(word(26), 8)?).ok_or_else(cut)?;
    let (lengths, pointers) = (lengths.as_chunks::<4>().0, pointers.as_chunks::<8>().0);
    let mut expected = 0_u64;
    for (number, (length, pointer)) in lengths.iter().zip(pointers).enumerate() {
        let (length, pointer) = (i32::from_le_bytes(*length), u64::from_le_bytes(*pointer));
        let length = u64::try_from(length);
        let (Ok(length), true) = (length, pointer == expected) else {
            let at = HEADER_BYTES + lengths.len() * 4 + number * 8;
            return bad(
                at,
                format!("sequence {number} is said to be at byte {pointer}, and the one before ends at {expected}"),
            );
        };
        expected += length * data_type.bytes() as u64;
    }
    Ok(Index { data_type, lengths, bytes: expected })
}

/// Writes an index of documents that each are one sequence.
pub(crate) fn index(data_type: TokenType, lengths: &[u32]) -> Option<Vec<u8>> {
    let (code, _) = CODES.into_iter().find(|(_, one)| *one == data_type)?;
    let mut bytes = MAGIC.to_vec();
    bytes.extend(1_u64.to_le_bytes());
    bytes.push(code);
    bytes.extend((lengths.len() as u64).to_le_bytes());
    bytes.extend((lengths.len() as u64 + 1).to_le_bytes());
    bytes.extend(lengths.iter().flat_map(|length| length.to_le_bytes()));
    let width = data_type.bytes() as u64;
    let mut pointer = 0_u64;
    for length in lengths {
        bytes.extend(pointer.to_le_bytes());
        pointer += u64::from(*length) * width;
    }
    bytes.extend((0..=lengths.len() as u64).flat_map(u64::to_le_bytes));
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read() {
        let bytes = index(TokenType::Uint16, &[3, 0, 5]).unwrap();
        let read = parse(Path::new("x.idx"), &bytes).unwrap();
        assert_eq!((read.data_type, read.lengths.len(), read.bytes), (TokenType::Uint16, 3, 16));
        assert!(index(TokenType::Uint32, &[1]).is_none(), "Megatron has no such type");
    }

    #[test]
    fn an_index_that_points_elsewhere_or_is_cut_off_is_refused_with_the_place() {
        let good = index(TokenType::Uint16, &[3, 4, 5]).unwrap();
        for end in 0..good.len() {
            assert!(parse(Path::new("x"), &good[..end]).is_err(), "cut off at {end}");
        }
        let check = |at: usize, byte: u8, expected: &str| {
            let mut bytes = good.clone();
            bytes[at] = byte;
            let error = parse(Path::new("x.idx"), &bytes).unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        };
        check(0, b'X', "read x.idx at byte 0: no index of Megatron's");
        check(9, 2, "version 2 of the index is unknown");
        check(17, 7, "type 7 is none of tokens");
        check(18 + 7, 255, "cut off");
        check(37, 255, "sequence 0 is said to be at byte 0");
        check(46 + 8, 99, "sequence 1 is said to be at byte 99, and the one before ends at 6");
    }
}
