//! `bench data`: batches of tokens from a file that is in memory, beside a plain loop over the same bytes (the machine's limit)
//! and numpy, in interleaved rounds; and what the first batch and a thousand million samples take.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Write as _;
use std::num::NonZeroU32;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use gangline_data::order::{Order, Shuffle};
use gangline_data::{Loader, Options, Room, Source, TokenType, Width};

use xtask::environment::{self, Environment};

use crate::report::{Bar, Report};

/// Bytes of the file.
const BYTES: usize = 1 << 30;
const LENGTH: usize = 2_048;
const BATCH: usize = 32;
/// Rounds, of which the median counts.
const ROUNDS: usize = 5;
/// How long each is measured in each round.
const ROUND_TIME: Duration = Duration::from_millis(700);
/// Of the limit: what the issue asks for.
const SHARE_MIN: f64 = 0.8;
/// Samples of the set that is only opened, in a file without blocks.
const MANY_SAMPLES: u64 = 1_000_000_000;

/// What a batch holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Kind {
    /// Inputs as int64.
    Inputs,
    /// Inputs and labels as int64.
    Labels,
    /// Inputs as they are stored.
    Stored,
}

impl Kind {
    const ALL: [Kind; 3] = [Kind::Inputs, Kind::Labels, Kind::Stored];

    fn name(self) -> &'static str {
        match self {
            Kind::Inputs => "inputs as int64",
            Kind::Labels => "inputs and labels as int64",
            Kind::Stored => "inputs as they are stored",
        }
    }
}

/// Measures and prints.
pub(super) fn run(options: &[String]) -> Result<bool> {
    ensure!(options.is_empty(), "bench data takes no options, not {}", options.join(" "));
    let folder = environment::target()?.join("bench-data");
    std::fs::create_dir_all(&folder).context("make a folder")?;
    let path = folder.join("tokens.bin");
    let bytes = tokens(&path)?;
    let mut report = Report::default();
    report.section(
        "Warm, one thread, batches of 32 x 2,048 from 1 GiB of uint16, any order (measured, medians of 5 rounds)",
    );
    warm(&path, &bytes, &mut report)?;
    report.section("To the first batch (measured)");
    first(&path, &mut report)?;
    many(&folder, &mut report)?;
    std::fs::remove_dir_all(&folder).context("remove the folder")?;
    Ok(report.finish())
}

/// Writes tokens that don't repeat soon; returns them too.
fn tokens(path: &Path) -> Result<Vec<u8>> {
    let mut state = 1_u64;
    let mut word = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        state.to_le_bytes()
    };
    let bytes: Vec<u8> = (0..BYTES / 8).flat_map(|_| word()).collect();
    File::create(path).and_then(|mut file| file.write_all(&bytes)).context("write the tokens")?;
    Ok(bytes)
}

fn warm(path: &Path, bytes: &[u8], report: &mut Report) -> Result<()> {
    let mut ours: BTreeMap<Kind, Vec<f64>> = BTreeMap::new();
    let mut limit: BTreeMap<Kind, Vec<f64>> = BTreeMap::new();
    let mut peers: BTreeMap<String, Vec<f64>> = BTreeMap::new();
    let python = Environment::open(&environment::target()?, "data-venv")?;
    python.install("packages", &["numpy>=2,<3"])?;
    let mut loader = loader(path, Shuffle::Global)?;
    for _ in 0..ROUNDS {
        for kind in Kind::ALL {
            limit.entry(kind).or_default().push(plain_loop(bytes, kind));
            ours.entry(kind).or_default().push(filled(&mut loader, kind)?);
        }
        for (name, rate) in peer_round(&python, path)? {
            peers.entry(name).or_default().push(rate);
        }
    }
    for kind in Kind::ALL {
        let (ours, limit) = (median(&mut ours, &kind), median(&mut limit, &kind));
        report.figure(&format!("{}: loader", kind.name()), ours, "/s", Bar::None);
        report.figure(&format!("{}: a plain loop over the bytes in memory", kind.name()), limit, "/s", Bar::None);
        report.figure(&format!("{}: share of the loop", kind.name()), ours / limit, "", Bar::AtLeast(SHARE_MIN));
    }
    let names: Vec<String> = peers.keys().cloned().collect();
    for name in names {
        report.peer(&format!("{name}: {:.0} samples/s, in the same rounds", median(&mut peers, &name)));
    }
    Ok(())
}

fn loader(path: &Path, shuffle: Shuffle) -> Result<Loader> {
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
        rank: 0,
        world_size: NonZeroU32::MIN,
        threads: NonZeroU32::MIN,
        packs_documents: false,
    };
    Ok(Loader::new(vec![Source::open(path, Some(TokenType::Uint16))?], options)?)
}

