//! `cost`: what training cost, where the money went, and how much capacity to buy.

mod allocated;
mod budgets;
mod diff;
mod estimate;
mod export;
mod forecast;
mod job;
mod parquet;
mod plan;
mod provider;
mod reconcile;
mod report;
mod roadmap;
mod sacct;

#[cfg(feature = "demo")]
pub(crate) use report::bill;

use clap::{Args, Subcommand};
use gangline_api::Time;
use gangline_base::Timestamp;

use crate::client::{Client, path_segment};
use crate::failure::Failure;
use crate::{Global, moment, output};

/// What to do with costs.
#[derive(Debug, Subcommand)]
pub(crate) enum CostCommand {
    /// Print the bill of a period: what jobs held and what nobody held, in groups
    Report(report::ReportArgs),
    /// Print what a job cost: by line and attempt, for each step and token, and what a change could save
    Show(job::ShowArgs),
    /// Say what a job file may cost at most, before it is submitted
    Estimate(estimate::EstimateArgs),
    /// Compare what two job files may cost, or what two jobs cost
    Diff(diff::DiffArgs),
    /// Say how far the configuration's budgets are spent, and how far they will be at the end of their period
    Budgets,
    /// Say what this month, or another period, will have cost at its end, and running jobs at theirs
    Forecast(forecast::ForecastArgs),
    /// Write the bill of a period as FOCUS rows, the format of cloud bills
    Export(export::ExportArgs),
    /// Compare a provider's bill with the ledger, node by node, and say what differs
    Reconcile(reconcile::ReconcileArgs),
    /// Print the bill of a Slurm cluster's past, from sacct: by account, user, partition or name, and by how jobs ended
    Sacct(sacct::SacctArgs),
    /// Say how many devices to reserve, from the hours in which jobs held them and from prices
    Plan(plan::PlanArgs),
    /// Say when devices and storage run out and what to order when, by simulating the past with growth
    Roadmap(roadmap::RoadmapArgs),
}

/// A period; times without a zone are in UTC.
#[derive(Args, Debug)]
pub(crate) struct PeriodArgs {
    /// Start of the period: how long ago, as 7d, or when, as 2026-11-01, in UTC
    #[arg(long, value_name = "TIME", default_value = "30d", value_parser = moment::in_utc)]
    from: Timestamp,
    /// Its end [default: now]
    #[arg(long, value_name = "TIME", value_parser = moment::in_utc)]
    to: Option<Timestamp>,
}

impl PeriodArgs {
    /// Returns the period as parameters of a request.
    fn query(&self) -> String {
        query(self.from, self.to)
    }
}

fn query(from: Timestamp, to: Option<Timestamp>) -> String {
    let to = to.map(|to| format!("&to={}", path_segment(&Time(to).to_string()))).unwrap_or_default();
    format!("from={}{to}", path_segment(&Time(from).to_string()))
}

pub(crate) fn run(global: &Global, command: &CostCommand) -> Result<(), Failure> {
    let client = || Client::connect(global);
    match command {
        CostCommand::Report(args) => report::run(&client()?, args, global.json),
        CostCommand::Show(args) => job::run(&client()?, args, global.json),
        CostCommand::Estimate(args) => estimate::run(&client()?, args, global.json),
        CostCommand::Diff(args) => diff::run(&client()?, args, global.json),
        CostCommand::Budgets => budgets::run(&client()?, global.json),
        CostCommand::Forecast(args) => forecast::run(&client()?, args, global.json),
        CostCommand::Export(args) => export::run(&client()?, args),
        CostCommand::Reconcile(args) => reconcile::run(&client()?, args, global.json),
        CostCommand::Sacct(args) => sacct::run(global, args),
        CostCommand::Plan(args) => plan::run(global, args),
        CostCommand::Roadmap(args) => roadmap::run(global, args),
    }
}

/// Formats device time as hours, or as seconds where that is short.
fn device_time(seconds: f64) -> String {
    if seconds >= 3_600.0 { format!("{:.1} h", seconds / 3_600.0) } else { format!("{seconds:.1} s") }
}

/// Formats a share of a whole.
fn percent(part: f64, whole: f64) -> String {
    if whole > 0.0 { format!("{:.1} %", 100.0 * part / whole) } else { "-".to_owned() }
}

/// Says of device time without a price what to do.
fn tell_unpriced(seconds: f64) {
    if seconds > 0.0 {
        output::tell(&format!(
            "not priced: {} of device time, which is in no cost; give prices in [[price]] or at [[node]] of the configuration",
            device_time(seconds)
        ));
    }
}
