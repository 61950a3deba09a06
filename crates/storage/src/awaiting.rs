//! How the ranks of a gang wait for each other: rank 0 for the other ranks' indexes, the others for the
//! manifest that rank 0 commits. They communicate only through the store's folder.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::PoisonError;
use std::time::{Duration, Instant};

use gangline_base::Step;

use crate::commit::{Committer, Work};
use crate::manifest::{INDEX_MAGIC, Manifest, ShardIndex, ShardRecord, read_manifest, read_sealed};
use crate::refusal::{self, Turn};
use crate::{Error, Flaw, layout};

/// The polling interval for a file that another rank is to write.
const LOOK_INTERVAL: Duration = Duration::from_millis(5);

/// Returns an identity that distinguishes a file from another that later takes its name.
pub(crate) fn identity(path: &Path) -> Option<(u64, u64)> {
    std::fs::metadata(path).ok().map(|found| (found.dev(), found.ino()))
}

impl Committer {
    /// Rank 0: waits for another rank's index, which must be of the same save as `mine`.
    pub(crate) fn await_shards(
        &self,
        partial: &Path,
        rank: u32,
        mine: &ShardIndex,
        work: &Work,
    ) -> Result<Vec<ShardRecord>, Error> {
        let path = partial.join(layout::index_file(rank, self.writer.world_size));
        let step = work.step;
        let index: ShardIndex =
            self.await_file(step, rank, || match read_sealed::<ShardIndex>(&path, INDEX_MAGIC) {
                // An index of an earlier turn, which the rank will replace.
                Ok(index) if index.turn.is_some_and(|turn| turn < work.turn) => {
                    Err(Error::corrupt(&path, Flaw::Missing))
                }
                Err(missing @ Error::Corrupt { flaw: Flaw::Missing, .. }) => {
                    refusal::check(partial, rank, self.writer, work.turn()).and(Err(missing))
                }
                found_or_failed => found_or_failed,
            })?;
        let is_same_save = (index.step, index.writer, index.world_size) == (mine.step, mine.writer, mine.world_size)
            && index.files().all(|file| file.rank == rank);
        if !is_same_save {
            return Err(Error::corrupt(&path, Flaw::Malformed { what: "it is of another save" }));
        }
        if index.turn.is_some_and(|turn| turn > work.turn) {
            refusal::check(partial, rank, self.writer, work.turn())?;
            return Err(Error::Abandoned { step, rank, why: "it has given it up and begun anew".to_owned() });
        }
        let difference = match (&work.alike, &index.alike) {
            (Some(mine), Some(others)) => mine.difference(others),
            _ => None,
        };
        let is_other = index.plan_blake3 != mine.plan_blake3;
        match difference.or_else(|| is_other.then(|| "its tensors or metadata".to_owned())) {
            Some(what) => Err(Error::Disagreement { step, rank, what }),
            None => Ok(std::iter::once(index.shard).chain(index.more).collect()),
        }
    }

    /// Other ranks: waits until rank 0 has committed a manifest that holds `mine`.
    pub(crate) fn await_commit(
        &self,
        partial: &Path,
        turn: Turn,
        mine: &ShardIndex,
        earlier: Option<(u64, u64)>,
    ) -> Result<Manifest, Error> {
        let step = turn.step;
        let path = self.manifest_path(step);
        let is_ours = |manifest: &Manifest| {
            let files = manifest.shards.iter().filter(|file| file.rank == mine.shard.rank);
            manifest.writer == self.writer.tag && files.eq(mine.files())
        };
        // An older checkpoint of this step, even a damaged one, may be there until rank 0 replaces it.
        self.await_file(step, 0, || match read_manifest(&path, step.0) {
            Ok(manifest) if is_ours(&manifest) && (earlier.is_none() || identity(&path) != earlier) => Ok(manifest),
            Ok(_) | Err(Error::Corrupt { .. }) => {
                refusal::check(partial, 0, self.writer, turn).and(Err(Error::corrupt(&path, Flaw::Missing)))
            }
            Err(error) => Err(error),
        })
    }

    pub(crate) fn manifest_path(&self, step: Step) -> PathBuf {
        self.shared.root.join(layout::checkpoint_folder(step.0)).join(layout::MANIFEST)
    }

    /// Calls `look` repeatedly as long as it reports that the file is missing.
    fn await_file<T>(&self, step: Step, rank: u32, look: impl Fn() -> Result<T, Error>) -> Result<T, Error> {
        let started = Instant::now();
        loop {
            match look() {
                Err(Error::Corrupt { flaw: Flaw::Missing, .. }) => {}
                found_or_failed => return found_or_failed,
            }
            if started.elapsed() >= self.shared.options.commit_timeout {
                return Err(Error::Timeout { step, rank, waited: self.shared.options.commit_timeout });
            }
            let closing = self.shared.closing.lock().unwrap_or_else(PoisonError::into_inner);
            let (closing, _) = self
                .shared
                .closed
                .wait_timeout_while(closing, LOOK_INTERVAL, |closing| !*closing)
                .unwrap_or_else(PoisonError::into_inner);
            if *closing {
                return Err(Error::Closed);
            }
        }
    }
}
