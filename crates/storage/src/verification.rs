//! A check of tensors that were handed over unchecked, under way in the background.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::time::Duration;

use crate::Error;
use crate::manifest::Manifest;
use crate::reading::{Origin, Piece, read_pieces};
use crate::shard::Shard;

/// A check that is under way. Dropping it lets it go on unobserved; it ends with the process.
#[derive(Debug)]
pub struct Verification {
    outcome: Receiver<Result<(), Error>>,
}

impl Verification {
    /// Reads pieces of files once more and hashes them. The files, each with its shard's place in the manifest, are open when this
    /// returns, so a checkpoint that is pruned meanwhile is checked all the same.
    pub(crate) fn start(
        manifest: Arc<Manifest>,
        files: Vec<(PathBuf, usize)>,
        mut pieces: Vec<Piece>,
    ) -> Result<Verification, Error> {
        pieces.iter_mut().for_each(|piece| piece.is_checked = true);
        let (to_opener, opened) = sync_channel(1);
        let (to_asker, outcome) = sync_channel(1);
        let folder = files.first().map_or_else(PathBuf::new, |(path, _)| path.clone());
        let work = move || {
            let shards = files.iter().map(|(path, at)| Shard::open(path, &manifest.shards[*at]));
            // Nobody may be waiting any more, neither for this nor for the outcome.
            let shards = match shards.collect::<Result<Vec<_>, Error>>() {
                Ok(shards) => shards,
                Err(error) => return drop(to_opener.send(Err(error))),
            };
            let _ = to_opener.send(Ok(()));
            let outcomes = read_pieces(&shards, &pieces, Origin::CacheFirst, Vec::new(), |_, _, _| ());
            let _ = to_asker.send(outcomes.into_iter().collect());
        };
        let thread = std::thread::Builder::new().name("gangline-verify".to_owned()).spawn(work);
        thread.map_err(|source| Error::io("start a thread that verifies", &folder, source))?;
        opened.recv().unwrap_or(Err(Error::Closed))?;
        Ok(Verification { outcome })
    }

    /// Waits, at most this long, until every byte has been compared with what was saved; none if that hasn't ended then. The
    /// outcome is told once.
    ///
    /// # Errors
    /// Inside: [`Error::Corrupt`] naming the file and tensor that isn't what was saved; [`Error::Io`].
    #[must_use]
    pub fn wait_at_most(&self, limit: Duration) -> Option<Result<(), Error>> {
        match self.outcome.recv_timeout(limit) {
            Ok(outcome) => Some(outcome),
            Err(RecvTimeoutError::Timeout) => None,
            Err(RecvTimeoutError::Disconnected) => Some(Err(Error::Closed)),
        }
    }
}
