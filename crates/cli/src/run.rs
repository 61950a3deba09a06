//! `run`: a job without a job file, followed to its end in this terminal; or an interactive one.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use gangline_api as api;
use gangline_execution::supervisor::Identity;
use serde_json::{Value, json};

use crate::client::{Client, absolute};
use crate::failure::Failure;
use crate::log_reader::{Line, LogKind, LogReader, Piece, Reach, Wanted};
use crate::{exec, follow, output, submit};

/// Interval between two looks at the log.
const INTERVAL: Duration = Duration::from_millis(300);
/// How soon a second Ctrl-C has to follow the first to cancel the job.
const SECOND_INTERRUPT_WITHIN: Duration = Duration::from_secs(3);
/// The exit code after Ctrl-C, as shells have it.
const INTERRUPTED: u8 = 130;
/// Variables of this shell that decide which programs and libraries a command finds.
const PASSED_ON: [&str; 5] = ["PATH", "PYTHONPATH", "VIRTUAL_ENV", "CONDA_PREFIX", "LD_LIBRARY_PATH"];

/// What to run.
#[derive(Args, Debug)]
pub(crate) struct RunArgs {
    /// Accelerators on each node, one rank for each: 8, or H100:8 [default: one slot of any kind]
    #[arg(long, value_name = "[KIND:]N")]
    gpus: Option<String>,
    /// Nodes
    #[arg(long, default_value_t = 1)]
    nodes: u32,
    /// The job's name [default: the command's]
    #[arg(long)]
    name: Option<String>,
    /// The folder in which it runs
    #[arg(long, default_value = ".", value_name = "DIR")]
    workdir: PathBuf,
    /// Set a key of the job file, such as queue=research or envs.LR=3e-4 (may be repeated)
    #[arg(long = "set", value_name = "KEY=VALUE")]
    set: Vec<String>,
    /// Run the command (by default a shell) in this terminal, on devices that the job holds meanwhile
    #[arg(short, long)]
    interactive: bool,
    /// The command
    #[arg(last = true, required_unless_present = "interactive")]
    command: Vec<OsString>,
}

pub(crate) fn run(client: &Client, args: &RunArgs) -> Result<ExitCode, Failure> {
    let nodes = client.get::<api::NodeList>("/nodes")?.nodes;
    let kinds: BTreeSet<String> = nodes.into_iter().map(|node| node.accelerator).collect();
    let accelerators = accelerators(args.gpus.as_deref(), &kinds)?;
    let mut file = job_file(args, &accelerators)?;
    if args.interactive {
        file["run"] = json!(placeholder()?);
        file["launch"] = json!("node");
        file["recovery"]["hang_timeout"] = json!("never");
    }
    let job = submitted(client, args, &file)?;
    if args.interactive {
        let job = until_it_runs(client, &job)?;
        let never = exec::exec_in(&job, &args.command)?;
        match never {}
    }
    listen_for_interrupts(client, &job);
    follow_log(client, &job)?;
    let job = follow::watch(|| client.job(&job), |job| job.state.is_final())?;
    if job.state != api::JobState::Succeeded {
        output::tell(&format!("{} is {}: {}", job.id, job.state.name(), job.because));
    }
    Ok(exit_code(&job))
}

/// Returns the kind and number of accelerators in a job file's form.
fn accelerators(gpus: Option<&str>, kinds: &BTreeSet<String>) -> Result<String, Failure> {
    let named: Vec<&str> = kinds.iter().map(String::as_str).filter(|kind| *kind != "cpu").collect();
    let wanted = gpus.unwrap_or("1");
    if wanted.contains(':') {
        return Ok(wanted.to_owned());
    }
    match (named.as_slice(), gpus) {
        ([only], _) => Ok(format!("{only}:{wanted}")),
        ([], None) => Ok(format!("cpu:{wanted}")),
        ([], Some(_)) => {
            let hint = format!("gangline nodes lists what there is; --gpus cpu:{wanted} takes slots of its CPUs");
            Err(Failure::local("no node of this control plane has GPUs", hint))
        }
        (several, _) => {
            let message = format!("there are several kinds of accelerators: {}", several.join(", "));
            Err(Failure::local(message, format!("name one, as in --gpus {}:{wanted}", several[0])))
        }
    }
}

