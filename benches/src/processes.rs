//! Processes of this machine, as /proc shows them.

use std::collections::BTreeSet;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, Result};
pub(crate) use rustix::process::Signal;

/// A process and how it was called.
#[derive(Clone, Debug)]
pub(crate) struct Process {
    pub(crate) pid: u32,
    pub(crate) arguments: Vec<String>,
}

impl Process {
    /// Whether it runs a program of this name, or one that begins with it, such as `python3.11`.
    pub(crate) fn runs(&self, program: &str) -> bool {
        let name = self.arguments.first().and_then(|path| path.rsplit('/').next());
        name.is_some_and(|name| name.starts_with(program))
    }

    /// Whether its environment says `name=value`.
    pub(crate) fn has_variable(&self, name: &str, value: &str) -> bool {
        let wanted = format!("{name}={value}");
        let environment = std::fs::read(format!("/proc/{}/environ", self.pid)).unwrap_or_default();
        environment.split(|byte| *byte == 0).any(|variable| variable == wanted.as_bytes())
    }
}

/// The ids of all processes.
pub(crate) fn all() -> BTreeSet<u32> {
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect()
}

/// Processes that aren't among `known` and have an argument that contains `marker`. What ends meanwhile isn't there.
pub(crate) fn naming(marker: &Path, known: &BTreeSet<u32>) -> Vec<Process> {
    let marker = marker.to_string_lossy();
    let others = all().into_iter().filter(|pid| !known.contains(pid));
    let processes = others.filter_map(|pid| {
        let line = std::fs::read(format!("/proc/{pid}/cmdline")).ok()?;
        let words = line.split(|byte| *byte == 0).map(|word| String::from_utf8_lossy(word).into_owned());
        Some(Process { pid, arguments: words.collect() })
    });
    processes.filter(|process| process.arguments.iter().any(|word| word.contains(marker.as_ref()))).collect()
}

/// Sends a signal to a process.
///
/// # Errors
/// When there is no such process.
pub(crate) fn signal(pid: u32, signal: Signal) -> Result<()> {
    let id = i32::try_from(pid).ok().and_then(rustix::process::Pid::from_raw).context("a process id is positive")?;
    rustix::process::kill_process(id, signal).with_context(|| format!("signal process {pid}"))
}

/// Kills what still names the folder, which only processes do that were started for it.
pub(crate) fn sweep(folder: &Path) {
    let own = BTreeSet::from([std::process::id()]);
    for _ in 0..100 {
        let left = naming(folder, &own);
        if left.is_empty() {
            return;
        }
        for process in left {
            // It may have ended by itself.
            let _ = signal(process.pid, Signal::KILL);
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// The processor time that a process has used so far, all its threads together.
///
/// # Errors
/// When there is no such process.
pub(crate) fn processor_time(pid: u32) -> Result<Duration> {
    let path = format!("/proc/{pid}/stat");
    let text = std::fs::read_to_string(&path).with_context(|| format!("read {path}"))?;
    // Fields 14 and 15, user and system time in ticks; the second field may hold spaces and ends at the last bracket.
    let fields: Vec<&str> = text.rsplit_once(')').map_or("", |(_, rest)| rest).split_whitespace().collect();
    let ticks = |index: usize| fields.get(index).and_then(|field| field.parse::<u64>().ok());
    let ticks = ticks(11).zip(ticks(12)).with_context(|| format!("find the times in {path}"))?;
    let a_second = rustix::param::clock_ticks_per_second().max(1);
    Ok(Duration::from_millis((ticks.0 + ticks.1) * 1_000 / a_second))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_found_by_what_it_names_and_swept() {
        let marker = std::env::temp_dir().join(format!("gangline-processes-{}", std::process::id()));
        let before = all();
        let mut child = std::process::Command::new("sh")
            .args(["-c", "sleep 100; echo"])
            .arg(&marker)
            .env("RANK", "3")
            .spawn()
            .unwrap();
        let found = loop {
            // Until its exec, it has our own command line.
            if let [found] = &naming(&marker, &before)[..] {
                break found.clone();
            }
        };
        assert_eq!(found.pid, child.id());
        assert!(found.runs("sh") && !found.runs("python"));
        assert!(found.has_variable("RANK", "3") && !found.has_variable("RANK", "33"));
        assert!(processor_time(found.pid).unwrap() < Duration::from_secs(10));
        signal(found.pid, Signal::KILL).unwrap();
        child.wait().unwrap();
        assert!(naming(&marker, &before).is_empty());
    }
}
