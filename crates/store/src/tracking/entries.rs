//! Tags and parameters: keys and values that belong to something.

use gangline_tracking::Entry;
use rusqlite::{OptionalExtension, params};

use super::{Failure, Reading, Writing};

/// A table of entries, with the columns `owner`, `key` and `value`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Table {
    ExperimentTag,
    RunTag,
    RunParam,
    InputTag,
    LoggedModelTag,
    LoggedModelParam,
    RegisteredModelTag,
    ModelVersionTag,
}

impl Table {
    pub(super) fn name(self) -> &'static str {
        match self {
            Table::ExperimentTag => "experiment_tag",
            Table::RunTag => "run_tag",
            Table::RunParam => "run_param",
            Table::InputTag => "input_tag",
            Table::LoggedModelTag => "logged_model_tag",
            Table::LoggedModelParam => "logged_model_param",
            Table::RegisteredModelTag => "registered_model_tag",
            Table::ModelVersionTag => "model_version_tag",
        }
    }
}

impl Reading<'_> {
    /// Returns the entries of an owner, by key.
    pub(super) fn entries(&self, table: Table, owner: i64) -> Result<Vec<Entry>, Failure> {
        let sql = format!("SELECT key, value FROM {} WHERE owner = ?1 ORDER BY key", table.name());
        let mut statement = self.0.prepare_cached(&sql)?;
        let entry = |row: &rusqlite::Row<'_>| Ok(Entry { key: row.get(0)?, value: row.get(1)? });
        Ok(statement.query_map([owner], entry)?.collect::<Result<_, _>>()?)
    }

    /// Returns the value of a key.
    pub(super) fn entry(&self, table: Table, owner: i64, key: &str) -> Result<Option<String>, Failure> {
        let sql = format!("SELECT value FROM {} WHERE owner = ?1 AND key = ?2", table.name());
        Ok(self.0.prepare_cached(&sql)?.query_row(params![owner, key], |row| row.get(0)).optional()?)
    }
}

impl Writing<'_> {
    /// Sets the value of a key.
    pub(super) fn set_entry(&self, table: Table, owner: i64, entry: &Entry) -> Result<(), Failure> {
        let sql = format!("INSERT OR REPLACE INTO {} (owner, key, value) VALUES (?1, ?2, ?3)", table.name());
        self.0.prepare_cached(&sql)?.execute(params![owner, entry.key, entry.value])?;
        Ok(())
    }

    /// Removes a key; returns whether it was there.
    pub(super) fn remove_entry(&self, table: Table, owner: i64, key: &str) -> Result<bool, Failure> {
        let sql = format!("DELETE FROM {} WHERE owner = ?1 AND key = ?2", table.name());
        Ok(self.0.prepare_cached(&sql)?.execute(params![owner, key])? > 0)
    }

    /// Removes all keys of an owner.
    pub(super) fn remove_entries(&self, table: Table, owner: i64) -> Result<(), Failure> {
        let sql = format!("DELETE FROM {} WHERE owner = ?1", table.name());
        self.0.prepare_cached(&sql)?.execute([owner])?;
        Ok(())
    }
}

/// Returns entries as an object of JSON.
pub(super) fn as_object(entries: &[Entry]) -> serde_json::Value {
    entries.iter().map(|entry| (entry.key.clone(), serde_json::Value::from(entry.value.as_str()))).collect()
}
