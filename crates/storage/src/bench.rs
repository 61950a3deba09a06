//! Measures a disk and this machine's memory with the store itself: saves, verifies and copies incompressible
//! bytes, in a folder of its own that is removed afterwards. A folder left by a killed process is removed by
//! the next run.
//!
//! Keeps A-10: the sample takes a named fraction of the free space, and no more than was asked for.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use gangline_base::{Bytes, Step};
use rustix::fs::statvfs;
use serde::Serialize;

use crate::forecast::Rates;
use crate::{DataType, Error, Options, Problem, Store, TensorView};

/// A smaller sample gives no useful figures.
const SAMPLE_BYTES_MIN: u64 = 32 << 20;
/// The most checkpoints of the sample on disk at once: one being written, one kept, one being removed.
const SAMPLES_AT_ONCE: u64 = 4;
/// Bytes of each tensor of the sample.
const TENSOR_BYTES: usize = 16 << 20;
/// Prefix of the folder's name; the host and the process follow.
const FOLDER_PREFIX: &str = ".gangline-bench-";

/// The size of a measurement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sample {
    /// Bytes of the saved state; fewer if the disk has little space.
    pub bytes: Bytes,
    /// The number of saves and copies measured. One save before them isn't counted, since its memory is new.
    pub rounds: u32,
    /// Threads that copy in parallel; at most the number of cores is used.
    pub threads: u32,
}

/// The result of a measurement, in bytes per second, except for the sample's size.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Measured {
    /// Bytes of the saved state.
    pub sample: Bytes,
    /// Bytes over the time that `save` blocks, in which one thread copies.
    pub save_copy: f64,
    /// The same rate for the first save, whose memory is new.
    pub first_save_copy: f64,
    /// Threads that copied in parallel.
    pub threads: usize,
    /// The rates from which forecasts are made.
    pub rates: Rates,
}

/// Why nothing was measured.
#[derive(Debug, thiserror::Error)]
pub enum BenchError {
    /// The folder doesn't exist.
    #[error("there is no folder {}", path.display())]
    NoFolder {
        /// Its path.
        path: PathBuf,
    },
    /// The disk has too little space.
    #[error("{} has no space left to measure with: {free} are free, {needed} are needed", path.display())]
    NoSpace {
        /// The folder.
        path: PathBuf,
        /// The free space.
        free: Bytes,
        /// The space needed.
        needed: Bytes,
    },
    /// The folder isn't writable.
    #[error("failed to write in {}", path.display())]
    Folder {
        /// The folder.
        path: PathBuf,
        /// The operating system's error.
        source: io::Error,
    },
    /// The store failed.
    #[error(transparent)]
    Store(#[from] Error),
    /// The bytes read differ from those written.
    #[error("this disk did not give back what was written: {0}")]
    Damaged(Problem),
}

/// Saves, reads and copies a state in a folder of its own below `folder`, and removes that folder again.
///
/// # Errors
/// [`BenchError`]; nothing is left behind then either.
pub fn measure(folder: &Path, sample: &Sample) -> Result<Measured, BenchError> {
    if !folder.is_dir() {
        return Err(BenchError::NoFolder { path: folder.to_owned() });
    }
    let failed = |source| BenchError::Folder { path: folder.to_owned(), source };
    let count = fitting(folder, sample.bytes)?;
    remove_left_behind(folder);
    let place = folder.join(format!("{}{}", prefix(), std::process::id()));
    std::fs::create_dir(&place).map_err(failed)?;
    let measured = measure_in(&place, &noise(count), sample);
    let removed = std::fs::remove_dir_all(&place);
    let measured = measured?;
    removed.map_err(failed)?;
    Ok(measured)
}

/// Returns the sample size that fits: several samples are on disk at once.
fn fitting(folder: &Path, wanted: Bytes) -> Result<usize, BenchError> {
    let failed = |errno: rustix::io::Errno| BenchError::Folder { path: folder.to_owned(), source: errno.into() };
    let room = statvfs(folder).map_err(failed)?;
    let free = room.f_bavail.saturating_mul(room.f_frsize);
    let sample = wanted.0.min(free / SAMPLES_AT_ONCE);
    if sample < SAMPLE_BYTES_MIN {
        let needed = Bytes(SAMPLE_BYTES_MIN * SAMPLES_AT_ONCE);
        return Err(BenchError::NoSpace { path: folder.to_owned(), free: Bytes(free), needed });
    }
    Ok(usize::try_from(sample).unwrap_or(usize::MAX))
}

/// Returns the prefix of this machine's folders: other machines may share the disk.
fn prefix() -> String {
    format!("{FOLDER_PREFIX}{}-", rustix::system::uname().nodename().to_string_lossy())
}

/// Removes folders of processes of this machine that have ended.
fn remove_left_behind(folder: &Path) {
    let prefix = prefix();
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let process = name.to_str().and_then(|name| name.strip_prefix(&prefix)).and_then(|pid| pid.parse::<u32>().ok());
        if process.is_some_and(|pid| !Path::new("/proc").join(pid.to_string()).exists()) {
            // A folder that can't be removed doesn't prevent the measurement.
            let _ = std::fs::remove_dir_all(entry.path());
        }
    }
}

