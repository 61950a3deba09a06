//! Which series a question is about, in Prometheus' query language.

use std::fmt::{self, Display, Write as _};

use gangline_base::NodeName;
use gangline_telemetry::series::{Query, Scope};

use super::client::LAG_MS;
use crate::export::{Label, METRIC, REPORTED_STEP};

/// Matchers of labels, each as it is written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Selector(Vec<String>);

impl Selector {
    /// The series that a question is about, and those of steps.
    pub(super) fn of(query: &Query, site: &[Label]) -> Selector {
        Selector::of_source(query, site).of_metrics(query)
    }

    fn of_metrics(self, query: &Query) -> Selector {
        let mut selector = self;
        if query.metrics.is_empty() {
            selector.0.push(format!("{METRIC}!=\"\""));
        } else {
            let parts = if query.with_parts { "(\\..*)?" } else { "" };
            let named = query.metrics.iter().map(|name| format!("{}{parts}", escaped(name)));
            let all: Vec<String> = named.chain([escaped(REPORTED_STEP)]).collect();
            selector.0.push(format!("{METRIC}=~{}", quoted(&all.join("|"))));
        }
        selector
    }

    /// The series of some nodes that a question is about, whatever its scope is.
    pub(super) fn of_nodes(nodes: &[NodeName], query: &Query, site: &[Label]) -> Selector {
        let names: Vec<String> = nodes.iter().map(|node| escaped(node.as_str())).collect();
        let mut selector = Selector::at(site);
        selector.0.extend([is("job_id", ""), format!("node=~{}", quoted(&names.join("|")))]);
        selector.of_metrics(query)
    }

    /// The series of the steps that the question's sources reported.
    pub(super) fn of_steps(query: &Query, site: &[Label]) -> Selector {
        let mut selector = Selector::of_source(query, site);
        selector.0.push(format!("{METRIC}={}", quoted(REPORTED_STEP)));
        selector
    }

    fn of_source(query: &Query, site: &[Label]) -> Selector {
        let Selector(mut matchers) = Selector::at(site);
        match &query.scope {
            Scope::Job(job) => matchers.push(is("job_id", &job.to_string())),
            Scope::Node(node) => matchers.extend([is("job_id", ""), is("node", node.as_str())]),
        }
        matchers.extend(query.attempt.map(|attempt| is("attempt", &attempt.0.to_string())));
        matchers.extend(query.node.as_ref().map(|node| is("node", node.as_str())));
        matchers.extend(query.rank.map(|rank| is("rank", &rank.to_string())));
        matchers.extend(query.device.map(|device| is("gpu", &device.to_string())));
        Selector(matchers)
    }

    fn at(site: &[Label]) -> Selector {
        Selector(site.iter().map(|(name, value)| is(name, value)).collect())
    }

    /// All samples of the last so many milliseconds. The range is a millisecond longer, since some servers leave out its beginning.
    pub(super) fn within(&self, ms: i64) -> String {
        format!("{self}[{}ms]", ms + 1)
    }

    /// A function of the samples of the last so many milliseconds.
    pub(super) fn over(&self, function: &str, ms: i64) -> String {
        format!("{function}({self}[{ms}ms])", ms = ms.max(1))
    }

    /// The same, of samples that are [`LAG_MS`] later than the time of evaluation.
    pub(super) fn over_later(&self, function: &str, ms: i64) -> String {
        format!("{function}({self}[{ms}ms] offset -{LAG_MS}ms)", ms = ms.max(1))
    }
}

impl Display for Selector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{{{}}}", self.0.join(","))
    }
}

/// Returns the matcher of a label.
fn is(name: &str, value: &str) -> String {
    format!("{name}={}", quoted(value))
}

/// Returns a text as a literal of the language.
fn quoted(text: &str) -> String {
    let mut literal = String::from("\"");
    for letter in text.chars() {
        match letter {
            '"' | '\\' => literal.extend(['\\', letter]),
            letter if letter.is_control() => {
                // Writing to a String can't fail.
                let _ = write!(literal, "\\u{:04x}", u32::from(letter));
            }
            letter => literal.push(letter),
        }
    }
    literal + "\""
}

/// Returns a pattern (RE2) that only this text matches.
fn escaped(text: &str) -> String {
    let mut pattern = String::new();
    for letter in text.chars() {
        if !letter.is_alphanumeric() && letter != '_' && letter.is_ascii() && !letter.is_control() {
            pattern.push('\\');
        }
        pattern.push(letter);
    }
    pattern
}

#[cfg(test)]
mod tests {
    use gangline_base::{AttemptNumber, JobId};

    use super::*;

    #[test]
    fn a_question_is_written_in_prometheus_language_and_names_are_taken_as_they_are() {
        let site = [("cluster".to_owned(), "a\"b".to_owned())];
        let job = Query {
            metrics: vec!["grad.norm/l2".to_owned(), "loss".to_owned()],
            attempt: Some(AttemptNumber(2)),
            rank: Some(0),
            ..Query::all(Scope::Job(JobId(3)), 10, 10)
        };
        let selector = Selector::of(&job, &site);
        assert_eq!(
            selector.within(99),
            r#"{cluster="a\"b",job_id="job-3",attempt="2",rank="0",metric=~"grad\\.norm\\/l2|loss|gangline\\.reported_step"}[100ms]"#
        );
        let node = NodeName::new("n1").expect("a name");
        let all = Query { device: Some(1), ..Query::all(Scope::Node(node.clone()), 10, 10) };
        assert_eq!(
            Selector::of(&all, &[]).over("max_over_time", 5),
            r#"max_over_time({job_id="",node="n1",gpu="1",metric!=""}[5ms])"#
        );
        let nodes = ["n1", "n2.rack"].map(|name| NodeName::new(name).expect("a name"));
        assert_eq!(
            Selector::of_nodes(&nodes, &all, &site).to_string(),
            r#"{cluster="a\"b",job_id="",node=~"n1|n2\\.rack",metric!=""}"#
        );
        let metrics = vec!["host.disk_busy_ratio".to_owned()];
        let parts = Query { metrics, with_parts: true, ..Query::all(Scope::Node(node), 10, 10) };
        assert!(Selector::of(&parts, &[]).to_string().contains(r#"metric=~"host\\.disk_busy_ratio(\\..*)?|"#));
    }
}