/// Returns the job file; JSON is YAML.
fn job_file(args: &RunArgs, accelerators: &str) -> Result<Value, Failure> {
    let variable = |name: &str| Some((name.to_owned(), std::env::var(name).ok().filter(|value| !value.is_empty())?));
    let envs: BTreeMap<String, String> = PASSED_ON.into_iter().filter_map(variable).collect();
    let command: Vec<String> = args.command.iter().map(|word| quoted(&word.to_string_lossy())).collect();
    let mut file = json!({
        "num_nodes": args.nodes,
        "resources": {"accelerators": accelerators},
        "workdir": absolute(&args.workdir)?.display().to_string(),
        "envs": envs,
        "run": command.join(" "),
        // Somebody waits for it: a failure is shown at once instead of being tried again.
        "recovery": {"max_faults": 0},
    });
    if let Some(name) = &args.name {
        file["name"] = json!(name);
    }
    Ok(file)
}

/// Quotes a word for the shell.
fn quoted(word: &str) -> String {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_./=:,@%+".contains(&byte);
    if !word.is_empty() && word.bytes().all(is_plain) {
        word.to_owned()
    } else {
        format!("'{}'", word.replace('\'', r"'\''"))
    }
}

/// Returns the command that holds an interactive job's devices until this process, or the command that it becomes,
/// has ended.
fn placeholder() -> Result<String, Failure> {
    let failed = |error: io::Error| Failure::local(format!("failed to look at this process: {error}"), "");
    let identity = serde_json::to_string(&Identity::own().map_err(failed)?).expect("an identity has string keys only");
    let program = std::env::current_exe().map_err(failed)?;
    Ok(format!("exec {} outlast {}", quoted(&program.to_string_lossy()), quoted(&identity)))
}

fn submitted(client: &Client, args: &RunArgs, file: &Value) -> Result<String, Failure> {
    let named = args.command.first().map(|program| program.to_string_lossy().into_owned());
    let request = api::SubmitRequest {
        job_file: file.to_string(),
        file_name: Some(named.unwrap_or_else(|| "interactive".to_owned())),
        directory: absolute(&args.workdir)?.display().to_string(),
        set: args.set.clone(),
        dry_run: false,
    };
    match submit::submit(client, &request, "gangline run")? {
        api::Answer::Submitted(submitted) => {
            output::tell(&format!("{} submitted to queue {}", submitted.job, submitted.queue));
            Ok(submitted.job)
        }
        api::Answer::SweepSubmitted(sweep) => {
            let hint = format!("gangline show {} follows it", sweep.sweep);
            Err(Failure::local(format!("{} was submitted, and a sweep can't be followed here", sweep.sweep), hint))
        }
        api::Answer::DryRun(_) => Err(Failure::local("the control plane only looked at the job", "")),
    }
}

/// Waits until all ranks of a job run, and the first one's process is known.
fn until_it_runs(client: &Client, id: &str) -> Result<api::Job, Failure> {
    let mut said = String::new();
    let job = follow::watch(
        || client.job(id),
        |job| {
            if job.state == api::JobState::Waiting && job.because != said {
                output::tell(&format!("{id} waits: {}", job.because));
                said.clone_from(&job.because);
            }
            job.state.is_final() || job.state == api::JobState::Running && exec::is_started(job)
        },
    )?;
    if !job.state.is_final() {
        return Ok(job);
    }
    let message = format!("{id} is {}: {}", job.state.name(), job.because);
    Err(Failure::local(message, format!("gangline explain {id} says more")))
}

