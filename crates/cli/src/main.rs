//! `gangline`: the one binary. Parses the command line and hands over; everything else is elsewhere.

mod internal;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Plans, schedules, runs, checkpoints, watches and accounts for LLM training.
#[derive(Parser)]
#[command(name = "gangline", version)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    #[command(flatten)]
    Internal(internal::Internal),
}

fn main() -> ExitCode {
    match Arguments::parse().command {
        Command::Internal(internal) => internal::run(internal),
    }
}
