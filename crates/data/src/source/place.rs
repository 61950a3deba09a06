//! Where tokens of a source's stream lie: in ranges of remote objects' copies, and in files on disk.

use std::fs::File;
use std::ops::Range;
use std::sync::Arc;

use super::Source;
use super::mapped::Mapped;
use crate::cache::Copy;
use crate::error::Error;

/// A file that can be read from disk.
#[derive(Clone)]
pub(crate) enum OnDisk {
    /// An open file.
    File(Arc<File>),
    /// A copy of the cache, whose file isn't kept open.
    Copy(Arc<Copy>),
}

impl OnDisk {
    /// Returns the file, open to be read.
    pub(crate) fn open(&self) -> Result<Arc<File>, Error> {
        match self {
            OnDisk::File(file) => Ok(Arc::clone(file)),
            OnDisk::Copy(copy) => Ok(Arc::new(File::open(copy.path()).map_err(Error::io("open", copy.path()))?)),
        }
    }
}

impl Source {
    /// The ranges of copies in which tokens of the stream lie.
    pub(crate) fn ranges_of(&self, tokens: &Range<u64>, add: &mut dyn FnMut(&Arc<Copy>, usize)) {
        self.places_of(tokens, &mut |_, mapped, bytes| {
            if let Some(copy) = mapped.copy() {
                crate::cache::ranges_of(&bytes).for_each(|range| add(copy, range));
            }
        });
    }

    /// The bytes of files in which tokens of the stream lie, with the number of each file.
    pub(crate) fn places_of(&self, tokens: &Range<u64>, add: &mut dyn FnMut(usize, &Mapped, Range<usize>)) {
        let found = self.pieces_of(tokens, &mut |file, bytes| {
            add(file, &self.layout.files[file], bytes);
            Ok(())
        });
        found.expect("nothing is read");
    }
}
