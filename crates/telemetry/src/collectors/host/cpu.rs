//! CPU time, load and pressure.

use super::TICKS_PER_SECOND;
use super::files::Files;
use crate::collectors::metric::metric;
use crate::collectors::rates::float;
use crate::collectors::source::Sample;

/// Returns what /proc/stat says. Its times are in ticks of all cores together.
pub(super) fn samples(stat: &str) -> Vec<Sample> {
    let cores = stat.lines().filter(|line| is_core(line)).count();
    let mut samples = vec![Sample::gauge(metric("host.cpus"), float(u64::try_from(cores).unwrap_or_default()))];
    if let Some(times) = stat.lines().find_map(|line| line.strip_prefix("cpu ")) {
        samples.extend(times_of(times, TICKS_PER_SECOND * u64::try_from(cores.max(1)).unwrap_or(1)));
    }
    let line = |name: &str| stat.lines().find_map(|line| line.strip_prefix(name)?.trim().parse::<u64>().ok());
    let counters = [("ctxt ", "host.context_switches_per_second"), ("processes ", "host.processes_started_per_second")];
    for (key, name) in counters {
        samples.extend(line(key).map(|count| Sample::counter(metric(name), count, 1.0)));
    }
    for (key, name) in [("procs_running ", "host.processes_running"), ("procs_blocked ", "host.processes_blocked")] {
        samples.extend(line(key).map(|count| Sample::gauge(metric(name), float(count))));
    }
    samples
}

fn is_core(line: &str) -> bool {
    line.strip_prefix("cpu").is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit()))
}

/// Returns the parts of CPU time: user, nice, system, idle, iowait, irq, softirq, steal; guests are in user.
fn times_of(times: &str, ticks_per_second: u64) -> Vec<Sample> {
    let times: Vec<u64> = times.split_ascii_whitespace().map_while(|time| time.parse().ok()).collect();
    let [user, nice, system, _, iowait, irq, softirq, steal, ..] = times[..] else { return Vec::new() };
    let scale = 1.0 / float(ticks_per_second);
    let sum = |parts: &[u64]| parts.iter().fold(0, |sum: u64, part| sum.saturating_add(*part));
    let sample = |name: &str, ticks: u64| Sample::counter(metric(name), ticks, scale);
    vec![
        sample("host.cpu_busy_ratio", sum(&[user, nice, system, irq, softirq, steal])),
        sample("host.cpu_user_ratio", sum(&[user, nice])),
        sample("host.cpu_system_ratio", sum(&[system, irq, softirq])),
        sample("host.cpu_iowait_ratio", iowait),
        sample("host.cpu_steal_ratio", steal),
    ]
}

/// Returns the load of the last minute.
pub(super) fn load(loadavg: &str) -> Option<Sample> {
    let load = loadavg.split_ascii_whitespace().next()?.parse().ok()?;
    Some(Sample::gauge(metric("host.load_1m"), load))
}

/// Returns pressure stall information; nothing where the kernel is built without it.
pub(super) fn pressure(files: &Files) -> Vec<Sample> {
    let metrics = [
        ("cpu", "some", "host.cpu_pressure_ratio"),
        ("memory", "some", "host.memory_pressure_ratio"),
        ("memory", "full", "host.memory_pressure_full_ratio"),
        ("io", "some", "host.io_pressure_ratio"),
        ("io", "full", "host.io_pressure_full_ratio"),
    ];
    let sample = |(of, whose, name): (&str, &str, &str)| {
        let micros = stalled(&files.proc(&format!("pressure/{of}")), whose)?;
        Some(Sample::counter(metric(name), micros, 1e-6))
    };
    metrics.into_iter().filter_map(sample).collect()
}

/// Returns the microseconds in `some avg10=0.00 avg60=0.00 avg300=0.00 total=0`.
fn stalled(text: &str, whose: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(whose))?;
    let (_, total) = line.split_once(" total=")?;
    total.trim().parse().ok()
}
