//! Leaving one source out: constants are fitted on all others, then asked for what they never saw.

use std::collections::BTreeSet;

use gangline_planning::plan::{REGIONS, Region};
use gangline_planning::time::constants::{Constants, TABLE};

use super::fit;
use super::rows::Run;
use super::statistics::{self, Bars, Judgement, Statistics};
use super::throughput::judged;

/// Bars for dense runs of a source that was left out, in percent.
const LEFT_OUT: Bars = Bars { median: 8.0, p75: 15.0, p90: 25.0 };
/// Bar for the median of dense runs with the shipped constants.
const SHIPPED: f64 = 5.0;
/// How far what plans say of an error may be from what it is, in percent: they have one decimal.
const TOLD_TO: f64 = 0.1;
/// Bar for the median of each other group.
const OTHERS: f64 = 15.0;

/// Prints errors of each source left out, in a group, and of the shipped constants; whether the bars held.
pub(super) fn run(runs: &[Run]) -> bool {
    let sources: BTreeSet<&str> = runs.iter().map(|run| run.source.as_str()).collect();
    let mut left_out = Vec::new();
    for source in sources {
        let (without, with): (Vec<&Run>, Vec<&Run>) = runs.iter().partition(|run| run.source != source);
        let constants = fit::fit(&without);
        left_out.extend(with.into_iter().map(|run| judged(&constants, run)));
    }
    println!("\neach source predicted by constants that were fitted on all others:");
    statistics::print_sources(&left_out);
    let shipped: Vec<Judgement> = runs.iter().map(|run| judged(&Constants::shipped(), run)).collect();
    let mut holds = true;
    for group in statistics::groups(&shipped) {
        let of =
            |judgements: &[Judgement]| Statistics::of(judgements.iter().filter(|judgement| judgement.group == group));
        let (shipped, left_out) = (of(&shipped), of(&left_out));
        let fits = if group == fit::DENSE {
            LEFT_OUT.hold(&left_out) && shipped.median <= SHIPPED
        } else {
            shipped.median <= OTHERS
        };
        let verdict = if fits { "holds" } else { "MISS " };
        let sources: BTreeSet<&str> =
            runs.iter().filter(|run| run.group == group).map(|run| run.source.as_str()).collect();
        let [without, with] = [left_out.quantiles(), shipped.quantiles()];
        println!(
            "{verdict} {group} ({} rows of {} sources): left out {without}; shipped {with}",
            shipped.taken,
            sources.len()
        );
        let told = REGIONS.iter().find(|region| region.key == group);
        holds &= fits && is_what_plans_say(told, group, &left_out);
    }
    println!("bars: dense left out {LEFT_OUT}, shipped median {SHIPPED} %; others shipped median {OTHERS} %");
    holds
}

/// Whether plans tell their readers of this error; they do so by a table that is kept by hand.
pub(super) fn is_what_plans_say(told: Option<&Region>, group: &str, found: &Statistics) -> bool {
    let is_told = told.is_some_and(|told| {
        let is_near = |said: f64, found: f64| (said - found).abs() < TOLD_TO;
        is_near(told.median_percent, found.median) && is_near(told.p90_percent, found.p90)
    });
    if !is_told {
        println!("MISS  plans say something else of {group}: correct planning/src/plan/validation.rs");
    }
    is_told
}

/// Prints the table of constants as fitted on all runs.
pub(super) fn print_fit(runs: &[Run]) {
    let fitted = fit::fit(&runs.iter().collect::<Vec<&Run>>());
    println!("\nconstants fitted on all runs, beside shipped and prior:");
    for entry in TABLE.iter().filter(|entry| entry.spread.is_some()) {
        let (name, value) = (format!("{:?}", entry.constant), fitted.get(entry.constant));
        println!("{name:<26} {value:>12.4e}  shipped {:>12.4e}  prior {:>12.4e}", entry.value, entry.prior);
    }
    statistics::print_sources(&runs.iter().map(|run| judged(&fitted, run)).collect::<Vec<Judgement>>());
}
