//! Files that are tokens and little else: raw numbers (nanoGPT), llm.c's with a header, numpy's `.npy`, and datatrove's
//! `.ds`.

use std::path::Path;

use crate::error::Error;
use crate::source::Files;
use crate::source::layout::{Ends, Layout};
use crate::source::mapped::Mapped;
use crate::token_type::TokenType;

/// llm.c's magic numbers, each with the type of its tokens (dev/data/data_common.py in github.com/karpathy/llm.c).
const LLM_C: [(u32, TokenType); 2] = [(20_240_520, TokenType::Uint16), (20_240_801, TokenType::Uint32)];
/// 256 numbers of 32 bits: the magic, a version, the count of tokens, and zeros.
const LLM_C_HEADER: usize = 1_024;
/// numpy's magic (numpy.lib.format).
const NPY_MAGIC: &[u8] = b"\x93NUMPY";
/// The most bytes before a header of a `.npy` file.
const NPY_PREFIX_MAX: usize = 12;
/// The longest header of a `.npy` file that is read.
const NPY_HEADER_MAX: usize = 1 << 16;
/// The largest file of datatrove's notes that is read.
const NOTES_BYTES_MAX: u64 = 1 << 16;

/// How the tokens of a flat file are found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Flat {
    pub(crate) data_type: TokenType,
    pub(crate) offset: usize,
    pub(crate) bytes: usize,
}

/// Reads one flat file. `data_type` is what the caller says, for files that don't say it themselves.
pub(crate) fn read(
    files: &Files<'_>,
    path: &Path,
    data_type: Option<TokenType>,
    layout: &mut Option<Layout>,
) -> Result<(), Error> {
    let file = files.open(path)?;
    let extension = path.extension().and_then(|extension| extension.to_str());
    let noted = if extension == Some("ds") { datatrove_type(path)? } else { None };
    let flat = describe(path, &beginning(&file)?, file.len(), noted.or(data_type))?;
    if data_type.is_some_and(|said| said != flat.data_type) {
        let problem = format!("{} holds {}", path.display(), flat.data_type.name());
        return Err(Error::refused("data_type", problem));
    }
    let layout = layout.get_or_insert_with(|| Layout::new(flat.data_type));
    if layout.data_type != flat.data_type {
        let problem = format!(
            "{} holds {}, and the files before it {}",
            path.display(),
            flat.data_type.name(),
            layout.data_type.name()
        );
        return Err(Error::refused("source", problem));
    }
    let number = layout.add_file(file)?;
    layout.add_piece(number, flat.offset, flat.bytes)?;
    if extension == Some("ds") {
        layout.ends.extend(datatrove_ends(path, flat.bytes / flat.data_type.bytes())?);
    }
    Ok(())
}

/// The bytes that may be a header.
fn beginning(file: &Mapped) -> Result<Vec<u8>, Error> {
    let head = file.head()?;
    if !head.starts_with(NPY_MAGIC) {
        return Ok(head);
    }
    file.read(0..file.len().min(NPY_HEADER_MAX + NPY_PREFIX_MAX), <[u8]>::to_vec)
}

/// Finds the tokens of a file of so many bytes by the first of them.
pub(crate) fn describe(path: &Path, head: &[u8], length: usize, data_type: Option<TokenType>) -> Result<Flat, Error> {
    if head.starts_with(NPY_MAGIC) {
        return npy(path, head, length);
    }
    let first = head.first_chunk().map(|bytes| u32::from_le_bytes(*bytes));
    if let Some((_, data_type)) = LLM_C.into_iter().find(|(magic, _)| first == Some(*magic)) {
        return llm_c(path, head, length, data_type);
    }
    let data_type = data_type.ok_or_else(|| {
        let problem = format!(
            "{} doesn't say what its tokens are: say uint16 (nanoGPT's), uint32 or another type",
            path.display()
        );
        Error::refused("data_type", problem)
    })?;
    Ok(Flat { data_type, offset: 0, bytes: length })
}

fn llm_c(path: &Path, head: &[u8], length: usize, data_type: TokenType) -> Result<Flat, Error> {
    let count: Option<&[u8; 4]> = head.get(8..12).and_then(|count| count.first_chunk());
    let count = count.filter(|_| length >= LLM_C_HEADER).map(|count| u32::from_le_bytes(*count));
    let count = count.ok_or_else(|| Error::malformed(path, 0, "llm.c's header is cut off"))?;
    let found = length - LLM_C_HEADER;
    match usize::try_from(count).ok().and_then(|count| count.checked_mul(data_type.bytes())) {
        Some(expected) if expected == found => Ok(Flat { data_type, offset: LLM_C_HEADER, bytes: found }),
        _ => {
            let problem =
                format!("llm.c's header counts {count} {} tokens, and {found} bytes follow it", data_type.name());
            Err(Error::malformed(path, 8, problem))
        }
    }
}

