//! Memory.

use crate::collectors::metric::metric;
use crate::collectors::rates::float;
use crate::collectors::source::Sample;

/// Returns what /proc/meminfo and /proc/vmstat say.
pub(super) fn samples(meminfo: &str, vmstat: &str) -> Vec<Sample> {
    let bytes = |key: &str| {
        let line = meminfo.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(':'))?;
        let kibibytes: u64 = line.trim().trim_end_matches("kB").trim_end().parse().ok()?;
        Some(kibibytes.saturating_mul(1_024))
    };
    let gauges = [
        ("host.memory_bytes", bytes("MemTotal")),
        ("host.memory_available_bytes", bytes("MemAvailable")),
        ("host.shared_memory_bytes", bytes("Shmem")),
        ("host.dirty_bytes", bytes("Dirty")),
        ("host.swap_used_bytes", bytes("SwapTotal").zip(bytes("SwapFree")).map(|(all, free)| all.saturating_sub(free))),
    ];
    let gauge = |(name, bytes): (&str, Option<u64>)| Some(Sample::gauge(metric(name), float(bytes?)));
    let counters = [("host.major_faults_per_second", "pgmajfault "), ("host.oom_kills_total", "oom_kill ")];
    let counter = |(name, key): (&str, &str)| {
        let count = vmstat.lines().find_map(|line| line.strip_prefix(key)?.trim().parse().ok())?;
        Some(Sample::counter(metric(name), count, 1.0))
    };
    gauges.into_iter().filter_map(gauge).chain(counters.into_iter().filter_map(counter)).collect()
}
