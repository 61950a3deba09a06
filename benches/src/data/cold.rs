//! From a disk whose bytes aren't in memory: one epoch of the default order beside fio's sequential reads of the same file.

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use anyhow::{Context as _, Result, ensure};
use gangline_data::order::Shuffle;
use gangline_data::{Room, Width};
use rustix::fs::{Advice, fadvise};

use super::peers::Peers;
use super::{SAMPLE_BYTES, SHARE_MIN, loader, open, processor_seconds, read_through};
use crate::report::{Bar, Report, median};

const ROUNDS: usize = 3;
const MEGABYTE: f64 = 1e6;

pub(super) fn measure(peers: Option<&Peers>, part: &Path, bytes: &[u8], report: &mut Report) -> Result<()> {
    let Some(times) = times_that_exceed_memory(part, bytes.len())? else {
        report.skip("cold disk", "the disk has no room for two files that are larger than memory");
        return Ok(());
    };
    let gib = (times * bytes.len()) >> 30;
    report.section(&format!(
        "Cold disk, one thread, an epoch of {gib} GiB of uint16, which is more than memory, into memory that is full of another \
         file (measured, medians of 3 rounds)"
    ));
    let files = Files { path: part.with_file_name("cold.bin"), other: part.with_file_name("other.bin") };
    for path in [&files.path, &files.other] {
        let mut file = File::create(path).context("make a file")?;
        // The same GiB again and again: disks don't look for that.
        (0..times)
            .try_for_each(|_| file.write_all(bytes))
            .and_then(|()| file.sync_all())
            .context("write the tokens")?;
    }
    let (mut blocks, mut global, mut disk, mut numpy) = (vec![], vec![], vec![], vec![]);
    let (mut seconds, mut from_disk) = (vec![], vec![]);
    for _ in 0..ROUNDS {
        disk.extend(fio(&files.path)?);
        files.make_cold()?;
        let (before, bytes_before) = (processor_seconds(), bytes_from_disk()?);
        blocks.push(epoch(&files.path, Shuffle::default())?);
        seconds.push((processor_seconds() - before) / gib as f64);
        from_disk.push((bytes_from_disk()? - bytes_before) as f64 / (gib << 30) as f64);
        files.make_cold()?;
        global.push(part_of_epoch(&files.path)?);
        files.make_cold()?;
        numpy.extend(peers.map(|peers| peers.cold(&files.path)).transpose()?);
    }
    let blocks = median(blocks);
    report.figure("default order (blocks, then a window of them)", blocks, "MB/s", Bar::None);
    if disk.is_empty() {
        report.skip("the disk's limit", "fio isn't installed: apt-get install fio");
    } else {
        let disk = median(disk);
        report.figure("fio, sequential reads of 1 MiB past the page cache, 8 at a time", disk, "MB/s", Bar::None);
        report.figure("default order: share of fio", blocks / disk, "", Bar::AtLeast(SHARE_MIN));
    }
    report.figure("bytes that came from the disk for it, of those it has", median(from_disk), "", Bar::None);
    report.figure("processor time for 1 GiB", median(seconds), "s", Bar::None);
    report.figure("shuffle=\"global\": samples of 4 KiB anywhere in the file", median(global), "MB/s", Bar::None);
    if !numpy.is_empty() {
        let rate = median(numpy) * SAMPLE_BYTES as f64 / MEGABYTE;
        report.peer(&format!("numpy memmap, a loop over samples in any order: {rate:.0} MB/s, in the same rounds"));
    }
    [files.path, files.other].iter().try_for_each(std::fs::remove_file).context("remove the files")
}

/// The set, and another file of its size.
struct Files {
    path: PathBuf,
    other: PathBuf,
}

impl Files {
    /// Drops the set from the page cache and fills memory with the other file, as a node's memory is full of what it read before. With
    /// free memory the bench would measure how fast the host of a virtual machine gives memory back.
    fn make_cold(&self) -> Result<()> {
        let file = File::open(&self.path).context("open the file")?;
        fadvise(&file, 0, None, Advice::DontNeed).context("have the kernel forget the file")?;
        let mut other = File::open(&self.other).context("open the other file")?;
        let mut chunk = vec![0; 8 << 20];
        while other.read(&mut chunk).context("read the other file")? > 0 {}
        Ok(())
    }
}

/// How often so many bytes make more than memory; none if the disk has no room for that.
fn times_that_exceed_memory(part: &Path, bytes: usize) -> Result<Option<usize>> {
    let memory = rustix::system::sysinfo();
    let memory = u64::from(memory.mem_unit) * memory.totalram;
    let times = memory / bytes as u64 + 1;
    let disk = rustix::fs::statvfs(part).context("look at the disk")?;
    let has_room = disk.f_bavail * disk.f_frsize > 2 * times * bytes as u64 + bytes as u64;
    Ok(has_room.then_some(usize::try_from(times)?))
}

/// Bytes that the disk has read for this process.
fn bytes_from_disk() -> Result<u64> {
    let counts = std::fs::read_to_string("/proc/self/io").context("read what this process has read")?;
    let read = counts.lines().find_map(|line| line.strip_prefix("read_bytes: ")?.parse().ok());
    read.context("the kernel doesn't say what this process has read")
}

/// MB/s of an epoch.
fn epoch(path: &Path, shuffle: Shuffle) -> Result<f64> {
    let began = Instant::now();
    let mut loader = loader(open(path)?, shuffle)?;
    let samples = read_through(&mut loader)?;
    Ok(rate(samples, began))
}

/// MB/s of samples from anywhere, for some seconds' worth of them.
fn part_of_epoch(path: &Path) -> Result<f64> {
    let began = Instant::now();
    let mut loader = loader(open(path)?, Shuffle::Global)?;
    let mut inputs = vec![0; super::BATCH * super::LENGTH * 8];
    let mut samples = 0;
    while began.elapsed().as_secs() < 3 {
        loader.fill(&mut Room { width: Width::Int64, inputs: &mut inputs, labels: &mut [], positions: &mut [] })?;
        samples += super::BATCH as u64;
    }
    Ok(rate(samples, began))
}

fn rate(samples: u64, began: Instant) -> f64 {
    samples as f64 * SAMPLE_BYTES as f64 / began.elapsed().as_secs_f64() / MEGABYTE
}

/// MB/s of the disk by fio; none if it isn't installed.
fn fio(path: &Path) -> Result<Option<f64>> {
    let mut command = Command::new("fio");
    command.args(["--name=limit", "--readonly", "--rw=read", "--bs=1M", "--iodepth=8", "--direct=1"]);
    command.args(["--ioengine=libaio", "--time_based", "--runtime=4", "--output-format=json"]);
    let output = match command.arg(format!("--filename={}", path.display())).output() {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        output => output.context("start fio")?,
    };
    ensure!(output.status.success(), "fio failed: {}", String::from_utf8_lossy(&output.stderr));
    let said: serde_json::Value = serde_json::from_slice(&output.stdout).context("read what fio printed")?;
    let bytes = said["jobs"][0]["read"]["bw_bytes"].as_f64().context("fio says no bytes a second")?;
    Ok(Some(bytes / MEGABYTE))
}
