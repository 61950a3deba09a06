//! `gangline stragglers JOB`: what the steps that a job's ranks reported say of slow ranks, and the steps for Perfetto.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs::File;
use std::io::{BufWriter, Write as _};
use std::path::Path;

use gangline_api as api;
use gangline_base::Phase;
use gangline_telemetry::stragglers::{GangAnalysis, RankStep, analyse_gang, gang_timeline};
use serde_json::{Value, json};

use super::{OfJob, SHOWN_MOST, figure, unwritten};
use crate::client::{Client, path_segment};
use crate::failure::Failure;
use crate::output;

/// The metric with the seconds of a step.
const STEP_SECONDS: &str = "gangline.step_seconds";
/// The most points of a curve that are answered.
const POINTS_MAX: u64 = 10_000;

/// What a job's ranks reported.
#[derive(Default)]
struct Reported {
    steps: BTreeMap<(u64, u32), RankStep>,
    /// The node of each rank.
    nodes: BTreeMap<u32, String>,
}

pub(super) fn run(
    client: &Client,
    (job, args, perfetto): (&str, &OfJob, Option<&Path>),
    is_json: bool,
) -> Result<(), Failure> {
    let shown: api::Job = client.get(&format!("/jobs/{}", path_segment(job)))?;
    let attempt = args.attempt.or(shown.attempts.last().map(|attempt| attempt.number));
    let attempt = attempt.ok_or_else(|| nothing(&shown.id, "has no attempt yet"))?;
    let is_newest = shown.attempts.last().is_some_and(|last| last.number == attempt);
    let to = args.to_step.or(shown.progress.step.filter(|_| is_newest));
    let from = args.from_step.or(to.map(|to| (to + 1).saturating_sub(args.last)));
    let reported = fetch(client, &shown.id, attempt, (from, to))?;
    let mut steps: Vec<RankStep> = reported.steps.into_values().collect();
    if args.from_step.is_none() {
        let newest = steps.last().map_or(0, |step| step.step);
        steps.retain(|step| step.step + args.last > newest);
    }
    let analysis = analyse_gang(&steps)
        .map_err(|_| nothing(&shown.id, &format!("has no step in attempt {attempt} that all of its ranks reported")))?;
    if let Some(path) = perfetto {
        write_timeline(path, &steps, &reported.nodes).map_err(|error| unwritten(path, &error))?;
    }
    if is_json {
        output::json(&as_json(&shown.id, attempt, &analysis))
    } else {
        output::print(&as_text(&shown.id, attempt, &analysis, &reported.nodes))
    }
}

fn nothing(job: &str, why: &str) -> Failure {
    let hint = "a script reports steps with gangline.report(step=), and its phases with gangline.phase or gangline.torch.watch";
    Failure::coded("G0802", format!("{job} {why}"), hint)
}

/// Gets the steps of an attempt, each with its phases.
fn fetch(
    client: &Client,
    job: &str,
    attempt: u32,
    (from, to): (Option<u64>, Option<u64>),
) -> Result<Reported, Failure> {
    let mut reported = Reported::default();
    let phases = Phase::ALL.map(|phase| (format!("gangline.{}_seconds", phase.name()), Some(phase)));
    for (metric, phase) in std::iter::once((STEP_SECONDS.to_owned(), None)).chain(phases) {
        let step = |key: &str, step: Option<u64>| step.map(|step| format!("&{key}={step}")).unwrap_or_default();
        let (from, to) = (step("from_step", from), step("to_step", to));
        let path = format!(
            "/jobs/{}/metrics/curves?metric={metric}&attempt={attempt}&points={POINTS_MAX}{from}{to}",
            path_segment(job)
        );
        let found: api::MetricCurves = client.get(&path)?;
        found.curves.into_iter().try_for_each(|curve| reported.add(curve, phase))?;
    }
    Ok(reported)
}

impl Reported {
    /// Adds the seconds of a rank's steps, or those that they spent in a phase.
    fn add(&mut self, curve: api::MetricCurve, phase: Option<Phase>) -> Result<(), Failure> {
        let Some(rank) = curve.source.rank else { return Ok(()) };
        if let Some(node) = curve.source.node {
            self.nodes.entry(rank).or_insert(node);
        }
        for point in curve.points {
            if point.count + point.not_finite != 1 {
                return Err(Failure::coded(
                    "G0802",
                    "the steps are too many, or too old, to be told one by one",
                    "choose fewer or newer ones with --last, or --from-step and --to-step",
                ));
            }
            let (Some(step), seconds) = (point.last_step, point.last.0) else { continue };
            let end = seconds_of(point.at);
            match phase {
                None => {
                    let new = RankStep { rank, step, end, seconds, phases: BTreeMap::new() };
                    self.steps.insert((step, rank), new);
                }
                Some(phase) => {
                    let known = self.steps.get_mut(&(step, rank));
                    known.into_iter().for_each(|known| _ = known.phases.insert(phase, seconds));
                }
            }
        }
        Ok(())
    }
}

