//! `exec` and `attach`: a command in the environment of a job that runs on this machine.
//!
//! The command replaces this process, so it has this terminal: signals, job control and the exit code are its own. It
//! has the environment and the folder of one of the job's ranks, and joins the rank's control group. It is thus known
//! as the job's, and ends with the job's attempt. Beside a rank in podman's or Docker's container it starts in the container; beside one
//! in Apptainer's or enroot's, which is a view of the file system and nothing else, in another one like it.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::io::{IsTerminal as _, Read};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use clap::Args;
use gangline_api as api;
use gangline_execution::shim::ContainerRuntime;

use crate::client::Client;
use crate::failure::Failure;

/// The most bytes of a process's environment: Linux allows less by default.
const ENVIRONMENT_BYTES_MAX: u64 = 8 << 20;
/// The variable of a rank's shim that names the container in which the rank runs.
const CONTAINER_VARIABLE: &str = "GANGLINE_CONTAINER";
/// The shell of a rank's environment that names none.
const SHELL_DEFAULT: &str = "/bin/sh";

/// Which job, and the command.
#[derive(Args, Debug)]
pub(crate) struct ExecArgs {
    /// The job's id, as job-3 or 3
    job: String,
    /// The global rank whose environment, folder and devices the command gets
    #[arg(long, default_value_t = 0)]
    rank: u32,
    /// The command
    #[arg(last = true, required = true)]
    command: Vec<OsString>,
}

/// Which job.
#[derive(Args, Debug)]
pub(crate) struct AttachArgs {
    /// The job's id, as job-3 or 3
    job: String,
    /// The global rank whose environment, folder and devices the shell gets
    #[arg(long, default_value_t = 0)]
    rank: u32,
}

/// Becomes the command.
pub(crate) fn exec(client: &Client, args: &ExecArgs) -> Result<std::convert::Infallible, Failure> {
    let rank = Rank::find(&client.job(&args.job)?, args.rank)?;
    become_command(&rank, &args.command)
}

/// Becomes a shell.
pub(crate) fn attach(client: &Client, args: &AttachArgs) -> Result<std::convert::Infallible, Failure> {
    let rank = Rank::find(&client.job(&args.job)?, args.rank)?;
    become_command(&rank, &[rank.shell()])
}

/// Becomes a command in the environment of a job's first rank.
pub(crate) fn exec_in(job: &api::Job, command: &[OsString]) -> Result<std::convert::Infallible, Failure> {
    let rank = Rank::find(job, 0)?;
    if command.is_empty() { become_command(&rank, &[rank.shell()]) } else { become_command(&rank, command) }
}

/// Reports whether the process of a job's first rank is known: it is reported after the job is seen to run.
pub(crate) fn is_started(job: &api::Job) -> bool {
    let shares = job.attempts.last().into_iter().flat_map(|attempt| &attempt.shares);
    shares.flat_map(|share| &share.ranks).any(|rank| rank.rank == 0 && rank.pid.is_some())
}

/// A rank that runs on this machine.
struct Rank {
    pid: u32,
    environment: Vec<(OsString, OsString)>,
    folder: PathBuf,
    /// What runs a program in a view like the rank's, if the rank is in one.
    view: Option<Vec<OsString>>,
}

