//! A gang of four ranks of PyTorch's DDP over gloo that loses a rank: under Gangline, and beside it under torchrun.
//!
//! Both are killed at the same steps and are looked at in the same way: what their first rank prints, and which processes there are. The
//! platform's share ends when the last of the new ranks' Python has been exec'ed; what follows is PyTorch's import, its meeting, the
//! restore and a step. It is one kill a run: from the second fault in a row of a job that reports no checkpoint, as a script that knows
//! nothing of Gangline can't, Gangline pauses (1 s, then 2 s, ...), which is meant, and isn't what is measured here.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};

use super::product::{PATIENCE, Product};
use super::spawned::Folder;
use super::{Bench, python_programs};
use crate::processes::{self, Signal};

pub(super) const RANKS: u64 = 4;
/// Without it, ranks that torchrun starts again find the addresses of their dead predecessors in the store that it shares with them,
/// so that some meetings fail and some last for ever (seen with PyTorch 2.15; pytorch#135712 has the cause and this remedy).
const UNSHARED: (&str, &str) = ("TORCH_DISABLE_SHARE_RDZV_TCP_STORE", "1");
/// Between two looks at files and processes.
const LOOK_EVERY: Duration = Duration::from_millis(5);

/// When which rank is killed.
#[derive(Clone, Copy)]
pub(super) struct Kill {
    pub(super) rank: u64,
    pub(super) step: u64,
    /// After that step was printed.
    pub(super) after: Duration,
}

/// A recovery as seen from outside.
pub(super) struct Recovered {
    /// From the kill until all new ranks' programs ran.
    pub(super) platform: Duration,
    /// From the kill until a new rank had finished a step.
    pub(super) total: Duration,
    /// Steps that had been made and weren't saved.
    pub(super) lost: u64,
    /// All that the first rank has printed.
    pub(super) printed: String,
}

/// Where scripts run, under the one and under the other.
pub(super) struct Platforms {
    product: Product,
    /// The folder of Python and torchrun.
    programs: PathBuf,
    environment: Vec<(String, String)>,
    /// What Python has compiled.
    _compiled: Folder,
}

impl Platforms {
    pub(super) fn up(bench: &Bench) -> Result<Platforms> {
        let programs = python_programs()?;
        let path = std::env::var("PATH").unwrap_or_default();
        let compiled = Folder::new()?;
        let environment: Vec<(String, String)> = [
            ("PATH", format!("{}:{path}", programs.display())),
            ("GLOO_SOCKET_IFNAME", "lo".to_owned()),
            // As torchrun has it.
            ("OMP_NUM_THREADS", "1".to_owned()),
            // The environment was installed without compiled modules, which take longer to compile than to load; nothing is written into it.
            ("PYTHONPYCACHEPREFIX", compiled.root().display().to_string()),
            ("PYTHONDONTWRITEBYTECODE", String::new()),
        ]
        .map(|(name, value)| (name.to_owned(), value))
        .into();
        bench.report.note(&format!("torchrun runs with {}={}: as it comes, its restarts hang", UNSHARED.0, UNSHARED.1));
        let product = Product::up(bench.gangline.clone(), &format!("a=cpu:{RANKS}"), &environment)?;
        Ok(Platforms { product, programs, environment, _compiled: compiled })
    }

    /// That Gangline's own Python package is there.
    pub(super) fn has_gangline(&self) -> Result<()> {
        let known = Command::new(self.programs.join("python")).args(["-c", "import gangline"]).output();
        let is_there = known.context("start Python")?.status.success();
        anyhow::ensure!(is_there, "{} has no package gangline: run cargo xtask python once", self.programs.display());
        Ok(())
    }

    /// Runs Python with these arguments, which know of the checkpoints' folder, as a job of this name until it has recovered.
    pub(super) fn gangline(&self, name: &str, arguments: impl Fn(&Path) -> String, kill: Kill) -> Result<Recovered> {
        let folder = &self.product.folder;
        let own = folder.path(name);
        std::fs::create_dir(&own).context("make a folder of checkpoints")?;
        let arguments = arguments(&own);
        let job_file =
            format!("name: {name}\nresources: {{accelerators: \"cpu:{RANKS}\"}}\nrun: exec python {arguments}\n");
        let job = self.product.submit(&job_file)?;
        let log = |attempt: u32| folder.path(&format!("data/jobs/{job}/attempt-{attempt}/a/logs/rank-0.log"));
        let recovered = recover(&Run { marker: own, before: log(1), after: log(2) }, kill)?;
        self.product.cancel(&job)?;
        Ok(recovered)
    }

