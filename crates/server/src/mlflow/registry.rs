//! The model registry.

use axum::routing::MethodFilter;
use gangline_store::tracking::NewModelVersion;
use gangline_tracking::Stage;
use serde_json::{Value, json};

use super::answer::MlflowError;
use super::experiments::read_search;
use super::fields::Fields;
use super::{DELETE, GET, Handler, PATCH, POST, Tracking, wire};

/// The paths below `/api/2.0/mlflow`.
pub(super) const ROUTES: &[(MethodFilter, &str, Handler)] = &[
    (POST, "/registered-models/create", create),
    (POST, "/registered-models/rename", rename),
    (PATCH, "/registered-models/update", update),
    (DELETE, "/registered-models/delete", delete),
    (GET, "/registered-models/get", show),
    (GET, "/registered-models/search", search),
    (GET, "/registered-models/get-latest-versions", latest_versions),
    (POST, "/registered-models/get-latest-versions", latest_versions),
    (POST, "/registered-models/set-tag", set_tag),
    (DELETE, "/registered-models/delete-tag", delete_tag),
    (POST, "/registered-models/alias", set_alias),
    (DELETE, "/registered-models/alias", delete_alias),
    (GET, "/registered-models/alias", version_by_alias),
    (POST, "/model-versions/create", create_version),
    (PATCH, "/model-versions/update", update_version),
    (POST, "/model-versions/transition-stage", move_to_stage),
    (DELETE, "/model-versions/delete", delete_version),
    (GET, "/model-versions/get", show_version),
    (GET, "/model-versions/search", search_versions),
    (GET, "/model-versions/get-download-uri", download_uri),
    (POST, "/model-versions/set-tag", set_version_tag),
    (DELETE, "/model-versions/delete-tag", delete_version_tag),
];

const MODELS: usize = 100;
const MODELS_MAX: usize = 1000;
const VERSIONS: usize = 10_000;
const VERSIONS_MAX: usize = 200_000;

/// Reads a version and its model.
fn version(fields: &mut Fields) -> Result<(String, u32), MlflowError> {
    let name = fields.required("name")?;
    let version = fields.word("version")?.ok_or_else(|| MlflowError::missing_parameter("version"))?;
    let invalid = || MlflowError::invalid(format!("Parameter 'version' must be an integer, got '{version}'."));
    Ok((name, version.parse().map_err(|_| invalid())?))
}

fn create(tracking: &Tracking, mut fields: Fields) -> Result<Value, MlflowError> {
    let (name, description, tags) = (fields.required("name")?, fields.text("description")?, fields.entries("tags")?);
    let now = tracking.now();
    let create = move |writing: &gangline_store::tracking::Writing<'_>| {
        writing.create_registered_model(&name, description.as_deref(), &tags, now)
    };
    Ok(json!({"registered_model": wire::registered_model(&tracking.store.write(create)?)}))
}

fn rename(tracking: &Tracking, mut fields: Fields) -> Result<Value, MlflowError> {
    let (name, new, now) = (fields.required("name")?, fields.required("new_name")?, tracking.now());
    let model = tracking.store.write(move |writing| writing.rename_registered_model(&name, &new, now))?;
    Ok(json!({"registered_model": wire::registered_model(&model)}))
}

fn update(tracking: &Tracking, mut fields: Fields) -> Result<Value, MlflowError> {
    let (name, description, now) = (fields.required("name")?, fields.text("description")?, tracking.now());
    let describe = move |writing: &gangline_store::tracking::Writing<'_>| {
        writing.describe_registered_model(&name, description.as_deref(), now)
    };
    Ok(json!({"registered_model": wire::registered_model(&tracking.store.write(describe)?)}))
}

fn delete(tracking: &Tracking, mut fields: Fields) -> Result<Value, MlflowError> {
    let name = fields.required("name")?;
    tracking.store.write(move |writing| writing.delete_registered_model(&name))?;
    Ok(json!({}))
}

fn show(tracking: &Tracking, mut fields: Fields) -> Result<Value, MlflowError> {
    let name = fields.required("name")?;
    let model = tracking.store.read(|reading| reading.registered_model(&name))?;
    Ok(json!({"registered_model": wire::registered_model(&model)}))
}

fn search(tracking: &Tracking, mut fields: Fields) -> Result<Value, MlflowError> {
    let search = read_search(&mut fields, MODELS, MODELS_MAX)?;
    let page = tracking.store.read(|reading| reading.search_registered_models(&search))?;
    Ok(wire::page("registered_models", &page, wire::registered_model))
}

fn latest_versions(tracking: &Tracking, mut fields: Fields) -> Result<Value, MlflowError> {
    let (name, stages) = (fields.required("name")?, fields.texts("stages")?);
    let stages: Vec<Stage> = stages.iter().map(|stage| Stage::parse(stage)).collect::<Result<_, _>>()?;
    let latest = tracking.store.read(|reading| reading.latest_versions(&name, &stages))?;
    Ok(wire::Object::new().with_list("model_versions", &latest, wire::model_version).done())
}

