//! Measures TCP within this machine: an upper bound for its TCP stack, and a sign of one that is crippled.

use super::Expectations;
use crate::health::network::{PairFigures, measure_loopback};
use crate::health::{Finding, Reason, Verdict};

/// A core of the last ten years moves several GB a second.
const BANDWIDTH_MIN: f64 = 0.5e9;
/// Decimal, as network bandwidths are specified.
const GIGA: f64 = 1e9;

pub(super) fn check(_: &Expectations) -> Vec<Finding> {
    vec![match measure_loopback() {
        Ok(figures) => judge(&figures),
        Err(error) => Finding::fine("", format!("no connection to 127.0.0.1: {error}")).wrong(
            Verdict::Failed,
            Reason {
                expected: "a connection",
                why: "the ranks of one machine meet over it",
                todo: "ip link set lo up; see what a firewall or a container forbids",
            },
        ),
    }]
}

fn judge(figures: &PairFigures) -> Finding {
    let bandwidth = figures.forward_bytes_per_second.min(figures.backward_bytes_per_second);
    let reason = Reason {
        expected: &format!("at least {} GB/s", BANDWIDTH_MIN / GIGA),
        why: "data loaders, rendezvous and Gloo use it, and other machines are reached no faster",
        todo: "see what takes the cores (top), and for a proxy or packet filter on lo",
    };
    let measured = format!("{:.2} GB/s, {:.0} µs there and back", bandwidth / GIGA, figures.latency_micros);
    Finding::fine("", measured)
        .figure("loopback_bytes_per_second", bandwidth)
        .figure("loopback_micros", figures.latency_micros)
        .judged(bandwidth < BANDWIDTH_MIN, Verdict::Warning, reason)
}
