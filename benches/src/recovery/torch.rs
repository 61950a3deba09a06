//! A killed rank of an unchanged PyTorch script, four ranks of DDP over gloo: under Gangline, and beside it under torchrun.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, Result};

use super::ddp::{Kill, Platforms, RANKS, Recovered, pair};
use super::{Bench, ratio};
use crate::report::Bar;

/// The platform's share of a recovery.
const PLATFORM_MOST: Duration = Duration::from_secs(1);
/// Steps between two checkpoints, and how long a step takes at least.
const EVERY: u64 = 10;
const STEP: Duration = Duration::from_millis(50);
/// Pairs of an injection: what the same recovery takes varies by a tenth on a machine that others share, more than the two differ by.
const PAIRS: u32 = 2;

/// Injects, and prints both.
pub(super) fn run(bench: &mut Bench) -> Result<()> {
    bench
        .report
        .section("A killed rank of 4, PyTorch's DDP on CPU, examples/torch/train.py unchanged, beside torchrun");
    let script = std::env::current_dir().context("find the tree")?.join("examples/torch/train.py");
    let arguments = |folder: &Path| {
        let (script, checkpoint) = (script.display(), folder.join("own.pt"));
        let step = STEP.as_secs_f64();
        format!("{script} --steps 100000 --step-time {step} --every {EVERY} --checkpoint {}", checkpoint.display())
    };
    let platforms = Platforms::up(bench)?;
    let (mut ours, mut theirs) = (Vec::new(), Vec::new());
    for injection in 0..bench.options.injections * PAIRS {
        let kill = bench.next_kill();
        // Each is first in every other pair.
        if injection % 2 == 1 {
            theirs.push(platforms.torchrun(arguments, kill)?);
        }
        ours.push(platforms.gangline(&format!("torch-{injection}"), arguments, kill)?);
        if injection % 2 == 0 {
            theirs.push(platforms.torchrun(arguments, kill)?);
        }
        bench.report.note(&format!("rank {} killed at step {}: {}", kill.rank, kill.step, pair(&ours, &theirs)));
    }
    bench.print(&ours, &theirs);
    Ok(())
}

impl Bench {
    fn next_kill(&mut self) -> Kill {
        let step = EVERY + 1 + self.below(3 * EVERY);
        Kill { rank: self.below(RANKS), step, after: self.moment_below(STEP) }
    }

    fn print(&mut self, ours: &[Recovered], theirs: &[Recovered]) {
        let all = |recovered: &[Recovered], part: fn(&Recovered) -> Duration| -> Vec<Duration> {
            recovered.iter().map(part).collect()
        };
        let (platform, total) = (|r: &Recovered| r.platform, |r: &Recovered| r.total);
        self.times("the platform's share: kill to new ranks exec'ed", &mut all(ours, platform), Some(PLATFORM_MOST));
        self.peer_times("torchrun, the same share", &mut all(theirs, platform));
        let framework = |r: &Recovered| r.total.saturating_sub(r.platform);
        self.times("PyTorch's share: import, meeting, restore, a step", &mut all(ours, framework), None);
        self.peer_times("under torchrun", &mut all(theirs, framework));
        self.times("kill to the first step of the new ranks", &mut all(ours, total), None);
        self.peer_times("torchrun", &mut all(theirs, total));
        let against = ratio(&all(ours, total), &all(theirs, total));
        self.report.figure("the same against torchrun's, median ratio of pairs", against, "", Bar::AtMost(1.0));
        let lost = |recovered: &[Recovered]| recovered.iter().map(|r| r.lost as f64).sum::<f64>();
        // Both go on from the script's own checkpoints: who hits one while it is being written decides.
        let steps = format!("steps done again, sum of {}: the script's own checkpoints, so chance", ours.len());
        self.report.figure(&steps, lost(ours), "", Bar::None);
        self.report.peer(&format!("torchrun: {} steps done again at the same kills (measured)", lost(theirs)));
    }
}
