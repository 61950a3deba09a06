//! Pins: checkpoints that stay because a model version needs them, whatever retention removes and whichever later save of the
//! same step replaces them.
//!
//! A pin is a folder with hard links to the files of a checkpoint, in the store's own folder. A published file never changes,
//! so a pin shows the bytes that were saved, and takes room only once the checkpoint itself is gone. Each pin is a store of
//! one checkpoint: whatever reads stores reads pins.
//!
//! Keeps A-6: a pin has its name only when all of its links are durable.

use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use gangline_base::Step;

use crate::manifest::read_manifest;
use crate::present::Present;
use crate::{CheckpointInfo, Digest, Error, Snapshot, Store, layout};

/// The folder of pins, in the store's own folder.
const PINS: &str = "pinned";
/// Locked while a pin is built, since builds of one pin have the same temporary name.
static BUILDING: Mutex<()> = Mutex::new(());

/// A pinned checkpoint.
#[derive(Clone, Debug)]
pub struct Pinned {
    /// The folder of the pin, a store whose only checkpoint it is.
    pub folder: PathBuf,
    /// The manifest's content.
    pub info: CheckpointInfo,
}

impl Store {
    /// Pins the checkpoint of a step with this content until [`Store::unpin`]. Also works on a store that was opened for reading. Pinning it again changes
    /// nothing; the pins of a checkpoint aren't counted. Only one process may pin checkpoints of a folder at a time.
    ///
    /// # Errors
    /// [`Error::NotFound`], also if the step has other content, or the checkpoint is removed meanwhile; [`Error::Corrupt`] if its manifest isn't what was saved
    /// or a file has another length; [`Error::Io`], among others if the file system has no hard links, or the files belong to
    /// another user.
    pub fn pin(&self, step: Step, hash: Digest) -> Result<Pinned, Error> {
        if self.open_step(step)?.info().content_hash != hash {
            return Err(Error::NotFound { step });
        }
        let folder = self.pin_folder(hash);
        if let Ok(pinned) = Snapshot::open(&folder, step) {
            return Ok(Pinned { folder, info: pinned.info().clone() });
        }
        let disk = self.disk();
        disk.check_poison()?;
        let pins = self.path().join(layout::OWN_FOLDER).join(PINS);
        disk.create_root(&pins)?;
        let name = hash.to_string();
        let _building = BUILDING.lock().unwrap_or_else(PoisonError::into_inner);
        disk.publish_folder(&pins, (&format!(".{name}"), &name), |aside| self.link(step, aside, hash))?;
        let pinned = Snapshot::open(&folder, step)?;
        Ok(Pinned { folder, info: pinned.info().clone() })
    }

    /// Removes a pin. The bytes go with it, unless the checkpoint is still there. One that isn't pinned is no error.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn unpin(&self, content_hash: Digest) -> Result<(), Error> {
        self.disk().remove_folder(&self.pin_folder(content_hash))
    }

    fn pin_folder(&self, content_hash: Digest) -> PathBuf {
        self.path().join(layout::OWN_FOLDER).join(PINS).join(content_hash.to_string())
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
