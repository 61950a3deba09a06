//! The resulting figures of a simulation.

use std::time::Duration;

use gangline_base::{JobId, Timestamp};

use super::meter::Waste;
use super::workload::{JobIndex, Label};
use super::world::World;

/// Mean and percentiles; each percentile is one of the values (nearest rank).
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Distribution {
    /// The mean.
    pub mean: f64,
    /// The median.
    pub p50: f64,
    /// The 95th percentile.
    pub p95: f64,
    /// The 99th percentile.
    pub p99: f64,
}

impl Distribution {
    /// Computes the distribution of these values; all zero if there are none.
    #[must_use]
    pub fn of(mut values: Vec<f64>) -> Self {
        if values.is_empty() {
            return Distribution::default();
        }
        values.sort_by(f64::total_cmp);
        // The nearest rank: the smallest value that is at least as large as this percentage of the values.
        let percentile = |percent: usize| values[(values.len() * percent).div_ceil(100).max(1) - 1];
        let mean = values.iter().sum::<f64>() / values.len() as f64;
        Distribution { mean, p50: percentile(50), p95: percentile(95), p99: percentile(99) }
    }
}

/// The results of a simulation. All are simulated, none measured.
#[derive(Clone, Debug, PartialEq)]
pub struct Summary {
    /// The number of jobs that ran.
    pub jobs: usize,
    /// Rows left out: malformed, or larger than the cluster.
    pub skipped: u64,
    /// Jobs of a control plane's past that never ran, and so are left out.
    pub never_ran: Vec<JobId>,
    /// The accelerators of the cluster.
    pub gpus: u32,
    /// Job completion times in seconds, from submission to completion.
    pub jct_seconds: Distribution,
    /// Seconds without accelerators between submission and completion, summed over a job's waits.
    pub queue_seconds: Distribution,
    /// Seconds from submission to the first start.
    pub first_start_seconds: Distribution,
    /// [`Summary::queue_seconds`] of jobs on at least eight whole nodes, with the number of such jobs.
    pub large_queue_seconds: (usize, Distribution),
    /// The time from the first submission to the last completion.
    pub makespan_seconds: f64,
    /// The share of the cluster's accelerator-time over the makespan that jobs held.
    pub utilisation: f64,
    /// The same up to the last submission: the time after it says little about a policy.
    pub utilisation_of_arrivals: f64,
    /// The share that became useful work.
    pub goodput: f64,
    /// The share that was free and in total enough for the oldest waiting job, but not given to it.
    pub fragmentation: f64,
    /// The worst finish-time fairness (rho: Mahajan et al., Themis, NSDI'20): a job's completion time divided
    /// by its completion time on an equal share of the cluster, where the share follows from the mean
    /// contention during the job's life.
    pub rho_worst: f64,
    /// The 99th percentile of rho.
    pub rho_p99: f64,
    /// Jain's index (Jain, Chiu and Hawe, 1984) over queues, or over users where the trace has no queues, of
    /// the running share of their jobs' accelerator-weighted time in the system: 1 is perfectly even.
    pub jain: f64,
    /// GPU-hours that became useful work.
    pub useful_gpu_hours: f64,
    /// GPU-hours that jobs held in total.
    pub held_gpu_hours: f64,
    /// GPU-hours held but lost, by cause.
    pub lost_gpu_hours: Vec<(Waste, f64)>,
    /// GPU-hours of nodes that were down.
    pub down_gpu_hours: f64,
    /// Starts on several nodes, and how many of them were within one rack (or other narrowest domain); zero
    /// if the cluster names none.
    pub gang_starts: (u64, u64),
    /// The number of preemptions.
    pub preemptions: u64,
    /// Free moves to other nodes, by policies that place everything anew.
    pub migrations: u64,
    /// The number of resizes.
    pub resizes: u64,
    /// The number of runs ended by a fault.
    pub faults: u64,
    /// The number of node losses.
    pub node_losses: u64,
}

/// The least size of a large gang, in whole nodes.
const LARGE_NODES: u32 = 8;

