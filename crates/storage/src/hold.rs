//! Holds: checkpoints that stay because a model version needs them, whatever retention removes and whichever later save of the
//! same step replaces them.
//!
//! A hold is a folder with hard links to the files of a checkpoint, in the store's own folder. A published file never changes,
//! so a hold shows the bytes that were saved, and takes room only once the checkpoint itself is gone. Each hold is a store of
//! one checkpoint: whatever reads stores reads holds.
//!
//! Keeps A-6: a hold has its name only when all of its links are durable.

use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use gangline_base::Step;

use crate::manifest::read_manifest;
use crate::present::Present;
use crate::{CheckpointInfo, Digest, Error, Snapshot, Store, layout};

/// The folder of holds, in the store's own folder.
const HOLDS: &str = "held";
/// Held while a hold is built, since builds of one hold have the same temporary name.
static BUILDING: Mutex<()> = Mutex::new(());

/// A held checkpoint.
#[derive(Clone, Debug)]
pub struct Hold {
    /// The folder of the hold, a store whose only checkpoint it is.
    pub folder: PathBuf,
    /// The manifest's content.
    pub info: CheckpointInfo,
}

impl Store {
    /// Holds a checkpoint until [`Store::release`]. Also works on a store that was opened for reading. Holding it again changes
    /// nothing; the holds of a checkpoint aren't counted. Only one process may hold checkpoints of a folder at a time.
    ///
    /// # Errors
    /// [`Error::NotFound`], also if the checkpoint is removed meanwhile; [`Error::Corrupt`] if its manifest isn't what was saved
    /// or a file has another length; [`Error::Io`], among others if the file system has no hard links, or the files belong to
    /// another user.
    pub fn hold(&self, step: Step) -> Result<Hold, Error> {
        let snapshot = self.open_step(step)?;
        let hash = snapshot.info().content_hash;
        let folder = self.hold_folder(hash);
        if let Ok(held) = Snapshot::open(&folder, step) {
            return Ok(Hold { folder, info: held.info().clone() });
        }
        let disk = self.disk();
        disk.check_poison()?;
        let holds = self.path().join(layout::OWN_FOLDER).join(HOLDS);
        disk.create_root(&holds)?;
        let name = hash.to_string();
        let _building = BUILDING.lock().unwrap_or_else(PoisonError::into_inner);
        disk.publish_folder(&holds, (&format!(".{name}"), &name), |aside| self.link(step, aside, hash))?;
        let held = Snapshot::open(&folder, step)?;
        Ok(Hold { folder, info: held.info().clone() })
    }

    /// Ends a hold. The bytes go with it, unless the checkpoint is still there. One that isn't held is no error.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn release(&self, content_hash: Digest) -> Result<(), Error> {
        self.disk().remove_folder(&self.hold_folder(content_hash))
    }

    fn hold_folder(&self, content_hash: Digest) -> PathBuf {
        self.path().join(layout::OWN_FOLDER).join(HOLDS).join(content_hash.to_string())
    }

    /// Links the files of a checkpoint into a store at `aside`.
    fn link(&self, step: Step, aside: &Path, hash: Digest) -> Result<(), Error> {
        let name = layout::checkpoint_folder(step.0);
        let (from, to) = (self.path().join(&name), aside.join(&name));
        let present = Present::find(&from, step)?;
        let disk = self.disk();
        disk.create_folder(&to)?;
        let manifest = read_manifest(&from.join(layout::MANIFEST), step.0).map_err(|error| present.explain(error))?;
        let files = manifest.files().map(|(name, _)| name).chain([layout::MANIFEST.to_owned()]);
        let linked = files.into_iter().try_for_each(|file| disk.link_file(&from.join(&file), &to.join(&file)));
        // Retention may have removed the folder, and a save of the same step may have replaced it.
        linked.map_err(|error| present.check().err().unwrap_or(error))?;
        if Snapshot::open(aside, step).map_err(|error| present.explain(error))?.info().content_hash != hash {
            return Err(Error::NotFound { step });
        }
        disk.sync_folder(&to)?;
        disk.sync_folder(aside)
    }
}
