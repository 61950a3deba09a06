//! How long a job will run, learned from those before it.
//!
//! People run the same thing again and again, so the run times of a user's jobs of one name in one queue are the best
//! guide where they are alike (Hu et al., "Characterization and Prediction of Deep Learning Workloads", SC'21: Helios'
//! QSSF learns from name and user). Where they scatter, or there are too few, time limits tell more: how much of their
//! limits the jobs of that user, queue or cluster used of late, times this job's (Tsafrir, Etsion and Feitelson, IEEE
//! TPDS 2007: predictions from recent jobs of the same user). Without a limit, run times of the user, queue or cluster;
//! without any history, the limit, or a default. All are upper quantiles: an estimate that is too long costs its job
//! some waiting, one that is too short costs others.
//!
//! Estimates order who waits (`order.rs`) and say whom equals make room for (`rotation.rs`, `consolidation.rs`); promises and
//! time limits never rest on them. Invariants: integral arithmetic;
//! what is remembered is bounded and is state, in snapshots and replay.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use gangline_base::{JobSpec, QueueName, Submitter, Timestamp};

/// Run times remembered of each kind of job.
const SAMPLES_MAX: usize = 16;
/// Kinds of jobs remembered: those that ended longest ago are forgotten first.
pub(crate) const HISTORIES_MAX: usize = 20_000;
/// Fewer run times than this tell nothing.
const SAMPLES_MIN: usize = 3;
/// Run times whose quartiles are further apart than this are not alike.
const ALIKE_FACTOR: u32 = 3;
/// A job with neither a limit nor a history. Philly's and Helios' jobs ran about that long on average (Jeon et al.,
/// ATC'19; Hu et al., SC'21).
const DEFAULT: Duration = Duration::from_hours(3);
/// Parts that a limit is counted in.
const LIMIT_PARTS: u32 = 1_000;

/// The jobs that are taken to be alike: narrower first.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Kin {
    /// The queue they were sent to; none for all.
    pub queue: Option<QueueName>,
    /// Who sent them; none for all of the queue.
    pub submitter: Option<Submitter>,
    /// Their name without digits; none for all of the user.
    pub name: Option<String>,
}

/// One job that ran to its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sample {
    /// How long it held its devices, in all its attempts.
    pub ran: Duration,
    /// How much of its time limit that was, in thousandths; none if it had none.
    pub of_limit: Option<u32>,
}

/// What is remembered of one kind of jobs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct History {
    /// When the last of them ended.
    pub at: Timestamp,
    /// The last few, oldest first.
    pub samples: Vec<Sample>,
}

/// What is remembered of jobs that ran.
#[derive(Clone, Debug, Default)]
pub(crate) struct Estimates {
    histories: BTreeMap<Kin, History>,
    by_age: BTreeSet<(Timestamp, Kin)>,
}

impl Estimates {
    /// A job ran to its end.
    pub(crate) fn learn(&mut self, now: Timestamp, spec: &JobSpec, ran: Duration) {
        let sample = Sample { ran, of_limit: spec.time_limit.map(|limit| part_of(ran, limit)) };
        for kin in kin_of(spec) {
            let history = self.histories.entry(kin.clone()).or_default();
            self.by_age.remove(&(history.at, kin.clone()));
            history.at = now;
            if history.samples.len() >= SAMPLES_MAX {
                history.samples.remove(0);
            }
            history.samples.push(sample);
            self.by_age.insert((now, kin));
        }
        while self.histories.len() > HISTORIES_MAX
            && let Some((_, oldest)) = self.by_age.pop_first()
        {
            self.histories.remove(&oldest);
        }
    }

    /// How long a job will probably hold its devices at most.
    pub(crate) fn expect(&self, spec: &JobSpec) -> Duration {
        let kin = kin_of(spec);
        let histories: Vec<&History> = kin.iter().filter_map(|kin| self.histories.get(kin)).collect();
        let within = |expected: Duration| spec.time_limit.map_or(expected, |limit| expected.min(limit));
        if let Some(expected) = histories.iter().find_map(|history| alike(history)) {
            return within(expected);
        }
        let Some(limit) = spec.time_limit else {
            return histories.iter().find_map(|history| upper(runs(history))).unwrap_or(DEFAULT);
        };
        let part = histories.iter().find_map(|history| upper(parts(history)));
        part.map_or(limit, |part| within((limit / LIMIT_PARTS).saturating_mul(part)))
    }

    /// Whether what is expected of a job changes only when one of its own queue ends.
    pub(crate) fn rests_on_queue(&self, spec: &JobSpec) -> bool {
        let own = kin_of(spec).into_iter().filter(|kin| kin.queue.is_some());
        own.filter_map(|kin| self.histories.get(&kin)).any(|history| alike(history).is_some())
    }

    /// All of it, for a snapshot.
    pub(crate) fn histories(&self) -> Vec<(Kin, History)> {
        self.histories.iter().map(|(kin, history)| (kin.clone(), history.clone())).collect()
    }

    /// Takes it back in.
    pub(crate) fn restore(histories: Vec<(Kin, History)>) -> Self {
        let by_age = histories.iter().map(|(kin, history)| (history.at, kin.clone())).collect();
        Estimates { histories: histories.into_iter().collect(), by_age }
    }
}

