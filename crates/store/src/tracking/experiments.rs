//! Experiments.

use gangline_tracking::filter::Vocabulary;
use gangline_tracking::{Entry, Experiment, ExperimentId, Lifecycle, Refusal, UnixMillis, View, limits};
use rusqlite::{OptionalExtension, Row, params};

use super::entries::Table;
use super::search::{Page, Scope, Search};
use super::{Failure, Reading, Writing};

/// Where artifacts lie that this control plane keeps.
const ARTIFACT_ROOT: &str = "mlflow-artifacts:/";
const COLUMNS: &str = "SELECT id, name, artifact_location, lifecycle, created, updated FROM experiment";

/// An experiment to be made.
#[derive(Clone, Debug)]
pub struct NewExperiment {
    /// Its name.
    pub name: String,
    /// Where its runs' artifacts are to lie, as a URI; with this control plane unless it is given.
    pub artifact_location: Option<String>,
    /// Its tags.
    pub tags: Vec<Entry>,
}

impl Reading<'_> {
    /// Returns an experiment, deleted or not.
    ///
    /// # Errors
    /// If there is none.
    pub fn experiment(&self, id: ExperimentId) -> Result<Experiment, Failure> {
        let found =
            self.0.prepare_cached(&format!("{COLUMNS} WHERE id = ?1"))?.query_row([id.0], experiment).optional()?;
        let found = found.ok_or_else(|| Refusal::missing(format!("No Experiment with id={id} exists")))?;
        self.with_tags(found)
    }

    /// Returns the experiment of a name, deleted or not.
    ///
    /// # Errors
    /// If it can't be read.
    pub fn experiment_by_name(&self, name: &str) -> Result<Option<Experiment>, Failure> {
        let found = self.0.prepare_cached(&format!("{COLUMNS} WHERE name = ?1"))?.query_row([name], experiment);
        found.optional()?.map(|found| self.with_tags(found)).transpose()
    }

    /// Searches experiments.
    ///
    /// # Errors
    /// If the filter or the order can't be read.
    pub fn search_experiments(&self, view: View, search: &Search) -> Result<Page<Experiment>, Failure> {
        let scope = Scope {
            vocabulary: Vocabulary::Experiments,
            from: "experiment x",
            owner: "x.id",
            tags: Table::ExperimentTag,
            params: None,
            metrics: "",
            column: |key| match key {
                "name" => "x.name",
                "experiment_id" => "x.id",
                "creation_time" => "x.created",
                _ => "x.updated",
            },
            ties: &[("x.created", "x.created DESC"), ("x.id", "x.id DESC")],
        };
        let mut query = scope.query(&search.filter, &search.order_by)?;
        if search.order_by.is_empty() {
            query.order = vec!["x.created DESC".into(), "x.id ASC".into()];
        }
        if let Some(only) = view.only() {
            query.require("x.lifecycle = ?", [only.name().to_owned().into()]);
        }
        let ids = query.page(self.0, search)?;
        ids.try_map(|id| self.experiment(ExperimentId(id)))
    }

    fn with_tags(&self, experiment: Experiment) -> Result<Experiment, Failure> {
        let tags = self.entries(Table::ExperimentTag, experiment.id.0)?;
        Ok(Experiment { tags, ..experiment })
    }

    /// Returns an experiment that is in use.
    pub(super) fn active_experiment(&self, id: ExperimentId) -> Result<Experiment, Failure> {
        let experiment = self.experiment(id)?;
        if experiment.lifecycle == Lifecycle::Active {
            return Ok(experiment);
        }
        let message = format!("The experiment {id} must be in the 'active' state. Current state is deleted.");
        Err(Refusal::invalid(message).into())
    }
}

