//! What training cost: bills of a period and of a job.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::{JobState, Time};

/// The bill of a period: every device-second that the nodes offered, what devices cost beside their price, what was stored, what was
/// asked of object storage, and people's time, in groups, each divided into lines.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct CostReport {
    /// Start of the period.
    pub from: Time,
    /// Its end.
    pub to: Time,
    /// What the groups are: queue, user, job, name, node or accelerator.
    pub by: String,
    /// `own` if idle devices are a group of their own, `shared` if the groups share them in proportion to the device time that
    /// their jobs held.
    pub idle: String,
    /// The groups, the most expensive first.
    pub groups: Vec<CostGroup>,
    /// All groups as one.
    pub total: CostGroup,
    /// Device time that the nodes offered, in seconds with nine decimals. The total's time is this and
    /// `beyond_capacity_seconds`.
    pub capacity_seconds: String,
    /// Device time that jobs held beyond the offered one: before the capacity of nodes was recorded, or by clocks that
    /// disagree.
    pub beyond_capacity_seconds: String,
    /// Since when the capacity of nodes is recorded; before, idle time isn't known.
    pub capacity_since: Option<Time>,
    /// Jobs that still ran at the end of the period, whose part is estimated until their attempts end.
    pub estimated_jobs: u64,
}

/// A part of a bill.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct CostGroup {
    /// Its name; `(idle)` for devices that no job held, `(platform)` for data that all jobs share, `(storage)`, `(requests)` and `(people)` in
    /// reports by node and kind of device.
    #[schema(examples("research"))]
    pub name: String,
    /// Jobs that held devices.
    pub jobs: u64,
    /// Device time.
    pub gpu_seconds: f64,
    /// Stored data over time.
    pub gib_hours: f64,
    /// Requests to object storage.
    pub requests: i64,
    /// Bytes that were read from object storage.
    pub bytes_read: i64,
    /// Energy, where it isn't in the price of devices. Estimated.
    #[serde(default)]
    pub kilowatt_hours: f64,
    /// Time of people who looked after incidents.
    #[serde(default)]
    pub people_hours: f64,
    /// What all of it cost, without what has no price.
    pub cost_nano_dollars: i64,
    /// The same as text; `not priced` where nothing has a price.
    pub cost: String,
    /// Device time without a price, which is not in the cost.
    pub unpriced_gpu_seconds: f64,
    /// Stored data without a price, which is not in the cost either.
    pub unpriced_gib_hours: f64,
    /// Requests without a price.
    pub unpriced_requests: i64,
    /// Read bytes without a price.
    pub unpriced_bytes_read: i64,
    /// Share of the held time in new steps of jobs that haven't failed; none if nothing was held, or where no rank reported
    /// steps.
    pub useful_share: Option<f64>,
    /// Lines with any amount, whose times and costs sum to the group's.
    pub lines: Vec<CostLine>,
}

/// A line of a bill.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct CostLine {
    /// compute, communication, unreported, data_stall, checkpoint_stall, straggler_wait, restart, lost_work, idle_while_held,
    /// failed_run, idle_spare, idle_drained, idle_broken, others; network, support, energy; storage_checkpoints, storage_archives,
    /// storage_logs, storage_platform; requests, list_requests, write_requests, transfer, cross_region_transfer; and people.
    #[schema(examples("compute"))]
    pub line: String,
    /// Device time.
    pub gpu_seconds: f64,
    /// The same in seconds with nine decimals, exact.
    pub exact_gpu_seconds: String,
    /// Of a line of stored data: bytes over time.
    pub gib_hours: Option<f64>,
    /// The same in seconds of a byte with nine decimals, exact.
    pub exact_byte_seconds: Option<String>,
    /// Of a line of requests: their number.
    pub requests: Option<i64>,
    /// Of a line of transfer: bytes that were read.
    pub bytes_read: Option<i64>,
    /// Of the lines network and support: the device time that is charged, which is in other lines as well; in seconds with nine
    /// decimals, exact.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub charged_gpu_seconds: Option<String>,
    /// Of the line energy. Estimated.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kilowatt_hours: Option<f64>,
    /// The same in joules with twelve decimals, exact.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exact_joules: Option<String>,
    /// Of the line people: their time, in seconds with nine decimals, exact.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub people_seconds: Option<String>,
    /// Its cost, in nano-dollars, without what has no price.
    pub cost_nano_dollars: i64,
    /// Device time without a price.
    pub unpriced_gpu_seconds: f64,
    /// Of a line of stored data: what has no price.
    pub unpriced_gib_hours: Option<f64>,
    /// Of a line of requests: what has no price.
    pub unpriced_requests: Option<i64>,
    /// Of a line of transfer: what has no price.
    pub unpriced_bytes_read: Option<i64>,
}

