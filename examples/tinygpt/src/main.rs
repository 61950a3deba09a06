//! The trainer as a program of its own; `gangline tinygpt` is the same.

use std::process::ExitCode;

use clap::Parser;

/// Trains a small byte-level GPT on Rust sources.
#[derive(Parser)]
#[command(name = "tinygpt", version)]
struct Cli {
    #[command(flatten)]
    args: gangline_tinygpt::Args,
}

fn main() -> ExitCode {
    let code = gangline_tinygpt::run(&Cli::parse().args);
    ExitCode::from(u8::try_from(code).unwrap_or(1))
}
