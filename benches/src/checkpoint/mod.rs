//! `bench checkpoint`: what a save holds the trainer up for, how fast it becomes durable, and how fast it is back, beside
//! one copy of the same bytes in memory by as many threads and beside what fio writes and reads on the same disk in the same run.
//!
//! Rounds are interleaved and medians reported, because disk and machine are shared; fsync is counted, as in MLPerf
//! Storage, and nothing is in the page cache when it is read: both sides go past it. fio (`apt-get install fio`) is the
//! limit; without it that part is not run. `peers` then does the same from Python, beside other checkpoint libraries.

mod peers;

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use gangline_storage::{DataType, Options, Step, Store, Tensor, TensorView, Wanted};
use xtask::environment;

use super::report::{Bar, Report, median};

/// Bytes of the state, and where there is little time.
const STATE_BYTES: usize = 1 << 30;
const STATE_BYTES_QUICK: usize = 128 << 20;
/// Bytes of a tensor: a layer's 4,096 x 4,096 weights in bf16.
const TENSOR_BYTES: usize = 32 << 20;
const ROUNDS: usize = 5;

/// What one save took, in seconds.
struct Saving {
    /// The trainer was blocked.
    blocked: f64,
    /// From then until it was durable.
    durable: f64,
    /// All threads' CPU time.
    cpu: f64,
}

/// What one load took, in seconds.
struct Loading {
    wall: f64,
    cpu: f64,
}

/// Measures and prints; whether the bars held.
pub(super) fn run(options: &[String]) -> Result<bool> {
    let is_quick = match options {
        [] => false,
        [quick] if quick == "--quick" => true,
        _ => bail!("bench checkpoint takes --quick, not {}", options.join(" ")),
    };
    let folder = environment::target()?.join("bench-checkpoint");
    let _ = std::fs::remove_dir_all(&folder);
    std::fs::create_dir_all(&folder).with_context(|| format!("make {}", folder.display()))?;
    let mut report = Report::default();
    beside_the_disk(&mut report, &folder, if is_quick { STATE_BYTES_QUICK } else { STATE_BYTES })?;
    peers::compare(&mut report, &folder, is_quick)?;
    std::fs::remove_dir_all(&folder).with_context(|| format!("remove {}", folder.display()))?;
    Ok(report.finish())
}

/// Beside one copy in memory, and beside fio.
fn beside_the_disk(report: &mut Report, folder: &Path, bytes: usize) -> Result<()> {
    let state = state(bytes);
    let views: Vec<TensorView<'_>> = state.iter().map(Tensor::as_view).collect();
    let gigabytes = in_gigabytes(bytes);
    report.section(&format!(
        "a state of {gigabytes:.2} GB in {} tensors of random bytes, one rank; medians of {ROUNDS} interleaved rounds (measured)",
        state.len()
    ));
    let store = Store::open(folder.join("store"), Options::default())?;
    // The first save takes its memory from the system.
    let first = save(&store, 0, &views)?;
    let (mut copies, mut saves, mut limits) = (Vec::new(), Vec::new(), Vec::new());
    let (mut loads, mut read_limits) = (Vec::new(), Vec::new());
    let mut target = vec![1; bytes];
    for round in 1..=ROUNDS {
        copies.push(copied(&state, &mut target));
        let step = u64::try_from(round)?;
        saves.push(save(&store, step, &views)?);
        limits.extend(fio(Access::Write, &folder.join("fio"), bytes)?);
        loads.push(load(&store, step, &state, &mut target)?);
        read_limits.extend(fio(Access::Read, &folder.join("fio"), bytes)?);
    }
    let copy = median(copies);
    report.figure("one copy, in memory touched before, by a save's threads", gigabytes / copy, "GB/s", Bar::None);
    let all_blocked: Vec<f64> = saves.iter().map(|save| save.blocked).collect();
    report.note(&format!("seconds blocked: {}", spread(&all_blocked)));
    let blocked = median(all_blocked);
    report.figure("the trainer is blocked for, in such copies", blocked / copy, "", Bar::AtMost(1.3));
    report.figure("the first save, whose memory is new", first.blocked / copy, "", Bar::None);
    let durable = gigabytes / median(saves.iter().map(|save| save.durable).collect());
    report.figure("durable writing, with hashes and fsync", durable, "GB/s", Bar::None);
    let cpu = median(saves.iter().map(|save| save.cpu).collect()) / gigabytes;
    report.figure("CPU seconds a GB, copy and hashes and all", cpu, "s", Bar::AtMost(0.4));
    if limits.is_empty() {
        report.skip("beside what fio writes", "fio is not installed: apt-get install fio");
    } else {
        let limit = median(limits);
        report.figure("fio's sequential O_DIRECT write, fsync at its end", limit, "GB/s", Bar::None);
        report.figure("durable writing / fio's", durable / limit, "", Bar::AtLeast(0.9));
    }
    let restore = gigabytes / median(loads.iter().map(|load| load.wall).collect());
    report.figure("restore into memory that is there, every byte verified", restore, "GB/s", Bar::None);
    let cpu = median(loads.iter().map(|load| load.cpu).collect()) / gigabytes;
    report.figure("CPU seconds a GB of that", cpu, "s", Bar::None);
    if !read_limits.is_empty() {
        let limit = median(read_limits);
        report.figure("fio's sequential O_DIRECT read", limit, "GB/s", Bar::None);
        report.figure("restore / fio's read", restore / limit, "", Bar::AtLeast(0.9));
    }
    Ok(())
}

