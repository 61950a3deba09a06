//! `bench telemetry [--points N]`: the series store on this disk: points a second from a thousand sources, bytes a point, a
//! chart, memory, and its codec beside Gorilla's and deflate on the same columns.
//!
//! The points are simulated, by a seed: eight GPUs' counters as NVML reports them (whole percents, tenths of a watt) once a
//! second with a millisecond of jitter, and losses with the noise of a training step. Real curves may be larger or smaller.

use std::io::Write as _;
use std::sync::mpsc::sync_channel;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result};
use flate2::{Compression, write::DeflateEncoder};
use gangline_base::{AttemptNumber, JobId, Step, Timestamp};
use gangline_telemetry::series::{Batch, Handle, Keep, Limits, Options, Query, Row, Scope, Service, Source};
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};

/// Sources that report, each for itself; they are of ten jobs, so that a chart has a hundred curves.
const SOURCES: u32 = 1_000;
const JOBS: u32 = 10;
/// Metrics of a row.
const NAMES: [&str; 10] =
    ["gpu_util", "sm_active", "memory_util", "power", "temperature", "sm_clock", "memory_used", "loss", "lr", "tokens"];
/// Rows of a batch: what a source reports in five seconds.
const ROWS: u64 = 5;
/// Points unless others are asked for.
const POINTS: u64 = 10_000_000;
const POINTS_A_SECOND_LEAST: f64 = 200_000.0;
const CHART_MS_MOST: f64 = 20.0;
const COUNTER_BYTES_MOST: f64 = 4.0;
const LOSS_BYTES_MOST: f64 = 12.0;
const MIB: f64 = 1_048_576.0;

/// Measures and prints; whether the bars are met.
pub(super) fn run(options: &[String]) -> Result<bool> {
    let points = match options {
        [] => POINTS,
        [name, count] if name == "--points" => count.parse()?,
        _ => anyhow::bail!("bench telemetry takes --points N"),
    };
    println!("simulated points, seed 1; measured here; {SOURCES} sources of {} metrics, one row a second", NAMES.len());
    let codec = codecs()?;
    let folder = tempfile::tempdir_in(std::env::current_dir()?.join("target"))?;
    let options = Options { limits: Limits::default(), keep: Keep::default(), clock: now };
    let service = Service::start(folder.path().to_owned(), options)?;
    let handle = service.handle();
    let rows = points / u64::from(SOURCES) / wide(NAMES.len());
    let begun = Instant::now();
    for batch in 0..rows / ROWS {
        ingest(&handle, batch * ROWS)?;
    }
    let seconds = begun.elapsed().as_secs_f64();
    handle.flush()?;
    let stored = float(rows / ROWS * ROWS * u64::from(SOURCES) * wide(NAMES.len()));
    println!(
        "ingest     {:>12.0} points/s, durable before they are acknowledged (bar {POINTS_A_SECOND_LEAST})",
        stored / seconds
    );
    let chart = chart(&handle)?;
    println!(
        "chart      {:>12.1} ms for 100 curves x 320 points of {stored:.0} (bar {CHART_MS_MOST}), median of 9",
        chart * 1e3
    );
    let summary = handle.summary();
    let bytes = float(summary.bytes) / float(summary.points);
    println!(
        "disk       {bytes:>12.2} bytes/point with minutes and hours, in {} segments as merged so far",
        summary.segments
    );
    println!("memory     {:>12.0} MiB, resident in this process at most", peak_mib()?);
    service.stop();
    let is_met = stored / seconds >= POINTS_A_SECOND_LEAST && chart * 1e3 <= CHART_MS_MOST && codec;
    println!("bars: {}", if is_met { "met" } else { "NOT met" });
    Ok(is_met)
}

/// Sends the rows from this one on of all sources, and waits until all are durable.
fn ingest(handle: &Handle, first: u64) -> Result<()> {
    let (reply, answers) = sync_channel(usize::try_from(SOURCES)?);
    for number in 0..SOURCES {
        let reply = reply.clone();
        handle.take(batch(number, first), move |outcome| drop(reply.send(outcome)));
    }
    for _ in 0..SOURCES {
        answers.recv().context("an answer")??;
    }
    Ok(())
}

fn batch(number: u32, first: u64) -> Batch {
    let source = Source {
        scope: Scope::Job(JobId(u64::from(number % JOBS))),
        attempt: Some(AttemptNumber(1)),
        node: None,
        rank: Some(number),
        device: None,
    };
    let mut random = ChaCha8Rng::seed_from_u64(u64::from(number) << 32 | first);
    let rows = (first..first + ROWS).map(|row| {
        let at = Duration::from_millis(row * 1_000 + random.next_u64() % 3);
        let values = (0..).zip(values(row, &mut random)).collect();
        Row { at: begin() + at, step: Some(Step(row)), values }
    });
    let rows = rows.collect();
    Batch { source, first, names: NAMES.map(str::to_owned).to_vec(), rows }
}

