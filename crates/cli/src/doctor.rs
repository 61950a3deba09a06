//! `gangline doctor`: checks this machine, or the nodes of a pool, for what will slow down or disturb a
//! training run. Exit code 0: no problem found, 1: problems found (or the command failed, and says so), 2:
//! usage.

mod gang;
mod pool;
mod show;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::Args;
use gangline_api as api;
use gangline_base::{Bytes, NodeName, PoolName};
use gangline_execution::health::node::{CHECKS, Check, Expectations, ExpectedAccelerators, Guard, named};
use gangline_execution::health::{Finding, Verdict};
use gangline_specs::config::parse_accelerators;
use gangline_specs::jobfile::parse_duration;
use indicatif::ProgressBar;
use serde::Serialize;

use crate::client::{Client, data_folder};
use crate::failure::Failure;
use crate::{Global, amount, output};

/// Maximum time of all checks together; each has its own time-out.
const CHECKS_MAX: Duration = Duration::from_secs(400);
/// Default share of a GPU in a checkpoint: a model of 70B parameters on 64 GPUs (912 GB, MLPerf Storage 2.0).
const CHECKPOINT_BYTES_PER_GPU: f64 = 14.25e9;

/// What to check, and against what.
#[derive(Args, Clone, Debug)]
pub(crate) struct DoctorArgs {
    /// A folder that runs write to, such as that of checkpoints (may be repeated) [default: this folder and the data folder]
    #[arg(long = "folder", value_name = "DIR")]
    folders: Vec<PathBuf>,
    /// What a node should have, such as H100:8 [default: whatever it has]
    #[arg(long, value_name = "KIND:COUNT", value_parser = accelerators)]
    accelerators: Option<ExpectedAccelerators>,
    /// A node's share of a checkpoint, such as 114GB [default: 14.25 GB for each GPU, 1 GB without]
    #[arg(long, value_name = "SIZE", value_parser = amount::bytes)]
    checkpoint_size: Option<Bytes>,
    /// Nodes of the run that estimates are for
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    run_nodes: u32,
    /// Leave out what loads the machine to measure it
    #[arg(long)]
    quick: bool,
    /// Only this check (may be repeated)
    #[arg(long, value_name = "CHECK", value_parser = check_name)]
    only: Vec<String>,
    /// The longest a check may take, such as 10s [default: each check's own]
    #[arg(long, value_name = "TIME", value_parser = parse_duration)]
    timeout: Option<Duration>,
    /// Check the nodes of a pool by a job on all of them, and the network between them [default pool: training]
    #[arg(long, value_name = "POOL", num_args = 0..=1, default_missing_value = PoolName::DEFAULT)]
    pool: Option<String>,
    /// Of the pool, measure only these nodes
    #[arg(long, value_name = "NODE,...", value_delimiter = ',', value_parser = node_name)]
    nodes: Vec<String>,
    /// With --pool: take one accelerator of each node beside running jobs, rather than wait for whole nodes
    #[arg(long)]
    beside: bool,
    /// With --pool: bytes of the all-reduce
    #[arg(long, value_name = "SIZE", default_value = "64MiB", value_parser = amount::bytes)]
    size: Bytes,
    /// Where the kernel's log is read
    #[arg(long, hide = true, value_name = "FILE", default_value = "/dev/kmsg")]
    kernel_log: PathBuf,
    /// Be a rank of a gang that is checked: what --pool runs on each node
    #[arg(long, hide = true)]
    rank: bool,
}

/// The report on one machine.
#[derive(Serialize)]
struct Report {
    host: String,
    cores: usize,
    seconds: f64,
    problems: usize,
    findings: Vec<Finding>,
}

fn accelerators(text: &str) -> Result<ExpectedAccelerators, String> {
    parse_accelerators(text).map(|(kind, count)| ExpectedAccelerators { kind: kind.0, count, memory: None })
}

fn check_name(text: &str) -> Result<String, String> {
    let names: Vec<&str> = CHECKS.iter().map(|check| check.name).collect();
    named(text).map(|check| check.name.to_owned()).ok_or_else(|| format!("there are: {}", names.join(", ")))
}

fn node_name(text: &str) -> Result<String, String> {
    NodeName::new(text).map(|name| name.to_string()).map_err(|error| error.to_string())
}

