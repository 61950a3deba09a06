//! Logged models.

use gangline_tracking::filter::Vocabulary;
use gangline_tracking::{
    Entry, ExperimentId, Lifecycle, LoggedModel, LoggedModelStatus, ModelMetric, Refusal, Registration, UnixMillis,
    limits,
};
use rusqlite::types::Value;
use rusqlite::{OptionalExtension, Row, params};

use super::entries::Table;
use super::metrics::point;
use super::search::{Page, Scope, Search};
use super::{Failure, Reading, Writing};

const COLUMNS: &str =
    "SELECT id, uuid, experiment, name, model_type, source_run, artifact_uri, status, created, updated
                       FROM logged_model";

/// The most datasets, and the most metrics to order by, of a search.
const NAMED_MAX: usize = 20;

/// A logged model to be made.
#[derive(Clone, Debug)]
pub struct NewLoggedModel {
    /// Its id, which no other has.
    pub id: String,
    /// Its experiment.
    pub experiment: ExperimentId,
    /// Its name.
    pub name: String,
    /// What kind of model it is.
    pub model_type: Option<String>,
    /// The run that puts it out.
    pub source_run: Option<String>,
    /// Its parameters.
    pub params: Vec<Entry>,
    /// Its tags.
    pub tags: Vec<Entry>,
}

/// An order by a metric, possibly as measured on one dataset.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OrderByMetric {
    /// The metric's key.
    pub key: String,
    /// Whether larger values come first.
    pub is_descending: bool,
    /// The name of the dataset.
    pub dataset_name: Option<String>,
    /// Its digest.
    pub dataset_digest: Option<String>,
}

/// A search of logged models.
#[derive(Clone, Debug, Default)]
pub struct SearchLoggedModels {
    /// The experiments.
    pub experiments: Vec<ExperimentId>,
    /// Filter, order by attributes, and page.
    pub search: Search,
    /// The order by metrics, which comes first.
    pub by_metrics: Vec<OrderByMetric>,
    /// Datasets, with or without a digest: only models that were measured on one of them.
    pub datasets: Vec<(String, Option<String>)>,
}

