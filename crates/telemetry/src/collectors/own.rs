//! What this program itself costs.

use std::path::PathBuf;

use super::host::TICKS_PER_SECOND;
use super::metric::metric;
use super::rates::float;
use super::source::{Sample, Source, SourceError};

/// This process.
#[derive(Clone, Copy, Debug, Default)]
pub struct OwnCost {}

impl Source for OwnCost {
    fn name(&self) -> &'static str {
        "agent"
    }

    fn read(&mut self) -> Result<Vec<Sample>, SourceError> {
        let read = |name: &str| {
            let path = PathBuf::from(format!("/proc/self/{name}"));
            std::fs::read_to_string(&path).map_err(|source| SourceError::Unreadable { path, source })
        };
        Ok(samples(&read("stat")?, &read("status")?))
    }
}

/// Returns CPU time with that of children that have ended (the checks), and memory.
fn samples(stat: &str, status: &str) -> Vec<Sample> {
    // `pid (name) state ...`; a name may have anything in it.
    let fields = stat.rsplit_once(')').map_or("", |(_, fields)| fields);
    let ticks: Vec<u64> =
        fields.split_ascii_whitespace().skip(11).take(4).map_while(|time| time.parse().ok()).collect();
    let sum = ticks.iter().fold(0, |sum: u64, ticks| sum.saturating_add(*ticks));
    let cpu =
        (ticks.len() == 4).then(|| Sample::counter(metric("agent.cpu_ratio"), sum, 1.0 / float(TICKS_PER_SECOND)));
    let resident = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kibibytes = resident.and_then(|size| size.trim().trim_end_matches("kB").trim_end().parse::<u64>().ok());
    let memory = kibibytes.map(|size| Sample::gauge(metric("agent.memory_bytes"), float(size.saturating_mul(1_024))));
    cpu.into_iter().chain(memory).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::collectors::Value;

    #[test]
    fn times_and_memory_are_read_whatever_the_name_is() {
        let stat = "42 (a) b) S 1 2 3 4 5 6 7 8 9 10 100 20 3 1 20 0 1";
        let found: Vec<Value> = samples(stat, "Name:\tx\nVmRSS:\t   2048 kB\n").iter().map(|s| s.value).collect();
        assert_eq!(found, [Value::Counter { count: 124, scale: 0.01 }, Value::Gauge(2_097_152.0)]);
        assert_eq!(samples("", ""), []);
        assert_eq!(OwnCost::default().read().expect("this process").len(), 2);
    }
}
