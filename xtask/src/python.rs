//! `python`: the wheel of the Python package, and its tests in an environment of their own below the target folder.

use std::ffi::OsString;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Context as _;

use crate::command::{PROFILE, succeeds};
use crate::environment::{self, Environment};
use crate::wheel::{self, MATURIN, RELEASE, TORCH};
use crate::{dist, test_command};

/// Says which cargo this program stands in for.
const CARGO_OF_MATURIN: &str = "XTASK_CARGO_OF_MATURIN";
/// What maturin's `cargo rustc` becomes: the libraries of the whole workspace, of which the package's is the one that isn't there yet.
const WORKSPACE: [&str; 8] = [
    "build",
    "--workspace",
    "--lib",
    "--quiet",
    "--locked",
    "--profile",
    PROFILE,
    "--message-format=json-render-diagnostics",
];
/// What the tests run against.
const PACKAGES: [&str; 20] = [
    MATURIN,
    TORCH,
    "numpy>=2,<3",
    "safetensors>=0.5",
    "pytest>=8",
    "pytest-xdist>=3",
    "jax>=0.5",
    "ml_dtypes",
    "pytorch-lightning>=2.6,<3",
    "transformers>=5,<6",
    "accelerate>=1.15,<2",
    // The real writers of what gangline.Rows reads: with pandas, which they bring along, 270 MB on disk.
    "pyarrow>=20",
    "datasets>=4",
    // Says which samples come when in a run of Megatron-Core's.
    "megatron-core>=0.16,<0.17",
    // Judges exported bills.
    "focus-data-toolkit>=0.14,<0.15",
    // The real server and client, whose answers ours are compared with: of the very version whose API this is.
    "mlflow==3.17.2",
    // Write what is imported.
    "tensorboard>=2.18",
    "wandb>=0.20",
    // A collector of OpenTelemetry.
    "rotel==0.0.1a15",
    // Grafana's schema of dashboards.
    "grafana-foundation-sdk==1769699998!10.1.0",
];

/// The real writers of other formats of tokens and records, with what these writers import: all that the packages say they need is ten
/// times as much, and of other versions than the rest.
const WRITERS: [&str; 13] = [
    "--no-deps",
    "litdata==0.2.76",
    "mosaicml-streaming==0.13.0",
    "webdataset>=1,<2",
    "braceexpand",
    "boto3",
    "botocore",
    "s3transfer",
    "jmespath",
    "brotli",
    "python-snappy",
    "cramjam",
    "zstd",
];

/// The environment of the tests, with everything in it but the package.
///
/// # Errors
/// When it can't be made.
pub(crate) fn environment() -> anyhow::Result<Environment> {
    let environment = Environment::open(&environment::target()?, "python-venv")?;
    environment.install("packages", &PACKAGES)?;
    environment.install("writers", &WRITERS)?;
    Ok(environment)
}

/// Builds the wheel, and unless only that is asked for, installs it and runs its tests; true if all pass. `filters` go to
/// pytest.
///
/// # Errors
/// When the environment can't be made or the wheel doesn't build.
pub(crate) fn python(is_wheel_only: bool, filters: &[String]) -> anyhow::Result<bool> {
    let target = environment::target()?;
    let environment = environment()?;
    if is_wheel_only {
        eprintln!("{}", wheel::build(&target, &environment, RELEASE, &[])?.display());
        return Ok(true);
    }
    wheel::install(&environment, &wheel_of_tests(&target, &environment)?)?;
    let mut tests = Command::new(environment.programs().join("pytest"));
    tests.args(["--config-file", "python/pyproject.toml", "-p", "no:cacheprovider", "python/tests"]);
    // A process for each processor, and few where there are many: each imports PyTorch.
    tests.args(["--numprocesses", "auto", "--maxprocesses", "4", "--dist", "worksteal"]).args(filters);
    // Scripts of PyTorch run as jobs of the binary that the other tests have too.
    test_command::build(false)?;
    let binary = test_command::binary()?;
    // The tutorial's test installs it as its readers do.
    tests.env("GANGLINE_TARBALL", dist::tarball_of(&binary, &target.join("installed"))?).env("GANGLINE_BINARY", binary);
    // The package that was installed is tested, not the one beside the tests. What is compiled is kept, outside the tree: PyTorch
    // takes twice as long to import otherwise, and a hundred processes do.
    tests.env_remove("PYTHONPATH").env_remove("PYTHONDONTWRITEBYTECODE");
    succeeds(tests.env("PYTHONPYCACHEPREFIX", target.join("python-compiled")))
}

/// The wheel of what the tests compiled: cargo would compile half of it once more for the package alone, which asks for fewer features
/// of others' code. Maturin calls this program in cargo's place.
fn wheel_of_tests(target: &Path, environment: &Environment) -> anyhow::Result<PathBuf> {
    let us = std::env::current_exe().context("find this program")?;
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    wheel::build(target, environment, PROFILE, &[("CARGO", us.as_os_str()), (CARGO_OF_MATURIN, &cargo)])
}

/// Stands in for cargo if maturin called this program for that; returns only if not, or if it can't.
pub(crate) fn build_for_maturin() -> anyhow::Result<()> {
    let Some(cargo) = std::env::var_os(CARGO_OF_MATURIN) else { return Ok(()) };
    let arguments: Vec<OsString> = std::env::args_os().skip(1).collect();
    let mut command = Command::new(cargo);
    command.env_remove("CARGO").env_remove(CARGO_OF_MATURIN);
    match arguments.first().and_then(|first| first.to_str()) {
        Some("rustc") => command.args(WORKSPACE),
        _ => command.args(arguments),
    };
    Err(command.exec()).context("start cargo")
}
