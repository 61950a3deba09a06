//! `cost sacct`: the bill of a Slurm cluster's past.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{BufReader, Cursor, Read};
use std::path::{Path, PathBuf};
use std::process::Command;

use clap::{Args, ValueEnum};
use csv::{ReaderBuilder, StringRecord};
use gangline_accounting::sacct::{self, PastAmount, PastJob, Prices};
use gangline_api::Time;
use gangline_base::{Money, Timestamp};
use serde_json::json;

use super::{allocated, device_time, percent};
use crate::client::Client;
use crate::failure::Failure;
use crate::{Global, moment, output};

/// The command that writes what is read.
const COMMAND: &str = "SLURM_TIME_FORMAT=%s sacct --allusers --allocations --duplicates --parsable2 --starttime 2026-01-01 \
     --format JobIDRaw,JobName,User,Account,Partition,State,Start,ElapsedRaw,AllocTRES";

/// What to read.
#[derive(Args, Debug)]
pub(crate) struct SacctArgs {
    /// The output of sacct; - for standard input [default: sacct of this machine is asked]
    #[arg(value_name = "FILE")]
    file: Option<PathBuf>,
    /// US dollars for a device of a kind (as in AllocTRES; gpu where Slurm says none) and an hour, as h100=2.50 (may be repeated)
    #[arg(long = "rate", value_name = "KIND=DOLLARS", value_parser = rate)]
    rates: Vec<(String, Money)>,
    /// Devices of a kind that the cluster had, as h100=64 (may be repeated): what no job held is then a line
    #[arg(long = "devices", value_name = "KIND=COUNT", value_parser = devices)]
    devices: Vec<(String, u32)>,
    /// What the groups are
    #[arg(long, value_enum, default_value = "account")]
    by: By,
    /// Start of the period: how long ago, or when, in UTC [default: the first job's start; 30 days ago if sacct is asked]
    #[arg(long, value_name = "TIME", value_parser = moment::in_utc)]
    from: Option<Timestamp>,
    /// Its end [default: the last job's end]
    #[arg(long, value_name = "TIME", value_parser = moment::in_utc)]
    to: Option<Timestamp>,
    /// Compare what Slurm allocated to Gangline's own jobs with what the ledger booked for them, job by job
    #[arg(long, conflicts_with_all = ["rates", "devices", "by", "to"])]
    reconcile: bool,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum By {
    Account,
    User,
    Partition,
    Name,
}

fn rate(text: &str) -> Result<(String, Money), String> {
    let (kind, dollars) = text.split_once('=').ok_or_else(|| format!("\"{text}\" is not of the form KIND=DOLLARS"))?;
    let price: Money = dollars.parse().map_err(|error| format!("{error}"))?;
    Ok((kind.to_lowercase(), price))
}

fn devices(text: &str) -> Result<(String, u32), String> {
    let wrong = || format!("\"{text}\" is not of the form KIND=COUNT");
    let (kind, count) = text.split_once('=').ok_or_else(wrong)?;
    Ok((kind.to_lowercase(), count.parse().map_err(|_| wrong())?))
}

/// The columns that are read.
const COLUMNS: [&str; 9] =
    ["JobIDRaw", "JobName", "User", "Account", "Partition", "State", "Start", "ElapsedRaw", "AllocTRES"];
/// How far back sacct is asked, if nothing else is said.
const SECONDS_BACK: u64 = 30 * 24 * 3_600;
const NANOS_PER_SECOND: u64 = 1_000_000_000;

/// What a file has.
#[derive(Debug, Default)]
struct Past {
    jobs: Vec<PastJob>,
    /// Rows of steps, of jobs that never started, and of jobs without devices.
    steps: u64,
    not_started: u64,
    without_devices: u64,
    /// Rows that are in the file twice.
    repeated: u64,
}

pub(super) fn run(global: &Global, args: &SacctArgs) -> Result<(), Failure> {
    let (from, path) = opened(args)?;
    let past = read(from, &path)?;
    let Some((first, last)) = span(&past.jobs) else {
        let message = format!("{} has no job that held devices", path.display());
        return Err(Failure::local(
            message,
            "AllocTRES names devices only if AccountingStorageTRES has gres/gpu (slurm.conf(5))",
        ));
    };
    if args.reconcile {
        let jobs: Vec<PastJob> =
            past.jobs.into_iter().filter(|job| args.from.is_none_or(|from| end(job) >= from)).collect();
        return allocated::run(&Client::connect(global)?, &jobs, global.json);
    }
    let bill = Bill::of(&past, (args.from.unwrap_or(first), args.to.unwrap_or(last)), args);
    if global.json {
        return output::json(&bill.as_json(&past));
    }
    output::print(&bill.text(args.by, &past))?;
    if bill.total.unpriced > 0 {
        let time = device_time(seconds(bill.total.unpriced));
        output::tell(&format!(
            "not priced: {time} of device time, which is in no cost; give --rate KIND=DOLLARS for each kind"
        ));
    }
    Ok(())
}

/// Returns what sacct wrote, and where that is.
fn opened(args: &SacctArgs) -> Result<(Box<dyn Read>, PathBuf), Failure> {
    let Some(path) = &args.file else {
        return Ok((Box::new(Cursor::new(ask(args.from)?)), PathBuf::from("sacct's answer")));
    };
    if path.as_os_str() == "-" {
        return Ok((Box::new(std::io::stdin()), path.clone()));
    }
    let file = File::open(path).map_err(|error| {
        Failure::local(format!("{} can't be read: {error}", path.display()), format!("make it by: {COMMAND}"))
    })?;
    Ok((Box::new(BufReader::new(file)), path.clone()))
}

/// Asks sacct for all jobs that ran since a time. sacct reads times in its machine's time zone, so the time is given in seconds
/// before now.
fn ask(from: Option<Timestamp>) -> Result<Vec<u8>, Failure> {
    let ago = from.map_or(SECONDS_BACK, |from| output::now().since(from).as_secs());
    let mut sacct = Command::new("sacct");
    sacct.args(["--allusers", "--allocations", "--duplicates", "--parsable2"]).env("SLURM_TIME_FORMAT", "%s");
    sacct.arg(format!("--starttime=now-{ago}")).arg(format!("--format={}", COLUMNS.join(",")));
    let hint = || format!("where sacct works, write a FILE by: {COMMAND}");
    let output = sacct.output().map_err(|error| Failure::local(format!("sacct can't be started: {error}"), hint()))?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        return Err(Failure::local(format!("sacct failed: {}", said.trim()), hint()));
    }
    Ok(output.stdout)
}