impl Rank {
    fn find(job: &api::Job, rank: u32) -> Result<Rank, Failure> {
        let (id, live) = (&job.id, job.attempts.last().filter(|attempt| attempt.ended_at.is_none()));
        let Some(attempt) = live.filter(|_| job.state == api::JobState::Running) else {
            let message = format!("{id} is {}: a command runs only beside a running job's ranks", job.state.name());
            return Err(Failure::local(message, format!("gangline explain {id} says what it does")));
        };
        let shares = attempt.shares.iter().flat_map(|share| share.ranks.iter().map(move |found| (share, found)));
        let Some((share, found)) = shares.into_iter().find(|(_, found)| found.rank == rank) else {
            return Err(Failure::local(
                format!("{id} has no rank {rank}"),
                format!("gangline show {id} lists its ranks"),
            ));
        };
        let Some(pid) = found.pid else {
            let hint = format!("gangline logs {id} --rank {rank} shows what it printed");
            return Err(Failure::local(format!("rank {rank} of {id} has no running process"), hint));
        };
        let own = [("GANGLINE_JOB_ID", id.clone()), ("GANGLINE_ATTEMPT", attempt.number.to_string())];
        let elsewhere = || elsewhere(id, rank, &share.node);
        let is_its = |environment: &Vec<(OsString, OsString)>| {
            let has = |(name, value): &(&str, String)| {
                environment.iter().any(|(own, is)| own == name && is.as_bytes() == value.as_bytes())
            };
            own.iter().all(has)
        };
        let shim = parent_of(pid).and_then(|shim| Some((shim, view_of(&command_line_of(shim)?)?)));
        // A process in a view shows no environment, or the view's. Its shim has what the view is made with, and the same folder.
        let (shown_by, view) = shim.map_or((pid, None), |(shim, view)| (shim, Some(view)));
        let environment = environment_of(shown_by).filter(is_its).ok_or_else(elsewhere)?;
        let folder = fs::read_link(format!("/proc/{shown_by}/cwd")).map_err(|_| elsewhere())?;
        Ok(Rank { pid, environment, folder, view })
    }

    /// Returns the beginning of the command line that runs a program in the rank's container, with this terminal if
    /// there is one; none if the rank is in none.
    fn container(&self) -> Option<Vec<OsString>> {
        let named = self.environment.iter().find(|(name, _)| name == CONTAINER_VARIABLE);
        if let Some((_, container)) = named {
            let runtime =
                command_line_of(self.pid).and_then(|shim| runtime_of(&shim)).unwrap_or(ContainerRuntime::Podman);
            let tty = std::io::stdin().is_terminal().then_some("--tty");
            let options = [runtime.program(), "exec", "--interactive"].into_iter().chain(tty).chain(["--workdir"]);
            let place = [self.folder.as_os_str().to_owned(), container.clone()];
            return Some(options.map(OsString::from).chain(place).collect());
        }
        self.view.clone()
    }

    fn shell(&self) -> OsString {
        if self.container().is_some() {
            // The shell of the node may not be in the image, which has one of this name.
            return "sh".into();
        }
        let named = self.environment.iter().find(|(name, value)| name == "SHELL" && Path::new(value).is_absolute());
        named.map_or_else(|| SHELL_DEFAULT.into(), |(_, value)| value.clone())
    }
}

fn elsewhere(id: &str, rank: u32, node: &str) -> Failure {
    let message = format!("rank {rank} of {id} runs on node {node}, and not as a process of yours on this machine");
    let hint =
        "run this there as the user who runs gangline up; under Slurm: srun --jobid=ALLOCATION --overlap --pty bash";
    Failure::local(message, hint)
}

/// Returns the environment with which a process was started; none if this user may not read it.
fn environment_of(pid: u32) -> Option<Vec<(OsString, OsString)>> {
    let mut bytes = Vec::new();
    fs::File::open(format!("/proc/{pid}/environ")).ok()?.take(ENVIRONMENT_BYTES_MAX).read_to_end(&mut bytes).ok()?;
    let variable = |entry: &[u8]| {
        let equals = entry.iter().position(|byte| *byte == b'=')?;
        Some((OsString::from_vec(entry[..equals].to_vec()), OsString::from_vec(entry[equals + 1..].to_vec())))
    };
    Some(bytes.split(|byte| *byte == 0).filter_map(variable).collect())
}

