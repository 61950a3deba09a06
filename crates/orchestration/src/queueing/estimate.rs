//! Expected run times, learned from past jobs.
//!
//! People run the same thing again and again, so the run times of a user's jobs with the same name in a queue
//! are the best predictor if they are similar, and after them those of the user, the queue and the cluster (Hu et al., "Characterization and Prediction of Deep Learning
//! Workloads", SC'21: Helios' QSSF learns from name and user). If they vary widely or are too few, the
//! estimate is the fraction of their limits that recent jobs of that user, queue or cluster used, multiplied
//! by this job's limit (Tsafrir, Etsion and Feitelson, IEEE TPDS 2007: predictions from recent jobs of the
//! same user). Without a limit it is run times of the user, queue or cluster; without any history, the limit
//! or a default. All are upper quantiles: too long an estimate makes its own job wait, too short an estimate
//! makes others wait.
//!
//! Estimates order waiting jobs (`order.rs`) and choose jobs for time slicing and consolidation
//! (`time_slicing.rs`, `consolidation.rs`); reservations and time limits never depend on them. Invariants:
//! integral arithmetic; the history is bounded and is state, in snapshots and replay.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use gangline_base::{JobSpec, QueueName, Submitter, Timestamp};

/// The number of run times remembered for each kind of job.
const SAMPLES_MAX: usize = 16;
/// The number of kinds of jobs remembered; the kind whose last job ended longest ago is forgotten
/// first.
const HISTORIES_MAX: usize = 20_000;
/// The least number of run times that give an estimate.
const SAMPLES_MIN: usize = 3;
/// Run times are similar if the ratio of their quartiles is at most this.
const ALIKE_FACTOR: u32 = 3;
/// The estimate for a job with neither a limit nor a history, about the mean run time in Philly and Helios
/// (Jeon et al., ATC'19; Hu et al., SC'21).
const DEFAULT: Duration = Duration::from_hours(3);
/// The resolution of fractions of a limit.
const LIMIT_PARTS: u32 = 1_000;

/// A group of jobs that are assumed to be similar. Narrower groups are preferred.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Kin {
    /// Their queue; none for all queues.
    pub queue: Option<QueueName>,
    /// Their submitter; none for all submitters in the queue.
    pub submitter: Option<Submitter>,
    /// Their name without digits; none for all of the submitter's jobs.
    pub name: Option<String>,
}

/// The run time of a job that ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sample {
    /// How long it held its devices, over all its attempts.
    pub ran: Duration,
    /// That time in thousandths of its time limit; none if it had no limit.
    pub of_limit: Option<u32>,
}

/// The run times remembered for one kind of job.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct History {
    /// When the last of these jobs ended.
    pub at: Timestamp,
    /// The latest samples, oldest first.
    pub samples: Vec<Sample>,
}

/// The run times of past jobs, by kind.
#[derive(Clone, Debug, Default)]
pub(crate) struct Estimates {
    histories: BTreeMap<Kin, History>,
    by_age: BTreeSet<(Timestamp, Kin)>,
}

impl Estimates {
    /// Records the run time of a job that ended.
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

    /// Returns an upper estimate of how long a job holds its devices.
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

    /// Reports whether a job's estimate changes only when a job of its own queue ends.
    pub(crate) fn rests_on_queue(&self, spec: &JobSpec) -> bool {
        let own = kin_of(spec).into_iter().filter(|kin| kin.queue.is_some());
        own.filter_map(|kin| self.histories.get(&kin)).any(|history| alike(history).is_some())
    }

    /// Returns all histories, for a snapshot.
    pub(crate) fn histories(&self) -> Vec<(Kin, History)> {
        self.histories.iter().map(|(kin, history)| (kin.clone(), history.clone())).collect()
    }

    /// Restores the histories of a snapshot.
    pub(crate) fn restore(histories: Vec<(Kin, History)>) -> Self {
        let by_age = histories.iter().map(|(kin, history)| (history.at, kin.clone())).collect();
        Estimates { histories: histories.into_iter().collect(), by_age }
    }
}

/// Returns a job's groups from the narrowest: by name, submitter, queue, and all jobs.
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

/// Returns the upper quartile, if there are enough values.
fn upper<T: Ord + Copy>(mut values: Vec<T>) -> Option<T> {
    values.sort_unstable();
    let enough = values.len() >= SAMPLES_MIN;
    values.get(values.len() * 3 / 4).copied().filter(|_| enough)
}

/// Returns the upper quartile of run times, if they are similar.
fn alike(history: &History) -> Option<Duration> {
    let mut runs = runs(history);
    runs.sort_unstable();
    let lower = *runs.get(runs.len() / 4)?;
    upper(runs).filter(|upper| *upper <= lower.saturating_mul(ALIKE_FACTOR))
}

/// Returns the run time in thousandths of `limit`.
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
