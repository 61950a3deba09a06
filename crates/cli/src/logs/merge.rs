//! Several logs as one, in the order of time. Each line begins with its time, so the oldest first line of all logs is
//! the next one. A log without news now isn't waited for.

use std::collections::VecDeque;
use std::time::Duration;

use gangline_base::Timestamp;

use super::choice::Pattern;
use crate::failure::Failure;
use crate::log_reader::{Line, LogReader, Piece};
use crate::output;

/// Interval between two checks for more.
pub(super) const INTERVAL: Duration = Duration::from_millis(300);
/// Text that is collected before it is printed, in bytes.
const BATCH_BYTES_MAX: usize = 256 << 10;

/// One of the logs.
struct Source<'a> {
    reader: LogReader<'a>,
    /// Lines that were read and not printed yet, each with its time. A line without one has that of the line before.
    lines: VecDeque<(String, String)>,
    last_time: String,
    has_ended: bool,
}

/// The logs, and which of their lines are printed.
pub(super) struct Merge<'a> {
    sources: Vec<Source<'a>>,
    /// Times as logs have them are compared as texts.
    since: Option<String>,
    pattern: Option<&'a Pattern>,
    read: Read,
    /// The last attempt that was announced.
    announced: u32,
}

/// How many lines there were.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Read {
    /// All.
    pub(super) lines: u64,
    /// Those that were printed.
    pub(super) printed: u64,
}

impl<'a> Merge<'a> {
    pub(super) fn new(readers: Vec<LogReader<'a>>, since: Option<Timestamp>, pattern: Option<&'a Pattern>) -> Self {
        let source = |reader| Source { reader, lines: VecDeque::new(), last_time: String::new(), has_ended: false };
        let sources = readers.into_iter().map(source).collect();
        Merge { sources, since: since.map(as_logged), pattern, read: Read::default(), announced: 0 }
    }

    /// Prints the lines that there are, only the last `tail` of them if that is given; then, if `follow`, those that
    /// come, until all logs have ended.
    pub(super) fn print(mut self, tail: Option<usize>, follow: bool) -> Result<Read, Failure> {
        let mut held = tail.map(|most| (most, VecDeque::new()));
        let mut text = String::new();
        loop {
            self.fill()?;
            let is_quiet = self.sources.iter().all(|source| source.lines.is_empty());
            while let Some((line, is_last_of_source)) = self.oldest() {
                match &mut held {
                    Some((most, lines)) => {
                        lines.push_back(line);
                        let excess = lines.len().saturating_sub(*most);
                        lines.drain(..excess);
                    }
                    None => text.push_str(&line),
                }
                if is_last_of_source || text.len() > BATCH_BYTES_MAX {
                    break;
                }
            }
            if is_quiet && let Some((_, lines)) = held.take() {
                text.extend(lines);
            }
            self.read.printed += u64::try_from(text.lines().count()).unwrap_or(u64::MAX);
            output::print(&text)?;
            text.clear();
            if is_quiet && (!follow || self.sources.iter().all(|source| source.has_ended)) {
                return Ok(self.read);
            }
            if is_quiet {
                std::thread::sleep(INTERVAL);
            }
        }
    }

    /// Reads a piece of each log that has no line left.
    fn fill(&mut self) -> Result<(), Failure> {
        for source in self.sources.iter_mut().filter(|source| source.lines.is_empty() && !source.has_ended) {
            match source.reader.next()? {
                Piece::Chunk(chunk) => self.read.lines += source.take(&chunk.text),
                Piece::Attempt(number) if number > self.announced => {
                    output::tell(&format!("--- attempt {number} ---"));
                    self.announced = number;
                }
                Piece::Attempt(_) | Piece::Quiet | Piece::Missing(_) => {}
                Piece::End => source.has_ended = true,
            }
        }
        Ok(())
    }

    /// Takes the oldest chosen line, and says whether it was the last that was read of its log.
    fn oldest(&mut self) -> Option<(String, bool)> {
        let is_one = self.sources.len() == 1;
        loop {
            let with_lines = self.sources.iter_mut().filter(|source| !source.lines.is_empty());
            let source =
                with_lines.min_by(|a, b| a.lines.front().map(|(at, _)| at).cmp(&b.lines.front().map(|(at, _)| at)))?;
            let (time, line) = source.lines.pop_front()?;
            let is_last = source.lines.is_empty();
            let is_recent = self.since.as_ref().is_none_or(|since| *since <= time);
            if is_recent && self.pattern.is_none_or(|pattern| pattern.is_in(Line::parse(&line).text)) {
                let rank = source.reader.rank();
                let line = if is_one { format!("{line}\n") } else { format!("[rank {rank}] {line}\n") };
                return Some((line, is_last));
            }
            if is_last {
                return None;
            }
        }
    }
}

impl Source<'_> {
    /// Takes lines in, and returns how many.
    fn take(&mut self, text: &str) -> u64 {
        for line in text.lines() {
            if let Some(time) = Line::parse(line).time {
                time.clone_into(&mut self.last_time);
            }
            self.lines.push_back((self.last_time.clone(), line.to_owned()));
        }
        u64::try_from(self.lines.len()).unwrap_or(u64::MAX)
    }
}

/// Formats a time as logs have it, to the microsecond in UTC.
fn as_logged(time: Timestamp) -> String {
    let at = jiff::Timestamp::from_nanosecond(i128::from(time.unix_nanos())).unwrap_or(jiff::Timestamp::MAX);
    at.strftime("%Y-%m-%dT%H:%M:%S%.6fZ").to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_compared_as_logs_write_them() {
        let at = Timestamp::from_unix_nanos(1_795_597_200_000_001_000);
        assert_eq!(as_logged(at), "2026-11-25T09:00:00.000001Z");
    }
}
