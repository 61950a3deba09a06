//! What a format's reader finds: the files, and where in them the stream of tokens lies. Pieces are checked here, once for
//! all formats: none points outside its file.

use crate::error::Error;
use crate::index::FILES_MAX;
use crate::source::mapped::Mapped;
use crate::token_type::TokenType;

/// The most pieces that the stream is made of, where rows aren't next to each other.
pub const PIECES_MAX: usize = 1 << 24;

/// The files of a source and the stream in them.
pub(crate) struct Layout {
    pub(crate) data_type: TokenType,
    pub(crate) files: Vec<Mapped>,
    pub(crate) pieces: Vec<Piece>,
    /// Where documents end; empty if the format doesn't say.
    pub(crate) ends: Vec<Ends>,
    /// Checksums, if the format has them.
    pub(crate) sums: Vec<Vec<u64>>,
}

/// Tokens that lie next to each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Piece {
    /// The file's number.
    pub(crate) file: usize,
    /// Where in it, in bytes.
    pub(crate) offset: usize,
    /// The tokens of the stream up to its end.
    pub(crate) end: u64,
}

/// Where the documents of a file end.
pub(crate) enum Ends {
    /// Counts of tokens, 32 bits each (Megatron).
    Lengths(Vec<u8>),
    /// Tokens from the file's first, 64 bits each (datatrove, Gangline).
    Offsets(Vec<u8>),
}

impl Layout {
    pub(crate) fn new(data_type: TokenType) -> Layout {
        Layout { data_type, files: Vec::new(), pieces: Vec::new(), ends: Vec::new(), sums: Vec::new() }
    }

    /// Adds a file; returns its number.
    pub(crate) fn add_file(&mut self, file: Mapped) -> Result<usize, Error> {
        if self.files.len() == FILES_MAX {
            return Err(Error::refused("source", format!("it has more than {FILES_MAX} files: merge them")));
        }
        self.files.push(file);
        Ok(self.files.len() - 1)
    }

    /// Adds the tokens in a range of a file to the stream.
    pub(crate) fn add_piece(&mut self, file: usize, offset: usize, bytes: usize) -> Result<(), Error> {
        let (of, size) = (&self.files[file], self.files[file].len());
        if offset.checked_add(bytes).is_none_or(|end| end > size) {
            let problem = format!("{bytes} bytes of tokens are said to be there, and the file ends at byte {size}");
            return Err(Error::malformed(of.path(), offset, problem));
        }
        let width = self.data_type.bytes();
        if !bytes.is_multiple_of(width) {
            let name = self.data_type.name();
            let problem = format!("{bytes} bytes are no whole number of {name} tokens: cut off, or of another type");
            return Err(Error::malformed(of.path(), offset, problem));
        }
        let tokens = (bytes / width) as u64;
        let before = self.tokens();
        let end = before.checked_add(tokens).expect("files have fewer bytes than 64 bits count");
        if tokens == 0 {
            return Ok(());
        }
        let begin = self.pieces.len().checked_sub(2).map_or(0, |at| self.pieces[at].end);
        let behind = |piece: &Piece| piece.file == file && piece.offset + bytes_of(before - begin, width) == offset;
        // What lies right behind the last piece is a part of it.
        let is_full = self.pieces.len() == PIECES_MAX;
        match self.pieces.last_mut().filter(|piece| behind(piece)) {
            Some(piece) => piece.end = end,
            None if is_full => {
                let problem =
                    format!("its rows are in more than {PIECES_MAX} places: convert it with `gangline data convert`");
                return Err(Error::refused("source", problem));
            }
            None => self.pieces.push(Piece { file, offset, end }),
        }
        Ok(())
    }

    /// Tokens of the stream.
    pub(crate) fn tokens(&self) -> u64 {
        self.pieces.last().map_or(0, |piece| piece.end)
    }
}

impl Ends {
    /// The documents' lengths in tokens, from one of them on.
    pub(crate) fn lengths_from(&self, first: usize) -> Box<dyn Iterator<Item = u64> + '_> {
        match self {
            Ends::Lengths(bytes) => {
                // Negative lengths were refused when the index was read.
                let length = |bytes: &[u8; 4]| u64::from(u32::from_le_bytes(*bytes));
                Box::new(bytes.as_chunks().0.iter().skip(first).map(length))
            }
            Ends::Offsets(bytes) => {
                let ends = bytes.as_chunks::<8>().0;
                let begin = first.checked_sub(1).and_then(|before| ends.get(before));
                let begin = begin.map_or(0, |bytes| u64::from_le_bytes(*bytes));
                let ends = ends.iter().skip(first).map(|bytes| u64::from_le_bytes(*bytes));
                Box::new(ends.scan(begin, |before, end| Some(end.saturating_sub(std::mem::replace(before, end)))))
            }
        }
    }

    pub(crate) fn count(&self) -> u64 {
        match self {
            Ends::Lengths(bytes) => bytes.len() as u64 / 4,
            Ends::Offsets(bytes) => bytes.len() as u64 / 8,
        }
    }
}

/// The bytes of tokens that are in one file.
fn bytes_of(tokens: u64, width: usize) -> usize {
    usize::try_from(tokens).expect("they are in memory") * width
}

#[cfg(test)]
mod tests {
    use super::*;

    fn layout(files: &[usize]) -> Layout {
        let mut layout = Layout::new(TokenType::Uint16);
        for bytes in files {
            layout.add_file(Mapped::own("test", vec![0; *bytes])).unwrap();
        }
        layout
    }

    #[test]
    fn neighbours_are_one_piece_and_nothing_is_none() {
        let mut layout = layout(&[100, 100]);
        for (file, offset, bytes) in
            [(0, 10, 20), (0, 30, 2), (0, 40, 0), (0, 32, 8), (0, 50, 4), (1, 54, 4), (1, 58, 4)]
        {
            layout.add_piece(file, offset, bytes).unwrap();
        }
        let piece = |file, offset, end| Piece { file, offset, end };
        assert_eq!(layout.pieces, [piece(0, 10, 15), piece(0, 50, 17), piece(1, 54, 21)]);
    }

    #[test]
    fn what_points_outside_of_its_file_or_cuts_a_token_is_refused() {
        let check = |offset, bytes, expected: &str| {
            let error = layout(&[100]).add_piece(0, offset, bytes).unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        };
        check(90, 12, "read test at byte 90: 12 bytes of tokens are said to be there, and the file ends at byte 100");
        check(usize::MAX, 2, "ends at byte 100");
        check(0, 99, "99 bytes are no whole number of uint16 tokens");
    }

    #[test]
    fn both_kinds_of_ends_give_lengths() {
        let offsets: Vec<u8> = [3_u64, 3, 10].iter().flat_map(|end| end.to_le_bytes()).collect();
        assert_eq!(Ends::Offsets(offsets.clone()).lengths_from(0).collect::<Vec<_>>(), [3, 0, 7]);
        assert_eq!(Ends::Offsets(offsets).lengths_from(2).collect::<Vec<_>>(), [7]);
        let lengths = [3_u32, 7].iter().flat_map(|end| end.to_le_bytes()).collect();
        let lengths = Ends::Lengths(lengths);
        assert_eq!((lengths.lengths_from(0).collect::<Vec<_>>(), lengths.count()), (vec![3, 7], 2));
    }
}
