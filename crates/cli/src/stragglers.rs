//! `gangline stragglers`: says how much stragglers cost a gang and who they are, by a trace of its operations (which needs no
//! control plane) or by the steps that a job's ranks reported, and writes either for Perfetto.

mod of_job;

use std::fmt::Write as _;
use std::fs::File;
use std::io::{BufWriter, Read as _, Write as _};
use std::path::{Path, PathBuf};

use clap::Args;
use gangline_telemetry::stragglers::{
    Analysis, Cause, Explained, FILE_BYTES_MAX, Layout, Share, Trace, TraceError, analyse, read, timeline,
};
use serde_json::{Value, json};

use crate::client::Client;
use crate::failure::Failure;
use crate::{Global, output};

/// How many parts of a sort the text shows; --json has all.
const SHOWN_MOST: usize = 5;
/// How large the file of --meta may be.
const META_BYTES_MAX: u64 = 1 << 16;

/// A job, or a trace.
#[derive(Args, Debug)]
pub(crate) struct StragglersArgs {
    /// A job, as job-3 or 3, by the steps that its ranks reported; without it --trace names a file
    #[arg(required_unless_present = "trace")]
    job: Option<String>,
    /// A trace of every operation: Parquet (Snappy or uncompressed), CSV with a heading, or JSON lines
    #[arg(long, value_name = "FILE", conflicts_with = "job")]
    trace: Option<PathBuf>,
    /// How the gang is cut, in flat YAML: dp_size: 4, pp_size: 4, and so on [default: as the trace's ranks show]
    #[arg(long, value_name = "FILE", conflicts_with_all = ["layout", "job"])]
    meta: Option<PathBuf>,
    /// How the gang is cut: dp=4,pp=4,tp=4, with dsp and vpp as they apply [default: as the trace's ranks show]
    #[arg(long, value_name = "KEY=VALUE,...", conflicts_with = "job")]
    layout: Option<String>,
    #[command(flatten)]
    of_job: OfJob,
    /// Write the steps, or the trace, into this file, for Perfetto or Chrome's about:tracing
    #[arg(long, value_name = "FILE")]
    perfetto: Option<PathBuf>,
}

/// Which steps of a job.
#[derive(Args, Debug)]
struct OfJob {
    /// Only this attempt [default: the last]
    #[arg(long, value_name = "N", conflicts_with = "trace")]
    attempt: Option<u32>,
    /// So many of the newest steps
    #[arg(long, value_name = "STEPS", default_value_t = 100, value_parser = clap::value_parser!(u64).range(1..=10_000))]
    last: u64,
    /// From this step on, instead
    #[arg(long, value_name = "STEP", conflicts_with_all = ["last", "trace"])]
    from_step: Option<u64>,
    /// Up to this step
    #[arg(long, value_name = "STEP", conflicts_with = "trace")]
    to_step: Option<u64>,
}

pub(crate) fn run(global: &Global, args: &StragglersArgs) -> Result<(), Failure> {
    match (&args.job, &args.trace) {
        (Some(job), _) => {
            let which = (job.as_str(), &args.of_job, args.perfetto.as_deref());
            of_job::run(&Client::connect(global)?, which, global.json)
        }
        (None, Some(trace)) => of_trace(trace, args, global.json),
        // The options need one of the two.
        (None, None) => Ok(()),
    }
}

fn of_trace(file: &Path, args: &StragglersArgs, is_json: bool) -> Result<(), Failure> {
    let refused = |error: TraceError| refused(file, &error.to_string());
    let trace = read(load(file, FILE_BYTES_MAX)?).map_err(refused)?;
    let layout = layout(file, args, &trace)?;
    let analysis = analyse(&trace, &layout).map_err(refused)?;
    if let Some(path) = &args.perfetto {
        write_timeline(path, &trace).map_err(|error| unwritten(path, &error))?;
    }
    if is_json { output::json(&as_json(&analysis)) } else { output::print(&as_text(&trace, &analysis)) }
}

fn unwritten(path: &Path, error: &std::io::Error) -> Failure {
    Failure::local(
        format!("failed to write {}: {error}", path.display()),
        "name a file in a folder that you may write to",
    )
}

fn refused(path: &Path, problem: &str) -> Failure {
    let hint = "docs/errors/G0801.md has the columns and what they mean";
    Failure::coded("G0801", format!("failed to analyse {}: {problem}", path.display()), hint)
}

/// Reads a file that isn't larger than it may be.
fn load(path: &Path, most: u64) -> Result<Vec<u8>, Failure> {
    let unread = |error: std::io::Error| refused(path, &error.to_string());
    let mut bytes = Vec::new();
    File::open(path).map_err(unread)?.take(most + 1).read_to_end(&mut bytes).map_err(unread)?;
    match u64::try_from(bytes.len()) {
        Ok(length) if length <= most => Ok(bytes),
        _ => Err(refused(path, &format!("it is larger than {most} bytes"))),
    }
}

fn layout(file: &Path, args: &StragglersArgs, trace: &Trace) -> Result<Layout, Failure> {
    let (parsed, path) = match (&args.meta, &args.layout) {
        (Some(path), _) => {
            let bytes = load(path, META_BYTES_MAX)?;
            let text = String::from_utf8(bytes).map_err(|error| refused(path, &error.to_string()))?;
            (Layout::parse_meta(&text), path.as_path())
        }
        (None, Some(text)) => (Layout::parse(text), file),
        (None, None) => return Ok(Layout::of_trace(trace)),
    };
    parsed.map_err(|error| refused(path, &error.to_string()))
}

