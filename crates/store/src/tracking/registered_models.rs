//! Registered models and their aliases.

use gangline_tracking::filter::Vocabulary;
use gangline_tracking::{
    Alias, Entry, ModelVersion, Refusal, RegisteredModel, Stage, UnixMillis, WebhookEvent, limits,
};
use rusqlite::{OptionalExtension, Row, params};
use serde_json::json;

use super::entries::{Table, as_object};
use super::search::{Page, Scope, Search};
use super::{Failure, Reading, Writing};

impl Reading<'_> {
    /// Returns a registered model.
    ///
    /// # Errors
    /// If there is none.
    pub fn registered_model(&self, name: &str) -> Result<RegisteredModel, Failure> {
        let row = self.registered_row(name)?;
        self.whole_registered_model(row)
    }

    /// Searches registered models.
    ///
    /// # Errors
    /// If the filter or the order can't be read.
    pub fn search_registered_models(&self, search: &Search) -> Result<Page<RegisteredModel>, Failure> {
        let scope = Scope {
            vocabulary: Vocabulary::RegisteredModels,
            from: "registered_model x",
            owner: "x.id",
            tags: Table::RegisteredModelTag,
            params: None,
            metrics: "",
            column: |key| match key {
                "name" => "x.name",
                _ => "x.updated",
            },
            ties: &[("x.name", "x.name ASC")],
        };
        let query = scope.query(&search.filter, &search.order_by)?;
        query.page(self.0, search)?.try_map(|row| self.whole_registered_model(row))
    }

    /// Returns the newest version of each of these stages, or of all if none is named.
    ///
    /// # Errors
    /// If there is no such model.
    pub fn latest_versions(&self, name: &str, stages: &[Stage]) -> Result<Vec<ModelVersion>, Failure> {
        let mut latest = self.registered_model(name)?.latest;
        latest.retain(|version| stages.is_empty() || stages.contains(&version.stage));
        Ok(latest)
    }

    /// Returns the version that an alias points at.
    ///
    /// # Errors
    /// If there is no such model or alias.
    pub fn version_by_alias(&self, name: &str, alias: &str) -> Result<ModelVersion, Failure> {
        let row = self.registered_row(name)?;
        let sql = "SELECT version FROM alias WHERE model = ?1 AND alias = ?2";
        let found: Option<u32> = self.0.query_row(sql, params![row, alias], |row| row.get(0)).optional()?;
        let missing = || Refusal::invalid(format!("Registered model alias {alias} not found."));
        self.model_version(name, found.ok_or_else(missing)?)
    }

    pub(super) fn registered_row(&self, name: &str) -> Result<i64, Failure> {
        limits::check_model_name(name)?;
        let sql = "SELECT id FROM registered_model WHERE name = ?1";
        let found = self.0.prepare_cached(sql)?.query_row([name], |row| row.get(0)).optional()?;
        found.ok_or_else(|| Refusal::missing(format!("Registered Model with name={name} not found")).into())
    }

    pub(super) fn aliases(&self, model: i64) -> Result<Vec<Alias>, Failure> {
        let sql = "SELECT alias, version FROM alias WHERE model = ?1 ORDER BY alias";
        let alias = |row: &Row<'_>| Ok(Alias { name: row.get(0)?, version: row.get(1)? });
        Ok(self.0.prepare_cached(sql)?.query_map([model], alias)?.collect::<Result<_, _>>()?)
    }

    fn whole_registered_model(&self, row: i64) -> Result<RegisteredModel, Failure> {
        let sql = "SELECT name, description, created, updated FROM registered_model WHERE id = ?1";
        let model = |row: &Row<'_>| {
            Ok(RegisteredModel {
                name: row.get(0)?,
                description: row.get(1)?,
                created: UnixMillis(row.get(2)?),
                updated: UnixMillis(row.get(3)?),
                tags: Vec::new(),
                aliases: Vec::new(),
                latest: Vec::new(),
            })
        };
        let mut model = self.0.prepare_cached(sql)?.query_row([row], model)?;
        model.tags = self.entries(Table::RegisteredModelTag, row)?;
        model.aliases = self.aliases(row)?;
        let sql = "SELECT MAX(version) FROM model_version WHERE model = ?1 GROUP BY stage ORDER BY 1";
        let mut statement = self.0.prepare_cached(sql)?;
        let newest: Vec<u32> = statement.query_map([row], |row| row.get(0))?.collect::<Result<_, _>>()?;
        model.latest =
            newest.into_iter().map(|version| self.model_version(&model.name, version)).collect::<Result<_, _>>()?;
        Ok(model)
    }
}

