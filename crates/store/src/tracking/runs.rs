//! Runs, with their parameters and tags.

use gangline_tracking::filter::Vocabulary;
use gangline_tracking::{
    Entry, ExperimentId, Lifecycle, ModelOutput, Refusal, Run, RunInfo, RunStatus, UnixMillis, View, limits,
};
use rusqlite::types::Value;
use rusqlite::{OptionalExtension, Row, params};

use super::entries::Table;
use super::search::{Page, Scope, Search};
use super::{Failure, Reading, Writing};

const COLUMNS: &str =
    "SELECT id, uuid, experiment, name, user_id, status, start_time, end_time, artifact_uri, lifecycle FROM run";
/// The tag that holds a run's name too.
const NAME_TAG: &str = "mlflow.runName";
/// The most experiments of a search.
const EXPERIMENTS_MAX: usize = 10_000;

/// A run to be made.
#[derive(Clone, Debug)]
pub struct NewRun {
    /// Its id, which no other run has.
    pub id: String,
    /// Its experiment.
    pub experiment: ExperimentId,
    /// Its name.
    pub name: Option<String>,
    /// The name that it has if no name and no tag gives it one.
    pub default_name: String,
    /// Who runs it, as the client says.
    pub user: String,
    /// When it started.
    pub start: UnixMillis,
    /// Its tags.
    pub tags: Vec<Entry>,
}

/// What changes of a run.
#[derive(Clone, Debug, Default)]
pub struct RunChange {
    /// How far it is.
    pub status: Option<RunStatus>,
    /// When it ended.
    pub end: Option<UnixMillis>,
    /// Its name.
    pub name: Option<String>,
}

impl Reading<'_> {
    /// Returns a run, deleted or not.
    ///
    /// # Errors
    /// If there is none.
    pub fn run(&self, id: &str) -> Result<Run, Failure> {
        let (row, info) = self.run_row(id)?;
        self.whole_run(row, info)
    }

    /// Searches the runs of experiments.
    ///
    /// # Errors
    /// If the filter or the order can't be read.
    pub fn search_runs(&self, experiments: &[ExperimentId], view: View, search: &Search) -> Result<Page<Run>, Failure> {
        let scope = Scope {
            vocabulary: Vocabulary::Runs,
            from: "run x",
            owner: "x.id",
            tags: Table::RunTag,
            params: Some(Table::RunParam),
            metrics: "metric",
            column: |key| match key {
                "start_time" => "x.start_time",
                "end_time" => "x.end_time",
                "run_id" => "x.uuid",
                "run_name" => "x.name",
                "user_id" => "x.user_id",
                "status" => "x.status",
                _ => "x.artifact_uri",
            },
            ties: &[("x.start_time", "x.start_time DESC"), ("x.uuid", "x.uuid ASC")],
        };
        let mut query = scope.query(&search.filter, &search.order_by)?;
        query.require_any("x.experiment", experiments)?;
        if let Some(only) = view.only() {
            query.require("x.lifecycle = ?", [Value::Text(only.name().to_owned())]);
        }
        query.page(self.0, search)?.try_map(|row| {
            let info = self.0.prepare_cached(&format!("{COLUMNS} WHERE id = ?1"))?.query_row([row], run_info)?;
            self.whole_run(row, info.1)
        })
    }

    /// Returns a run's row and what it is.
    pub(super) fn run_row(&self, id: &str) -> Result<(i64, RunInfo), Failure> {
        let found =
            self.0.prepare_cached(&format!("{COLUMNS} WHERE uuid = ?1"))?.query_row([id], run_info).optional()?;
        found.ok_or_else(|| Refusal::missing(format!("Run with id={id} not found")).into())
    }

    /// Returns the row of a run that is in use.
    pub(super) fn active_run(&self, id: &str) -> Result<(i64, RunInfo), Failure> {
        let (row, info) = self.run_row(id)?;
        if info.lifecycle == Lifecycle::Active {
            return Ok((row, info));
        }
        let message = format!("The run {id} must be in the 'active' state. Current state is deleted.");
        Err(Refusal::invalid(message).into())
    }

    fn whole_run(&self, row: i64, info: RunInfo) -> Result<Run, Failure> {
        let mut outputs =
            self.0.prepare_cached("SELECT model, step FROM model_output WHERE run = ?1 ORDER BY step, model")?;
        let output = |row: &Row<'_>| Ok(ModelOutput { model: row.get(0)?, step: row.get(1)? });
        let mut inputs = self.0.prepare_cached("SELECT model FROM model_input WHERE run = ?1 ORDER BY model")?;
        Ok(Run {
            info,
            metrics: self.latest_metrics(row)?,
            params: self.entries(Table::RunParam, row)?,
            tags: self.entries(Table::RunTag, row)?,
            inputs: self.inputs(row)?,
            model_inputs: inputs.query_map([row], |row| row.get(0))?.collect::<Result<_, _>>()?,
            model_outputs: outputs.query_map([row], output)?.collect::<Result<_, _>>()?,
        })
    }
}

