//! Metrics: from supervisors into the series store, and from there to users.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, LazyLock};

use axum::body::Bytes;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, State};
use axum::{Extension, Json};
use gangline_api as api;
use gangline_base::{AttemptNumber, Epoch, JobId, Measured, NodeName, Step, Timestamp};
use gangline_control::job_runs::JobRow;
use gangline_execution::protocol::metrics::{
    BATCHES_PER_REPORT_MAX, METRICS_VERSION, MetricAnswer, MetricBatch, MetricReport, MetricRow,
};
use gangline_telemetry::lower_priority;
use gangline_telemetry::series::{self, Batch, Bucket, Curve, Row, Scope, Source};
use serde::Deserialize;
use tokio::sync::oneshot;
use utoipa::IntoParams;

use super::auth::Reporting;
use super::error::ApiError;
use super::jobs::{missing, parse_job};
use super::segment::Segment;
use super::{App, ErrorBody, read};

/// The most metrics that are listed, and the most curves of an answer.
const CURVES_MAX: usize = 2_000;
/// The most metrics whose last values are shown with a job.
const LAST_VALUES_MAX: usize = 100;
/// Default number of points of a curve.
const POINTS: usize = 320;
/// The most points of a curve.
const POINTS_MAX: usize = 10_000;
/// The most points of an answer; with more curves, each has fewer.
const POINTS_OF_ALL_MAX: usize = 200_000;
/// The largest number of a rank or a device.
const RANK_MAX: u32 = 1 << 26;

/// Which metrics, and which part of them.
#[derive(Default, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(super) struct CurvesQuery {
    /// Only the metric of this name.
    metric: Option<String>,
    /// Only this attempt.
    attempt: Option<u32>,
    /// Only this global rank.
    rank: Option<u32>,
    /// Only this node.
    node: Option<String>,
    /// Only this device of its node.
    device: Option<u32>,
    /// From this step on; values without a step are left out.
    from_step: Option<u64>,
    /// Up to this step.
    to_step: Option<u64>,
    /// From this time on.
    #[param(value_type = Option<String>, format = DateTime)]
    from: Option<api::Time>,
    /// Up to this time.
    #[param(value_type = Option<String>, format = DateTime)]
    to: Option<api::Time>,
    /// At most this many points of each curve; 10000 at most.
    points: Option<usize>,
}

/// Which metrics of a node, and which part of them.
#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(super) struct NodeCurvesQuery {
    /// Only the metric of this name.
    metric: Option<String>,
    /// Only this device.
    device: Option<u32>,
    /// From this time on.
    #[param(value_type = Option<String>, format = DateTime)]
    from: Option<api::Time>,
    /// Up to this time.
    #[param(value_type = Option<String>, format = DateTime)]
    to: Option<api::Time>,
    /// At most this many points of each curve; 10000 at most.
    points: Option<usize>,
}

/// The thread that reads reports, one after another and with a low priority: a flood of them leaves the processors to everybody
/// else's requests. Reading one takes milliseconds. It ends with the process.
static READER: LazyLock<Sender<Box<dyn FnOnce() + Send>>> = LazyLock::new(|| {
    let (reader, waiting) = channel::<Box<dyn FnOnce() + Send>>();
    let read_all = move || {
        lower_priority();
        // A panic costs the report that caused it.
        waiting.into_iter().for_each(|read| drop(catch_unwind(AssertUnwindSafe(read))));
    };
    // Without the thread each report is refused.
    drop(std::thread::Builder::new().name("metrics".to_owned()).spawn(read_all));
    reader
});

/// Batches of a report, and what those of rank 0 add to the run of its job, each with the number of its first row.
type Read = (Vec<Batch>, Vec<(u64, Vec<JobRow>)>);

/// Takes a node's metrics in. Not in the OpenAPI document: its contract is `execution::protocol::metrics`.
pub(super) async fn take(
    State(app): State<Arc<App>>,
    Extension(named): Extension<Reporting>,
    body: Bytes,
) -> Result<Json<MetricAnswer>, ApiError> {
    let (reply, read) = oneshot::channel();
    // Fails only if the thread is gone, and then nothing is read.
    let _ = READER.send(Box::new(move || drop(reply.send(read_report(named, &body)))));
    let (batches, runs) = read.await.map_err(|_| ApiError::internal("the reading of metrics panicked"))??;
    let stored = store(&app, batches).await?;
    let job_runs = app.tracking.job_runs.clone();
    let Reporting { job, attempt, .. } = named;
    let logged = move || runs.into_iter().for_each(|(first, rows)| job_runs.log((job, attempt), first, rows));
    tokio::task::spawn_blocking(logged).await.map_err(|_| ApiError::internal("a job's run panicked"))?;
    Ok(Json(MetricAnswer { version: METRICS_VERSION, stored }))
}

