//! `bench stragglers [--folder DIR]`: the what-if analysis of stragglers on three production traces, every published figure
//! beside ours, and the time that it takes beside the authors' program.
//!
//! A folder has trace-NAME.parquet, meta-NAME.yaml, and what the authors publish: result-NAME.json, mw-NAME.json and
//! ms-NAME.json (<https://github.com/ByteDance-Seed/StragglerAnalysis>, Apache-2.0).

use std::hint::black_box;
use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context, Result};
use gangline_telemetry::stragglers::{Analysis, Explained, Layout, Share, analyse, read};
use serde_json::Value;

/// How far a figure may be from the published one, relative to it where it is above 1.
const TOLERANCE: f64 = 1e-6;
/// How many times as fast as the authors' program the analysis has to be.
const FASTER_LEAST: f64 = 100.0;
/// How often the time is taken; the median counts.
const ROUNDS: usize = 21;
/// The traces, and the CPU seconds of the authors' Python on two shared cores (measured in November 2026; the parts that
/// read the trace and start the interpreter included).
const TRACES: [(&str, f64); 3] = [("AR", 1.8), ("ST", 0.9), ("SE", 1.6)];

/// Compared figures: how many, and the farthest from its published one.
#[derive(Default)]
struct Comparison {
    count: usize,
    farthest: f64,
    place: String,
}

/// Measures and prints; whether every figure agrees and the time is within the bar.
pub(super) fn run(options: &[String]) -> Result<bool> {
    let folder = match options {
        [] => Path::new(env!("CARGO_MANIFEST_DIR")).join("../../shared/data/straggler"),
        [name, folder] if name == "--folder" => PathBuf::from(folder),
        _ => anyhow::bail!("bench stragglers takes --folder DIR"),
    };
    anyhow::ensure!(folder.is_dir(), "there is no {}: --folder DIR names the traces", folder.display());
    println!(
        "ours measured here; the peer is the authors' Python, measured earlier on two cores like these (CPU seconds)"
    );
    println!(
        "{:<5} {:>10} {:>8} {:>8} {:>8} {:>9} {:>10} {:>9} {:>10} {:>9} {:>8}",
        "trace", "operations", "S", "M_W", "M_S", "figures", "farthest", "read ms", "analyse ms", "peer ms", "ratio"
    );
    let mut is_met = true;
    for (name, peer) in TRACES {
        is_met &= judge(&folder, name, peer)?;
    }
    let word = if is_met { "met" } else { "NOT met" };
    println!("bars: every figure within {TOLERANCE:e}, analysis at least {FASTER_LEAST} times as fast: {word}");
    Ok(is_met)
}

fn judge(folder: &Path, name: &str, peer: f64) -> Result<bool> {
    let path = |start: &str, end: &str| folder.join(format!("{start}-{name}.{end}"));
    let bytes = load(&path("trace", "parquet"))?;
    let layout = String::from_utf8(load(&path("meta", "yaml"))?)?;
    let layout = Layout::parse_meta(&layout)?;
    let reading = median_seconds(|| read(bytes.clone()).is_ok());
    let trace = read(bytes.clone())?;
    let analysing = median_seconds(|| analyse(black_box(&trace), &layout).is_ok());
    let analysis = analyse(&trace, &layout)?;
    let mut comparison = Comparison::default();
    comparison.whole(&analysis, &published(&path("result", "json"))?)?;
    comparison.explained("mw", &analysis.slowest_workers, &published(&path("mw", "json"))?, "Mw")?;
    comparison.explained("ms", &analysis.last_stage, &published(&path("ms", "json"))?, "Ms")?;
    let ratio = peer / analysing;
    println!(
        "{name:<5} {:>10} {:>8.3} {:>8.3} {:>8.3} {:>9} {:>10.1e} {:>9.1} {:>10.2} {:>9.0} {ratio:>8.0}",
        trace.operations().len(),
        analysis.slowdown,
        analysis.slowest_workers.share_removed,
        analysis.last_stage.share_removed,
        comparison.count,
        comparison.farthest,
        reading * 1e3,
        analysing * 1e3,
        peer * 1e3,
    );
    if comparison.farthest > TOLERANCE {
        println!("      farthest: {}", comparison.place);
    }
    Ok(comparison.farthest <= TOLERANCE && ratio >= FASTER_LEAST)
}

