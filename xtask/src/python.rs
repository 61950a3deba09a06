//! `python`: the wheel of the Python package, and its tests in an environment of their own below the target folder.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Context as _;

use crate::command::{PROFILE, run, succeeds};
use crate::environment::{self, Environment};
use crate::test_command;

/// The profile of the wheel that ships.
const RELEASE: &str = "release";
/// What builds the wheel.
pub(crate) const MATURIN: &str = "maturin>=1.9.4,<2";
/// PyTorch, pinned since its checkpoint plug-ins change with it.
pub(crate) const TORCH: &str = "torch==2.15.0";
/// What the tests run against.
const PACKAGES: [&str; 11] = [
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
];

/// The environment of the tests, with everything in it but the package.
///
/// # Errors
/// When it can't be made.
pub(crate) fn environment() -> anyhow::Result<Environment> {
    let environment = Environment::open(&environment::target()?, "python-venv")?;
    environment.install("packages", &PACKAGES)?;
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
        eprintln!("{}", wheel(&target, &environment, RELEASE)?.display());
        return Ok(true);
    }
    install(&environment, &wheel(&target, &environment, PROFILE)?)?;
    let mut tests = Command::new(environment.programs().join("pytest"));
    tests.args(["--config-file", "python/pyproject.toml", "-p", "no:cacheprovider", "python/tests"]);
    // A process for each processor, and few where there are many: each imports PyTorch.
    tests.args(["--numprocesses", "auto", "--maxprocesses", "4", "--dist", "worksteal"]).args(filters);
    // Scripts of PyTorch run as jobs of the binary that the other tests have too.
    test_command::build(false)?;
    tests.env("GANGLINE_BINARY", test_command::binary()?);
    // The package that was installed is tested, not the one beside the tests. What is compiled is kept, outside the tree: PyTorch
    // takes twice as long to import otherwise, and a hundred processes do.
    tests.env_remove("PYTHONPATH").env_remove("PYTHONDONTWRITEBYTECODE");
    succeeds(tests.env("PYTHONPYCACHEPREFIX", target.join("python-compiled")))
}

/// Builds the wheel that ships with the environment's maturin, and installs it there.
///
/// # Errors
/// When it doesn't build.
#[cfg(feature = "bench")]
pub(crate) fn install_wheel(target: &Path, environment: &Environment) -> anyhow::Result<()> {
    install(environment, &wheel(target, environment, RELEASE)?)
}

fn install(environment: &Environment, wheel: &Path) -> anyhow::Result<()> {
    let install = ["-m", "pip", "install", "--quiet", "--force-reinstall", "--no-deps"];
    run(environment.python().args(install).arg(wheel))
}

/// Builds the wheel into an empty folder.
fn wheel(target: &Path, environment: &Environment, profile: &str) -> anyhow::Result<PathBuf> {
    let wheels = target.join("wheels");
    if wheels.exists() {
        std::fs::remove_dir_all(&wheels).context("clear the folder of wheels")?;
    }
    let programs = environment.programs();
    let mut build = Command::new(programs.join("maturin"));
    build.args(["build", "--profile", profile, "--locked", "--quiet", "--manifest-path", "python/Cargo.toml"]);
    build.arg("--interpreter").arg(programs.join("python")).arg("--out").arg(&wheels);
    run(build.env("CARGO_TARGET_DIR", target))?;
    let entries = std::fs::read_dir(&wheels).context("look for the wheel")?;
    let names: Vec<String> = entries.flatten().map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    only_wheel(&names).map(|name| wheels.join(name))
}

/// The one wheel among these files; it serves every Python from 3.10 on (abi3).
fn only_wheel(names: &[String]) -> anyhow::Result<&str> {
    let wheels: Vec<&String> = names.iter().filter(|name| name.ends_with(".whl")).collect();
    match wheels[..] {
        [wheel] if wheel.contains("-cp310-abi3-") => Ok(wheel),
        _ => anyhow::bail!("maturin built {wheels:?}, not one wheel for cp310-abi3"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_wheel_serves_every_python() {
        let names = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
        let name = "gangline-0.1.0-cp310-abi3-manylinux_2_34_x86_64.whl";
        assert_eq!(only_wheel(&names(&[name, "notes.txt"])).unwrap(), name);
        let error = only_wheel(&names(&["gangline-0.1.0-cp311-cp311-linux_x86_64.whl"])).unwrap_err().to_string();
        assert!(error.contains("cp311") && error.ends_with("not one wheel for cp310-abi3"), "{error}");
        assert!(only_wheel(&[]).is_err());
    }
}
