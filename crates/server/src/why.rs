//! Why a job is slower than it could be: from the series store through accounting's attribution to the API.

use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, State};
use gangline_accounting::attribution::{self, Kind, Verdict};
use gangline_api as api;
use gangline_base::{AttemptNumber, Money, Timestamp};
use serde::Deserialize;
use utoipa::IntoParams;

use super::error::ApiError;
use super::jobs::{missing, parse_job};
use super::observing::{Window, devices_of};
use super::segment::Segment;
use super::{App, ErrorBody, read};

/// Minutes that are looked at, and the most.
const MINUTES: u32 = 10;
const MINUTES_MAX: u32 = 24 * 60;
/// Stretches into which they are divided, to say since when.
const STRETCHES: u32 = 10;
/// Points of each curve: enough for each stretch to have some of its own.
const POINTS: usize = 200;

/// What to look at.
#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(super) struct WhyQuery {
    /// Look at the last so many minutes of its last attempt; 10 unless it is given, 1440 at most.
    minutes: Option<u32>,
}

/// Why a job is slower than it could be: what costs time, on which ranks, since when, and how much.
#[utoipa::path(get, path = "/api/v1/jobs/{job}/why", params(("job" = String, Path, description = "its id"), WhyQuery),
    tag = "jobs", responses((status = 200, body = api::Why), (status = 404, body = ErrorBody),
    (status = 410, body = ErrorBody)))]
pub(super) async fn show(
    State(app): State<Arc<App>>,
    Segment(job): Segment,
    query: Result<Query<WhyQuery>, QueryRejection>,
) -> Result<Json<api::Why>, ApiError> {
    let Query(query) = query?;
    let id = parse_job(&job)?;
    let Some(job) = read(&app, move |views| views.job(id)).await? else { return Err(missing(&app, id).await) };
    let now = (app.clock)();
    let Some(attempt) = job.attempts.last() else {
        let summary = format!("{id} has not run yet: {}", job.because);
        return Ok(Json(nothing(&job.id, None, (now, now), summary)));
    };
    let to = attempt.ended_at.map_or(now, |time| time.0);
    let looked_at = Duration::from_secs(60 * u64::from(query.minutes.unwrap_or(MINUTES).clamp(1, MINUTES_MAX)));
    let earliest = to - looked_at;
    let from = earliest.max(attempt.placed_at.0);
    let window = Window { job: id, attempt: AttemptNumber(attempt.number), from, to };
    let price = price_of(&app, attempt).await?;
    let accelerators = attempt.shares.iter().map(|share| share.devices.len()).sum();
    let (series, devices) = (app.series.clone(), devices_of(&job, attempt));
    let judge = move || {
        let curves = window.curves(&series, &[], POINTS)?;
        Ok::<_, ApiError>(attribution::why(&window.observed(&curves, &devices, STRETCHES), price))
    };
    let judged = tokio::task::spawn_blocking(judge).await;
    let verdict = judged.map_err(|_| ApiError::internal("a query of the series store panicked"))??;
    let measured = verdict.as_ref().and_then(|verdict| verdict.tokens_per_second);
    let plan = job.plan.map(|plan| plan.with_rate(measured, accelerators));
    let fault = last_fault(&job.attempts, earliest);
    let Some(verdict) = verdict else {
        let summary = "its ranks reported too few steps to say anything: report them with gangline.report(step, ...), \
                       and phases with gangline.phase(\"data\")";
        let summary = fault.as_ref().map_or_else(|| summary.to_owned(), |last| sentence(&last.fault));
        let nothing = nothing(&job.id, Some(attempt.number), (from, to), summary);
        return Ok(Json(api::Why { plan, fault, ..nothing }));
    };
    let told = told(&job.id, attempt.number, (from, to), verdict);
    let is_over = attempt.fault.is_some();
    let summary = fault.as_ref().filter(|_| is_over).map_or_else(|| told.summary.clone(), |last| sentence(&last.fault));
    Ok(Json(api::Why { plan, fault, summary, ..told }))
}

