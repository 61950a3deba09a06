//! `cost report`: the bill of a period.

use clap::{Args, ValueEnum};
use gangline_api as api;
use gangline_base::{Bytes, Money};

use super::{PeriodArgs, device_time, percent, tell_unpriced};
use crate::client::Client;
use crate::failure::Failure;
use crate::output;

/// Which period, and in which groups.
#[derive(Args, Debug)]
pub(crate) struct ReportArgs {
    #[command(flatten)]
    period: PeriodArgs,
    /// What the groups are
    #[arg(long, value_enum, default_value = "queue")]
    by: By,
    /// Whose idle devices are: a line of their own, or shared by the groups in proportion to the device time that their jobs held
    #[arg(long, value_enum, default_value = "own")]
    idle: Idle,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
pub(super) enum By {
    Queue,
    User,
    Job,
    Name,
    Node,
    Accelerator,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Idle {
    Own,
    Shared,
}

pub(super) fn word(value: impl ValueEnum) -> String {
    value.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default()
}

pub(super) fn run(client: &Client, args: &ReportArgs, is_json: bool) -> Result<(), Failure> {
    let path = format!("/cost/report?{}&by={}&idle={}", args.period.query(), word(args.by), word(args.idle));
    let report: api::CostReport = client.get(&path)?;
    if is_json {
        return output::json(&report);
    }
    output::print(&text(&report))?;
    tell_unpriced(report.total.unpriced_gpu_seconds);
    if report.total.unpriced_gib_hours > 0.0 {
        let stored = stored(report.total.unpriced_gib_hours);
        output::tell(&format!(
            "not priced: {stored} of stored data; give prices in [[storage.price]] of the configuration"
        ));
    }
    let (requests, bytes) = (report.total.unpriced_requests, report.total.unpriced_bytes_read);
    if requests > 0 || bytes > 0 {
        let bytes = read(bytes);
        output::tell(&format!(
            "not priced: {requests} request(s) to object storage, {bytes} read; give prices in [[storage.requests]] of the configuration"
        ));
    }
    Ok(())
}

/// Returns the bill of the last 30 days as text.
#[cfg(feature = "demo")]
pub(crate) fn bill(client: &Client, grouped: &str) -> Result<String, Failure> {
    client.get(&format!("/cost/report?{grouped}")).map(|report| text(&report))
}

fn text(report: &api::CostReport) -> String {
    let heading = report.by.to_uppercase();
    let total = &report.total;
    // Few clusters ask object storage for their data.
    let has_requests = total.requests > 0;
    let mut headings = vec![heading.as_str(), ">JOBS", ">DEVICE TIME", ">USEFUL", ">STORED"];
    headings.extend(has_requests.then_some(">REQUESTS"));
    headings.extend([">COST", ">SHARE"]);
    let rows = report.groups.iter().chain([total]).map(|group| row(group, total, has_requests)).collect();
    let shared = if report.idle == "shared" {
        "; idle devices are shared in proportion to the device time that jobs held"
    } else {
        ""
    };
    let estimated = match report.estimated_jobs {
        0 => String::new(),
        jobs => format!("; estimated for {jobs} running job(s)"),
    };
    let period = format!("{} to {}{shared}{estimated}\n\n", output::time(report.from), output::time(report.to));
    period + &output::table(&headings, rows) + "\n" + &lines(total) + "\n" + &capacity(report)
}

fn row(group: &api::CostGroup, total: &api::CostGroup, has_requests: bool) -> Vec<String> {
    let useful = group.useful_share.map_or_else(|| "-".to_owned(), |share| format!("{:.1} %", share * 100.0));
    let share = if total.cost_nano_dollars > 0 {
        percent(as_float(group.cost_nano_dollars), as_float(total.cost_nano_dollars))
    } else {
        percent(group.gpu_seconds, total.gpu_seconds)
    };
    let jobs = if group.jobs == 0 { "-".to_owned() } else { group.jobs.to_string() };
    let (time, stored) = (device_time(group.gpu_seconds), stored(group.gib_hours));
    let mut row = vec![group.name.clone(), jobs, time, useful, stored];
    row.extend(has_requests.then(|| match group.requests {
        0 => "-".to_owned(),
        some => some.to_string(),
    }));
    row.extend([group.cost.clone(), share]);
    row
}

/// Formats stored data over time.
fn stored(gib_hours: f64) -> String {
    match gib_hours {
        none if none <= 0.0 => "-".to_owned(),
        tiny if tiny < 1.0 / 1_024.0 => format!("{:.1} KiB-h", tiny * 1_048_576.0),
        few if few < 1.0 => format!("{:.1} MiB-h", few * 1_024.0),
        many => format!("{many:.1} GiB-h"),
    }
}

/// Formats read bytes.
fn read(bytes: i64) -> String {
    Bytes(u64::try_from(bytes).unwrap_or(0)).to_string()
}

/// Formats the lines of a group, which sum to it.
pub(super) fn lines(group: &api::CostGroup) -> String {
    let row = |line: &api::CostLine| {
        let money = Money::from_nano_dollars(line.cost_nano_dollars).to_string();
        let asked = line.unpriced_requests.or(line.unpriced_bytes_read).unwrap_or(0);
        let unpriced = line.unpriced_gpu_seconds + line.unpriced_gib_hours.unwrap_or(0.0);
        let is_unpriced = (unpriced > 0.0 || asked > 0) && line.cost_nano_dollars == 0;
        let (amount, share) = match other_amount(line) {
            Some(other) => (other, "-".to_owned()),
            None => (device_time(line.gpu_seconds), percent(line.gpu_seconds, group.gpu_seconds)),
        };
        vec![line.line.clone(), amount, share, if is_unpriced { "not priced".to_owned() } else { money }]
    };
    output::table(&["LINE", ">AMOUNT", ">OF ALL DEVICE TIME", ">COST"], group.lines.iter().map(row).collect())
}

/// Formats the amount of a line that isn't of device time.
fn other_amount(line: &api::CostLine) -> Option<String> {
    let seconds = |exact: &String| exact.parse().unwrap_or(0.0);
    let stored = line.gib_hours.map(stored).or(line.requests.map(|count| count.to_string()));
    let charged = line.charged_gpu_seconds.as_ref().map(|time| device_time(seconds(time)));
    let people = line.people_seconds.as_ref().map(|time| format!("{:.1} h", seconds(time) / 3_600.0));
    let energy = line.kilowatt_hours.map(|energy| match energy {
        little if little < 1.0 => format!("{:.1} Wh", little * 1_000.0),
        much => format!("{much:.1} kWh"),
    });
    stored.or(line.bytes_read.map(read)).or(charged).or(people).or(energy)
}

/// Says that the bill is whole, or what is missing.
fn capacity(report: &api::CostReport) -> String {
    let Some(since) = report.capacity_since else {
        return "what nodes offered isn't recorded: only what jobs held is known\n".to_owned();
    };
    let mut text = format!("the nodes offered {} device-seconds", report.capacity_seconds);
    if report.beyond_capacity_seconds.trim_matches(['0', '.']).is_empty() {
        text += ", each of which is in one line\n";
    } else {
        text += &format!(", each of which is in one line; jobs held {} more\n", report.beyond_capacity_seconds);
    }
    if report.total.kilowatt_hours > 0.0 {
        text += "the energy is estimated from the watts of the configuration\n";
    }
    if since.0 > report.from.0 {
        text += &format!("idle devices are known since {}\n", output::time(since));
    }
    text
}

#[expect(clippy::cast_precision_loss, reason = "a share in percent")]
fn as_float(number: i64) -> f64 {
    number as f64
}
