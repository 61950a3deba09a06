//! `cost export`: the bill of a period as FOCUS rows.

use std::fs::File;
use std::io::{BufWriter, IsTerminal as _, Write};
use std::path::PathBuf;

use clap::{Args, ValueEnum};
use gangline_accounting::bill::Line;
use gangline_accounting::focus::{Issuer, Row, Used, Version};
use gangline_api as api;
use gangline_base::{Day, Money, Timestamp};

use super::parquet::Table;
use super::{PeriodArgs, query, tell_unpriced};
use crate::client::Client;
use crate::failure::Failure;
use crate::output;

/// Nanoseconds of a day.
const DAY: u64 = 24 * 3_600 * 1_000_000_000;

/// What to write.
#[derive(Args, Debug)]
pub(crate) struct ExportArgs {
    #[command(flatten)]
    period: PeriodArgs,
    /// The version of FOCUS
    #[arg(long, value_enum, default_value = "1.2")]
    focus: FocusVersion,
    /// The format of the file
    #[arg(long, value_enum, default_value = "csv")]
    format: Format,
    /// The account that pays, in BillingAccountId
    #[arg(long, value_name = "NAME", default_value = "gangline")]
    account: String,
    /// Who provides the devices, in ProviderName
    #[arg(long, value_name = "NAME", default_value = "gangline")]
    provider: String,
    /// The file, which must not exist; - for standard output
    #[arg(long, short, value_name = "FILE", default_value = "-")]
    output: PathBuf,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum FocusVersion {
    #[value(name = "1.2")]
    V1_2,
    #[value(name = "1.4")]
    V1_4,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Format {
    Csv,
    Parquet,
}

/// Where rows go.
enum Target {
    Csv(Box<dyn Write + Send>),
    Parquet(Box<Table>),
}

pub(super) fn run(client: &Client, args: &ExportArgs) -> Result<(), Failure> {
    let version = match args.focus {
        FocusVersion::V1_2 => Version::V1_2,
        FocusVersion::V1_4 => Version::V1_4,
    };
    let issuer = Issuer { account: args.account.clone(), provider: args.provider.clone() };
    let to = args.period.to.unwrap_or_else(output::now);
    let (mut unpriced, mut rows) = (0.0, 0_u64);
    let mut target = Target::open(args, version)?;
    let first = args.period.from.unix_nanos() / DAY;
    for day in first..to.unix_nanos().div_ceil(DAY) {
        let at = |nanos: u64| Timestamp::from_unix_nanos(nanos);
        let (from, to) = (args.period.from.max(at(day * DAY)), to.min(at((day + 1) * DAY)));
        let usage: api::CostUsage = client.get(&format!("/cost/usage?{}", query(from, Some(to))))?;
        for row in &usage.rows {
            unpriced += row.line.unpriced_gpu_seconds;
            // FOCUS has no word for a cost that isn't known, and zero would be wrong.
            if let Some(row) = focus(row, day)? {
                target.write(&row, &issuer)?;
                rows += 1;
            }
        }
    }
    target.close()?;
    output::tell(&format!("{rows} row(s) of FOCUS {}", if version == Version::V1_2 { "1.2" } else { "1.4" }));
    tell_unpriced(unpriced);
    Ok(())
}

impl Target {
    fn open(args: &ExportArgs, version: Version) -> Result<Target, Failure> {
        let mut out = open(args)?;
        Ok(match args.format {
            Format::Csv => {
                out.write_all(version.header().as_bytes())?;
                Target::Csv(out)
            }
            Format::Parquet => Target::Parquet(Box::new(Table::begin(out, version)?)),
        })
    }

    fn write(&mut self, row: &Row, issuer: &Issuer) -> Result<(), Failure> {
        match self {
            Target::Csv(out) => Ok(out.write_all(row.csv(issuer).as_bytes())?),
            Target::Parquet(table) => table.add(row.fields(issuer)),
        }
    }

    fn close(self) -> Result<(), Failure> {
        match self {
            Target::Csv(mut out) => Ok(out.flush()?),
            Target::Parquet(table) => table.close(),
        }
    }
}

fn open(args: &ExportArgs) -> Result<Box<dyn Write + Send>, Failure> {
    if args.output.as_os_str() == "-" {
        if matches!(args.format, Format::Parquet) && std::io::stdout().is_terminal() {
            return Err(Failure::local(
                "a terminal can't show parquet",
                "write into a file, with --output bill.parquet",
            ));
        }
        return Ok(Box::new(BufWriter::new(std::io::stdout())));
    }
    let file = File::create_new(&args.output).map_err(|error| {
        Failure::local(
            format!("{} can't be made: {error}", args.output.display()),
            "name a file that doesn't exist yet",
        )
    })?;
    Ok(Box::new(BufWriter::new(file)))
}

/// Returns a decimal number in units of its last place.
fn exact(decimal: &str) -> Option<i128> {
    decimal.replace('.', "").parse().ok()
}

/// Returns what was used of anything that isn't device time; `unit` is that of its price.
fn used_of(line: &api::CostLine, unit: &str) -> Option<Used> {
    let unit = || unit.to_owned();
    let count = |number: i64| u64::try_from(number).unwrap_or(0);
    if let Some(stored) = &line.exact_byte_seconds {
        return Some(Used::Storage { nanos: exact(stored)?, unit: unit() });
    }
    if let Some(charged) = &line.charged_gpu_seconds {
        return Some(Used::Overhead { nanos: exact(charged)?, is_network: line.line == Line::Network.name() });
    }
    if let Some(joules) = &line.exact_joules {
        return Some(Used::Energy { picojoules: exact(joules)? });
    }
    if let Some(time) = &line.people_seconds {
        return Some(Used::Work { nanos: exact(time)? });
    }
    let requests = line.requests.map(|requests| Used::Requests { count: count(requests) });
    requests.or(line.bytes_read.map(|bytes| Used::Transfer { bytes: count(bytes), unit: unit() }))
}

/// Returns the row in FOCUS's words, if it has a price.
fn focus(row: &api::CostUsageRow, day: u64) -> Result<Option<Row>, Failure> {
    let wrong = || Failure::local("the control plane sent a row that can't be read", "is it of another version?");
    let (used, price) = match (&row.unit_price, row.price_nano_dollars_per_hour) {
        (Some(price), _) => (used_of(&row.line, &price.unit).ok_or_else(wrong)?, price.nano_dollars),
        (None, Some(price)) => {
            let (nanos, accelerator) = (exact(&row.line.exact_gpu_seconds).ok_or_else(wrong)?, row.accelerator.clone());
            (Used::Devices { nanos, accelerator, is_unheld: row.job.is_none() }, price)
        }
        (None, None) => return Ok(None),
    };
    let tag = |key, value: &Option<String>| value.clone().map(|value| (key, value));
    let tags = [tag("job", &row.job), tag("name", &row.name), tag("user", &row.user), tag("queue", &row.queue)];
    Ok(Some(Row {
        day: Day::from_days_since_epoch(i64::try_from(day).unwrap_or(i64::MAX)),
        resource: row.node.clone(),
        line: row.line.line.clone(),
        used,
        price: Money::from_nano_dollars(price),
        cost: Money::from_nano_dollars(row.line.cost_nano_dollars),
        tags: tags.into_iter().flatten().collect(),
        is_estimated: row.is_estimated || row.line.kilowatt_hours.is_some(),
    }))
}