/// Samples a second of the loader.
fn filled(loader: &mut Loader, kind: Kind) -> Result<f64> {
    let width = if kind == Kind::Stored { Width::Stored } else { Width::Int64 };
    let bytes = BATCH * LENGTH * TokenType::Uint16.bytes_as(width);
    let mut inputs = vec![0; bytes];
    let mut labels = vec![0; if kind == Kind::Labels { bytes } else { 0 }];
    let mut outcome = Ok(());
    let rate = rate(|| {
        let filled = loader.fill(&mut Room { width, inputs: &mut inputs, labels: &mut labels, positions: &mut [] });
        outcome = outcome.as_ref().map_err(|_| ()).and(filled.map_err(|_| ()));
        std::hint::black_box(&inputs);
    });
    ensure!(outcome.is_ok(), "the loader failed");
    Ok(rate)
}

/// Samples a second of the simplest loop that makes the same batches: each row is copied or widened from where it lies.
fn plain_loop(bytes: &[u8], kind: Kind) -> f64 {
    let samples = (bytes.len() / 2 - 1) / LENGTH;
    let order = Order::new(samples as u64, Shuffle::Global, 1, 0);
    let mut at = 0;
    let (mut inputs, mut labels) = (vec![0_i64; BATCH * LENGTH], vec![0_i64; BATCH * LENGTH]);
    let mut stored = vec![0_u8; BATCH * LENGTH * 2];
    rate(|| {
        for row in 0..BATCH {
            let start = usize::try_from(order.sample(at)).expect("it lies in memory") * LENGTH * 2;
            at = (at + 1) % samples as u64;
            let place = row * LENGTH..(row + 1) * LENGTH;
            if kind == Kind::Stored {
                stored[place.start * 2..place.end * 2].copy_from_slice(&bytes[start..start + LENGTH * 2]);
                continue;
            }
            widen(&bytes[start..start + LENGTH * 2], &mut inputs[place.clone()]);
            if kind == Kind::Labels {
                widen(&bytes[start + 2..start + 2 + LENGTH * 2], &mut labels[place]);
            }
        }
        std::hint::black_box((&inputs, &labels, &stored));
    })
}

fn widen(from: &[u8], to: &mut [i64]) {
    for (to, from) in to.iter_mut().zip(from.as_chunks().0) {
        *to = i64::from(u16::from_le_bytes(*from));
    }
}

/// Samples a second, where each call makes a batch.
fn rate(mut batch: impl FnMut()) -> f64 {
    batch();
    let (began, mut batches) = (Instant::now(), 0_u32);
    while began.elapsed() < ROUND_TIME {
        batch();
        batches += 1;
    }
    f64::from(batches) * BATCH as f64 / began.elapsed().as_secs_f64()
}

fn peer_round(python: &Environment, path: &Path) -> Result<BTreeMap<String, f64>> {
    // The environment of the package's tests has it, if `cargo xtask python` was run.
    let tests = environment::target()?.join("python-venv/bin/python");
    let mut command = if tests.exists() { std::process::Command::new(tests) } else { python.python() };
    let output = command.args(["-c", include_str!("data.py")]).arg(path).output().context("run numpy")?;
    ensure!(output.status.success(), "numpy failed: {}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).context("read what numpy's script printed")
}

fn median<K: Ord>(rounds: &mut BTreeMap<K, Vec<f64>>, of: &K) -> f64 {
    crate::report::median(rounds.remove(of).expect("each was measured"))
}

fn first(path: &Path, report: &mut Report) -> Result<()> {
    let began = Instant::now();
    let mut loader = loader(path, Shuffle::default())?;
    let mut inputs = vec![0; BATCH * LENGTH * 8];
    loader.fill(&mut Room { width: Width::Int64, inputs: &mut inputs, labels: &mut [], positions: &mut [] })?;
    report.time("open, and fill the first batch of 1 GiB in memory", began.elapsed(), Some(Duration::from_millis(200)));
    Ok(())
}

/// A set of a thousand million samples, in a file that has no blocks: only what opening it and finding a place costs.
fn many(folder: &Path, report: &mut Report) -> Result<()> {
    let path = folder.join("many.bin");
    let file = File::create(&path).context("make a file")?;
    if let Err(error) = file.set_len((MANY_SAMPLES * LENGTH as u64 + 1) * 2) {
        report.skip("1e9 samples", &format!("this file system has no such large files: {error}"));
        return Ok(());
    }
    let before = resident()?;
    let began = Instant::now();
    let mut loader = loader(&path, Shuffle::default())?;
    let made = began.elapsed();
    loader.skip(MANY_SAMPLES / BATCH as u64 / 2);
    let began = Instant::now();
    let mut inputs = vec![0; BATCH * LENGTH * 2];
    loader.fill(&mut Room { width: Width::Stored, inputs: &mut inputs, labels: &mut [], positions: &mut [] })?;
    report.time("construct a loader of 1e9 samples (4.1 TB without blocks)", made, Some(Duration::from_millis(50)));
    report.time("fill its batch in the middle", began.elapsed(), None);
    let grown = (resident()?.saturating_sub(before)) as f64 / 1e6;
    report.figure("memory that both took", grown, "MB", Bar::Below(20.0));
    Ok(())
}

/// Resident bytes of this process.
fn resident() -> Result<u64> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).context("the kernel says no VmRSS")?;
    Ok(line.trim().trim_end_matches(" kB").parse::<u64>()? * 1_024)
}