fn read_report(named: Reporting, body: &[u8]) -> Result<Read, ApiError> {
    let report: MetricReport =
        serde_json::from_slice(body).map_err(|error| ApiError::malformed(format!("no report of metrics: {error}")))?;
    let (job, attempt, epoch) = (JobId(report.job), AttemptNumber(report.attempt), Epoch(report.epoch));
    if named != (Reporting { job, attempt, epoch }) {
        return Err(ApiError::unauthorized());
    }
    if report.version != METRICS_VERSION {
        return Err(ApiError::protocol_version(report.version, METRICS_VERSION));
    }
    if report.batches.len() > BATCHES_PER_REPORT_MAX {
        return Err(ApiError::malformed(format!("a report has at most {BATCHES_PER_REPORT_MAX} batches")));
    }
    let node = NodeName::new(&report.node).map_err(|error| ApiError::malformed(error.to_string()))?;
    let batches = report.batches.into_iter().map(|batch| batch_of((job, attempt), &node, batch));
    let batches: Vec<Batch> = batches.collect::<Result<_, _>>()?;
    let runs = batches.iter().filter(|batch| batch.source.rank == Some(0)).map(rows_of_run).collect();
    Ok((batches, runs))
}

/// Returns what a batch of rank 0 adds to the run of its job, and the number of its first row.
fn rows_of_run(batch: &Batch) -> (u64, Vec<JobRow>) {
    let name = |(index, value): &(u32, f64)| Some((batch.names.get(usize::try_from(*index).ok()?)?.clone(), *value));
    let row = |row: &Row| JobRow {
        at: row.at,
        step: row.step.map(|step| step.0),
        values: row.values.iter().filter_map(name).collect(),
    };
    (batch.first, batch.rows.iter().map(row).collect())
}

/// Stores batches, and returns for each the number of its source's first row that isn't stored.
pub(super) async fn store(app: &App, batches: Vec<Batch>) -> Result<Vec<u64>, ApiError> {
    // A copy for another store, which gets only what this one has taken.
    let copies = if app.is_exporting_samples() { batches.clone() } else { Vec::new() };
    let mut answers = Vec::new();
    for batch in batches {
        let (reply, answer) = oneshot::channel();
        // The receiver is gone if the request was given up.
        app.series.take(batch, move |outcome| drop(reply.send(outcome)));
        answers.push(answer);
    }
    let mut stored = Vec::new();
    for answer in answers {
        let outcome = answer.await.map_err(|_| ApiError::internal("the series store dropped a batch"))?;
        stored.push(outcome.map_err(ApiError::from)?.next);
    }
    app.exports.iter().for_each(|export| export.offer(&copies));
    Ok(stored)
}

/// Returns a row as the series store takes it.
pub(super) fn row_of(row: MetricRow) -> Row {
    Row {
        at: Timestamp::from_unix_nanos(row.at),
        step: row.step.map(Step),
        values: row.values.into_iter().map(|(name, Measured(value))| (name, value)).collect(),
    }
}

fn batch_of((job, attempt): (JobId, AttemptNumber), node: &NodeName, batch: MetricBatch) -> Result<Batch, ApiError> {
    if batch.rank > RANK_MAX {
        return Err(ApiError::malformed(format!("there is no rank {}", batch.rank)));
    }
    let source = Source {
        scope: Scope::Job(job),
        attempt: Some(attempt),
        node: Some(node.clone()),
        rank: Some(batch.rank),
        device: None,
    };
    Ok(Batch { source, first: batch.first, names: batch.names, rows: batch.rows.into_iter().map(row_of).collect() })
}