/// Returns the last fault of a job, if its last attempt ended by it, or if it ended the attempt before no earlier than `from`.
fn last_fault(attempts: &[api::Attempt], from: Timestamp) -> Option<api::LastFault> {
    let (last, before) = attempts.split_last()?;
    let is_recent = |fault: &&api::Fault| fault.noticed_at.0 >= from;
    let (number, fault) = match (&last.fault, before.last()) {
        (Some(fault), _) => (last.number, fault),
        (None, Some(one)) => (one.number, one.fault.as_ref().filter(is_recent)?),
        (None, None) => return None,
    };
    let kind = |fault: &api::Fault| match &fault.diagnosis {
        Some(diagnosis) => (diagnosis.category.clone(), diagnosis.subcategory.clone()),
        None => (String::new(), fault.cause.clone()),
    };
    let ended_alike = |attempt: &&api::Attempt| attempt.fault.as_ref().is_some_and(|other| kind(other) == kind(fault));
    let up_to_it = attempts.iter().rev().skip_while(|attempt| attempt.number > number);
    let in_a_row = u32::try_from(up_to_it.take_while(ended_alike).count()).unwrap_or(u32::MAX);
    Some(api::LastFault { attempt: number, in_a_row, fault: fault.clone() })
}

/// Returns a fault in a sentence.
pub(crate) fn sentence(fault: &api::Fault) -> String {
    let place = fault.rank.map_or_else(|| fault.node.clone(), |rank| format!("rank {rank} on {}", fault.node));
    match &fault.diagnosis {
        Some(diagnosis) => format!("{}; {place} {}", diagnosis.summary, fault.cause),
        None => format!("{place} {}", fault.cause),
    }
}

/// Returns the price of all devices of an attempt for an hour, if every node has one.
async fn price_of(app: &App, attempt: &api::Attempt) -> Result<Option<Money>, ApiError> {
    let nodes = app.handle.nodes().await?.nodes;
    let of_share = |share: &api::Share| {
        let node = nodes.iter().find(|node| node.name == share.node)?;
        let devices = u32::try_from(share.devices.len()).ok()?;
        Some(Money::from_nano_dollars(node.price_nano_dollars_per_hour?).times(devices))
    };
    Ok(attempt.shares.iter().map(of_share).try_fold(Money::ZERO, |sum, price| Some(sum + price?)))
}

fn nothing(job: &str, attempt: Option<u32>, (from, to): (Timestamp, Timestamp), summary: String) -> api::Why {
    api::Why {
        job: job.to_owned(),
        attempt,
        from: api::Time(from),
        to: api::Time(to),
        summary,
        ranks: 0,
        steps: 0,
        step_seconds: None,
        phases: Vec::new(),
        plan: None,
        fault: None,
        causes: Vec::new(),
    }
}

fn told(job: &str, attempt: u32, times: (Timestamp, Timestamp), verdict: Verdict) -> api::Why {
    let summary = summary(&verdict);
    let cause = |cause: attribution::Cause| api::Cause {
        kind: cause.kind.name().to_owned(),
        share: cause.share,
        evidence: cause.evidence,
        ranks: cause.ranks,
        more_ranks: u64::try_from(cause.more_ranks).unwrap_or(u64::MAX),
        nodes: cause.nodes,
        since: api::Time(cause.since),
        cost_nano_dollars_per_hour: cause.cost_per_hour.map(Money::nano_dollars),
        cost_per_hour: cause.cost_per_hour.map(|cost| cost.to_string()),
        hint: hint(cause.kind).to_owned(),
    };
    api::Why {
        ranks: u64::try_from(verdict.ranks).unwrap_or(u64::MAX),
        steps: verdict.steps,
        step_seconds: Some(verdict.step.as_secs_f64()),
        phases: verdict.phases.iter().map(|phase| phase.name().to_owned()).collect(),
        causes: verdict.causes.into_iter().map(cause).collect(),
        ..nothing(job, Some(attempt), times, summary)
    }
}

