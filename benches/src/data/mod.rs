//! `bench data`: batches of tokens from memory, from a cold disk and from S3, each beside the machine's limit and the peers, in
//! interleaved rounds; what the first batch, a thousand million samples and a node's requests take.

mod cold;
mod first;
mod peers;
mod remote;
#[expect(dead_code, reason = "the tests of the crate count more")]
#[path = "../../../crates/data/tests/server/mod.rs"]
mod server;
mod warm;

use std::fs::File;
use std::io::Write as _;
use std::num::NonZeroU32;
use std::path::Path;

use anyhow::{Context as _, Result, ensure};
use gangline_data::order::Shuffle;
use gangline_data::{Loader, Options, Room, Source, TokenType, Width};
use xtask::environment;

use peers::Peers;

use crate::report::Report;

const LENGTH: usize = 2_048;
const BATCH: usize = 32;
/// Bytes of a sample, as it is stored.
const SAMPLE_BYTES: usize = LENGTH * 2;
/// Rounds, of which the median counts.
const ROUNDS: usize = 5;
/// Bytes of memory that are taken from the host beforehand: more than any contender writes.
const SETTLED_BYTES: usize = 3 << 29;
/// Of the limit: what the issue asks for.
const SHARE_MIN: f64 = 0.8;

/// What is measured, by the names that choose it.
const PARTS: [&str; 3] = ["memory", "s3", "disk"];
/// Leaves the peers out, whose installation takes 7 GB.
const ALONE: &str = "alone";

/// Measures and prints: all parts, or those that are named.
pub(super) fn run(options: &[String]) -> Result<bool> {
    let (alone, parts): (Vec<&String>, Vec<&String>) = options.iter().partition(|option| *option == ALONE);
    let wrong = parts.iter().find(|option| !PARTS.contains(&option.as_str()));
    ensure!(wrong.is_none(), "bench data measures {}, or {ALONE}, not {}", PARTS.join(", "), options.join(" "));
    let measures = |part: &str| parts.is_empty() || parts.iter().any(|option| *option == part);
    let folder = environment::target()?.join("bench-data");
    std::fs::create_dir_all(&folder).context("make a folder")?;
    let mut report = Report::default();
    let peers = if alone.is_empty() { Some(Peers::install(&folder)?) } else { None };
    if peers.is_none() {
        report.skip("the peers", "they were left out");
    }
    let peers = peers.as_ref();
    let bytes = tokens(1 << 30);
    let path = folder.join("tokens.bin");
    write(&path, &bytes)?;
    if let Some(peers) = peers.filter(|_| measures("memory") || measures("s3")) {
        peers.convert(&path)?;
    }
    if measures("memory") {
        warm::measure(peers, &path, &bytes, &mut report)?;
        first::measure(&folder, &path, &mut report)?;
    }
    if measures("s3") {
        remote::measure(&folder, peers, &bytes, &mut report)?;
    }
    if measures("disk") {
        cold::measure(peers, &path, &bytes, &mut report)?;
    }
    std::fs::remove_dir_all(&folder).context("remove the folder")?;
    Ok(report.finish())
}

/// Brings the machine into the same state before each contender. First it waits until earlier writes are on the disk, because the kernel
/// slows down programs that write while it is behind. Then it writes and removes a file, so that the machine has free memory. A virtual
/// machine may give freed memory back to its host ("free page reporting") and gets it again page by page: here a file of 1 GiB then took
/// 1.7 to 2.7 s instead of 0.25 s, in a program that only writes.
fn settle(folder: &Path) -> Result<()> {
    rustix::fs::sync();
    let path = folder.join("settle.bin");
    let chunk = vec![1; 8 << 20];
    let mut file = File::create(&path).context("make a file")?;
    (0..SETTLED_BYTES / chunk.len()).try_for_each(|_| file.write_all(&chunk)).context("write a file")?;
    std::fs::remove_file(&path).context("remove a file")
}

/// Returns tokens that don't repeat soon.
fn tokens(bytes: usize) -> Vec<u8> {
    let mut state = 1_u64;
    let mut word = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        state.to_le_bytes()
    };
    (0..bytes / 8).flat_map(|_| word()).collect()
}

fn write(path: &Path, bytes: &[u8]) -> Result<()> {
    let written = File::create(path).and_then(|mut file| file.write_all(bytes).and_then(|()| file.sync_all()));
    written.with_context(|| format!("write {}", path.display()))
}

/// Returns a loader of one rank.
fn loader(source: Source, shuffle: Shuffle) -> Result<Loader> {
    loader_of_rank(source, shuffle, (0, NonZeroU32::MIN))
}

fn loader_of_rank(source: Source, shuffle: Shuffle, (rank, world_size): (u32, NonZeroU32)) -> Result<Loader> {
    let nonzero = |number: usize| u32::try_from(number).ok().and_then(NonZeroU32::new).context("it isn't 0");
    let options = Options {
        sequence_length: nonzero(LENGTH)?,
        global_batch: nonzero(BATCH)?,
        seed: 1,
        shuffle,
        part: None,
        stages: Vec::new(),
        blend: Vec::new(),
        epochs: None,
        rank,
        world_size,
        threads: NonZeroU32::MIN,
        packs_documents: false,
    };
    Ok(Loader::new(vec![source], options)?)
}

fn open(path: &Path) -> Result<Source> {
    Ok(Source::open(path, Some(TokenType::Uint16))?)
}

/// Reads one epoch, as int64; returns its samples.
fn read_through(loader: &mut Loader) -> Result<u64> {
    let rows = usize::try_from(loader.rows().end - loader.rows().start)?;
    let mut inputs = vec![0; rows * LENGTH * 8];
    let batches = loader.samples_of(0) / BATCH as u64;
    for _ in 0..batches {
        loader.fill(&mut Room { width: Width::Int64, inputs: &mut inputs, labels: &mut [], positions: &mut [] })?;
        std::hint::black_box(&inputs);
    }
    Ok(batches * rows as u64)
}

/// Seconds that this process's threads have worked.
fn processor_seconds() -> f64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}
