//! Estimates the cost of checkpoints of a model from measured rates: pure arithmetic.
//!
//! A save blocks the trainer while it copies its state, so the stall is the bytes of a node over the rate at
//! which its ranks copy together; it is durable when the node's disk has written those bytes; the overhead is
//! the stall over the interval; and no interval can be shorter than the write takes (CheckFreq, Mohan et al.,
//! FAST'21, bounds the interval in the same way). A model takes 14 bytes for each parameter: master, two
//! moments and a bf16 copy (the 16 of ZeRO, Rajbhandari et al., SC'20, section 3, less the gradients).

use std::num::NonZeroU32;
use std::time::Duration;

use gangline_base::Bytes;
use serde::Serialize;

/// Bytes of training state for each parameter: fp32 master, first and second moment, and the bf16 weight.
pub const BYTES_PER_PARAMETER: u64 = 14;
/// The goal for the seconds until a checkpoint is durable.
pub const DURABLE_SECONDS: f64 = 10.0;
/// Goals for the overhead: the interval in seconds, and the largest fraction of the time.
pub const OVERHEADS: [(f64, f64); 2] = [(30.0, 0.02), (150.0, 0.004)];

/// Rates measured on one node, in bytes per second.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Rates {
    /// Copying to host memory, with as many threads as there are ranks or cores.
    pub copy: f64,
    /// Writing and fsync.
    pub write: f64,
    /// Reading and checking every byte.
    pub read: f64,
}

/// The number of accelerators.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Fleet {
    /// Accelerators in total.
    pub gpus: NonZeroU32,
    /// Accelerators of each node, which has one such disk.
    pub gpus_per_node: NonZeroU32,
}

/// The estimated cost of a checkpoint.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Forecast {
    /// Bytes of the state.
    pub bytes: Bytes,
    /// Nodes that hold it.
    pub nodes: u32,
    /// Bytes that the fullest node writes.
    pub bytes_per_node: Bytes,
    /// Seconds for which the trainer is blocked.
    pub blocking_seconds: f64,
    /// Seconds from the call until the checkpoint is durable.
    pub durable_seconds: f64,
    /// Seconds to read it back, with verification.
    pub restore_seconds: f64,
    /// The shortest interval between checkpoints that the disk sustains.
    pub interval_seconds_min: f64,
    /// The requested interval.
    pub interval_seconds: f64,
    /// The fraction of the time lost at that interval; none if the disk doesn't sustain it.
    pub overhead: Option<f64>,
    /// The goals, and whether they are met.
    pub goals: Vec<Goal>,
}

/// A goal, and whether it is met.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Goal {
    /// The goal, in words.
    pub goal: String,
    /// The estimated value.
    pub estimate: String,
    /// Whether the estimate meets the goal.
    pub is_within_reach: bool,
}

/// Estimates the cost of checkpoints of this many bytes.
#[must_use]
pub fn forecast(bytes: Bytes, fleet: Fleet, rates: Rates, interval: Duration) -> Forecast {
    let gpus_per_node = fleet.gpus_per_node.min(fleet.gpus);
    let nodes = fleet.gpus.get().div_ceil(gpus_per_node.get());
    // If the last node has fewer accelerators, the others hold more than an equal share.
    let of_full_node = u128::from(bytes.0) * u128::from(gpus_per_node.get());
    let bytes_per_node =
        u64::try_from(of_full_node.div_ceil(u128::from(fleet.gpus.get()))).expect("a node holds at most all bytes");
    let seconds = |rate: f64| bytes_per_node as f64 / rate;
    let (blocking_seconds, write_seconds) = (seconds(rates.copy), seconds(rates.write));
    let durable_seconds = blocking_seconds + write_seconds;
    let overhead = |interval: f64| (interval >= write_seconds).then(|| blocking_seconds / interval);
    let durable = Goal {
        goal: format!("durable in {DURABLE_SECONDS} s"),
        estimate: format!("{durable_seconds:.1} s"),
        is_within_reach: durable_seconds <= DURABLE_SECONDS,
    };
    let overheads = OVERHEADS.map(|(interval, share)| Goal {
        goal: format!("{} % at a checkpoint every {interval} s", share * 100.0),
        estimate: percent(overhead(interval)),
        is_within_reach: overhead(interval).is_some_and(|overhead| overhead <= share),
    });
    Forecast {
        bytes,
        nodes,
        bytes_per_node: Bytes(bytes_per_node),
        blocking_seconds,
        durable_seconds,
        restore_seconds: seconds(rates.read),
        interval_seconds_min: write_seconds,
        interval_seconds: interval.as_secs_f64(),
        overhead: overhead(interval.as_secs_f64()),
        goals: std::iter::once(durable).chain(overheads).collect(),
    }
}

/// Formats an overhead as a percentage.
#[must_use]
pub fn percent(overhead: Option<f64>) -> String {
    overhead.map_or_else(|| "more often than the disk sustains".to_owned(), |share| format!("{:.2} %", share * 100.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fleet(gpus: u32, gpus_per_node: u32) -> Fleet {
        let number = |number| NonZeroU32::new(number).expect("not zero");
        Fleet { gpus: number(gpus), gpus_per_node: number(gpus_per_node) }
    }

    /// The published example: 912 GB over 64 accelerators, 50 GB/s each, a disk of 26 or of 5 GB/s a node.
    #[test]
    fn the_arithmetic_is_that_of_the_published_example() {
        let rates = Rates { copy: 8.0 * 50e9, write: 26e9, read: 10e9 };
        let fast = forecast(Bytes(912_000_000_000), fleet(64, 8), rates, Duration::from_secs(1_800));
        assert_eq!((fast.nodes, fast.bytes_per_node), (8, Bytes(114_000_000_000)));
        assert!((fast.blocking_seconds - 0.285).abs() < 1e-9, "{fast:?}");
        assert!((fast.interval_seconds_min - 4.38).abs() < 0.01, "{fast:?}");
        assert!(fast.goals.iter().all(|goal| goal.is_within_reach), "{fast:?}");
        assert!(fast.overhead.is_some_and(|overhead| overhead < 0.0002), "{fast:?}");
        let slow =
            forecast(Bytes(912_000_000_000), fleet(64, 8), Rates { write: 5e9, ..rates }, Duration::from_secs(10));
        assert!((slow.interval_seconds_min - 22.8).abs() < 0.01, "{slow:?}");
        assert_eq!(slow.overhead, None);
        let within: Vec<bool> = slow.goals.iter().map(|goal| goal.is_within_reach).collect();
        assert_eq!(within, [false, true, true]);
    }

    #[test]
    fn a_part_of_a_node_holds_all_and_an_odd_fleet_is_judged_by_its_full_nodes() {
        let rates = Rates { copy: 1.0, write: 1.0, read: 1.0 };
        let interval = Duration::from_secs(1);
        assert_eq!(forecast(Bytes(100), fleet(2, 8), rates, interval).bytes_per_node, Bytes(100));
        let odd = forecast(Bytes(100), fleet(10, 8), rates, interval);
        assert_eq!((odd.nodes, odd.bytes_per_node), (2, Bytes(80)));
    }
}
