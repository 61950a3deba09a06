//! Measurements of the product on this machine, each beside the limit it is measured against, and the soak.
//!
//! `cargo xtask bench NAME` and `cargo xtask soak` start this program: `gangline-benches NAME OPTIONS`. It ends with 0 if every
//! bar was met, with 1 if one was missed, and with 2 if that couldn't be found out.
#![expect(clippy::print_stdout, clippy::print_stderr, reason = "these are command-line tools: output is their purpose")]

#[cfg(feature = "accounting")]
mod accounting;
#[cfg(feature = "product")]
mod archive;
#[cfg(any(feature = "accounting", feature = "product"))]
mod binary;
#[cfg(feature = "diagnosis")]
#[path = "../../crates/diagnosis/tests/bundle/mod.rs"]
mod bundle;
#[cfg(feature = "product")]
mod checkpoint;
#[cfg(feature = "product")]
mod coding;
#[cfg(feature = "data")]
mod data;
#[cfg(feature = "diagnosis")]
mod diagnosis;
#[cfg(feature = "product")]
mod engine;
#[cfg(feature = "product")]
mod moment;
#[cfg(feature = "product")]
mod monitoring;
#[cfg(feature = "product")]
mod plane;
#[cfg(feature = "planning")]
mod planning;
#[cfg(feature = "product")]
mod processes;
#[cfg(feature = "product")]
mod recovery;
#[cfg(any(feature = "accounting", feature = "data", feature = "product"))]
#[cfg_attr(not(feature = "product"), expect(dead_code, reason = "the others print no percentiles"))]
mod report;
#[cfg(feature = "product")]
mod scheduler;
#[cfg(feature = "product")]
mod slurm;
#[cfg(feature = "product")]
mod soak;
#[cfg(feature = "stragglers")]
mod stragglers;
#[cfg(feature = "telemetry")]
mod telemetry;
#[cfg(feature = "tensors")]
mod tensors;
#[cfg(feature = "product")]
mod tracking;
#[cfg(feature = "product")]
mod training;

use std::process::ExitCode;

use xtask::command;

/// A benchmark takes its options, prints what it measured and returns whether its targets were met.
type Bench = fn(&[String]) -> anyhow::Result<bool>;

/// Every benchmark by name.
const BENCHES: &[(&str, Bench)] = &[
    #[cfg(feature = "accounting")]
    ("accounting", accounting::run),
    #[cfg(feature = "product")]
    ("archive", archive::run),
    #[cfg(feature = "product")]
    ("checkpoint", checkpoint::run),
    #[cfg(feature = "product")]
    ("coding", coding::run),
    #[cfg(feature = "data")]
    ("data", data::run),
    #[cfg(feature = "diagnosis")]
    ("diagnosis", diagnosis::run),
    #[cfg(feature = "product")]
    ("engine", engine::run),
    #[cfg(feature = "product")]
    ("monitoring", monitoring::run),
    #[cfg(feature = "planning")]
    ("planning", planning::run),
    #[cfg(feature = "product")]
    ("plane", plane::run),
    #[cfg(feature = "product")]
    ("recovery", recovery::run),
    #[cfg(feature = "product")]
    ("scheduler", scheduler::run),
    #[cfg(feature = "product")]
    ("slurm", slurm::run),
    #[cfg(feature = "product")]
    ("soak", soak::run),
    #[cfg(feature = "stragglers")]
    ("stragglers", stragglers::run),
    #[cfg(feature = "telemetry")]
    ("telemetry", telemetry::run),
    #[cfg(feature = "tensors")]
    ("tensors", tensors::run),
    #[cfg(feature = "product")]
    ("tracking", tracking::run),
];

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let ended = command::root().and_then(|root| {
        std::env::set_current_dir(root)?;
        run(BENCHES, &arguments)
    });
    match ended {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::from(2)
        }
    }
}

/// Runs the benchmark that the first argument names with the others as its options; without arguments, lists all.
fn run(benches: &[(&str, Bench)], arguments: &[String]) -> anyhow::Result<bool> {
    let names: Vec<&str> = benches.iter().map(|(name, _)| *name).collect();
    let Some((name, options)) = arguments.split_first() else {
        names.iter().for_each(|name| println!("{name}"));
        return Ok(true);
    };
    match benches.iter().find(|(known, _)| known == name) {
        Some((_, bench)) => bench(options),
        None => anyhow::bail!("no benchmark \"{name}\": there are {}", names.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TWO: &[(&str, Bench)] = &[("fast", |_| Ok(true)), ("slow", |options| Ok(options == ["--quick"]))];

    fn run_two(arguments: &[&str]) -> anyhow::Result<bool> {
        run(TWO, &arguments.iter().map(|argument| (*argument).to_owned()).collect::<Vec<_>>())
    }

    #[test]
    fn a_benchmark_runs_by_name_and_says_whether_it_met_its_target() {
        assert!(run_two(&["fast"]).unwrap());
        assert!(!run_two(&["slow"]).unwrap());
        assert!(run_two(&["slow", "--quick"]).unwrap());
    }

    #[test]
    fn an_unknown_name_is_refused_with_the_known_ones() {
        let error = run_two(&["fsat"]).unwrap_err().to_string();
        assert_eq!(error, "no benchmark \"fsat\": there are fast, slow");
    }
}