fn npy(path: &Path, bytes: &[u8], file_bytes: usize) -> Result<Flat, Error> {
    let bad = |problem: &str| Error::malformed(path, NPY_MAGIC.len(), problem);
    let (length, start): (usize, usize) = match bytes.get(6..12) {
        Some([1, _, low, high, ..]) => (usize::from(u16::from_le_bytes([*low, *high])), 10),
        Some([2 | 3, _, a, b, c, d]) => {
            let length = u32::from_le_bytes([*a, *b, *c, *d]);
            (usize::try_from(length).unwrap_or(usize::MAX), 12)
        }
        _ => return Err(bad("no .npy file of version 1 to 3")),
    };
    let header = bytes.get(start..start.saturating_add(length)).filter(|header| header.len() <= NPY_HEADER_MAX);
    let header =
        header.and_then(|header| std::str::from_utf8(header).ok()).ok_or_else(|| bad("its header is cut off"))?;
    let value = |key: &str| header.split_once(&format!("'{key}':")).map(|(_, rest)| rest.trim_start());
    let data_type = value("descr")
        .and_then(npy_type)
        .ok_or_else(|| bad("its elements are no tokens: uint8, uint16, uint32, int32 or int64"))?;
    if value("fortran_order").is_none_or(|rest| !rest.starts_with("False")) {
        return Err(bad("its elements are in column-major order: save it with numpy.ascontiguousarray"));
    }
    let shape = value("shape").and_then(|rest| rest.strip_prefix('(')?.split_once(')')).map(|(shape, _)| shape);
    let shape = shape.ok_or_else(|| bad("it has no shape"))?;
    let lengths = shape.split(',').map(str::trim).filter(|length| !length.is_empty());
    let count = lengths.map(|length| length.parse().ok()).try_fold(1_usize, |count, length| count.checked_mul(length?));
    let offset = start + length;
    match count.and_then(|count| count.checked_mul(data_type.bytes())) {
        Some(expected) if expected == file_bytes - offset => Ok(Flat { data_type, offset, bytes: expected }),
        _ => {
            let problem = format!("a shape of ({shape}) doesn't fit the {} bytes that follow", file_bytes - offset);
            Err(Error::malformed(path, offset, problem))
        }
    }
}

fn npy_type(rest: &str) -> Option<TokenType> {
    let name = rest.strip_prefix('\'')?.split_once('\'')?.0;
    match name {
        "|u1" | "<u1" => Some(TokenType::Uint8),
        "<u2" => Some(TokenType::Uint16),
        "<u4" => Some(TokenType::Uint32),
        "<i4" => Some(TokenType::Int32),
        "<i8" => Some(TokenType::Int64),
        _ => None,
    }
}

/// The file beside a `.ds` file with more behind its name, if there is one.
fn beside(path: &Path, more: &str, most: u64) -> Result<Option<Vec<u8>>, Error> {
    let mut name = path.as_os_str().to_owned();
    name.push(more);
    let path = Path::new(&name);
    match std::fs::metadata(path) {
        Ok(found) if found.len() <= most => std::fs::read(path).map(Some).map_err(Error::io("read", path)),
        Ok(found) => {
            let problem = format!("it has {} bytes, more than {most}", found.len());
            Err(Error::malformed(path, 0, problem))
        }
        Err(_) => Ok(None),
    }
}

/// datatrove notes `tokenizer|bytes of a token` in `NAME.ds.metadata`.
fn datatrove_type(path: &Path) -> Result<Option<TokenType>, Error> {
    let Some(notes) = beside(path, ".metadata", NOTES_BYTES_MAX)? else { return Ok(None) };
    let notes = String::from_utf8_lossy(&notes);
    match notes.lines().next().and_then(|line| line.rsplit_once('|')).map(|(_, bytes)| bytes.trim()) {
        Some("2") => Ok(Some(TokenType::Uint16)),
        Some("4") => Ok(Some(TokenType::Uint32)),
        other => {
            let problem = format!("its .metadata says {other:?} bytes for a token, which are 2 or 4");
            Err(Error::malformed(path, 0, problem))
        }
    }
}

/// `NAME.ds.index` has the documents' ends.
fn datatrove_ends(path: &Path, tokens: usize) -> Result<Option<Ends>, Error> {
    let most = (tokens as u64).saturating_add(1).saturating_mul(8);
    let Some(bytes) = beside(path, ".index", most)? else { return Ok(None) };
    check_ends(path, &bytes, tokens as u64)?;
    Ok(Some(Ends::Offsets(bytes)))
}

