//! `checkpoint bench`: measures this disk and memory with the store itself, and forecasts checkpoints of a
//! model here.

use std::num::NonZeroU32;
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use gangline_base::{Bytes, with_causes};
use gangline_storage::bench::{BenchError, Measured, Sample, measure};
use gangline_storage::forecast::{BYTES_PER_PARAMETER, Fleet, Forecast, forecast, percent};
use serde::Serialize;

use crate::amount;
use crate::failure::Failure;
use crate::{Global, output};

/// Size of the saved state, unless the disk has little room.
const SAMPLE_BYTES: Bytes = Bytes(512 << 20);
/// Number of measured saves and copies.
const ROUNDS: u32 = 5;
/// Models that are forecast by default, in parameters.
const MODELS: [(&str, u64); 3] = [("8B", 8_000_000_000), ("70B", 70_000_000_000), ("405B", 405_000_000_000)];
/// Decimal, as disk capacities are specified.
const GIGA: f64 = 1e9;

/// Where it is measured, and what for.
#[derive(Args, Debug)]
pub(crate) struct BenchArgs {
    /// A folder on the disk that checkpoints will go to
    folder: PathBuf,
    /// Parameters of the model, such as 70B; its state takes 14 bytes each
    #[arg(long, value_name = "N", value_parser = amount::count)]
    model_size: Option<u64>,
    /// Bytes of a checkpoint, such as 912GB
    #[arg(long, value_name = "SIZE", value_parser = amount::bytes, conflicts_with = "model_size")]
    bytes: Option<Bytes>,
    /// Accelerators that the state is cut over
    #[arg(long, value_name = "N", default_value = "8", value_parser = amount::positive::<NonZeroU32>)]
    gpus: NonZeroU32,
    /// Accelerators of a node; each node has a disk like this one
    #[arg(long, value_name = "N", default_value = "8", value_parser = amount::positive::<NonZeroU32>)]
    gpus_per_node: NonZeroU32,
    /// Seconds from one checkpoint to the next
    #[arg(long, value_name = "SECONDS", default_value = "150", value_parser = clap::value_parser!(u32).range(1..))]
    interval: u32,
}

/// Everything that is printed.
#[derive(Serialize)]
struct Report {
    measured: Measured,
    estimated: Vec<Named>,
}

#[derive(Serialize)]
struct Named {
    model: String,
    forecast: Forecast,
}

pub(crate) fn bench(global: &Global, args: &BenchArgs) -> Result<(), Failure> {
    let sample = Sample { bytes: SAMPLE_BYTES, rounds: ROUNDS, threads: args.gpus_per_node.min(args.gpus).get() };
    let measured = measure(&args.folder, &sample).map_err(|error| failed(&error))?;
    let fleet = Fleet { gpus: args.gpus, gpus_per_node: args.gpus_per_node };
    let named = |(model, bytes): (String, Bytes)| {
        let interval = Duration::from_secs(args.interval.into());
        Named { model, forecast: forecast(bytes, fleet, measured.rates, interval) }
    };
    let report = Report { measured, estimated: models(args)?.into_iter().map(named).collect() };
    if global.json { output::json(&report) } else { output::print(&text(&report, args)) }
}

/// Returns the models to forecast: name and size.
fn models(args: &BenchArgs) -> Result<Vec<(String, Bytes)>, Failure> {
    if let Some(bytes) = args.bytes {
        return Ok(vec![("the state".to_owned(), bytes)]);
    }
    let state = |parameters: u64| parameters.checked_mul(BYTES_PER_PARAMETER).map(Bytes);
    if let Some(parameters) = args.model_size {
        let bytes = state(parameters).ok_or_else(|| Failure::local("there is no model of such a size", ""))?;
        return Ok(vec![(format!("{} M parameters", parameters / 1_000_000), bytes)]);
    }
    Ok(MODELS
        .iter()
        .filter_map(|(name, parameters)| Some((format!("{name} parameters"), state(*parameters)?)))
        .collect())
}

fn failed(error: &BenchError) -> Failure {
    let hint = match error {
        BenchError::NoFolder { .. } => "make it on the disk to measure",
        BenchError::NoSpace { .. } => "free that much, or name a folder on another disk",
        _ => "",
    };
    Failure::local(with_causes(error), hint)
}

fn text(report: &Report, args: &BenchArgs) -> String {
    let Measured { sample, save_copy, first_save_copy, threads, rates } = report.measured;
    let row = |name: String, rate: f64| vec![name, format!("{:.2} GB/s", rate / GIGA)];
    let measured = vec![
        row("copy in a save, one thread".to_owned(), save_copy),
        row("the same in the first save, to fresh memory".to_owned(), first_save_copy),
        row(format!("copy, {threads} threads"), rates.copy),
        row("write past the page cache and fsync".to_owned(), rates.write),
        row("read and check every byte".to_owned(), rates.read),
    ];
    let heading = format!("measured in {} with {sample} (medians of {ROUNDS})", args.folder.display());
    let mut text = output::table(&[&heading, ">"], measured);
    for Named { model, forecast } in &report.estimated {
        text.push('\n');
        text.push_str(&forecast_text(model, forecast, args));
    }
    text.push_str(
        "\na GPU's own link may be slower than the copy: about 25 GB/s for each on PCIe 4, 50 GB/s on PCIe 5 (published)\n",
    );
    text
}

fn forecast_text(model: &str, forecast: &Forecast, args: &BenchArgs) -> String {
    let seconds = |seconds: f64| format!("{seconds:.2} s");
    let nodes = if forecast.nodes == 1 { "1 node".to_owned() } else { format!("{} nodes", forecast.nodes) };
    let mut rows = vec![
        vec!["bytes, and of one node".to_owned(), format!("{}, {}", forecast.bytes, forecast.bytes_per_node)],
        vec!["a save blocks the trainer".to_owned(), seconds(forecast.blocking_seconds)],
        vec!["it is durable after".to_owned(), seconds(forecast.durable_seconds)],
        vec!["a restore reads".to_owned(), seconds(forecast.restore_seconds)],
        vec!["shortest interval the disk sustains".to_owned(), seconds(forecast.interval_seconds_min)],
        vec![format!("overhead at one every {} s", args.interval), percent(forecast.overhead)],
    ];
    rows.extend(forecast.goals.iter().map(|goal| {
        let verdict = if goal.is_within_reach { "within reach" } else { "out of reach" };
        vec![goal.goal.clone(), format!("{verdict}: {}", goal.estimate)]
    }));
    output::table(&[&format!("estimated for {model} on {} accelerators, {nodes}", args.gpus), ""], rows)
}
