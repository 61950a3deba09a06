//! Future workloads, drawn from a past one by a bootstrap of whole days, with more jobs, larger gangs and longer runs.
//!
//! A future day is a day of the past at the same place in the week, drawn at random with all its jobs (a block bootstrap:
//! Künsch, Annals of Statistics 1989), so bursts, sweeps and the quiet of weekends stay together. A job that is there
//! 1.3 times is there once, and a second time with a probability of 0.3, up to an hour earlier or later on that day. A gang
//! that grows takes one of the two neighbouring sizes that gangs have (powers of two on a node, else whole nodes), at random
//! so that its mean is kept. Same sample, scale and seed: same workload. Days don't depend on the scale, and each job draws for itself, so with
//! a larger scale of jobs there are the same jobs and more.

use std::collections::BTreeMap;
use std::time::Duration;

use gangline_base::Timestamp;

use super::random::{Draws, Purpose};
use super::workload::{TraceJob, Workload};

const DAY: Duration = Duration::from_hours(24);
const WEEK_DAYS: usize = 7;
/// How far a further copy of a job may be from it.
const APART: Duration = Duration::from_hours(1);
/// The most jobs of a day of the past.
const JOBS_PER_DAY_MAX: u32 = 1 << 20;
/// The most jobs of a future workload.
const JOBS_MAX: usize = 2_000_000;

/// How much there is of everything, in multiples of the past.
#[derive(Clone, Debug, PartialEq)]
pub struct Scale {
    /// Jobs.
    pub jobs: f64,
    /// Devices of a job.
    pub sizes: f64,
    /// Duration of a job.
    pub durations: f64,
    /// Jobs of these queues, in addition.
    pub queues: BTreeMap<String, f64>,
}

impl Scale {
    /// As in the past.
    pub const SAME: Scale = Scale { jobs: 1.0, sizes: 1.0, durations: 1.0, queues: BTreeMap::new() };
}

/// Whole days of a workload.
#[derive(Clone, Debug)]
pub struct Sample {
    /// The jobs of each day, with times since its beginning.
    days: Vec<Vec<TraceJob>>,
    labels: Vec<String>,
}

impl Sample {
    /// Returns the last whole days of a workload, at most so many; days count from its first submission.
    #[must_use]
    pub fn of(workload: &Workload, days_max: usize) -> Sample {
        let day = |job: &TraceJob| usize::try_from(since_start(job).as_secs() / DAY.as_secs()).unwrap_or(usize::MAX);
        // The last day may not be over.
        let whole = workload.jobs.last().map_or(0, day);
        let first = whole.saturating_sub(days_max);
        let mut days = vec![Vec::new(); whole - first];
        for job in workload.jobs.iter().filter(|job| (first..whole).contains(&day(job))) {
            let time = since_start(job) - DAY * u32::try_from(day(job)).unwrap_or(u32::MAX);
            days[day(job) - first].push(TraceJob { submitted: Timestamp::EPOCH + time, ..*job });
        }
        Sample { days, labels: workload.labels.clone() }
    }

    /// Returns the number of days.
    #[must_use]
    pub fn days(&self) -> usize {
        self.days.len()
    }

    /// Returns the mean number of jobs a day.
    #[must_use]
    pub fn jobs_per_day(&self) -> f64 {
        self.days.iter().map(Vec::len).sum::<usize>() as f64 / self.days.len().max(1) as f64
    }

    /// Returns the queues of its jobs, each with the devices that its jobs want on average over time.
    #[must_use]
    pub fn wanted_by_queue(&self) -> BTreeMap<&str, f64> {
        let mut wanted: BTreeMap<&str, f64> = BTreeMap::new();
        for job in self.days.iter().flatten() {
            let queue = self.labels.get(job.queue.0 as usize).map_or("", String::as_str);
            *wanted.entry(queue).or_default() += job.duration.as_secs_f64() * f64::from(job.gpus);
        }
        let seconds = DAY.as_secs_f64() * self.days.len().max(1) as f64;
        wanted.values_mut().for_each(|gpu_seconds| *gpu_seconds /= seconds);
        wanted
    }

