//! `demo`: three real training jobs from two queues on this machine, or on a private Slurm; one rank is
//! killed midway, the job recovers, and a report follows.
//!
//! It uses only what users have: the control plane of `up`, the API, job files.

mod archive;
mod corpus;
mod slurm;
mod watch;

use std::path::{Path, PathBuf};

use clap::Args;
use gangline_api as api;
use gangline_control::secret::Secrets;
use gangline_execution::inventory::this_machine;
use gangline_execution::launcher::slurm::private::PrivateSlurm;

use corpus::Corpus;

use crate::client::Client;
use crate::failure::Failure;
use crate::launcher::{Kind, LauncherArgs};
use crate::listen::ListenArgs;
use crate::up::{self, UpArgs};
use crate::{Global, cost, data, listing, output, report, submit, why};

/// How to run the demo.
#[derive(Args, Clone, Debug)]
pub(crate) struct DemoArgs {
    /// Leave the control plane up at the end, until Ctrl-C
    #[arg(long)]
    keep: bool,
    /// The price of a slot-hour in US dollars that costs are stated at
    #[arg(long, default_value = "0.04", value_name = "USD")]
    price: String,
    /// Optimizer steps of each job
    #[arg(long, default_value_t = 1_000, value_parser = clap::value_parser!(u64).range(40..=1_000_000))]
    steps: u64,
    /// What starts the jobs; for slurm a private one of four nodes is set up on this machine (takes root and slurm-wlm)
    #[arg(long, value_enum, default_value_t = Kind::Local)]
    launcher: Kind,
}

/// Number of slots of the demo's node: fewer than its jobs request.
const SLOTS: u32 = 2;
/// The price of a GiB of storage for a month that the demo assumes, in US dollars.
const STORAGE_PRICE: &str = "0.10";

/// One of the demo's jobs.
struct DemoJob {
    name: &'static str,
    queue: &'static str,
    slots: u32,
    /// Options that distinguish its training.
    options: &'static str,
}

const JOBS: [DemoJob; 3] = [
    DemoJob { name: "tiny-gpt-a", queue: "research", slots: 1, options: "--seed 1 --lr 0.003" },
    DemoJob { name: "tiny-gpt-b", queue: "product", slots: 1, options: "--seed 2 --lr 0.002" },
    DemoJob { name: "tiny-gpt-gang", queue: "research", slots: 2, options: "--seed 3 --lr 0.003" },
];

pub(crate) fn run(global: &Global, args: &DemoArgs) -> Result<(), Failure> {
    let temporary = tempfile::Builder::new().prefix("gangline-demo-").tempdir()?;
    let folder = global.data.clone().unwrap_or_else(|| temporary.path().join("data"));
    let slurm = match args.launcher {
        Kind::Local => None,
        Kind::Slurm => Some(slurm::start(&temporary.path().join("slurm"))?),
    };
    let kind = if slurm.is_some() { "cpu".to_owned() } else { accelerator_kind() };
    let corpus = corpus::publish(temporary.path())?;
    let config = configuration(&folder, temporary.path())?;
    let running = up::start(&folder, &UpArgs { config, ..up_args(args, &kind, slurm.as_ref()) })?;
    let client = Client::of_folder(&folder, Secrets::open(&folder)?.user_token())?;
    output::tell(&format!("control plane at {} (data folder {})", running.url, folder.display()));
    running.tell_page()?;
    let seen = if slurm.is_some() { slurm::wait_for_nodes(&client) } else { Ok(()) };
    let outcome = seen.and_then(|()| train(&client, args, &folder, (&kind, &corpus)));
    if outcome.is_err() {
        // The jobs belong to the demo; after it nobody would look after them.
        cancel_all(&client);
        output::tell("the demo failed; what it started is cancelled");
    } else if args.keep {
        output::tell(&format!("the control plane stays up at {}; press Ctrl-C to end it", running.url));
        up::wait_for_signal(&running)?;
    }
    running.stop();
    let jobs = outcome?;
    if jobs.iter().all(|job| job.state == api::JobState::Succeeded) {
        return Ok(());
    }
    Err(Failure::local("not every job succeeded", "gangline demo --keep leaves the control plane up to look around"))
}

/// Returns the kind of the demo's slots: this machine's accelerators if there are enough, otherwise CPU
/// slots.
fn accelerator_kind() -> String {
    let found = this_machine().accelerators;
    let kind = if found.count >= SLOTS { found.kind.clone() } else { "cpu".to_owned() };
    let product = found.product.as_deref().map(|product| format!(" ({product})")).unwrap_or_default();
    output::tell(&format!(
        "this machine has {} {} slot(s){product}; the demo offers {SLOTS} of kind {kind}, its jobs want {} in all",
        found.count,
        found.kind,
        JOBS.iter().map(|job| job.slots).sum::<u32>()
    ));
    kind
}