fn write_timeline(path: &Path, trace: &Trace) -> std::io::Result<()> {
    let mut file = BufWriter::new(File::create(path)?);
    timeline(trace, &mut file)?;
    file.flush()
}

/// Everything that was found, as a value.
fn as_json(analysis: &Analysis) -> Value {
    let steps: Vec<Value> = analysis
        .steps
        .iter()
        .map(|step| {
            json!({
                "step": step.step,
                "measured_seconds": step.measured,
                "without_gaps_seconds": step.without_gaps,
                "ideal_seconds": step.ideal,
                "slowdown": step.slowdown,
                "gaps": step.gaps,
            })
        })
        .collect();
    let workers: Vec<Value> = analysis
        .workers
        .iter()
        .map(|worker| {
            json!({
                "rank": worker.rank,
                "dp_rank": worker.dp_rank,
                "stage": worker.stage,
                "slowdown": worker.slowdown,
            })
        })
        .collect();
    json!({
        "slowdown": analysis.slowdown,
        "gaps": analysis.gaps,
        "cause": cause_name(analysis.cause()),
        "slowest_workers": explained(&analysis.slowest_workers),
        "last_stage": explained(&analysis.last_stage),
        "by_dp_rank": shares("dp_rank", &analysis.by_dp_rank),
        "by_stage": shares("stage", &analysis.by_stage),
        "by_operation": shares("operation", &analysis.by_kind),
        "workers": workers,
        "steps": steps,
    })
}

fn shares<K: serde::Serialize>(name: &str, shares: &[Share<K>]) -> Vec<Value> {
    let share =
        |share: &Share<K>| json!({ name: share.part, "slowdown": share.slowdown, "slowdown_by_step": share.by_step });
    shares.iter().map(share).collect()
}

fn explained(explained: &Explained) -> Value {
    json!({
        "share": explained.share_removed,
        "share_added": explained.share_added,
        "measured_seconds": explained.measured,
        "ideal_seconds": explained.ideal,
        "removed_seconds": explained.removed,
        "added_seconds": explained.added,
    })
}

fn cause_name(cause: Cause) -> &'static str {
    match cause {
        Cause::Nothing => "nothing",
        Cause::Workers => "workers",
        Cause::LastStage => "last-stage",
        Cause::Everywhere => "everywhere",
    }
}

/// The same for people, without what hardly matters.
fn as_text(trace: &Trace, analysis: &Analysis) -> String {
    let mut text = String::new();
    let whole = &analysis.last_stage;
    // Writing to a String can't fail.
    let _ = writeln!(
        text,
        "{} operations of {} workers in {} steps (measured); what if no operation had been slower than others of its kind \
         (simulated)?\n",
        trace.operations().len(),
        analysis.workers.len(),
        analysis.steps.len(),
    );
    let _ = writeln!(
        text,
        "Steps take {} on average, {:.3} times as long as without stragglers ({}).",
        output::seconds(whole.measured),
        analysis.slowdown,
        output::seconds(whole.ideal),
    );
    let percent = |explained: &Explained| format!("{:.1} %", 100.0 * explained.share_removed);
    let (slowest, last) = (percent(&analysis.slowest_workers), percent(&analysis.last_stage));
    let _ = writeln!(text, "The slowest 3 % of the workers explain {slowest} of that, the last pipeline stage {last}.");
    let _ = writeln!(text, "{}\n", sentence(analysis));
    text += &table("OPERATION", &analysis.by_kind, |kind| (*kind).to_owned());
    text += &table("STAGE", &analysis.by_stage, u32::to_string);
    text += &table("DP RANK", &analysis.by_dp_rank, u32::to_string);
    let workers = analysis.workers.iter().take(SHOWN_MOST).map(|worker| {
        vec![worker.rank.to_string(), worker.dp_rank.to_string(), worker.stage.to_string(), figure(worker.slowdown)]
    });
    text += &output::table(&[">WORKER", ">DP RANK", ">STAGE", ">SLOWDOWN"], workers.collect());
    let mut steps: Vec<_> = analysis.steps.iter().collect();
    steps.sort_by(|a, b| b.slowdown.total_cmp(&a.slowdown));
    let steps = steps.into_iter().take(SHOWN_MOST);
    let row = |step: &gangline_telemetry::stragglers::StepTime| {
        vec![step.step.to_string(), output::seconds(step.measured), figure(step.slowdown)]
    };
    text + "\n" + &output::table(&[">STEP", ">TOOK", ">SLOWDOWN"], steps.map(row).collect())
}

fn sentence(analysis: &Analysis) -> String {
    let worker = analysis.workers.first().map_or(String::new(), |worker| format!(" (rank {} first)", worker.rank));
    match analysis.cause() {
        Cause::Nothing => "There is little to gain from looking for stragglers.".to_owned(),
        Cause::Workers => format!("Look at the machines of the slowest workers{worker}."),
        Cause::LastStage => "Look at how the model is cut: the last stage has too much of it.".to_owned(),
        Cause::Everywhere => {
            "No worker or stage stands out: look for work that is uneven, like sequences of different lengths."
                .to_owned()
        }
    }
}

fn table<K>(heading: &str, shares: &[Share<K>], name: impl Fn(&K) -> String) -> String {
    let rows = shares.iter().take(SHOWN_MOST).map(|share| vec![name(&share.part), figure(share.slowdown)]);
    output::table(&[heading, ">SLOWDOWN"], rows.collect()) + "\n"
}

fn figure(slowdown: f64) -> String {
    format!("{slowdown:.3}")
}