impl Reading<'_> {
    /// Returns a logged model that isn't deleted.
    ///
    /// # Errors
    /// If there is none.
    pub fn logged_model(&self, id: &str) -> Result<LoggedModel, Failure> {
        let row = self.logged_model_row(id)?;
        self.whole_logged_model(row)
    }

    /// Searches logged models.
    ///
    /// # Errors
    /// If the filter or the order can't be read.
    pub fn search_logged_models(&self, wanted: &SearchLoggedModels) -> Result<Page<LoggedModel>, Failure> {
        let scope = Scope {
            vocabulary: Vocabulary::LoggedModels,
            from: "logged_model x",
            owner: "x.id",
            tags: Table::LoggedModelTag,
            params: Some(Table::LoggedModelParam),
            metrics: "logged_model_metric",
            column: |key| match key {
                "name" => "x.name",
                "model_id" => "x.uuid",
                "model_type" => "x.model_type",
                "status" => "x.status",
                "source_run_id" => "x.source_run",
                "last_updated_timestamp" => "x.updated",
                _ => "x.created",
            },
            ties: &[("x.created", "x.created DESC"), ("x.uuid", "x.uuid ASC")],
        };
        if wanted.datasets.len() > NAMED_MAX || wanted.by_metrics.len() > NAMED_MAX {
            let message =
                format!("a search names at most {NAMED_MAX} datasets, and orders by at most {NAMED_MAX} metrics");
            return Err(Refusal::invalid(message).into());
        }
        let mut query = scope.query(&wanted.search.filter, &wanted.search.order_by)?;
        query.require_any("x.experiment", &wanted.experiments)?;
        query.require("x.lifecycle = 'active'", []);
        if !wanted.datasets.is_empty() {
            let one = "EXISTS (SELECT 1 FROM logged_model_metric m WHERE m.owner = x.id AND m.dataset_name = ?
                       AND (? IS NULL OR m.dataset_digest = ?))";
            let any = vec![one; wanted.datasets.len()].join(" OR ");
            let values = wanted.datasets.iter().flat_map(|(name, digest)| {
                let digest = Value::from(digest.clone());
                [Value::Text(name.clone()), digest.clone(), digest]
            });
            query.require(&format!("({any})"), values);
        }
        for (index, order) in wanted.by_metrics.iter().enumerate() {
            let latest = "(SELECT m.value FROM logged_model_metric m WHERE m.owner = x.id AND m.key = ? AND (? IS NULL OR \
                          m.dataset_name = ?) AND (? IS NULL OR m.dataset_digest = ?) ORDER BY m.at DESC, m.step DESC, m.run \
                          LIMIT 1)";
            let (name, digest) = (Value::from(order.dataset_name.clone()), Value::from(order.dataset_digest.clone()));
            let direction = if order.is_descending { "DESC" } else { "ASC" };
            let values = [Value::Text(order.key.clone()), name.clone(), name, digest.clone(), digest];
            query.order_by_value(index, latest, direction, values);
        }
        query.page(self.0, &wanted.search)?.try_map(|row| self.whole_logged_model(row))
    }

    fn logged_model_row(&self, id: &str) -> Result<i64, Failure> {
        let sql = "SELECT id FROM logged_model WHERE uuid = ?1 AND lifecycle = 'active'";
        let found = self.0.prepare_cached(sql)?.query_row([id], |row| row.get(0)).optional()?;
        found.ok_or_else(|| Refusal::missing(format!("Logged model with ID '{id}' not found.")).into())
    }

    fn whole_logged_model(&self, row: i64) -> Result<LoggedModel, Failure> {
        let mut model = self.0.prepare_cached(&format!("{COLUMNS} WHERE id = ?1"))?.query_row([row], logged_model)?;
        model.tags = self.entries(Table::LoggedModelTag, row)?;
        model.params = self.entries(Table::LoggedModelParam, row)?;
        model.metrics = self.model_metrics(row)?;
        let sql = "SELECT r.name, v.version FROM model_version v JOIN registered_model r ON r.id = v.model
                   WHERE v.logged_model = ?1 ORDER BY r.name, v.version";
        let registration = |row: &Row<'_>| Ok(Registration { name: row.get(0)?, version: row.get(1)? });
        let mut statement = self.0.prepare_cached(sql)?;
        model.registrations = statement.query_map([&model.id], registration)?.collect::<Result<_, _>>()?;
        Ok(model)
    }

    fn model_metrics(&self, row: i64) -> Result<Vec<ModelMetric>, Failure> {
        let sql = "SELECT key, run, dataset_name, dataset_digest, value, step, at FROM logged_model_metric
                   WHERE owner = ?1 ORDER BY key, run, at, step";
        let metric = |row: &Row<'_>| {
            Ok(ModelMetric {
                key: row.get(0)?,
                run: row.get(1)?,
                dataset_name: row.get(2)?,
                dataset_digest: row.get(3)?,
                point: point(row, 4)?,
            })
        };
        let mut statement = self.0.prepare_cached(sql)?;
        Ok(statement.query_map([row], metric)?.collect::<Result<_, _>>()?)
    }
}