/// Returns a configuration with a price of storage, unless the data folder has one of its own.
fn configuration(folder: &Path, temporary: &Path) -> Result<Option<PathBuf>, Failure> {
    if folder.join("gangline.toml").exists() {
        return Ok(None);
    }
    let file = temporary.join("demo.toml");
    let text = format!(
        "[storage]\nmeasure_every = \"2s\"\n[[storage.price]]\npath = \"/\"\nusd_per_gib_month = \"{STORAGE_PRICE}\"\n"
    );
    std::fs::write(&file, text)?;
    Ok(Some(file))
}

fn up_args(args: &DemoArgs, kind: &str, slurm: Option<&PrivateSlurm>) -> UpArgs {
    let launcher = LauncherArgs {
        launcher: Some(args.launcher),
        slurm_conf: slurm.map(PrivateSlurm::conf),
        ..LauncherArgs::default()
    };
    let nodes = if slurm.is_some() { Vec::new() } else { vec![format!("local={kind}:{SLOTS}")] };
    UpArgs {
        listen: ListenArgs { listen: Some("127.0.0.1:0".to_owned()), ..ListenArgs::default() },
        nodes,
        launcher,
        price: Some(args.price.clone()),
        heartbeat: 250,
        lease: Some(2_000),
        orphan_after: Some(60),
        ..UpArgs::default()
    }
}

fn train(
    client: &Client,
    args: &DemoArgs,
    folder: &Path,
    (kind, corpus): (&str, &Corpus),
) -> Result<Vec<api::Job>, Failure> {
    let mut ids = Vec::new();
    for job in &JOBS {
        let request = api::SubmitRequest {
            job_file: job_file(job, args, (kind, corpus))?,
            file_name: Some(format!("{}.yaml", job.name)),
            directory: absolute_existing(folder)?,
            set: Vec::new(),
            dry_run: false,
        };
        if let api::Answer::Submitted(submitted) = submit::submit(client, &request, job.name)? {
            output::tell(&format!(
                "submitted {} {} to queue {}: {} slot(s)",
                submitted.job, job.name, job.queue, job.slots
            ));
            ids.push(submitted.job);
        }
    }
    watch::explain_the_waiting(client, &ids)?;
    let jobs = watch::to_the_end(client, &ids)?;
    output::say("")?;
    for job in &jobs {
        output::say(&report::job(job))?;
    }
    if let Some(killed) = jobs.iter().max_by_key(|job| job.attempts.len()) {
        output::say(&format!("$ gangline why {}\n{}", killed.id, why::of(client, &killed.id)?))?;
    }
    output::say("$ gangline data cache")?;
    data::list_cache(&corpus.cache)?;
    output::say("")?;
    jobs.iter().try_for_each(|job| archive::push(job, folder))?;
    output::say("The bill of the demo, by job:\n")?;
    output::say(&cost::bill(client, "by=job")?)?;
    output::say(&format!(
        "Times, steps and losses are measured; costs are measured slot-seconds at an assumed ${} a slot-hour, and \
         measured bytes on the disk at an assumed ${STORAGE_PRICE} a GiB and month.",
        args.price
    ))?;
    Ok(jobs)
}

fn job_file(job: &DemoJob, args: &DemoArgs, (kind, corpus): (&str, &Corpus)) -> Result<String, Failure> {
    let program = std::env::current_exe()?;
    let run = format!(
        "exec {} tinygpt --data {} --steps {} --checkpoint-every {} --log-every 25 {}",
        quoted(&program)?,
        corpus.address,
        args.steps,
        (args.steps / 8).max(1),
        job.options
    );
    // On Slurm the gang has one slot on every node; here it has all of its slots on one.
    let is_gang = args.launcher == Kind::Slurm && job.slots > 1;
    let (nodes, slots) = if is_gang { (slurm::NODES, 1) } else { (1, job.slots) };
    let text = |text: &str| serde_json::to_string(text).map_err(|error| Failure::local(error.to_string(), ""));
    let (run, cache) = (text(&run)?, text(&corpus.cache.display().to_string())?);
    Ok(format!(
        "name: {}\nqueue: {}\nnum_nodes: {nodes}\nresources: {{accelerators: \"{kind}:{slots}\"}}\nrun: {run}\n\
         envs: {{GANGLINE_DATA_CACHE: {cache}}}\n\
         checkpoint: {{grace: 10s}}\nrecovery: {{max_faults: 3, no_progress_limit: 3}}\n",
        job.name, job.queue
    ))
}

/// Quotes the program's path as one word of a shell command.
fn quoted(program: &Path) -> Result<String, Failure> {
    let text = program.to_str().ok_or_else(|| Failure::local("the program's path is not UTF-8", "move it"))?;
    Ok(format!("'{}'", text.replace('\'', "'\\''")))
}

fn absolute_existing(folder: &Path) -> Result<String, Failure> {
    let absolute: PathBuf = std::path::absolute(folder)?;
    Ok(absolute.display().to_string())
}

fn cancel_all(client: &Client) {
    let Ok(list) = listing::live(client, &listing::Filter::default()) else { return };
    for job in &list.jobs {
        // It may have ended meanwhile.
        let _ = client.post::<api::CancelAnswer>(&format!("/jobs/{}/cancel", job.id), &serde_json::json!({}));
    }
}
