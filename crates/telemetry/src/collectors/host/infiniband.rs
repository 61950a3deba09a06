//! Ports of InfiniBand and RoCE devices.

use std::path::Path;

use super::PARTS_MAX;
use super::files::{Files, names, number, read};
use crate::collectors::metric::metric;
use crate::collectors::source::Sample;

/// Data counters count words of four bytes.
const WORD_BYTES: f64 = 4.0;

const COUNTERS: [(&str, f64, &str); 9] = [
    ("counters/port_rcv_data", WORD_BYTES, "host.infiniband_receive_bytes_per_second"),
    ("counters/port_xmit_data", WORD_BYTES, "host.infiniband_transmit_bytes_per_second"),
    ("counters/port_xmit_wait", 1.0, "host.infiniband_transmit_waits_per_second"),
    ("counters/link_downed", 1.0, "host.infiniband_link_downs_total"),
    ("counters/link_error_recovery", 1.0, "host.infiniband_link_recoveries_total"),
    ("counters/symbol_error", 1.0, "host.infiniband_symbol_errors_total"),
    ("counters/port_rcv_errors", 1.0, "host.infiniband_receive_errors_total"),
    ("counters/port_xmit_discards", 1.0, "host.infiniband_transmit_discards_total"),
    ("hw_counters/out_of_sequence", 1.0, "host.roce_out_of_sequence_total"),
];

/// Returns what each port says. A port is named as NCCL names it: `mlx5_0:1`.
pub(super) fn samples(files: &Files) -> Vec<Sample> {
    let root = files.sys.join("class/infiniband");
    let ports = names(&root).into_iter().flat_map(|device| {
        let folder = root.join(&device).join("ports");
        names(&folder).into_iter().map(move |port| (format!("{device}:{port}"), folder.join(port)))
    });
    ports.take(PARTS_MAX).flat_map(|(name, folder)| of_port(&name, &folder)).collect()
}

fn of_port(name: &str, folder: &Path) -> Vec<Sample> {
    let mut samples = Vec::new();
    // `4: ACTIVE`
    if let Ok(state) = read(&folder.join("state")) {
        let is_up = if state.trim_start().starts_with("4:") { 1.0 } else { 0.0 };
        samples.push(Sample::gauge(metric("host.infiniband_link_up"), is_up).of_part(name));
    }
    // `400 Gb/sec (4X NDR)`
    let rate = read(&folder.join("rate")).unwrap_or_default();
    if let Some(gigabits) = rate.split_ascii_whitespace().next().and_then(|number| number.parse::<f64>().ok()) {
        let rate = metric("host.infiniband_rate_bits_per_second");
        samples.push(Sample::gauge(rate, gigabits * 1e9).of_part(name));
    }
    for (file, scale, metric_name) in COUNTERS {
        let count = number(&folder.join(file));
        samples.extend(count.map(|count| Sample::counter(metric(metric_name), count, scale).of_part(name)));
    }
    samples
}
