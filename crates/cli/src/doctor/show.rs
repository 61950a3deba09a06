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
/// Nodes with the same problem that are named.
const NODES_SHOWN: usize = 8;
/// Maximum width of a line.
const WIDTH: usize = 118;
/// Decimal, as network bandwidths are specified.
const GIGA: f64 = 1e9;

/// Formats the report on one machine.
pub(super) fn machine(report: &Report) -> String {
    let Report { host, cores, seconds, problems, findings } = report;
    let mut text = format!("doctor of {host}: {cores} core(s); took {seconds:.1} s\n");
    text.push_str(&troubles(findings.iter().map(|finding| (None, finding))));
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
        nodes.iter().flat_map(|node| node.findings.iter().map(|finding| (Some(node.node.as_str()), finding)));
    text.push_str(&troubles(of_nodes.chain(findings.iter().map(|finding| (None, finding)))));
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

/// Formats the problems, worst first, each as a block; one that several nodes have is one block.
fn troubles<'a>(findings: impl Iterator<Item = (Option<&'a str>, &'a Finding)>) -> String {
    let mut wrong: Vec<Vec<(Option<&str>, &Finding)>> = Vec::new();
    for (node, finding) in findings.filter(|(_, finding)| finding.verdict.is_problem()) {
        let alike =
            wrong.iter_mut().find(|others| node.is_some() && others[0].0.is_some() && is_same(others[0].1, finding));
        match alike {
            Some(others) => others.push((node, finding)),
            None => wrong.push(vec![(node, finding)]),
        }
    }
    wrong.sort_by_key(|alike| std::cmp::Reverse(alike[0].1.verdict));
    let mut text = String::new();
    if !wrong.is_empty() {
        text.push_str("\nWHAT A TRAINING RUN WILL SUFFER FROM\n");
    }
    for alike in wrong {
        let finding = alike[0].1;
        let of = nodes_of(&alike).map(|nodes| format!("{nodes}: ")).unwrap_or_default();
        // Writing to a String can't fail.
        let _ = writeln!(text, "{:8} {of}{}", finding.verdict.name().to_uppercase(), finding.place());
        let (measured, estimate) =
            (of_each(&alike, |finding| &finding.measured), of_each(&alike, |finding| &finding.estimate));
        let Finding { expected, why, todo, .. } = finding;
        let rows =
            [("measured", &measured), ("expected", expected), ("estimated", &estimate), ("why", why), ("do", todo)];
        for (name, words) in rows.into_iter().filter(|(_, words)| !words.is_empty()) {
            let _ = writeln!(text, "  {name:9} {}", wrapped(words, 12));
        }
    }
    text
}

/// Reports whether findings of two nodes are the same problem; what was measured may differ.
fn is_same(one: &Finding, other: &Finding) -> bool {
    let problem = |finding: &Finding| {
        let Finding { verdict, expected, why, todo, .. } = finding;
        (*verdict, finding.place(), expected.clone(), why.clone(), todo.clone())
    };
    problem(one) == problem(other)
}

/// Formats the nodes that have a problem.
fn nodes_of(alike: &[(Option<&str>, &Finding)]) -> Option<String> {
    let names: Vec<&str> = alike.iter().filter_map(|(node, _)| *node).collect();
    let shown = names.iter().take(NODES_SHOWN).copied().collect::<Vec<_>>().join(", ");
    match names.len() {
        0 => None,
        few if few <= NODES_SHOWN => Some(shown),
        many => Some(format!("{shown} and {} more nodes", many - NODES_SHOWN)),
    }
}

/// Returns what is said of the nodes: once if it is the same for all, otherwise with each node's name.
fn of_each(alike: &[(Option<&str>, &Finding)], said: impl Fn(&Finding) -> &String) -> String {
    let first = said(alike[0].1);
    if alike.iter().all(|(_, finding)| said(finding) == first) {
        return first.clone();
    }
    let of_node =
        |(node, finding): &(Option<&str>, &Finding)| format!("{} ({})", said(finding), node.unwrap_or_default());
    let shown = alike.iter().take(NODES_SHOWN).map(of_node).collect::<Vec<_>>().join("; ");
    let left_out = alike.len().saturating_sub(NODES_SHOWN);
    if left_out > 0 { format!("{shown}; and {left_out} more") } else { shown }
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

    fn finding(measured: &str, verdict: Verdict) -> Finding {
        Finding {
            check: "clock".to_owned(),
            subject: String::new(),
            verdict,
            measured: measured.to_owned(),
            expected: "below 1 s".to_owned(),
            why: "logs can't be put in order".to_owned(),
            todo: "start chrony".to_owned(),
            estimate: String::new(),
            figures: Default::default(),
        }
    }

    #[test]
    fn what_several_nodes_suffer_from_is_said_once() {
        let findings =
            [finding("3 s", Verdict::Warning), finding("5 s", Verdict::Warning), finding("0 s", Verdict::Fine)];
        let text = troubles([Some("n1"), Some("n2"), Some("n3")].into_iter().zip(&findings));
        assert!(text.contains("n1, n2: clock\n") && text.contains("measured  3 s (n1); 5 s (n2)\n"), "{text}");
        assert_eq!((text.matches("start chrony").count(), text.contains("n3")), (1, false), "{text}");
        let all: Vec<String> = (1..=20).map(|number| format!("n{number}")).collect();
        let text = troubles(all.iter().map(|node| (Some(node.as_str()), &findings[0])));
        assert!(text.contains("n7, n8 and 12 more nodes: clock\n") && text.contains("measured  3 s\n"), "{text}");
        let apart = troubles([(None, &findings[0]), (Some("n1"), &findings[0])].into_iter());
        assert_eq!(apart.matches("start chrony").count(), 2, "one is between nodes: {apart}");
    }

    #[test]
    fn long_lines_are_wrapped_at_words() {
        let words = "word ".repeat(60);
        let text = wrapped(&words, 10);
        assert!(text.lines().skip(1).all(|line| line.starts_with("          word") && line.len() <= WIDTH), "{text}");
        assert_eq!(text.split_whitespace().count(), 60);
        assert_eq!(wrapped("a b", 4), "a b");
    }
}
