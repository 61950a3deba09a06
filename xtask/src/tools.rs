//! Programs beyond Rust that a step needs. A bare CI machine gets them installed; anybody else is told.

use std::path::Path;
use std::process::Command;

use crate::command::{self, cargo};

/// Parts of Rust that the smallest installation lacks.
const COMPONENTS: [(&str, &str); 2] = [("fmt", "rustfmt"), ("clippy", "clippy")];

/// A program and the Debian package that has it.
pub(crate) struct Tool {
    /// The program's name.
    pub(crate) program: &'static str,
    /// The package's name.
    pub(crate) package: &'static str,
}

/// Shows what changed in the tree.
pub(crate) const GIT: Tool = Tool { program: "git", package: "git" };
/// Compiles SQLite.
pub(crate) const COMPILER: Tool = Tool { program: "cc", package: "gcc" };
/// Compiles the fuzzer.
pub(crate) const FUZZER_COMPILER: Tool = Tool { program: "c++", package: "g++" };
/// Shows the page as a user sees it; without it that test skips itself.
pub(crate) const BROWSER: Tool = Tool { program: "chromium", package: "chromium" };
/// Mounts the small disk that a test fills; without it that test skips itself.
pub(crate) const MOUNT: Tool = Tool { program: "mount", package: "mount" };
/// Makes the file system that a test fills up below a job; without it that test skips itself.
pub(crate) const MKFS: Tool = Tool { program: "mkfs.ext4", package: "e2fsprogs" };
/// Runs the private Slurm of the tests, which skip themselves without it.
pub(crate) const SLURM: Tool = Tool { program: "slurmctld", package: "slurm-wlm" };
/// Slurm's accounts, and their database.
pub(crate) const SLURMDBD: Tool = Tool { program: "slurmdbd", package: "slurmdbd" };
pub(crate) const MARIADB: Tool = Tool { program: "mariadbd", package: "mariadb-server" };
/// Slurm's authentication.
pub(crate) const MUNGE: Tool = Tool { program: "munged", package: "munge" };
/// Makes the networks in which a test slows a link down; without it that test skips itself.
pub(crate) const NETWORKS: Tool = Tool { program: "ip", package: "iproute2" };
/// These read the completions of their shell; without them those aren't checked.
pub(crate) const ZSH: Tool = Tool { program: "zsh", package: "zsh" };
pub(crate) const FISH: Tool = Tool { program: "fish", package: "fish" };
/// These run the containers of the tests, which skip themselves without them; their parts, and what is in the image.
pub(crate) const PODMAN: Tool = Tool { program: "podman", package: "podman" };
pub(crate) const CRUN: Tool = Tool { program: "crun", package: "crun" };
/// Docker's daemon; its package has the program too.
pub(crate) const DOCKER: Tool = Tool { program: "dockerd", package: "docker.io" };
pub(crate) const BUSYBOX: Tool = Tool { program: "busybox", package: "busybox-static" };
/// Reads the manual pages' markup; without it that isn't checked.
pub(crate) const GROFF: Tool = Tool { program: "groff", package: "groff-base" };
/// Takes alerts as a site's own does; without it that test doesn't send it any.
pub(crate) const ALERTMANAGER: Tool = Tool { program: "prometheus-alertmanager", package: "prometheus-alertmanager" };
/// Has promtool, which checks what Prometheus is to scrape; without it that isn't checked.
pub(crate) const PROMETHEUS: Tool = Tool { program: "promtool", package: "prometheus" };
/// Answers queries about measurements as a site's own does; without it that test skips itself.
pub(crate) const VICTORIA_METRICS: Tool = Tool { program: "victoria-metrics", package: "victoria-metrics" };
/// Makes the environment that the Python package is built and tested in.
pub(crate) const PYTHON: Tool = Tool { program: "python3", package: "python3-venv" };

/// Whether this is a CI machine, where nothing may be skipped and tools may be installed.
pub(crate) fn is_ci() -> bool {
    std::env::var("CI").is_ok_and(|value| value == "true")
}

/// Makes sure that the tools are there, installing what is missing if that is allowed.
///
/// # Errors
/// When one is missing and may not, or can't, be installed: the message says which.
pub(crate) fn ensure(tools: &[&Tool], may_install: bool) -> anyhow::Result<()> {
    let path = std::env::var("PATH").unwrap_or_default();
    let missing: Vec<&str> = tools.iter().filter(|tool| !is_in(&path, tool.program)).map(|tool| tool.package).collect();
    if missing.is_empty() {
        return Ok(());
    }
    anyhow::ensure!(may_install, "{} missing: install it, or pass --install", missing.join(" and "));
    apt_install(&missing)
}

fn is_in(path: &str, program: &str) -> bool {
    std::env::split_paths(path).any(|folder| folder.join(program).is_file())
}

/// Makes sure that cargo has its formatter and its lints.
///
/// # Errors
/// When one is missing and may not, or can't, be installed.
pub(crate) fn ensure_components(may_install: bool) -> anyhow::Result<()> {
    let is_missing = |command: &str| command::output(&mut cargo([command, "--version"])).is_err();
    for (_, component) in COMPONENTS.into_iter().filter(|(command, _)| is_missing(command)) {
        anyhow::ensure!(may_install, "{component} missing: run `rustup component add {component}`, or pass --install");
        command::run(Command::new("rustup").args(["component", "add", component]))?;
    }
    Ok(())
}

/// Installs Debian packages, by sudo unless we are root.
fn apt_install(packages: &[&str]) -> anyhow::Result<()> {
    anyhow::ensure!(Path::new("/usr/bin/apt-get").exists(), "no apt-get to install {} with", packages.join(" and "));
    let is_root = command::output(Command::new("id").arg("-u"))?.trim() == "0";
    let apt = |arguments: &[&str]| {
        let mut command = Command::new(if is_root { "apt-get" } else { "sudo" });
        command.args(if is_root { &[][..] } else { &["-n", "apt-get"] }).args(arguments);
        command::run(command.env("DEBIAN_FRONTEND", "noninteractive"))
    };
    apt(&["update", "-qq"])?;
    apt(&[&["install", "-qq", "--yes", "--no-install-recommends"], packages].concat())
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOT_THERE: Tool = Tool { program: "no-such-program", package: "no-such-package" };

    #[test]
    fn a_missing_tool_is_named_and_not_installed_unasked() {
        let error = ensure(&[&NOT_THERE], false).unwrap_err();
        assert_eq!(error.to_string(), "no-such-package missing: install it, or pass --install");
    }

    #[test]
    fn a_tool_that_is_there_is_left_alone() {
        assert!(ensure(&[&Tool { program: "sh", package: "no-such-package" }], false).is_ok());
    }

    #[test]
    fn the_components_that_test_this_are_there() {
        assert!(ensure_components(false).is_ok());
    }

    #[test]
    fn only_files_on_the_path_count() {
        assert!(is_in("/no/such/folder:/bin", "sh"));
        assert!(!is_in("/", "bin") && !is_in("", "sh"));
    }
}
