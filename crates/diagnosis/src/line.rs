//! Strips what terminals, launchers and loggers add around a line: colours, rank and node labels, times.

use std::borrow::Cow;

use regex_automata::meta::Regex;
use regex_automata::util::captures::Captures;

use crate::rules::{RuleError, compile};

/// Maximum number of bytes of a line that are examined: a traceback's message fits, a gigabyte of base64
/// doesn't.
const LINE_BYTES_MAX: usize = 4096;
/// Number of these bytes taken from the line's end, where long lines state the error.
const LINE_TAIL_BYTES: usize = 1024;
/// Maximum number of nested labels around a line.
const LABELS_MAX: usize = 5;

/// A line's text and the contents of its labels.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Line {
    pub(crate) text: String,
    /// The prefix of the text: labels, times, levels.
    pub(crate) label: String,
    pub(crate) rank: Option<u32>,
    pub(crate) node: Option<String>,
}

/// Strips labels from lines.
#[derive(Debug)]
pub(crate) struct Cleaner {
    labels: Vec<Regex>,
    colour: Regex,
}

/// Labels as launchers print them; `rank` and `node` are extracted from them.
const LABELS: [&str; 13] = [
    // torch.distributed since 2.3, torchrun --tee, Lightning, Megatron
    r"^\s*\[(?:global_)?(?:rank|default|trainer|worker|role|process)[ _:]?(?P<rank>\d{1,6})\]:? ?",
    // mpirun --tag-output
    r"^\[\d+,(?P<rank>\d{1,6})\]<std(?:err|out)>: ?",
    // srun --label
    r"^ *(?P<rank>\d{1,6}): ",
    // Ray: (TrainWorker pid=12, ip=10.0.0.2)
    r"^\((?:[\w.:]+ )?pid=\d+(?:, ip=(?P<node>[\w.:-]+))?\) ?",
    // SkyPilot's: (worker1, rank=1, pid=12, ip=10.0.0.2)
    r"^\((?:head|worker\d+), rank=(?P<rank>\d+), pid=\d+(?:, ip=(?P<node>[\w.:-]+))?\) ?",
    // pdsh, kubectl --prefix, and people's own
    r"^\[?(?P<node>(?:[a-z][a-z-]*-)?(?:node|host|gpu|worker|pod|compute|hgx|dgx|ip|cn|nid|c)-?\d[\w.-]*)\]?(?:: | \| |:$)",
    r"^\[(?P<node>[\w.-]+):(?:rank )?(?P<rank>\d{1,6})\]:? ",
    // ISO times, with or without brackets, as loggers and container runtimes print them
    r"^\[?\d{4}-\d{2}-\d{2}[T ]\d{2}:\d{2}:\d{2}(?:[.,]\d+)?(?:Z|[+-]\d{2}:?\d{2})?\]?(?: - |: | )?",
    r"^std(?:err|out) [FP] ",
    // glog, within brackets or not: E1206 18:44:12.715298746 file.cpp:607]
    r"^\[?[EWIF]\d{3,4} \d{2}:\d{2}:\d{2}\.\d+ ",
    // vLLM's after its level: 04-09 05:39:54 [core.py:390]
    r"^\d{2}-\d{2} \d{2}:\d{2}:\d{2} (?:\[[\w.]+:\d+\] ?)?",
    // syslog: Nov 22 12:38:16 node kernel:
    r"^[A-Z][a-z]{2} [ \d]\d \d{2}:\d{2}:\d{2} (?P<node>[\w.-]+) ",
    // Python's loggers
    r"^\[?(?:ERROR|CRITICAL|FATAL)\]?(?:: | - |:| +)",
];

/// How names of files end that loggers and compilers print before a message.
const FILES: [&str; 18] = [
    "py", "pyx", "pyc", "cpp", "cc", "cxx", "cu", "cuh", "c", "h", "hpp", "rs", "go", "sh", "log", "json", "yaml",
    "yml",
];

impl Cleaner {
    pub(crate) fn new() -> Result<Cleaner, RuleError> {
        let labels = LABELS.iter().map(|label| compile(&format!("(?-i:{label})"))).collect::<Result<_, _>>()?;
        Ok(Cleaner {
            labels,
            colour: compile(r"\x1b\[[0-9;?]*[a-z]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)|[\x00-\x08\x0e-\x1a]")?,
        })
    }

