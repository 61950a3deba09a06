//! Diagnoses why the ranks failed, from their logs (docs/reference/diagnosis.md).

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::path::Path;

use gangline_base::Timestamp;
use gangline_diagnosis::{CgroupEvents, Evidence, KernelLog, Log, Rules, Verdict};

use super::checkup::CheckResults;
use super::node_attempt::{NodeAttempt, Stage};
use super::outcome::Stop;
use super::rank::{EndCause, Rank};
use crate::clock::utc;
use crate::protocol::{Diagnosis, FaultCause, Outcome};
use crate::shim::RankEnd;

/// Maximum number of ranks whose logs are read: those that ended first.
const RANKS_MAX: usize = 64;
/// Number of bytes read from the end of each log.
const TAIL_BYTES_MAX: u64 = 1 << 20;
/// Maximum number of quoted lines, and maximum length of each quote.
const QUOTES_MAX: usize = 3;
const QUOTE_BYTES_MAX: usize = 512;
/// Length of a log line's prefix: time, `O` or `E`, and a space after each.
const MARK_BYTES: usize = "2026-11-21T09:30:00.123456Z O ".len();

impl NodeAttempt {
    /// Adds the diagnosis of the logs and the kernel to a fault.
    pub(super) fn diagnose(&mut self, log_folder: &Path, seen: &CheckResults) {
        if let Stage::Ended(_, Outcome::Fault { fault } | Outcome::DoNotRestart { fault }) = &mut self.stage {
            let known = match &fault.cause {
                FaultCause::NotFinite { step, steps, .. } => Some(of_loss(fault.rank, *step, *steps)),
                FaultCause::Start { message } => Some(of_start(fault.rank, message)),
                _ => None,
            };
            if let Some(known) = known {
                fault.diagnosis = Some(Box::new(known));
                return;
            }
            let evidence = of_node(&self.spec.node, &fault.cause, seen);
            // Ranks that are stopped one after another tell of lost peers. Of a hang, that says nothing.
            let hung_at = Timestamp::from_unix_nanos(fault.noticed_at);
            let until = matches!(fault.cause, FaultCause::Hang { .. }).then_some(hung_at);
            let logs = Logs { node: &self.spec.node, folder: log_folder, until };
            let diagnosis = of_ranks(&self.ranks, self.stop.as_ref(), &logs, evidence);
            // A failing rank may take long to die, so its peers may end first: the rank that the logs blame
            // is the root cause.
            let blamed = diagnosis.as_ref().filter(|it| !it.is_consequence && self.node_fault.is_none());
            let blamed = self.ranks.iter().find(|rank| blamed.is_some_and(|it| it.rank == Some(rank.number)));
            if let Some((rank, ending)) = blamed.and_then(|rank| Some((rank, rank.ending()?)))
                && !ending.is_success()
                && fault.rank.is_some_and(|other| other != rank.number)
            {
                *fault = rank.fault(ending);
            }
            fault.diagnosis = diagnosis.map(Box::new);
        }
    }
}

/// Returns the kernel's evidence about a fault with this cause.
fn of_node<'a>(node: &str, cause: &FaultCause, seen: &'a CheckResults) -> Evidence<'a> {
    let mut evidence = Evidence::default();
    if !seen.kernel.is_empty() {
        evidence.kernels.push(KernelLog { node: node.to_owned(), text: &seen.kernel });
    } else if is_sigkill(cause) {
        // A kernel's log names its victims. A count doesn't: it may explain a SIGKILL, and nothing else.
        evidence.cgroups.push(CgroupEvents { node: node.to_owned(), oom_kill: seen.oom_kills });
    }
    evidence
}

/// Reports whether SIGKILL ended the process itself or, by a shell's exit code, its child.
fn is_sigkill(cause: &FaultCause) -> bool {
    const SIGKILL: i32 = 9;
    const OF_A_CHILD: i32 = 128 + SIGKILL;
    matches!(cause, FaultCause::Signal { signal: SIGKILL } | FaultCause::Exit { code: OF_A_CHILD })
}

/// The logs of a node's ranks.
struct Logs<'a> {
    node: &'a str,
    folder: &'a Path,
    /// The time after which lines are left out.
    until: Option<Timestamp>,
}

/// Returns the diagnosis of the logs of `ranks`, which have ended, together with other evidence. None if it
/// isn't clear.
fn of_ranks(ranks: &[Rank], stop: Option<&Stop>, logs: &Logs<'_>, evidence: Evidence<'_>) -> Option<Diagnosis> {
    let mut ended: Vec<(&Rank, Timestamp)> =
        ranks.iter().filter_map(|rank| Some((rank, rank.ending().filter(|ending| !ending.is_success())?.at))).collect();
    ended.sort_by_key(|(rank, at)| (*at, rank.number));
    ended.truncate(RANKS_MAX);
    let texts: Vec<Vec<u8>> = ended
        .iter()
        .map(|(rank, _)| tail(&logs.folder.join(format!("rank-{}.log", rank.number)), logs.until).unwrap_or_default())
        .collect();
    let logs = ended.iter().zip(&texts).map(|((rank, at), text)| log((rank, stop), *at, logs.node, text)).collect();
    let verdict = match Rules::new() {
        Ok(rules) => rules.classify(&Evidence { logs, ..evidence }),
        Err(error) => {
            tracing::error!(%error, "the rules of the diagnosis can't be made");
            return None;
        }
    };
    (verdict.category != gangline_diagnosis::Category::Unknown).then(|| told(verdict))
}

