//! The registry of models: checkpoints as versions, without a copy.
//!
//! A version's checkpoint is pinned in its own folder ([`gangline_storage::Store::pin`]), so no retention takes it away. What it
//! came from is written down when the version is made, since records of jobs don't stay for ever. The row of a pin is durable
//! before the pin is made, so what a crash leaves behind is removed at the next start.

mod error;
mod lineage;
mod wire;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use gangline_api as api;
use gangline_base::{JobId, Step, Timestamp, with_causes};
use gangline_storage::{Digest, Options, Pinned, Snapshot, Store};
use gangline_store::tracking::{self, Failure, NewModelVersion, Page, PinRow, Search};
use gangline_tracking::{CheckpointVersion, ModelAction, ModelEvent, Refusal, UnixMillis};

pub use error::Error;

use crate::views::Views;
use lineage::Origin;

/// The most models that are listed.
const MODELS_MAX: usize = 1_000;
/// The most versions of each.
const VERSIONS_MAX: u32 = 1_000;
/// The longest place of an export.
const PLACE_BYTES_MAX: usize = 4_096;

/// The registry. Cheap to clone. All of it blocks.
#[derive(Clone, Debug)]
pub struct Registry {
    tracking: tracking::Handle,
    views: Views,
    clock: fn() -> Timestamp,
    /// Locked while a pin is made or removed.
    pinning: Arc<Mutex<()>>,
}

impl Registry {
    /// Returns the registry of a control plane.
    #[must_use]
    pub fn new(tracking: tracking::Handle, views: Views, clock: fn() -> Timestamp) -> Registry {
        Registry { tracking, views, clock, pinning: Arc::default() }
    }

    /// Returns all models with their versions.
    ///
    /// # Errors
    /// If they can't be read.
    pub fn models(&self) -> Result<api::ModelList, Error> {
        let page: Page<_> = self
            .tracking
            .read(|reading| reading.search_registered_models(&Search { count_max: MODELS_MAX, ..Search::default() }))?;
        let names = page.found.into_iter().map(|model| model.name);
        Ok(api::ModelList { models: names.map(|name| self.model(&name)).collect::<Result<_, _>>()? })
    }

    /// Returns a model with its versions.
    ///
    /// # Errors
    /// If there is none of this name, or it can't be read.
    pub fn model(&self, name: &str) -> Result<api::Model, Error> {
        Ok(self.tracking.read(|reading| {
            let model = reading.registered_model(name)?;
            let versions = reading
                .versions_of(name, VERSIONS_MAX)?
                .into_iter()
                .map(|version| wire::version(reading, version, false));
            Ok(wire::model(model, versions.collect::<Result<_, Failure>>()?))
        })?)
    }

    /// Returns a version with its lineage.
    ///
    /// # Errors
    /// If there is no such version, or it can't be read.
    pub fn version(&self, name: &str, number: u32) -> Result<api::ModelVersion, Error> {
        Ok(self.tracking.read(|reading| wire::version(reading, reading.model_version(name, number)?, true))?)
    }

    /// Makes a checkpoint a version of a model. One that is a version of this model already stays that version.
    ///
    /// # Errors
    /// If the request names no checkpoint, or one that isn't there or can't be pinned; if the model can't have this name.
    pub fn register(&self, name: &str, request: &api::RegisterRequest, by: &str) -> Result<api::Registered, Error> {
        gangline_tracking::limits::check_model_name(name).map_err(Failure::from)?;
        let (folder, job) = self.place(request)?;
        let store = open(&folder)?;
        let step = match request.step {
            Some(step) => Step(step),
            None => newest(&store, &folder)?,
        };
        let hash = store.open_step(step).map_err(|error| Error::checkpoint(&folder, error))?.info().content_hash;
        let text = folder.to_str().ok_or_else(|| Error::NoFolder { folder: folder.clone() })?;
        let row = PinRow { folder: text.to_owned(), content_hash: hash.to_string() };

        let _locked = self.lock_pins();
        let intended = row.clone();
        self.tracking.write(move |writing| writing.intend_pin(&intended))?;
        let pin = store.pin(step, hash).map_err(|error| Error::checkpoint(&folder, error))?;
        let now = (self.clock)();
        let origin = Origin { views: &self.views, tracking: &self.tracking, now };
        let lineage = origin.of(&row.folder, &pin.info, job)?;
        let new = NewModelVersion {
            name: name.to_owned(),
            source: format!("{}@{step}", row.folder),
            run: lineage.runs.first().map(|run| run.run.clone()),
            description: request.description.clone(),
            ..NewModelVersion::default()
        };
        let (version, is_new) = self.make_version(new, (row, &pin), &lineage, (by, now))?;
        Ok(api::Registered { version: self.version(name, version)?, is_new })
    }

    /// Makes a pinned checkpoint a version; returns its number, and whether it is new.
    fn make_version(
        &self,
        new: NewModelVersion,
        (row, pin): (PinRow, &Pinned),
        lineage: &api::Lineage,
        (by, now): (&str, Timestamp),
    ) -> Result<(u32, bool), Error> {
        let checkpoint = CheckpointVersion {
            folder: row.folder,
            step: pin.info.step.0,
            content_hash: row.content_hash,
            pin: pin.folder.display().to_string(),
            lineage: serde_json::to_string(lineage).map_err(|error| Failure::Store(error.to_string()))?,
        };
        let (by, now) = (by.to_owned(), UnixMillis::of(now));
        let made = self.tracking.write(move |writing| writing.register_checkpoint(new, &checkpoint, (&by, now)))?;
        Ok((made.0.version, made.1))
    }

