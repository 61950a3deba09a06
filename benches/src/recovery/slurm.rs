//! A node of a Slurm that is lost while a gang runs on it and another node is to spare: a real Slurm on this machine, whose slurmd of that
//! node is killed with all that it started.
//!
//! The clock starts at the kill, which is before Slurm's or a supervisor's first sign of it.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use gangline_execution::launcher::slurm::private::{CONF_VARIABLE, PrivateOptions, PrivateSlurm};
use serde_json::Value;

use super::Bench;
use super::product::Product;
use super::spawned::Folder;
use crate::report::Bar;

/// Two for the gang, one to spare.
const NODES: u32 = 3;
const GPUS: u32 = 4;
/// From the loss until the gang runs again.
const RUNNING_MOST: Duration = Duration::from_secs(10);
/// What Slurm waits by default before it starts a requeued job again (`bf`'s and slurmctld's own delay: slurm.conf(5), requeue).
const REQUEUE_DELAY: &str =
    "Slurm's own --requeue: eligible again 120 s after the node was found down (documented, not measured)";

/// What came of the losses.
#[derive(Default)]
struct Found {
    running: Vec<Duration>,
    stepping: Vec<Duration>,
    new_jobs: u64,
}

/// Loses nodes of both kinds of allocation.
pub(super) fn run(bench: &mut Bench) -> Result<()> {
    for allocation in ["job", "pool"] {
        bench.report.section(&format!(
            "A lost Slurm node with a spare, a gang of two nodes of tinygpt, allocation {allocation}"
        ));
        let mut found = lose(bench, allocation)?;
        bench.times("from the loss until the gang runs again", &mut found.running, Some(RUNNING_MOST));
        bench.times("until it has made a step", &mut found.stepping, None);
        if allocation == "pool" {
            bench.report.figure("new Slurm jobs that this took", found.new_jobs as f64, "", Bar::AtMost(0.0));
        }
        bench.report.peer(REQUEUE_DELAY);
    }
    Ok(())
}

fn lose(bench: &mut Bench, allocation: &str) -> Result<Found> {
    let folder = Folder::new()?;
    let options = PrivateOptions {
        folder: folder.path("slurm"),
        nodes: NODES,
        cpus: 16,
        gpus: Some(("h100".to_owned(), GPUS)),
        hosts: None,
        has_accounts: false,
    };
    std::fs::create_dir_all(&options.folder).context("make Slurm's folder")?;
    let mut slurm =
        PrivateSlurm::start(options).context("set up a private Slurm (root, slurm-wlm and munge are needed)")?;
    let mut product = Product::down(bench.gangline.clone(), &["--launcher", "slurm", "--allocation", allocation])?;
    product.set(CONF_VARIABLE, &slurm.conf().display().to_string());
    product.start()?;
    until("all nodes are ready", || Ok((ready(&product)? == NODES).then_some(())))?;
    let id = product.submit(&training(&product))?;
    let mut found = Found::default();
    for fault in 0..bench.options.injections {
        let saved = |job: &Value| {
            (job["state"] == "running" && attempts(job) == fault + 1)
                .then(|| job["progress"]["step"].as_u64())
                .flatten()
        };
        let before =
            product.until(&id, "it trains", |job| saved(job).filter(|step| *step >= u64::from(fault + 1) * 25))?;
        std::thread::sleep(bench.moment_below(Duration::from_millis(500)));
        let job = product.job(&id)?;
        let shares =
            job["attempts"].as_array().and_then(|all| all.last()).context("it has an attempt")?["shares"].clone();
        let victim = usize::try_from(bench.below(2)).unwrap_or(0);
        let node = shares[victim]["node"].as_str().and_then(|name| name.strip_prefix('n')?.parse().ok());
        let node: u32 = node.context("nodes are n1 to n3")?;
        let newest = newest_job(&slurm)?;
        let lost_at = Instant::now();
        slurm.kill_node(node);
        product.until(&id, "it runs again", |job| {
            (job["state"] == "running" && attempts(job) == fault + 2).then_some(())
        })?;
        found.running.push(lost_at.elapsed());
        found.new_jobs += newest_job(&slurm)?.saturating_sub(newest);
        product.until(&id, "it makes steps again", |job| {
            (job["progress"]["step"].as_u64() > Some(before)).then_some(())
        })?;
        found.stepping.push(lost_at.elapsed());
        slurm.start_node(node).context("start the node again")?;
        until("the node is back", || Ok((ready(&product)? == NODES).then_some(())))?;
    }
    product.cancel(&id)?;
    Ok(found)
}

fn training(product: &Product) -> String {
    let file = product.training("lost", 1, "--steps 1000000 --step-time-min 20");
    file.replace("resources: {accelerators: \"cpu:1\"}", "num_nodes: 2\nresources: {accelerators: \"H100:1\"}")
}

fn attempts(job: &Value) -> u32 {
    job["attempts"].as_array().map_or(0, |all| u32::try_from(all.len()).unwrap_or(u32::MAX))
}

fn ready(product: &Product) -> Result<u32> {
    let nodes = product.ask(&["nodes"])?;
    let all = nodes["nodes"].as_array().context("there are nodes")?;
    Ok(u32::try_from(all.iter().filter(|node| node["status"] == "ready").count()).unwrap_or(u32::MAX))
}

/// The highest id of Slurm's jobs.
fn newest_job(slurm: &PrivateSlurm) -> Result<u64> {
    let output = slurm.command("squeue").args(["--noheader", "--format=%i"]).output().context("start squeue")?;
    let text = String::from_utf8_lossy(&output.stdout);
    Ok(text.lines().filter_map(|line| line.trim().parse().ok()).max().unwrap_or(0))
}

fn until(what: &str, is_so: impl Fn() -> Result<Option<()>>) -> Result<()> {
    let deadline = Instant::now() + super::product::PATIENCE;
    while is_so()?.is_none() {
        anyhow::ensure!(Instant::now() < deadline, "this takes too long: {what}");
        std::thread::sleep(Duration::from_millis(100));
    }
    Ok(())
}