impl World<'_> {
    /// Computes the results from the jobs that ran; times only from those submitted after the warm-up, if there are any.
    pub(crate) fn summarise(&self, jobs: &[JobIndex], oversized: u64, warm_up: Duration) -> Summary {
        let trace = |job: &JobIndex| &self.workload.jobs[job.index()];
        let first = jobs.iter().map(|job| trace(job).submitted).min().unwrap_or(Timestamp::EPOCH);
        let is_warm = |job: &&JobIndex| trace(job).submitted >= first + warm_up;
        let has_warm = jobs.iter().any(|job| is_warm(&job));
        let timed: Vec<JobIndex> = jobs.iter().filter(|job| !has_warm || is_warm(job)).copied().collect();
        let each = |of: &dyn Fn(&JobIndex) -> f64| Distribution::of(timed.iter().map(of).collect());
        let waited = |job: &JobIndex| self.progress[job.index()].waited.as_secs_f64();
        let first_start = |job: &JobIndex| {
            let start = self.progress[job.index()].first_start.unwrap_or(trace(job).submitted);
            start.since(trace(job).submitted).as_secs_f64()
        };
        let last = jobs.iter().map(|job| self.ended_at[job.index()]).max().unwrap_or(first);
        let makespan = last.since(first).as_secs_f64();
        let capacity: u32 = self.capacity.iter().sum();
        let of_capacity = |gpu_seconds: f64| {
            if makespan > 0.0 { gpu_seconds / (makespan * f64::from(capacity)) } else { 0.0 }
        };
        let large_gpus = self.capacity.iter().copied().max().unwrap_or(0).saturating_mul(LARGE_NODES);
        let large: Vec<f64> = timed.iter().filter(|job| trace(job).gpus >= large_gpus).map(waited).collect();
        let rho = Distribution::of(jobs.iter().map(|job| self.rho[job.index()]).collect());
        let meter = &self.meter;
        let last_arrival = jobs.iter().map(|job| trace(job).submitted).max().unwrap_or(first);
        let arriving = last_arrival.since(first).as_secs_f64() * f64::from(capacity);
        let causes = Waste::ALL.into_iter().zip(meter.wasted_gpu_seconds);
        Summary {
            jobs: jobs.len(),
            skipped: self.workload.skipped + oversized,
            never_ran: self.workload.never_ran.clone(),
            gpus: capacity,
            jct_seconds: each(&|job| self.completion(*job)),
            queue_seconds: each(&waited),
            first_start_seconds: each(&first_start),
            large_queue_seconds: (large.len(), Distribution::of(large)),
            makespan_seconds: makespan,
            utilisation: of_capacity(meter.busy_gpu_seconds),
            utilisation_of_arrivals: if arriving > 0.0 { meter.busy_at_last_arrival / arriving } else { 0.0 },
            goodput: of_capacity(meter.useful_gpu_seconds),
            fragmentation: of_capacity(meter.fragmented_gpu_seconds),
            rho_worst: jobs.iter().map(|job| self.rho[job.index()]).fold(0.0, f64::max),
            rho_p99: rho.p99,
            jain: self.jain(jobs),
            useful_gpu_hours: meter.useful_gpu_seconds / 3_600.0,
            held_gpu_hours: meter.busy_gpu_seconds / 3_600.0,
            lost_gpu_hours: causes.map(|(cause, seconds)| (cause, seconds / 3_600.0)).collect(),
            down_gpu_hours: meter.down_gpu_seconds / 3_600.0,
            gang_starts: (meter.gang_starts, meter.gang_starts_in_one_rack),
            preemptions: meter.preemptions,
            migrations: meter.migrations,
            resizes: 0,
            faults: meter.faults,
            node_losses: meter.node_losses,
        }
    }

    fn completion(&self, job: JobIndex) -> f64 {
        self.ended_at[job.index()].since(self.workload.jobs[job.index()].submitted).as_secs_f64()
    }

    fn jain(&self, jobs: &[JobIndex]) -> f64 {
        let has_queues = jobs.iter().any(|job| self.workload.jobs[job.index()].queue != Label::default());
        let mut sums = vec![(0.0, 0.0); self.workload.labels.len().max(1)];
        for job in jobs {
            let trace = &self.workload.jobs[job.index()];
            let owner = if has_queues { trace.queue } else { trace.user };
            let (served, present) = &mut sums[owner.0 as usize];
            *served += trace.duration.as_secs_f64() * f64::from(trace.gpus);
            *present += self.completion(*job) * f64::from(trace.gpus);
        }
        let shares: Vec<f64> = sums.into_iter().filter(|(_, p)| *p > 0.0).map(|(served, p)| served / p).collect();
        let (sum, squares) = shares.iter().fold((0.0, 0.0), |(sum, squares), x| (sum + x, squares + x * x));
        if squares > 0.0 { sum * sum / (shares.len() as f64 * squares) } else { 1.0 }
    }
}
