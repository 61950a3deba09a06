//! Prints findings on one screen, problems first. Measured and estimated values are marked as such.

use std::fmt::Write as _;

use gangline_execution::health::network::{NetworkReport, NodeReport, PairReport};
use gangline_execution::health::{Finding, Verdict};

use super::Report;
use crate::output;

/// Maximum number of nodes for which all pairs are shown.
const MATRIX_NODES_MAX: usize = 8;
/// Number of slowest pairs shown for more nodes.
const PAIRS_SHOWN: usize = 8;
/// Maximum width of a line.
const WIDTH: usize = 118;
/// Decimal, as network bandwidths are specified.
const GIGA: f64 = 1e9;

/// Formats the report on one machine.
pub(super) fn machine(report: &Report) -> String {
    let Report { host, cores, seconds, problems, findings } = report;
    let mut text = format!("doctor of {host}: {cores} core(s); took {seconds:.1} s\n");
    text.push_str(&troubles(findings.iter().map(|finding| (String::new(), finding))));
    text.push_str(&fine(findings));
    text.push_str(&others(findings));
    text.push_str(&verdict(*problems));
    text
}

/// Formats the report on a gang.
pub(super) fn gang(report: &NetworkReport) -> String {
    let NetworkReport { nodes, pairs, ring, findings } = report;
    let mut text = format!("doctor of {} node(s)\n\n", nodes.len());
    text.push_str(&table_of(nodes));
    text.push_str(&if nodes.len() <= MATRIX_NODES_MAX { matrix(nodes, pairs) } else { slowest(nodes, pairs) });
    let of_nodes =
        nodes.iter().flat_map(|node| node.findings.iter().map(|finding| (format!("{}: ", node.node), finding)));
    text.push_str(&troubles(of_nodes.chain(findings.iter().map(|finding| (String::new(), finding)))));
    if ring.is_some() {
        text.push_str(&fine(findings));
    }
    text.push_str(&verdict(problems(report)));
    text
}

/// Counts the problems of the nodes and between them.
pub(super) fn problems(report: &NetworkReport) -> usize {
    let own = report.nodes.iter().flat_map(|node| &node.findings);
    own.chain(&report.findings).filter(|finding| finding.verdict.is_problem()).count()
}

fn verdict(problems: usize) -> String {
    match problems {
        0 => "\nno problem found\n".to_owned(),
        1 => "\n1 problem found\n".to_owned(),
        _ => format!("\n{problems} problems found\n"),
    }
}

/// Formats the problems, worst first, each as a block.
fn troubles<'a>(findings: impl Iterator<Item = (String, &'a Finding)>) -> String {
    let mut wrong: Vec<(String, &Finding)> = findings.filter(|(_, finding)| finding.verdict.is_problem()).collect();
    wrong.sort_by_key(|(_, finding)| std::cmp::Reverse(finding.verdict));
    let mut text = String::new();
    if !wrong.is_empty() {
        text.push_str("\nWHAT A TRAINING RUN WILL SUFFER FROM\n");
    }
    for (of, finding) in wrong {
        // Writing to a String can't fail.
        let _ = writeln!(text, "{:8} {of}{}", finding.verdict.name().to_uppercase(), finding.place());
        let Finding { measured, expected, estimate, why, todo, .. } = finding;
        let rows =
            [("measured", measured), ("expected", expected), ("estimated", estimate), ("why", why), ("do", todo)];
        for (name, words) in rows.into_iter().filter(|(_, words)| !words.is_empty()) {
            let _ = writeln!(text, "  {name:9} {}", wrapped(words, 12));
        }
    }
    text
}

fn fine(findings: &[Finding]) -> String {
    let fine = findings.iter().filter(|finding| finding.verdict == Verdict::Fine);
    let mut text = String::new();
    for finding in fine {
        let estimate =
            if finding.estimate.is_empty() { String::new() } else { format!("; estimated: {}", finding.estimate) };
        let _ = writeln!(text, "  {:24} {}", finding.place(), wrapped(&format!("{}{estimate}", finding.measured), 27));
    }
    if text.is_empty() { text } else { format!("\nFINE (measured, unless it says otherwise)\n{text}") }
}

/// Formats what isn't present, and what couldn't be checked.
fn others(findings: &[Finding]) -> String {
    let mut text = String::new();
    for verdict in [Verdict::NotHere, Verdict::Unknown] {
        for finding in findings.iter().filter(|finding| finding.verdict == verdict) {
            let todo = if finding.todo.is_empty() { String::new() } else { format!("; {}", finding.todo) };
            let words = format!("{}: {}{todo}", verdict.name(), finding.measured);
            let _ = writeln!(text, "  {:24} {}", finding.place(), wrapped(&words, 27));
        }
    }
    if text.is_empty() { text } else { format!("\nNOT CHECKED\n{text}") }
}