    /// The same under torchrun.
    pub(super) fn torchrun(&self, arguments: impl Fn(&Path) -> String, kill: Kill) -> Result<Recovered> {
        let folder = Folder::new()?;
        // In a session of its own as Gangline's supervisors are: Linux shares busy processors out by session (autogroup).
        let mut torchrun = Command::new("setsid");
        torchrun.arg(self.programs.join("torchrun")).args([
            "--standalone",
            "--nproc-per-node",
            &RANKS.to_string(),
            "--max-restarts",
            "100",
        ]);
        // What it leaves when it is killed goes with the folder.
        torchrun.env(UNSHARED.0, UNSHARED.1).env("TMPDIR", folder.root());
        torchrun.args(arguments(folder.root()).split(' '));
        torchrun.envs(self.environment.iter().map(|(name, value)| (name, value)));
        let mut agent = folder.spawn(&mut torchrun, "torchrun.log")?;
        let log = folder.path("torchrun.log");
        let run = Run { marker: folder.root().to_owned(), before: log.clone(), after: log };
        let recovered = recover(&run, kill);
        processes::signal(agent.id(), Signal::KILL)?;
        agent.wait().context("wait for torchrun")?;
        recovered.with_context(|| format!("watch torchrun: {}", folder.text("torchrun.log")))
    }
}

/// The last of both, in words.
pub(super) fn pair(ours: &[Recovered], theirs: &[Recovered]) -> String {
    let words = |recovered: &[Recovered]| {
        let Some(last) = recovered.last() else { return String::new() };
        let (total, platform) = (last.total.as_secs_f64(), last.platform.as_secs_f64());
        format!("{total:.2} s (platform {platform:.2} s, {} steps done again)", last.lost)
    };
    format!("{}, torchrun {}", words(ours), words(theirs))
}

/// A run as it is looked at: files that its first rank prints to, and what its processes are known by.
struct Run {
    marker: PathBuf,
    before: PathBuf,
    /// Where ranks that were started again print; the same for torchrun.
    after: PathBuf,
}

/// What a rank 0 has printed.
#[derive(Debug, Default, PartialEq)]
struct Story {
    /// The last step before it was started again.
    last: Option<u64>,
    /// The checkpoint's step.
    resumed: Option<u64>,
    /// It has made a step since.
    goes_on: bool,
}

/// Lets the run come to the kill's moment, kills, and watches it go on.
fn recover(run: &Run, kill: Kill) -> Result<Recovered> {
    until("the step of the kill", || (run.story().last >= Some(kill.step)).then_some(()))?;
    std::thread::sleep(kill.after);
    let known = processes::all();
    let rank = kill.rank.to_string();
    let ranks = processes::naming(&run.marker, &[std::process::id()].into());
    let victim = ranks.iter().find(|process| process.runs("python") && process.has_variable("RANK", &rank));
    let killed = Instant::now();
    processes::signal(victim.context("find the rank")?.pid, Signal::KILL)?;
    let are_new = || {
        let new = processes::naming(&run.marker, &known);
        new.iter().filter(|process| process.runs("python")).count() as u64 >= RANKS
    };
    until("new ranks", || are_new().then_some(()))?;
    let platform = killed.elapsed();
    until("a step of the new ranks", || run.story().goes_on.then_some(()))?;
    let total = killed.elapsed();
    let printed = run.printed();
    let story = Story::of(&printed);
    let (last, resumed) = story.last.zip(story.resumed).context("read the steps")?;
    Ok(Recovered { platform, total, lost: last.saturating_sub(resumed), printed })
}

impl Run {
    fn story(&self) -> Story {
        Story::of(&self.printed())
    }

    fn printed(&self) -> String {
        let text = |path: &PathBuf| String::from_utf8_lossy(&std::fs::read(path).unwrap_or_default()).into_owned();
        let mut all = text(&self.before);
        if self.after != self.before {
            all += &text(&self.after);
        }
        all
    }
}

impl Story {
    fn of(text: &str) -> Story {
        let mut story = Story::default();
        // The last line may be written just now.
        for line in text.split_inclusive('\n').filter(|line| line.ends_with('\n')) {
            if let Some((_, step)) = line.split_once("rank 0 resumed from step ") {
                story.resumed = step.trim().parse().ok();
            } else if let Some((_, rest)) = line.split_once("step ").filter(|(_, rest)| rest.contains(" loss ")) {
                let step = rest.split(' ').next().and_then(|step| step.parse().ok());
                match story.resumed {
                    None => story.last = story.last.max(step),
                    Some(_) => story.goes_on = true,
                }
            }
        }
        story
    }
}

fn until<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> Result<T> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        if let Some(found) = look() {
            return Ok(found);
        }
        anyhow::ensure!(Instant::now() < deadline, "waited too long for {what}");
        std::thread::sleep(LOOK_EVERY);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_story_is_read_from_what_the_script_prints() {
        let before = "2026-11-22T18:38:08Z O step 11 loss 0.5\nstep 12 loss 0.4\n";
        assert_eq!(Story::of(before), Story { last: Some(12), resumed: None, goes_on: false });
        let resumed = format!("{before}rank 1 resumed from step 10\nrank 0 resumed from step 10\nstep 11 lo");
        assert_eq!(Story::of(&resumed), Story { last: Some(12), resumed: Some(10), goes_on: false });
        let goes_on = format!("{resumed}ss 0.5\n");
        assert_eq!(Story::of(&goes_on), Story { last: Some(12), resumed: Some(10), goes_on: true });
    }
}