fn set_tag(tracking: &Tracking, mut fields: Fields) -> Result<Value, MlflowError> {
    let (name, tag) = (fields.required("name")?, fields.entry()?);
    tracking.store.write(move |writing| writing.set_registered_model_tag(&name, &tag))?;
    Ok(json!({}))
}

fn delete_tag(tracking: &Tracking, mut fields: Fields) -> Result<Value, MlflowError> {
    let (name, key) = (fields.required("name")?, fields.required("key")?);
    tracking.store.write(move |writing| writing.delete_registered_model_tag(&name, &key))?;
    Ok(json!({}))
}

fn set_alias(tracking: &Tracking, mut fields: Fields) -> Result<Value, MlflowError> {
    let ((name, version), alias) = (version(&mut fields)?, fields.required("alias")?);
    tracking.store.write(move |writing| writing.set_alias(&name, &alias, version))?;
    Ok(json!({}))
}

fn delete_alias(tracking: &Tracking, mut fields: Fields) -> Result<Value, MlflowError> {
    let (name, alias) = (fields.required("name")?, fields.required("alias")?);
    tracking.store.write(move |writing| writing.delete_alias(&name, &alias))?;
    Ok(json!({}))
}

fn version_by_alias(tracking: &Tracking, mut fields: Fields) -> Result<Value, MlflowError> {
    let (name, alias) = (fields.required("name")?, fields.required("alias")?);
    let version = tracking.store.read(|reading| reading.version_by_alias(&name, &alias))?;
    Ok(json!({"model_version": wire::model_version(&version)}))
}

fn create_version(tracking: &Tracking, mut fields: Fields) -> Result<Value, MlflowError> {
    let new = NewModelVersion {
        name: fields.required("name")?,
        source: fields.required("source")?,
        run: fields.text("run_id")?,
        run_link: fields.text("run_link")?,
        description: fields.text("description")?,
        logged_model: fields.text("model_id")?,
        tags: fields.entries("tags")?,
    };
    let now = tracking.now();
    let version = tracking.store.write(move |writing| writing.create_model_version(new, now))?;
    Ok(json!({"model_version": wire::model_version(&version)}))
}

fn update_version(tracking: &Tracking, mut fields: Fields) -> Result<Value, MlflowError> {
    let ((name, version), description) = (version(&mut fields)?, fields.text("description")?);
    let now = tracking.now();
    let describe = move |writing: &gangline_store::tracking::Writing<'_>| {
        writing.describe_model_version(&name, version, description.as_deref(), now)
    };
    Ok(json!({"model_version": wire::model_version(&tracking.store.write(describe)?)}))
}

fn move_to_stage(tracking: &Tracking, mut fields: Fields) -> Result<Value, MlflowError> {
    let (name, version) = version(&mut fields)?;
    let stage = Stage::parse(&fields.required("stage")?)?;
    let archives_others = fields.is_set("archive_existing_versions", false)?;
    let now = tracking.now();
    let change = move |writing: &gangline_store::tracking::Writing<'_>| {
        writing.move_to_stage((&name, version), stage, archives_others, now)
    };
    Ok(json!({"model_version": wire::model_version(&tracking.store.write(change)?)}))
}

fn delete_version(tracking: &Tracking, mut fields: Fields) -> Result<Value, MlflowError> {
    let ((name, version), now) = (version(&mut fields)?, tracking.now());
    tracking.store.write(move |writing| writing.delete_model_version(&name, version, now))?;
    Ok(json!({}))
}

fn show_version(tracking: &Tracking, mut fields: Fields) -> Result<Value, MlflowError> {
    let (name, version) = version(&mut fields)?;
    let version = tracking.store.read(|reading| reading.model_version(&name, version))?;
    Ok(json!({"model_version": wire::model_version(&version)}))
}

fn search_versions(tracking: &Tracking, mut fields: Fields) -> Result<Value, MlflowError> {
    let search = read_search(&mut fields, VERSIONS, VERSIONS_MAX)?;
    let page = tracking.store.read(|reading| reading.search_model_versions(&search))?;
    Ok(wire::page("model_versions", &page, wire::model_version))
}

fn download_uri(tracking: &Tracking, mut fields: Fields) -> Result<Value, MlflowError> {
    let (name, version) = version(&mut fields)?;
    let version = tracking.store.read(|reading| reading.model_version(&name, version))?;
    Ok(json!({"artifact_uri": version.storage_uri}))
}

fn set_version_tag(tracking: &Tracking, mut fields: Fields) -> Result<Value, MlflowError> {
    let ((name, version), tag) = (version(&mut fields)?, fields.entry()?);
    tracking.store.write(move |writing| writing.set_model_version_tag(&name, version, &tag))?;
    Ok(json!({}))
}

fn delete_version_tag(tracking: &Tracking, mut fields: Fields) -> Result<Value, MlflowError> {
    let ((name, version), key) = (version(&mut fields)?, fields.required("key")?);
    tracking.store.write(move |writing| writing.delete_model_version_tag(&name, version, &key))?;
    Ok(json!({}))
}
