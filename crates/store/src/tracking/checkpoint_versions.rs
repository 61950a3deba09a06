//! Versions of models that are checkpoints.
//!
//! A version refers to a pin of its checkpoint in the checkpoint's own folder. The pin's row is written before the pin is
//! made, and removed after the pin, so that a crash leaves no pin that nobody knows of.

use gangline_tracking::{CheckpointVersion, ModelAction, ModelEvent, ModelVersion, UnixMillis, check_promotion};
use rusqlite::{OptionalExtension, Row, params};

use super::model_versions::NewModelVersion;
use super::{Failure, Reading, Writing};

/// The most entries of one action in a version's history; the oldest go.
const EVENTS_MAX: u32 = 100;
/// The most pins that are returned at once.
const PINS_MAX: u32 = 100;

/// A pin of a checkpoint.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct PinRow {
    /// The folder of checkpoints.
    pub folder: String,
    /// The content hash of the checkpoint.
    pub content_hash: String,
}

impl Reading<'_> {
    /// Returns the checkpoint that a version is; none if it is another kind of model.
    ///
    /// # Errors
    /// If there is no such version.
    pub fn checkpoint_version(&self, name: &str, version: u32) -> Result<Option<CheckpointVersion>, Failure> {
        let (row, _) = self.version_row(name, version)?;
        let sql = "SELECT folder, step, content_hash, pin, lineage FROM checkpoint_version WHERE version = ?1";
        let found = |row: &Row<'_>| {
            Ok(CheckpointVersion {
                folder: row.get(0)?,
                step: row.get::<_, i64>(1)?.cast_unsigned(),
                content_hash: row.get(2)?,
                pin: row.get(3)?,
                lineage: row.get(4)?,
            })
        };
        Ok(self.0.prepare_cached(sql)?.query_row([row], found).optional()?)
    }

    /// Returns what was done with a version, oldest first.
    ///
    /// # Errors
    /// If there is no such version.
    pub fn model_events(&self, name: &str, version: u32) -> Result<Vec<ModelEvent>, Failure> {
        let (row, _) = self.version_row(name, version)?;
        self.events_of(row)
    }

    pub(super) fn events_of(&self, row: i64) -> Result<Vec<ModelEvent>, Failure> {
        let sql = "SELECT at, by, action, detail FROM model_event WHERE version = ?1 ORDER BY id";
        let event = |row: &Row<'_>| {
            let action: String = row.get(2)?;
            let unknown = || rusqlite::Error::InvalidColumnType(2, "action".into(), rusqlite::types::Type::Text);
            let action = ModelAction::parse(&action).ok_or_else(unknown)?;
            Ok(ModelEvent { at: UnixMillis(row.get(0)?), by: row.get(1)?, action, detail: row.get(3)? })
        };
        Ok(self.0.prepare_cached(sql)?.query_map([row], event)?.collect::<Result<_, _>>()?)
    }

    /// Checks that an alias may point at a version. Versions that aren't checkpoints are their users' concern, as with MLflow.
    pub(super) fn check_promotion(&self, alias: &str, name: &str, version: u32) -> Result<(), Failure> {
        if self.checkpoint_version(name, version)?.is_some() {
            check_promotion(alias, (name, version), &self.model_events(name, version)?)?;
        }
        Ok(())
    }

    /// Returns pins that no version refers to. Nobody may be about to register one of them meanwhile.
    ///
    /// # Errors
    /// If they can't be read.
    pub fn unneeded_pins(&self) -> Result<Vec<PinRow>, Failure> {
        let sql = "SELECT p.folder, p.content_hash FROM pin p WHERE NOT EXISTS
                   (SELECT 1 FROM checkpoint_version c WHERE c.folder = p.folder AND c.content_hash = p.content_hash)
                   LIMIT ?1";
        let row = |row: &Row<'_>| Ok(PinRow { folder: row.get(0)?, content_hash: row.get(1)? });
        Ok(self.0.prepare_cached(sql)?.query_map([PINS_MAX], row)?.collect::<Result<_, _>>()?)
    }
}