/// Returns the time from the first start to the last end.
fn span(jobs: &[PastJob]) -> Option<(Timestamp, Timestamp)> {
    Some((jobs.iter().map(|job| job.start).min()?, jobs.iter().map(end).max()?))
}

fn end(job: &PastJob) -> Timestamp {
    let elapsed = job.elapsed.saturating_mul(NANOS_PER_SECOND);
    Timestamp::from_unix_nanos(job.start.unix_nanos().saturating_add(elapsed))
}

fn read(from: impl Read, path: &Path) -> Result<Past, Failure> {
    let refused = |line: u64, message: String| {
        Failure::local(format!("{}: line {line}: {message}", path.display()), format!("make it by: {COMMAND}"))
    };
    let unreadable = |error: &csv::Error| refused(error.position().map_or(1, csv::Position::line), error.to_string());
    // sacct quotes nothing.
    let mut reader = ReaderBuilder::new().delimiter(b'|').quoting(false).from_reader(from);
    let header = reader.headers().map_err(|error| unreadable(&error))?.clone();
    let column = |name: &str| {
        let found = header.iter().position(|column| column.eq_ignore_ascii_case(name));
        found.ok_or_else(|| refused(1, format!("there is no column {name}")))
    };
    let columns: Vec<usize> = COLUMNS.into_iter().map(column).collect::<Result<_, _>>()?;
    let (mut past, mut seen, mut row) = (Past::default(), BTreeSet::new(), StringRecord::new());
    while reader.read_record(&mut row).map_err(|error| unreadable(&error))? {
        let line = row.position().map_or(0, csv::Position::line);
        let fields: Vec<&str> = columns.iter().map(|column| row.get(*column).unwrap_or("")).collect();
        if !seen.insert((fields[0].to_owned(), fields[6].to_owned())) {
            past.repeated += 1;
            continue;
        }
        past.take(&fields).map_err(|message| refused(line, message))?;
    }
    Ok(past)
}

