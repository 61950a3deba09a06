//! `gangline`: the only binary. Parses the command line, calls the command, and turns failures into exit
//! codes.

mod agent;
mod alerts;
mod amount;
mod backup;
mod cancel;
mod change;
mod checkpoint;
mod client;
mod cluster;
mod configuration;
mod cost;
mod courier;
mod data;
#[cfg(feature = "demo")]
mod demo;
mod doctor;
mod exec;
mod explain;
mod failure;
mod follow;
mod goodput;
mod internal;
mod jobs;
mod launcher;
mod listen;
mod listing;
mod log_reader;
mod logs;
mod manual;
mod models;
mod moment;
mod output;
mod plan;
mod rebuild;
mod reload;
mod report;
mod retention;
mod retry;
mod run;
mod runs;
mod s3;
mod sbatch;
mod schedules;
mod series;
mod show;
mod simulate;
mod slurm;
mod stragglers;
mod submit;
mod sweeps;
mod templates;
mod token;
mod up;
mod why;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, Parser, Subcommand};

use client::Client;
use failure::Failure;

/// Plans, schedules, runs, checkpoints, watches and accounts for LLM training.
#[derive(Parser)]
#[command(
    name = "gangline",
    version,
    after_help = "Exit codes: 0 ok, 1 the request failed, 2 usage, 3 not found, 4 refused, 5 control plane unreachable."
)]
struct Arguments {
    #[command(flatten)]
    global: Global,
    #[command(subcommand)]
    command: Command,
}

/// Options of every command.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Connection and output")]
struct Global {
    /// The data folder of the control plane [default: $XDG_DATA_HOME/gangline or ~/.local/share/gangline]
    #[arg(long, global = true, env = "GANGLINE_DATA", value_name = "DIR")]
    data: Option<PathBuf>,
    /// The control plane's URL [default: what the data folder says]
    #[arg(long, global = true, env = "GANGLINE_URL")]
    url: Option<String>,
    /// A file with the token; or the variable GANGLINE_TOKEN has it [default: what the data folder says]
    #[arg(long, global = true, env = "GANGLINE_TOKEN_FILE", value_name = "FILE")]
    token_file: Option<PathBuf>,
    /// Refused: everybody sees the command line.
    #[arg(long, global = true, hide = true)]
    token: Option<String>,
    /// The certificates that are trusted for an https URL (PEM) [default: certificate.pem in the data folder]
    #[arg(long, global = true, env = "GANGLINE_CERTIFICATE", value_name = "FILE")]
    certificate: Option<PathBuf>,
    /// Print JSON, as the API gives it
    #[arg(long, global = true)]
    json: bool,
}

