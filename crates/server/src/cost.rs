//! What training cost, from the views of the ledger.

use std::sync::Arc;

use axum::Json;
use axum::extract::rejection::{JsonRejection, QueryRejection};
use axum::extract::{Query, State};
use gangline_accounting::bill::Period;
use gangline_api as api;
use gangline_base::{JobSpec, Money, Timestamp};
use gangline_control::views::By;
use gangline_orchestration::Period as Calendar;
use gangline_specs::jobfile::Submission;
use serde::Deserialize;
use utoipa::IntoParams;

use super::error::ApiError;
use super::jobs::{missing, parse_job, read_aside};
use super::once::Caller;
use super::segment::Segment;
use super::{App, ErrorBody, read};

/// Nanoseconds of a day.
const DAY: u64 = 24 * 3_600 * 1_000_000_000;
/// The days of a period whose start isn't given.
const DAYS: u64 = 30;
/// The longest period of an export, in days: more rows are asked for in several requests.
const EXPORT_DAYS_MAX: u64 = 31;

/// A period.
#[derive(Clone, Copy, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(super) struct PeriodQuery {
    /// Its start; 30 days before its end unless it is given.
    from: Option<api::Time>,
    /// Its end, which doesn't belong to it; now unless it is given.
    to: Option<api::Time>,
}

/// A period, and how its bill is grouped.
#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(super) struct ReportQuery {
    /// Its start; 30 days before its end unless it is given.
    from: Option<api::Time>,
    /// Its end, which doesn't belong to it; now unless it is given.
    to: Option<api::Time>,
    /// queue, user, job, name, node or accelerator; queue unless it is given.
    by: Option<String>,
    /// own (the default): idle devices are a group of their own; shared: the groups share them in proportion to the device time
    /// that their jobs held.
    idle: Option<String>,
}

impl PeriodQuery {
    fn period(self, now: Timestamp) -> Result<Period, ApiError> {
        let to = self.to.map_or(now, |to| to.0);
        let days_before = Timestamp::from_unix_nanos(to.unix_nanos().saturating_sub(DAYS * DAY));
        let from = self.from.map_or(days_before, |from| from.0);
        if from >= to {
            let message = format!("the period ends at {}, and starts at {}", api::Time(to), api::Time(from));
            return Err(ApiError::malformed(format!("{message}: it has to start before it ends")));
        }
        Ok(Period { from, to })
    }
}

/// The bill of a period: what jobs held, and what nobody held, in groups.
#[utoipa::path(get, path = "/api/v1/cost/report", params(ReportQuery), tag = "cost",
    responses((status = 200, body = api::CostReport)))]
pub(super) async fn report(
    State(app): State<Arc<App>>,
    query: Result<Query<ReportQuery>, QueryRejection>,
) -> Result<Json<api::CostReport>, ApiError> {
    let Query(ReportQuery { from, to, by, idle }) = query?;
    let now = (app.clock)();
    let period = PeriodQuery { from, to }.period(now)?;
    let by = grouping(by.as_deref())?;
    let is_shared = match idle.as_deref() {
        None | Some("own") => false,
        Some("shared") => true,
        Some(other) => return Err(ApiError::malformed(format!("`idle` is \"{other}\": write own or shared"))),
    };
    if is_shared && matches!(by, By::Node | By::Accelerator) {
        let message = format!(
            "idle devices of a {by} are in its own group: `idle=shared` divides those of no queue, user or job"
        );
        return Err(ApiError::malformed(message));
    }
    read(&app, move |views| views.cost_report(period, by, is_shared, now)).await.map(Json)
}

/// Reads what groups are; queues unless it is said.
fn grouping(by: Option<&str>) -> Result<By, ApiError> {
    let by = by.unwrap_or("queue");
    By::ALL.into_iter().find(|known| known.name() == by).ok_or_else(|| {
        let known: Vec<&str> = By::ALL.into_iter().map(By::name).collect();
        ApiError::malformed(format!("`by` is \"{by}\": write one of {}", known.join(", ")))
    })
}

/// What a job cost: by attempt and line, for each step and token.
#[utoipa::path(get, path = "/api/v1/cost/jobs/{job}", params(("job" = String, Path, description = "its id")), tag = "cost",
    responses((status = 200, body = api::JobCost), (status = 404, body = ErrorBody), (status = 410, body = ErrorBody)))]
pub(super) async fn of_job(State(app): State<Arc<App>>, Segment(job): Segment) -> Result<Json<api::JobCost>, ApiError> {
    let id = parse_job(&job)?;
    let now = (app.clock)();
    match read(&app, move |views| views.job_cost(id, now)).await? {
        Some(cost) => Ok(Json(cost)),
        None => Err(missing(&app, id).await),
    }
}

/// The device time of a period in rows, for exports.
#[utoipa::path(get, path = "/api/v1/cost/usage", params(PeriodQuery), tag = "cost",
    responses((status = 200, body = api::CostUsage)))]
pub(super) async fn usage(
    State(app): State<Arc<App>>,
    query: Result<Query<PeriodQuery>, QueryRejection>,
) -> Result<Json<api::CostUsage>, ApiError> {
    let Query(query) = query?;
    let now = (app.clock)();
    let period = query.period(now)?;
    if period.to.unix_nanos() - period.from.unix_nanos() > EXPORT_DAYS_MAX * DAY {
        let message = format!("a request for rows covers {EXPORT_DAYS_MAX} days at most: ask for several periods");
        return Err(ApiError::malformed(message));
    }
    read(&app, move |views| views.cost_usage(period, now)).await.map(Json)
}

