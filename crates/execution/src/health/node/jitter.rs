//! Measures pauses of busy cores, caused by other programs, interrupts or the hypervisor. A thread on each
//! core reads the clock continuously; a gap between two readings means that something else had the core.
//!
//! The effect on a synchronous run is estimated: each window of the measurement stands for a step, a node's
//! loss in a step is that of its worst core, and a gang of N nodes loses the expected maximum of N such
//! losses, drawn independently from those observed. So the estimate never exceeds the worst observed loss,
//! and a longer measurement improves it.

use std::thread;
use std::time::{Duration, Instant};

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

use super::Expectations;
use crate::health::{Finding, Reason, Verdict};

/// Duration of the measurement.
const MEASURED: Duration = Duration::from_secs(3);
/// Length of a window, which stands for a step.
const WINDOW: Duration = Duration::from_millis(100);
/// Shorter gaps are normal: timer interrupts take a few microseconds.
const GAP_MIN: Duration = Duration::from_micros(50);
/// Longer gaps are noticeable.
const GAP_LONG: Duration = Duration::from_millis(1);
/// Maximum number of cores that are measured.
const CORES_MAX: usize = 1_024;
/// Maximum share of a step that a gang may lose.
const LOSS_MAX: f64 = 0.05;

/// Losses of one core.
struct Core {
    /// Every gap of at least [`GAP_MIN`].
    gaps: Vec<Duration>,
    /// Time lost in each window.
    windows: Vec<Duration>,
}

pub(super) fn check(expectations: &Expectations) -> Vec<Finding> {
    let cores = cores();
    let measured: Vec<Core> = thread::scope(|scope| {
        let threads: Vec<_> = cores.iter().map(|core| scope.spawn(|| watch(*core))).collect();
        threads.into_iter().map(|thread| thread.join().expect("a core's thread doesn't panic")).collect()
    });
    vec![judge(&measured, expectations.nodes)]
}

/// Returns the cores that this process may use; at least one entry.
fn cores() -> Vec<Option<usize>> {
    let set = sched_getaffinity(None).ok();
    let allowed: Vec<Option<usize>> = set
        .iter()
        .flat_map(|set| (0..CpuSet::MAX_CPU).filter(|core| set.is_set(*core)).map(Some))
        .take(CORES_MAX)
        .collect();
    if allowed.is_empty() { vec![None] } else { allowed }
}

/// Reads the clock on one core for the whole measurement.
fn watch(core: Option<usize>) -> Core {
    if let Some(core) = core {
        let mut only = CpuSet::new();
        only.set(core);
        // If the thread can't be pinned it still measures, but not this particular core.
        let _ = sched_setaffinity(None, &only);
    }
    let windows = usize::try_from(MEASURED.as_nanos() / WINDOW.as_nanos()).unwrap_or(1);
    let mut core = Core { gaps: Vec::new(), windows: vec![Duration::ZERO; windows] };
    let started = Instant::now();
    let mut last = started;
    loop {
        let now = Instant::now();
        let gap = now - last;
        if gap >= GAP_MIN {
            let at = usize::try_from((last - started).as_nanos() / WINDOW.as_nanos()).unwrap_or(usize::MAX);
            core.gaps.push(gap);
            if let Some(window) = core.windows.get_mut(at) {
                *window += gap;
            }
        }
        if now - started >= MEASURED {
            return core;
        }
        last = now;
    }
}

fn judge(cores: &[Core], nodes: u32) -> Finding {
    let mut gaps: Vec<Duration> = cores.iter().flat_map(|core| core.gaps.iter().copied()).collect();
    gaps.sort_unstable();
    let total = MEASURED.as_secs_f64() * cores.len().max(1) as f64;
    let lost: f64 = gaps.iter().filter(|gap| **gap > GAP_LONG).map(Duration::as_secs_f64).sum();
    let share = lost / total;
    let longest = gaps.last().copied().unwrap_or_default();
    let p99 = gaps.get((gaps.len() * 99) / 100).copied().unwrap_or_default();
    let windows = cores.iter().map(|core| core.windows.len()).min().unwrap_or(0);
    let worst_core = |window: usize| cores.iter().map(|core| core.windows[window]).max().unwrap_or_default();
    let losses: Vec<f64> = (0..windows).map(|window| worst_core(window).as_secs_f64() / WINDOW.as_secs_f64()).collect();
    let (alone, gang) = (expected_maximum(&losses, 1), expected_maximum(&losses, nodes));
    let millis = |gap: Duration| gap.as_secs_f64() * 1e3;
    let measured = format!(
        "{:.2} % of the time lost in gaps over 1 ms on {} core(s); of gaps over 50 µs the 99th percentile is {:.2} ms, the longest {:.1} ms ({} s)",
        share * 100.0,
        cores.len(),
        millis(p99),
        millis(longest),
        MEASURED.as_secs(),
    );
    let estimate = format!(
        "of synchronous steps that keep every core busy, {:.1} % is lost on this node, {:.1} % on {nodes} like it",
        alone * 100.0,
        gang * 100.0,
    );
    let reason = Reason {
        expected: &format!("at most {:.0} % of a step on {nodes} nodes", LOSS_MAX * 100.0),
        why: "in every step all nodes wait for the one that was held up most",
        todo: "see who runs here (top, /proc/interrupts); keep daemons on spare cores, ask for a machine with its own cores",
    };
    Finding::fine("", measured)
        .estimate(estimate)
        .figure("lost_share", share)
        .figure("longest_gap_ms", millis(longest))
        .figure("gap_p99_ms", millis(p99))
        .figure("gang_loss_share", gang)
        .judged(gang > LOSS_MAX, Verdict::Warning, reason)
}

/// Returns the expected maximum of `draws` independent draws, with replacement, from these values: if they
/// are sorted, the maximum is at most the k-th of n with probability (k / n)^draws.
fn expected_maximum(values: &[f64], draws: u32) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let count = sorted.len() as f64;
    let below = |rank: usize| (rank as f64 / count).powf(f64::from(draws.max(1)));
    sorted.iter().enumerate().map(|(rank, value)| value * (below(rank + 1) - below(rank))).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_expected_maximum_grows_from_the_mean_to_the_largest() {
        let values = [0.0, 0.0, 0.0, 1.0];
        let check = |draws: u32, expected: f64| assert!((expected_maximum(&values, draws) - expected).abs() < 1e-9);
        check(1, 0.25);
        check(2, 1.0 - 0.75 * 0.75);
        assert!(expected_maximum(&values, 64) > 0.999_999);
        assert!(expected_maximum(&[], 64).abs() < 1e-9);
    }

    #[test]
    fn a_core_that_stands_still_makes_a_gang_slow() {
        let quiet = || Core { gaps: Vec::new(), windows: vec![Duration::ZERO; 30] };
        assert_eq!(judge(&[quiet(), quiet()], 64).verdict, Verdict::Fine);
        let mut noisy = quiet();
        noisy.gaps = vec![Duration::from_millis(20)];
        noisy.windows[3] = Duration::from_millis(20);
        let found = judge(&[quiet(), noisy], 64);
        assert_eq!(found.verdict, Verdict::Warning, "{found:?}");
        // One step of thirty takes a fifth longer; with 64 nodes nearly every step has one.
        assert!(
            (found.figures["gang_loss_share"] - 0.2 * (1.0 - (29.0_f64 / 30.0).powi(64))).abs() < 1e-9,
            "{found:?}"
        );
        assert!((found.figures["longest_gap_ms"] - 20.0).abs() < 1e-9);
    }
}