#[derive(Subcommand)]
enum Command {
    /// Start the control plane
    Up(up::UpArgs),
    /// Train three real models here, kill one, watch it recover, and read what each cost
    #[cfg(feature = "demo")]
    Demo(demo::DemoArgs),
    /// Send a job
    Submit(submit::SubmitArgs),
    /// Run a command as a job, without a job file, and follow it to its end; -i for a shell on a job's devices
    #[command(after_help = "The exit code is that of the rank that failed first; 130 after Ctrl-C.")]
    Run(run::RunArgs),
    /// List schedules, or submit a job file again and again at the times of one, as cron does
    Schedules(schedules::SchedulesArgs),
    /// List templates of job files, or print one
    Templates(templates::TemplatesArgs),
    /// List the runs that scripts log through MLflow's clients, or show one
    Runs(runs::RunsArgs),
    /// Make checkpoints versions of models, promote and export them, and show where they came from
    Models(models::ModelsArgs),
    /// List jobs
    Ps(jobs::PsArgs),
    /// Show a job: attempts, recoveries, where its slot-seconds went, what it cost; or a sweep and its jobs
    Show(show::ShowArgs),
    /// Show what was measured: all metrics of a job or a node, or the curve of one
    Series(series::SeriesArgs),
    /// Say why a job is slower than it could be: data, checkpoints, communication, slow ranks, and what each costs
    Why(why::WhyArgs),
    /// Show how much of a job's time was productive, with and without the time in the queue
    Goodput(goodput::GoodputArgs),
    /// Say what training cost and where the money went, export bills, and plan capacity
    Cost {
        #[command(subcommand)]
        command: cost::CostCommand,
    },
    /// List alerts that fire; acknowledge or silence them
    Alerts(alerts::AlertsArgs),
    /// Print a rank's log
    Logs(logs::LogsArgs),
    /// Say why a job waits, or runs where it does; with --log, why a run failed
    Explain(explain::ExplainArgs),
    /// Run a command in the environment of a running job, on this machine
    Exec(exec::ExecArgs),
    /// Open a shell in the environment of a running job, on this machine
    Attach(exec::AttachArgs),
    /// Keep waiting jobs from starting
    Hold(change::JobsArgs),
    /// Let held jobs start
    Release(change::JobsArgs),
    /// Change the queue, the priority or the time limit of a waiting job
    Set(change::SetArgs),
    /// Submit an ended job again: a new job continues from its checkpoints
    #[command(visible_alias = "requeue")]
    Resume(change::ResumeArgs),
    /// End jobs, or all jobs of a sweep
    Cancel(cancel::CancelArgs),
    /// List nodes and who holds their accelerators; or show one: its readings, what went wrong on it, who ran there
    Nodes(cluster::NodesArgs),
    /// Read this node and its accelerators, check it, and send both to the control plane, whether or not a job runs
    Agent(agent::AgentArgs),
    /// Let nothing new start on a node
    Drain(cluster::DrainArgs),
    /// Have the control plane read its configuration file again
    Reload,
    /// List queues
    Queues,
    /// Watch jobs and slots
    Top(cluster::TopArgs),
    /// Say what a training run needs: memory, layout, time, money; and where to get the machines
    Plan(Box<plan::PlanArgs>),
    /// Run a trace through a scheduling policy on a cluster that isn't there
    Simulate(simulate::SimulateArgs),
    /// Say how much stragglers cost a job, and which ranks and phases they are; or the same of a trace of a gang's operations
    Stragglers(stragglers::StragglersArgs),
    /// Check this machine, or a pool of nodes: what a training run will suffer from, and how much
    #[command(after_help = "Exit codes: 0 no problem found, 1 problems found (or the command failed), 2 usage.")]
    Doctor(Box<doctor::DoctorArgs>),
    /// Make a Slurm for machines that have none
    Slurm {
        #[command(subcommand)]
        command: slurm::SlurmCommand,
    },
    /// Copy the journal, the secrets and the configuration into a new folder, whole and checked, while the control plane runs
    Backup(backup::BackupArgs),
    /// Put a backup into the data folder of a control plane that isn't running
    Restore(backup::RestoreArgs),
    /// Say what of ended jobs the control plane would remove now, and by which rule; changes nothing
    Retention(retention::RetentionArgs),
    /// Make jobs, sweeps and ledger again from the journal of a control plane that isn't running, where they aren't what it says
    #[command(
        after_help = "Exit codes: 0 done (with --check: nothing differs), 1 something differs or the command failed, 2 usage."
    )]
    Rebuild(rebuild::RebuildArgs),
    /// Make a link to the page, or replace the users' token
    Token {
        #[command(subcommand)]
        command: token::TokenCommand,
    },
    /// Look after checkpoints
    Checkpoint {
        #[command(subcommand)]
        command: checkpoint::CheckpointCommand,
    },
    /// Look at token datasets, check, convert and measure them
    Data {
        #[command(subcommand)]
        command: data::DataCommand,
    },
    /// Print completions for a shell, to be kept where it looks for them
    Completions(manual::CompletionsArgs),
    #[command(flatten)]
    Manual(manual::Manual),
    /// The example trainer, as the demo runs it
    #[cfg(feature = "demo")]
    #[command(hide = true)]
    Tinygpt(gangline_tinygpt::Args),
    #[command(flatten)]
    Internal(internal::Internal),
}

fn main() -> ExitCode {
    let Arguments { global, command } = Arguments::parse();
    let is_json = global.json;
    match run(global, command) {
        Ok(code) => code,
        Err(failure) => failure.report(is_json),
    }
}