impl Writing<'_> {
    /// Makes a registered model without a version.
    ///
    /// # Errors
    /// If there is one of this name, or the name or a tag can't be kept.
    pub fn create_registered_model(
        &self,
        name: &str,
        description: Option<&str>,
        tags: &[Entry],
        now: UnixMillis,
    ) -> Result<RegisteredModel, Failure> {
        limits::check_model_name(name)?;
        tags.iter().try_for_each(|tag| limits::check_tag(tag, limits::REGISTRY_TAG_MAX))?;
        self.refuse_taken(name)?;
        let sql = "INSERT INTO registered_model (name, description, created, updated, last_version)
                   VALUES (?1, ?2, ?3, ?3, 0)";
        self.0.execute(sql, params![name, description, now.0])?;
        let row = self.0.last_insert_rowid();
        tags.iter().try_for_each(|tag| self.set_entry(Table::RegisteredModelTag, row, tag))?;
        let data = json!({"name": name, "tags": as_object(tags), "description": description});
        self.queue_messages(WebhookEvent::RegisteredModelCreated, &data.to_string())?;
        self.reading().whole_registered_model(row)
    }

    fn refuse_taken(&self, name: &str) -> Result<(), Failure> {
        let sql = "SELECT 1 FROM registered_model WHERE name = ?1";
        match self.0.query_row(sql, [name], |_| Ok(())).optional()? {
            None => Ok(()),
            Some(()) => Err(Refusal::exists(format!("Registered Model (name={name}) already exists.")).into()),
        }
    }

    /// Gives a registered model and its versions another name.
    ///
    /// # Errors
    /// If there is none, or the name is taken or can't be kept.
    pub fn rename_registered_model(&self, name: &str, new: &str, now: UnixMillis) -> Result<RegisteredModel, Failure> {
        let row = self.reading().registered_row(name)?;
        limits::check_model_name(new)?;
        if name != new {
            self.refuse_taken(new)?;
        }
        self.0
            .execute("UPDATE registered_model SET name = ?2, updated = ?3 WHERE id = ?1", params![row, new, now.0])?;
        self.0.execute("UPDATE model_version SET updated = ?2 WHERE model = ?1", params![row, now.0])?;
        self.reading().whole_registered_model(row)
    }

    /// Describes a registered model.
    ///
    /// # Errors
    /// If there is none.
    pub fn describe_registered_model(
        &self,
        name: &str,
        description: Option<&str>,
        now: UnixMillis,
    ) -> Result<RegisteredModel, Failure> {
        let row = self.reading().registered_row(name)?;
        let sql = "UPDATE registered_model SET description = ?2, updated = ?3 WHERE id = ?1";
        self.0.execute(sql, params![row, description, now.0])?;
        self.reading().whole_registered_model(row)
    }

    /// Deletes a registered model with its versions.
    ///
    /// # Errors
    /// If there is none.
    pub fn delete_registered_model(&self, name: &str) -> Result<(), Failure> {
        let row = self.reading().registered_row(name)?;
        let versions: Vec<i64> = {
            let mut statement = self.0.prepare_cached("SELECT id FROM model_version WHERE model = ?1")?;
            statement.query_map([row], |row| row.get(0))?.collect::<Result<_, _>>()?
        };
        for version in versions {
            self.remove_entries(Table::ModelVersionTag, version)?;
            self.forget_checkpoint_version(version)?;
        }
        self.0.execute("DELETE FROM model_version WHERE model = ?1", [row])?;
        self.0.execute("DELETE FROM alias WHERE model = ?1", [row])?;
        self.remove_entries(Table::RegisteredModelTag, row)?;
        self.0.execute("DELETE FROM registered_model WHERE id = ?1", [row])?;
        Ok(())
    }

    /// Sets a tag of a registered model.
    ///
    /// # Errors
    /// If there is none, or the tag can't be kept.
    pub fn set_registered_model_tag(&self, name: &str, tag: &Entry) -> Result<(), Failure> {
        limits::check_tag(tag, limits::REGISTRY_TAG_MAX)?;
        let row = self.reading().registered_row(name)?;
        self.set_entry(Table::RegisteredModelTag, row, tag)
    }

    /// Removes a tag of a registered model, if it has it.
    ///
    /// # Errors
    /// If there is no such model.
    pub fn delete_registered_model_tag(&self, name: &str, key: &str) -> Result<(), Failure> {
        let row = self.reading().registered_row(name)?;
        self.remove_entry(Table::RegisteredModelTag, row, key).map(|_| ())
    }

    /// Points an alias at a version.
    ///
    /// # Errors
    /// If there is no such version, the alias can't be kept, or it asks for a verified checkpoint and this isn't one.
    pub fn set_alias(&self, name: &str, alias: &str, version: u32) -> Result<(), Failure> {
        limits::check_alias(alias)?;
        self.reading().check_promotion(alias, name, version)?;
        let row = self.reading().registered_row(name)?;
        let sql = "INSERT OR REPLACE INTO alias (model, alias, version) VALUES (?1, ?2, ?3)";
        self.0.execute(sql, params![row, alias, version])?;
        let data = json!({"name": name, "alias": alias, "version": version.to_string()});
        self.queue_messages(WebhookEvent::ModelVersionAliasCreated, &data.to_string())
    }

    /// Removes an alias, if there is one.
    ///
    /// # Errors
    /// If there is no such model.
    pub fn delete_alias(&self, name: &str, alias: &str) -> Result<(), Failure> {
        let row = self.reading().registered_row(name)?;
        self.0.execute("DELETE FROM alias WHERE model = ?1 AND alias = ?2", params![row, alias])?;
        let data = json!({"name": name, "alias": alias});
        self.queue_messages(WebhookEvent::ModelVersionAliasDeleted, &data.to_string())
    }

    /// Notes that a version of a registered model changed.
    pub(super) fn touch_registered_model(&self, row: i64, now: UnixMillis) -> Result<(), Failure> {
        self.0.execute("UPDATE registered_model SET updated = ?2 WHERE id = ?1", params![row, now.0])?;
        Ok(())
    }
}
