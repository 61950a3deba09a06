//! A source whose documents come in another order.

use super::layout::{PIECES_MAX, Piece};
use super::{Source, sized};
use crate::error::Error;

impl Source {
    /// Makes the stream these documents, one after the other; where they end isn't known then.
    ///
    /// # Errors
    /// When they lie in too many places.
    pub(crate) fn reorder(&mut self, documents: &[u32]) -> Result<(), Error> {
        if documents.len() > PIECES_MAX {
            let problem = format!("{} documents of all passes are more than {PIECES_MAX}", documents.len());
            return Err(Error::refused("shuffle", problem));
        }
        let ends: Vec<u64> = self
            .document_lengths()
            .scan(0, |end, length| {
                *end += length;
                Some(*end)
            })
            .collect();
        let mut pieces = Vec::with_capacity(documents.len());
        let mut before = 0;
        for document in documents {
            let document = sized(u64::from(*document));
            let begin = document.checked_sub(1).map_or(0, |before| ends[before]);
            self.pieces_of(&(begin..ends[document]), &mut |file, bytes| {
                before += (bytes.len() / self.layout.data_type.bytes()) as u64;
                pieces.push(Piece { file, offset: bytes.start, end: before });
                Ok(())
            })?;
        }
        (self.layout.pieces, self.layout.ends) = (pieces, Vec::new());
        Ok(())
    }
}
