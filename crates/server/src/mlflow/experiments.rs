//! Experiments.

use axum::routing::MethodFilter;
use gangline_store::tracking::{NewExperiment, Search};
use gangline_tracking::{Lifecycle, Refusal, View};
use serde_json::{Value, json};

use super::answer::MlflowError;
use super::fields::Fields;
use super::{GET, Handler, POST, Tracking, wire};

/// The paths below `/api/2.0/mlflow`.
pub(super) const ROUTES: &[(MethodFilter, &str, Handler)] = &[
    (POST, "/experiments/create", create),
    (GET, "/experiments/search", search),
    (POST, "/experiments/search", search),
    (GET, "/experiments/get", show),
    (GET, "/experiments/get-by-name", show_by_name),
    (POST, "/experiments/delete", delete),
    (POST, "/experiments/restore", restore),
    (POST, "/experiments/update", update),
    (POST, "/experiments/set-experiment-tag", set_tag),
    (POST, "/experiments/delete-experiment-tag", delete_tag),
    (POST, "/experiments/search-datasets", search_datasets),
];

/// Results of a page unless the client says how many.
const COUNT: usize = 1000;
const COUNT_MAX: usize = 50_000;

fn create(tracking: &Tracking, mut fields: Fields) -> Result<Value, MlflowError> {
    let new = NewExperiment {
        name: fields.required("name")?,
        artifact_location: fields.text("artifact_location")?,
        tags: fields.entries("tags")?,
    };
    let now = tracking.now();
    let id = tracking.store.write(move |writing| writing.create_experiment(new, now))?;
    Ok(json!({"experiment_id": id.to_string()}))
}

/// Reads what all searches have.
pub(super) fn read_search(fields: &mut Fields, default: usize, most: usize) -> Result<Search, MlflowError> {
    Ok(Search {
        filter: fields.text("filter")?.unwrap_or_default(),
        order_by: fields.texts("order_by")?,
        count_max: fields.count(default, most)?,
        offset: fields.offset()?,
    })
}

fn search(tracking: &Tracking, mut fields: Fields) -> Result<Value, MlflowError> {
    let view = fields.word("view_type")?.map_or(Ok(View::Active), |view| View::parse(&view))?;
    let search = read_search(&mut fields, COUNT, COUNT_MAX)?;
    let page = tracking.store.read(|reading| reading.search_experiments(view, &search))?;
    Ok(wire::page("experiments", &page, wire::experiment))
}

fn show(tracking: &Tracking, mut fields: Fields) -> Result<Value, MlflowError> {
    let id = fields.experiment()?;
    let experiment = tracking.store.read(|reading| reading.experiment(id))?;
    Ok(json!({"experiment": wire::experiment(&experiment)}))
}

fn show_by_name(tracking: &Tracking, mut fields: Fields) -> Result<Value, MlflowError> {
    let name = fields.required("experiment_name")?;
    let found = tracking.store.read(|reading| reading.experiment_by_name(&name))?;
    let missing = || Refusal::missing(format!("Could not find experiment with name '{name}'"));
    Ok(json!({"experiment": wire::experiment(&found.ok_or_else(missing)?)}))
}

fn set_lifecycle(tracking: &Tracking, mut fields: Fields, to: Lifecycle) -> Result<Value, MlflowError> {
    let (id, now) = (fields.experiment()?, tracking.now());
    tracking.store.write(move |writing| writing.set_experiment_lifecycle(id, to, now))?;
    Ok(json!({}))
}

fn delete(tracking: &Tracking, fields: Fields) -> Result<Value, MlflowError> {
    set_lifecycle(tracking, fields, Lifecycle::Deleted)
}

fn restore(tracking: &Tracking, fields: Fields) -> Result<Value, MlflowError> {
    set_lifecycle(tracking, fields, Lifecycle::Active)
}

fn update(tracking: &Tracking, mut fields: Fields) -> Result<Value, MlflowError> {
    let (id, name, now) = (fields.experiment()?, fields.text("new_name")?, tracking.now());
    if let Some(name) = name {
        tracking.store.write(move |writing| writing.rename_experiment(id, &name, now))?;
    }
    Ok(json!({}))
}

fn set_tag(tracking: &Tracking, mut fields: Fields) -> Result<Value, MlflowError> {
    let (id, tag) = (fields.experiment()?, fields.entry()?);
    tracking.store.write(move |writing| writing.set_experiment_tag(id, &tag))?;
    Ok(json!({}))
}

fn delete_tag(tracking: &Tracking, mut fields: Fields) -> Result<Value, MlflowError> {
    let (id, key) = (fields.experiment()?, fields.required("key")?);
    tracking.store.write(move |writing| writing.delete_experiment_tag(id, &key))?;
    Ok(json!({}))
}

fn search_datasets(tracking: &Tracking, mut fields: Fields) -> Result<Value, MlflowError> {
    let experiments = fields.experiments()?;
    let found = tracking.store.read(|reading| reading.datasets(&experiments))?;
    let summaries = wire::Object::new().with_list("dataset_summaries", &found, |(experiment, dataset, context)| {
        wire::Object::new()
            .with("experiment_id", experiment.to_string())
            .with("name", dataset.key.as_str())
            .with("digest", dataset.value.as_str())
            .with_some("context", context.as_deref())
            .done()
    });
    Ok(summaries.done())
}