/// How many devices jobs held in each hour of a period.
#[utoipa::path(get, path = "/api/v1/cost/demand", params(PeriodQuery), tag = "cost",
    responses((status = 200, body = api::CostDemand)))]
pub(super) async fn demand(
    State(app): State<Arc<App>>,
    query: Result<Query<PeriodQuery>, QueryRejection>,
) -> Result<Json<api::CostDemand>, ApiError> {
    let Query(query) = query?;
    let now = (app.clock)();
    let period = query.period(now)?;
    read(&app, move |views| views.cost_demand(period, now)).await.map(Json)
}

/// How far the configuration's budgets are spent.
#[utoipa::path(get, path = "/api/v1/cost/budgets", tag = "cost", responses((status = 200, body = api::BudgetList)))]
pub(super) async fn budgets(State(app): State<Arc<App>>) -> Result<Json<api::BudgetList>, ApiError> {
    let (now, budgets) = ((app.clock)(), app.budgets.now());
    let standings = read(&app, move |views| views.budgets(&budgets, now)).await?;
    Ok(Json(api::BudgetList { budgets: standings }))
}

/// The period of a forecast, and how it is grouped.
#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(super) struct ForecastQuery {
    /// The period's start; that of the present month, in UTC, unless it is given.
    from: Option<api::Time>,
    /// Its end; that of the present month unless it is given.
    until: Option<api::Time>,
    /// queue, user, job, name, node or accelerator; queue unless it is given.
    by: Option<String>,
}

/// What a period will have cost at its end.
#[utoipa::path(get, path = "/api/v1/cost/forecast", params(ForecastQuery), tag = "cost",
    responses((status = 200, body = api::CostForecast)))]
pub(super) async fn forecast(
    State(app): State<Arc<App>>,
    query: Result<Query<ForecastQuery>, QueryRejection>,
) -> Result<Json<api::CostForecast>, ApiError> {
    let Query(ForecastQuery { from, until, by }) = query?;
    let now = (app.clock)();
    let (first, next) = Calendar::Month.around(now);
    let period = Period { from: from.map_or(first, |from| from.0), to: until.map_or(next, |until| until.0) };
    if period.from > now || period.to <= now {
        let message =
            format!("a forecast is from a time that has passed to one that is to come; now it is {}", api::Time(now));
        return Err(ApiError::malformed(message));
    }
    let by = grouping(by.as_deref())?;
    read(&app, move |views| views.cost_forecast(period, by, now)).await.map(Json)
}

/// Says what a job file may cost. Nothing is submitted.
#[utoipa::path(post, path = "/api/v1/cost/estimate", request_body = api::SubmitRequest, tag = "cost",
    responses((status = 200, body = api::CostEstimate), (status = 400, body = ErrorBody)))]
pub(super) async fn estimate(
    State(app): State<Arc<App>>,
    caller: Caller,
    request: Result<Json<api::SubmitRequest>, JsonRejection>,
) -> Result<Json<api::CostEstimate>, ApiError> {
    let Json(request) = request?;
    let request = api::SubmitRequest { dry_run: true, ..request };
    let (spec, jobs) = match read_aside(&app, &caller.user, request).await? {
        Submission::Job(spec) => (*spec, 1),
        Submission::Sweep(sweep) => {
            (JobSpec::clone(&sweep.job), u32::try_from(sweep.grid.points()).unwrap_or(u32::MAX))
        }
    };
    let nodes = app.handle.nodes().await?.nodes;
    let of_kind = nodes.iter().filter(|node| node.accelerator == spec.gang.accelerator.0);
    let highest =
        |of: fn(&api::Node) -> Option<i64>| of_kind.clone().filter_map(of).max().map(Money::from_nano_dollars);
    let price = highest(|node| node.price_nano_dollars_per_hour);
    let overhead = highest(|node| node.overhead_nano_dollars_per_hour);
    Ok(Json(estimated(&spec, jobs, (price, overhead))))
}

fn estimated(spec: &JobSpec, jobs: u32, (price, overhead): (Option<Money>, Option<Money>)) -> api::CostEstimate {
    let nodes = spec.elastic.as_ref().map_or(spec.gang.nodes, |elastic| elastic.nodes_max);
    let devices = nodes.get().saturating_mul(spec.gang.accelerators_per_node.get());
    let whole = price.map(|price| price.saturating_add(overhead.unwrap_or(Money::ZERO)));
    let per_hour = whole.map(|price| price.times(devices));
    let at_most = per_hour.zip(spec.time_limit).map(|(price, limit)| price.for_time(limit).times(jobs));
    api::CostEstimate {
        name: spec.name.clone(),
        jobs: u64::from(jobs),
        devices: u64::from(devices),
        accelerator: spec.gang.accelerator.to_string(),
        price_nano_dollars_per_hour: price.map(Money::nano_dollars),
        overhead_nano_dollars_per_hour: overhead.map(Money::nano_dollars),
        nano_dollars_per_hour: per_hour.map(Money::nano_dollars),
        time_limit_seconds: spec.time_limit.map(|limit| limit.as_secs()),
        at_most_nano_dollars: at_most.map(Money::nano_dollars),
        budget_nano_dollars: spec.budget.map(Money::nano_dollars),
    }
}
