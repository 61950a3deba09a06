//! How much of a job's time was productive, by accounting's definitions.

use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::extract::State;
use gangline_accounting::goodput::Goodput;
use gangline_api as api;
use gangline_base::{Bucket, Buckets, GpuSeconds, Timestamp};

use super::error::ApiError;
use super::jobs::{missing, parse_job};
use super::segment::Segment;
use super::{App, ErrorBody, read};

/// How much of a job's time was productive: runtime goodput, and ETTR with the time in the queue.
#[utoipa::path(get, path = "/api/v1/jobs/{job}/goodput", params(("job" = String, Path, description = "its id")),
    tag = "jobs", responses((status = 200, body = api::JobGoodput), (status = 404, body = ErrorBody),
    (status = 410, body = ErrorBody)))]
pub(super) async fn show(
    State(app): State<Arc<App>>,
    Segment(job): Segment,
) -> Result<Json<api::JobGoodput>, ApiError> {
    let id = parse_job(&job)?;
    let Some(job) = read(&app, move |views| views.job(id)).await? else { return Err(missing(&app, id).await) };
    Ok(Json(of(&job, (app.clock)())))
}

fn of(job: &api::Job, now: Timestamp) -> api::JobGoodput {
    let until = job.ended_at.map_or(now, |time| time.0);
    let lines = lines(job);
    let mut buckets = Buckets::default();
    for (bucket, line) in Bucket::ALL.into_iter().zip(&lines) {
        buckets[bucket] = GpuSeconds::from_nanos(u128::from(line.gpu_nanoseconds));
    }
    let holds: Vec<(Timestamp, Timestamp)> = job.attempts.iter().filter_map(|attempt| held(attempt, now)).collect();
    let goodput = Goodput::of(&buckets, &holds, job.submitted_at.0, until);
    let over = job.attempts.iter().filter(|attempt| attempt.ended_at.is_some()).count();
    api::JobGoodput {
        job: job.id.clone(),
        wall_seconds: goodput.wall.as_secs_f64(),
        held_seconds: goodput.held.as_secs_f64(),
        recovering_seconds: goodput.recovering.as_secs_f64(),
        runtime_goodput: goodput.runtime,
        ettr: goodput.ettr,
        disruptions: u32::try_from(over.saturating_sub(usize::from(job.ended_at.is_some()))).unwrap_or(u32::MAX),
        step: job.progress.step,
        buckets: lines,
        is_estimated: job.accrued.is_some(),
    }
}

/// Returns for how long an attempt held devices, if it ever did.
fn held(attempt: &api::Attempt, now: Timestamp) -> Option<(Timestamp, Timestamp)> {
    let ended = attempt.ended_at.map_or(now, |time| time.0);
    match &attempt.allocation {
        None => Some((attempt.placed_at.0, ended)),
        Some(allocation) => Some((allocation.from?.0, allocation.to.map_or(ended, |time| time.0))),
    }
}

/// Returns every bucket, in their order, of what is booked and of what a running attempt has come to.
fn lines(job: &api::Job) -> Vec<api::BucketLine> {
    let parts: Vec<&api::BucketLine> =
        [Some(&job.usage), job.accrued.as_ref()].into_iter().flatten().flat_map(|usage| &usage.buckets).collect();
    let sum = |bucket: Bucket| {
        let of = parts.iter().filter(|line| line.bucket == bucket.name());
        let (nanos, cost) = of.fold((0_u64, 0_i64), |(nanos, cost), line| {
            (nanos.saturating_add(line.gpu_nanoseconds), cost.saturating_add(line.cost_nano_dollars))
        });
        api::BucketLine {
            bucket: bucket.name().to_owned(),
            gpu_seconds: Duration::from_nanos(nanos).as_secs_f64(),
            gpu_nanoseconds: nanos,
            cost_nano_dollars: cost,
        }
    };
    Bucket::ALL.into_iter().map(sum).collect()
}
