//! Converts all evidence to texts of one kind: logs, kernel logs, and lines made of events and exit codes.

use std::borrow::Cow;

use crate::evidence::{DeviceFault, Evidence, LeftOut, Log};
use crate::text::Text;

/// A text and its origin.
#[derive(Debug)]
pub(crate) struct Source<'a> {
    pub(crate) name: String,
    pub(crate) rank: Option<u32>,
    pub(crate) node: Option<String>,
    /// When its writer ended, in nanoseconds since the epoch.
    pub(crate) ended_at: Option<u64>,
    pub(crate) text: Cow<'a, [u8]>,
    /// Whether its lines are those of a file and have numbers.
    pub(crate) is_file: bool,
    pub(crate) left_out: Option<LeftOut>,
}

impl Source<'_> {
    /// Returns the number of the line at `offset`; 0 for a source without lines.
    pub(crate) fn line_number(&self, offset: usize) -> usize {
        let before = self.left_out.filter(|left_out| offset >= left_out.at).map_or(0, |left_out| left_out.lines);
        if self.is_file { Text::whole(&self.text).number(offset) + before } else { 0 }
    }
}

/// Returns the texts in an order that doesn't depend on the evidence's order.
pub(crate) fn sources<'a>(evidence: &'a Evidence<'_>) -> Vec<Source<'a>> {
    let mut sources: Vec<Source<'a>> = Vec::new();
    for kernel in &evidence.kernels {
        let node = Some(kernel.node.clone());
        sources.push(Source { is_file: true, ..made("kernel", node, Cow::Borrowed(kernel.text)) });
    }
    for device in &evidence.devices {
        let text = match &device.what {
            DeviceFault::Xid(number) => format!("NVRM: Xid (PCI:{}): {number}, reported by the driver", device.device),
            DeviceFault::Other(text) => format!("{}: {text}", device.device),
        };
        sources.push(made("device", Some(device.node.clone()), Cow::Owned(text.into_bytes())));
    }
    for cgroup in evidence.cgroups.iter().filter(|cgroup| cgroup.oom_kill > 0) {
        let text = format!("memory.events: oom_kill {}", cgroup.oom_kill);
        sources.push(made("cgroup", Some(cgroup.node.clone()), Cow::Owned(text.into_bytes())));
    }
    sources.extend(evidence.logs.iter().flat_map(log_and_end));
    sources.extend(end("run", evidence.exit_code, evidence.signal));
    sources.sort_by(|a, b| {
        let key = |source: &Source<'_>| (source.ended_at.unwrap_or(u64::MAX), source.rank.unwrap_or(u32::MAX));
        key(a).cmp(&key(b)).then_with(|| (&a.name, &a.node, &a.text).cmp(&(&b.name, &b.node, &b.text)))
    });
    sources
}

fn log_and_end<'a>(log: &'a Log<'_>) -> impl Iterator<Item = Source<'a>> {
    let whose = move |source: Source<'a>| Source {
        rank: log.rank,
        node: log.node.clone(),
        ended_at: log.ended_at.map(gangline_base::Timestamp::unix_nanos),
        ..source
    };
    let text = Source { is_file: true, left_out: log.left_out, ..made(&log.name, None, Cow::Borrowed(log.text)) };
    std::iter::once(text).chain(end(&log.name, log.exit_code, log.signal)).map(whose)
}

/// Describes an exit code or signal in words that rules know.
fn end<'a>(name: &str, exit_code: Option<i32>, signal: Option<i32>) -> Option<Source<'a>> {
    let text = match (signal, exit_code) {
        (Some(signal), _) => format!("ended by signal {signal}"),
        (None, Some(code)) if code != 0 => format!("exit code {code}"),
        _ => return None,
    };
    Some(made(name, None, Cow::Owned(text.into_bytes())))
}

fn made<'a>(name: &str, node: Option<String>, text: Cow<'a, [u8]>) -> Source<'a> {
    Source { name: name.to_owned(), rank: None, node, ended_at: None, text, is_file: false, left_out: None }
}