impl Writing<'_> {
    /// Makes the experiment that always exists.
    pub(super) fn create_default_experiment(&self, now: UnixMillis) -> Result<(), Failure> {
        let sql = "INSERT INTO experiment (id, name, artifact_location, lifecycle, created, updated)
                   VALUES (0, 'Default', ?1, 'active', ?2, ?2)";
        self.0.execute(sql, params![format!("{ARTIFACT_ROOT}0"), now.0])?;
        Ok(())
    }

    /// Makes an experiment.
    ///
    /// # Errors
    /// If there is one of this name, or the name or a tag can't be kept.
    pub fn create_experiment(&self, new: NewExperiment, now: UnixMillis) -> Result<ExperimentId, Failure> {
        let NewExperiment { name, artifact_location, tags } = new;
        limits::check_experiment_name(&name)?;
        tags.iter().try_for_each(|tag| limits::check_tag(tag, limits::EXPERIMENT_TAG_MAX))?;
        if let Some(location) = &artifact_location {
            limits::check_length("artifact_location", limits::URI_MAX, location)?;
        }
        if self.reading().experiment_by_name(&name)?.is_some() {
            return Err(Refusal::exists(format!("Experiment(name={name}) already exists.")).into());
        }
        let sql = "INSERT INTO experiment (name, artifact_location, lifecycle, created, updated)
                   VALUES (?1, ?2, 'active', ?3, ?3)";
        self.0.execute(sql, params![name, artifact_location.as_deref().unwrap_or_default(), now.0])?;
        let id = self.0.last_insert_rowid();
        if artifact_location.is_none() {
            let location = format!("{ARTIFACT_ROOT}{id}");
            self.0.execute("UPDATE experiment SET artifact_location = ?2 WHERE id = ?1", params![id, location])?;
        }
        tags.iter().try_for_each(|tag| self.set_entry(Table::ExperimentTag, id, tag))?;
        Ok(ExperimentId(id))
    }

    /// Deletes an experiment with its runs, or restores them.
    ///
    /// # Errors
    /// If there is none in the other state.
    pub fn set_experiment_lifecycle(&self, id: ExperimentId, to: Lifecycle, now: UnixMillis) -> Result<(), Failure> {
        let experiment = self.reading().experiment(id)?;
        if experiment.lifecycle == to {
            return Err(Refusal::missing(format!("No Experiment with id={id} exists")).into());
        }
        let sql = "UPDATE experiment SET lifecycle = ?2, updated = ?3 WHERE id = ?1";
        self.0.execute(sql, params![id.0, to.name(), now.0])?;
        self.0.execute("UPDATE run SET lifecycle = ?2 WHERE experiment = ?1", params![id.0, to.name()])?;
        Ok(())
    }

    /// Gives an experiment another name.
    ///
    /// # Errors
    /// If there is none, it is deleted, or the name is taken or can't be kept.
    pub fn rename_experiment(&self, id: ExperimentId, name: &str, now: UnixMillis) -> Result<(), Failure> {
        limits::check_experiment_name(name)?;
        let experiment = self.reading().experiment(id)?;
        if experiment.lifecycle == Lifecycle::Deleted {
            return Err(Refusal::state("Cannot rename a non-active experiment.").into());
        }
        if self.reading().experiment_by_name(name)?.is_some_and(|other| other.id != id) {
            return Err(Refusal::exists(format!("Experiment(name={name}) already exists.")).into());
        }
        self.0.execute("UPDATE experiment SET name = ?2, updated = ?3 WHERE id = ?1", params![id.0, name, now.0])?;
        Ok(())
    }

    /// Sets a tag of an experiment.
    ///
    /// # Errors
    /// If there is none, it is deleted, or the tag can't be kept.
    pub fn set_experiment_tag(&self, id: ExperimentId, tag: &Entry) -> Result<(), Failure> {
        limits::check_tag(tag, limits::EXPERIMENT_TAG_MAX)?;
        self.reading().active_experiment(id)?;
        self.set_entry(Table::ExperimentTag, id.0, tag)
    }

    /// Removes a tag of an experiment.
    ///
    /// # Errors
    /// If there is no such experiment or tag.
    pub fn delete_experiment_tag(&self, id: ExperimentId, key: &str) -> Result<(), Failure> {
        self.reading().active_experiment(id)?;
        if self.remove_entry(Table::ExperimentTag, id.0, key)? {
            return Ok(());
        }
        Err(Refusal::missing(format!("No tag with name: {key} in experiment with id {id}")).into())
    }
}

fn experiment(row: &Row<'_>) -> rusqlite::Result<Experiment> {
    let lifecycle: String = row.get(3)?;
    Ok(Experiment {
        id: ExperimentId(row.get(0)?),
        name: row.get(1)?,
        artifact_location: row.get(2)?,
        lifecycle: Lifecycle::parse(&lifecycle).unwrap_or(Lifecycle::Active),
        created: UnixMillis(row.get(4)?),
        updated: UnixMillis(row.get(5)?),
        tags: Vec::new(),
    })
}
