//! The wheel of the Python package.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Context as _;

use crate::command::run;
use crate::environment::Environment;

/// The profile of the wheel that ships.
pub const RELEASE: &str = "release";
/// What builds the wheel.
pub const MATURIN: &str = "maturin>=1.9.4,<2";
/// PyTorch, pinned since its checkpoint plug-ins change with it.
pub const TORCH: &str = "torch==2.15.0";

/// Builds the wheel that ships with the environment's maturin, and installs it there.
///
/// # Errors
/// When it doesn't build.
pub fn install_wheel(target: &Path, environment: &Environment) -> anyhow::Result<()> {
    install(environment, &build(target, environment, RELEASE, &[])?)
}

/// Installs a wheel, in place of the one that is there.
///
/// # Errors
/// When pip fails.
pub fn install(environment: &Environment, wheel: &Path) -> anyhow::Result<()> {
    let install = ["-m", "pip", "install", "--quiet", "--force-reinstall", "--no-deps"];
    run(environment.python().args(install).arg(wheel))
}

/// Builds the wheel into the empty folder `wheels` of the target folder, with more environment variables of maturin; its path.
///
/// # Errors
/// When it doesn't build, or isn't the one wheel for all Pythons.
pub fn build(
    target: &Path,
    environment: &Environment,
    profile: &str,
    variables: &[(&str, &OsStr)],
) -> anyhow::Result<PathBuf> {
    let wheels = target.join("wheels");
    if wheels.exists() {
        std::fs::remove_dir_all(&wheels).context("clear the folder of wheels")?;
    }
    let programs = environment.programs();
    let mut build = Command::new(programs.join("maturin"));
    build.args(["build", "--profile", profile, "--locked", "--quiet", "--manifest-path", "python/Cargo.toml"]);
    build.arg("--interpreter").arg(programs.join("python")).arg("--out").arg(&wheels);
    run(build.env("CARGO_TARGET_DIR", target).envs(variables.iter().copied()))?;
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
