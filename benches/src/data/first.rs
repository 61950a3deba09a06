//! To the first batch, and what a set of a thousand million samples takes before that.

use std::fs::File;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use gangline_data::order::Shuffle;
use gangline_data::{Room, Width};

use super::{BATCH, LENGTH, loader, open};
use crate::report::{Bar, Report};

/// Samples of the set that is only opened, in a file without blocks.
const MANY_SAMPLES: u64 = 1_000_000_000;

pub(super) fn measure(folder: &Path, path: &Path, report: &mut Report) -> Result<()> {
    report.section("To the first batch (measured)");
    let began = Instant::now();
    let mut loader = loader(open(path)?, Shuffle::default())?;
    let mut inputs = vec![0; BATCH * LENGTH * 8];
    loader.fill(&mut Room { width: Width::Int64, inputs: &mut inputs, labels: &mut [], positions: &mut [] })?;
    report.time("open, and fill the first batch of 1 GiB in memory", began.elapsed(), Some(Duration::from_millis(200)));
    many(folder, report)
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
    let mut loader = loader(open(&path)?, Shuffle::default())?;
    let made = began.elapsed();
    loader.skip(MANY_SAMPLES / BATCH as u64 / 2);
    let began = Instant::now();
    let mut inputs = vec![0; BATCH * LENGTH * 2];
    loader.fill(&mut Room { width: Width::Stored, inputs: &mut inputs, labels: &mut [], positions: &mut [] })?;
    report.time("construct a loader of 1e9 samples (4.1 TB without blocks)", made, Some(Duration::from_millis(50)));
    report.time("fill its batch in the middle", began.elapsed(), None);
    let grown = (resident()?.saturating_sub(before)) as f64 / 1e6;
    report.figure("memory that both took", grown, "MB", Bar::Below(20.0));
    drop(loader);
    std::fs::remove_file(&path).context("remove a file")
}

/// Resident bytes of this process.
fn resident() -> Result<u64> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).context("the kernel says no VmRSS")?;
    Ok(line.trim().trim_end_matches(" kB").parse::<u64>()? * 1_024)
}
