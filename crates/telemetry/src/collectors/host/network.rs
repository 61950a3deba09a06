//! Network interfaces.

use super::PARTS_MAX;
use crate::collectors::metric::metric;
use crate::collectors::source::Sample;

/// Beginnings of the names of interfaces that carry what another one carries as well, or nothing that leaves the machine.
const INNER: [&str; 6] = ["lo", "veth", "docker", "br-", "virbr", "cali"];

/// Returns what /proc/net/dev says: two lines of headings, then `name: bytes packets errors drops ...` with eight numbers
/// for each direction.
pub(super) fn samples(dev: &str) -> Vec<Sample> {
    let interfaces = dev.lines().skip(2).filter_map(|line| {
        let (name, rest) = line.split_once(':')?;
        let name = name.trim();
        let numbers: Vec<u64> = rest.split_ascii_whitespace().map_while(|number| number.parse().ok()).collect();
        let [received, _, in_errors, in_drops, _, _, _, _, sent, _, out_errors, out_drops, ..] = numbers[..] else {
            return None;
        };
        let is_inner = INNER.iter().any(|inner| name.starts_with(inner));
        // One that never carried anything isn't in use.
        if is_inner || (received, sent) == (0, 0) {
            return None;
        }
        let sample = |metric_name: &str, count: u64| Sample::counter(metric(metric_name), count, 1.0).of_part(name);
        Some([
            sample("host.network_receive_bytes_per_second", received),
            sample("host.network_transmit_bytes_per_second", sent),
            sample("host.network_errors_total", in_errors.saturating_add(out_errors)),
            sample("host.network_drops_total", in_drops.saturating_add(out_drops)),
        ])
    });
    interfaces.take(PARTS_MAX).flatten().collect()
}
