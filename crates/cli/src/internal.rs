//! Commands that Gangline's own processes run, hidden from the help: the supervisor, the shims, and the
//! start of a rank. They log to standard error, which is the attempt's `supervisor.log`.

use std::error::Error;
use std::ffi::OsString;
use std::io::Read;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::Subcommand;
use gangline_base::with_causes;
use gangline_execution::health::node;
use gangline_execution::shim::{ContainerRuntime, ShimOptions, exec_rank, keep_rank};
use gangline_execution::supervisor::{Identity, SuperviseOptions, Supervised, UNABLE_CODE, supervise};

use crate::output::{say, tell};

/// Exit code of a supervisor if nobody acknowledged its attempt's end.
const UNDELIVERED: u8 = 5;

/// Interval between two looks at whether a process has ended.
const LOOK_INTERVAL: Duration = Duration::from_millis(200);
/// Maximum size of the expectations of a node.
const EXPECTATIONS_BYTES_MAX: u64 = 1 << 20;

/// The internal commands.
#[derive(Subcommand)]
pub(crate) enum Internal {
    /// Supervise a node's share of an attempt.
    #[command(hide = true)]
    Supervise {
        /// The spec file.
        spec: PathBuf,
        /// Give its processes a control group of their own, where that is possible.
        #[arg(long)]
        own_group: bool,
    },
    /// Keep one rank: its processes, its log, the record of its end.
    #[command(hide = true)]
    KeepRank {
        /// The log file.
        #[arg(long)]
        log: PathBuf,
        /// Where the log is rotated, in bytes.
        #[arg(long)]
        log_bytes_max: u64,
        /// The record of the end.
        #[arg(long)]
        record: PathBuf,
        /// What runs the rank's container, if the command does that.
        #[arg(long)]
        container: Option<ContainerRuntime>,
        /// The rank's command.
        #[arg(last = true, required = true)]
        command: Vec<OsString>,
    },
    /// Run one check of this node: expectations as JSON from standard input, findings as JSON to standard output.
    #[command(hide = true)]
    Check {
        /// Its name.
        name: String,
    },
    /// Print what NVIDIA's driver says of this node's GPUs as it happens, a line each, until standard input ends.
    #[command(hide = true)]
    WatchGpus,
    /// Do nothing until a process has ended: holds the devices of an interactive job.
    #[command(hide = true)]
    Outlast {
        /// The process: its identity as JSON.
        process: String,
    },
    /// Become a rank.
    #[command(hide = true)]
    ExecRank {
        /// The shim's process id.
        #[arg(long)]
        shim: u32,
        /// What is the command's standard input, as it is open in the shim; nothing by default.
        #[arg(long)]
        input: Option<u32>,
        /// The rank's command.
        #[arg(last = true, required = true)]
        command: Vec<OsString>,
    },
}

/// Runs an internal command to its end.
pub(crate) fn run(internal: Internal) -> ExitCode {
    match internal {
        Internal::Supervise { spec, own_group } => run_supervisor(spec, own_group),
        Internal::KeepRank { log, log_bytes_max, record, container, command } => {
            match keep_rank(&ShimOptions { log, log_bytes_max, record, container, command }) {
                Ok(()) => ExitCode::SUCCESS,
                Err(error) => failed("keep the rank", &error),
            }
        }
        Internal::Check { name } => match check(&name) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                tell(&error);
                ExitCode::FAILURE
            }
        },
        Internal::WatchGpus => match watch_gpus() {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                tell(&error);
                ExitCode::FAILURE
            }
        },
        Internal::Outlast { process } => match outlast(&process) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => failed("read whose devices to hold", &error),
        },
        Internal::ExecRank { shim, input, command } => match exec_rank(shim, input, &command) {
            Ok(never) => match never {},
            Err(error) => failed_rank(&error),
        },
    }
}

fn outlast(process: &str) -> Result<(), serde_json::Error> {
    let process: Identity = serde_json::from_str(process)?;
    while process.is_alive() {
        std::thread::sleep(LOOK_INTERVAL);
    }
    Ok(())
}

fn check(name: &str) -> Result<(), String> {
    let check = node::named(name).ok_or_else(|| format!("there is no check \"{name}\""))?;
    let mut text = String::new();
    let stdin = std::io::stdin().lock().take(EXPECTATIONS_BYTES_MAX);
    let read = { stdin }.read_to_string(&mut text);
    read.map_err(|error| format!("failed to read what is expected: {error}"))?;
    let expectations =
        serde_json::from_str(&text).map_err(|error| format!("failed to read what is expected: {error}"))?;
    let findings = serde_json::to_string(&check.run_here(&expectations)).map_err(|error| error.to_string())?;
    say(&findings).map_err(|_| "failed to print what was found".to_owned())
}

#[expect(clippy::exit, reason = "the driver is listened to for seconds at a time, and may hang: nobody waits for that")]
fn watch_gpus() -> Result<(), String> {
    std::thread::spawn(|| {
        let _ = std::io::copy(&mut std::io::stdin().lock(), &mut std::io::sink());
        std::process::exit(0);
    });
    let watched = node::watch_gpus(|line| say(line).map_err(|_| std::io::ErrorKind::BrokenPipe.into()));
    watched.map_err(|error| error.to_string())
}

fn run_supervisor(spec: PathBuf, has_own_group: bool) -> ExitCode {
    log_to_stderr();
    // The options of this command line, above all the token, aren't passed on to ranks.
    let is_option = |name: &str| name.starts_with("GANGLINE_") && name != ContainerRuntime::CHOICE;
    let is_ours = |name: &OsString| name.to_str().is_some_and(is_option);
    let environment = std::env::vars_os().filter(|(name, _)| !is_ours(name)).collect();
    let kernel_log = std::env::var_os("GANGLINE_KERNEL_LOG").map(PathBuf::from);
    let temporary_folder = std::env::temp_dir();
    let options = SuperviseOptions { spec, temporary_folder, environment, kernel_log, has_own_group };
    match supervise(options) {
        Ok(Supervised::Delivered | Supervised::Elsewhere) => ExitCode::SUCCESS,
        Ok(Supervised::Undelivered) => ExitCode::from(UNDELIVERED),
        Ok(Supervised::Unable) => ExitCode::from(UNABLE_CODE),
        Err(error) => {
            let code = failed("supervise", &error);
            if error.is_platforms() { ExitCode::from(UNABLE_CODE) } else { code }
        }
    }
}

pub(crate) fn log_to_stderr() {
    let filter = tracing_subscriber::EnvFilter::try_from_env("GANGLINE_LOG")
        .unwrap_or_else(|_| tracing_subscriber::EnvFilter::new("info"));
    // If the log can't be written (a full disk, a closed pipe), messages are lost, but nothing ends: the
    // subscriber's own complaint would go to the same place and panic there.
    let quiet = tracing_subscriber::fmt().log_internal_errors(false).with_target(false).with_ansi(false);
    quiet.with_env_filter(filter).with_writer(std::io::stderr).init();
}

/// Reports an internal command's failure in the attempt's supervisor.log.
fn failed(doing: &str, error: &dyn Error) -> ExitCode {
    tell(&format!("failed to {doing}: {}", with_causes(error)));
    ExitCode::FAILURE
}

/// Fails as a shell does: 127 for a command that can't be run. The message goes to the rank's log.
fn failed_rank(error: &dyn Error) -> ExitCode {
    tell(&format!("gangline: failed to {}", with_causes(error)));
    ExitCode::from(127)
}