    /// Notes that every byte of a version's checkpoint was read and is as it was saved.
    ///
    /// # Errors
    /// If there is no such version, it isn't a checkpoint, something else was read, or its pin isn't there any more.
    pub fn verified(&self, name: &str, number: u32, content_hash: &str, by: &str) -> Result<(), Error> {
        let checkpoint = self.checkpoint(name, number)?;
        let found = self.pinned(&checkpoint)?.info().content_hash.to_string();
        if content_hash != checkpoint.content_hash || found != checkpoint.content_hash {
            let expected = checkpoint.content_hash;
            return Err(Error::OtherBytes { model: name.to_owned(), number, expected, found: content_hash.to_owned() });
        }
        self.note(name, number, (ModelAction::Verified, ""), by)
    }

    /// Points an alias at a version.
    ///
    /// # Errors
    /// If there is no such version, the alias can't be kept, or it asks for a verified checkpoint and this isn't one.
    pub fn promote(&self, name: &str, number: u32, alias: &str, by: &str) -> Result<(), Error> {
        let (name, alias, by) = (name.to_owned(), alias.to_owned(), by.to_owned());
        let now = UnixMillis::of((self.clock)());
        Ok(self.tracking.write(move |writing| writing.promote((&name, number), &alias, &by, now))?)
    }

    /// Notes that a version was exported.
    ///
    /// # Errors
    /// If there is no such version, or the place is too long.
    pub fn exported(&self, name: &str, number: u32, place: &str, by: &str) -> Result<(), Error> {
        if place.len() > PLACE_BYTES_MAX {
            let message = format!("the place of the export is longer than {PLACE_BYTES_MAX} bytes");
            return Err(Failure::from(Refusal::invalid(message)).into());
        }
        self.note(name, number, (ModelAction::Exported, place), by)
    }

    /// Removes pins that no version refers to: those of deleted versions, and what a crash left. One that can't be removed is
    /// logged, added to `failed`, and then left alone.
    pub fn remove_unneeded_pins(&self, failed: &mut BTreeSet<PinRow>) {
        let _locked = self.lock_pins();
        let unneeded = match self.tracking.read(|reading| reading.unneeded_pins()) {
            Ok(unneeded) => unneeded,
            Err(Failure::Stopped(_)) => return,
            Err(failure) => return tracing::warn!(error = with_causes(&failure), "pins of checkpoints can't be read"),
        };
        for row in unneeded {
            if failed.contains(&row) {
                continue;
            }
            if let Err(cause) = self.unpin(&row) {
                tracing::warn!(
                    cause,
                    folder = row.folder,
                    "the pin of a checkpoint can't be removed; a restart tries it again"
                );
                failed.insert(row);
            }
        }
    }

    fn unpin(&self, row: &PinRow) -> Result<(), String> {
        let hash: Digest = row.content_hash.parse().map_err(|error| format!("{error}"))?;
        // Without the folder there is nothing to remove.
        if Path::new(&row.folder).is_dir() {
            let store = Store::open(&row.folder, Options::reader()).map_err(|error| with_causes(&error))?;
            store.unpin(hash).map_err(|error| with_causes(&error))?;
        }
        let row = row.clone();
        self.tracking.write(move |writing| writing.forget_pin(&row)).map_err(|error| with_causes(&error))
    }

    fn note(&self, name: &str, number: u32, (action, detail): (ModelAction, &str), by: &str) -> Result<(), Error> {
        let event =
            ModelEvent { at: UnixMillis::of((self.clock)()), by: by.to_owned(), action, detail: detail.to_owned() };
        let name = name.to_owned();
        Ok(self.tracking.write(move |writing| writing.note_model_event(&name, number, &event))?)
    }

    fn checkpoint(&self, name: &str, number: u32) -> Result<CheckpointVersion, Error> {
        let found = self.tracking.read(|reading| reading.checkpoint_version(name, number))?;
        found.ok_or_else(|| Error::NotACheckpoint { model: name.to_owned(), number })
    }

    fn pinned(&self, checkpoint: &CheckpointVersion) -> Result<Snapshot, Error> {
        let folder = Path::new(&checkpoint.pin);
        open(folder)?.open_step(Step(checkpoint.step)).map_err(|error| Error::checkpoint(folder, error))
    }

    /// Returns the folder that a request names, and the job if it names one.
    fn place(&self, request: &api::RegisterRequest) -> Result<(PathBuf, Option<JobId>), Error> {
        let (folder, job) = match (&request.job, &request.folder) {
            (Some(text), None) => {
                let id: JobId = text.parse().map_err(|_| Error::NoJob(text.clone()))?;
                let job = self.views.job(id)?.ok_or_else(|| Error::NoJob(text.clone()))?;
                (PathBuf::from(job.checkpoint_path.unwrap_or_default()), Some(id))
            }
            (None, Some(folder)) => (PathBuf::from(folder), None),
            _ => return Err(Error::NoPlace),
        };
        let canonical = folder.is_absolute().then(|| folder.canonicalize().ok()).flatten();
        Ok((canonical.ok_or(Error::NoFolder { folder })?, job))
    }

    fn lock_pins(&self) -> MutexGuard<'_, ()> {
        self.pinning.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn open(folder: &Path) -> Result<Store, Error> {
    Store::open(folder, Options::reader()).map_err(|error| Error::checkpoint(folder, error))
}

fn newest(store: &Store, folder: &Path) -> Result<Step, Error> {
    let line = store.line().map_err(|error| Error::checkpoint(folder, error))?;
    line.into_iter().next().ok_or_else(|| Error::NoCheckpoint { folder: folder.to_owned() })
}
