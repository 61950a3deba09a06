//! `checkpoint bench`: measures this disk and memory with the store itself, and says what checkpoints of a model will take here.

use std::collections::BTreeMap;
use std::num::NonZeroU32;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use clap::Args;
use gangline_base::{Bytes, Step};
use gangline_storage::{DataType, Options, Store, TensorView};
use rustix::fs::statvfs;
use serde::Serialize;

use crate::amount;
use crate::checkpoint::failed;
use crate::checkpoint::forecast::{BYTES_PER_PARAMETER, Fleet, Forecast, Rates, forecast, percent};
use crate::failure::Failure;
use crate::{Global, output};

/// Bytes of the state that is saved, unless the disk has little room.
const SAMPLE_BYTES: u64 = 512 << 20;
/// With less the figures would say little.
const SAMPLE_BYTES_MIN: u64 = 32 << 20;
/// Checkpoints of the sample that are on disk at once, at most: one being written, one that is kept, one that goes.
const SAMPLES_AT_ONCE: u64 = 4;
/// Bytes of one tensor of it.
const TENSOR_BYTES: usize = 16 << 20;
/// Saves that are measured; one before them isn't, for its memory is fresh.
const SAVES: u32 = 5;
/// Copies of the sample that are measured.
const COPIES: u32 = 5;
/// Models that are forecast if none is named, in parameters.
const MODELS: [(&str, u64); 3] = [("8B", 8_000_000_000), ("70B", 70_000_000_000), ("405B", 405_000_000_000)];
/// Decimal, as disks are sold.
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
    #[arg(long, value_name = "N", default_value = "8")]
    gpus: NonZeroU32,
    /// Accelerators of a node; each node has a disk like this one
    #[arg(long, value_name = "N", default_value = "8")]
    gpus_per_node: NonZeroU32,
    /// Seconds from one checkpoint to the next
    #[arg(long, value_name = "SECONDS", default_value = "150", value_parser = clap::value_parser!(u32).range(1..))]
    interval: u32,
}

/// What was measured, in bytes a second but for the sample's size.
#[derive(Clone, Copy, Debug, Serialize)]
struct Measured {
    sample: Bytes,
    /// Bytes over the time that `save` blocks: one thread copies.
    save_copy: f64,
    /// The same of the first save, whose memory is fresh.
    first_save_copy: f64,
    threads: usize,
    rates: Rates,
}

/// Everything that is said.
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
    let measured = measure(&args.folder, args.gpus_per_node.min(args.gpus))?;
    let fleet = Fleet { gpus: args.gpus, gpus_per_node: args.gpus_per_node };
    let named = |(model, bytes): (String, Bytes)| {
        let interval = Duration::from_secs(args.interval.into());
        Named { model, forecast: forecast(bytes, fleet, measured.rates, interval) }
    };
    let report = Report { measured, estimated: models(args)?.into_iter().map(named).collect() };
    if global.json { output::json(&report) } else { output::print(&text(&report, args)) }
}

/// What is forecast: a name, and bytes.
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

/// Saves, reads and copies a state in a folder of its own below `folder`, and removes that again.
fn measure(folder: &Path, ranks: NonZeroU32) -> Result<Measured, Failure> {
    if !folder.is_dir() {
        return Err(Failure::local(
            format!("there is no folder {}", folder.display()),
            "make it on the disk to measure",
        ));
    }
    let sample = sample_bytes(folder)?;
    let place = tempfile::Builder::new().prefix(".gangline-bench-").tempdir_in(folder);
    let place =
        place.map_err(|error| Failure::local(format!("failed to write in {}: {error}", folder.display()), ""))?;
    let bytes = noise(sample);
    let measured = measure_in(place.path(), &bytes, ranks);
    let removed = place.close();
    let measured = measured?;
    removed?;
    Ok(measured)
}

