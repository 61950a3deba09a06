//! A background check of tensors that were returned unchecked.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::time::Duration;

use crate::Error;
use crate::manifest::Manifest;
use crate::reading::{Origin, Piece, read_pieces};
use crate::shard::Shard;

/// A check in progress. Dropping the handle doesn't stop it; it ends with the process.
#[derive(Debug)]
pub struct Verification {
    outcome: Receiver<Result<(), Error>>,
}

impl Verification {
    /// Reads pieces of files again and hashes them. The files, each with its shard's index in the manifest,
    /// are open when this returns, so a checkpoint that is pruned meanwhile is checked all the same.
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
            // The receivers of the outcome may be gone.
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

    /// Waits up to `limit` until every byte has been compared with what was saved; returns none if the check
    /// is still running. The outcome is returned once.
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