fn summary(verdict: &Verdict) -> String {
    let share = |cause: &&attribution::Cause| cause.share.unwrap_or_default();
    let worst = verdict.causes.iter().max_by(|one, other| share(one).total_cmp(&share(other)));
    match worst {
        Some(worst) => match worst.share {
            Some(share) => format!("{}: {:.0} % of the time; {}", worst.kind.name(), share * 100.0, worst.evidence),
            None => format!("{}: {}", worst.kind.name(), worst.evidence),
        },
        None if verdict.phases.is_empty() => {
            "its ranks report steps but no phases, so where their time goes can't be told: gangline.phase(\"data\")"
                .to_owned()
        }
        None => "nothing that is measured costs a noticeable part of its time".to_owned(),
    }
}

fn hint(kind: Kind) -> &'static str {
    match kind {
        Kind::Data => {
            "more workers or more prefetching in the data loader; if the CPUs idle, the storage is slow: gangline data bench"
        }
        Kind::Checkpoint => {
            "save less often, or in the background: gangline checkpoint bench shows what the disk can do"
        }
        Kind::Communication => {
            "overlap gradients' all-reduce with the backward pass, or use a layout with less communication: gangline plan"
        }
        Kind::Straggler => "gangline doctor on its node; recovery: {evict_stragglers: true} leaves such nodes",
        Kind::Collection => {
            "gc.freeze() after the model is built, and gc.collect() every some hundred steps instead of by itself"
        }
        Kind::Memory => {
            "PYTORCH_ALLOC_CONF=expandable_segments:True, a smaller batch, or activation checkpointing: gangline plan"
        }
        Kind::Clocks => "cooling, power limit and other load of that machine: gangline doctor",
        Kind::Contention => "what else runs on that node, and how many cores the job asks for",
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) fn at(seconds: u64) -> Timestamp {
        Timestamp::EPOCH + Duration::from_secs(1_800_000_000 + seconds)
    }

    /// An attempt, with the time and the cause of the fault that ended it if one did.
    pub(crate) fn attempt(number: u32, fault: Option<(u64, &str)>) -> api::Attempt {
        let fault = fault.map(|(noticed_at, cause)| api::Fault {
            node: "n1".to_owned(),
            rank: Some(2),
            cause: cause.to_owned(),
            exit_code: None,
            noticed_at: api::Time(at(noticed_at)),
            last_lines: Vec::new(),
            diagnosis: None,
        });
        api::Attempt {
            number,
            placed_at: api::Time(at(0)),
            ended_at: fault.as_ref().map(|fault| fault.noticed_at),
            allocation: None,
            placed_because: String::new(),
            ended_because: None,
            fault,
            shares: Vec::new(),
            silence: None,
            stragglers: Vec::new(),
        }
    }

    #[test]
    fn the_last_fault_is_told_while_it_is_news() {
        let (one, other) = ("exited with code 1", "was killed by signal 9");
        let ended = |number, seconds, cause| attempt(number, Some((seconds, cause)));
        let told = |attempts: &[api::Attempt], since: u64| {
            last_fault(attempts, at(since)).map(|last| (last.attempt, last.in_a_row, sentence(&last.fault)))
        };
        let of = |number, in_a_row, cause: &str| Some((number, in_a_row, format!("rank 2 on n1 {cause}")));
        let failed = [ended(1, 10, other), ended(2, 20, one), ended(3, 30, one)];
        assert_eq!(told(&failed, 1_000), of(3, 2, one), "it ended the last attempt, however long ago");
        let goes_on = [failed.as_slice(), &[attempt(4, None)]].concat();
        assert_eq!(told(&goes_on, 25), of(3, 2, one));
        assert_eq!(told(&goes_on, 31), None, "it goes on for long enough");
        assert_eq!(told(&[attempt(1, None), attempt(2, None)], 0), None);
    }
}
