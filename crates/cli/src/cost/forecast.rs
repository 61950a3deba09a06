//! `cost forecast`: what a period will have cost.

use clap::Args;
use gangline_api::{self as api, Time};
use gangline_base::{Money, Timestamp};

use super::report::{By, word};
use super::tell_unpriced;
use crate::client::{Client, path_segment};
use crate::failure::Failure;
use crate::{moment, output};

/// Which period, and in which groups.
#[derive(Args, Debug)]
pub(crate) struct ForecastArgs {
    /// Start of the period: how long ago, as 7d, or when, as 2026-11-01, in UTC [default: that of this month]
    #[arg(long, value_name = "TIME", value_parser = moment::in_utc)]
    from: Option<Timestamp>,
    /// Its end, as 2027-01-01, in UTC [default: that of this month]
    #[arg(long, value_name = "TIME", value_parser = moment::in_utc)]
    until: Option<Timestamp>,
    /// What the groups are
    #[arg(long, value_enum, default_value = "queue")]
    by: By,
}

pub(super) fn run(client: &Client, args: &ForecastArgs, is_json: bool) -> Result<(), Failure> {
    let time = |name: &str, time: Option<Timestamp>| {
        time.map(|time| format!("&{name}={}", path_segment(&Time(time).to_string()))).unwrap_or_default()
    };
    let (from, until) = (time("from", args.from), time("until", args.until));
    let forecast: api::CostForecast = client.get(&format!("/cost/forecast?by={}{from}{until}", word(args.by)))?;
    if is_json {
        return output::json(&forecast);
    }
    output::print(&text(&forecast))?;
    tell_unpriced(forecast.total.unpriced_gpu_seconds);
    Ok(())
}

fn text(forecast: &api::CostForecast) -> String {
    let heading = forecast.by.to_uppercase();
    let headings = [&heading, ">SPENT", ">$/H LAST DAY", ">$/H LAST WEEK", ">END AT DAY'S PACE", ">END AT WEEK'S PACE"];
    let rows = forecast.groups.iter().chain([&forecast.total]).map(row).collect();
    let (from, until) = (output::time(forecast.from), output::time(forecast.until));
    let mut text = format!(
        "spent since {from}; END is what will have been spent by {until} at the pace of the last day, and of the last week (estimated)\n\n"
    );
    text += &output::table(&headings, rows);
    if !forecast.jobs.is_empty() {
        let rows = forecast.jobs.iter().map(|job| {
            let money = |nanos| Money::from_nano_dollars(nanos).to_string();
            let (spent, at_end) = (money(job.spent_nano_dollars), money(job.at_end_nano_dollars));
            vec![job.job.clone(), job.name.clone(), job.user.clone(), job.queue.clone(), spent, at_end]
        });
        text.push('\n');
        text += &output::table(&["JOB", "NAME", "USER", "QUEUE", ">SPENT", ">AT ITS END"], rows.collect());
    }
    text
}

fn row(group: &api::ForecastGroup) -> Vec<String> {
    let amounts = [
        group.spent_nano_dollars,
        group.nano_dollars_per_hour_of_day,
        group.nano_dollars_per_hour_of_week,
        group.at_end_by_day_nano_dollars,
        group.at_end_by_week_nano_dollars,
    ];
    let amounts = amounts.map(|nanos| Money::from_nano_dollars(nanos).to_string());
    [group.name.clone()].into_iter().chain(amounts).collect()
}
