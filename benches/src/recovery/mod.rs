//! `bench recovery`: how soon faults are found, and how soon the work goes on, beside torchrun in the same run.
//!
//! Nothing of the product is linked but its private Slurm: this drives the built `gangline` (GANGLINE_BINARY, or the target folder's), the torchrun of
//! the Python package's environment (GANGLINE_PYTHON_BIN, or the target folder's), and signals. All of it runs in temporary folders, at
//! ports that the system chooses, and is gone when the benchmark is.

mod attempts;
mod ddp;
mod heartbeats;
mod plane;
pub(super) mod product;
mod saving;
pub(super) mod simulated;
mod slurm;
pub(super) mod spawned;
mod torch;

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, Result};
use clap::{Parser, ValueEnum};
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng as _, SeedableRng as _};
use xtask::environment::{self, Environment};

use super::report::{Report, median, percentile};
use crate::binary::binary;

/// Between two reports of a supervisor, if nothing else is said to `gangline up`.
const HEARTBEAT: Duration = Duration::from_millis(500);

/// Options of `bench recovery`.
#[derive(Parser)]
#[command(name = "bench recovery", about = "Faults are injected into real processes, and what follows is timed")]
struct Options {
    /// Faults of each kind that are injected; hangs are three, for they take half a minute each, and those of the part torch twice as many.
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=200))]
    injections: u32,
    /// How often the control plane is killed.
    #[arg(long, default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    restarts: u32,
    /// How long the control plane is away once, in seconds.
    #[arg(long, default_value_t = 300, value_parser = clap::value_parser!(u64).range(1..=3_600))]
    away: u64,
    /// Simulated supervisors.
    #[arg(long, default_value_t = 1_000, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    supervisors: u32,
    /// Only these parts (may be repeated).
    #[arg(long)]
    only: Vec<Part>,
    /// Of the moments and ranks that are hit.
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Part {
    /// A killed rank of PyTorch's DDP, beside torchrun.
    Torch,
    /// The same where each saves as it can.
    Saving,
    /// A killed rank of a trainer that speaks the rank protocol.
    Ranks,
    /// A killed supervisor.
    Supervisors,
    /// A stopped rank.
    Hangs,
    /// A control plane that is killed and restarted.
    Plane,
    /// A node of a Slurm that is lost.
    Slurm,
    /// Many supervisors that have nothing to say but that they live.
    Heartbeats,
}

/// Injects, and prints what followed.
type Measure = fn(&mut Bench) -> Result<()>;

/// What every part needs.
struct Bench {
    /// The product's binary.
    gangline: PathBuf,
    options: Options,
    random: ChaCha8Rng,
    report: Report,
}

/// Injects and prints; whether every bar held.
pub(super) fn run(options: &[String]) -> Result<bool> {
    let arguments = std::iter::once("bench recovery").chain(options.iter().map(String::as_str));
    let options = match Options::try_parse_from(arguments) {
        Ok(options) => options,
        Err(error) => {
            error.print().context("print how it is used")?;
            return Ok(!error.use_stderr());
        }
    };
    let random = ChaCha8Rng::seed_from_u64(options.seed);
    let mut bench = Bench { gangline: binary()?, options, random, report: Report::default() };
    println!("{} at --seed {}; all times are measured", bench.gangline.display(), bench.options.seed);
    let parts: [(Part, Measure); 8] = [
        (Part::Torch, torch::run),
        (Part::Saving, saving::run),
        (Part::Ranks, attempts::killed_ranks),
        (Part::Supervisors, attempts::killed_supervisors),
        (Part::Hangs, attempts::stopped_ranks),
        (Part::Plane, plane::run),
        (Part::Slurm, slurm::run),
        (Part::Heartbeats, heartbeats::run),
    ];
    for (part, measure) in parts {
        if bench.options.only.is_empty() || bench.options.only.contains(&part) {
            measure(&mut bench)?;
        }
    }
    Ok(bench.report.finish())
}

impl Bench {
    /// A number below `limit`, which isn't 0.
    fn below(&mut self, limit: u64) -> u64 {
        self.random.next_u64() % limit
    }

    /// A time below `limit`, in whole milliseconds.
    fn moment_below(&mut self, limit: Duration) -> Duration {
        let limit = u64::try_from(limit.as_millis()).unwrap_or(u64::MAX);
        Duration::from_millis(self.below(limit))
    }

    /// Prints the median, against its bar if it has one, and the worst.
    fn times(&mut self, what: &str, times: &mut [Duration], most: Option<Duration>) {
        self.report.time(&format!("{what}, median of {}", times.len()), percentile(times, 50), most);
        self.report.time(&format!("{what}, worst"), percentile(times, 100), None);
    }

    /// Prints what a peer took.
    fn peer_times(&self, what: &str, times: &mut [Duration]) {
        let seconds = |time: Duration| time.as_secs_f64();
        let (middle, worst) = (seconds(percentile(times, 50)), seconds(percentile(times, 100)));
        self.report.peer(&format!("{what}: median {middle:.2} s, worst {worst:.2} s (measured in the same run)"));
    }
}

/// The middle of ratios of what came in pairs.
fn ratio(ours: &[Duration], theirs: &[Duration]) -> f64 {
    median(ours.iter().zip(theirs).map(|(ours, theirs)| ours.as_secs_f64() / theirs.as_secs_f64()).collect())
}

/// The folder of torchrun and its Python.
fn python_programs() -> Result<PathBuf> {
    if let Some(path) = std::env::var_os("GANGLINE_PYTHON_BIN") {
        return std::path::absolute(path).context("find GANGLINE_PYTHON_BIN");
    }
    let programs = Environment::open(&environment::target()?, "python-venv")?.programs();
    anyhow::ensure!(programs.join("torchrun").is_file(), "there is no torchrun: run cargo xtask python once");
    Ok(programs)
}
