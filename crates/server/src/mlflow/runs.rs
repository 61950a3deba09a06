//! Runs.

use axum::routing::MethodFilter;
use gangline_store::tracking::{NewRun, RunChange};
use gangline_tracking::{Dataset, Entry, Input, Lifecycle, ModelOutput, Refusal, RunStatus, UnixMillis, View};
use serde_json::{Value, json};

use super::answer::MlflowError;
use super::experiments::read_search;
use super::fields::Fields;
use super::{GET, Handler, POST, Tracking, artifacts, names, wire};

/// The paths below `/api/2.0/mlflow`.
pub(super) const ROUTES: &[(MethodFilter, &str, Handler)] = &[
    (POST, "/runs/create", create),
    (POST, "/runs/update", update),
    (POST, "/runs/delete", delete),
    (POST, "/runs/restore", restore),
    (GET, "/runs/get", show),
    (POST, "/runs/search", search),
    (POST, "/runs/set-tag", set_tag),
    (POST, "/runs/delete-tag", delete_tag),
    (POST, "/runs/log-inputs", log_inputs),
    (POST, "/runs/outputs", log_outputs),
    (POST, "/runs/log-model", log_model),
    (GET, "/artifacts/list", list_artifacts),
];

/// The tags that join a run to the job and the attempt whose rank made it.
const JOB_TAG: &str = "gangline.job";
const ATTEMPT_TAG: &str = "gangline.attempt";

const COUNT: usize = 1000;
const COUNT_MAX: usize = 50_000;

fn create(tracking: &Tracking, mut fields: Fields) -> Result<Value, MlflowError> {
    let experiment = fields.word("experiment_id")?.unwrap_or_else(|| "0".into());
    let mut tags = fields.entries("tags")?;
    if let Some(attempt) = fields.attempt() {
        // What a client says of its job gives way to what its token proves.
        tags.retain(|tag| tag.key != JOB_TAG && tag.key != ATTEMPT_TAG);
        tags.push(Entry { key: JOB_TAG.into(), value: attempt.job.to_string() });
        tags.push(Entry { key: ATTEMPT_TAG.into(), value: attempt.attempt.0.to_string() });
    }
    let new = NewRun {
        id: names::id()?,
        experiment: gangline_tracking::ExperimentId::parse(&experiment)?,
        name: fields.text("run_name")?,
        default_name: names::name()?,
        user: fields.text("user_id")?.unwrap_or_default(),
        start: UnixMillis(fields.whole("start_time")?.unwrap_or_default()),
        tags,
    };
    let run = tracking.store.write(move |writing| writing.create_run(new))?;
    Ok(json!({"run": wire::run(&run)}))
}

fn update(tracking: &Tracking, mut fields: Fields) -> Result<Value, MlflowError> {
    let run = fields.run()?;
    let change = RunChange {
        status: fields.word("status")?.map(|status| RunStatus::parse(&status)).transpose()?,
        end: fields.whole("end_time")?.map(UnixMillis),
        name: fields.text("run_name")?,
    };
    let info = tracking.store.write(move |writing| writing.update_run(&run, change))?;
    Ok(json!({"run_info": wire::run_info(&info)}))
}

fn set_lifecycle(tracking: &Tracking, mut fields: Fields, to: Lifecycle) -> Result<Value, MlflowError> {
    let run = fields.run()?;
    tracking.store.write(move |writing| writing.set_run_lifecycle(&run, to))?;
    Ok(json!({}))
}

fn delete(tracking: &Tracking, fields: Fields) -> Result<Value, MlflowError> {
    set_lifecycle(tracking, fields, Lifecycle::Deleted)
}

fn restore(tracking: &Tracking, fields: Fields) -> Result<Value, MlflowError> {
    set_lifecycle(tracking, fields, Lifecycle::Active)
}

fn show(tracking: &Tracking, mut fields: Fields) -> Result<Value, MlflowError> {
    let id = fields.run()?;
    let run = tracking.store.read(|reading| reading.run(&id))?;
    Ok(json!({"run": wire::run(&run)}))
}

fn search(tracking: &Tracking, mut fields: Fields) -> Result<Value, MlflowError> {
    let experiments = fields.experiments()?;
    let view = fields.word("run_view_type")?.map_or(Ok(View::Active), |view| View::parse(&view))?;
    let search = read_search(&mut fields, COUNT, COUNT_MAX)?;
    let page = tracking.store.read(|reading| reading.search_runs(&experiments, view, &search))?;
    Ok(wire::page("runs", &page, wire::run))
}