/// What a job's ranks measured: every metric with its last, smallest, largest and mean value.
#[utoipa::path(get, path = "/api/v1/jobs/{job}/metrics", params(("job" = String, Path, description = "its id")),
    tag = "metrics", responses((status = 200, body = api::MetricList), (status = 404, body = ErrorBody),
    (status = 410, body = ErrorBody)))]
pub(super) async fn list(
    State(app): State<Arc<App>>,
    Segment(job): Segment,
) -> Result<Json<api::MetricList>, ApiError> {
    let id = existing(&app, &job).await?;
    let found = ask(&app, series::Query::all(Scope::Job(id), 1, CURVES_MAX)).await?;
    let (left_out, damaged_files) = (found.left_out, found.damaged_files);
    let metrics = found.curves.into_iter().filter_map(metric_of).collect();
    Ok(Json(api::MetricList { job: id.to_string(), metrics, left_out, damaged_files }))
}

/// Returns the last value of each metric that a job's ranks reported in its newest attempt, of its lowest rank. Empty
/// if the series store can't answer, which its own paths say.
pub(super) async fn last_values(app: &App, job: JobId) -> Vec<api::LastValue> {
    let Ok(found) = ask(app, series::Query::all(Scope::Job(job), 1, CURVES_MAX)).await else { return Vec::new() };
    let newest = found.curves.iter().filter_map(|curve| curve.series.source.attempt).max();
    let is_newest = |curve: &&Curve| curve.series.source.attempt == newest && curve.series.source.device.is_none();
    let mut last: BTreeMap<String, api::LastValue> = BTreeMap::new();
    for curve in found.curves.iter().filter(is_newest) {
        let (Some(rank), Some(bucket)) = (curve.series.source.rank, curve.buckets.first()) else { continue };
        let metric = curve.series.metric.clone();
        if last.get(&metric).is_some_and(|known| known.rank <= rank) {
            continue;
        }
        let step = bucket.steps.map(|(_, last)| last.0);
        let at = api::Time(bucket.last_at());
        last.insert(metric.clone(), api::LastValue { metric, rank, last: Measured(bucket.last), step, at });
    }
    last.into_values().take(LAST_VALUES_MAX).collect()
}

/// What a node's agent reads: every metric with its last, smallest, largest and mean value.
#[utoipa::path(get, path = "/api/v1/nodes/{node}/metrics", params(("node" = String, Path, description = "its name")),
    tag = "metrics", responses((status = 200, body = api::NodeMetricList), (status = 404, body = ErrorBody)))]
pub(super) async fn list_of_node(
    State(app): State<Arc<App>>,
    Segment(node): Segment,
) -> Result<Json<api::NodeMetricList>, ApiError> {
    let name = known_node(&app, &node).await?;
    let found = ask(&app, series::Query::all(Scope::Node(name), 1, CURVES_MAX)).await?;
    let (left_out, damaged_files) = (found.left_out, found.damaged_files);
    let metrics = found.curves.into_iter().filter_map(metric_of).collect();
    Ok(Json(api::NodeMetricList { node, metrics, left_out, damaged_files }))
}

/// Curves of a node's metrics.
#[utoipa::path(get, path = "/api/v1/nodes/{node}/metrics/curves",
    params(("node" = String, Path, description = "its name"), NodeCurvesQuery), tag = "metrics",
    responses((status = 200, body = api::NodeMetricCurves), (status = 404, body = ErrorBody)))]
pub(super) async fn curves_of_node(
    State(app): State<Arc<App>>,
    Segment(node): Segment,
    query: Result<Query<NodeCurvesQuery>, QueryRejection>,
) -> Result<Json<api::NodeMetricCurves>, ApiError> {
    let Query(NodeCurvesQuery { metric, device, from, to, points }) = query?;
    let query = CurvesQuery { metric, device, from, to, points, ..CurvesQuery::default() };
    let name = known_node(&app, &node).await?;
    let found = ask(&app, question(Scope::Node(name), query)?).await?;
    let (left_out, damaged_files) = (found.left_out, found.damaged_files);
    let curves = found.curves.into_iter().map(curve_of).collect();
    Ok(Json(api::NodeMetricCurves { node, curves, left_out, damaged_files }))
}

/// Returns the name of a node that there is.
pub(super) async fn known_node(app: &App, node: &str) -> Result<NodeName, ApiError> {
    let name = NodeName::new(node).map_err(|_| ApiError::no_node(node))?;
    let nodes = app.handle.nodes().await?.nodes;
    if nodes.iter().any(|known| known.name == node) { Ok(name) } else { Err(ApiError::no_node(node)) }
}

