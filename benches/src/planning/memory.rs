//! Published peaks of memory, beside the predicted ones.
//!
//! Two kinds of tables: peaks of one run each (`memory.csv`: mostly fine-tuning), and peaks of every rank of a Megatron run
//! (`memory_per_rank_b200.csv`). What is compared is what was measured: allocated, reserved, or all that the driver shows; in GB (1e9
//! bytes) or GiB. How a row becomes a workload and a layout stands in `run` and `ranks`. Rows that ran out of memory have no peak: they are
//! counted as classified right or wrong, as are rows that ran.

mod ranks;
mod run;
mod words;

use std::collections::BTreeMap;

use gangline_planning::hardware::{Accelerator, Cluster, Fabric, Generation, Peaks};
use gangline_planning::memory::{MemoryEstimate, StageMemory, estimate};
use gangline_planning::model::catalog::Catalog;
use gangline_planning::plan::MEMORY;
use gangline_planning::units::{Bandwidth, FlopRate, Seconds, Volume, real};

use super::statistics::{Judgement, Pair, Statistics};
use super::table::{Row, Table};
use super::{crossval, rows};
use run::{Peak, Run};

pub(super) use ranks::judge as judge_ranks;

/// Greatest sequence that is tried where the published figure is the longest that fits.
const SEQUENCE_MAX: u64 = 1 << 22;

/// Judges each run, and prints how many are told rightly to fit or not to; whether the bar holds.
pub(super) fn judge(table: &Table) -> (Vec<Judgement>, bool) {
    let catalog = Catalog::built_in();
    let judged: Vec<(Judgement, Option<bool>)> = table.rows.iter().map(|row| of_row(&catalog, row)).collect();
    let told = judged.iter().filter(|(_, right)| right.is_some()).count();
    let wrong = judged.iter().filter(|(_, right)| *right == Some(false));
    let wrong: Vec<String> = wrong.map(|(judgement, _)| judgement.row.clone()).collect();
    let (right, names) = (told - wrong.len(), wrong.join(" "));
    println!(
        "fits or runs out of memory: {right} of {told} told rightly; wrong: {}",
        if right == told { "none" } else { &names }
    );
    let judgements: Vec<Judgement> = judged.into_iter().map(|(judgement, _)| judgement).collect();
    let holds = print_bars(&judgements, wrong.is_empty());
    (judgements, holds)
}

/// Whether plans tell their readers of the error that was found.
pub(super) fn is_what_plans_say(all: &[Judgement]) -> bool {
    let of_group = all.iter().filter(|judgement| judgement.group == MEMORY.key);
    crossval::is_what_plans_say(Some(&MEMORY), MEMORY.key, &Statistics::of(of_group))
}

/// Whether a source is reported apart.
fn is_apart(source: &str) -> bool {
    [run::ESTIMATED, run::AS_LORA, run::FROM_NOTHING].iter().any(|suffix| source.ends_with(suffix))
}

/// What fine-tuning must keep; other adapters than LoRA and training from nothing stand apart.
fn print_bars(judgements: &[Judgement], is_told_rightly: bool) -> bool {
    const MEDIAN_MAX: f64 = 10.0;
    let tuned = Statistics::of(judgements.iter().filter(|judgement| !is_apart(&judgement.source)));
    let holds = tuned.median <= MEDIAN_MAX && is_told_rightly;
    let said = if holds { "held" } else { "NOT held" };
    println!("{}  bar: median <= {MEDIAN_MAX} %, fits told rightly: {said}", tuned.line("fine-tuning"));
    holds
}

/// Runs whose time was published fitted, at the latest with what their rows don't say (recomputation, offload): prints by source how many
/// are told to. Recipes of pre-training often leave that out, so this bounds the estimate from above only.
pub(super) fn print_runs(runs: &[rows::Run]) {
    let mut sources: BTreeMap<&str, (usize, usize)> = BTreeMap::new();
    for run in runs {
        let (all, fitting) = sources.entry(&run.source).or_default();
        *all += 1;
        *fitting += usize::from(estimate(&run.workload, &run.layout, &run.cluster).fits());
    }
    for (source, (all, fitting)) in &sources {
        println!("{source:<28} of {all:>4} runs that were timed {fitting:>4} are told to fit");
    }
}

/// The row's judgement, and whether it was told rightly to fit or not.
fn of_row(catalog: &Catalog, row: &Row) -> (Judgement, Option<bool>) {
    let (source, run) = (run::source(row), run::read(catalog, row));
    let group = if run.is_err() || is_apart(&source) { "" } else { MEMORY.key };
    let judged = |outcome| Judgement { row: row.text("id").to_owned(), source: source.clone(), group, outcome };
    match run {
        Err(reason) => (judged(Err(reason)), None),
        Ok(run) => {
            let (outcome, right) = compare(&run);
            (judged(outcome), right.filter(|_| !source.ends_with(run::ESTIMATED)))
        }
    }
}

fn compare(run: &Run) -> (Result<Pair, String>, Option<bool>) {
    let memory = predict(run, run.workload.sequence);
    let fits = memory.fits();
    match run.peak {
        Peak::OutOfMemory => (Err("out of memory".to_owned()), Some(!fits)),
        Peak::Longest => (longest(run), None),
        Peak::Allocated(measured) => (pair(&memory, StageMemory::allocated, measured), Some(fits)),
        Peak::Reserved(measured) => (pair(&memory, StageMemory::reserved, measured), Some(fits)),
        Peak::Occupied(measured) => (pair(&memory, StageMemory::occupied, measured), Some(fits)),
        Peak::OverAll(measured) => {
            let (stage, all) = (memory.fullest().occupied(), real(run.layout.accelerators()));
            (Ok(Pair { predicted: (stage * all).get(), measured: measured.get() }), None)
        }
    }
}

fn pair(memory: &MemoryEstimate, of: fn(&StageMemory) -> Volume, measured: Volume) -> Result<Pair, String> {
    let most = memory.stages.iter().map(|stage| of(stage).get()).fold(0.0, f64::max);
    Ok(Pair { predicted: most, measured: measured.get() })
}

/// The longest sequence that is predicted to fit, beside the one that did.
fn longest(run: &Run) -> Result<Pair, String> {
    let fits = |sequence: u64| predict(run, sequence).fits();
    let (mut fitting, mut too_long) = (0, SEQUENCE_MAX);
    while too_long - fitting > 1 {
        let middle = fitting.midpoint(too_long);
        if fits(middle) { fitting = middle } else { too_long = middle }
    }
    Ok(Pair { predicted: real(fitting), measured: real(run.workload.sequence) })
}

fn predict(run: &Run, sequence: u64) -> MemoryEstimate {
    let mut workload = run.workload.clone();
    workload.sequence = sequence;
    estimate(&workload, &run.layout, &cluster(run.capacity))
}

/// Accelerators with so much memory; nothing else matters here.
fn cluster(memory: Volume) -> Cluster {
    let accelerator = Accelerator {
        name: "any".to_owned(),
        generation: Generation::Other,
        memory,
        memory_bandwidth: Bandwidth::new(1e12),
        fp32: FlopRate::new(1e13),
        peaks: Peaks::default(),
        link: Bandwidth::new(1e11),
        link_domain: 8,
        host_link: Bandwidth::new(1e10),
        watts: 400.0,
    };
    let fabric = Fabric { per_accelerator: Bandwidth::new(1e10), latency: Seconds::new(1e-5) };
    Cluster { accelerator, accelerators: 1, per_node: 8, fabric }
}