/// Returns incompressible bytes (xorshift64, Marsaglia 2003).
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

fn measure_in(folder: &Path, bytes: &[u8], sample: &Sample) -> Result<Measured, BenchError> {
    let store = Store::open(folder, Options::default())?;
    let tensors: Vec<&[u8]> = bytes.chunks(TENSOR_BYTES).collect();
    let names: Vec<String> = (0..tensors.len()).map(|index| format!("tensor.{index}")).collect();
    let shapes: Vec<[usize; 1]> = tensors.iter().map(|tensor| [tensor.len()]).collect();
    let view = |((name, shape), data)| TensorView { name, data_type: DataType::U8, shape, data, part_of: None };
    let names = names.iter().map(String::as_str);
    let views: Vec<TensorView<'_>> = names.zip(shapes.iter().map(|shape| &shape[..])).zip(tensors).map(view).collect();
    let (mut blocking, mut writing) = (Vec::new(), Vec::new());
    let rounds = sample.rounds.max(1);
    for step in 0..=rounds {
        let started = Instant::now();
        let pending = store.save(Step(step.into()), &views, &BTreeMap::new())?;
        blocking.push(started.elapsed());
        let copied = Instant::now();
        pending.wait()?;
        writing.push(copied.elapsed());
    }
    let started = Instant::now();
    let report = store.verify(Step(rounds.into()))?;
    let reading = started.elapsed();
    if let Some(problem) = report.problems.into_iter().next() {
        return Err(BenchError::Damaged(problem));
    }
    drop(store);
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let threads = usize::try_from(sample.threads.max(1)).unwrap_or(cores).min(cores);
    let rate = |time: Duration| bytes.len() as f64 / time.as_secs_f64().max(f64::EPSILON);
    let copy = rate(copy_time(bytes, threads, rounds));
    let rates = Rates { copy, write: rate(median(&writing[1..])), read: rate(reading) };
    let sample = Bytes(bytes.len() as u64);
    Ok(Measured { sample, save_copy: rate(median(&blocking[1..])), first_save_copy: rate(blocking[0]), threads, rates })
}

/// Returns how long this many threads together take to copy the bytes to memory that was written before.
fn copy_time(bytes: &[u8], threads: usize, rounds: u32) -> Duration {
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
    let times: Vec<Duration> = (0..rounds).map(|_| copy(&mut room)).collect();
    // Reading the result keeps the compiler from removing the copies.
    assert_eq!(room.last(), bytes.last(), "a copy is a copy");
    median(&times)
}

fn median(times: &[Duration]) -> Duration {
    let mut sorted = times.to_vec();
    sorted.sort_unstable();
    sorted[sorted.len() / 2]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sample_is_measured_and_what_a_dead_process_left_is_removed() {
        let folder = tempfile::tempdir().expect("a folder");
        // No process has this number: Linux counts to 2^22.
        std::fs::create_dir(folder.path().join(format!("{}{}", prefix(), 1_u32 << 23))).expect("a folder in it");
        let sample = Sample { bytes: Bytes(SAMPLE_BYTES_MIN), rounds: 1, threads: 1 };
        let measured = measure(folder.path(), &sample).expect("it is measured");
        assert_eq!(measured.sample, sample.bytes);
        assert!(measured.rates.write > 1e5 && measured.rates.read > 1e5 && measured.rates.copy > 1e5, "{measured:?}");
        assert_eq!(std::fs::read_dir(folder.path()).expect("it is there").count(), 0);
    }

    #[test]
    fn what_is_no_folder_is_refused() {
        let sample = Sample { bytes: Bytes(SAMPLE_BYTES_MIN), rounds: 1, threads: 1 };
        let refused = measure(Path::new("/none"), &sample).expect_err("there is none");
        assert_eq!(refused.to_string(), "there is no folder /none");
    }
}
