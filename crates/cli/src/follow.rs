//! Follows a job to its end.

use std::io::IsTerminal;
use std::process::ExitCode;
use std::time::Duration;

use gangline_api as api;
use indicatif::{ProgressBar, ProgressStyle};

use crate::client::Client;
use crate::failure::Failure;
use crate::{output, report};

/// Interval between two checks.
const INTERVAL: Duration = Duration::from_millis(300);
/// Shortest time between two lines about steps where there is no terminal.
const PROGRESS_EVERY: Duration = Duration::from_secs(10);
/// Exit code of a program that SIGINT ended, as shells give it.
const INTERRUPTED: i32 = 130;
/// How long to wait for an unreachable control plane: a restart shouldn't end a --wait.
const UNREACHABLE_MAX: Duration = Duration::from_mins(2);

/// Waits until the job has ended, and shows its progress. The exit code tells its fate.
pub(crate) fn to_the_end(client: &Client, id: &str, is_json: bool) -> Result<ExitCode, Failure> {
    let bar = bar(&std::io::stderr());
    tell_when_interrupted(id.to_owned(), bar.clone());
    let (mut last_said, mut last_step) = (String::new(), (None, std::time::Instant::now()));
    let job = watch(
        || client.job(id),
        |job| {
            show(&bar, job);
            let said = format!("{} is {}: {}", job.id, job.state.name(), job.because);
            if bar.is_hidden() && said != last_said {
                output::tell(&said);
                last_said = said;
            } else if bar.is_hidden() && job.progress.step != last_step.0 && last_step.1.elapsed() >= PROGRESS_EVERY {
                output::tell(&format!("{} {}{}", job.id, steps(job), line(job)));
                last_step = (job.progress.step, std::time::Instant::now());
            }
            job.state.is_final()
        },
    )?;
    bar.finish_and_clear();
    if is_json { output::json(&job) } else { output::print(&report::job(&job)) }?;
    Ok(if job.state == api::JobState::Succeeded { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Polls, through a restart of the control plane, until `is_over` returns true.
pub(crate) fn watch<T>(
    look: impl Fn() -> Result<T, Failure>,
    mut is_over: impl FnMut(&T) -> bool,
) -> Result<T, Failure> {
    let mut unreachable = Duration::ZERO;
    loop {
        match look() {
            Err(Failure::Unreachable { .. }) if unreachable < UNREACHABLE_MAX => unreachable += INTERVAL,
            seen => {
                unreachable = Duration::ZERO;
                let seen = seen?;
                if is_over(&seen) {
                    return Ok(seen);
                }
            }
        }
        std::thread::sleep(INTERVAL);
    }
}

/// Returns a bar if `stream` is a terminal, otherwise a hidden one.
fn bar(stream: &impl IsTerminal) -> ProgressBar {
    if stream.is_terminal() { styled(ProgressBar::new(0)) } else { ProgressBar::hidden() }
}

/// Sets the style of a job's bar.
pub(crate) fn styled(bar: ProgressBar) -> ProgressBar {
    let template = "{prefix:<32!} {bar:16} {wide_msg}";
    match ProgressStyle::with_template(template) {
        Ok(style) => bar.with_style(style.progress_chars("=> ")),
        Err(_) => bar,
    }
}

/// Updates a bar from its job.
pub(crate) fn show(bar: &ProgressBar, job: &api::Job) {
    bar.set_prefix(format!("{} {} ({})", job.id, job.name, job.queue));
    // A bar of length zero would be drawn full.
    bar.set_length(job.progress.total_steps.unwrap_or(0).max(1));
    bar.set_position(job.progress.step.unwrap_or(0));
    bar.set_message(format!("{}{}", steps(job), line(job)));
}

fn steps(job: &api::Job) -> String {
    match (job.progress.step, job.progress.total_steps) {
        (Some(step), Some(total)) => format!("step {step}/{total} "),
        (Some(step), None) => format!("step {step} "),
        _ => String::new(),
    }
}

/// Lets Ctrl-C say that the job goes on, and how to stop it, before it ends the program.
fn tell_when_interrupted(id: String, bar: ProgressBar) {
    #[expect(clippy::exit, reason = "Ctrl-C ends the program, which holds nothing that needs an orderly end")]
    let wait = move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        if runtime.is_ok_and(|runtime| runtime.block_on(tokio::signal::ctrl_c()).is_ok()) {
            bar.finish_and_clear();
            output::tell(&format!("{id} goes on; gangline logs -f {id} follows it, gangline cancel {id} stops it"));
            std::process::exit(INTERRUPTED);
        }
    };
    // Without the thread Ctrl-C ends the program in silence, as it does by default.
    let _ = std::thread::Builder::new().name("interrupt".to_owned()).spawn(wait);
}

/// Describes a job's state in a few words.
pub(crate) fn line(job: &api::Job) -> String {
    let mut text = job.state.name().to_owned();
    if job.state == api::JobState::Waiting || job.state.is_final() && job.because != text {
        text.push_str(&format!(": {}", output::shorten(&job.because, 70)));
        return text;
    }
    if job.state.is_final() {
        return text;
    }
    if job.attempts.len() > 1 {
        text.push_str(&format!(" (attempt {})", job.attempts.len()));
    }
    text.extend(job.progress.last_loss(3).map(|loss| format!("  loss {loss}")));
    text.extend(job.progress.tokens_per_second.map(|rate| format!("  {rate:.0} tokens/s")));
    text
}