pub(crate) fn run(global: &Global, args: &DoctorArgs) -> Result<ExitCode, Failure> {
    if args.rank {
        return gang::run(global, args);
    }
    if args.pool.is_some() || !args.nodes.is_empty() {
        return pool::run(global, args);
    }
    let started = Instant::now();
    let mut findings = check_here(global, args)?;
    findings.extend(control_plane(global).filter(|_| args.only.is_empty()));
    let problems = findings.iter().filter(|finding| finding.verdict.is_problem()).count();
    let report =
        Report { host: host_name(), cores: cores(), seconds: started.elapsed().as_secs_f64(), problems, findings };
    if global.json { output::json(&report) } else { output::print(&show::machine(&report)) }?;
    Ok(exit_code(problems))
}

/// Returns a finding about the control plane that is found from here, if there is one.
fn control_plane(global: &Global) -> Option<Finding> {
    let health: api::Health = Client::connect(global).and_then(|client| client.get("/health")).ok()?;
    let used = format!("journal: {} of {}", Bytes(health.journal_bytes), Bytes(health.journal_bytes_max));
    let is_well = health.reason.is_none();
    let todo = "see docs/reference/configuration.md for --journal-max and [retention], gangline rebuild --check for what is damaged";
    Some(Finding {
        check: "control plane".to_owned(),
        subject: String::new(),
        verdict: if is_well { Verdict::Fine } else { Verdict::Warning },
        measured: format!("{}; {used}", health.reason.unwrap_or(health.status)),
        expected: String::new(),
        why: if is_well { String::new() } else { "jobs may wait or be refused".to_owned() },
        todo: if is_well { String::new() } else { todo.to_owned() },
        estimate: String::new(),
        figures: BTreeMap::new(),
    })
}

fn exit_code(problems: usize) -> ExitCode {
    if problems == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn host_name() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}

fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, std::num::NonZeroUsize::get)
}

/// Runs the requested checks on this machine: first those that only look, which also tell the number of GPUs.
fn check_here(global: &Global, args: &DoctorArgs) -> Result<Vec<Finding>, Failure> {
    let mut expectations = Expectations {
        accelerators: args.accelerators.clone(),
        folders: folders(global, args)?,
        checkpoint_bytes: args.checkpoint_size,
        nodes: args.run_nodes,
        kernel_log: args.kernel_log.clone(),
        ..Expectations::default()
    };
    let guard = Guard { program: std::env::current_exe()?, timeout: args.timeout };
    let is_wanted = |check: &&Check| {
        if args.only.is_empty() {
            !(args.quick && check.measures)
        } else {
            args.only.iter().any(|name| name == check.name)
        }
    };
    let (measures, looks): (Vec<&Check>, Vec<&Check>) =
        CHECKS.iter().filter(is_wanted).partition(|check| check.measures);
    let bar = ProgressBar::new_spinner();
    let mut progress = |check: &Check| {
        bar.set_message(format!("{}: {}", check.name, check.about));
        bar.tick();
    };
    let mut findings = guard.run(&looks, &expectations, CHECKS_MAX, &mut progress);
    let gpus = findings.iter().find_map(|finding| finding.figures.get("gpus").copied());
    expectations.checkpoint_bytes = args.checkpoint_size.or_else(|| gpus.map(share_of));
    findings.extend(guard.run(&measures, &expectations, CHECKS_MAX, &mut progress));
    bar.finish_and_clear();
    Ok(findings)
}

/// Returns the share of a checkpoint for this number of GPUs.
fn share_of(gpus: f64) -> Bytes {
    let bytes = Duration::try_from_secs_f64(gpus * CHECKPOINT_BYTES_PER_GPU / 1e9).unwrap_or_default().as_nanos();
    Bytes(u64::try_from(bytes).unwrap_or(u64::MAX))
}

/// Returns the folders that were named, otherwise this one and the control plane's, if it has one.
fn folders(global: &Global, args: &DoctorArgs) -> Result<Vec<PathBuf>, Failure> {
    if !args.folders.is_empty() {
        return Ok(args.folders.clone());
    }
    let data = data_folder(global).ok().filter(|folder| folder.is_dir());
    Ok(std::iter::once(std::env::current_dir()?).chain(data).collect())
}