fn run(global: Global, command: Command) -> Result<ExitCode, Failure> {
    match command {
        Command::Internal(internal) => return Ok(internal::run(internal)),
        #[cfg(feature = "demo")]
        Command::Tinygpt(args) => return Ok(exit_code(gangline_tinygpt::run(&args))),
        Command::Completions(args) => manual::completions(&args)?,
        Command::Manual(command) => manual::run(&command)?,
        Command::Up(args) => up::run(&global, &args)?,
        #[cfg(feature = "demo")]
        Command::Demo(args) => demo::run(&global, &args)?,
        Command::Token { command } => token::run(&global, &command)?,
        Command::Checkpoint { command } => return checkpoint::run(&global, &command),
        Command::Data { command } => data::run(&command, global.json)?,
        Command::Backup(args) => backup::backup(&global, &args)?,
        Command::Restore(args) => backup::restore(&global, &args)?,
        Command::Retention(args) => retention::run(&global, &args)?,
        Command::Rebuild(args) => rebuild::rebuild(&global, &args)?,
        Command::Doctor(args) => return doctor::run(&global, &args),
        Command::Plan(args) => plan::run(&args, global.json)?,
        Command::Simulate(args) => simulate::run(&args, global.json)?,
        Command::Slurm { command } => return slurm::run(&command, global.json),
        Command::Stragglers(args) => stragglers::run(&global, &args)?,
        Command::Submit(args) => return submit::run(&Client::connect(&global)?, &args, global.json),
        Command::Run(args) => return run::run(&Client::connect(&global)?, &args),
        Command::Exec(args) => match exec::exec(&Client::connect(&global)?, &args)? {},
        Command::Attach(args) => match exec::attach(&Client::connect(&global)?, &args)? {},
        Command::Hold(args) => change::hold(&Client::connect(&global)?, &args, true, global.json)?,
        Command::Release(args) => change::hold(&Client::connect(&global)?, &args, false, global.json)?,
        Command::Set(args) => change::set(&Client::connect(&global)?, &args, global.json)?,
        Command::Resume(args) => change::resume(&Client::connect(&global)?, &args, global.json)?,
        Command::Schedules(args) => schedules::run(&Client::connect(&global)?, &args, global.json)?,
        Command::Templates(args) => templates::run(&Client::connect(&global)?, &args, global.json)?,
        Command::Runs(args) => runs::run(&Client::connect(&global)?, &args, global.json)?,
        Command::Models(args) => return models::run(&Client::connect(&global)?, &args, global.json),
        Command::Ps(args) => jobs::list(&Client::connect(&global)?, &args, global.json)?,
        Command::Show(args) => show::run(&global, &args)?,
        Command::Series(args) => series::run(&Client::connect(&global)?, &args, global.json)?,
        Command::Why(args) => why::run(&Client::connect(&global)?, &args, global.json)?,
        Command::Goodput(args) => goodput::run(&Client::connect(&global)?, &args, global.json)?,
        Command::Cost { command } => cost::run(&global, &command)?,
        Command::Alerts(args) => alerts::run(&global, &args)?,
        Command::Logs(args) => logs::run(&Client::connect(&global)?, &args, global.json)?,
        Command::Explain(args) => explain::run(&global, &args)?,
        Command::Cancel(args) => cancel::run(&Client::connect(&global)?, &args, global.json)?,
        Command::Nodes(args) => cluster::nodes(&Client::connect(&global)?, &args, global.json)?,
        Command::Agent(args) => agent::run(&global, &args)?,
        Command::Drain(args) => cluster::drain(&Client::connect(&global)?, &args, global.json)?,
        Command::Reload => reload::run(&Client::connect(&global)?, global.json)?,
        Command::Queues => cluster::queues(&Client::connect(&global)?, global.json)?,
        Command::Top(args) => cluster::top(&Client::connect(&global)?, &args, global.json)?,
    }
    Ok(ExitCode::SUCCESS)
}

#[cfg(feature = "demo")]
fn exit_code(code: i32) -> ExitCode {
    ExitCode::from(u8::try_from(code).unwrap_or(1))
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_well_formed() {
        super::Arguments::command().debug_assert();
    }
}