impl Writing<'_> {
    /// Makes a run.
    ///
    /// # Errors
    /// If its experiment isn't in use, or a tag can't be kept.
    pub fn create_run(&self, new: NewRun) -> Result<Run, Failure> {
        let experiment = self.reading().active_experiment(new.experiment)?;
        let mut tags = limits::check_tags(new.tags, |index| format!("tags[{index}].key"))?;
        let by_tag = tags.iter().find(|tag| tag.key == NAME_TAG).map(|tag| tag.value.clone());
        let name = new.name.filter(|name| !name.is_empty());
        if let (Some(name), Some(by_tag)) = (&name, &by_tag)
            && name != by_tag
        {
            return Err(Refusal::invalid(format!(
                "Both 'run_name' argument and 'mlflow.runName' tag are specified, but with different values \
                 (run_name='{name}', mlflow.runName='{by_tag}')."
            ))
            .into());
        }
        let name = limits::truncated(name.or_else(|| by_tag.clone()).unwrap_or(new.default_name), limits::KEY_MAX);
        if by_tag.is_none() {
            tags.push(Entry { key: NAME_TAG.into(), value: name.clone() });
        }
        let artifact_uri = format!("{}/{}/artifacts", experiment.artifact_location.trim_end_matches('/'), new.id);
        let sql = "INSERT INTO run (uuid, experiment, name, user_id, status, start_time, artifact_uri, lifecycle)
                   VALUES (?1, ?2, ?3, ?4, 'RUNNING', ?5, ?6, 'active')";
        let user = limits::truncated(new.user, limits::KEY_MAX);
        self.0.prepare_cached(sql)?.execute(params![
            new.id,
            new.experiment.0,
            name,
            user,
            new.start.0,
            artifact_uri
        ])?;
        let row = self.0.last_insert_rowid();
        tags.iter().try_for_each(|tag| self.set_entry(Table::RunTag, row, tag))?;
        self.reading().run(&new.id)
    }

    /// Changes a run, and returns it.
    ///
    /// # Errors
    /// If there is none, or it is deleted.
    pub fn update_run(&self, id: &str, change: RunChange) -> Result<RunInfo, Failure> {
        let (row, info) = self.reading().active_run(id)?;
        let status = change.status.unwrap_or(info.status);
        let end = change.end.or(info.end).map(|end| end.0);
        self.0.execute("UPDATE run SET status = ?2, end_time = ?3 WHERE id = ?1", params![row, status.name(), end])?;
        if let Some(name) = change.name.filter(|name| !name.is_empty()) {
            self.rename_run(row, name)?;
        }
        Ok(self.reading().run_row(id)?.1)
    }

    fn rename_run(&self, row: i64, name: String) -> Result<(), Failure> {
        let name = limits::truncated(name, limits::KEY_MAX);
        self.0.execute("UPDATE run SET name = ?2 WHERE id = ?1", params![row, name])?;
        self.set_entry(Table::RunTag, row, &Entry { key: NAME_TAG.into(), value: name })
    }

    /// Deletes a run, or restores it.
    ///
    /// # Errors
    /// If there is none.
    pub fn set_run_lifecycle(&self, id: &str, to: Lifecycle) -> Result<(), Failure> {
        let (row, _) = self.reading().run_row(id)?;
        self.0.execute("UPDATE run SET lifecycle = ?2 WHERE id = ?1", params![row, to.name()])?;
        Ok(())
    }

    /// Sets tags of a run.
    ///
    /// # Errors
    /// If there is none, it is deleted, or a tag can't be kept.
    pub fn set_run_tags(&self, id: &str, tags: Vec<Entry>, path: impl Fn(usize) -> String) -> Result<(), Failure> {
        let tags = limits::check_tags(tags, path)?;
        let (row, _) = self.reading().active_run(id)?;
        self.write_run_tags(row, tags)
    }

    pub(super) fn write_run_tags(&self, row: i64, tags: Vec<Entry>) -> Result<(), Failure> {
        for tag in tags {
            match tag.key == NAME_TAG {
                true => self.rename_run(row, tag.value)?,
                false => self.set_entry(Table::RunTag, row, &tag)?,
            }
        }
        Ok(())
    }

    /// Removes a tag of a run.
    ///
    /// # Errors
    /// If there is no such run or tag.
    pub fn delete_run_tag(&self, id: &str, key: &str) -> Result<(), Failure> {
        let (row, _) = self.reading().active_run(id)?;
        if self.remove_entry(Table::RunTag, row, key)? {
            return Ok(());
        }
        Err(Refusal::missing(format!("No tag with name: {key} in run with id {id}")).into())
    }

    /// Adds a model's description to those that a run logged, as clients before MLflow 3 do.
    ///
    /// # Errors
    /// If there is no such run, or what it has logged so far isn't a list.
    pub fn append_model(
        &self,
        id: &str,
        append: impl Fn(Option<&str>) -> Result<String, Refusal>,
    ) -> Result<(), Failure> {
        const LOGGED_MODELS: &str = "mlflow.log-model.history";
        let (row, _) = self.reading().active_run(id)?;
        let so_far = self.reading().entry(Table::RunTag, row, LOGGED_MODELS)?;
        let value = append(so_far.as_deref())?;
        limits::check_length("value", limits::REGISTRY_TAG_MAX, &value)?;
        self.set_entry(Table::RunTag, row, &Entry { key: LOGGED_MODELS.into(), value })
    }

    /// Writes parameters, which can't be changed afterwards.
    pub(super) fn write_params(&self, id: &str, row: i64, params: &[Entry]) -> Result<(), Failure> {
        for param in params {
            match self.reading().entry(Table::RunParam, row, &param.key)? {
                None => self.set_entry(Table::RunParam, row, param)?,
                Some(kept) if kept == param.value => {}
                Some(kept) => {
                    let Entry { key, value } = param;
                    return Err(Refusal::invalid(format!(
                        "Changing param values is not allowed. Param with key='{key}' was already logged with \
                         value='{kept}' for run ID='{id}'. Attempted logging new value '{value}'."
                    ))
                    .into());
                }
            }
        }
        Ok(())
    }
}

