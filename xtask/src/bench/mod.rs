//! `bench NAME`: starts a benchmark of `benches/`, built as what ships is.

mod page;

use std::process::Command;

use crate::command::{cargo, succeeds};

/// Benchmarks of one crate, each a feature of the package: built alone, in seconds.
const ALONE: [&str; 7] = ["accounting", "data", "diagnosis", "planning", "stragglers", "telemetry", "tensors"];

/// Runs the named benchmark; without a name, lists them. What goes wrong, the benchmark has said.
///
/// # Errors
/// When cargo can't be started, or the page that `--write` asks for can't be written.
pub(crate) fn bench(name: Option<&str>, options: &[String]) -> anyhow::Result<bool> {
    let mut command = benches(name);
    match name.filter(|_| options.iter().any(|option| option == page::WRITE)) {
        Some(name) => {
            let others = options.iter().filter(|option| *option != page::WRITE);
            page::write(name, options, command.args(others))
        }
        None => succeeds(command.args(options)),
    }
}

fn benches(name: Option<&str>) -> Command {
    let mut command = cargo(["run", "--quiet", "--release"]);
    match name.filter(|name| ALONE.contains(name)) {
        Some(name) => command.args(["--package", "gangline-benches", "--no-default-features", "--features", name]),
        None => command.args(["--bin", "gangline-benches"]),
    };
    command.arg("--").args(name);
    command
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_benchmark_of_one_crate_is_built_without_the_rest_of_the_product() {
        let line = |name| crate::command::line(&benches(name));
        assert!(line(Some("planning")).contains("--no-default-features --features planning -- planning"));
        assert!(line(Some("engine")).contains("--bin gangline-benches -- engine"));
        assert!(line(None).ends_with("--bin gangline-benches --"));
    }
}
