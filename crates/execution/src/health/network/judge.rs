//! Finds the nodes, pairs and nodes' own figures that stand out in a gang's measurements.
//!
//! A node's capability is the bandwidth it reaches with most of its peers: the upper quartile of its
//! bandwidths, separate for sending and receiving. A node is slow if its capability is an outlier among the
//! nodes'; a pair is slow if it is below what both of its ends can do. So a bad cable at a node is reported
//! as that node, not as each of its pairs, and a bad path between two switches is reported as pairs. Outliers
//! are determined by median and MAD (Leys et al. 2013), and by a share of the median, since equal nodes have
//! hardly any spread.

use std::collections::BTreeMap;

use super::{NodeReport, PairReport, RingReport};
use crate::health::{Finding, Reason, Verdict};

/// Deviations (as of a normal distribution: 1.4826 MAD) from which a value is an outlier.
const DEVIATIONS: f64 = 5.0;
const MAD_TO_DEVIATION: f64 = 1.4826;
/// Minimum difference from the median, as a share of it, for an outlier.
const OFF_SHARE_MIN: f64 = 0.3;
/// A few nodes have a wide spread: half the median is an outlier in any case, and so is twice the median of a
/// value that should be small.
const LOW_SHARE: f64 = 0.5;
const HIGH_SHARE: f64 = 1.0;
/// A pair must reach at least this share of what both ends can do.
const PAIR_SHARE_MIN: f64 = 0.5;
/// Fewer nodes have no majority to compare with.
const NODES_MIN: usize = 3;
/// Maximum difference between a node's clock and the others'.
const CLOCK_OFFSET_MAX_MICROS: f64 = 100_000.0;
/// Size of an all-reduce of the usual model: bf16 gradients of 7 billion parameters.
const GRADIENT_BYTES: f64 = 14e9;
/// Maximum number of pairs that are named.
const PAIRS_NAMED_MAX: usize = 20;
/// Decimal, as network bandwidths are specified.
const GIGA: f64 = 1e9;

/// Figures of nodes' own checks that should be alike on all nodes: name, whether more is better, and how it
/// is shown.
const COMPARED: [(&str, bool, f64, &str); 6] = [
    ("write_bytes_per_second", true, GIGA, "GB/s of disk writes"),
    ("read_bytes_per_second", true, GIGA, "GB/s of disk reads"),
    ("copy_bytes_per_second", true, GIGA, "GB/s of memory copies"),
    ("loopback_bytes_per_second", true, GIGA, "GB/s over loopback"),
    ("gang_loss_share", false, 0.01, "% of a gang's step lost to jitter"),
    ("start_ms", false, 1.0, "ms to start a process"),
];

/// Returns a finding for everything that stands out.
pub(super) fn findings(
    nodes: &[NodeReport],
    pairs: &[PairReport],
    ring: Option<&RingReport>,
    ring_error: Option<&str>,
) -> Vec<Finding> {
    let name = |rank: u32| {
        nodes.iter().find(|node| node.rank == rank).map_or_else(|| format!("rank {rank}"), |node| node.node.clone())
    };
    let mut findings: Vec<Finding> = unreachable(pairs, &name);
    findings.extend(slow(pairs, &name));
    findings.extend(late(pairs, &name));
    findings.extend(clocks(pairs, &name));
    findings.extend(unlike(nodes));
    findings.extend(ring_error.map(broken_ring));
    findings.extend(ring.map(cost));
    findings
}

fn unreachable(pairs: &[PairReport], name: &dyn Fn(u32) -> String) -> Vec<Finding> {
    let failed = pairs.iter().filter_map(|pair| Some((pair, pair.error.as_ref()?))).take(PAIRS_NAMED_MAX);
    let finding = |(pair, error): (&PairReport, &String)| {
        of_gang(format!("{} to {}", name(pair.from), name(pair.to)), format!("no measurement: {error}")).wrong(
            Verdict::Failed,
            Reason { expected: "a connection", why: "ranks on these two can't talk to each other", todo: "see routes, firewalls and which interface the name resolves to (NCCL_SOCKET_IFNAME, GLOO_SOCKET_IFNAME)" },
        )
    };
    failed.map(finding).collect()
}

