//! What the API shows, as MLflow writes it: fields that aren't set and lists that are empty are left out, numbers that JSON
//! has not are texts.

use gangline_store::tracking::Page;
use gangline_tracking::{
    Entry, Experiment, Input, LoggedModel, Metric, ModelMetric, ModelVersion, RegisteredModel, Run, RunInfo,
};
use serde::{Serialize, Serializer};
use serde_json::{Map, Value, json};

/// An object in the making.
pub(super) struct Object(Map<String, Value>);

impl Object {
    pub(super) fn new() -> Object {
        Object(Map::new())
    }

    pub(super) fn with(mut self, name: &str, value: impl Into<Value>) -> Object {
        self.0.insert(name.to_owned(), value.into());
        self
    }

    /// Adds a value if there is one.
    pub(super) fn with_some(self, name: &str, value: Option<impl Into<Value>>) -> Object {
        match value {
            Some(value) => self.with(name, value),
            None => self,
        }
    }

    /// Adds a list unless it is empty.
    pub(super) fn with_list<T>(self, name: &str, list: &[T], each: impl Fn(&T) -> Value) -> Object {
        if list.is_empty() { self } else { self.with(name, list.iter().map(each).collect::<Vec<Value>>()) }
    }

    pub(super) fn done(self) -> Value {
        Value::Object(self.0)
    }
}

/// A page of results.
pub(super) fn page<T>(name: &str, page: &Page<T>, each: impl Fn(&T) -> Value) -> Value {
    let next = page.next.map(|next| next.to_string());
    Object::new().with_list(name, &page.found, each).with_some("next_page_token", next).done()
}

pub(super) fn entry(Entry { key, value }: &Entry) -> Value {
    json!({"key": key, "value": value})
}

pub(super) fn number(value: f64) -> Value {
    match value {
        value if value.is_nan() => json!("NaN"),
        f64::INFINITY => json!("Infinity"),
        f64::NEG_INFINITY => json!("-Infinity"),
        value => json!(value),
    }
}

/// Writes a number as [`number`] shows it.
pub(super) fn write_number<S: Serializer>(value: &f64, to: S) -> Result<S::Ok, S::Error> {
    match *value {
        value if value.is_finite() => to.serialize_f64(value),
        value => number(value).serialize(to),
    }
}

pub(super) fn experiment(experiment: &Experiment) -> Value {
    let Experiment { id, name, artifact_location, lifecycle, created, updated, tags } = experiment;
    Object::new()
        .with("experiment_id", id.to_string())
        .with("name", name.as_str())
        .with("artifact_location", artifact_location.as_str())
        .with("lifecycle_stage", lifecycle.name())
        .with("creation_time", created.0)
        .with("last_update_time", updated.0)
        .with_list("tags", tags, entry)
        .done()
}

pub(super) fn run_info(info: &RunInfo) -> Value {
    Object::new()
        .with("run_uuid", info.id.as_str())
        .with("run_id", info.id.as_str())
        .with("run_name", info.name.as_str())
        .with("experiment_id", info.experiment.to_string())
        .with("user_id", info.user.as_str())
        .with("status", info.status.name())
        .with("start_time", info.start.0)
        .with_some("end_time", info.end.map(|end| end.0))
        .with("artifact_uri", info.artifact_uri.as_str())
        .with("lifecycle_stage", info.lifecycle.name())
        .done()
}

pub(super) fn run(run: &Run) -> Value {
    let data = Object::new()
        .with_list("metrics", &run.metrics, metric)
        .with_list("params", &run.params, entry)
        .with_list("tags", &run.tags, entry);
    let inputs = Object::new().with_list("dataset_inputs", &run.inputs, input).with_list(
        "model_inputs",
        &run.model_inputs,
        |model| json!({"model_id": model}),
    );
    let outputs = Object::new().with_list(
        "model_outputs",
        &run.model_outputs,
        |output| json!({"model_id": output.model, "step": output.step}),
    );
    json!({"info": run_info(&run.info), "data": data.done(), "inputs": inputs.done(), "outputs": outputs.done()})
}

fn metric(Metric { key, point }: &Metric) -> Value {
    Object::new()
        .with("key", key.as_str())
        .with("value", number(point.value))
        .with("timestamp", point.at.0)
        .with("step", point.step)
        .done()
}

fn input(input: &Input) -> Value {
    let dataset = &input.dataset;
    let dataset = Object::new()
        .with("name", dataset.name.as_str())
        .with("digest", dataset.digest.as_str())
        .with("source_type", dataset.source_type.as_str())
        .with("source", dataset.source.as_str())
        .with_some("schema", dataset.schema.as_deref())
        .with_some("profile", dataset.profile.as_deref());
    Object::new().with_list("tags", &input.tags, entry).with("dataset", dataset.done()).done()
}

pub(super) fn logged_model(model: &LoggedModel) -> Value {
    let info = Object::new()
        .with("model_id", model.id.as_str())
        .with("experiment_id", model.experiment.to_string())
        .with("name", model.name.as_str())
        .with("creation_timestamp_ms", model.created.0)
        .with("last_updated_timestamp_ms", model.updated.0)
        .with("artifact_uri", model.artifact_uri.as_str())
        .with("status", model.status.name())
        .with_some("model_type", model.model_type.as_deref())
        .with_some("source_run_id", model.source_run.as_deref())
        .with_list("tags", &model.tags, entry)
        .with_list(
            "registrations",
            &model.registrations,
            |registration| json!({"name": registration.name, "version": registration.version.to_string()}),
        );
    let metric = |ModelMetric { key, point, run, dataset_name, dataset_digest }: &ModelMetric| {
        Object::new()
            .with("key", key.as_str())
            .with("value", number(point.value))
            .with("timestamp", point.at.0)
            .with("step", point.step)
            .with_some("dataset_name", dataset_name.as_deref())
            .with_some("dataset_digest", dataset_digest.as_deref())
            .with("model_id", model.id.as_str())
            .with("run_id", run.as_str())
            .done()
    };
    let data = Object::new().with_list("params", &model.params, entry).with_list("metrics", &model.metrics, metric);
    json!({"info": info.done(), "data": data.done()})
}

pub(super) fn registered_model(model: &RegisteredModel) -> Value {
    Object::new()
        .with("name", model.name.as_str())
        .with("creation_timestamp", model.created.0)
        .with("last_updated_timestamp", model.updated.0)
        .with_some("description", model.description.as_deref())
        .with_list("latest_versions", &model.latest, model_version)
        .with_list("tags", &model.tags, entry)
        .with_list(
            "aliases",
            &model.aliases,
            |alias| json!({"alias": alias.name, "version": alias.version.to_string()}),
        )
        .done()
}

pub(super) fn model_version(version: &ModelVersion) -> Value {
    Object::new()
        .with("name", version.name.as_str())
        .with("version", version.version.to_string())
        .with("creation_timestamp", version.created.0)
        .with("last_updated_timestamp", version.updated.0)
        .with("current_stage", version.stage.name())
        .with_some("description", version.description.as_deref())
        .with("source", version.source.as_str())
        .with_some("run_id", version.run.as_deref())
        .with("status", "READY")
        .with_some("run_link", version.run_link.as_deref())
        .with_some("model_id", version.logged_model.as_deref())
        .with_list("tags", &version.tags, entry)
        .with_list("aliases", &version.aliases, |alias| json!(alias))
        .done()
}