impl Past {
    fn take(&mut self, fields: &[&str]) -> Result<(), String> {
        let [id, name, user, account, partition, state, start, elapsed, tres] = *fields else {
            return Err("it has too few columns".to_owned());
        };
        if id.contains('.') {
            self.steps += 1;
            return Ok(());
        }
        if matches!(start, "" | "Unknown" | "None") {
            self.not_started += 1;
            return Ok(());
        }
        let devices = sacct::devices(tres)?;
        if devices.is_empty() {
            self.without_devices += 1;
            return Ok(());
        }
        let text = |text: &str| if text.is_empty() { "(none)".to_owned() } else { text.to_owned() };
        self.jobs.push(PastJob {
            user: text(user),
            account: text(account),
            partition: text(partition),
            name: text(name),
            state: sacct::state(state),
            start: time(start).ok_or_else(|| {
                format!("\"{start}\" is not a time in seconds since 1970, which SLURM_TIME_FORMAT=%s asks for")
            })?,
            elapsed: elapsed.parse().map_err(|_| format!("\"{elapsed}\" is not a number of seconds (ElapsedRaw)"))?,
            devices,
        });
        Ok(())
    }
}

/// Reads seconds since the epoch. Times of the cluster's clock aren't read: they have no zone, and are twice or never when clocks
/// are put forward or back.
fn time(text: &str) -> Option<Timestamp> {
    text.parse::<u64>().ok()?.checked_mul(NANOS_PER_SECOND).map(Timestamp::from_unix_nanos)
}

/// The bill of a period.
struct Bill {
    period: (Timestamp, Timestamp),
    groups: BTreeMap<String, PastAmount>,
    /// By state.
    lines: BTreeMap<String, PastAmount>,
    total: PastAmount,
    failed: PastAmount,
    /// Device time that jobs held beyond the devices that the cluster is said to have had.
    beyond: i128,
}

impl Bill {
    fn of(past: &Past, period: (Timestamp, Timestamp), args: &SacctArgs) -> Bill {
        let prices: Prices = args.rates.iter().cloned().collect();
        let (groups, lines, total, failed) = Default::default();
        let mut bill = Bill { period, groups, lines, total, failed, beyond: 0 };
        let mut held: BTreeMap<&str, i128> = BTreeMap::new();
        for job in &past.jobs {
            let amount = job.amount(period, &prices);
            if amount.jobs == 0 {
                continue;
            }
            let group = match args.by {
                By::Account => &job.account,
                By::User => &job.user,
                By::Partition => &job.partition,
                By::Name => &job.name,
            };
            bill.add(group.clone(), job.state.clone(), amount);
            if job.has_failed() {
                bill.failed.add(amount);
            }
            let all: u64 = job.devices.values().sum();
            for (kind, count) in &job.devices {
                *held.entry(kind).or_default() += amount.nanos * i128::from(*count) / i128::from(all);
            }
        }
        let length = i128::from(period.1.unix_nanos().saturating_sub(period.0.unix_nanos()));
        for (kind, count) in &args.devices {
            let idle = i128::from(*count) * length - held.get(kind.as_str()).copied().unwrap_or(0);
            bill.beyond += (-idle).max(0);
            let cost = prices.get(kind).map(|price| idle.max(0) * i128::from(price.nano_dollars()) / 3_600_000_000_000);
            let unpriced = if cost.is_some() { 0 } else { idle.max(0) };
            let amount = PastAmount { jobs: 0, nanos: idle.max(0), cost: cost.unwrap_or(0), unpriced };
            bill.add("(idle)".to_owned(), "idle".to_owned(), amount);
        }
        bill
    }

