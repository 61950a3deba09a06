//! `bench scheduler`: is the scheduler right, fast and good? Every figure beside its bar and what peers do.
//!
//! What it prints was run in this very process (or a child of it), nothing is quoted but what is marked as a peer's.
//! Figures of peers are published ones; their conditions differ and are said.

mod fast;
mod fixture;
mod good;
mod kueue;
mod right;
mod simulations;
mod traces;

use anyhow::Result;

use super::report::{self, Report};

/// The argument by which this program runs itself to measure memory.
const HOLD_MUCH: &str = "--hold-much";

/// How much to run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Effort {
    /// Everything.
    Full,
    /// A sample of everything.
    Quick,
}

impl Effort {
    fn of<T>(self, full: T, quick: T) -> T {
        match self {
            Effort::Full => full,
            Effort::Quick => quick,
        }
    }
}

/// Runs all or one part; whether every bar held.
pub(super) fn run(options: &[String]) -> Result<bool> {
    let options: Vec<&str> = options.iter().map(String::as_str).collect();
    if options == [HOLD_MUCH] {
        return fast::hold_much();
    }
    let (effort, options): (Vec<&str>, Vec<&str>) = options.iter().partition(|option| **option == "--quick");
    let effort = if effort.is_empty() { Effort::Full } else { Effort::Quick };
    let part = match options[..] {
        [] => None,
        ["--only", part @ ("right" | "fast" | "good")] => Some(part),
        _ => anyhow::bail!("bench scheduler takes --only right|fast|good and --quick, not {}", options.join(" ")),
    };
    let runs = |name: &str| part.is_none_or(|part| part == name);
    let mut report = Report::default();
    if effort == Effort::Quick {
        println!("--quick: a sample; figures of the whole differ");
    }
    if runs("right") {
        right::run(&mut report)?;
    }
    if runs("fast") {
        fast::run(&mut report, effort)?;
        kueue::run(&mut report, effort)?;
        fast::memory(&mut report)?;
        fast::growth(&mut report, effort)?;
        simulations::run(&mut report, effort)?;
    }
    if runs("good") {
        good::run(&mut report, effort)?;
    }
    Ok(report.finish())
}
