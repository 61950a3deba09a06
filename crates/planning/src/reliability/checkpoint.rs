//! How large a checkpoint is, how often to save, and what that and failures leave of the time.

use crate::units::{Bandwidth, Seconds, Volume, real};
use crate::workload::{Optimizer, Task, Workload};

/// The part of a run that checkpoints should not exceed.
pub const OVERHEAD_MAX: f64 = 0.02;

/// A checkpoint's size by what it holds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Size {
    /// Weights in the format that the model computes in; of adapters, those alone.
    pub weights: Volume,
    /// Master copies and the optimizer's state.
    pub optimizer: Volume,
}

impl Size {
    /// Of a workload that trains so many parameters: 2 bytes each in 16 bits, and what the optimizer keeps. AdamW: 2 + 12 = 14 bytes,
    /// as BLOOM's 176B parameters took 2.3 TB, 329 GB of it bf16 weights (its model card).
    #[must_use]
    pub fn of(workload: &Workload, trained: u64) -> Size {
        if workload.task == Task::Inference {
            return Size { weights: Volume::ZERO, optimizer: Volume::ZERO };
        }
        let (weight, state) = bytes(workload.optimizer);
        Size { weights: Volume::new(real(trained) * weight), optimizer: Volume::new(real(trained) * state) }
    }

    /// Both.
    #[must_use]
    pub fn total(&self) -> Volume {
        self.weights + self.optimizer
    }
}

/// Bytes of a trained parameter: its weight, and its master copy with the optimizer's state.
const fn bytes(optimizer: Optimizer) -> (f64, f64) {
    match optimizer {
        Optimizer::AdamW => (2.0, 4.0 + 4.0 + 4.0),
        Optimizer::AdamWPureBf16 => (2.0, 2.0 + 2.0),
        Optimizer::AdamW8Bit | Optimizer::PagedAdamW8Bit => (2.0, 1.0 + 1.0),
        // Rows and columns are next to nothing.
        Optimizer::Adafactor => (2.0, 0.0),
        Optimizer::Muon | Optimizer::SgdMomentum => (2.0, 4.0 + 4.0),
    }
}

/// Nobody saves more often: files, folders and people's attention cost something too.
const INTERVAL_MIN: Seconds = Seconds::new(60.0);

/// When to save.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Interval {
    /// From one save to the next.
    pub between: Seconds,
    /// The part of the time that saves hold the training up: blocked / between.
    pub overhead: f64,
    /// The bandwidth that keeps it under [`OVERHEAD_MAX`] if training stood still for the whole writing.
    pub bandwidth_wanted: Bandwidth,
}

/// The interval that loses least, when a save holds training up for `blocked`, is written after `written`, and something breaks every
/// `mean_time`.
///
/// Young 1974: t = sqrt(2 d M); Daly 2006, equation 37: t = sqrt(2 d M) (1 + sqrt(d / 2M) / 3 + d / 18M) - d where d < 2M, else M. A save
/// in the background blocks only for its copy, but the next can't begin before it is written; and none begins within a minute.
#[must_use]
pub fn optimal_interval(size: Volume, blocked: Seconds, written: Seconds, mean_time: Seconds) -> Interval {
    let (d, m) = (blocked.get(), mean_time.get());
    let daly = if d < 2.0 * m {
        let ratio = d / (2.0 * m);
        (2.0 * d * m).sqrt() * (1.0 + ratio.sqrt() / 3.0 + ratio / 9.0) - d
    } else {
        m
    };
    let between = Seconds::new(daly).max(written).max(INTERVAL_MIN);
    // Overhead sqrt(d / 2M) = o means d = 2 M o^2.
    let longest = Seconds::new(2.0 * m * OVERHEAD_MAX * OVERHEAD_MAX);
    Interval {
        between,
        overhead: d / between.get().max(d),
        bandwidth_wanted: Bandwidth::new(size / Volume::new(longest.get())),
    }
}

/// The part of a run's time that is training: E = (1 - (u + t / 2) / M) / (1 + d / t), at least 0, where u is the time from a failure to
/// the next step, t the interval and d what a save blocks (arXiv:2410.21680, equation 1, without the queue).
#[must_use]
pub fn goodput(interval: &Interval, recovery: Seconds, mean_time: Seconds) -> f64 {
    let lost = (recovery + interval.between * 0.5) / mean_time;
    ((1.0 - lost) * (1.0 - interval.overhead)).max(0.0)
}

/// The expected wall time of `work` seconds of training: M e^(R / M) (e^((t + d) / M) - 1) T / t (Daly 2006, equation 20).
#[must_use]
pub fn expected_run_time(work: Seconds, interval: &Interval, recovery: Seconds, mean_time: Seconds) -> Seconds {
    let m = mean_time.get();
    let between = interval.between.get();
    let blocked = interval.overhead * between;
    let each = m * (recovery.get() / m).exp() * ((between + blocked) / m).exp_m1();
    Seconds::new(each * work.get() / between)
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: f64 = 3_600.0;

    #[test]
    fn young_and_daly_agree_where_saves_are_short_and_daly_is_right_where_they_are_long() {
        let interval = |blocked: f64| {
            optimal_interval(Volume::new(1e12), Seconds::new(blocked), Seconds::ZERO, Seconds::new(10.0 * HOUR))
        };
        let young = (2.0_f64 * 10.0 * 36_000.0).sqrt();
        assert!((interval(10.0).between.get() / young - 1.0).abs() < 0.01);
        assert!((interval(10.0).overhead - 10.0 / interval(10.0).between.get()).abs() < 1e-12);
        assert_eq!(interval(21.0 * HOUR).between, Seconds::new(10.0 * HOUR), "longer than failures are apart: M");
    }

    #[test]
    fn the_interval_is_the_best_by_the_expected_time_itself() {
        let (mean, recovery) = (Seconds::new(2.0 * HOUR), Seconds::new(300.0));
        let best = optimal_interval(Volume::new(1e12), Seconds::new(30.0), Seconds::ZERO, mean);
        let time = |between: f64| {
            let interval = Interval { between: Seconds::new(between), overhead: 30.0 / between, ..best };
            expected_run_time(Seconds::new(1e6), &interval, recovery, mean).get()
        };
        let at_best = time(best.between.get());
        assert!(at_best <= time(best.between.get() * 1.2) && at_best <= time(best.between.get() * 0.8));
        assert!((goodput(&best, recovery, mean) / (1e6 / at_best) - 1.0).abs() < 0.02, "both say the same");
    }

    #[test]
    fn a_save_in_the_background_is_not_overtaken_by_the_next() {
        let interval =
            optimal_interval(Volume::new(5e12), Seconds::new(0.5), Seconds::new(900.0), Seconds::new(1.8 * HOUR));
        assert_eq!(interval.between, Seconds::new(900.0));
        assert!(interval.overhead < 0.001);
    }
}
