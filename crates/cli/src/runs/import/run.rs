//! A run with everything that is known of it, as it moves between stores.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::mlflow::Api;
use crate::failure::Failure;
use crate::runs::wire::Run;

/// The version of the form.
pub(crate) const VERSION: u32 = 1;

/// A run. Times are milliseconds since 1970.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct ImportedRun {
    /// [`VERSION`].
    pub(crate) version: u32,
    /// Its id where it comes from.
    pub(crate) id: String,
    /// The name of its experiment.
    pub(crate) experiment: String,
    pub(crate) name: String,
    pub(crate) user: String,
    /// RUNNING, SCHEDULED, FINISHED, FAILED or KILLED.
    pub(crate) status: String,
    pub(crate) start_time: u64,
    pub(crate) end_time: Option<u64>,
    pub(crate) params: BTreeMap<String, String>,
    pub(crate) tags: BTreeMap<String, String>,
    /// The points of each metric.
    pub(crate) metrics: BTreeMap<String, Vec<Point>>,
    /// The datasets that it read, as MLflow's API writes them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) inputs: Vec<Value>,
}

/// Step, time, and the value: a number, or the name of one that JSON has not.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Point(pub(crate) i64, pub(crate) i64, pub(crate) Value);

impl Point {
    /// Returns a point of a number.
    pub(crate) fn of(step: i64, at: i64, value: f64) -> Point {
        let value = match value {
            value if value.is_nan() => json!("NaN"),
            f64::INFINITY => json!("Infinity"),
            f64::NEG_INFINITY => json!("-Infinity"),
            value => json!(value),
        };
        Point(step, at, value)
    }
}

#[derive(Deserialize)]
struct History {
    #[serde(default)]
    metrics: Vec<Logged>,
    #[serde(default)]
    next_page_token: Option<String>,
}

#[derive(Deserialize)]
struct Logged {
    value: Value,
    timestamp: i64,
    #[serde(default)]
    step: i64,
}

impl ImportedRun {
    /// Completes a run of a server with the histories of its metrics.
    pub(crate) fn of(api: &dyn Api, experiment: &str, run: Run) -> Result<ImportedRun, Failure> {
        let Run { info, data, inputs } = run;
        let mut metrics = BTreeMap::new();
        for metric in &data.metrics {
            metrics.insert(metric.key.clone(), history(api, &info.run_id, &metric.key)?);
        }
        Ok(ImportedRun {
            version: VERSION,
            id: info.run_id,
            experiment: experiment.to_owned(),
            name: info.run_name,
            user: info.user_id,
            status: info.status,
            start_time: info.start_time,
            end_time: info.end_time,
            params: data.params.into_iter().map(|entry| (entry.key, entry.value)).collect(),
            tags: data.tags.into_iter().map(|entry| (entry.key, entry.value)).collect(),
            metrics,
            inputs: inputs.dataset_inputs,
        })
    }

    /// Returns how many points it has, those that were logged twice counted once.
    pub(crate) fn points(&self) -> usize {
        let distinct = |points: &Vec<Point>| {
            let mut all: Vec<String> =
                points.iter().map(|Point(step, at, value)| format!("{step} {at} {}", number(value))).collect();
            all.sort_unstable();
            all.dedup();
            all.len()
        };
        self.metrics.values().map(distinct).sum()
    }
}

/// Returns a number as it is kept: infinities are the largest finite ones, as in MLflow's databases.
fn number(value: &Value) -> f64 {
    let value = match value.as_str() {
        Some("NaN") => f64::NAN,
        Some("Infinity") => f64::INFINITY,
        Some("-Infinity") => f64::NEG_INFINITY,
        _ => value.as_f64().unwrap_or(f64::NAN),
    };
    if value.is_infinite() { f64::MAX.copysign(value) } else { value }
}

fn history(api: &dyn Api, run: &str, key: &str) -> Result<Vec<Point>, Failure> {
    let (mut points, mut token) = (Vec::new(), None::<String>);
    loop {
        let mut query = vec![("run_id", run), ("metric_key", key)];
        query.extend(token.as_deref().map(|token| ("page_token", token)));
        let page = api.get("metrics/get-history", &query)?;
        let page: History = serde_json::from_value(page).map_err(|error| super::unreadable("metrics", &error))?;
        points.extend(page.metrics.into_iter().map(|point| Point(point.step, point.timestamp, point.value)));
        token = page.next_page_token.filter(|token| !token.is_empty());
        if token.is_none() {
            return Ok(points);
        }
    }
}

/// Returns milliseconds of seconds since 1970.
#[expect(clippy::cast_possible_truncation, reason = "the conversion saturates")]
pub(super) fn millis(seconds: f64) -> i64 {
    (seconds * 1_000.0).round() as i64
}