/// Tensors of bytes that nothing compresses.
fn state(bytes: usize) -> Vec<Tensor> {
    let mut word = 0x9E37_79B9_7F4A_7C15_u64;
    let tensor = |number: usize| {
        let mut data = Vec::with_capacity(TENSOR_BYTES);
        while data.len() < TENSOR_BYTES {
            // xorshift64 (Marsaglia 2003).
            word ^= word << 13;
            word ^= word >> 7;
            word ^= word << 17;
            data.extend_from_slice(&word.to_le_bytes());
        }
        Tensor { name: format!("layer.{number}.weight"), data_type: DataType::F32, shape: vec![data.len() / 4], data }
    };
    (0..bytes / TENSOR_BYTES).map(tensor).collect()
}

/// Threads that a save copies with: as many as there are cores, and four at most.
const COPIERS_MAX: usize = 4;

/// Seconds for one copy of the state by as many threads as a save copies with, each with its share of the bytes.
fn copied(state: &[Tensor], target: &mut [u8]) -> f64 {
    let threads = std::thread::available_parallelism().map_or(1, usize::from).min(COPIERS_MAX);
    let each = state.len().div_ceil(threads);
    let began = Instant::now();
    std::thread::scope(|scope| {
        for (tensors, places) in state.chunks(each).zip(target.chunks_mut(each * TENSOR_BYTES)) {
            scope.spawn(move || {
                for (tensor, place) in tensors.iter().zip(places.chunks_mut(TENSOR_BYTES)) {
                    place.copy_from_slice(&tensor.data);
                }
            });
        }
    });
    std::hint::black_box(&target);
    began.elapsed().as_secs_f64()
}

/// The smallest and the largest of some figures, and how many there are.
fn spread(figures: &[f64]) -> String {
    let (least, most) =
        figures.iter().fold((f64::MAX, 0.0_f64), |(least, most), figure| (least.min(*figure), most.max(*figure)));
    format!("{} to {} in {} rounds", super::report::number(least), super::report::number(most), figures.len())
}

fn save(store: &Store, step: u64, views: &[TensorView<'_>]) -> Result<Saving> {
    let (began, cpu) = (Instant::now(), cpu_time()?);
    let pending = store.save(Step(step), views, &BTreeMap::new())?;
    let blocked = began.elapsed().as_secs_f64();
    pending.wait()?;
    let cpu = cpu_time()?.saturating_sub(cpu).as_secs_f64();
    Ok(Saving { blocked, durable: began.elapsed().as_secs_f64() - blocked, cpu })
}

/// Reads everything back into memory that was touched before, and compares it.
fn load(store: &Store, step: u64, state: &[Tensor], target: &mut [u8]) -> Result<Loading> {
    target.fill(1);
    let (began, cpu) = (Instant::now(), cpu_time()?);
    let wanted = state.iter().zip(target.chunks_mut(TENSOR_BYTES));
    let wanted = wanted.map(|(Tensor { name, data_type, shape, .. }, data)| Wanted {
        name,
        data_type: *data_type,
        offsets: &[0],
        shape,
        data,
    });
    store.open_step(Step(step))?.read_into(&mut wanted.collect::<Vec<_>>())?;
    let taken = Loading { wall: began.elapsed().as_secs_f64(), cpu: cpu_time()?.saturating_sub(cpu).as_secs_f64() };
    let is_same = state.iter().zip(target.chunks(TENSOR_BYTES)).all(|(tensor, data)| tensor.data == data);
    ensure!(is_same, "what was read is not what was saved");
    Ok(taken)
}

/// CPU time of this process, all threads, in user mode and the kernel.
pub(super) fn cpu_time() -> Result<Duration> {
    let stat = std::fs::read_to_string("/proc/self/stat").context("read /proc/self/stat")?;
    // utime and stime are the 12th and 13th after the name, in ticks of a hundredth of a second (proc(5)).
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap_or_default().split_whitespace().collect();
    let ticks = |at: usize| fields.get(at).and_then(|field| field.parse::<u64>().ok()).context("read utime and stime");
    Ok(Duration::from_millis((ticks(11)? + ticks(12)?) * 10))
}

/// What fio does.
#[derive(Clone, Copy)]
enum Access {
    /// Lays out the file and fills it.
    Write,
    /// Reads what was written.
    Read,
}

/// What fio writes or reads in GB a second; nothing if it isn't installed.
fn fio(access: Access, file: &Path, bytes: usize) -> Result<Option<f64>> {
    // The 48th and the 7th field of a terse line (fio's HOWTO, "terse output", version 3) are the bandwidths of writing and
    // reading in KiB a second.
    let (how, field): (&[&str], usize) = match access {
        Access::Write => (&["--name=write", "--rw=write", "--end_fsync=1"], 47),
        Access::Read => (&["--name=read", "--rw=read", "--unlink=1"], 6),
    };
    let mut command = Command::new("fio");
    command.args(how).args(["--bs=4M", "--iodepth=8", "--ioengine=libaio", "--direct=1", "--output-format=terse"]);
    command.arg(format!("--size={bytes}")).arg(format!("--filename={}", file.display()));
    let output = match command.output() {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        output => output.context("run fio")?,
    };
    ensure!(output.status.success(), "fio failed: {}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let line = text.lines().find(|line| line.starts_with("3;")).context("find fio's figures")?;
    let kibibytes: f64 = line.split(';').nth(field).context("find fio's bandwidth")?.parse()?;
    Ok(Some(kibibytes * 1_024.0 / 1e9))
}

#[expect(clippy::cast_precision_loss, reason = "a state has fewer than 2^53 bytes")]
fn in_gigabytes(bytes: usize) -> f64 {
    bytes as f64 / 1e9
}
