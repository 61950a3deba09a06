//! What a job's own program wrote about its runs.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::time::{Duration, SystemTime};

/// What the ranks of one attempt wrote.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Run {
    /// Ranks that began.
    pub(super) began: BTreeSet<u32>,
    /// Ranks that came to their end.
    pub(super) ended: BTreeSet<u32>,
    /// The first line.
    pub(super) first: SystemTime,
    /// The last one.
    pub(super) last: SystemTime,
    /// When the first rank came to its end.
    pub(super) first_end: Option<SystemTime>,
}

/// A whole witness file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Witness {
    /// By attempt.
    pub(super) runs: BTreeMap<u32, Run>,
    /// Attempts that were there beside a later one: they wrote after it had, or it saw their processes when it began.
    pub(super) beside: BTreeSet<u32>,
    /// The ids that the runs had of the product; one, if all is well.
    pub(super) ids: BTreeSet<String>,
}

impl Witness {
    /// Reads a file; one that isn't there is of a job that never ran.
    pub(super) fn read(path: &Path) -> Witness {
        Witness::of(&String::from_utf8_lossy(&std::fs::read(path).unwrap_or_default()))
    }

    fn of(text: &str) -> Witness {
        let mut witness = Witness::default();
        for line in text.lines() {
            let words: Vec<&str> = line.split(' ').collect();
            let [what, id, attempt, rank, _, at, of] = words[..] else { continue };
            let (Ok(attempt), Ok(rank), Some(at)) = (attempt.parse(), rank.parse(), moment(at)) else { continue };
            match what {
                // A rank saw a process of an older attempt when it began.
                "beside" => witness.beside.extend(of.parse::<u32>()),
                _ => witness.add(what, attempt, rank, at),
            }
            witness.ids.insert(id.to_owned());
        }
        witness
    }

    fn add(&mut self, what: &str, attempt: u32, rank: u32, at: SystemTime) {
        if self.runs.keys().next_back().is_some_and(|newest| *newest > attempt) {
            self.beside.insert(attempt);
        }
        let run = Run { began: BTreeSet::new(), ended: BTreeSet::new(), first: at, last: at, first_end: None };
        let run = self.runs.entry(attempt).or_insert(run);
        run.first = run.first.min(at);
        run.last = run.last.max(at);
        match what {
            "start" => run.began.insert(rank),
            "end" => {
                run.first_end = Some(run.first_end.map_or(at, |first| first.min(at)));
                run.ended.insert(rank)
            }
            _ => false,
        };
    }

    /// Attempts of which so many ranks came to their end.
    pub(super) fn whole(&self, ranks: usize) -> impl Iterator<Item = (u32, &Run)> {
        self.runs.iter().filter(move |(_, run)| run.ended.len() == ranks).map(|(attempt, run)| (*attempt, run))
    }
}

/// `1795372688.123456`, as bash has it.
fn moment(text: &str) -> Option<SystemTime> {
    let (seconds, micros) = text.split_once('.')?;
    let since = Duration::from_secs(seconds.parse().ok()?) + Duration::from_micros(micros.parse().ok()?);
    Some(SystemTime::UNIX_EPOCH + since)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_are_told_apart_and_one_beside_a_later_one_shows() {
        let text = "start job-1 1 0 70 5.000001 9\nstart job-1 1 1 71 5.2 9\nend job-1 1 0 70 6.0 \nstart job-1 2 0 80 7.0 9\n\
                    beat job-1 1 1 71 7.1 \nend job-1 2 0 80 8.0 \nend job-1 2 1 81 8.0 \nhalf a li";
        let witness = Witness::of(text);
        assert_eq!(witness.runs.keys().copied().collect::<Vec<_>>(), [1, 2]);
        assert_eq!(witness.beside, [1].into());
        assert_eq!(witness.whole(2).map(|(attempt, _)| attempt).collect::<Vec<_>>(), [2]);
        assert_eq!(witness.runs[&1].began, [0, 1].into());
        assert_eq!(witness.runs[&2].first, SystemTime::UNIX_EPOCH + Duration::from_secs(7));
        assert_eq!(witness.runs[&1].first_end, Some(SystemTime::UNIX_EPOCH + Duration::from_secs(6)));
        assert_eq!(witness.ids, ["job-1".to_owned()].into());
    }

    #[test]
    fn what_a_rank_saw_when_it_began_counts() {
        let witness = Witness::of("start job-1 1 0 70 5.0 9\nbeside job-1 2 0 80 6.0 1\nstart job-1 2 0 80 6.0 9\n");
        assert_eq!(witness.beside, [1].into());
    }

    #[test]
    fn a_job_that_never_ran_has_no_runs() {
        assert_eq!(Witness::read(Path::new("/no/such-witness")), Witness::default());
    }
}
