//! Runs Slurm's programs with a time limit, bounded output, and without environment variables that would
//! change what they do.
//!
//! Keeps A-10 (bounded time and output).

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io;
use std::process::Command;
use std::time::Duration;

use crate::container::ContainerRuntime;
use crate::launcher::LaunchError;
use crate::program::{self, Limits};

/// The system's name in messages.
pub(super) const SLURM: &str = "Slurm";
/// Limits of a program. Slurm's own wait for its controller is 10 s, and for a missing slurm.conf 60 s. Ten
/// thousand nodes or jobs are some 30 MB.
const LIMITS: Limits = Limits { time: Duration::from_secs(12), output: 256 << 20, errors: 64 << 10 };

/// Messages of Slurm when its controller, its configuration or munge is unavailable, which may be temporary
/// (slurm_errno.h, and the programs' text around it).
const UNAVAILABLE: [&str; 14] = [
    "unable to contact slurm controller",
    "could not establish a configuration source",
    "cannot stat file",
    "unable to process configuration file",
    "failed to fetch config",
    "connection refused",
    "connection timed out",
    "socket timed out",
    "zero bytes were transmitted",
    "slurm backup controller in standby mode",
    "protocol authentication error",
    "munge",
    "resource temporarily unavailable",
    "temporarily able to accept job",
];

/// The environment in which Slurm's programs are run.
#[derive(Clone, Debug)]
pub(super) struct Programs {
    environment: BTreeMap<OsString, OsString>,
}

impl Programs {
    /// Removes the variables of a surrounding job that would change what the programs do, and Gangline's own,
    /// which no job should see. SLURM_CONF stays: it tells where Slurm is. So does what is to run containers on the nodes.
    pub(super) fn new(environment: BTreeMap<OsString, OsString>) -> Self {
        let is_kept = |name: &OsString| {
            let name = name.to_string_lossy();
            let is_foreign = ["SLURM_", "SBATCH_", "SQUEUE_", "SINFO_", "SCANCEL_", "GANGLINE_"];
            let is_meant = ["SLURM_CONF", ContainerRuntime::CHOICE].iter().any(|meant| name == *meant);
            is_meant || !is_foreign.iter().any(|prefix| name.starts_with(prefix))
        };
        Programs { environment: environment.into_iter().filter(|(name, _)| is_kept(name)).collect() }
    }

    /// Returns the environment of the programs.
    pub(super) fn environment(&self) -> &BTreeMap<OsString, OsString> {
        &self.environment
    }

    /// Runs a program and returns its standard output.
    ///
    /// # Errors
    /// [`LaunchError::Unavailable`] if Slurm is unavailable now, otherwise [`LaunchError::Refused`].
    pub(super) fn run(&self, program: &'static str, arguments: &[String]) -> Result<Vec<u8>, LaunchError> {
        let mut command = Command::new(program);
        command.args(arguments).env_clear().envs(&self.environment);
        let unavailable = |message: String| LaunchError::Unavailable { system: SLURM, message };
        let ran = program::run(&mut command, Vec::new(), LIMITS);
        let ran = ran.map_err(|error| unavailable(not_started(program, &error)))?;
        let said = last_words(&ran.errors);
        if ran.has_succeeded() {
            return Ok(ran.output);
        }
        if ran.status.is_none() {
            let silence = format!("{program} did not end within {} s", LIMITS.time.as_secs());
            return Err(unavailable(if said.is_empty() { silence } else { format!("{silence}: {said}") }));
        }
        let message = format!("{program}: {said}");
        let refused = LaunchError::Refused { system: SLURM, message: message.clone() };
        Err(if is_unavailable(&said) { unavailable(message) } else { refused })
    }
}

fn not_started(program: &str, error: &io::Error) -> String {
    if error.kind() == io::ErrorKind::NotFound {
        return format!("{program} is not installed here (Debian: slurm-client)");
    }
    format!("{program} can't be started: {error}")
}

/// Returns a program's last error message without its name. Slurm's programs print first what they tried and
/// last why they gave up.
fn last_words(errors: &[u8]) -> String {
    let text = String::from_utf8_lossy(errors);
    let is_said = |line: &&str| !line.is_empty() && !line.starts_with("Try \"");
    let lines: Vec<&str> = text.lines().map(str::trim).filter(is_said).collect();
    let told = |line: &&&str| line.contains("error:") || line.contains("fatal:");
    let line = lines.iter().rev().find(told).or(lines.last()).copied().unwrap_or_default();
    let first = lines.iter().find(|line| line.contains("cannot stat file")).copied();
    let words = |line: &str| {
        let said = line.split_once("error: ").or_else(|| line.split_once("fatal: "));
        said.map_or(line, |(_, said)| said).to_owned()
    };
    match first.filter(|first| *first != line) {
        Some(first) => format!("{}; {}", words(first), words(line)),
        None => words(line),
    }
}

fn is_unavailable(said: &str) -> bool {
    let said = said.to_lowercase();
    said.is_empty() || UNAVAILABLE.iter().any(|known| said.contains(known))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn programs() -> Programs {
        let path = std::iter::once(("PATH".into(), "/usr/bin:/bin".into()));
        let foreign = [
            ("SLURM_JOB_ID", "7"),
            ("SLURM_CONF", "/x"),
            ("GANGLINE_TOKEN", "secret"),
            ("GANGLINE_CONTAINERS", "enroot"),
            ("HOME", "/root"),
        ];
        Programs::new(path.chain(foreign.map(|(name, value)| (name.into(), value.into()))).collect())
    }

    fn run(script: &str) -> Result<String, String> {
        let output = programs().run("sh", &["-c".to_owned(), script.to_owned()]);
        output.map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).map_err(|error| error.to_string())
    }

    #[test]
    fn a_surrounding_job_and_gangline_itself_are_kept_out_of_the_environment() {
        assert_eq!(
            run("echo $SLURM_JOB_ID-$SLURM_CONF-$GANGLINE_TOKEN-$GANGLINE_CONTAINERS-$HOME").as_deref(),
            Ok("-/x--enroot-/root\n")
        );
    }

    #[test]
    fn what_may_pass_is_told_from_what_was_refused() {
        let check =
            |errors: &str, expected: &str| assert_eq!(run(&format!("{errors}; exit 1")), Err(expected.to_owned()));
        check(
            "echo 'sbatch: error: Batch job submission failed: Unable to contact slurm controller (connect failure)' >&2",
            "Slurm doesn't answer: sh: Batch job submission failed: Unable to contact slurm controller (connect failure)",
        );
        check(
            "echo \"sbatch: unrecognized option '--x'\" >&2; echo 'Try \"sbatch --help\" for more information' >&2",
            "Slurm refused: sh: sbatch: unrecognized option '--x'",
        );
        check(
            "echo 'sbatch: error: invalid partition specified: gpu' >&2",
            "Slurm refused: sh: invalid partition specified: gpu",
        );
        check(
            "echo 'sinfo: error: s_p_parse_file: cannot stat file /x: No such file, retrying' >&2; \
             echo 'sinfo: fatal: Unable to process configuration file' >&2",
            "Slurm doesn't answer: sh: s_p_parse_file: cannot stat file /x: No such file, retrying; \
             Unable to process configuration file",
        );
    }

    #[test]
    fn a_program_that_is_missing_is_named() {
        let missing = programs().run("no-such-program-of-slurm", &[]).expect_err("it isn't there");
        assert!(missing.to_string().contains("no-such-program-of-slurm is not installed here"), "{missing}");
    }
}
