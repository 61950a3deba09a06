//! The processes of the product as /proc shows them: whose they are, and how much memory the control plane has.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use crate::processes;

/// The variable that marks everything an attempt starts, with the attempt's folder.
const MARK: &str = "GANGLINE_ATTEMPT_DIR";

/// What a process is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Role {
    Supervisor,
    Shim,
    /// A rank's main process.
    Rank,
    /// Anything that a rank started.
    Other,
}

/// A process of an attempt.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Found {
    pub(super) role: Role,
    pub(super) job: String,
    pub(super) attempt: u32,
    pub(super) pid: u32,
    /// In ticks since the machine's start: with the number, it names one process.
    pub(super) started: u64,
    parent: u32,
}

impl Found {
    /// Whether just this process is still there; one that waits to be reaped isn't.
    pub(super) fn is_alive(&self) -> bool {
        stat(self.pid).is_some_and(|stat| stat.started == self.started && !stat.is_zombie)
    }
}

/// All processes of attempts below a data folder, sorted.
pub(super) fn attempts(data: &Path) -> Vec<Found> {
    let mut found: Vec<Found> = processes::all().into_iter().filter_map(|pid| look(pid, data)).collect();
    let shims: BTreeMap<u32, (String, u32)> = found
        .iter()
        .filter(|process| process.role == Role::Shim)
        .map(|shim| (shim.pid, (shim.job.clone(), shim.attempt)))
        .collect();
    for process in &mut found {
        if process.role == Role::Other && shims.contains_key(&process.parent) {
            process.role = Role::Rank;
        }
    }
    found.sort();
    found
}

fn look(pid: u32, data: &Path) -> Option<Found> {
    let stat = stat(pid).filter(|stat| !stat.is_zombie)?;
    let line = std::fs::read(format!("/proc/{pid}/cmdline")).ok()?;
    let words: Vec<String> =
        line.split(|byte| *byte == 0).map(|word| String::from_utf8_lossy(word).into_owned()).collect();
    let inside = words.iter().find(|word| Path::new(word).starts_with(data));
    let of = |role, folder: &str| {
        let (job, attempt) = whose(Path::new(folder))?;
        Some(Found { role, job, attempt, pid, started: stat.started, parent: stat.parent })
    };
    match (words.get(1).map(String::as_str), inside) {
        (Some("supervise"), Some(spec)) => return of(Role::Supervisor, spec),
        (Some("keep-rank"), Some(log)) => return of(Role::Shim, log),
        _ => {}
    }
    let environment = std::fs::read(format!("/proc/{pid}/environ")).ok()?;
    let mut variables = environment.split(|byte| *byte == 0).map(String::from_utf8_lossy);
    let folder = variables.find_map(|variable| Some(variable.strip_prefix(MARK)?.strip_prefix('=')?.to_owned()))?;
    Path::new(&folder).starts_with(data).then(|| of(Role::Other, &folder))?
}

/// The job and the attempt whose folder this is, or is in: `jobs/job-7/attempt-2/a`.
fn whose(path: &Path) -> Option<(String, u32)> {
    let parts: Vec<&str> = path.iter().filter_map(|part| part.to_str()).collect();
    let place = parts.iter().position(|part| part.starts_with("job-"))?;
    let attempt = parts.get(place + 1)?.strip_prefix("attempt-")?;
    let digits = attempt.find(|letter: char| !letter.is_ascii_digit()).map_or(attempt, |end| &attempt[..end]);
    Some((parts[place].to_owned(), digits.parse().ok()?))
}

struct Stat {
    parent: u32,
    started: u64,
    is_zombie: bool,
}

fn stat(pid: u32) -> Option<Stat> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let fields: Vec<&str> = text.rsplit_once(')')?.1.split_whitespace().collect();
    // The state is field 3, the parent 4, the start 22.
    let started = fields.get(19)?.parse().ok()?;
    Some(Stat { parent: fields.get(1)?.parse().ok()?, started, is_zombie: matches!(*fields.first()?, "Z" | "X") })
}

/// The memory that a process has in use, in KiB.
pub(super) fn resident(pid: u32) -> Option<u64> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    line.split_whitespace().next()?.parse().ok()
}

/// How much a figure grows in an hour, in hundredths of where its line of least squares begins; none of fewer than two.
pub(super) fn growth_per_hour(samples: &[(Duration, u64)]) -> Option<f64> {
    #[expect(clippy::cast_precision_loss, reason = "memory in KiB is far below 2^52")]
    let points: Vec<(f64, f64)> =
        samples.iter().map(|(at, value)| (at.as_secs_f64() / 3_600.0, *value as f64)).collect();
    #[expect(clippy::cast_precision_loss, reason = "samples are few")]
    let count = points.len() as f64;
    let (mean_at, mean) =
        points.iter().fold((0.0, 0.0), |(at, value), point| (at + point.0 / count, value + point.1 / count));
    let spread: f64 = points.iter().map(|(at, _)| (at - mean_at).powi(2)).sum();
    let slope = points.iter().map(|(at, value)| (at - mean_at) * (value - mean)).sum::<f64>() / spread;
    let begins = mean + slope * (points.first()?.0 - mean_at);
    (spread > 0.0).then(|| slope / begins * 100.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folders_of_attempts_say_whose_they_are() {
        assert_eq!(whose(Path::new("/d/jobs/job-7/attempt-2/a/spec.json")), Some(("job-7".to_owned(), 2)));
        assert_eq!(whose(Path::new("/d/jobs/job-7/attempt-2.5f3a/a")), Some(("job-7".to_owned(), 2)));
        assert_eq!(whose(Path::new("/d/endpoint")), None);
    }

    #[test]
    fn growth_is_that_of_the_line_through_the_samples() {
        let hour = |hours: u64| Duration::from_secs(3_600 * hours);
        let growth = growth_per_hour(&[(hour(1), 100), (hour(2), 110), (hour(3), 120)]).unwrap();
        assert!((growth - 10.0).abs() < 1e-9, "{growth}");
        assert_eq!(growth_per_hour(&[(hour(1), 100)]), None);
        assert_eq!(growth_per_hour(&[]), None);
    }

    #[test]
    fn a_process_of_an_attempt_is_found_by_its_mark() {
        let data = std::env::temp_dir().join(format!("gangline-soak-{}", std::process::id()));
        let folder = data.join("jobs/job-3/attempt-1/a");
        let mut child = std::process::Command::new("sleep").arg("100").env(MARK, &folder).spawn().unwrap();
        let found = loop {
            // Until its exec, it has our own environment.
            if let [found] = &attempts(&data)[..] {
                break found.clone();
            }
        };
        assert_eq!((found.pid, found.job.as_str(), found.attempt, found.role), (child.id(), "job-3", 1, Role::Other));
        assert!(found.is_alive() && resident(found.pid).is_some());
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(!found.is_alive() && attempts(&data).is_empty());
    }
}