impl Writing<'_> {
    /// Makes a logged model, whose files are on their way.
    ///
    /// # Errors
    /// If its experiment isn't in use, or its name, a tag or a parameter can't be kept.
    pub fn create_logged_model(&self, new: NewLoggedModel, now: UnixMillis) -> Result<LoggedModel, Failure> {
        let experiment = self.reading().active_experiment(new.experiment)?;
        if new.name.contains(['/', ':', '.', '%', '"', '\'']) {
            let message = format!(
                "Invalid model name ('{}') provided. Model name must be a non-empty string and cannot contain the following \
                 characters: ('/', ':', '.', '%', '\"', \"'\")",
                new.name
            );
            return Err(Refusal::invalid(message).into());
        }
        let artifact_uri =
            format!("{}/models/{}/artifacts", experiment.artifact_location.trim_end_matches('/'), new.id);
        let sql =
            "INSERT INTO logged_model (uuid, experiment, name, model_type, source_run, artifact_uri, status, lifecycle,
                   created, updated) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, 'active', ?8, ?8)";
        let (name, status) =
            (limits::truncated(new.name, limits::EXPERIMENT_NAME_MAX), LoggedModelStatus::Pending.number());
        let values =
            params![new.id, new.experiment.0, name, new.model_type, new.source_run, artifact_uri, status, now.0];
        self.0.execute(sql, values)?;
        let row = self.0.last_insert_rowid();
        self.write_model_params(row, new.params)?;
        new.tags.iter().try_for_each(|tag| self.set_entry(Table::LoggedModelTag, row, tag))?;
        self.reading().whole_logged_model(row)
    }

    /// Says how the upload of a logged model ended.
    ///
    /// # Errors
    /// If there is none.
    pub fn finalize_logged_model(
        &self,
        id: &str,
        status: LoggedModelStatus,
        now: UnixMillis,
    ) -> Result<LoggedModel, Failure> {
        let row = self.reading().logged_model_row(id)?;
        let sql = "UPDATE logged_model SET status = ?2, updated = ?3 WHERE id = ?1";
        self.0.execute(sql, params![row, status.number(), now.0])?;
        self.reading().whole_logged_model(row)
    }

    /// Deletes a logged model.
    ///
    /// # Errors
    /// If there is none.
    pub fn delete_logged_model(&self, id: &str, now: UnixMillis) -> Result<(), Failure> {
        let row = self.reading().logged_model_row(id)?;
        let sql = "UPDATE logged_model SET lifecycle = ?2, updated = ?3 WHERE id = ?1";
        self.0.execute(sql, params![row, Lifecycle::Deleted.name(), now.0])?;
        Ok(())
    }

    /// Sets tags of a logged model.
    ///
    /// # Errors
    /// If there is none.
    pub fn set_logged_model_tags(&self, id: &str, tags: &[Entry]) -> Result<LoggedModel, Failure> {
        let row = self.reading().logged_model_row(id)?;
        tags.iter().try_for_each(|tag| self.set_entry(Table::LoggedModelTag, row, tag))?;
        self.reading().whole_logged_model(row)
    }

    /// Removes a tag of a logged model.
    ///
    /// # Errors
    /// If there is no such model or tag.
    pub fn delete_logged_model_tag(&self, id: &str, key: &str) -> Result<(), Failure> {
        let row = self.reading().logged_model_row(id)?;
        if self.remove_entry(Table::LoggedModelTag, row, key)? {
            return Ok(());
        }
        Err(Refusal::missing(format!("No tag with key '{key}' found for model with ID '{id}'.")).into())
    }

    /// Sets parameters of a logged model.
    ///
    /// # Errors
    /// If there is none, or a parameter can't be kept.
    pub fn log_logged_model_params(&self, id: &str, params: Vec<Entry>) -> Result<(), Failure> {
        let row = self.reading().logged_model_row(id)?;
        self.write_model_params(row, params)
    }

    fn write_model_params(&self, row: i64, params: Vec<Entry>) -> Result<(), Failure> {
        let params = limits::check_params(params, |index| format!("params[{index}].key"))?;
        params.iter().try_for_each(|param| self.set_entry(Table::LoggedModelParam, row, param))
    }

    /// Keeps a metric that was measured with a logged model. A model that doesn't exist is no error: the metric is the run's.
    pub(super) fn write_model_metric(&self, model: &str, metric: &ModelMetric) -> Result<(), Failure> {
        let sql = "INSERT OR REPLACE INTO logged_model_metric
                   (owner, key, run, at, step, value, dataset_name, dataset_digest)
                   SELECT id, ?2, ?3, ?4, ?5, ?6, ?7, ?8 FROM logged_model WHERE uuid = ?1";
        let ModelMetric { key, point, run, dataset_name, dataset_digest } = metric;
        let values = params![model, key, run, point.at.0, point.step, point.value, dataset_name, dataset_digest];
        self.0.prepare_cached(sql)?.execute(values)?;
        Ok(())
    }
}

fn logged_model(row: &Row<'_>) -> rusqlite::Result<LoggedModel> {
    let status: i64 = row.get(7)?;
    Ok(LoggedModel {
        id: row.get(1)?,
        experiment: ExperimentId(row.get(2)?),
        name: row.get(3)?,
        model_type: row.get(4)?,
        source_run: row.get(5)?,
        artifact_uri: row.get(6)?,
        status: LoggedModelStatus::parse(&status.to_string()).unwrap_or(LoggedModelStatus::Pending),
        created: UnixMillis(row.get(8)?),
        updated: UnixMillis(row.get(9)?),
        tags: Vec::new(),
        params: Vec::new(),
        metrics: Vec::new(),
        registrations: Vec::new(),
    })
}