/// The bandwidths of each node, of sending or of receiving.
type Capabilities = BTreeMap<u32, Vec<f64>>;

fn slow(pairs: &[PairReport], name: &dyn Fn(u32) -> String) -> Vec<Finding> {
    // From, to, bytes a second.
    let flows: Vec<(u32, u32, f64)> = pairs
        .iter()
        .filter_map(|pair| Some((pair.from, pair.to, pair.figures?)))
        .flat_map(|(one, other, figures)| {
            [(one, other, figures.forward_bytes_per_second), (other, one, figures.backward_bytes_per_second)]
        })
        .collect();
    let (mut sending, mut receiving) = (Capabilities::new(), Capabilities::new());
    for (from, to, rate) in &flows {
        sending.entry(*from).or_default().push(*rate);
        receiving.entry(*to).or_default().push(*rate);
    }
    let [sending, receiving] = [sending, receiving].map(|rates| {
        rates.into_iter().map(|(rank, rates)| (rank, upper_quartile(rates))).collect::<BTreeMap<u32, f64>>()
    });
    let mut findings = Vec::new();
    for (capabilities, doing) in [(&sending, "sends"), (&receiving, "receives")] {
        findings.extend(outliers(capabilities, true).into_iter().map(|(rank, rate, median)| {
            let measured = format!("{doing} at {:.2} GB/s", rate / GIGA);
            of_gang(name(rank), measured).wrong(
                Verdict::Warning,
                Reason { expected: &format!("{:.2} GB/s, the median of the nodes", median / GIGA), why: "a gang's collectives run at the pace of its slowest node", todo: "look at its cable, card and switch port (ethtool, ibstat), at who else uses them, and at its route" },
            )
        }));
    }
    let expected = |from: u32, to: u32| sending[&from].min(receiving[&to]);
    let below =
        flows.iter().filter(|(from, to, rate)| *rate < PAIR_SHARE_MIN * expected(*from, *to)).take(PAIRS_NAMED_MAX);
    findings.extend(below.map(|(from, to, rate)| {
        of_gang(format!("{} to {}", name(*from), name(*to)), format!("{:.2} GB/s", rate / GIGA)).wrong(
            Verdict::Warning,
            Reason { expected: &format!("{:.2} GB/s, as both reach with others", expected(*from, *to) / GIGA), why: "the path between these two is slower than either of them", todo: "look at what lies between them: uplinks of their switches, routes, a cable; measure again to see whether it stays" },
        )
    }));
    findings
}

/// Returns the nodes that answer late, by the lower quartile of their latencies.
fn late(pairs: &[PairReport], name: &dyn Fn(u32) -> String) -> Vec<Finding> {
    let mut latencies: BTreeMap<u32, Vec<f64>> = BTreeMap::new();
    for (pair, figures) in pairs.iter().filter_map(|pair| Some((pair, pair.figures?))) {
        latencies.entry(pair.from).or_default().push(-figures.latency_micros);
        latencies.entry(pair.to).or_default().push(-figures.latency_micros);
    }
    let quickest = latencies.into_iter().map(|(rank, negative)| (rank, -upper_quartile(negative))).collect();
    let finding = |(rank, latency, median): (u32, f64, f64)| {
        of_gang(name(rank), format!("{latency:.0} µs there and back")).wrong(
            Verdict::Warning,
            Reason {
                expected: &format!("{median:.0} µs, the median of the nodes"),
                why: "small messages (barriers, pipeline and tensor parallelism) wait for it",
                todo: "look at its route, at interrupt moderation and power saving of its card, at who else runs there",
            },
        )
    };
    outliers(&quickest, false).into_iter().map(finding).collect()
}

