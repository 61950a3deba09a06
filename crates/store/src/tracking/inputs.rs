//! What runs read and put out.

use gangline_tracking::{Dataset, Entry, ExperimentId, Input, ModelOutput};
use rusqlite::{OptionalExtension, Row, params};

use super::entries::Table;
use super::{Failure, Reading, Writing};

/// The most summaries of datasets.
const SUMMARIES_MAX: usize = 1000;

impl Reading<'_> {
    /// Returns the datasets that a run read.
    pub(super) fn inputs(&self, run: i64) -> Result<Vec<Input>, Failure> {
        let sql = "SELECT i.id, d.name, d.digest, d.source_type, d.source, d.schema, d.profile
                   FROM input i JOIN dataset d ON d.id = i.dataset WHERE i.run = ?1 ORDER BY i.id";
        let dataset = |row: &Row<'_>| {
            let dataset = Dataset {
                name: row.get(1)?,
                digest: row.get(2)?,
                source_type: row.get(3)?,
                source: row.get(4)?,
                schema: row.get(5)?,
                profile: row.get(6)?,
            };
            Ok((row.get(0)?, dataset))
        };
        let mut statement = self.0.prepare_cached(sql)?;
        let datasets: Vec<(i64, Dataset)> = statement.query_map([run], dataset)?.collect::<Result<_, _>>()?;
        let input = |(id, dataset)| Ok(Input { dataset, tags: self.entries(Table::InputTag, id)? });
        datasets.into_iter().map(input).collect()
    }

    /// Returns the datasets that runs of experiments read, with what they were read for.
    ///
    /// # Errors
    /// If they can't be read.
    pub fn datasets(
        &self,
        experiments: &[ExperimentId],
    ) -> Result<Vec<(ExperimentId, Entry, Option<String>)>, Failure> {
        let sql = "SELECT DISTINCT d.name, d.digest, t.value FROM dataset d JOIN input i ON i.dataset = d.id
                   LEFT JOIN input_tag t ON t.owner = i.id AND t.key = 'mlflow.data.context'
                   WHERE d.experiment = ?1 ORDER BY d.name, d.digest, t.value LIMIT ?2";
        let mut statement = self.0.prepare_cached(sql)?;
        let mut found = Vec::new();
        for experiment in experiments {
            let left = i64::try_from(SUMMARIES_MAX - found.len()).unwrap_or_default();
            let mut rows = statement.query(params![experiment.0, left])?;
            while let Some(row) = rows.next()? {
                found.push((*experiment, Entry { key: row.get(0)?, value: row.get(1)? }, row.get(2)?));
            }
        }
        Ok(found)
    }
}

impl Writing<'_> {
    /// Keeps which datasets and models a run read. A dataset that it is known to have read keeps its tags.
    ///
    /// # Errors
    /// If there is no such run, it is deleted, or a dataset can't be kept.
    pub fn log_inputs(&self, run: &str, inputs: &[Input], models: &[String]) -> Result<(), Failure> {
        Input::check_all(inputs)?;
        let (row, info) = self.reading().active_run(run)?;
        inputs.iter().try_for_each(|input| self.write_input(row, info.experiment, input))?;
        for model in models {
            self.0.execute("INSERT OR IGNORE INTO model_input (run, model) VALUES (?1, ?2)", params![row, model])?;
        }
        Ok(())
    }

    fn write_input(&self, run: i64, experiment: ExperimentId, input: &Input) -> Result<(), Failure> {
        let Dataset { name, digest, source_type, source, schema, profile } = &input.dataset;
        let add = "INSERT OR IGNORE INTO dataset (experiment, name, digest, source_type, source, schema, profile)
                   VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)";
        self.0.execute(add, params![experiment.0, name, digest, source_type, source, schema, profile])?;
        let find = "SELECT id FROM dataset WHERE experiment = ?1 AND name = ?2 AND digest = ?3";
        let dataset: i64 = self.0.query_row(find, params![experiment.0, name, digest], |row| row.get(0))?;
        let known = "SELECT id FROM input WHERE run = ?1 AND dataset = ?2";
        let known: Option<i64> = self.0.query_row(known, params![run, dataset], |row| row.get(0)).optional()?;
        if known.is_some() {
            return Ok(());
        }
        self.0.execute("INSERT INTO input (run, dataset) VALUES (?1, ?2)", params![run, dataset])?;
        let id = self.0.last_insert_rowid();
        input.tags.iter().try_for_each(|tag| self.set_entry(Table::InputTag, id, tag))
    }

    /// Keeps which logged models a run put out.
    ///
    /// # Errors
    /// If there is no such run, or it is deleted.
    pub fn log_outputs(&self, run: &str, outputs: &[ModelOutput]) -> Result<(), Failure> {
        let (row, _) = self.reading().active_run(run)?;
        for ModelOutput { model, step } in outputs {
            let sql = "INSERT OR REPLACE INTO model_output (run, model, step) VALUES (?1, ?2, ?3)";
            self.0.execute(sql, params![row, model, step])?;
        }
        Ok(())
    }
}
