//! `submit`: sends a job file to the control plane.

use std::collections::BTreeSet;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Args;
use gangline_api as api;

use crate::client::{Client, absolute};
use crate::failure::Failure;
use crate::{follow, jobs, output, sbatch, sweeps};

/// Maximum size of a job file, in bytes; the control plane's own limit is lower.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// What to submit.
#[derive(Args, Debug)]
pub(crate) struct SubmitArgs {
    /// The job file (YAML), or a batch script with #SBATCH lines; - for standard input
    file: PathBuf,
    /// Only say whether it is valid and where it would run, or why not
    #[arg(long)]
    dry_run: bool,
    /// Follow it to its end; the exit code is 0 only if it succeeds
    #[arg(long, conflicts_with = "dry_run")]
    wait: bool,
    /// Override a key of the file, such as envs.LR=3e-4 (may be repeated)
    #[arg(long = "set", value_name = "KEY=VALUE")]
    set: Vec<String>,
}

pub(crate) fn run(client: &Client, args: &SubmitArgs, is_json: bool) -> Result<ExitCode, Failure> {
    let file = args.file.display().to_string();
    let request = api::SubmitRequest { dry_run: args.dry_run, ..request_of(client, &args.file, args.set.clone())? };
    let answer = submit(client, &request, &file)?;
    if let api::Answer::Submitted(api::Submitted { notes, .. })
    | api::Answer::SweepSubmitted(api::SweepSubmitted { notes, .. }) = &answer
    {
        notes.iter().for_each(|note| output::tell(note));
    }
    match answer {
        api::Answer::DryRun(dry_run) => {
            if is_json { output::json(&dry_run) } else { output::print(&dry_run_text(&dry_run)) }?;
            Ok(ExitCode::SUCCESS)
        }
        api::Answer::SweepSubmitted(submitted) => {
            let (jobs, queue) = (submitted.jobs.len(), &submitted.queue);
            output::tell(&format!("{}: {jobs} job(s) submitted to queue {queue}", submitted.sweep));
            if args.wait {
                return sweeps::to_the_end(client, &submitted.sweep, is_json);
            }
            if is_json { output::json(&submitted) } else { output::say(&submitted.sweep) }?;
            Ok(ExitCode::SUCCESS)
        }
        api::Answer::Submitted(submitted) if args.wait => {
            output::tell(&format!("{} submitted to queue {}", submitted.job, submitted.queue));
            follow::to_the_end(client, &submitted.job, is_json)
        }
        api::Answer::Submitted(submitted) => {
            if is_json { output::json(&submitted) } else { output::say(&submitted.job) }?;
            Ok(ExitCode::SUCCESS)
        }
    }
}

/// Reads a job file, or translates a batch script to one.
pub(crate) fn request_of(client: &Client, file: &Path, set: Vec<String>) -> Result<api::SubmitRequest, Failure> {
    let mut request = request(file, set)?;
    if sbatch::is_script(&request.job_file) {
        request.job_file = translated(client, &request)?;
    }
    Ok(request)
}

/// Translates a batch script to a job file; prints what isn't honoured.
fn translated(client: &Client, request: &api::SubmitRequest) -> Result<String, Failure> {
    let file = request.file_name.as_deref().unwrap_or("job");
    let name = file.split('.').next().filter(|name| !name.is_empty()).unwrap_or("job");
    let kinds: BTreeSet<String> = client.get::<api::NodeList>("/nodes").map_or_else(|_| BTreeSet::new(), gpu_kinds);
    let is_only = kinds.len() == 1;
    let kind = kinds.into_iter().next_back().filter(|_| is_only);
    let names_queue = request.set.iter().any(|set| set.starts_with("queue="));
    let list = client.get::<api::QueueList>("/queues").ok().filter(|_| !names_queue);
    let queues = list.as_ref().map(sbatch::Queues::of).unwrap_or_default();
    let translated =
        sbatch::translate(&request.job_file, name, &sbatch::Cluster { kind, queues }).map_err(|problems| {
            let hint = "docs/guides/slurm.md says which #SBATCH lines are honoured";
            Failure::local(format!("{file} can't be made a job: {}", problems.join("; ")), hint)
        })?;
    translated.notes.iter().for_each(|note| output::tell(&format!("{file}: {note}")));
    Ok(translated.job_file)
}

fn gpu_kinds(list: api::NodeList) -> BTreeSet<String> {
    list.nodes.into_iter().map(|node| node.accelerator).filter(|kind| kind != "cpu").collect()
}

/// Sends a request; problems are reported with the file's name.
pub(crate) fn submit(client: &Client, request: &api::SubmitRequest, file: &str) -> Result<api::Answer, Failure> {
    client.post("/jobs", request).map_err(|failure| in_file(failure, file))
}

/// Returns the failure with the file that it is about.
pub(crate) fn in_file(failure: Failure, file: &str) -> Failure {
    match failure {
        Failure::Api { status, detail, .. } => Failure::Api { status, detail, file: Some(file.to_owned()) },
        other => other,
    }
}

fn request(file: &Path, set: Vec<String>) -> Result<api::SubmitRequest, Failure> {
    let failed = |error: std::io::Error| {
        let hint = "name a job file, or - for standard input; docs/reference/job-file.md describes its keys";
        Failure::local(format!("{} can't be read: {error}", file.display()), hint)
    };
    let is_stdin = file == Path::new("-");
    let mut job_file = String::new();
    let source: Box<dyn Read> =
        if is_stdin { Box::new(std::io::stdin()) } else { Box::new(std::fs::File::open(file).map_err(failed)?) };
    source.take(FILE_BYTES_MAX + 1).read_to_string(&mut job_file).map_err(failed)?;
    let folder = if is_stdin { Path::new(".") } else { file.parent().unwrap_or(Path::new(".")) };
    let folder = if folder.as_os_str().is_empty() { Path::new(".") } else { folder };
    let directory = absolute(folder)?.display().to_string();
    let name = file.file_name().filter(|_| !is_stdin).map(|name| name.to_string_lossy().into_owned());
    Ok(api::SubmitRequest { job_file, file_name: name, directory, set, dry_run: false })
}

fn dry_run_text(dry_run: &api::DryRun) -> String {
    match dry_run {
        api::DryRun::WouldStart { placements } => {
            let places: Vec<String> =
                placements.iter().map(|placement| format!("{} {:?}", placement.node, placement.devices)).collect();
            format!("valid; it would start at once on {}\n", places.join(", "))
        }
        api::DryRun::WouldPreempt { explanation } => {
            format!("valid; it would start as soon as it has made room: {}", jobs::explanation_text(explanation))
        }
        api::DryRun::WouldWait { explanation } => {
            format!("valid; it would wait: {}", jobs::explanation_text(explanation))
        }
    }
}
