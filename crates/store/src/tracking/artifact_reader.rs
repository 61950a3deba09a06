//! The contents of an artifact, piece by piece.

use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt as _;

use super::{Failure, Remotes, StoredArtifact};

/// Bytes read from a file at once.
const FILE_PIECE: u64 = 256 << 10;
/// Bytes read from an object at once.
const OBJECT_PIECE: u64 = 4 << 20;

/// Reads an artifact, or a range of it.
#[derive(Debug)]
pub struct ArtifactReader {
    stored: StoredArtifact,
    source: Source,
    range: Range<u64>,
    /// Of what was read so far; none if not all is read.
    hasher: Option<Box<blake3::Hasher>>,
}

#[derive(Debug)]
enum Source {
    File(File),
    Object { remotes: Remotes, key: String },
}

impl ArtifactReader {
    pub(super) fn of_file(file: File, stored: StoredArtifact) -> ArtifactReader {
        ArtifactReader::of(Source::File(file), stored)
    }

    pub(super) fn of_object(remotes: Remotes, key: String, stored: StoredArtifact) -> ArtifactReader {
        ArtifactReader::of(Source::Object { remotes, key }, stored)
    }

    fn of(source: Source, stored: StoredArtifact) -> ArtifactReader {
        let range = 0..stored.bytes;
        ArtifactReader { stored, source, range, hasher: Some(Box::default()) }
    }

    /// Returns what is read.
    #[must_use]
    pub fn stored(&self) -> &StoredArtifact {
        &self.stored
    }

    /// Reads only this range, which lies within the artifact. What isn't read whole isn't compared with its digest.
    #[must_use]
    pub fn within(mut self, range: Range<u64>) -> ArtifactReader {
        if range != (0..self.stored.bytes) {
            self.hasher = None;
        }
        self.range = range;
        self
    }

    /// Returns the next bytes; none at the end.
    ///
    /// # Errors
    /// If they can't be read, or what was read isn't what was kept: then the last bytes aren't returned.
    pub fn next_piece(&mut self) -> Result<Option<Vec<u8>>, Failure> {
        if self.range.is_empty() {
            return Ok(None);
        }
        let piece = self.piece()?;
        self.range.start += piece.len() as u64;
        if let Some(hasher) = &mut self.hasher {
            hasher.update(&piece);
            if self.range.is_empty() && *hasher.finalize().as_bytes() != self.stored.digest.0 {
                let (digest, place) = (self.stored.digest, self.stored.place.as_deref().unwrap_or("the data folder"));
                return Err(Failure::Store(format!(
                    "the contents {digest} in {place} have changed since they were kept"
                )));
            }
        }
        Ok(Some(piece))
    }

    fn piece(&self) -> Result<Vec<u8>, Failure> {
        let upto = |length: u64| self.range.start..self.range.end.min(self.range.start + length);
        match &self.source {
            Source::File(file) => {
                let range = upto(FILE_PIECE);
                let mut piece = vec![0; usize::try_from(range.end - range.start).expect("64-bit Linux only")];
                file.read_exact_at(&mut piece, range.start)?;
                Ok(piece)
            }
            Source::Object { remotes, key } => {
                let address = self.stored.place.as_deref().unwrap_or_default();
                remotes.read(address, key, upto(OBJECT_PIECE))
            }
        }
    }
}