/// What a job cost.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct JobCost {
    /// The job.
    pub job: String,
    /// The name in its job file.
    pub name: String,
    /// Who submitted it.
    pub user: String,
    /// The queue that it waited in.
    pub queue: String,
    /// Its state.
    pub state: JobState,
    /// All of it, its checkpoints included; estimated while the job runs.
    pub total: CostGroup,
    /// Each attempt, named by its number.
    pub attempts: Vec<CostGroup>,
    /// Steps that it came to.
    pub steps: u64,
    /// What a step cost, with everything that was lost and with stored checkpoints that have a price.
    pub nano_dollars_per_step: Option<i64>,
    /// What a million tokens cost, with everything that was lost; estimated from the tokens of a step.
    pub nano_dollars_per_million_tokens: Option<i64>,
    /// What an hour of a device in new steps cost, with everything that was lost.
    pub nano_dollars_per_useful_gpu_hour: Option<i64>,
    /// The lines that cost most besides new steps, the most expensive first: what a change could save. What every hour of a device costs
    /// beside its price is not among them.
    pub losses: Vec<CostLine>,
    /// Checkpoints that it saved.
    pub checkpoints: u32,
    /// Their size in bytes, without what retention removed since.
    pub checkpoint_bytes: u64,
    /// What it costs once its last step is made, if the steps that are left cost what those in its record did (estimated); of live
    /// jobs that say how many steps they make.
    pub nano_dollars_at_end: Option<i64>,
    /// The most that it may cost, if its job file says.
    pub budget_nano_dollars: Option<i64>,
}

/// The device time and stored data of a day, in rows that exports are made of.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct CostUsage {
    /// Start of the period.
    pub from: Time,
    /// Its end.
    pub to: Time,
    /// The rows, by node.
    pub rows: Vec<CostUsageRow>,
}

/// The device time of a job, or of nobody, in one line of a node; or what was stored in a folder.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct CostUsageRow {
    /// The job; none for devices that no job held.
    pub job: Option<String>,
    /// The name in its job file.
    pub name: Option<String>,
    /// Who submitted it.
    pub user: Option<String>,
    /// The queue that it waited in.
    pub queue: Option<String>,
    /// The node, the folder, the dataset's address, or the job that people looked after.
    pub node: String,
    /// The kind of its devices, if the node's capacity was recorded.
    pub accelerator: Option<String>,
    /// The line, with its time and cost.
    pub line: CostLine,
    /// The price of a device for an hour, if it has one.
    pub price_nano_dollars_per_hour: Option<i64>,
    /// The price of a unit of anything else, if it has one.
    pub unit_price: Option<CostUnitPrice>,
    /// Whether the job still ran at the end of the period.
    pub is_estimated: bool,
}

/// What a unit costs of anything that isn't device time: of stored data for a month, of all else once.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct CostUnitPrice {
    /// The price, in nano-dollars.
    pub nano_dollars: i64,
    /// GB-Months or GiB-Months, 1000 Requests, GB or GiB, GPU-Hours, Kilowatt-Hours or Hours.
    pub unit: String,
}

/// How many devices jobs held, hour by hour.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct CostDemand {
    /// Start of the first hour.
    pub from: Time,
    /// End of the last hour.
    pub to: Time,
    /// Each kind of device.
    pub kinds: Vec<KindDemand>,
}

/// The demand for one kind of device.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct KindDemand {
    /// The kind.
    pub accelerator: String,
    /// The most devices that the nodes offered at once.
    pub devices: u32,
    /// Mean number of devices held in each hour.
    pub held: Vec<f64>,
}

