//! Versions of registered models.

use gangline_tracking::filter::Vocabulary;
use gangline_tracking::{Entry, ModelVersion, PRODUCTION, Refusal, Stage, UnixMillis, WebhookEvent, limits};
use rusqlite::{OptionalExtension, Row, params};
use serde_json::json;

use super::entries::{Table, as_object};
use super::search::{Page, Scope, Search};
use super::{Failure, Reading, Writing};

const COLUMNS: &str =
    "SELECT v.id, r.name, v.version, v.description, v.created, v.updated, v.source, v.storage_uri, v.run_id,
                       v.run_link, v.logged_model, v.stage, v.model
                       FROM model_version v JOIN registered_model r ON r.id = v.model";

/// A version to be made.
#[derive(Clone, Debug, Default)]
pub struct NewModelVersion {
    /// The registered model.
    pub name: String,
    /// Where its files come from, as a URI.
    pub source: String,
    /// The run that put it out.
    pub run: Option<String>,
    /// A link to that run elsewhere.
    pub run_link: Option<String>,
    /// What it is.
    pub description: Option<String>,
    /// The logged model that it is made of.
    pub logged_model: Option<String>,
    /// Its tags.
    pub tags: Vec<Entry>,
}

impl Reading<'_> {
    /// Returns a version.
    ///
    /// # Errors
    /// If there is none.
    pub fn model_version(&self, name: &str, version: u32) -> Result<ModelVersion, Failure> {
        limits::check_model_name(name)?;
        let sql = format!("{COLUMNS} WHERE r.name = ?1 AND v.version = ?2");
        let found = self.0.prepare_cached(&sql)?.query_row(params![name, version], model_version).optional()?;
        let missing = || Refusal::missing(format!("Model Version (name={name}, version={version}) not found"));
        self.whole_version(found.ok_or_else(missing)?)
    }

    /// Returns the versions of a registered model, the newest first.
    ///
    /// # Errors
    /// If there is no such model.
    pub fn versions_of(&self, name: &str, count_max: u32) -> Result<Vec<ModelVersion>, Failure> {
        let row = self.registered_row(name)?;
        let sql = format!("{COLUMNS} WHERE v.model = ?1 ORDER BY v.version DESC LIMIT ?2");
        let mut statement = self.0.prepare_cached(&sql)?;
        let found: Vec<_> =
            statement.query_map(params![row, count_max], model_version)?.collect::<rusqlite::Result<_>>()?;
        found.into_iter().map(|version| self.whole_version(version)).collect()
    }

    /// Searches versions.
    ///
    /// # Errors
    /// If the filter or the order can't be read.
    pub fn search_model_versions(&self, search: &Search) -> Result<Page<ModelVersion>, Failure> {
        let scope = Scope {
            vocabulary: Vocabulary::ModelVersions,
            from: "model_version x JOIN registered_model r ON r.id = x.model",
            owner: "x.id",
            tags: Table::ModelVersionTag,
            params: None,
            metrics: "",
            column: |key| match key {
                "name" => "r.name",
                "run_id" => "x.run_id",
                "source_path" => "x.source",
                "version_number" => "x.version",
                "creation_timestamp" => "x.created",
                _ => "x.updated",
            },
            ties: &[("r.name", "r.name ASC"), ("x.version", "x.version DESC")],
        };
        let mut query = scope.query(&search.filter, &search.order_by)?;
        if search.order_by.is_empty() {
            query.order.insert(0, "x.updated DESC".into());
        }
        query.page(self.0, search)?.try_map(|row| {
            let sql = format!("{COLUMNS} WHERE v.id = ?1");
            let found = self.0.prepare_cached(&sql)?.query_row([row], model_version)?;
            self.whole_version(found)
        })
    }

    fn whole_version(&self, (row, model, version): (i64, i64, ModelVersion)) -> Result<ModelVersion, Failure> {
        let tags = self.entries(Table::ModelVersionTag, row)?;
        let aliases = self.aliases(model)?.into_iter().filter(|alias| alias.version == version.version);
        let aliases = aliases.map(|alias| alias.name).collect();
        Ok(ModelVersion { tags, aliases, ..version })
    }

    pub(super) fn version_row(&self, name: &str, version: u32) -> Result<(i64, i64), Failure> {
        let model = self.registered_row(name)?;
        let sql = "SELECT id FROM model_version WHERE model = ?1 AND version = ?2";
        let found = self.0.query_row(sql, params![model, version], |row| row.get(0)).optional()?;
        let missing = || Refusal::missing(format!("Model Version (name={name}, version={version}) not found"));
        Ok((found.ok_or_else(missing)?, model))
    }

    /// Returns where the files of a version's source lie, and the run that put them out if the source says it: the source
    /// itself, or what a `models:/` URI points at.
    fn storage_of(&self, source: &str) -> Result<(String, Option<String>), Failure> {
        let Some(path) = source.strip_prefix("models:/") else { return Ok((source.to_owned(), None)) };
        match path.trim_start_matches('/').split_once('/') {
            None => {
                let model = self.logged_model(path)?;
                Ok((model.artifact_uri, model.source_run))
            }
            Some((name, version)) => {
                let number = version.parse();
                let number =
                    number.map_err(|_| Refusal::invalid(format!("'{version}' in '{source}' is no version")))?;
                let version = self.model_version(name, number)?;
                Ok((version.storage_uri, version.run))
            }
        }
    }
}

