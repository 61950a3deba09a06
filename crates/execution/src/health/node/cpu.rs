//! Checks the CPUs: frequency governors, and the load from other processes.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::thread;
use std::time::Duration;

use super::Expectations;
use crate::health::{Finding, Reason, Verdict};

/// Folder of the CPUs' governors.
const CPUS: &str = "/sys/devices/system/cpu";
/// Maximum number of CPUs that are examined.
const CPUS_MAX: usize = 4_096;
/// Governors that keep the frequency low; with drivers that choose by themselves, `powersave` doesn't.
const SLOW: [&str; 2] = ["powersave", "conservative"];
const SELF_CHOOSING: [&str; 2] = ["intel_pstate", "amd-pstate-epp"];
/// How long the load is observed.
const WATCHED: Duration = Duration::from_secs(1);
/// Maximum share of all CPU time for other processes and the hypervisor.
const BUSY_SHARE_MAX: f64 = 0.1;
const STOLEN_SHARE_MAX: f64 = 0.02;

pub(super) fn check_governor(_: &Expectations) -> Vec<Finding> {
    vec![governor(Path::new(CPUS))]
}

fn governor(cpus: &Path) -> Finding {
    let entries = fs::read_dir(cpus).into_iter().flatten().flatten().take(CPUS_MAX);
    let read = |folder: &Path, file: &str| fs::read_to_string(folder.join("cpufreq").join(file)).ok();
    let governors: BTreeSet<(String, String)> = entries
        .filter_map(|entry| {
            Some((read(&entry.path(), "scaling_governor")?, read(&entry.path(), "scaling_driver").unwrap_or_default()))
        })
        .map(|(governor, driver)| (governor.trim().to_owned(), driver.trim().to_owned()))
        .collect();
    if governors.is_empty() {
        return Finding::not_here("frequencies aren't set by this system (a virtual machine, or by firmware)");
    }
    let is_slow = |(governor, driver): &(String, String)| {
        SLOW.contains(&governor.as_str()) && !SELF_CHOOSING.contains(&driver.as_str())
    };
    let shown: Vec<String> = governors.iter().map(|(governor, driver)| format!("{governor} ({driver})")).collect();
    let reason = Reason {
        expected: "performance or schedutil",
        why: "data loading, the Python of each step and network interrupts run at the lowest frequency",
        todo: "cpupower frequency-set -g performance",
    };
    Finding::fine("", shown.join(", ")).judged(governors.iter().any(is_slow), Verdict::Warning, reason)
}

pub(super) fn check_load(_: &Expectations) -> Vec<Finding> {
    let read = || Times::read(&fs::read_to_string("/proc/stat").unwrap_or_default());
    let before = read();
    thread::sleep(WATCHED);
    match before.zip(read()) {
        Some((before, after)) => judge(&before, &after),
        None => vec![Finding::unknown("", "/proc/stat can't be read", "mount /proc")],
    }
}

/// Ticks of all CPUs together since boot.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Times {
    all: u64,
    idle: u64,
    stolen: u64,
}

impl Times {
    /// Parses the first line: user nice system idle iowait irq softirq steal ... (proc_stat(5)); guests' time
    /// is part of user.
    fn read(text: &str) -> Option<Times> {
        let numbers = text.lines().next()?.strip_prefix("cpu ")?.split_ascii_whitespace();
        let ticks: Vec<u64> = numbers.take(8).map_while(|number| number.parse().ok()).collect();
        let [_, _, _, idle, waiting, _, _, stolen] = ticks[..] else { return None };
        Some(Times { all: ticks.iter().sum(), idle: idle + waiting, stolen })
    }
}

fn judge(before: &Times, after: &Times) -> Vec<Finding> {
    let part = |of: fn(&Times) -> u64| of(after).saturating_sub(of(before)) as f64;
    let all = part(|times| times.all).max(1.0);
    let stolen = part(|times| times.stolen) / all;
    let busy = (1.0 - part(|times| times.idle) / all - stolen).max(0.0);
    let percent = |share: f64| format!("{:.1} % of the CPU time of {} s", share * 100.0, WATCHED.as_secs());
    let others = Reason {
        expected: &format!("at most {:.0} %", BUSY_SHARE_MAX * 100.0),
        why: "ranks and data loaders share the cores with whoever this is, and a gang waits for its slowest node",
        todo: "see who it is (top) and keep it off nodes that train; if jobs run here now, this is them",
    };
    let steal = Reason {
        expected: &format!("at most {:.0} %", STOLEN_SHARE_MAX * 100.0),
        why: "the hypervisor gives these cores to others, at moments that no one here can choose",
        todo: "ask for a machine with its own cores (dedicated, not burstable), or for a quieter host",
    };
    vec![
        Finding::fine("others", percent(busy)).figure("busy_share", busy).judged(
            busy > BUSY_SHARE_MAX,
            Verdict::Warning,
            others,
        ),
        Finding::fine("steal", percent(stolen)).figure("stolen_share", stolen).judged(
            stolen > STOLEN_SHARE_MAX,
            Verdict::Warning,
            steal,
        ),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_others_and_the_hypervisor_take_is_told_apart() {
        let before = Times::read("cpu  100 0 100 1000 0 0 0 0 0 0\ncpu0 1").expect("a line");
        let after = Times::read("cpu  105 0 105 1170 10 0 0 10 5 0\n").expect("a line");
        let found = judge(&before, &after);
        assert_eq!((found[0].verdict, found[1].verdict), (Verdict::Fine, Verdict::Warning), "{found:?}");
        assert!(
            (found[0].figures["busy_share"] - 0.05).abs() < 1e-9
                && (found[1].figures["stolen_share"] - 0.05).abs() < 1e-9
        );
        assert_eq!(Times::read("cpu 1 2"), None);
    }

    #[test]
    fn a_slow_governor_is_told_unless_its_driver_chooses_by_itself() {
        let cpus = tempfile::tempdir().expect("a folder");
        assert_eq!(governor(cpus.path()).verdict, Verdict::NotHere);
        let folder = cpus.path().join("cpu0/cpufreq");
        fs::create_dir_all(&folder).expect("a folder");
        fs::write(folder.join("scaling_governor"), "powersave\n").expect("written");
        fs::write(folder.join("scaling_driver"), "acpi-cpufreq\n").expect("written");
        assert_eq!(governor(cpus.path()).verdict, Verdict::Warning);
        fs::write(folder.join("scaling_driver"), "intel_pstate\n").expect("written");
        assert_eq!(governor(cpus.path()).verdict, Verdict::Fine);
    }
}