fn become_command(rank: &Rank, command: &[OsString]) -> Result<std::convert::Infallible, Failure> {
    let Some((program, arguments)) = command.split_first() else {
        return Err(Failure::local("no command is given", "write it after --"));
    };
    join_control_group(rank.pid);
    let mut words = rank.container().unwrap_or_default().into_iter().chain([program.clone()]);
    let mut command = Command::new(words.next().unwrap_or_default());
    command.args(words).args(arguments).env_clear().envs(rank.environment.iter().map(|(name, value)| (name, value)));
    // The terminal is this one, not the one in which the control plane was started.
    command.envs(std::env::var_os("TERM").map(|term| (OsStr::new("TERM"), term)));
    let error = command.current_dir(&rank.folder).exec();
    let message = format!("{} can't be started in {}: {error}", Path::new(program).display(), rank.folder.display());
    Err(Failure::local(message, "the command is looked up in the job's PATH"))
}

/// Returns the part of a shim's command line that runs a program in a view of the file system: what follows `--` without
/// the shell, its option and the job's command.
fn view_of(shim: &[OsString]) -> Option<Vec<OsString>> {
    let (_, command) = shim.split_at_checked(shim.iter().position(|word| word == "--")? + 1)?;
    let is_viewer = runtime_of(shim).is_some_and(|runtime| !runtime.is_apart());
    let (container, _shell) = command.split_at_checked(command.len().checked_sub(3)?)?;
    is_viewer.then(|| container.to_vec())
}

/// Returns what runs the container of a shim's rank, by the shim's command line.
fn runtime_of(shim: &[OsString]) -> Option<ContainerRuntime> {
    let option = shim.iter().position(|word| word == "--container")?;
    shim.get(option + 1)?.to_str()?.parse().ok()
}

/// Returns the words of a process's command line; none if there is no such process.
fn command_line_of(pid: u32) -> Option<Vec<OsString>> {
    let mut bytes = Vec::new();
    fs::File::open(format!("/proc/{pid}/cmdline")).ok()?.take(ENVIRONMENT_BYTES_MAX).read_to_end(&mut bytes).ok()?;
    let words = bytes.strip_suffix(&[0]).unwrap_or(&bytes).split(|byte| *byte == 0);
    Some(words.map(|word| OsString::from_vec(word.to_vec())).collect())
}

/// Returns a process's parent, from the line `PPid:` of its status (proc(5)).
fn parent_of(pid: u32) -> Option<u32> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    status.lines().find_map(|line| line.strip_prefix("PPid:"))?.trim().parse().ok()
}

/// Joins a process's control group where that is allowed, so that the job's limits hold for the command too.
fn join_control_group(pid: u32) {
    let Ok(groups) = fs::read_to_string(format!("/proc/{pid}/cgroup")) else { return };
    let Some(group) = groups.lines().find_map(|line| line.strip_prefix("0::/")) else { return };
    let file = Path::new("/sys/fs/cgroup").join(group).join("cgroup.procs");
    // Without the right to do so it stays in its own group; its environment still tells whose it is.
    let _ = fs::write(file, std::process::id().to_string());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_runs_in_another_container_like_the_ranks() {
        let words = |line: &[&str]| line.iter().map(OsString::from).collect::<Vec<_>>();
        let shim = ["gangline", "keep-rank", "--container", "apptainer", "--"];
        let container = ["apptainer", "exec", "--bind=/a:/a", "/images/torch.sif"];
        let line = [&shim[..], &container, &["sh", "-c", "python -- train.py"]].concat();
        assert_eq!(view_of(&words(&line)), Some(words(&container)));
        assert_eq!(view_of(&words(&["gangline", "keep-rank", "--", "sh", "-c", "apptainer"])), None);
        assert_eq!(
            view_of(&words(&["gangline", "keep-rank", "--container", "docker", "--", "docker", "run", "x"])),
            None
        );
        assert_eq!(view_of(&words(&["gangline", "keep-rank"])), None);
        assert_eq!(view_of(&words(&["gangline", "--", "sh"])), None);
    }
}