/// What a job file may cost, before it is submitted. Estimated: by the prices of the nodes of its kind, and its time limit.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct CostEstimate {
    /// The name in the job file.
    pub name: String,
    /// Jobs that it stands for: the points of a sweep, or 1.
    pub jobs: u64,
    /// Devices that one of its jobs holds, at the most where it is elastic.
    pub devices: u64,
    /// Their kind.
    pub accelerator: String,
    /// The highest price of a device of this kind for an hour; none if the nodes have none.
    pub price_nano_dollars_per_hour: Option<i64>,
    /// What an hour of a device costs beside its price, at the most: network, support and energy; none if nothing is configured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub overhead_nano_dollars_per_hour: Option<i64>,
    /// What all devices of one of its jobs cost an hour, with that.
    pub nano_dollars_per_hour: Option<i64>,
    /// The longest that one attempt may run, in seconds.
    pub time_limit_seconds: Option<u64>,
    /// What all its jobs cost if each runs once for as long as it may; none without a time limit or a price.
    pub at_most_nano_dollars: Option<i64>,
    /// The most that one of its jobs may cost, all attempts together.
    pub budget_nano_dollars: Option<i64>,
}

/// Budgets with their present standing.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct BudgetList {
    /// The budgets, in the order of the configuration.
    pub budgets: Vec<BudgetStanding>,
}

/// How far a budget is spent.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct BudgetStanding {
    /// Its name.
    pub name: String,
    /// Whose jobs count: `everything` (idle devices too), `queue NAME` (and the queues below it) or `user NAME`.
    pub of: String,
    /// day, week or month.
    pub per: String,
    /// Start of the present period.
    pub from: Time,
    /// Its end.
    pub until: Time,
    /// The money.
    pub limit_nano_dollars: i64,
    /// What was spent since the start of the period.
    pub spent_nano_dollars: i64,
    /// The same as a share of the limit.
    pub spent_share: f64,
    /// What will be spent at its end if as much is spent as in the last day, or since its start if that is less. Estimated.
    pub forecast_nano_dollars: i64,
    /// The same as a share of the limit.
    pub forecast_share: f64,
    /// Device time without a price, which is not in what was spent.
    pub unpriced_gpu_seconds: f64,
    /// What follows once it is spent: `alert`, or `hold` (jobs of it that haven't begun wait as well).
    pub when_spent: String,
}

/// What a period will have cost at its end. What was spent is measured, but for running attempts; the rest is estimated.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct CostForecast {
    /// Start of the period.
    pub from: Time,
    /// Up to when what was spent is known.
    pub now: Time,
    /// The period's end.
    pub until: Time,
    /// What the groups are: queue, user, job, name, node or accelerator.
    pub by: String,
    /// The groups, those that have spent most first.
    pub groups: Vec<ForecastGroup>,
    /// All groups as one.
    pub total: ForecastGroup,
    /// Running jobs that say how many steps they make, those that will have cost most first.
    pub jobs: Vec<ForecastJob>,
}

/// The forecast of a group.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ForecastGroup {
    /// Its name, as in a report.
    pub name: String,
    /// What was spent since the start of the period.
    pub spent_nano_dollars: i64,
    /// What was spent in an hour of the last day, which may reach into the period before.
    pub nano_dollars_per_hour_of_day: i64,
    /// The same of the last seven days.
    pub nano_dollars_per_hour_of_week: i64,
    /// What will be spent at the end of the period at the pace of the last day.
    pub at_end_by_day_nano_dollars: i64,
    /// The same at the pace of the last seven days.
    pub at_end_by_week_nano_dollars: i64,
    /// Device time of the period without a price, which is in none of these.
    pub unpriced_gpu_seconds: f64,
}

/// The forecast of a running job.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ForecastJob {
    /// Its id.
    pub job: String,
    /// Its name.
    pub name: String,
    /// Who submitted it.
    pub user: String,
    /// Its queue.
    pub queue: String,
    /// What it has cost so far.
    pub spent_nano_dollars: i64,
    /// What it will have cost if each step that is left costs as much as those so far.
    pub at_end_nano_dollars: i64,
}
