//! The loss curves of a job for its card on the page, from the series store.

use std::sync::Arc;

use gangline_base::{AttemptNumber, JobId, Step};
use gangline_telemetry::series::{Bucket, Curve, Query, Scope};

use super::App;

/// The metric.
const LOSS: &str = "loss";
/// The most points of an attempt's curve.
const POINTS_MAX: usize = 200;
/// The most curves that are read: of a job with more attempts the first are shown.
const CURVES_MAX: usize = 64;

/// The loss of one attempt by its steps.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct LossCurve {
    /// The attempt.
    pub(crate) attempt: u32,
    /// Steps with their loss, in time; a stretch of steps has its last.
    pub(crate) points: Vec<(u64, f64)>,
}

/// Returns the loss of each attempt, of the first rank that reported one; nothing if the store can't be read, since the page
/// shows more than curves.
pub(super) async fn curves(app: &Arc<App>, job: JobId) -> Vec<LossCurve> {
    let series = app.series.clone();
    let read = move |rank| {
        let query =
            Query { metrics: vec![LOSS.to_owned()], rank, ..Query::all(Scope::Job(job), POINTS_MAX, CURVES_MAX) };
        series.query(&query).map(|answer| by_attempt(&answer.curves))
    };
    // The first rank mostly has it; with pipelines the last stage does.
    let read = move || match read(Some(0)) {
        Ok(curves) if curves.is_empty() => read(None),
        found => found,
    };
    match tokio::task::spawn_blocking(read).await {
        Ok(Ok(curves)) => curves,
        Ok(Err(error)) => {
            tracing::warn!(%job, %error, "the loss of a job isn't drawn");
            Vec::new()
        }
        Err(_) => Vec::new(),
    }
}

/// Returns the first curve of each attempt.
fn by_attempt(curves: &[Curve]) -> Vec<LossCurve> {
    let mut found: Vec<LossCurve> = Vec::new();
    for curve in curves {
        let attempt = curve.series.source.attempt.map_or(0, |AttemptNumber(number)| number);
        if found.iter().all(|other| other.attempt != attempt) {
            found.push(LossCurve { attempt, points: curve.buckets.iter().filter_map(point).collect() });
        }
    }
    found
}

fn point(bucket: &Bucket) -> Option<(u64, f64)> {
    let (_, Step(step)) = bucket.steps?;
    Some((step, bucket.last)).filter(|(_, loss)| loss.is_finite())
}