fn clocks(pairs: &[PairReport], name: &dyn Fn(u32) -> String) -> Vec<Finding> {
    let mut offsets: BTreeMap<u32, Vec<f64>> = BTreeMap::new();
    for (pair, figures) in pairs.iter().filter_map(|pair| Some((pair, pair.figures?))) {
        offsets.entry(pair.to).or_default().push(figures.clock_offset_micros);
        offsets.entry(pair.from).or_default().push(-figures.clock_offset_micros);
    }
    let medians = offsets.into_iter().map(|(rank, offsets)| (rank, median(offsets)));
    let wrong = medians.filter(|(_, offset)| offset.abs() > CLOCK_OFFSET_MAX_MICROS);
    let finding = |(rank, offset): (u32, f64)| {
        of_gang(name(rank), format!("its clock is {:.2} s off the others'", offset / 1e6)).wrong(
            Verdict::Warning,
            Reason {
                expected: "at most 0.1 s",
                why: "which rank failed first is told by their clocks",
                todo: "run chrony or systemd-timesyncd there",
            },
        )
    };
    wrong.map(finding).collect()
}

/// Returns the nodes whose own figures stand out.
fn unlike(nodes: &[NodeReport]) -> Vec<Finding> {
    let figure =
        |node: &NodeReport, name: &str| node.findings.iter().find_map(|finding| finding.figures.get(name).copied());
    let name = |rank: u32| nodes.iter().find(|node| node.rank == rank).map_or("", |node| node.node.as_str());
    let of = |(figure_name, more_is_better, unit, words): &(&str, bool, f64, &str)| {
        let values = nodes.iter().filter_map(|node| Some((node.rank, figure(node, figure_name)?))).collect();
        let finding = |(rank, value, median): (u32, f64, f64)| {
            of_gang(name(rank), format!("{:.2} {words}", value / unit)).wrong(
                Verdict::Warning,
                Reason { expected: &format!("{:.2}, the median of the nodes", median / unit), why: "a gang waits for its slowest node", todo: "compare it with the others: what runs there, its settings, its hardware; swap it for a spare meanwhile" },
            )
        };
        outliers(&values, *more_is_better).into_iter().map(finding).collect::<Vec<_>>()
    };
    COMPARED.iter().flat_map(of).collect()
}

fn broken_ring(error: &str) -> Finding {
    of_gang("all-reduce", format!("failed: {error}")).wrong(
        Verdict::Failed,
        Reason {
            expected: "sums on all nodes",
            why: "the collectives of a run will fail as well",
            todo: "see the pairs above; wrong sums mean broken memory, card or cable: take the node out",
        },
    )
}

fn cost(ring: &RingReport) -> Finding {
    let RingReport { ranks, bytes, seconds, bus_bytes_per_second, .. } = ring;
    let n = f64::from(*ranks);
    let gradients = GRADIENT_BYTES * 2.0 * (n - 1.0) / n / bus_bytes_per_second;
    let bus = bus_bytes_per_second / GIGA;
    let measured = format!(
        "{:.1} MB over {ranks} nodes in {:.1} ms: bus bandwidth {bus:.2} GB/s",
        *bytes as f64 / 1e6,
        seconds * 1e3
    );
    of_gang("all-reduce", measured)
        .estimate(format!("over TCP, bf16 gradients of 7B parameters take {gradients:.1} s"))
        .figure("bus_bytes_per_second", *bus_bytes_per_second)
}

/// Creates a finding about the gang without a problem.
fn of_gang(subject: impl Into<String>, measured: impl Into<String>) -> Finding {
    Finding { check: "gang".to_owned(), ..Finding::fine(subject, measured) }
}

/// Returns the values that are worse than the others: rank, value, and the median.
fn outliers(values: &BTreeMap<u32, f64>, more_is_better: bool) -> Vec<(u32, f64, f64)> {
    if values.len() < NODES_MIN {
        return Vec::new();
    }
    let median_of = |values: Vec<f64>| median(values);
    let middle = median_of(values.values().copied().collect());
    let mad = median_of(values.values().map(|value| (value - middle).abs()).collect());
    let most = if more_is_better { LOW_SHARE } else { HIGH_SHARE };
    let allowed = (DEVIATIONS * MAD_TO_DEVIATION * mad).clamp(OFF_SHARE_MIN * middle.abs(), most * middle.abs());
    let off = |value: f64| if more_is_better { middle - value } else { value - middle };
    values.iter().filter(|(_, value)| off(**value) > allowed).map(|(rank, value)| (*rank, *value, middle)).collect()
}

/// Returns the median; the lower of the two middle values if their number is even.
fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len().saturating_sub(1) / 2).copied().unwrap_or(0.0)
}

