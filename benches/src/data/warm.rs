//! From memory: the loader beside a plain loop over the same bytes, which is the machine's limit, and beside the peers.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use gangline_data::order::{Order, Shuffle};
use gangline_data::{Loader, Room, TokenType, Width};

use super::peers::Peers;
use super::{BATCH, LENGTH, ROUNDS, SAMPLE_BYTES, SHARE_MIN, loader, open, processor_seconds, read_through};
use crate::report::{Bar, Report, median};

/// How long each is measured in each round.
const ROUND_TIME: Duration = Duration::from_millis(700);
/// Processor time for one GiB of tokens: what the issue asks for.
const SECONDS_OF_A_GIB_MAX: f64 = 0.35;

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

pub(super) fn measure(peers: Option<&Peers>, path: &Path, bytes: &[u8], report: &mut Report) -> Result<()> {
    report.section(
        "Warm, one thread, batches of 32 x 2,048 from 1 GiB of uint16, any order (measured, medians of 5 rounds)",
    );
    let mut ours: BTreeMap<Kind, Vec<f64>> = BTreeMap::new();
    let mut limit: BTreeMap<Kind, Vec<f64>> = BTreeMap::new();
    let mut theirs: BTreeMap<String, Vec<f64>> = BTreeMap::new();
    let mut seconds = Vec::new();
    let mut loader = loader(open(path)?, Shuffle::Global)?;
    for _ in 0..ROUNDS {
        for kind in Kind::ALL {
            limit.entry(kind).or_default().push(plain_loop(bytes, kind));
            ours.entry(kind).or_default().push(filled(&mut loader, kind)?);
        }
        let before = processor_seconds();
        read_through(&mut loader)?;
        seconds.push(processor_seconds() - before);
        for (name, rate) in peers.map(|peers| peers.warm(path)).transpose()?.into_iter().flatten() {
            theirs.entry(name).or_default().push(rate);
        }
    }
    for (kind, ours) in ours {
        let (ours, limit) = (median(ours), median(limit.remove(&kind).unwrap_or_default()));
        report.figure(&format!("{}: loader", kind.name()), ours, "/s", Bar::None);
        report.figure(&format!("{}: a plain loop over the bytes in memory", kind.name()), limit, "/s", Bar::None);
        report.figure(&format!("{}: share of the loop", kind.name()), ours / limit, "", Bar::AtLeast(SHARE_MIN));
    }
    let bar = Bar::AtMost(SECONDS_OF_A_GIB_MAX);
    report.figure("processor time for 1 GiB, inputs as int64", median(seconds), "s", bar);
    for (name, rates) in theirs {
        report.peer(&format!("{name}: {:.0} samples/s, in the same rounds", median(rates)));
    }
    Ok(())
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
    let mut stored = vec![0_u8; BATCH * SAMPLE_BYTES];
    rate(|| {
        for row in 0..BATCH {
            let start = usize::try_from(order.sample(at)).expect("it lies in memory") * SAMPLE_BYTES;
            at = (at + 1) % samples as u64;
            let place = row * LENGTH..(row + 1) * LENGTH;
            if kind == Kind::Stored {
                stored[place.start * 2..place.end * 2].copy_from_slice(&bytes[start..start + SAMPLE_BYTES]);
                continue;
            }
            widen(&bytes[start..start + SAMPLE_BYTES], &mut inputs[place.clone()]);
            if kind == Kind::Labels {
                widen(&bytes[start + 2..start + 2 + SAMPLE_BYTES], &mut labels[place]);
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
