//! Metrics and parameters, and the batches that hold both.

use axum::routing::MethodFilter;
use gangline_store::tracking::{Logged, MetricBatch};
use gangline_tracking::{Metric, Point, UnixMillis};
use serde_json::{Value, json};

use super::answer::MlflowError;
use super::fields::Fields;
use super::{GET, Handler, POST, Tracking, wire};

/// The paths below `/api/2.0/mlflow`.
pub(super) const ROUTES: &[(MethodFilter, &str, Handler)] = &[
    (POST, "/runs/log-metric", log_metric),
    (POST, "/runs/log-parameter", log_param),
    (POST, "/runs/log-batch", log_batch),
    (GET, "/metrics/get-history", history),
    (GET, "/metrics/get-history-bulk-interval", curves),
];

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

fn history(tracking: &Tracking, mut fields: Fields) -> Result<Value, MlflowError> {
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
    let shown: Vec<&Point> = points.iter().skip(offset).take(count).collect();
    let end = offset.saturating_add(shown.len());
    let next = (end < points.len()).then(|| end.to_string());
    let answer = wire::Object::new()
        .with_list("metrics", &shown, |point| wire::point_of(&key, point, None))
        .with_some("next_page_token", next);
    Ok(answer.done())
}

fn curves(tracking: &Tracking, mut fields: Fields) -> Result<Value, MlflowError> {
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
        let curve = |run: &String| Ok((run.clone(), reading.metric_curve(run, &key, steps, count)?));
        runs.iter().map(curve).collect::<Result<Vec<_>, _>>()
    })?;
    let of_run = |(run, points): (String, Vec<Point>)| {
        points.into_iter().map(|point| wire::point_of(&key, &point, Some(&run))).collect::<Vec<Value>>()
    };
    let metrics: Vec<Value> = points.into_iter().flat_map(of_run).collect();
    Ok(wire::Object::new().with_list("metrics", &metrics, Value::clone).done())
}
