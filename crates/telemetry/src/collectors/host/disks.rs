//! Disks.

use super::PARTS_MAX;
use crate::collectors::metric::metric;
use crate::collectors::source::Sample;

/// Sectors of /proc/diskstats have this size on every disk.
const SECTOR_BYTES: f64 = 512.0;

/// Returns what /proc/diskstats says of whole disks: `major minor name reads merged sectors ms writes merged sectors ms
/// in-flight busy-ms ...`.
pub(super) fn samples(diskstats: &str, is_whole: &dyn Fn(&str) -> bool) -> Vec<Sample> {
    let disks = diskstats.lines().filter_map(|line| {
        let fields: Vec<&str> = line.split_ascii_whitespace().collect();
        let name = *fields.get(2)?;
        let field = |index: usize| fields.get(index)?.parse::<u64>().ok();
        let [reads, sectors_read, writes, sectors_written, busy_ms] =
            [field(3)?, field(5)?, field(7)?, field(9)?, field(12)?];
        is_whole(name).then_some(())?;
        let sample = |metric_name: &str, count: u64, scale: f64| {
            Sample::counter(metric(metric_name), count, scale).of_part(name)
        };
        Some([
            sample("host.disk_reads_per_second", reads, 1.0),
            sample("host.disk_read_bytes_per_second", sectors_read, SECTOR_BYTES),
            sample("host.disk_writes_per_second", writes, 1.0),
            sample("host.disk_write_bytes_per_second", sectors_written, SECTOR_BYTES),
            sample("host.disk_busy_ratio", busy_ms, 1e-3),
        ])
    });
    disks.take(PARTS_MAX).flatten().collect()
}