/// What a rank and its GPU measure in a second.
fn values(row: u64, random: &mut ChaCha8Rng) -> [f64; NAMES.len()] {
    let mut noise = |range: u64| float(random.next_u64() % range);
    let loss = 1.7 + 8.0 / (float(row) + 10.0).sqrt() + noise(1 << 24) / f64::from(1 << 27);
    #[expect(clippy::cast_possible_truncation, reason = "a loss is computed as a f32")]
    let loss = f64::from(loss as f32);
    let warm = (float(row) / 600.0).min(1.0) * 40.0;
    [
        97.0 + noise(4),
        0.9 + noise(100) / 1_000.0,
        60.0 + noise(8),
        650.0 + noise(400) / 10.0,
        (35.0 + warm + noise(2)).floor(),
        1_980.0 - 15.0 * noise(3),
        71_303_168_000.0,
        loss,
        3e-4 * (1.0 - float(row) / 1e6),
        65_536.0,
    ]
}

/// Returns the median seconds of a chart: one metric of a job's hundred ranks.
fn chart(handle: &Handle) -> Result<f64> {
    let query = Query { metrics: vec!["loss".to_owned()], ..Query::all(Scope::Job(JobId(3)), 320, 1_000) };
    let mut times = Vec::new();
    for _ in 0..9 {
        let begun = Instant::now();
        let answer = handle.query(&query)?;
        times.push(begun.elapsed().as_secs_f64());
        anyhow::ensure!(answer.curves.len() == 100, "{} curves", answer.curves.len());
    }
    times.sort_by(f64::total_cmp);
    Ok(times[4])
}

/// Prints bytes a value of each column by pco, Gorilla and deflate, without times; whether pco's are within the bars.
fn codecs() -> Result<bool> {
    let mut random = ChaCha8Rng::seed_from_u64(1);
    let rows: Vec<[f64; NAMES.len()]> = (0..4_096).map(|row| values(row, &mut random)).collect();
    println!("{:<14} {:>8} {:>8} {:>8}   bytes a value, chunks of 4096", "column", "pco", "Gorilla", "deflate");
    let mut is_met = true;
    for (place, name) in NAMES.iter().enumerate() {
        let column: Vec<f64> = rows.iter().map(|row| row[place]).collect();
        let each = |bytes: usize| float(wide(bytes)) / 4_096.0;
        let pco = each(pco::standalone::simple_compress(&column, &pco::ChunkConfig::default())?.len());
        let mut deflate = DeflateEncoder::new(Vec::new(), Compression::default());
        for byte in 0..8 {
            deflate.write_all(&column.iter().map(|value| value.to_le_bytes()[byte]).collect::<Vec<u8>>())?;
        }
        let deflate = each(deflate.finish()?.len());
        println!("{name:<14} {pco:>8.2} {:>8.2} {deflate:>8.2}", each(gorilla_bits(&column).div_ceil(8)));
        is_met &= pco <= if *name == "loss" { LOSS_BYTES_MOST } else { COUNTER_BYTES_MOST };
    }
    Ok(is_met)
}

/// Returns the bits that Gorilla's coding of values takes (Pelkonen et al., VLDB 2015, section 4.1.2).
fn gorilla_bits(column: &[f64]) -> usize {
    let (mut bits, mut last, mut window) = (64, column[0].to_bits(), None::<(u32, u32)>);
    for value in &column[1..] {
        let change = value.to_bits() ^ std::mem::replace(&mut last, value.to_bits());
        let (leading, trailing) = (change.leading_zeros().min(31), change.trailing_zeros());
        bits += match window {
            _ if change == 0 => 1,
            Some((lead, trail)) if leading >= lead && trailing >= trail => 2 + (64 - lead - trail) as usize,
            _ => {
                window = Some((leading, trailing));
                2 + 5 + 6 + (64 - leading - trailing) as usize
            }
        };
    }
    bits
}

/// The most memory that this process had, from the kernel.
fn peak_mib() -> Result<f64> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).context("VmHWM")?;
    let kib: f64 = line.trim().trim_end_matches(" kB").parse()?;
    Ok(kib * 1_024.0 / MIB)
}

fn begin() -> Timestamp {
    Timestamp::from_unix_nanos(1_800_000_000_000_000_000)
}

/// The real time, shifted so that the points are as young as they would be.
fn now() -> Timestamp {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    begin() + Duration::from_nanos(since.subsec_nanos().into())
}

fn wide(count: usize) -> u64 {
    u64::try_from(count).expect("a count fits in 64 bits")
}

#[expect(clippy::cast_precision_loss, reason = "no count here is near 2^53")]
fn float(count: u64) -> f64 {
    count as f64
}