/// Refuses ends of documents that go back, or don't end with the tokens.
pub(crate) fn check_ends(path: &Path, bytes: &[u8], tokens: u64) -> Result<(), Error> {
    let (ends, rest) = bytes.as_chunks::<8>();
    if !rest.is_empty() {
        return Err(Error::malformed(path, bytes.len(), "the index of its documents is cut off"));
    }
    let mut before = 0;
    for (number, end) in ends.iter().enumerate() {
        let end = u64::from_le_bytes(*end);
        if end < before || end > tokens {
            let problem = format!("document {number} is said to end at token {end}, between {before} and {tokens}");
            return Err(Error::malformed(path, number * 8, problem));
        }
        before = end;
    }
    if before == tokens || ends.is_empty() {
        return Ok(());
    }
    Err(Error::malformed(path, bytes.len(), format!("its documents end at token {before}, and there are {tokens}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn npy_file(header: &str, data: &[u8]) -> Vec<u8> {
        let mut bytes = b"\x93NUMPY\x01\x00".to_vec();
        bytes.extend(u16::try_from(header.len()).unwrap().to_le_bytes());
        bytes.extend(header.as_bytes());
        bytes.extend(data);
        bytes
    }

    fn llm_c_file(magic: u32, count: u32, data: &[u8]) -> Vec<u8> {
        let mut bytes: Vec<u8> = [magic, 1, count].into_iter().flat_map(u32::to_le_bytes).collect();
        bytes.resize(LLM_C_HEADER, 0);
        bytes.extend(data);
        bytes
    }

    #[test]
    fn headers_say_what_follows() {
        let check = |bytes: &[u8], said: Option<TokenType>, expected: (TokenType, usize, usize)| {
            let flat = describe(Path::new("x"), bytes, bytes.len(), said).unwrap();
            assert_eq!((flat.data_type, flat.offset, flat.bytes), expected);
        };
        check(&[1, 2, 3, 4], Some(TokenType::Uint16), (TokenType::Uint16, 0, 4));
        check(&llm_c_file(20_240_520, 3, &[0; 6]), None, (TokenType::Uint16, 1_024, 6));
        check(&llm_c_file(20_240_801, 2, &[0; 8]), None, (TokenType::Uint32, 1_024, 8));
        let header = "{'descr': '<u2', 'fortran_order': False, 'shape': (2, 3), }  \n";
        check(&npy_file(header, &[0; 12]), None, (TokenType::Uint16, 10 + header.len(), 12));
    }

    #[test]
    fn what_is_cut_off_or_of_another_kind_is_refused_with_the_place() {
        let check = |bytes: &[u8], expected: &str| {
            let error = describe(Path::new("x.bin"), bytes, bytes.len(), None).unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        };
        check(&[1, 2], "use data_type: x.bin doesn't say what its tokens are: say uint16");
        check(
            &llm_c_file(20_240_520, 4, &[0; 6]),
            "read x.bin at byte 8: llm.c's header counts 4 uint16 tokens, and 6 bytes",
        );
        check(&llm_c_file(20_240_520, 4, &[])[..500], "llm.c's header is cut off");
        check(b"\x93NUMPY\x09", "no .npy file of version 1 to 3");
        check(
            &npy_file("{'descr': '<f4', 'fortran_order': False, 'shape': (3,), }", &[0; 12]),
            "its elements are no tokens",
        );
        check(&npy_file("{'descr': '<u2', 'fortran_order': True, 'shape': (3,), }", &[0; 6]), "column-major");
        check(
            &npy_file("{'descr': '<u2', 'fortran_order': False, 'shape': (3,), }", &[0; 5]),
            "a shape of (3,) doesn't fit the 5 bytes",
        );
        check(
            &npy_file("{'descr': '<u2', 'fortran_order': False, 'shape': (99999999999, 99999999999), }", &[0; 5]),
            "doesn't fit",
        );
        check(&npy_file("{'descr': '<u2', 'fortran_order': False, 'shape': (3,), }", &[0; 6])[..30], "cut off");
    }

    #[test]
    fn ends_of_documents_that_go_back_or_miss_tokens_are_refused() {
        let check = |ends: &[u64], expected: Option<&str>| {
            let bytes: Vec<u8> = ends.iter().flat_map(|end| end.to_le_bytes()).collect();
            let error = check_ends(Path::new("x"), &bytes, 10).err().map(|error| error.to_string());
            assert!(
                error.as_deref().is_some_and(|error| error.contains(expected.unwrap_or("?"))) == expected.is_some(),
                "{error:?}"
            );
        };
        check(&[3, 10], None);
        check(&[], None);
        check(&[5, 3, 10], Some("document 1 is said to end at token 3"));
        check(&[3, 11], Some("document 1 is said to end at token 11"));
        check(&[3, 9], Some("its documents end at token 9, and there are 10"));
        assert!(check_ends(Path::new("x"), &[0; 7], 0).is_err());
    }
}