fn upper_quartile(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() * 3 / 4).copied().unwrap_or(0.0)
}

#[cfg(test)]
mod tests {
    use super::super::PairFigures;
    use super::*;

    fn nodes(count: u32) -> Vec<NodeReport> {
        let node =
            |rank| NodeReport { rank, node: format!("n{rank}"), address: [127, 0, 0, 1].into(), findings: Vec::new() };
        (0..count).map(node).collect()
    }

    /// Returns all pairs, with the rate that `rate` gives for each direction.
    fn pairs(count: u32, rate: impl Fn(u32, u32) -> f64) -> Vec<PairReport> {
        let pair = |from: u32, to: u32| PairReport {
            from,
            to,
            figures: Some(PairFigures {
                latency_micros: 50.0,
                latency_p99_micros: 60.0,
                clock_offset_micros: 0.0,
                forward_bytes_per_second: rate(from, to),
                backward_bytes_per_second: rate(to, from),
            }),
            error: None,
        };
        (0..count).flat_map(|to| (0..to).map(move |from| (from, to))).map(|(from, to)| pair(from, to)).collect()
    }

    fn subjects(count: u32, pairs: &[PairReport]) -> Vec<String> {
        findings(&nodes(count), pairs, None, None).into_iter().map(|finding| finding.subject).collect()
    }

    /// Returns a small deterministic variation.
    fn noise(from: u32, to: u32) -> f64 {
        1.0 + 0.05 * f64::from((from * 7 + to * 3) % 5)
    }

    #[test]
    fn alike_nodes_are_left_in_peace() {
        for count in [1, 2, 3, 4, 9] {
            assert!(subjects(count, &pairs(count, |from, to| 1e9 * noise(from, to))).is_empty(), "{count}");
        }
    }

    #[test]
    fn a_slow_node_is_named_and_not_its_pairs() {
        for count in [3, 4, 8] {
            let sends = pairs(count, |from, to| if from == 1 { 1e8 } else { 1e9 } * noise(from, to));
            let found = findings(&nodes(count), &sends, None, None);
            assert_eq!(found.len(), 1, "{count}: {found:?}");
            assert!(found[0].subject == "n1" && found[0].measured.starts_with("sends"), "{found:?}");
            let both = pairs(count, |from, to| if from == 1 || to == 1 { 1e8 } else { 1e9 } * noise(from, to));
            assert_eq!(subjects(count, &both), ["n1", "n1"], "{count}");
        }
    }

    #[test]
    fn a_slow_path_names_the_pair() {
        let path = pairs(6, |from, to| if (from, to) == (2, 4) { 1e8 } else { 1e9 } * noise(from, to));
        assert_eq!(subjects(6, &path), ["n2 to n4"]);
    }

    #[test]
    fn who_is_out_of_reach_late_or_lives_in_another_time_is_named() {
        let mut broken = pairs(3, |_, _| 1e9);
        broken[0].figures = None;
        broken[0].error = Some("connection refused".to_owned());
        assert_eq!(subjects(3, &broken), ["n0 to n1"]);
        let mut late = pairs(4, |_, _| 1e9);
        let mut wrong = late.clone();
        for pair in late.iter_mut().filter(|pair| pair.to == 3) {
            pair.figures.as_mut().expect("they were measured").latency_micros = 500.0;
        }
        assert_eq!(subjects(4, &late), ["n3"]);
        for pair in wrong.iter_mut().filter(|pair| pair.to == 3) {
            pair.figures.as_mut().expect("they were measured").clock_offset_micros = 2e6;
        }
        assert_eq!(subjects(4, &wrong), ["n3"]);
    }

    #[test]
    fn a_node_with_a_slow_disk_is_named() {
        let mut alike = nodes(5);
        for (node, rate) in alike.iter_mut().zip([2.0e9, 2.1e9, 0.4e9, 1.9e9, 2.0e9]) {
            node.findings = vec![of_gang("disk", "").figure("write_bytes_per_second", rate)];
        }
        let found = findings(&alike, &[], None, None);
        assert_eq!((found.len(), found[0].subject.as_str()), (1, "n2"), "{found:?}");
        assert_eq!(found[0].measured, "0.40 GB/s of disk writes");
    }
}
