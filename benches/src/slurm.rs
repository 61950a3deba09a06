//! `bench slurm`: how soon gangs start on a Slurm whose nodes others keep busy, beside plain sbatch jobs of the same size and time.
//!
//! A real Slurm on this machine, with the scheduling intervals that Slurm has by default. Others submit jobs of one node each and
//! keep some of them waiting, so that whoever wants two nodes has to wait for them in Slurm's queue. Gangs and sbatch jobs take
//! turns, in a random order; each is timed from just before its submission until the last of its ranks has begun.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context as _, Result};
use clap::{Parser, ValueEnum};
use gangline_execution::launcher::slurm::private::{CONF_VARIABLE, PrivateOptions, PrivateSlurm};
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng as _, SeedableRng as _};

use crate::binary::binary;
use crate::recovery::product::{Product, is_over};
use crate::recovery::spawned::Folder;
use crate::report::{Bar, Report, median, percentile};

const NODES: u32 = 4;
const GPUS: u32 = 4;
/// Nodes of a gang.
const GANG: u32 = 2;
/// Jobs of others that wait at any time.
const WAITING: usize = 3;
/// How long each of them runs: from the first to below the second.
const SECONDS: (u64, u64) = (2, 6);
/// A gang that hasn't started by then is given up.
const PATIENCE: Duration = Duration::from_secs(120);
/// What a gang may take beside sbatch.
const RATIO_MOST: f64 = 1.2;

/// Options of `bench slurm`.
#[derive(Parser)]
#[command(name = "bench slurm", about = "Gangs and sbatch jobs take turns on a Slurm that others keep busy")]
struct Options {
    /// Starts of each kind.
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..=200))]
    starts: u32,
    /// Only these parts (may be repeated).
    #[arg(long)]
    only: Vec<Part>,
    /// Of the order, and of how long others' jobs run.
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

/// What is on the Slurm beside the gangs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Part {
    /// Nothing.
    Idle,
    /// Jobs of others, of which some always wait.
    Busy,
}

/// Who starts a gang.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Sbatch,
    Queue,
    Job,
}

impl Kind {
    const ALL: [Kind; 3] = [Kind::Sbatch, Kind::Queue, Kind::Job];

    fn name(self) -> &'static str {
        match self {
            Kind::Sbatch => "sbatch",
            Kind::Queue => "gangline, allocation queue",
            Kind::Job => "gangline, allocation job",
        }
    }
}

/// The Slurm and what is on it.
struct Stage {
    slurm: PrivateSlurm,
    queue: Product,
    job: Product,
    /// Where ranks say when they began.
    folder: Folder,
}

/// Starts gangs, and prints how soon they began; whether every bar held.
pub(super) fn run(options: &[String]) -> Result<bool> {
    let arguments = std::iter::once("bench slurm").chain(options.iter().map(String::as_str));
    let options = match Options::try_parse_from(arguments) {
        Ok(options) => options,
        Err(error) => {
            error.print().context("print how it is used")?;
            return Ok(!error.use_stderr());
        }
    };
    let gangline = binary()?;
    println!("{} at --seed {}; all times are measured", gangline.display(), options.seed);
    let stage = Stage::set(&gangline)?;
    let mut report = Report::default();
    let parts = [Part::Idle, Part::Busy].into_iter();
    for part in parts.filter(|part| options.only.is_empty() || options.only.contains(part)) {
        let title = if part == Part::Busy { "kept busy by others" } else { "idle" };
        report
            .section(&format!("A Slurm of {NODES} nodes with {GPUS} GPUs each, {title}: gangs of {GANG} whole nodes"));
        let mut random = ChaCha8Rng::seed_from_u64(options.seed);
        let is_enough = AtomicBool::new(false);
        let took = std::thread::scope(|scope| {
            let others = ChaCha8Rng::seed_from_u64(options.seed + 1);
            if part == Part::Busy {
                scope.spawn(|| stage.keep_busy(others, &is_enough));
            }
            let took = stage.take_turns(part, options.starts, &mut random);
            is_enough.store(true, Ordering::SeqCst);
            took
        })?;
        print(&mut report, took);
    }
    Ok(report.finish())
}

