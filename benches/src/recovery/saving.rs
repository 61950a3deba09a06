//! What a killed rank costs in steps where each platform saves as it can: a DDP run under Gangline with its store, and beside it one
//! under torchrun with `torch.save`, both with saves for the same share of the time (`saving.py`).
//!
//! `torch.save` writes through the page cache and syncs nothing. The store's save waits for one copy of the state, writes and syncs it
//! in the background, and outlives the rank that made it.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, Result};

use super::Bench;
use super::ddp::{Kill, Platforms, RANKS, Recovered};
use crate::report::{Bar, median};

/// Steps until the script has found out what its saves cost and has said its pace, and steps in which the kill comes.
const SETTLED: u64 = 42;
const KILLED_WITHIN: u64 = 60;
const STEP: Duration = Duration::from_millis(50);

/// Injects, and prints both.
pub(super) fn run(bench: &mut Bench) -> Result<()> {
    bench
        .report
        .section("A killed rank of 4, DDP, AdamW, 25 MB of state, saves for 2 % of the time: Gangline's store beside torchrun and torch.save");
    let script = std::env::current_dir().context("find the tree")?.join("benches/src/recovery/saving.py");
    let with = |library: &'static str| {
        let script = script.display().to_string();
        move |folder: &Path| format!("{script} {library} {}", folder.display())
    };
    let platforms = Platforms::up(bench)?;
    platforms.has_gangline()?;
    let (mut ours, mut theirs) = (Vec::new(), Vec::new());
    for injection in 0..bench.options.injections {
        let step = SETTLED + bench.below(KILLED_WITHIN);
        let kill = Kill { rank: bench.below(RANKS), step, after: bench.moment_below(STEP) };
        ours.push(Lost::of(&platforms.gangline(&format!("saving-{injection}"), with("gangline"), kill)?)?);
        theirs.push(Lost::of(&platforms.torchrun(with("torch"), kill)?)?);
        let words = |lost: &[Lost]| lost.last().map(Lost::words).unwrap_or_default();
        let (ours, theirs) = (words(&ours), words(&theirs));
        bench.report.note(&format!("rank {} killed at step {step}: {ours}; torchrun: {theirs}", kill.rank));
    }
    bench.print_lost(&ours, &theirs);
    Ok(())
}

impl Bench {
    fn print_lost(&mut self, ours: &[Lost], theirs: &[Lost]) {
        let sum = |lost: &[Lost]| lost.iter().map(|lost| lost.steps as f64).sum::<f64>();
        let middle = |lost: &[Lost], part: fn(&Lost) -> f64| median(lost.iter().map(part).collect());
        let (cost, pace) = (|lost: &Lost| lost.save_ms, |lost: &Lost| lost.pace_ms);
        self.report.figure(&format!("steps done again, sum of {}", ours.len()), sum(ours), "", Bar::Below(sum(theirs)));
        self.report.peer(&format!("torchrun and torch.save: {} at the same kills (measured)", sum(theirs)));
        self.report.figure("a save holds the first rank up for, median", middle(ours, cost), "ms", Bar::None);
        self.report.peer(&format!("torch.save: {:.1} ms (measured)", middle(theirs, cost)));
        self.report.figure(
            "a step takes, saves and their background included, median",
            middle(ours, pace),
            "ms",
            Bar::None,
        );
        self.report.peer(&format!("torchrun and torch.save: {:.1} ms (measured)", middle(theirs, pace)));
    }
}

/// What a kill cost, and what is paid for it costing no more.
struct Lost {
    steps: u64,
    /// Steps between two saves.
    every: u64,
    save_ms: f64,
    /// Of a step.
    pace_ms: f64,
}

impl Lost {
    fn of(recovered: &Recovered) -> Result<Lost> {
        let (every, save) = saves(&recovered.printed).context("read how often it saves")?;
        let pace = pace(&recovered.printed).context("read its pace")?;
        Ok(Lost { steps: recovered.lost, every, save_ms: save * 1_000.0, pace_ms: pace * 1_000.0 })
    }

    fn words(&self) -> String {
        format!("{} steps done again of {} between saves of {:.1} ms", self.steps, self.every, self.save_ms)
    }
}

/// Steps between two saves, and the seconds that each takes: the first that the script has printed.
fn saves(printed: &str) -> Option<(u64, f64)> {
    let (every, rest) = printed.split_once("saves every ")?.1.split_once(" steps, each takes ")?;
    Some((every.parse().ok()?, rest.split_once(" s")?.0.parse().ok()?))
}

/// Seconds a step takes.
fn pace(printed: &str) -> Option<f64> {
    printed.split_once("pace ")?.1.split_once(" s")?.0.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_saves_cost_is_read_from_what_the_script_prints() {
        let printed = "T O step 8 loss 0.1\nT O saves every 5 steps, each takes 0.004364 s\nstep 9 loss\npace 0.053009 s\nsaves every 7 steps, ";
        assert_eq!(saves(printed), Some((5, 0.004_364)));
        assert_eq!(pace(printed), Some(0.053_009));
        assert_eq!(saves("saves every 5 ste"), None);
        assert_eq!(pace("step 8"), None);
    }
}