impl Writing<'_> {
    /// Makes the next version of a registered model.
    ///
    /// # Errors
    /// If there is no such model, its source names a model that doesn't exist, or something can't be kept.
    pub fn create_model_version(&self, new: NewModelVersion, now: UnixMillis) -> Result<ModelVersion, Failure> {
        let row = self.reading().registered_row(&new.name)?;
        new.tags.iter().try_for_each(|tag| limits::check_tag(tag, limits::REGISTRY_TAG_MAX))?;
        limits::check_length("source", limits::URI_MAX, &new.source)?;
        let (storage, run_of_source) = self.reading().storage_of(&new.source)?;
        let run_of_model = match &new.logged_model {
            Some(model) if new.run.is_none() && run_of_source.is_none() => {
                self.reading().logged_model(model)?.source_run
            }
            _ => None,
        };
        let run = new.run.or(run_of_source).or(run_of_model);
        self.0.execute("UPDATE registered_model SET last_version = last_version + 1 WHERE id = ?1", [row])?;
        let sql =
            "INSERT INTO model_version (model, version, description, created, updated, source, storage_uri, run_id,
                   run_link, logged_model, stage)
                   SELECT id, last_version, ?2, ?3, ?3, ?4, ?5, ?6, ?7, ?8, 'None' FROM registered_model WHERE id = ?1";
        let values = params![
            row,
            new.description.unwrap_or_default(),
            now.0,
            new.source,
            storage,
            run,
            new.run_link,
            new.logged_model
        ];
        self.0.execute(sql, values)?;
        let id = self.0.last_insert_rowid();
        new.tags.iter().try_for_each(|tag| self.set_entry(Table::ModelVersionTag, id, tag))?;
        self.touch_registered_model(row, now)?;
        let version = self.0.query_row("SELECT version FROM model_version WHERE id = ?1", [id], |row| row.get(0))?;
        let made = self.reading().model_version(&new.name, version)?;
        let data = json!({
            "name": made.name, "version": version.to_string(), "source": made.source, "run_id": made.run,
            "tags": as_object(&made.tags), "description": made.description.as_ref().filter(|text| !text.is_empty()),
        });
        self.queue_messages(WebhookEvent::ModelVersionCreated, &data.to_string())?;
        Ok(made)
    }

    /// Describes a version.
    ///
    /// # Errors
    /// If there is none.
    pub fn describe_model_version(
        &self,
        name: &str,
        version: u32,
        description: Option<&str>,
        now: UnixMillis,
    ) -> Result<ModelVersion, Failure> {
        let (id, _) = self.reading().version_row(name, version)?;
        let sql = "UPDATE model_version SET description = ?2, updated = ?3 WHERE id = ?1";
        self.0.execute(sql, params![id, description, now.0])?;
        self.reading().model_version(name, version)
    }

    /// Moves a version to a stage; archives those that were in it if `archives_others`.
    ///
    /// # Errors
    /// If there is none, versions of that stage can't be archived, or it is a checkpoint that would go into production
    /// unverified.
    pub fn move_to_stage(
        &self,
        (name, version): (&str, u32),
        stage: Stage,
        archives_others: bool,
        now: UnixMillis,
    ) -> Result<ModelVersion, Failure> {
        let (id, model) = self.reading().version_row(name, version)?;
        if stage == Stage::Production {
            self.reading().check_promotion(PRODUCTION, name, version)?;
        }
        if archives_others {
            if !matches!(stage, Stage::Staging | Stage::Production) {
                let message = "Model version transition cannot archive existing model versions because";
                let message = format!(
                    "{message} '{}' is not an Active stage. Valid stages are Staging, Production",
                    stage.name()
                );
                return Err(Refusal::invalid(message).into());
            }
            let sql = "UPDATE model_version SET stage = 'Archived', updated = ?4
                       WHERE model = ?1 AND stage = ?2 AND id != ?3";
            self.0.execute(sql, params![model, stage.name(), id, now.0])?;
        }
        let sql = "UPDATE model_version SET stage = ?2, updated = ?3 WHERE id = ?1";
        self.0.execute(sql, params![id, stage.name(), now.0])?;
        self.touch_registered_model(model, now)?;
        self.reading().model_version(name, version)
    }

    /// Deletes a version with its tags and aliases. Its number isn't given again.
    ///
    /// # Errors
    /// If there is none.
    pub fn delete_model_version(&self, name: &str, version: u32, now: UnixMillis) -> Result<(), Failure> {
        let (id, model) = self.reading().version_row(name, version)?;
        self.remove_entries(Table::ModelVersionTag, id)?;
        self.forget_checkpoint_version(id)?;
        self.0.execute("DELETE FROM alias WHERE model = ?1 AND version = ?2", params![model, version])?;
        self.0.execute("DELETE FROM model_version WHERE id = ?1", [id])?;
        self.touch_registered_model(model, now)
    }

    /// Sets a tag of a version.
    ///
    /// # Errors
    /// If there is none, or the tag can't be kept.
    pub fn set_model_version_tag(&self, name: &str, version: u32, tag: &Entry) -> Result<(), Failure> {
        limits::check_tag(tag, limits::REGISTRY_TAG_MAX)?;
        let (id, _) = self.reading().version_row(name, version)?;
        self.set_entry(Table::ModelVersionTag, id, tag)?;
        let data = json!({"name": name, "version": version.to_string(), "key": tag.key, "value": tag.value});
        self.queue_messages(WebhookEvent::ModelVersionTagSet, &data.to_string())
    }

    /// Removes a tag of a version, if it has it.
    ///
    /// # Errors
    /// If there is no such version.
    pub fn delete_model_version_tag(&self, name: &str, version: u32, key: &str) -> Result<(), Failure> {
        let (id, _) = self.reading().version_row(name, version)?;
        self.remove_entry(Table::ModelVersionTag, id, key)?;
        let data = json!({"name": name, "version": version.to_string(), "key": key});
        self.queue_messages(WebhookEvent::ModelVersionTagDeleted, &data.to_string())
    }
}

fn model_version(row: &Row<'_>) -> rusqlite::Result<(i64, i64, ModelVersion)> {
    let stage: String = row.get(11)?;
    let version = ModelVersion {
        name: row.get(1)?,
        version: row.get(2)?,
        description: row.get(3)?,
        created: UnixMillis(row.get(4)?),
        updated: UnixMillis(row.get(5)?),
        source: row.get(6)?,
        storage_uri: row.get(7)?,
        run: row.get(8)?,
        run_link: row.get(9)?,
        logged_model: row.get(10)?,
        stage: Stage::parse(&stage).unwrap_or_default(),
        tags: Vec::new(),
        aliases: Vec::new(),
    };
    Ok((row.get(0)?, row.get(12)?, version))
}