fn load(path: &Path) -> Result<Vec<u8>> {
    std::fs::read(path).with_context(|| format!("read {}", path.display()))
}

fn published(path: &Path) -> Result<Value> {
    serde_json::from_slice(&load(path)?).with_context(|| format!("read {}", path.display()))
}

fn median_seconds(mut work: impl FnMut() -> bool) -> f64 {
    let mut times: Vec<f64> = (0..ROUNDS)
        .map(|_| {
            let begun = Instant::now();
            black_box(work());
            begun.elapsed().as_secs_f64()
        })
        .collect();
    times.sort_by(f64::total_cmp);
    times[ROUNDS / 2]
}

impl Comparison {
    fn figure(&mut self, place: &str, ours: f64, published: &Value) -> Result<()> {
        let published = published.as_f64().with_context(|| format!("{place}: no published figure"))?;
        let distance = (ours - published).abs() / published.abs().max(1.0);
        // A figure that isn't a number is as far as can be.
        let distance = if distance.is_nan() { f64::INFINITY } else { distance };
        self.count += 1;
        if distance > self.farthest {
            self.farthest = distance;
            self.place = format!("{place}: {ours} beside {published}");
        }
        Ok(())
    }

    fn whole(&mut self, analysis: &Analysis, published: &Value) -> Result<()> {
        self.figure("blocking_slowdown", analysis.slowdown, &published["blocking_slowdown"])?;
        self.figure("launch_slowdown", analysis.gaps, &published["launch_slowdown"])?;
        for step in &analysis.steps {
            let key = step.step.to_string();
            let figures = [
                ("step_t_base", step.measured),
                ("step_t_nodelay", step.without_gaps),
                ("step_t_noblk", step.ideal),
                ("blocking_step_slowdown", step.slowdown),
                ("launch_step_slowdown", step.gaps),
            ];
            for (name, ours) in figures {
                self.figure(&format!("{name} {key}"), ours, &published[name][&key])?;
            }
        }
        self.shares("dp_rank", &analysis.by_dp_rank, analysis, published)?;
        self.shares("stage", &analysis.by_stage, analysis, published)?;
        self.shares("optype", &analysis.by_kind, analysis, published)?;
        let all = count(published) - count(&published["job_meta"]);
        anyhow::ensure!(self.count == all, "{} figures were compared, {all} are published", self.count);
        Ok(())
    }

    fn shares<K: ToString>(&mut self, by: &str, shares: &[Share<K>], all: &Analysis, published: &Value) -> Result<()> {
        let (whole, by_step) = (format!("blocking_decompose_by_{by}"), format!("blocking_decompose_by_{by}_per_step"));
        for share in shares {
            let part = share.part.to_string();
            self.figure(&format!("{whole} {part}"), share.slowdown, &published[&whole][&part])?;
            for (step, ours) in all.steps.iter().zip(&share.by_step) {
                let step = step.step.to_string();
                self.figure(&format!("{by_step} {step} {part}"), *ours, &published[&by_step][&step][&part])?;
            }
        }
        Ok(())
    }

    fn explained(&mut self, place: &str, explained: &Explained, published: &Value, name: &str) -> Result<()> {
        let figures = [
            ("trem", explained.removed),
            ("tadd", explained.added),
            ("tori", explained.measured),
            ("tideal", explained.ideal),
            ("rem", explained.share_removed),
            ("add", explained.share_added),
            (name, explained.share_removed),
        ];
        figures.iter().try_for_each(|(key, ours)| self.figure(&format!("{place} {key}"), *ours, &published[*key]))
    }
}

/// How many numbers a document has.
fn count(value: &Value) -> usize {
    match value {
        Value::Number(_) => 1,
        Value::Array(values) => values.iter().map(count).sum(),
        Value::Object(fields) => fields.values().map(count).sum(),
        _ => 0,
    }
}