/// Wraps words into lines that are indented by `indent` columns.
fn wrapped(words: &str, indent: usize) -> String {
    let mut text = String::new();
    let mut column = indent;
    for word in words.split_whitespace() {
        let width = word.chars().count();
        if column > indent && column + 1 + width > WIDTH {
            text.push_str(&format!("\n{}", " ".repeat(indent)));
            column = indent;
        } else if column > indent {
            text.push(' ');
            column += 1;
        }
        text.push_str(word);
        column += width;
    }
    text
}

fn table_of(nodes: &[NodeReport]) -> String {
    let row = |node: &NodeReport| {
        let wrong: Vec<String> =
            node.findings.iter().filter(|finding| finding.verdict.is_problem()).map(Finding::place).collect();
        let wrong = if wrong.is_empty() { "none".to_owned() } else { wrong.join(", ") };
        vec![node.rank.to_string(), node.node.clone(), node.address.to_string(), wrong]
    };
    output::table(&[">RANK", "NODE", "ADDRESS", "PROBLEMS OF ITS OWN"], nodes.iter().map(row).collect())
}

/// Formats bandwidth and latency between all nodes.
fn matrix(nodes: &[NodeReport], pairs: &[PairReport]) -> String {
    if nodes.len() < 2 {
        return String::new();
    }
    let headings: Vec<String> = std::iter::once("GB/s FROM \\ TO".to_owned())
        .chain(nodes.iter().map(|node| format!(">{}", node.node)))
        .collect();
    let headings: Vec<&str> = headings.iter().map(String::as_str).collect();
    let cell = |from: u32, to: u32| {
        let rate = |pair: &PairReport| {
            let figures = pair.figures?;
            if pair.from == from {
                Some(figures.forward_bytes_per_second)
            } else {
                Some(figures.backward_bytes_per_second)
            }
        };
        let pair = pairs.iter().find(|pair| [(from, to), (to, from)].contains(&(pair.from, pair.to)));
        match pair.map(rate) {
            None if from == to => "·".to_owned(),
            None => String::new(),
            Some(None) => "no".to_owned(),
            Some(Some(rate)) => format!("{:.2}", rate / GIGA),
        }
    };
    let row = |node: &NodeReport| {
        std::iter::once(node.node.clone()).chain(nodes.iter().map(|to| cell(node.rank, to.rank))).collect()
    };
    let latencies: Vec<f64> = pairs.iter().filter_map(|pair| Some(pair.figures?.latency_micros)).collect();
    let extreme = |pick: fn(f64, f64) -> f64| latencies.iter().copied().reduce(pick).unwrap_or(0.0);
    let latency =
        format!("there and back: {:.0} to {:.0} µs (medians of pairs)\n", extreme(f64::min), extreme(f64::max));
    format!("\n{}{latency}", output::table(&headings, nodes.iter().map(row).collect()))
}

/// Formats the slowest of many pairs.
fn slowest(nodes: &[NodeReport], pairs: &[PairReport]) -> String {
    let name = |rank: u32| nodes.iter().find(|node| node.rank == rank).map_or("", |node| node.node.as_str());
    let flow = |pair: &PairReport| {
        let figures = pair.figures?;
        let ways = [
            (pair.from, pair.to, figures.forward_bytes_per_second),
            (pair.to, pair.from, figures.backward_bytes_per_second),
        ];
        Some(ways.map(|(from, to, rate)| (rate, name(from), name(to), figures.latency_micros)))
    };
    let mut flows: Vec<_> = pairs.iter().filter_map(flow).flatten().collect();
    flows.sort_by(|one, other| one.0.total_cmp(&other.0));
    let median = flows.get(flows.len() / 2).map_or(0.0, |flow| flow.0);
    let row = |(rate, from, to, latency): &(f64, &str, &str, f64)| {
        vec![(*from).to_owned(), (*to).to_owned(), format!("{:.2}", rate / GIGA), format!("{latency:.0}")]
    };
    let table = output::table(
        &["FROM", "TO", ">GB/s", ">µs THERE AND BACK"],
        flows.iter().take(PAIRS_SHOWN).map(row).collect(),
    );
    format!("\n{} pair(s) measured, {:.2} GB/s the median; the slowest:\n{table}", pairs.len(), median / GIGA)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_lines_are_wrapped_at_words() {
        let words = "word ".repeat(60);
        let text = wrapped(&words, 10);
        assert!(text.lines().skip(1).all(|line| line.starts_with("          word") && line.len() <= WIDTH), "{text}");
        assert_eq!(text.split_whitespace().count(), 60);
        assert_eq!(wrapped("a b", 4), "a b");
    }
}