    /// Returns the text of a raw line. Keeps the indentation, which tracebacks need.
    pub(crate) fn clean(&self, raw: &[u8]) -> Line {
        let cut = shortened(raw);
        let plain = self.without_colours(&cut);
        let mut rest: &[u8] = plain.trim_ascii_end();
        let mut line = Line::default();
        for _ in 0..LABELS_MAX {
            let Some(found) = self.labels.iter().find_map(|label| captures(label, rest)) else { break };
            let named = |name| named(&found, name, rest);
            line.rank = line.rank.or_else(|| named("rank")?.parse().ok());
            line.node = line.node.or_else(|| named("node").filter(|name| !is_file(name)));
            rest = &rest[found.get_match().map_or(0, |label| label.end())..];
        }
        line.text = String::from_utf8_lossy(rest).into_owned();
        line.label =
            String::from_utf8_lossy(&plain[..plain.len().min(plain.trim_ascii_end().len() - rest.len())]).into_owned();
        line
    }

    fn without_colours<'l>(&self, line: &'l [u8]) -> Cow<'l, [u8]> {
        let mut kept = Vec::new();
        let mut from = 0;
        for colour in self.colour.find_iter(line) {
            kept.extend_from_slice(&line[from..colour.start()]);
            from = colour.end();
        }
        if from == 0 { line.into() } else { [&kept, &line[from..]].concat().into() }
    }
}

/// Returns the matches of the pattern and its groups, if it matches.
pub(crate) fn captures(regex: &Regex, text: &[u8]) -> Option<Captures> {
    let mut captures = regex.create_captures();
    regex.captures(text, &mut captures);
    captures.is_match().then_some(captures)
}

/// Returns the part of `text` that a named group matched.
pub(crate) fn named(captures: &Captures, name: &str, text: &[u8]) -> Option<String> {
    captures.get_group_by_name(name).map(|part| String::from_utf8_lossy(&text[part.range()]).into_owned())
}

/// Reports whether a name ends as that of a file of a program does, as in `c10d_logger.py: `.
fn is_file(name: &str) -> bool {
    let extension = name.rsplit_once('.').map_or("", |(_, extension)| extension);
    FILES.contains(&extension)
}

fn shortened(raw: &[u8]) -> Cow<'_, [u8]> {
    if raw.len() <= LINE_BYTES_MAX {
        return raw.into();
    }
    let (head, tail) = (&raw[..LINE_BYTES_MAX - LINE_TAIL_BYTES], &raw[raw.len() - LINE_TAIL_BYTES..]);
    [head, b" ... ", tail].concat().into()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(raw: &str, text: &str, rank: Option<u32>, node: Option<&str>) {
        let line = Cleaner::new().unwrap().clean(raw.as_bytes());
        assert_eq!((line.text.as_str(), line.rank, line.node.as_deref()), (text, rank, node), "{raw}");
    }

    #[test]
    fn labels_of_launchers_are_taken_off_and_read() {
        check("[rank3]: ValueError: no", "ValueError: no", Some(3), None);
        check("[default0]:  File \"a.py\"", " File \"a.py\"", Some(0), None);
        check("17: Killed", "Killed", Some(17), None);
        check("node-2: Bus error", "Bus error", None, Some("node-2"));
        check("c10d_logger.py: Bus error", "Bus error", None, None);
        check("worker1.train.lan: Bus error", "Bus error", None, Some("worker1.train.lan"));
        check("[1,5]<stderr>:Bus error", "Bus error", Some(5), None);
        check("(TrainWorker pid=41, ip=10.0.0.2) Bus error", "Bus error", None, Some("10.0.0.2"));
        check("(worker1, rank=3, pid=41, ip=10.0.0.2) Bus error", "Bus error", Some(3), Some("10.0.0.2"));
    }

    #[test]
    fn times_and_colours_are_taken_off_and_indentation_stays() {
        check("\u{1b}[31m2026-01-02 10:11:12,123 - ERROR - no\u{1b}[0m", "no", None, None);
        check("[rank0]:   File \"a.py\", line 3", "  File \"a.py\", line 3", Some(0), None);
        check("ERROR 04-09 05:39:54 [core.py:390] KeyError: 'x'", "KeyError: 'x'", None, None);
        check("Nov 22 12:38:16 gpu7 kernel: NVRM: Xid", "kernel: NVRM: Xid", None, Some("gpu7"));
    }

    #[test]
    fn what_only_looks_like_a_label_stays() {
        check("slurmstepd: error: no", "slurmstepd: error: no", None, None);
        check("mlx5_0: down", "mlx5_0: down", None, None);
    }

    #[test]
    fn of_an_endless_line_the_beginning_and_the_end_are_kept() {
        let raw = [&b"begin"[..], &vec![b'x'; 1 << 20], &b"end"[..]].concat();
        let text = Cleaner::new().unwrap().clean(&raw).text;
        assert!(text.starts_with("begin") && text.ends_with("end") && text.len() < LINE_BYTES_MAX + 16);
    }
}
