//! `gangline doctor`, by the real binary on this machine: what it finds, what it refuses, what hangs, and a gang in network namespaces
//! with a slow link.

mod gang;
mod machine;

use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;

/// Returns the binary's command with these arguments, in a folder and without this test's environment except
/// PATH.
fn gangline(folder: &Path, words: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_gangline"));
    command.args(words).current_dir(folder).env_clear().env("PATH", std::env::var_os("PATH").unwrap_or_default());
    command
}

fn doctor(folder: &Path, words: &[&str]) -> Output {
    gangline(folder, &[&["doctor"], words].concat()).output().expect("gangline runs")
}

fn json(output: &Output) -> Value {
    let words = || format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("not JSON: {error}: {}", words()))
}

/// Returns the findings of a check.
fn findings<'a>(report: &'a Value, check: &str) -> Vec<&'a Value> {
    let all = report["findings"].as_array().expect("findings");
    all.iter().filter(|finding| finding["check"] == check).collect()
}