fn set_tag(tracking: &Tracking, mut fields: Fields) -> Result<Value, MlflowError> {
    let (run, tag) = (fields.run()?, fields.entry()?);
    tracking.store.write(move |writing| writing.set_run_tags(&run, vec![tag], |_| "key".into()))?;
    Ok(json!({}))
}

fn delete_tag(tracking: &Tracking, mut fields: Fields) -> Result<Value, MlflowError> {
    let (run, key) = (fields.run()?, fields.required("key")?);
    tracking.store.write(move |writing| writing.delete_run_tag(&run, &key))?;
    Ok(json!({}))
}

fn log_inputs(tracking: &Tracking, mut fields: Fields) -> Result<Value, MlflowError> {
    let run = fields.run()?;
    let inputs: Vec<Input> = fields.objects("datasets")?.into_iter().map(input).collect::<Result<_, _>>()?;
    let models = fields.objects("models")?.into_iter().map(|mut model| model.required("model_id"));
    let models: Vec<String> = models.collect::<Result<_, _>>()?;
    tracking.store.write(move |writing| writing.log_inputs(&run, &inputs, &models))?;
    Ok(json!({}))
}

fn input(mut fields: Fields) -> Result<Input, MlflowError> {
    let mut dataset = fields.object("dataset")?.ok_or_else(|| MlflowError::missing_parameter("dataset"))?;
    let mut text = |name: &str| Ok::<_, MlflowError>(dataset.text(name)?.unwrap_or_default());
    let (name, digest, source_type, source) = (text("name")?, text("digest")?, text("source_type")?, text("source")?);
    let (schema, profile) = (dataset.text("schema")?, dataset.text("profile")?);
    let dataset = Dataset { name, digest, source_type, source, schema, profile };
    Ok(Input { dataset, tags: fields.entries("tags")? })
}

fn log_outputs(tracking: &Tracking, mut fields: Fields) -> Result<Value, MlflowError> {
    let run = fields.run()?;
    let output = |mut model: Fields| {
        let step = model.whole("step")?.unwrap_or_default();
        Ok::<_, MlflowError>(ModelOutput { model: model.required("model_id")?, step })
    };
    let outputs: Vec<ModelOutput> = fields.objects("models")?.into_iter().map(output).collect::<Result<_, _>>()?;
    tracking.store.write(move |writing| writing.log_outputs(&run, &outputs))?;
    Ok(json!({}))
}

/// Keeps a model's description in a tag of its run, where clients before MLflow 3 look for it.
fn log_model(tracking: &Tracking, mut fields: Fields) -> Result<Value, MlflowError> {
    let (run, text) = (fields.run()?, fields.required("model_json")?);
    let malformed = || MlflowError::invalid(format!("Malformed model info. \n {text} \n is not a valid JSON."));
    let Ok(Value::Object(model)) = serde_json::from_str(&text) else { return Err(malformed()) };
    let needed = ["artifact_path", "flavors", "utc_time_created", "run_id"];
    let missing: Vec<&str> = needed.into_iter().filter(|field| !model.contains_key(*field)).collect();
    if !missing.is_empty() {
        return Err(MlflowError::invalid(format!("Model json is missing mandatory fields: {}", missing.join(", "))));
    }
    let append = move |so_far: Option<&str>| {
        let mut list: Vec<Value> = match so_far {
            None => Vec::new(),
            Some(so_far) => serde_json::from_str(so_far).map_err(|_| {
                Refusal::invalid(
                    "the run's tag mlflow.log-model.history is no list: delete the tag, then log the model again",
                )
            })?,
        };
        list.push(Value::Object(model.clone()));
        Ok(Value::Array(list).to_string())
    };
    tracking.store.write(move |writing| writing.append_model(&run, append))?;
    Ok(json!({}))
}

fn list_artifacts(tracking: &Tracking, mut fields: Fields) -> Result<Value, MlflowError> {
    let (run, path) = (fields.run()?, fields.text("path")?.unwrap_or_default());
    let run = tracking.store.read(|reading| reading.run(&run))?;
    artifacts::list_below(tracking, &run.info.artifact_uri, &path)
}
