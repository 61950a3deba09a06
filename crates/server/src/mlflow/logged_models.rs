//! Logged models.

use axum::routing::MethodFilter;
use gangline_store::tracking::{NewLoggedModel, OrderByMetric, Search, SearchLoggedModels};
use gangline_tracking::LoggedModelStatus;
use serde_json::{Value, json};

use super::answer::MlflowError;
use super::fields::Fields;
use super::{DELETE, GET, Handler, PATCH, POST, Tracking, artifacts, names, wire};

/// The paths below `/api/2.0/mlflow`.
pub(super) const ROUTES: &[(MethodFilter, &str, Handler)] = &[
    (POST, "/logged-models", create),
    (POST, "/logged-models/search", search),
    (GET, "/logged-models/{model_id}", show),
    (PATCH, "/logged-models/{model_id}", finalize),
    (DELETE, "/logged-models/{model_id}", delete),
    (PATCH, "/logged-models/{model_id}/tags", set_tags),
    (DELETE, "/logged-models/{model_id}/tags/{tag_key}", delete_tag),
    (POST, "/logged-models/{model_id}/params", log_params),
    (GET, "/logged-models/{model_id}/artifacts/directories", list_artifacts),
];

const COUNT: usize = 100;
const COUNT_MAX: usize = 50_000;

fn create(tracking: &Tracking, mut fields: Fields) -> Result<Value, MlflowError> {
    let new = NewLoggedModel {
        id: format!("m-{}", names::id()?),
        experiment: fields.experiment()?,
        name: fields.text("name")?.map_or_else(names::name, Ok)?,
        model_type: fields.text("model_type")?,
        source_run: fields.text("source_run_id")?,
        params: fields.entries("params")?,
        tags: fields.entries("tags")?,
    };
    let now = tracking.now();
    let model = tracking.store.write(move |writing| writing.create_logged_model(new, now))?;
    Ok(json!({"model": wire::logged_model(&model)}))
}

fn show(tracking: &Tracking, mut fields: Fields) -> Result<Value, MlflowError> {
    let id = fields.required("model_id")?;
    let model = tracking.store.read(|reading| reading.logged_model(&id))?;
    Ok(json!({"model": wire::logged_model(&model)}))
}

fn finalize(tracking: &Tracking, mut fields: Fields) -> Result<Value, MlflowError> {
    let (id, now) = (fields.required("model_id")?, tracking.now());
    let status = fields.word("status")?.ok_or_else(|| MlflowError::missing_parameter("status"))?;
    let unknown = || MlflowError::invalid(format!("Invalid value \"{status}\" for parameter 'status' supplied."));
    let status = LoggedModelStatus::parse(&status).ok_or_else(unknown)?;
    let model = tracking.store.write(move |writing| writing.finalize_logged_model(&id, status, now))?;
    Ok(json!({"model": wire::logged_model(&model)}))
}

fn delete(tracking: &Tracking, mut fields: Fields) -> Result<Value, MlflowError> {
    let (id, now) = (fields.required("model_id")?, tracking.now());
    tracking.store.write(move |writing| writing.delete_logged_model(&id, now))?;
    Ok(json!({}))
}

fn set_tags(tracking: &Tracking, mut fields: Fields) -> Result<Value, MlflowError> {
    let (id, tags) = (fields.required("model_id")?, fields.entries("tags")?);
    let model = tracking.store.write(move |writing| writing.set_logged_model_tags(&id, &tags))?;
    Ok(json!({"model": wire::logged_model(&model)}))
}

fn delete_tag(tracking: &Tracking, mut fields: Fields) -> Result<Value, MlflowError> {
    let (id, key) = (fields.required("model_id")?, fields.required("tag_key")?);
    tracking.store.write(move |writing| writing.delete_logged_model_tag(&id, &key))?;
    Ok(json!({}))
}

fn log_params(tracking: &Tracking, mut fields: Fields) -> Result<Value, MlflowError> {
    let (id, params) = (fields.required("model_id")?, fields.entries("params")?);
    tracking.store.write(move |writing| writing.log_logged_model_params(&id, params))?;
    Ok(json!({}))
}

fn search(tracking: &Tracking, mut fields: Fields) -> Result<Value, MlflowError> {
    let mut wanted = SearchLoggedModels {
        experiments: fields.experiments()?,
        search: Search {
            filter: fields.text("filter")?.unwrap_or_default(),
            order_by: Vec::new(),
            count_max: fields.count(COUNT, COUNT_MAX)?,
            offset: fields.offset()?,
        },
        ..SearchLoggedModels::default()
    };
    for mut order in fields.objects("order_by")? {
        let name = order.required("field_name")?;
        let is_descending = !order.is_set("ascending", true)?;
        match name.strip_prefix("metrics.") {
            Some(key) => wanted.by_metrics.push(OrderByMetric {
                key: key.to_owned(),
                is_descending,
                dataset_name: order.text("dataset_name")?,
                dataset_digest: order.text("dataset_digest")?,
            }),
            None => {
                let direction = if is_descending { "DESC" } else { "ASC" };
                wanted.search.order_by.push(format!("{name} {direction}"));
            }
        }
    }
    for mut dataset in fields.objects("datasets")? {
        let name = dataset.text("dataset_name")?;
        let missing = || MlflowError::invalid("`dataset_name` in the `datasets` clause must be specified.");
        wanted.datasets.push((name.ok_or_else(missing)?, dataset.text("dataset_digest")?));
    }
    let page = tracking.store.read(|reading| reading.search_logged_models(&wanted))?;
    Ok(wire::page("models", &page, wire::logged_model))
}

fn list_artifacts(tracking: &Tracking, mut fields: Fields) -> Result<Value, MlflowError> {
    let (id, path) = (fields.required("model_id")?, fields.text("artifact_directory_path")?.unwrap_or_default());
    let model = tracking.store.read(|reading| reading.logged_model(&id))?;
    artifacts::list_below(tracking, &model.artifact_uri, &path)
}