fn print(report: &mut Report, took: Vec<(Kind, Vec<Option<Duration>>)>) {
    let mut base = f64::NAN;
    for (kind, starts) in took {
        let name = kind.name();
        let mut begun: Vec<Duration> = starts.iter().copied().flatten().collect();
        let given_up = starts.len() - begun.len();
        if given_up > 0 {
            let patience = PATIENCE.as_secs();
            report.note(&format!(
                "{name}: {given_up} of {} had not begun after {patience} s, and were given up",
                starts.len()
            ));
        }
        if begun.is_empty() {
            continue;
        }
        let middle = median(begun.iter().map(Duration::as_secs_f64).collect());
        report.time(
            &format!("{name}: until all ranks have begun, median of {}", begun.len()),
            Duration::from_secs_f64(middle),
            None,
        );
        report.time(&format!("{name}: p90"), percentile(&mut begun, 90), None);
        match kind {
            Kind::Sbatch => base = middle,
            _ => report.figure(&format!("{name}: median beside sbatch's"), middle / base, "x", Bar::AtMost(RATIO_MOST)),
        }
    }
}

impl Stage {
    fn set(gangline: &Path) -> Result<Stage> {
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
        // A private Slurm looks through its queue more often than Slurm does by default.
        let conf = std::fs::read_to_string(slurm.conf()).context("read slurm.conf")?;
        let stock: Vec<&str> = conf.lines().filter(|line| !line.starts_with("SchedulerParameters=")).collect();
        std::fs::write(slurm.conf(), stock.join("\n") + "\n").context("write slurm.conf")?;
        slurm.stop_controller();
        slurm.start_controller().context("start slurmctld again")?;
        let plane = |allocation: &str| -> Result<Product> {
            let mut product =
                Product::down(gangline.to_path_buf(), &["--launcher", "slurm", "--allocation", allocation])?;
            product.set(CONF_VARIABLE, &slurm.conf().display().to_string());
            product.start()?;
            Ok(product)
        };
        let (queue, job) = (plane("queue")?, plane("job")?);
        let stage = Stage { slurm, queue, job, folder };
        stage.until_idle()?;
        stage.until_known()?;
        Ok(stage)
    }

    /// Runs one of Slurm's programs and gives what it printed.
    fn slurm(&self, program: &str, arguments: &[&str]) -> Result<String> {
        let output =
            self.slurm.command(program).args(arguments).output().with_context(|| format!("start {program}"))?;
        let said = String::from_utf8_lossy(&output.stderr);
        anyhow::ensure!(output.status.success(), "{program} {arguments:?}: {}", said.trim());
        Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
    }

    fn count(&self, options: &[&str]) -> Result<usize> {
        Ok(self.slurm("squeue", &[&["--noheader", "--format=%i"], options].concat())?.lines().count())
    }

    fn until_idle(&self) -> Result<()> {
        let deadline = Instant::now() + PATIENCE;
        let idle = || self.slurm("sinfo", &["--noheader", "--states=idle", "--format=%D"]);
        while idle()? != NODES.to_string() {
            anyhow::ensure!(Instant::now() < deadline, "Slurm's nodes don't become idle");
            std::thread::sleep(Duration::from_millis(200));
        }
        Ok(())
    }

    /// Waits until both control planes have seen all nodes.
    fn until_known(&self) -> Result<()> {
        let deadline = Instant::now() + PATIENCE;
        for plane in [&self.queue, &self.job] {
            let known = || -> Result<usize> { Ok(plane.ask(&["nodes"])?["nodes"].as_array().map_or(0, Vec::len)) };
            while known()? < usize::try_from(NODES)? {
                anyhow::ensure!(Instant::now() < deadline, "a control plane doesn't see Slurm's nodes");
                std::thread::sleep(Duration::from_millis(200));
            }
        }
        Ok(())
    }