    /// Draws a future workload of so many days, for nodes with this many devices. A job's line is that of its original.
    #[must_use]
    pub fn draw(&self, scale: &Scale, days: u32, node_gpus: u32, seed: u64) -> Workload {
        let mut jobs: Vec<TraceJob> = Vec::new();
        for day in 0..days {
            let past = self.draw_day(day, seed).unwrap_or_default();
            for (number, job) in (0..JOBS_PER_DAY_MAX).zip(past) {
                let draws = Draws::new(seed, Purpose::Forecast, day.wrapping_mul(JOBS_PER_DAY_MAX) + number);
                let room = JOBS_MAX - jobs.len();
                jobs.extend(
                    self.copies(job, scale, node_gpus, draws)
                        .map(|(time, job)| TraceJob { submitted: Timestamp::EPOCH + DAY * day + time, ..job })
                        .take(room),
                );
            }
        }
        jobs.sort_by_key(|job| job.submitted);
        Workload { jobs, labels: self.labels.clone(), ..Workload::default() }
    }

    /// Returns how often a job is there, each time with its time of day.
    fn copies(
        &self,
        job: &TraceJob,
        scale: &Scale,
        node_gpus: u32,
        mut draws: Draws,
    ) -> impl Iterator<Item = (Duration, TraceJob)> {
        let queue = self.labels.get(job.queue.0 as usize).map_or("", String::as_str);
        let times = whole(scale.jobs * scale.queues.get(queue).copied().unwrap_or(1.0), &mut draws);
        let (job, sizes, durations) = (*job, scale.sizes, scale.durations);
        (0..times).map(move |copy| {
            let gpus = grown(job.gpus, sizes, node_gpus, &mut draws);
            let time = if copy == 0 { since_start(&job) } else { nearby(since_start(&job), &mut draws) };
            // A limit would end what takes longer than it.
            let limit = job.limit.map(|limit| limit.mul_f64(durations.max(1.0)));
            (time, TraceJob { gpus, duration: job.duration.mul_f64(durations), limit, ..job })
        })
    }

    /// Draws a day of the past at the same place in the week; any day if there is none.
    fn draw_day(&self, day: u32, seed: u64) -> Option<&[TraceJob]> {
        let mut draws = Draws::new(seed, Purpose::ForecastDays, day);
        let place = day as usize % WEEK_DAYS;
        let same: Vec<usize> = (0..self.days.len()).filter(|past| past % WEEK_DAYS == place).collect();
        let from = if same.is_empty() { (0..self.days.len()).collect() } else { same };
        let drawn = below(from.len(), &mut draws)?;
        self.days.get(from[drawn]).map(Vec::as_slice)
    }
}

fn since_start(job: &TraceJob) -> Duration {
    job.submitted.since(Timestamp::EPOCH)
}

/// Draws a number below a count; none if the count is zero.
fn below(count: usize, draws: &mut Draws) -> Option<usize> {
    let drawn = truncated(draws.uniform() * count as f64);
    (count > 0).then(|| usize::try_from(drawn).unwrap_or(usize::MAX).min(count - 1))
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "it is never below 0, and what is too large is cut"
)]
fn truncated(number: f64) -> u64 {
    number as u64
}

/// Draws a whole number with this mean, one of its two neighbours.
fn whole(mean: f64, draws: &mut Draws) -> u64 {
    let floor = mean.floor();
    truncated(floor) + u64::from(draws.uniform() < mean - floor)
}

/// Draws a time of the same day.
fn nearby(time: Duration, draws: &mut Draws) -> Duration {
    let from = time.saturating_sub(APART);
    let upto = (time + APART).min(DAY - Duration::from_secs(1));
    from + upto.saturating_sub(from).mul_f64(draws.uniform())
}

/// Draws the size of a gang that grows.
fn grown(gpus: u32, factor: f64, node_gpus: u32, draws: &mut Draws) -> u32 {
    let wanted = f64::from(gpus) * factor;
    if (wanted - f64::from(gpus)).abs() < 1e-9 {
        return gpus;
    }
    let (lower, upper) = neighbours(wanted.max(1.0), node_gpus.max(1));
    let share = if upper > lower { (wanted - f64::from(lower)) / f64::from(upper - lower) } else { 0.0 };
    if draws.uniform() < share { upper } else { lower }
}

/// Returns the sizes of gangs around a number: powers of two up to a node, else whole nodes.
fn neighbours(wanted: f64, node_gpus: u32) -> (u32, u32) {
    let to_u32 = |number: f64| u32::try_from(truncated(number)).unwrap_or(u32::MAX);
    let nodes = to_u32(wanted / f64::from(node_gpus));
    if nodes >= 1 {
        let lower = nodes.saturating_mul(node_gpus);
        let is_exact = wanted <= f64::from(lower);
        return (lower, if is_exact { lower } else { lower.saturating_add(node_gpus) });
    }
    let lower = 1_u32 << to_u32(wanted).max(1).ilog2();
    (lower, (lower * 2).min(node_gpus))
}