impl Writing<'_> {
    /// Notes that a pin is about to be made.
    ///
    /// # Errors
    /// If it can't be kept.
    pub fn intend_pin(&self, pin: &PinRow) -> Result<(), Failure> {
        let sql = "INSERT OR IGNORE INTO pin (folder, content_hash) VALUES (?1, ?2)";
        self.0.execute(sql, params![pin.folder, pin.content_hash])?;
        Ok(())
    }

    /// Notes that a pin was removed.
    ///
    /// # Errors
    /// If it can't be kept.
    pub fn forget_pin(&self, pin: &PinRow) -> Result<(), Failure> {
        self.0.execute(
            "DELETE FROM pin WHERE folder = ?1 AND content_hash = ?2",
            params![pin.folder, pin.content_hash],
        )?;
        Ok(())
    }

    /// Makes a pinned checkpoint the next version of a model, which is made too if there is none of this name. A checkpoint that
    /// is a version of this model already stays the version that it is. Returns the version, and whether it is new.
    ///
    /// # Errors
    /// If something can't be kept.
    pub fn register_checkpoint(
        &self,
        new: NewModelVersion,
        checkpoint: &CheckpointVersion,
        (by, now): (&str, UnixMillis),
    ) -> Result<(ModelVersion, bool), Failure> {
        let known = "SELECT v.version FROM checkpoint_version c JOIN model_version v ON v.id = c.version
                     JOIN registered_model r ON r.id = v.model WHERE r.name = ?1 AND c.folder = ?2 AND c.content_hash = ?3";
        let values = params![new.name, checkpoint.folder, checkpoint.content_hash];
        if let Some(version) = self.0.query_row(known, values, |row| row.get(0)).optional()? {
            return Ok((self.reading().model_version(&new.name, version)?, false));
        }
        let exists = "SELECT EXISTS (SELECT 1 FROM registered_model WHERE name = ?1)";
        if !self.0.query_row(exists, [&new.name], |row| row.get(0))? {
            self.create_registered_model(&new.name, None, &[], now)?;
        }
        let version = self.create_model_version(new, now)?;
        let (row, _) = self.reading().version_row(&version.name, version.version)?;
        let sql = "INSERT INTO checkpoint_version (version, folder, step, content_hash, pin, lineage)
                   VALUES (?1, ?2, ?3, ?4, ?5, ?6)";
        let CheckpointVersion { folder, step, content_hash, pin, lineage } = checkpoint;
        self.0.execute(sql, params![row, folder, step.cast_signed(), content_hash, pin, lineage])?;
        // Where MLflow's clients on this file system find the files.
        self.0.execute("UPDATE model_version SET storage_uri = ?2 WHERE id = ?1", params![row, pin])?;
        self.add_event(row, &event(by, now, ModelAction::Registered, ""))?;
        Ok((version, true))
    }

    /// Adds to the history of a version.
    ///
    /// # Errors
    /// If there is no such version.
    pub fn note_model_event(&self, name: &str, version: u32, event: &ModelEvent) -> Result<(), Failure> {
        let (row, _) = self.reading().version_row(name, version)?;
        self.add_event(row, event)
    }

    /// Points an alias at a version, and notes in its history who did it.
    ///
    /// # Errors
    /// If there is no such version, the alias can't be kept, or the alias asks for a verified checkpoint and this isn't one.
    pub fn promote(&self, (name, version): (&str, u32), alias: &str, by: &str, now: UnixMillis) -> Result<(), Failure> {
        let is_there = self.reading().model_version(name, version)?.aliases.iter().any(|other| other == alias);
        self.set_alias(name, alias, version)?;
        if is_there {
            Ok(())
        } else {
            self.note_model_event(name, version, &event(by, now, ModelAction::Promoted, alias))
        }
    }

    fn add_event(&self, row: i64, event: &ModelEvent) -> Result<(), Failure> {
        let sql = "INSERT INTO model_event (version, at, by, action, detail) VALUES (?1, ?2, ?3, ?4, ?5)";
        self.0.execute(sql, params![row, event.at.0, event.by, event.action.name(), event.detail])?;
        let sql = "DELETE FROM model_event WHERE version = ?1 AND action = ?2 AND id NOT IN
                   (SELECT id FROM model_event WHERE version = ?1 AND action = ?2 ORDER BY id DESC LIMIT ?3)";
        self.0.execute(sql, params![row, event.action.name(), EVENTS_MAX])?;
        Ok(())
    }

    /// Forgets what is kept of a version beside its row. Its pin is removed later.
    pub(super) fn forget_checkpoint_version(&self, row: i64) -> Result<(), Failure> {
        self.0.execute("DELETE FROM checkpoint_version WHERE version = ?1", [row])?;
        self.0.execute("DELETE FROM model_event WHERE version = ?1", [row])?;
        Ok(())
    }
}

fn event(by: &str, at: UnixMillis, action: ModelAction, detail: &str) -> ModelEvent {
    ModelEvent { at, by: by.to_owned(), action, detail: detail.to_owned() }
}