    /// Keeps some jobs of one node each waiting until it is enough.
    fn keep_busy(&self, mut random: ChaCha8Rng, is_enough: &AtomicBool) {
        while !is_enough.load(Ordering::SeqCst) {
            let waiting = self.count(&["--name=others", "--states=PENDING"]).unwrap_or(WAITING);
            for _ in waiting..WAITING {
                let seconds = SECONDS.0 + random.next_u64() % (SECONDS.1 - SECONDS.0);
                let wrap = format!("sleep {seconds}");
                let size = ["--job-name=others", "--nodes=1", "--exclusive", "--mem=100", "--time=5"];
                let output = ["--output=/dev/null", "--wrap", &wrap];
                let _ = self.slurm("sbatch", &[&size[..], &output].concat());
            }
            std::thread::sleep(Duration::from_millis(200));
        }
        let _ = self.slurm("scancel", &["--name=others"]);
    }

    /// Starts so many gangs of each kind; how long each took, or none if it was given up.
    fn take_turns(
        &self,
        part: Part,
        starts: u32,
        random: &mut ChaCha8Rng,
    ) -> Result<Vec<(Kind, Vec<Option<Duration>>)>> {
        let mut took: Vec<(Kind, Vec<Option<Duration>>)> = Kind::ALL.map(|kind| (kind, Vec::new())).into();
        for start in 0..starts {
            let mut order: Vec<usize> = (0..took.len()).collect();
            for at in (1..order.len()).rev() {
                order.swap(at, usize::try_from(random.next_u64() % (at as u64 + 1)).unwrap_or(0));
            }
            for at in order {
                // A gang that was given up is so again: each costs two minutes.
                let is_hopeless = took[at].1.iter().filter(|took| took.is_none()).count() >= 3;
                if !is_hopeless {
                    let one = self.start(took[at].0, &format!("{part:?}-{start}"))?;
                    took[at].1.push(one);
                }
            }
        }
        Ok(took)
    }

    fn start(&self, kind: Kind, number: &str) -> Result<Option<Duration>> {
        let name = format!("began-{}-{number}", kind as u8);
        let say = format!("date +%s.%N >> {}", self.folder.path(&name).display());
        let submitted = SystemTime::now();
        let plane = match kind {
            Kind::Sbatch => {
                let size = format!("--nodes={GANG}");
                let (tasks, gpus) = (format!("--ntasks-per-node={GPUS}"), format!("--gres=gpu:h100:{GPUS}"));
                let wrap = format!("srun --mem=100 sh -c '{say}'");
                let arguments = [
                    &size,
                    &tasks,
                    &gpus,
                    "--exclusive",
                    "--mem=100",
                    "--time=15",
                    "--output=/dev/null",
                    "--wrap",
                    &wrap,
                ];
                self.slurm("sbatch", &[&["--job-name=plain"], &arguments[..]].concat())?;
                None
            }
            Kind::Queue => Some(&self.queue),
            Kind::Job => Some(&self.job),
        };
        let job = plane.map(|plane| plane.submit(&job_file(&say))).transpose()?;
        let began = self.until_begun(&name)?;
        if let Some((plane, job)) = plane.zip(job) {
            if began.is_none() {
                plane.cancel(&job)?;
            }
            plane.until(&job, "it is over", |job| is_over(job).then_some(()))?;
        }
        // Nodes that are still held would be an advantage for the next gang of that kind.
        self.slurm("scancel", &["--name=gangline-queue"])?;
        while self.count(&["--name=gangline-queue,plain"])? > 0 {
            std::thread::sleep(Duration::from_millis(100));
        }
        Ok(began.map(|at| at.duration_since(submitted).unwrap_or_default()))
    }

    /// When the last of a gang's ranks began; none if not all have after some time.
    fn until_begun(&self, name: &str) -> Result<Option<SystemTime>> {
        let deadline = Instant::now() + PATIENCE;
        let ranks = usize::try_from(GANG * GPUS)?;
        while Instant::now() < deadline {
            let text = self.folder.text(name);
            let times: Vec<f64> = text.lines().filter_map(|line| line.parse().ok()).collect();
            if times.len() == ranks {
                let last = times.into_iter().fold(0.0, f64::max);
                return Ok(Some(UNIX_EPOCH + Duration::from_secs_f64(last)));
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        Ok(None)
    }
}

fn job_file(say: &str) -> String {
    format!("name: gang\nnum_nodes: {GANG}\nresources: {{accelerators: \"H100:{GPUS}\"}}\ntime_limit: 5m\nrun: {say}\n")
}