/// What fits: several of them are on disk at once.
fn sample_bytes(folder: &Path) -> Result<usize, Failure> {
    let room = statvfs(folder).map_err(|errno| Failure::from(std::io::Error::from(errno)))?;
    let free = room.f_bavail.saturating_mul(room.f_frsize);
    let sample = SAMPLE_BYTES.min(free / SAMPLES_AT_ONCE);
    if sample < SAMPLE_BYTES_MIN {
        let needed = Bytes(SAMPLE_BYTES_MIN * SAMPLES_AT_ONCE);
        let message = format!("{} has no space left to measure with: {}", folder.display(), Bytes(free));
        return Err(Failure::local(message, format!("free at least {needed}")));
    }
    Ok(usize::try_from(sample).unwrap_or(usize::MAX))
}

/// Bytes that no disk makes smaller (xorshift64, Marsaglia 2003).
fn noise(count: usize) -> Vec<u8> {
    let mut word = 0x9e37_79b9_7f4a_7c15_u64;
    let mut bytes = vec![0; count];
    for chunk in bytes.chunks_exact_mut(size_of::<u64>()) {
        word ^= word << 13;
        word ^= word >> 7;
        word ^= word << 17;
        chunk.copy_from_slice(&word.to_le_bytes());
    }
    bytes
}

fn measure_in(folder: &Path, bytes: &[u8], ranks: NonZeroU32) -> Result<Measured, Failure> {
    let store = Store::open(folder, Options::default()).map_err(failed)?;
    let tensors: Vec<&[u8]> = bytes.chunks(TENSOR_BYTES).collect();
    let names: Vec<String> = (0..tensors.len()).map(|index| format!("tensor.{index}")).collect();
    let shapes: Vec<[usize; 1]> = tensors.iter().map(|tensor| [tensor.len()]).collect();
    let view = |((name, shape), data)| TensorView { name, data_type: DataType::U8, shape, data, part_of: None };
    let names = names.iter().map(String::as_str);
    let views: Vec<TensorView<'_>> = names.zip(shapes.iter().map(|shape| &shape[..])).zip(tensors).map(view).collect();
    let (mut blocking, mut writing) = (Vec::new(), Vec::new());
    for step in 0..=SAVES {
        let started = Instant::now();
        let pending = store.save(Step(step.into()), &views, &BTreeMap::new()).map_err(failed)?;
        blocking.push(started.elapsed());
        let copied = Instant::now();
        pending.wait().map_err(failed)?;
        writing.push(copied.elapsed());
    }
    let started = Instant::now();
    let report = store.verify(Step(SAVES.into())).map_err(failed)?;
    let reading = started.elapsed();
    if let Some(problem) = report.problems.first() {
        return Err(Failure::local(format!("this disk did not give back what was written: {problem}"), ""));
    }
    drop(store);
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let threads = usize::try_from(ranks.get()).unwrap_or(cores).min(cores);
    let rate = |time: Duration| bytes.len() as f64 / time.as_secs_f64().max(f64::EPSILON);
    let rates =
        Rates { copy: rate(copy_time(bytes, threads)), write: rate(median(&writing[1..])), read: rate(reading) };
    let sample = Bytes(bytes.len() as u64);
    Ok(Measured { sample, save_copy: rate(median(&blocking[1..])), first_save_copy: rate(blocking[0]), threads, rates })
}

/// How long so many threads take together to copy the bytes to memory that was written before.
fn copy_time(bytes: &[u8], threads: usize) -> Duration {
    let mut room = bytes.to_vec();
    let part = bytes.len().div_ceil(threads);
    let copy = |room: &mut Vec<u8>| {
        let started = Instant::now();
        std::thread::scope(|scope| {
            for (to, from) in room.chunks_mut(part).zip(bytes.chunks(part)) {
                scope.spawn(move || to.copy_from_slice(from));
            }
        });
        started.elapsed()
    };
    let times: Vec<Duration> = (0..COPIES).map(|_| copy(&mut room)).collect();
    // Whoever looks at what was copied makes the copies happen.
    assert_eq!(room.last(), bytes.last(), "a copy is a copy");
    median(&times)
}

fn median(times: &[Duration]) -> Duration {
    let mut sorted = times.to_vec();
    sorted.sort_unstable();
    sorted[sorted.len() / 2]
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
    let heading = format!("measured in {} with {sample} (medians of {SAVES})", args.folder.display());
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