    fn add(&mut self, group: String, line: String, amount: PastAmount) {
        self.groups.entry(group).or_default().add(amount);
        self.lines.entry(line).or_default().add(amount);
        self.total.add(amount);
    }

    fn text(&self, by: By, past: &Past) -> String {
        let heading = by.to_possible_value().map(|value| value.get_name().to_uppercase()).unwrap_or_default();
        let (from, to) = self.period;
        let mut text = format!("{} to {}\n\n", output::time(Time(from)), output::time(Time(to)));
        let headings = [heading.as_str(), ">JOBS", ">DEVICE TIME", ">OF ALL", ">COST"];
        let total = [("total".to_owned(), self.total)];
        let rows = sorted(&self.groups).into_iter().chain(total).map(|(name, amount)| self.row(name, amount));
        text += &(output::table(&headings, rows.collect()) + "\n");
        let headings = ["STATE", ">JOBS", ">DEVICE TIME", ">OF ALL", ">COST"];
        let rows = sorted(&self.lines).into_iter().map(|(name, amount)| self.row(name, amount));
        text += &output::table(&headings, rows.collect());
        text += &format!(
            "\n{} of {} job(s) failed ({}), with {} of the device time that jobs held\n",
            self.failed.jobs,
            self.total.jobs,
            percent(as_float(i128::from(self.failed.jobs)), as_float(i128::from(self.total.jobs))),
            percent(as_float(self.failed.nanos), as_float(self.held())),
        );
        if self.beyond > 0 {
            text += &format!("jobs held {} more than --devices allows for\n", device_time(seconds(self.beyond)));
        }
        text + &left_out(past)
    }

    fn held(&self) -> i128 {
        self.total.nanos - self.lines.get("idle").map_or(0, |idle| idle.nanos)
    }

    fn row(&self, name: String, amount: PastAmount) -> Vec<String> {
        let is_unpriced = amount.unpriced > 0 && amount.unpriced == amount.nanos;
        vec![
            name,
            if amount.jobs == 0 { "-".to_owned() } else { amount.jobs.to_string() },
            device_time(seconds(amount.nanos)),
            percent(as_float(amount.nanos), as_float(self.total.nanos)),
            if is_unpriced {
                "not priced".to_owned()
            } else {
                Money::from_nano_dollars_saturating(amount.cost).to_string()
            },
        ]
    }

    fn as_json(&self, past: &Past) -> serde_json::Value {
        let amount = |(name, amount): (&String, &PastAmount)| {
            json!({
                "name": name,
                "jobs": amount.jobs,
                "gpu_seconds": seconds(amount.nanos),
                "cost_nano_dollars": Money::from_nano_dollars_saturating(amount.cost),
                "unpriced_gpu_seconds": seconds(amount.unpriced),
            })
        };
        json!({
            "from": Time(self.period.0).to_string(),
            "to": Time(self.period.1).to_string(),
            "groups": self.groups.iter().map(amount).collect::<Vec<_>>(),
            "states": self.lines.iter().map(amount).collect::<Vec<_>>(),
            "total": amount((&"total".to_owned(), &self.total)),
            "failed": amount((&"failed".to_owned(), &self.failed)),
            "beyond_devices_seconds": seconds(self.beyond),
            "left_out": {
                "steps": past.steps,
                "not_started": past.not_started,
                "without_devices": past.without_devices,
                "repeated": past.repeated,
            },
        })
    }
}

fn left_out(past: &Past) -> String {
    let counts = [
        (past.without_devices, "of jobs without devices"),
        (past.not_started, "of jobs that never started"),
        (past.steps, "of steps"),
        (past.repeated, "that are in the file twice"),
    ];
    let told: Vec<String> =
        counts.into_iter().filter(|(count, _)| *count > 0).map(|(count, what)| format!("{count} {what}")).collect();
    if told.is_empty() { String::new() } else { format!("rows left out: {}\n", told.join(", ")) }
}