/// Returns a metric with all its values as one, which the query asked for.
pub(super) fn metric_of(curve: Curve) -> Option<api::Metric> {
    let values = curve.buckets.first().map(values_of)?;
    Some(api::Metric {
        source: source_of(&curve.series.source),
        metric: curve.series.metric,
        values,
        damaged: curve.unreadable,
    })
}

fn curve_of(curve: Curve) -> api::MetricCurve {
    api::MetricCurve {
        source: source_of(&curve.series.source),
        metric: curve.series.metric,
        resolution: curve.resolution.name().to_owned(),
        points: curve.buckets.iter().map(values_of).collect(),
        damaged: curve.unreadable,
    }
}

/// Curves of a job's metrics.
#[utoipa::path(get, path = "/api/v1/jobs/{job}/metrics/curves",
    params(("job" = String, Path, description = "its id"), CurvesQuery), tag = "metrics",
    responses((status = 200, body = api::MetricCurves), (status = 404, body = ErrorBody), (status = 410, body = ErrorBody)))]
pub(super) async fn curves(
    State(app): State<Arc<App>>,
    Segment(job): Segment,
    query: Result<Query<CurvesQuery>, QueryRejection>,
) -> Result<Json<api::MetricCurves>, ApiError> {
    let Query(query) = query?;
    let id = existing(&app, &job).await?;
    let found = ask(&app, question(Scope::Job(id), query)?).await?;
    let curves: Vec<_> = found.curves.into_iter().map(curve_of).collect();
    let (left_out, damaged_files) = (found.left_out, found.damaged_files);
    Ok(Json(api::MetricCurves { job: id.to_string(), curves, left_out, damaged_files }))
}

fn question(scope: Scope, query: CurvesQuery) -> Result<series::Query, ApiError> {
    let node = query.node.as_deref().map(NodeName::new).transpose();
    let points_max = query.points.unwrap_or(POINTS).clamp(1, POINTS_MAX);
    Ok(series::Query {
        scope,
        metrics: query.metric.into_iter().collect(),
        with_parts: false,
        attempt: query.attempt.map(AttemptNumber),
        node: node.map_err(|error| ApiError::malformed(error.to_string()))?,
        rank: query.rank,
        device: query.device,
        times: (query.from.map(|time| time.0), query.to.map(|time| time.0)),
        steps: (query.from_step.map(Step), query.to_step.map(Step)),
        resolution: None,
        points_max,
        curves_max: (POINTS_OF_ALL_MAX / points_max).clamp(1, CURVES_MAX),
    })
}

/// Returns the id of a job that there is.
async fn existing(app: &Arc<App>, text: &str) -> Result<JobId, ApiError> {
    let id = parse_job(text)?;
    match read(app, move |views| views.job(id)).await? {
        Some(_) => Ok(id),
        None => Err(missing(app, id).await),
    }
}

/// Asks the series store on a blocking thread.
pub(super) async fn ask(app: &App, query: series::Query) -> Result<series::Answer, ApiError> {
    let series = app.series.clone();
    let answer = tokio::task::spawn_blocking(move || series.query(&query)).await;
    Ok(answer.map_err(|_| ApiError::internal("a query of the series store panicked"))??)
}

fn source_of(source: &Source) -> api::MetricSource {
    api::MetricSource {
        attempt: source.attempt.map(|attempt| attempt.0),
        node: source.node.as_ref().map(|node| node.as_str().to_owned()),
        rank: source.rank,
        device: source.device,
    }
}

fn values_of(bucket: &Bucket) -> api::MetricValues {
    let has_finite = bucket.count > 0;
    api::MetricValues {
        at: api::Time(bucket.at()),
        last_at: api::Time(bucket.last_at()),
        first_step: bucket.steps.map(|(first, _)| first.0),
        last_step: bucket.steps.map(|(_, last)| last.0),
        count: bucket.count,
        not_finite: bucket.not_finite,
        last: Measured(bucket.last),
        min: has_finite.then_some(bucket.min),
        max: has_finite.then_some(bucket.max),
        mean: bucket.mean().filter(|mean| mean.is_finite()),
    }
}
