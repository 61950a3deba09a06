//! Metrics and parameters, and the batches that hold both.

use axum::routing::MethodFilter;
use gangline_store::tracking::{Logged, MetricBatch};
use gangline_tracking::{Metric, Point, UnixMillis};
use serde::Serialize;
use serde_json::{Value, json};

use super::answer::MlflowError;
use super::fields::Fields;
use super::{GET, Handler, POST, Tracking, wire};

/// The paths below `/api/2.0/mlflow`.
pub(super) const ROUTES: &[(MethodFilter, &str, Handler)] = &[
    (POST, "/runs/log-metric", log_metric),
    (POST, "/runs/log-parameter", log_param),
    (POST, "/runs/log-batch", log_batch),
];

/// The paths below `/api/2.0/mlflow` whose answers are long.
pub(super) const HISTORIES: &[(MethodFilter, &str, Handler<Points>)] =
    &[(GET, "/metrics/get-history", history), (GET, "/metrics/get-history-bulk-interval", curves)];

/// Points of metrics: tens of thousands of them, so that they are written from where they are.
#[derive(Serialize)]
pub(super) struct Points {
    #[serde(skip_serializing_if = "Vec::is_empty")]
    metrics: Vec<Shown>,
    #[serde(skip_serializing_if = "Option::is_none")]
    next_page_token: Option<String>,
}

/// One point as the API shows it.
#[derive(Serialize)]
struct Shown {
    key: String,
    #[serde(serialize_with = "wire::write_number")]
    value: f64,
    timestamp: i64,
    step: i64,
    #[serde(skip_serializing_if = "Option::is_none")]
    run_id: Option<String>,
}

impl Shown {
    fn of(key: &str, point: &Point, run: Option<&str>) -> Shown {
        let Point { at, step, value } = *point;
        Shown { key: key.to_owned(), value, timestamp: at.0, step, run_id: run.map(str::to_owned) }
    }
}

/// The most points of a history's page.
const HISTORY_MAX: usize = 25_000;
/// The most points of each run's curve.
const CURVE_MAX: usize = 2500;
/// The most runs whose curves are shown at once.
const CURVES_MAX: usize = 100;

fn log_metric(tracking: &Tracking, mut fields: Fields) -> Result<Value, MlflowError> {
    let run = fields.run()?;
    let logged = logged(&mut fields, "")?;
    tracking.store.write(move |writing| writing.log_metric(&run, logged))?;
    Ok(json!({}))
}

/// Reads one metric; `path` is where it stands.
fn logged(fields: &mut Fields, path: &str) -> Result<Logged, MlflowError> {
    let missing = |name: &str| MlflowError::missing_parameter(&format!("{path}{name}"));
    let key = fields.text("key")?.ok_or_else(|| missing("key"))?;
    let value = fields.number("value")?.ok_or_else(|| missing("value"))?;
    let at = fields.whole("timestamp")?.ok_or_else(|| missing("timestamp"))?;
    let step = fields.whole("step")?.unwrap_or_default();
    Ok(Logged {
        metric: Metric { key, point: Point { at: UnixMillis(at), step, value } },
        model: fields.text("model_id")?,
        dataset_name: fields.text("dataset_name")?,
        dataset_digest: fields.text("dataset_digest")?,
    })
}

fn log_param(tracking: &Tracking, mut fields: Fields) -> Result<Value, MlflowError> {
    let (run, param) = (fields.run()?, fields.entry()?);
    tracking.store.write(move |writing| writing.log_param(&run, param))?;
    Ok(json!({}))
}

fn log_batch(tracking: &Tracking, mut fields: Fields) -> Result<Value, MlflowError> {
    let run = fields.run()?;
    let metrics = fields.objects("metrics")?.into_iter().enumerate();
    let metrics = metrics.map(|(index, mut fields)| logged(&mut fields, &format!("metrics[{index}].")));
    let batch = MetricBatch {
        metrics: metrics.collect::<Result<_, _>>()?,
        params: fields.entries("params")?,
        tags: fields.entries("tags")?,
    };
    tracking.store.write(move |writing| writing.log_batch(&run, batch))?;
    Ok(json!({}))
}

fn history(tracking: &Tracking, mut fields: Fields) -> Result<Points, MlflowError> {
    let (run, key, offset) = (fields.run()?, fields.required("metric_key")?, fields.offset()?);
    // Without a count the whole history is shown, as with MLflow.
    let count = fields.whole("max_results")?.map(|count| usize::try_from(count).unwrap_or_default());
    if count == Some(0) {
        return Err(MlflowError::invalid(
            "Invalid value for parameter 'max_results' supplied. It must be a positive integer.",
        ));
    }
    let count = count.map_or(usize::MAX, |count| count.min(HISTORY_MAX));
    let points = tracking.store.read(|reading| reading.metric_history(&run, &key))?;
    let metrics: Vec<Shown> =
        points.iter().skip(offset).take(count).map(|point| Shown::of(&key, point, None)).collect();
    let end = offset.saturating_add(metrics.len());
    Ok(Points { metrics, next_page_token: (end < points.len()).then(|| end.to_string()) })
}

fn curves(tracking: &Tracking, mut fields: Fields) -> Result<Points, MlflowError> {
    let runs = fields.texts("run_ids")?;
    if runs.is_empty() {
        return Err(MlflowError::missing_parameter("run_ids"));
    }
    if runs.len() > CURVES_MAX {
        return Err(MlflowError::invalid(format!(
            "GetMetricHistoryBulkInterval request must specify at most {CURVES_MAX} run_ids. Received {} run_ids.",
            runs.len()
        )));
    }
    let key = fields.required("metric_key")?;
    let count = fields.count(CURVE_MAX, CURVE_MAX)?;
    let steps = match (fields.whole("start_step")?, fields.whole("end_step")?) {
        (None, None) => None,
        (Some(first), Some(last)) if first <= last => Some((first, last)),
        (Some(first), Some(last)) => {
            return Err(MlflowError::invalid(format!(
                "end_step must be greater than start_step. Found start_step={first} and end_step={last}."
            )));
        }
        _ => {
            return Err(MlflowError::invalid(
                "If either start step or end step are specified, both must be specified.",
            ));
        }
    };
    let points = tracking.store.read(|reading| {
        let curve = |run: &String| reading.metric_curve(run, &key, steps, count);
        runs.iter().map(curve).collect::<Result<Vec<_>, _>>()
    })?;
    let mut metrics = Vec::with_capacity(points.iter().map(Vec::len).sum());
    for (run, points) in runs.iter().zip(&points) {
        metrics.extend(points.iter().map(|point| Shown::of(&key, point, Some(run))));
    }
    Ok(Points { metrics, next_page_token: None })
}