/// A job's kin, the nearest first: of its name, of its user, of its queue, all.
fn kin_of(spec: &JobSpec) -> [Kin; 4] {
    let name: String = spec.name.chars().filter(|letter| !letter.is_ascii_digit()).collect();
    let queue = Some(spec.queue.clone());
    let submitter = Some(spec.submitter.clone());
    [
        Kin { queue: queue.clone(), submitter: submitter.clone(), name: Some(name) },
        Kin { queue: queue.clone(), submitter, name: None },
        Kin { queue, submitter: None, name: None },
        Kin { queue: None, submitter: None, name: None },
    ]
}

fn runs(history: &History) -> Vec<Duration> {
    history.samples.iter().map(|sample| sample.ran).collect()
}

fn parts(history: &History) -> Vec<u32> {
    history.samples.iter().filter_map(|sample| sample.of_limit).collect()
}

/// The upper quartile of enough values.
fn upper<T: Ord + Copy>(mut values: Vec<T>) -> Option<T> {
    values.sort_unstable();
    let enough = values.len() >= SAMPLES_MIN;
    values.get(values.len() * 3 / 4).copied().filter(|_| enough)
}

/// The upper quartile of run times that are alike.
fn alike(history: &History) -> Option<Duration> {
    let mut runs = runs(history);
    runs.sort_unstable();
    let lower = *runs.get(runs.len() / 4)?;
    upper(runs).filter(|upper| *upper <= lower.saturating_mul(ALIKE_FACTOR))
}

/// How much of `limit` a run took, in thousandths.
fn part_of(ran: Duration, limit: Duration) -> u32 {
    let parts = ran.as_millis().saturating_mul(u128::from(LIMIT_PARTS)) / limit.as_millis().max(1);
    u32::try_from(parts).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture;

    const HOUR: Duration = Duration::from_hours(1);

    fn job(user: &str, name: &str, limit: Option<u32>) -> JobSpec {
        let gang = fixture::gang(1, 1);
        let time_limit = limit.map(|hours| HOUR * hours);
        JobSpec { name: name.to_owned(), submitter: Submitter(user.to_owned()), time_limit, ..fixture::job(gang) }
    }

    fn learned(jobs: &[(&JobSpec, Duration)]) -> Estimates {
        let mut estimates = Estimates::default();
        for (hour, (spec, ran)) in (0..).zip(jobs) {
            estimates.learn(Timestamp::EPOCH + HOUR * hour, spec, *ran);
        }
        estimates
    }

    #[test]
    fn without_history_the_limit_counts_and_without_a_limit_a_default() {
        let estimates = Estimates::default();
        assert_eq!(estimates.expect(&job("ann", "sft", Some(8))), HOUR * 8);
        assert_eq!(estimates.expect(&job("ann", "sft", None)), DEFAULT);
    }

    #[test]
    fn jobs_of_one_name_tell_the_next_whatever_its_number() {
        let past = [job("ann", "sft-1", Some(8)), job("ann", "sft-2", Some(8)), job("ann", "sft-30", Some(8))];
        let estimates = learned(&[(&past[0], HOUR), (&past[1], HOUR * 2), (&past[2], HOUR)]);
        assert_eq!(estimates.expect(&job("ann", "sft-31", Some(8))), HOUR * 2);
        assert_eq!(estimates.expect(&job("ann", "sft-31", Some(1))), HOUR, "never beyond the limit");
    }

    #[test]
    fn where_run_times_scatter_the_part_of_the_limit_tells() {
        let past = [job("ann", "a", Some(1)), job("ann", "a", Some(10)), job("ann", "a", Some(100))];
        let estimates = learned(&[(&past[0], HOUR / 2), (&past[1], HOUR * 5), (&past[2], HOUR * 50)]);
        assert_eq!(estimates.expect(&job("ann", "a", Some(20))), HOUR * 10);
        assert_eq!(estimates.expect(&job("bob", "b", Some(20))), HOUR * 10, "what all did is better than nothing");
    }

    #[test]
    fn two_run_times_tell_nothing() {
        let past = [job("ann", "a", Some(8)), job("ann", "a", Some(8))];
        let estimates = learned(&[(&past[0], HOUR), (&past[1], HOUR)]);
        assert_eq!(estimates.expect(&job("ann", "a", Some(8))), HOUR * 8);
    }

    #[test]
    fn the_oldest_histories_are_forgotten_and_restoring_gives_the_rest_back() {
        let mut estimates = Estimates::default();
        for number in 0..u32::try_from(HISTORIES_MAX).expect("few") {
            let name: String = number.to_string().bytes().map(|digit| char::from(digit - b'0' + b'a')).collect();
            estimates.learn(Timestamp::EPOCH + HOUR * number, &job("ann", &name, None), HOUR);
        }
        let histories = estimates.histories();
        assert_eq!(histories.len(), HISTORIES_MAX);
        assert!(!histories.iter().any(|(kin, _)| kin.name.as_deref() == Some("a")), "the first is the oldest");
        assert_eq!(Estimates::restore(histories.clone()).histories(), histories);
    }
}