impl super::search::Query {
    /// Requires that a column is one of these experiments.
    pub(super) fn require_any(&mut self, column: &str, experiments: &[ExperimentId]) -> Result<(), Failure> {
        if experiments.len() > EXPERIMENTS_MAX {
            return Err(Refusal::invalid(format!("a search names at most {EXPERIMENTS_MAX} experiments")).into());
        }
        let places = vec!["?"; experiments.len()].join(", ");
        let ids = experiments.iter().map(|experiment| Value::Integer(experiment.0));
        self.require(&format!("{column} IN ({places})"), ids);
        Ok(())
    }
}

fn run_info(row: &Row<'_>) -> rusqlite::Result<(i64, RunInfo)> {
    let (status, lifecycle): (String, String) = (row.get(5)?, row.get(9)?);
    let end: Option<i64> = row.get(7)?;
    let info = RunInfo {
        id: row.get(1)?,
        experiment: ExperimentId(row.get(2)?),
        name: row.get(3)?,
        user: row.get(4)?,
        status: RunStatus::parse(&status).unwrap_or(RunStatus::Running),
        start: UnixMillis(row.get(6)?),
        end: end.map(UnixMillis),
        artifact_uri: row.get(8)?,
        lifecycle: Lifecycle::parse(&lifecycle).unwrap_or(Lifecycle::Active),
    };
    Ok((row.get(0)?, info))
}