/// Returns the diagnosis of a command that could not be started although the platform was well: its folder is missing or
/// unreadable, say.
fn of_start(rank: Option<u32>, message: &str) -> Diagnosis {
    Diagnosis {
        category: gangline_diagnosis::Category::UserCode.name().to_owned(),
        subcategory: "cannot_start".to_owned(),
        confidence: 1.0,
        summary: format!("the command could not be started: {message}"),
        advice: "check that workdir is there and readable on the node, and that what run names can be executed"
            .to_owned(),
        rank,
        is_consequence: false,
        evidence: Vec::new(),
    }
}

/// Returns the diagnosis of a loss that stayed NaN or infinite: the ranks' logs and ends say nothing more certain.
fn of_loss(rank: Option<u32>, step: u64, steps: u32) -> Diagnosis {
    let since = step.saturating_add(1).saturating_sub(u64::from(steps));
    Diagnosis {
        category: gangline_diagnosis::Category::Numerical.name().to_owned(),
        subcategory: "loss_not_finite".to_owned(),
        confidence: 1.0,
        summary: format!("the loss has been NaN or infinite since step {since}"),
        advice: "lower the learning rate, clip gradients, or look at the data from that step on".to_owned(),
        rank,
        is_consequence: false,
        evidence: Vec::new(),
    }
}

/// Returns a rank's log. A signal that the supervisor sent to stop the rank is no evidence of a cause.
fn log<'a>((rank, stop): (&Rank, Option<&Stop>), at: Timestamp, node: &str, text: &'a [u8]) -> Log<'a> {
    let ending = rank.ending().filter(|ending| stop.is_none_or(|stop| !stop.has_ended(ending)));
    let end = ending.map(|ending| &ending.cause);
    let (exit_code, signal) = match end {
        Some(EndCause::Process(RankEnd::Exit(code))) => (Some(*code), None),
        Some(EndCause::Process(RankEnd::Signal(signal))) => (None, Some(*signal)),
        _ => (None, None),
    };
    Log {
        name: format!("rank-{}.log", rank.number),
        rank: Some(rank.number),
        node: Some(node.to_owned()),
        ended_at: Some(at),
        exit_code,
        signal,
        text,
        left_out: None,
    }
}

fn told(verdict: Verdict) -> Diagnosis {
    let quoted = |text: &str| text[..text.floor_char_boundary(QUOTE_BYTES_MAX)].to_owned();
    Diagnosis {
        category: verdict.category.name().to_owned(),
        subcategory: verdict.subcategory,
        confidence: verdict.confidence,
        summary: verdict.summary,
        advice: verdict.advice,
        rank: verdict.rank,
        is_consequence: verdict.is_consequence,
        evidence: verdict.evidence.iter().take(QUOTES_MAX).map(|quote| quoted(&quote.text)).collect(),
    }
}

/// Returns the end of a rank's log as the rank wrote it, without lines from after `until`.
fn tail(path: &Path, until: Option<Timestamp>) -> io::Result<Vec<u8>> {
    let mut file = File::open(path)?;
    let length = file.metadata()?.len();
    file.seek(SeekFrom::Start(length.saturating_sub(TAIL_BYTES_MAX)))?;
    let mut bytes = Vec::new();
    file.take(TAIL_BYTES_MAX).read_to_end(&mut bytes)?;
    let until = until.map(utc);
    let is_later = |line: &[u8]| until.as_ref().is_some_and(|until| line.get(..until.len()) > Some(until.as_bytes()));
    let mut text = Vec::with_capacity(bytes.len());
    for line in bytes.split_inclusive(|byte| *byte == b'\n').filter(|line| !is_later(line)) {
        text.extend_from_slice(line.get(MARK_BYTES..).unwrap_or_default());
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn the_end_of_a_log_is_read_without_its_marks() {
        let file = tempfile::NamedTempFile::new().expect("a file");
        let line = "2026-11-21T09:30:00.123456Z E torn".to_owned() + "\n2026-11-21T09:30:00.123456Z O whole\nshort\n";
        std::fs::write(file.path(), line).expect("it can be written");
        assert_eq!(tail(file.path(), None).expect("it can be read"), b"torn\nwhole\n");
        assert!(tail(Path::new("/nowhere"), None).is_err());
    }

    #[test]
    fn what_ranks_say_once_a_hang_is_stopped_is_left_out() {
        let file = tempfile::NamedTempFile::new().expect("a file");
        let hung_at = Timestamp::from_unix_nanos(1_795_616_045_123_456_789);
        let said = |millis: u64, text: &str| format!("{} E {text}\n", utc(hung_at + Duration::from_millis(millis)));
        let lines = [said(0, "watchdog time-out"), said(1, "ConnectionResetError"), said(2_000, "terminated")].concat();
        std::fs::write(file.path(), lines).expect("it can be written");
        assert_eq!(tail(file.path(), Some(hung_at)).expect("it can be read"), b"watchdog time-out\n");
    }
}
