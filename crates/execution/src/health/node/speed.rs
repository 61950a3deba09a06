//! Measures how fast this node's disk and memory take in a checkpoint, with the store itself, and compares
//! that with the goals: durable within 10 s, and at most 2 % of the time with a checkpoint every 30 s.

use std::collections::BTreeSet;
use std::num::NonZeroU32;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use gangline_base::{Bytes, with_causes};
use gangline_storage::bench::{BenchError, Measured, Sample, measure};
use gangline_storage::forecast::{DURABLE_SECONDS, Fleet, Forecast, OVERHEADS, forecast};

use super::Expectations;
use crate::health::{Finding, Reason, Verdict};

/// Bytes in a save, and number of saves.
const SAMPLE_BYTES: Bytes = Bytes(256 << 20);
const ROUNDS: u32 = 3;
/// Maximum number of disks that are measured.
const DISKS_MAX: usize = 4;
/// Decimal, as disk capacities are specified.
const GIGA: f64 = 1e9;

pub(super) fn check(expectations: &Expectations) -> Vec<Finding> {
    let mut disks = BTreeSet::new();
    // Two folders on one disk are measured once; a folder that can't be examined fails with its reason when
    // it is measured.
    let is_new = |folder: &&PathBuf| folder.metadata().map_or(true, |metadata| disks.insert(metadata.dev()));
    let folders: Vec<&PathBuf> = expectations.folders.iter().filter(is_new).take(DISKS_MAX).collect();
    if folders.is_empty() {
        return vec![Finding::not_here("no folder was named")];
    }
    folders.into_iter().flat_map(|folder| of(folder, expectations)).collect()
}

fn of(folder: &Path, expectations: &Expectations) -> Vec<Finding> {
    let subject = folder.display().to_string();
    let gpus = expectations.accelerators.as_ref().and_then(|accelerators| NonZeroU32::new(accelerators.count));
    let threads = gpus.map_or(u32::MAX, NonZeroU32::get);
    match measure(folder, &Sample { bytes: SAMPLE_BYTES, rounds: ROUNDS, threads }) {
        Ok(measured) => judge(&subject, &measured, expectations.share()),
        Err(error @ BenchError::Damaged(_)) => {
            let reason = Reason {
                expected: "what was written",
                why: "a checkpoint from this disk would be refused, or wrong",
                todo: "replace the disk or the memory; check the file system",
            };
            vec![Finding::fine(&subject, error.to_string()).wrong(Verdict::Failed, reason)]
        }
        // A full disk, or one that can't be written to, is reported by another check.
        Err(error) => vec![Finding::unknown(&subject, with_causes(&error), "see what \"space\" says of it")],
    }
}

fn judge(subject: &str, measured: &Measured, share: Bytes) -> Vec<Finding> {
    let node = Fleet { gpus: NonZeroU32::MIN, gpus_per_node: NonZeroU32::MIN };
    let (interval, overhead) = OVERHEADS[0];
    let forecast = forecast(share, node, measured.rates, Duration::from_secs_f64(interval));
    vec![disk(subject, measured, &forecast), copy(measured, &forecast, overhead), read(subject, measured, &forecast)]
}

fn rate(bytes_per_second: f64) -> String {
    format!("{:.2} GB/s", bytes_per_second / GIGA)
}

fn disk(subject: &str, measured: &Measured, forecast: &Forecast) -> Finding {
    let write = measured.rates.write;
    let reason = Reason {
        expected: &format!("{} of a checkpoint durable in {DURABLE_SECONDS} s", forecast.bytes_per_node),
        why: "what was trained since the last durable checkpoint is lost at a fault, and the next one can't begin before",
        todo: "save to a faster or a local disk, or to more of them; Gangline brings checkpoints to an archive in the background",
    };
    Finding::fine(format!("write {subject}"), format!("{} past the page cache, with fsync", rate(write)))
        .estimate(format!(
            "a share of {} is durable after {:.1} s, so saves can't be closer than that",
            forecast.bytes_per_node, forecast.durable_seconds
        ))
        .figure("write_bytes_per_second", write)
        .judged(forecast.durable_seconds > DURABLE_SECONDS, Verdict::Warning, reason)
}

fn copy(measured: &Measured, forecast: &Forecast, overhead_max: f64) -> Finding {
    let copy = measured.rates.copy;
    let overhead = forecast.blocking_seconds / forecast.interval_seconds;
    let reason = Reason {
        expected: &format!("at most {:.0} % of {:.0} s", overhead_max * 100.0, forecast.interval_seconds),
        why: "ranks stand still while their state is copied to this memory",
        todo: "save less often; see that memory is in all channels and local to the GPUs (numactl -H)",
    };
    Finding::fine("copy", format!("{} to host memory, {} thread(s)", rate(copy), measured.threads))
        .estimate(format!(
            "a save blocks for {:.2} s: {:.1} % at one every {:.0} s",
            forecast.blocking_seconds,
            overhead * 100.0,
            forecast.interval_seconds
        ))
        .figure("copy_bytes_per_second", copy)
        .judged(overhead > overhead_max, Verdict::Warning, reason)
}

fn read(subject: &str, measured: &Measured, forecast: &Forecast) -> Finding {
    let read = measured.rates.read;
    Finding::fine(format!("read {subject}"), format!("{}, every byte checked", rate(read)))
        .estimate(format!("a restart reads its {} in {:.1} s", forecast.bytes_per_node, forecast.restore_seconds))
        .figure("read_bytes_per_second", read)
}

#[cfg(test)]
mod tests {
    use gangline_storage::forecast::Rates;

    use super::*;

    fn judged(write: f64, copy: f64) -> Vec<Verdict> {
        let rates = Rates { copy, write, read: 1e9 };
        let measured = Measured { sample: Bytes(1), save_copy: 1e9, first_save_copy: 1e9, threads: 2, rates };
        judge("/data", &measured, Bytes(10_000_000_000)).iter().map(|finding| finding.verdict).collect()
    }

    #[test]
    fn ten_gigabytes_need_a_gigabyte_a_second_and_sixteen_of_memory() {
        let (fine, warning) = (Verdict::Fine, Verdict::Warning);
        assert_eq!(judged(2e9, 20e9), [fine, fine, fine]);
        assert_eq!(judged(0.9e9, 20e9), [warning, fine, fine]);
        assert_eq!(judged(2e9, 10e9), [fine, warning, fine]);
    }
}