/// Returns groups or lines, the most device time first.
fn sorted(amounts: &BTreeMap<String, PastAmount>) -> Vec<(String, PastAmount)> {
    let mut sorted: Vec<(String, PastAmount)> = amounts.iter().map(|(name, amount)| (name.clone(), *amount)).collect();
    sorted.sort_by_key(|(_, amount)| std::cmp::Reverse(amount.nanos));
    sorted
}

pub(super) fn seconds(nanos: i128) -> f64 {
    as_float(nanos) / 1e9
}

#[expect(clippy::cast_precision_loss, reason = "for people to read")]
fn as_float(number: i128) -> f64 {
    number as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEADER: &str = "JobIDRaw|JobName|User|Account|Partition|State|Start|ElapsedRaw|AllocTRES\n";

    fn past(rows: &str) -> Result<Past, String> {
        read(format!("{HEADER}{rows}").as_bytes(), Path::new("past.txt")).map_err(|failure| match failure {
            Failure::Local { message, .. } => message,
            other => panic!("not this side's: {other:?}"),
        })
    }

    #[test]
    fn rows_are_jobs_and_what_is_left_out_is_counted() {
        let rows = "1|gpt \"a\"|ada|nlp|h100|COMPLETED|1793491200|3600|cpu=8,gres/gpu=8,gres/gpu:h100=8\n\
            1.batch|batch||nlp||COMPLETED|1793491200|3600|cpu=8,gres/gpu=8\n\
            2|gpt|ada|nlp|h100|CANCELLED by 1000|Unknown|0|\n\
            3|prep|bob|nlp|cpu|COMPLETED|1793491200|60|cpu=4\n\
            1|gpt \"a\"|ada|nlp|h100|COMPLETED|1793491200|3600|cpu=8,gres/gpu=8,gres/gpu:h100=8\n\
            1|gpt \"a\"|ada|nlp|h100|NODE_FAIL|1793000000|60|gres/gpu:h100=8\n";
        let past = past(rows).expect("a sound file");
        assert_eq!(
            (past.jobs.len(), past.steps, past.not_started, past.without_devices, past.repeated),
            (2, 1, 1, 1, 1)
        );
        assert_eq!((past.jobs[0].name.as_str(), past.jobs[1].state.as_str()), ("gpt \"a\"", "node_fail"));
        assert_eq!(past.jobs[1].start, Timestamp::from_unix_nanos(1_793_000_000_000_000_000));
    }

    #[test]
    fn what_is_wrong_is_named_with_its_line() {
        let good = "1|gpt|ada|nlp|h100|COMPLETED|1793491200|3600|gres/gpu=8\n";
        for (bad, part) in [
            ("2|a|b|ada|nlp|h100|COMPLETED|1793491200|3600|gres/gpu=8\n", "10 fields"),
            ("2|gpt|ada|nlp|h100|COMPLETED|2026-10-25T02:30:00|3600|gres/gpu=8\n", "SLURM_TIME_FORMAT"),
            ("2|gpt|ada|nlp|h100|COMPLETED|1793491200|01:00:00|gres/gpu=8\n", "ElapsedRaw"),
            ("2|gpt|ada|nlp|h100|COMPLETED|1793491200|3600|gres/gpu=eight\n", "eight"),
        ] {
            let message = past(&format!("{good}{bad}")).expect_err("a refusal");
            assert!(message.contains("line 3") && message.contains(part), "{message}");
        }
        let is_read = COMMAND.starts_with("SLURM_TIME_FORMAT=%s sacct ") && COMMAND.ends_with(&COLUMNS.join(","));
        assert!(is_read, "the hint makes a file that is read");
        let other = read("a|b\n1|2\n".as_bytes(), Path::new("x"));
        assert!(matches!(other, Err(Failure::Local { message, .. }) if message.contains("no column JobIDRaw")));
    }
}
