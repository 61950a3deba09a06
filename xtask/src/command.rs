//! Running other programs: each is shown before it runs, and a failure names the whole command line.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Context as _;

/// The profile of everything that is built to be linted or tested. Benchmarks and what ships take release.
pub const PROFILE: &str = "ci";

/// The workspace's root: the nearest folder upwards whose Cargo.toml has a `[workspace]`.
///
/// # Errors
/// Outside the workspace.
pub fn root() -> anyhow::Result<PathBuf> {
    let here = std::env::current_dir().context("find the current folder")?;
    let is_root = |folder: &&Path| {
        std::fs::read_to_string(folder.join("Cargo.toml")).is_ok_and(|text| text.starts_with("[workspace]"))
    };
    let root = here.ancestors().find(is_root).map(Path::to_owned);
    root.with_context(|| format!("no workspace above {}", here.display()))
}

/// The cargo that runs us, so that nested calls use the same toolchain.
pub fn cargo<'a>(arguments: impl IntoIterator<Item = &'a str>) -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.args(arguments);
    command
}

/// Git, whoever owns the checkout: on a CI machine that is often somebody else.
pub fn git() -> Command {
    let mut git = Command::new("git");
    git.args(["-c", "safe.directory=*"]);
    git
}

/// The commit that runs, marked if the tree has changed since.
pub fn commit() -> String {
    let described = output(git().args(["describe", "--always", "--dirty", "--abbrev=10", "--exclude=*"]));
    described.map_or_else(|_| "unknown".to_owned(), |text| text.trim().to_owned())
}

/// What else the machine does: its load averages over 1, 5 and 15 minutes.
pub fn load_averages() -> String {
    let text = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    text.split_whitespace().take(3).collect::<Vec<_>>().join(" ")
}

/// A command line as one would type it; arguments with spaces are quoted.
pub fn line(command: &Command) -> String {
    let program = Path::new(command.get_program()).file_name().unwrap_or(command.get_program());
    let words = std::iter::once(program).chain(command.get_args()).map(|word| word.to_string_lossy());
    let quoted = words.map(|word| if word.contains(char::is_whitespace) { format!("'{word}'") } else { word.into() });
    quoted.collect::<Vec<String>>().join(" ")
}

/// Shows and runs a command to its end.
///
/// # Errors
/// When it can't be started or fails.
pub fn run(command: &mut Command) -> anyhow::Result<()> {
    eprintln!("$ {}", line(command));
    let status = command.status().with_context(|| format!("start `{}`", line(command)))?;
    anyhow::ensure!(status.success(), "`{}` failed: {status}", line(command));
    Ok(())
}

/// Shows and runs a command to its end; whether it succeeded.
///
/// # Errors
/// When it can't be started.
pub fn succeeds(command: &mut Command) -> anyhow::Result<bool> {
    eprintln!("$ {}", line(command));
    let status = command.status().with_context(|| format!("start `{}`", line(command)))?;
    Ok(status.success())
}

/// Runs a command and returns what it writes to stdout.
///
/// # Errors
/// When it can't be started or fails.
pub fn output(command: &mut Command) -> anyhow::Result<String> {
    let output = command.output().with_context(|| format!("start `{}`", line(command)))?;
    let errors = String::from_utf8_lossy(&output.stderr);
    anyhow::ensure!(output.status.success(), "`{}` failed: {}: {}", line(command), output.status, errors.trim());
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_names_the_whole_command_line() {
        let error = run(Command::new("sh").args(["-c", "exit 3"])).unwrap_err();
        assert_eq!(error.to_string(), "`sh -c 'exit 3'` failed: exit status: 3");
    }

    #[test]
    fn a_command_may_be_asked_whether_it_succeeds() {
        assert!(succeeds(&mut Command::new("true")).unwrap());
        assert!(!succeeds(&mut Command::new("false")).unwrap());
        assert!(succeeds(&mut Command::new("/no/such-program")).is_err());
    }

    #[test]
    fn a_program_that_is_not_there_is_named() {
        let error = output(&mut Command::new("/no/such-program")).unwrap_err();
        assert_eq!(error.to_string(), "start `such-program`");
    }

    #[test]
    fn output_is_stdout_and_a_failure_shows_stderr() {
        assert_eq!(output(Command::new("sh").args(["-c", "echo out; echo err >&2"])).unwrap(), "out\n");
        let error = output(Command::new("sh").args(["-c", "echo err >&2; exit 1"])).unwrap_err();
        assert!(error.to_string().ends_with("failed: exit status: 1: err"), "{error}");
    }

    #[test]
    fn the_root_is_found_from_inside() {
        assert!(root().unwrap().join("xtask/Cargo.toml").is_file());
    }
}
