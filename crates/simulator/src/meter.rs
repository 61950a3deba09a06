//! What a simulation measures while it runs: integrals over time, and GPU-time by use.

use std::time::Duration;

use gangline_base::Timestamp;

use super::progress::RunEnd;

/// Why GPU-time that jobs held did not become useful work.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Waste {
    /// Work since the last checkpoint, lost to a preemption.
    Preemption,
    /// Work since the last checkpoint, lost to a fault.
    Fault,
    /// Accelerators held by a job stalled by a silent fault, until it was detected.
    Undetected,
    /// Restoring after a preemption or a fault.
    Restart,
    /// Saving on request before a preemption.
    Saving,
    /// Accelerators held beyond those requested: a policy that gives only equal shares of nodes rounds up.
    Unasked,
}

impl Waste {
    /// Every cause.
    pub const ALL: [Waste; 6] =
        [Waste::Preemption, Waste::Fault, Waste::Undetected, Waste::Restart, Waste::Saving, Waste::Unasked];

    /// Returns the cause's name in reports.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Waste::Preemption => "preemption",
            Waste::Fault => "fault",
            Waste::Undetected => "undetected",
            Waste::Restart => "restart",
            Waste::Saving => "saving",
            Waste::Unasked => "unasked",
        }
    }
}

/// Running sums of seconds and GPU-seconds. Floats are permitted because these are measurements that decide
/// nothing.
#[derive(Clone, Debug, Default)]
pub(crate) struct Meter {
    at: Timestamp,
    /// Accelerators requested by jobs that wait or run.
    pub(crate) demand: u64,
    pub(crate) busy: u32,
    pub(crate) down: u32,
    /// Accelerators requested by the oldest waiting job.
    pub(crate) oldest_waiting: Option<u32>,
    capacity: u32,
    /// The integral of max(1, demand / capacity).
    pub(crate) contention: f64,
    pub(crate) busy_gpu_seconds: f64,
    /// The value of [`Self::busy_gpu_seconds`] at the last submission.
    pub(crate) busy_at_last_arrival: f64,
    pub(crate) fragmented_gpu_seconds: f64,
    pub(crate) down_gpu_seconds: f64,
    pub(crate) useful_gpu_seconds: f64,
    pub(crate) wasted_gpu_seconds: [f64; Waste::ALL.len()],
    /// Starts on several nodes, if racks are known.
    pub(crate) gang_starts: u64,
    pub(crate) gang_starts_in_one_rack: u64,
    pub(crate) preemptions: u64,
    pub(crate) migrations: u64,
    pub(crate) faults: u64,
    pub(crate) node_losses: u64,
}

/// How a run ended, which determines what it lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ending {
    Finished,
    Killed,
    Saved,
    Faulted,
}

impl Meter {
    pub(crate) fn new(capacity: u32) -> Self {
        Meter { capacity, ..Meter::default() }
    }

    /// Advances time with the state unchanged.
    pub(crate) fn advance(&mut self, now: Timestamp) {
        let seconds = now.since(self.at).as_secs_f64();
        self.at = now;
        self.contention += seconds * (self.demand as f64 / f64::from(self.capacity)).max(1.0);
        self.busy_gpu_seconds += seconds * f64::from(self.busy);
        self.down_gpu_seconds += seconds * f64::from(self.down);
        let free = self.capacity.saturating_sub(self.busy + self.down);
        if self.oldest_waiting.is_some_and(|wanted| wanted <= free) {
            self.fragmented_gpu_seconds += seconds * f64::from(free);
        }
    }

    /// Books a run that has ended; the job requested `gpus` accelerators and held `held`.
    pub(crate) fn book(&mut self, end: RunEnd, ending: Ending, gpus: u32, held: u32) {
        self.wasted_gpu_seconds[Waste::Unasked as usize] +=
            end.held.as_secs_f64() * f64::from(held.saturating_sub(gpus));
        let gpus = f64::from(gpus);
        let mut waste = |cause: Waste, time: Duration| {
            self.wasted_gpu_seconds[cause as usize] += time.as_secs_f64() * gpus;
        };
        waste(Waste::Restart, end.restoring);
        match ending {
            Ending::Faulted => {
                waste(Waste::Fault, end.lost);
                waste(Waste::Undetected, end.stalled);
                self.faults += 1;
            }
            Ending::Killed => {
                waste(Waste::Preemption, end.lost);
                waste(Waste::Undetected, end.stalled);
            }
            Ending::Saved => {
                waste(Waste::Preemption, end.lost);
                waste(Waste::Saving, end.stalled);
            }
            Ending::Finished => {}
        }
        self.useful_gpu_seconds += end.kept.as_secs_f64() * gpus;
    }
}
