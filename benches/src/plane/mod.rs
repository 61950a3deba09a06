//! `bench plane`: what the control plane does under load, with a long past, and beside a crowd.
//!
//! Nothing of the product is linked: this starts the built `gangline up` (GANGLINE_BINARY, or the target folder's) on folders of its
//! own, which must be on a disk, and speaks HTTP. Supervisors are simulated, as in `bench recovery`'s heartbeats. Every figure stands
//! beside what this machine allows, measured in the same run.

mod admissions;
mod client;
mod crowd;
mod flood;
mod limits;
mod load;
mod sizes;
mod start;
mod up;
mod year;

use std::path::PathBuf;

use anyhow::{Context as _, Result};
use clap::{Parser, ValueEnum};
use xtask::command::load_averages;

use crate::binary::binary;
use crate::report::Report;

/// Options of `bench plane`.
#[derive(Parser)]
#[command(name = "bench plane", about = "The control plane under load, with a long past, and beside a crowd")]
struct Options {
    /// Rounds of each measurement that is repeated; the median counts.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=100))]
    rounds: u32,
    /// How long a round lasts, in milliseconds.
    #[arg(long, default_value_t = 1_500, value_parser = clap::value_parser!(u64).range(100..=60_000))]
    round: u64,
    /// Entries of the journal that a start has behind it, at least.
    #[arg(long, default_value_t = 1_000_000, value_parser = clap::value_parser!(u64).range(1_000..=100_000_000))]
    entries: u64,
    /// Jobs that are run to say what a year's take.
    #[arg(long, default_value_t = 2_000, value_parser = clap::value_parser!(u64).range(10..=365_000))]
    jobs: u64,
    /// Only these parts (may be repeated).
    #[arg(long)]
    only: Vec<Part>,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Part {
    /// Jobs that are submitted, and the list of many.
    Admissions,
    /// Many idle and slow connections.
    Crowd,
    /// Submissions beside a flood of metrics.
    Flood,
    /// A start with a long past.
    Start,
    /// The room that a year's jobs take.
    Year,
}

/// Measures and prints.
type Measure = fn(&mut Bench) -> Result<()>;

/// What every part needs.
struct Bench {
    /// The product's binary.
    gangline: PathBuf,
    options: Options,
    report: Report,
}

/// Measures and prints; whether every bar held.
pub(super) fn run(options: &[String]) -> Result<bool> {
    let arguments = std::iter::once("bench plane").chain(options.iter().map(String::as_str));
    let options = match Options::try_parse_from(arguments) {
        Ok(options) => options,
        Err(error) => {
            error.print().context("print how it is used")?;
            return Ok(!error.use_stderr());
        }
    };
    let mut bench = Bench { gangline: binary()?, options, report: Report::default() };
    println!("{}; load averages {}", bench.gangline.display(), load_averages());
    let parts: [(Part, Measure); 5] = [
        (Part::Admissions, admissions::run),
        (Part::Crowd, crowd::run),
        (Part::Flood, flood::run),
        (Part::Start, start::run),
        (Part::Year, year::run),
    ];
    for (part, measure) in parts {
        if bench.options.only.is_empty() || bench.options.only.contains(&part) {
            measure(&mut bench)?;
        }
    }
    println!("\nload averages {}", load_averages());
    Ok(bench.report.finish())
}