#[cfg(test)]
mod tests {
    use super::super::workload::Label;
    use super::*;

    /// Four weeks: ten jobs of one device on each day but the last two of a week, which have one of eight.
    fn sample() -> Sample {
        let hour = Duration::from_hours(1);
        let mut workload = Workload { labels: vec!["".into(), "a".into(), "b".into()], ..Workload::default() };
        for day in 0..29_u32 {
            let (count, gpus) = if day % 7 >= 5 { (1, 8) } else { (10, 1) };
            for number in 0..count {
                let submitted = Timestamp::EPOCH + DAY * day + hour * number;
                let queue = Label(1 + number % 2);
                let (user, model) = (Label(0), Label(0));
                let line = day * 100 + number;
                workload.jobs.push(TraceJob { line, submitted, duration: hour, gpus, user, queue, model, limit: None });
            }
        }
        Sample::of(&workload, 28)
    }

    #[test]
    fn future_days_are_days_of_the_past_at_the_same_place_in_the_week() {
        let sample = sample();
        assert_eq!((sample.days(), (sample.jobs_per_day() * 7.0).round()), (28, 52.0));
        let workload = sample.draw(&Scale::SAME, 14, 8, 1);
        assert_eq!(workload.jobs.len(), 104);
        for job in &workload.jobs {
            let day = since_start(job).as_secs() / DAY.as_secs();
            assert_eq!(job.gpus == 8, day % 7 >= 5, "{job:?}");
        }
        assert!(workload.jobs.is_sorted_by_key(|job| job.submitted));
        assert_eq!(workload, sample.draw(&Scale::SAME, 14, 8, 1), "the same seed");
        let more = sample.draw(&Scale { jobs: 1.4, ..Scale::SAME }, 14, 8, 1);
        assert!(more.jobs.len() > 104 && workload.jobs.iter().all(|job| more.jobs.contains(job)), "the same and more");
    }

    #[test]
    fn jobs_sizes_and_durations_grow_by_their_factors_on_average() {
        let sample = sample();
        let scale = Scale { jobs: 1.3, sizes: 1.5, durations: 2.0, queues: BTreeMap::from([("a".to_owned(), 2.0)]) };
        let workload = sample.draw(&scale, 700, 8, 3);
        let of = |queue: u32| workload.jobs.iter().filter(move |job| job.queue == Label(queue));
        let per_day = |queue: u32| of(queue).count() as f64 / 700.0;
        // On five days of seven five jobs each, on the other two one of queue a.
        let (a, b) = ((25.0 + 2.0) / 7.0, 25.0 / 7.0);
        assert!((per_day(1) / (a * 2.6) - 1.0).abs() < 0.03, "{}", per_day(1));
        assert!((per_day(2) / (b * 1.3) - 1.0).abs() < 0.03, "{}", per_day(2));
        let small: Vec<f64> = of(2).map(|job| f64::from(job.gpus)).collect();
        let mean = small.iter().sum::<f64>() / small.len() as f64;
        assert!((mean - 1.5).abs() < 0.03 && small.iter().all(|gpus| [1.0, 2.0].contains(gpus)), "{mean}");
        assert!(of(1).any(|job| job.gpus == 8) && of(1).any(|job| job.gpus == 16), "eight become eight or sixteen");
        assert!(workload.jobs.iter().all(|job| job.duration == Duration::from_hours(2)));
        let wanted = sample.wanted_by_queue();
        assert!((wanted["b"] - 25.0 / 7.0 / 24.0).abs() < 1e-9, "{wanted:?}");
    }

    #[test]
    fn a_past_without_a_whole_day_has_nothing_draw() {
        let sample = Sample::of(&Workload::default(), 28);
        assert_eq!((sample.days(), sample.draw(&Scale::SAME, 7, 8, 1).jobs.len()), (0, 0));
        assert_eq!(
            (neighbours(1.0, 8), neighbours(5.0, 8), neighbours(8.0, 8), neighbours(9.0, 8)),
            ((1, 2), (4, 8), (8, 8), (8, 16))
        );
    }
}