/// Prints what the first rank prints, on the same streams, until the job has ended.
fn follow_log(client: &Client, id: &str) -> Result<(), Failure> {
    let wanted = Wanted { job: id, rank: 0, kind: LogKind::Rank, attempt: None, reach: Reach::Job };
    let (mut reader, mut said) = (LogReader::new(client, wanted), String::new());
    loop {
        match reader.next()? {
            Piece::Chunk(chunk) => chunk.text.lines().try_for_each(print_line)?,
            Piece::Attempt(_) => {}
            Piece::Missing(job) => {
                if job.state == api::JobState::Waiting && job.because != said {
                    output::tell(&format!("{id} waits: {}", job.because));
                    said = job.because;
                }
                std::thread::sleep(INTERVAL);
            }
            Piece::Quiet => std::thread::sleep(INTERVAL),
            Piece::End => return Ok(()),
        }
    }
}

/// Prints a line of a log without its time, on the stream that it was printed on.
fn print_line(line: &str) -> Result<(), Failure> {
    match Line::parse(line) {
        Line { is_error: true, text, .. } => {
            output::tell(text);
            Ok(())
        }
        Line { text, .. } => output::say(text),
    }
}

/// Listens for Ctrl-C: the first says that the job goes on, a second soon after cancels it.
#[expect(clippy::exit, reason = "another thread waits for the job, and Ctrl-C ends this program at once")]
fn listen_for_interrupts(client: &Client, id: &str) {
    let (client, id) = (client.clone(), id.to_owned());
    std::thread::spawn(move || {
        let Ok(runtime) = tokio::runtime::Builder::new_current_thread().enable_all().build() else { return };
        runtime.block_on(async {
            if tokio::signal::ctrl_c().await.is_err() {
                return;
            }
            output::tell(&format!(
                "{id} goes on; press Ctrl-C again to cancel it. gangline logs -f {id} follows it, gangline cancel {id} ends it"
            ));
            if tokio::time::timeout(SECOND_INTERRUPT_WITHIN, tokio::signal::ctrl_c()).await.is_ok() {
                match client.post::<api::CancelAnswer>(&format!("/jobs/{id}/cancel"), &json!({})) {
                    Ok(_) => output::tell(&format!("{id} is being cancelled")),
                    Err(failure) => drop(failure.report(false)),
                }
            }
            let _ = io::stdout().flush();
            std::process::exit(i32::from(INTERRUPTED));
        });
    });
}

/// Returns the exit code of the rank that failed first, if one did, as a shell would.
fn exit_code(job: &api::Job) -> ExitCode {
    if job.state == api::JobState::Succeeded {
        return ExitCode::SUCCESS;
    }
    let code = job.attempts.last().and_then(|attempt| attempt.fault.as_ref()?.exit_code);
    let code = code.and_then(|code| u8::try_from(code).ok()).filter(|code| *code != 0);
    code.map_or(ExitCode::FAILURE, ExitCode::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_reaches_the_shell_word_by_word() {
        for (word, expected) in
            [("python", "python"), ("a b", "'a b'"), ("", "''"), ("it's", r"'it'\''s'"), ("$HOME", "'$HOME'")]
        {
            assert_eq!(quoted(word), expected);
        }
    }

    #[test]
    fn the_kind_of_accelerator_is_guessed_only_if_there_is_one() {
        let guess = |gpus: Option<&str>, kinds: &[&str]| {
            let kinds = kinds.iter().map(|kind| (*kind).to_owned()).collect();
            accelerators(gpus, &kinds).map_err(|failure| format!("{failure:?}"))
        };
        assert_eq!(guess(Some("8"), &["H100", "H100"]), Ok("H100:8".to_owned()));
        assert_eq!(guess(None, &["cpu"]), Ok("cpu:1".to_owned()));
        assert_eq!(guess(Some("cpu:2"), &["cpu"]), Ok("cpu:2".to_owned()));
        assert!(guess(Some("2"), &["cpu"]).is_err_and(|said| said.contains("no node")));
        assert!(guess(Some("2"), &["A100", "H100"]).is_err_and(|said| said.contains("A100, H100")));
    }
}
