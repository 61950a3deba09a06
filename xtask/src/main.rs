//! Project commands, in Rust so that a bare machine needs nothing else: `cargo xtask ci | test | quick | tidy | deny |
//! fuzz | python | wheels | dist | soak | bench`.
//!
//! What they share with the benchmarks is the library. Everything but benchmarks and what ships is built in the ci profile, so that dependencies are compiled once for building, linting and testing.
//! All results go into cargo's target folder; only `bench NAME --write` writes into the tree, a page of docs/benchmarks.
#![expect(clippy::print_stdout, clippy::print_stderr, reason = "these are command-line tools: output is their purpose")]

mod bench;
#[path = "../../crates/diagnosis/tests/bundle/mod.rs"]
mod bundle;
mod ci;
mod deny;
mod dist;
mod emulated;
mod fuzz;
mod programs;
mod python;
mod soak;
mod test_command;
mod test_report;
mod tidy;
mod tools;
mod wheels;

use std::process::ExitCode;

use clap::{Parser, Subcommand};
use xtask::{command, environment, wheel};

/// Gangline's project commands.
#[derive(Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask")]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// The gate: all that must hold before a change is shared, or only some parts of it, as often as one likes.
    Ci(ci::Options),
    /// Builds what the tests run, then runs them all; the last line is the sum.
    Test {
        /// Only tests whose path contains one of these; or options of the test harness.
        #[arg(last = true)]
        filters: Vec<String>,
    },
    /// One part of the gate, alone: the gate runs parts beside each other so.
    #[command(hide = true)]
    Part { name: String },
    /// Under a minute when warm: format, tidy, clippy, the tests of the pure crates.
    Quick,
    /// Checks the rules of STYLE.md that a program can check.
    Tidy,
    /// Checks the dependencies' licences, versions, sources and advisories by deny.toml.
    Deny,
    /// Fuzzes the readers of bytes that somebody else may have written, side by side.
    Fuzz(fuzz::Options),
    /// Builds the Python package's wheel, installs it beside PyTorch below target/ and runs its tests.
    Python {
        /// Only builds the wheel, into target/wheels/.
        #[arg(long)]
        wheel: bool,
        /// Goes to pytest: -k EXPRESSION, or paths.
        #[arg(last = true)]
        filters: Vec<String>,
    },
    /// Builds the wheels for x86-64 and ARM and for glibc from 2.17 on, and judges them: two minutes each, so no part of the gate.
    Wheels,
    /// Builds what others install, a static binary in a tarball and a Debian package, and tries the package in an empty root.
    Dist(dist::Options),
    /// Kills, stops, fills and damages the product at random, and holds it to what it has answered (--help).
    Soak {
        /// How long, what, and from which seed.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        options: Vec<String>,
    },
    /// Runs a benchmark; without a name, lists them.
    Bench {
        /// Which one.
        name: Option<String>,
        /// Its options; all take --write, which writes what was printed as a page below docs/benchmarks; planning has --rows FILE..., --plot FILE, --fit, --each and --leave-one-out, plane has --only PART (--help), scheduler has --only right|fast|good and --quick, coding and checkpoint have --quick, diagnosis has --corpus DIR, recovery has --injections N and --only PART (--help), slurm has --starts N, tensors has --count N.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        options: Vec<String>,
    },
}

/// Ends with 0 if all was well, 1 if not, and 2 if that couldn't be found out.
fn main() -> ExitCode {
    match fuzz::compile().and_then(|()| python::build_for_maturin()).and_then(|()| run(Arguments::parse().command)) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::from(2)
        }
    }
}

/// Whether all was well; an error is something that kept the command from finding out.
fn run(command: Command) -> anyhow::Result<bool> {
    std::env::set_current_dir(command::root()?)?;
    match command {
        Command::Ci(options) => ci::ci(&options),
        Command::Test { filters } => test_command::test(&filters, tools::is_ci()),
        Command::Part { name } => ci::part(&name),
        Command::Quick => ci::quick(),
        Command::Tidy => tidy(),
        Command::Deny => deny::deny(),
        Command::Fuzz(options) => fuzz::fuzz(&options),
        Command::Python { wheel, filters } => python::python(wheel, &filters),
        Command::Wheels => wheels::wheels(),
        Command::Dist(options) => dist::dist(&options),
        Command::Soak { options } => soak::soak(&options),
        Command::Bench { name, options } => bench::bench(name.as_deref(), &options),
    }
}

/// Prints every breach on a line of its own, and how many.
fn tidy() -> anyhow::Result<bool> {
    let breaches = tidy::breaches(&command::root()?)?;
    for breach in &breaches {
        println!("{breach}");
    }
    eprintln!("tidy: {} breaches", breaches.len());
    Ok(breaches.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_well_formed() {
        use clap::CommandFactory as _;
        Arguments::command().debug_assert();
    }

    #[test]
    fn filters_of_tests_come_after_two_dashes() {
        let parsed = Arguments::try_parse_from(["xtask", "test", "--", "e2e::", "--nocapture"]).unwrap();
        assert!(matches!(parsed.command, Command::Test { filters } if filters == ["e2e::", "--nocapture"]));
        assert!(Arguments::try_parse_from(["xtask", "tset"]).is_err());
    }
}