fn seconds_of(at: api::Time) -> f64 {
    std::time::Duration::from_nanos(at.0.unix_nanos()).as_secs_f64()
}

fn write_timeline(path: &Path, steps: &[RankStep], nodes: &BTreeMap<u32, String>) -> std::io::Result<()> {
    let mut file = BufWriter::new(File::create(path)?);
    gang_timeline(steps, nodes, &mut file)?;
    file.flush()
}

fn as_json(job: &str, attempt: u32, analysis: &GangAnalysis) -> Value {
    let steps: Vec<Value> = analysis
        .steps
        .iter()
        .map(|step| json!({"step": step.step, "measured_seconds": step.measured, "ideal_seconds": step.ideal}))
        .collect();
    let phases: Vec<Value> =
        analysis.by_phase.iter().map(|(phase, slowdown)| json!({"phase": phase, "slowdown": slowdown})).collect();
    let ranks: Vec<Value> =
        analysis.by_rank.iter().map(|(rank, slowdown)| json!({"rank": rank, "slowdown": slowdown})).collect();
    json!({
        "job": job,
        "attempt": attempt,
        "slowdown": analysis.slowdown,
        "gaps": analysis.gaps,
        "tells_waiting": analysis.tells_waiting,
        "incomplete_steps": analysis.incomplete,
        "by_phase": phases,
        "by_rank": ranks,
        "steps": steps,
    })
}

fn as_text(job: &str, attempt: u32, analysis: &GangAnalysis, nodes: &BTreeMap<u32, String>) -> String {
    let (first, last) = (analysis.steps.first(), analysis.steps.last());
    let (first, last) = (first.map_or(0, |step| step.step), last.map_or(0, |step| step.step));
    let mut text = String::new();
    // Writing to a String can't fail.
    let _ = writeln!(
        text,
        "{job}, attempt {attempt}: {} steps from {first} to {last} of {} rank(s) (measured); what if no rank had been slower than \
         the others (simulated)?\n",
        analysis.steps.len(),
        analysis.ranks,
    );
    let mean = |of: fn(&gangline_telemetry::stragglers::GangStep) -> f64| {
        let count = u32::try_from(analysis.steps.len()).unwrap_or(u32::MAX);
        analysis.steps.iter().map(of).sum::<f64>() / f64::from(count)
    };
    let _ = writeln!(
        text,
        "Steps take {} on average, {:.3} times as long as without stragglers ({}).",
        output::seconds(mean(|step| step.measured)),
        analysis.slowdown,
        output::seconds(mean(|step| step.ideal)),
    );
    if !analysis.tells_waiting && analysis.ranks > 1 {
        text += "The ranks report no communication: what a rank waits for others is in its compute, and stragglers don't show here. \
                 gangline.torch.watch tells the two apart.\n";
    }
    let rows = analysis.by_phase.iter().filter(|(_, slowdown)| *slowdown > 1.0);
    let rows = rows.map(|(phase, slowdown)| vec![(*phase).to_owned(), figure(*slowdown)]).collect::<Vec<_>>();
    if !rows.is_empty() {
        text += &format!("\n{}", output::table(&["PHASE", ">SLOWDOWN"], rows));
    }
    let rows = analysis.by_rank.iter().take(SHOWN_MOST).map(|(rank, slowdown)| {
        vec![rank.to_string(), nodes.get(rank).cloned().unwrap_or_default(), figure(*slowdown)]
    });
    text += &format!("\n{}", output::table(&[">RANK", "NODE", ">SLOWDOWN"], rows.collect()));
    let mut steps: Vec<_> = analysis.steps.iter().map(|step| (step.measured / step.ideal, step)).collect();
    steps.sort_by(|one, other| other.0.total_cmp(&one.0));
    let steps = steps.into_iter().filter(|(slowdown, _)| slowdown.is_finite()).take(SHOWN_MOST);
    let rows =
        steps.map(|(slowdown, step)| vec![step.step.to_string(), output::seconds(step.measured), figure(slowdown)]);
    text + "\n" + &output::table(&[">STEP", ">TOOK", ">SLOWDOWN"], rows.collect())
}
