//! A rank's output as a bounded log file: `2026-11-21T09:30:00.123456Z O|E text` for each line. Keeps A-10:
//! the file is rotated once at its limit, long lines are split, and on a full disk lines are dropped and
//! counted, so that the rank isn't affected.

use std::collections::VecDeque;
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Duration;

use gangline_base::Timestamp;

use crate::clock::utc;

/// Longer lines are split.
pub(crate) const LINE_BYTES_MAX: usize = 16 << 10;
/// Number of last lines kept for a fault report.
pub(crate) const LAST_LINES_MAX: usize = 10;
/// Maximum length of each of those, in bytes; the rest of the line is in the file.
const LAST_LINE_BYTES_MAX: usize = 1 << 10;
/// Size up to which lines are collected before they are written.
const BATCH_BYTES_MAX: usize = 256 << 10;

/// The shortest time between two kept states of a line that is drawn again and again.
const REDRAWN_EVERY: Duration = Duration::from_secs(10);

/// The output that a line came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stream {
    /// Standard output, `O`.
    Out,
    /// Standard error, `E`.
    Err,
}

/// A log file being written.
pub(crate) struct RankLog {
    path: PathBuf,
    bytes_max: u64,
    file: Option<File>,
    written: u64,
    /// The last write failed half-way, so the next one starts a new line.
    is_torn: bool,
    batch: Vec<u8>,
    batch_lines: u64,
    unfinished: [Unfinished; 2],
    last_lines: VecDeque<String>,
    dropped: u64,
}

/// The start of a line whose end hasn't arrived yet.
#[derive(Default)]
struct Unfinished {
    text: Vec<u8>,
    /// The last byte was `\r`: a `\n` now ends the line, and anything else draws over it, as a progress bar does.
    after_return: bool,
    /// When a line that was drawn over was last kept.
    kept_at: Option<Timestamp>,
}

impl RankLog {
    /// Creates a log at `path`. At `bytes_max` the file is moved to `path` + `.1` and a new one is started.
    /// If the file can't be opened, lines are dropped and counted until it can.
    pub(crate) fn new(path: &Path, bytes_max: u64) -> Self {
        let mut log = RankLog {
            path: path.to_owned(),
            bytes_max,
            file: None,
            written: 0,
            is_torn: false,
            batch: Vec::new(),
            batch_lines: 0,
            unfinished: [Unfinished::default(), Unfinished::default()],
            last_lines: VecDeque::new(),
            dropped: 0,
        };
        log.open();
        log
    }

    /// Adds output as it arrived. `\n` and `\r\n` end a line. Of a line that `\r` draws anew again and again (a progress
    /// bar) the last state is kept, and one every [`REDRAWN_EVERY`] meanwhile.
    pub(crate) fn feed(&mut self, stream: Stream, bytes: &[u8], now: Timestamp) {
        let place = usize::from(stream == Stream::Err);
        let mut line = std::mem::take(&mut self.unfinished[place]);
        let mut rest = bytes;
        while let Some(&first) = rest.first() {
            if line.after_return {
                match first {
                    b'\r' => {
                        rest = &rest[1..];
                        continue;
                    }
                    b'\n' => {
                        self.line(stream, &line.text, now);
                        rest = &rest[1..];
                    }
                    _ => self.redrawn(stream, &mut line, now),
                }
                line.text.clear();
                line.after_return = false;
                continue;
            }
            let room = LINE_BYTES_MAX - line.text.len();
            let part = &rest[..rest.len().min(room)];
            match part.iter().position(|byte| *byte == b'\n' || *byte == b'\r') {
                Some(end) => {
                    line.text.extend_from_slice(&part[..end]);
                    line.after_return = part[end] == b'\r';
                    if !line.after_return {
                        self.line(stream, &line.text, now);
                        line.text.clear();
                    }
                    rest = &rest[end + 1..];
                }
                None => {
                    line.text.extend_from_slice(part);
                    rest = &rest[part.len()..];
                    if line.text.len() == LINE_BYTES_MAX {
                        let cut = whole_characters(&line.text);
                        self.line(stream, &line.text[..cut], now);
                        line.text.drain(..cut);
                    }
                }
            }
        }
        self.unfinished[place] = line;
        self.write_batch();
    }

    /// Handles a line that is drawn over: keeps it if none was kept for a while.
    fn redrawn(&mut self, stream: Stream, line: &mut Unfinished, now: Timestamp) {
        let is_due = line.kept_at.is_none_or(|at| now.since(at) >= REDRAWN_EVERY);
        if is_due && !line.text.is_empty() {
            line.kept_at = Some(now);
            self.line(stream, &line.text, now);
        }
    }

    /// Writes the unfinished line after the rank has ended.
    pub(crate) fn finish(&mut self, now: Timestamp) {
        for (place, stream) in [Stream::Out, Stream::Err].into_iter().enumerate() {
            let line = std::mem::take(&mut self.unfinished[place]);
            if !line.text.is_empty() {
                self.line(stream, &line.text, now);
            }
        }
        self.write_batch();
    }

    /// Returns the last lines, oldest first.
    pub(crate) fn last_lines(&self) -> Vec<String> {
        self.last_lines.iter().cloned().collect()
    }

    /// Returns the number of lines that are missing from the file.
    pub(crate) fn dropped(&self) -> u64 {
        self.dropped
    }

    /// Counts lines that were lost before they arrived here.
    pub(crate) fn count_dropped(&mut self, lines: u64) {
        self.dropped += lines;
    }

    /// Adds a line to the batch.
    fn line(&mut self, stream: Stream, text: &[u8], now: Timestamp) {
        let text = String::from_utf8_lossy(text);
        let mark = if stream == Stream::Out { 'O' } else { 'E' };
        let line = format!("{} {mark} {text}\n", utc(now));
        let pending = byte_count(self.batch.len() + line.len());
        if self.written > 0 && self.written + pending > self.bytes_max {
            self.write_batch();
            self.rotate();
        } else if self.batch.len() + line.len() > BATCH_BYTES_MAX {
            self.write_batch();
        }
        self.batch.extend_from_slice(line.as_bytes());
        self.batch_lines += 1;
        if self.last_lines.len() == LAST_LINES_MAX {
            self.last_lines.pop_front();
        }
        let kept = text.floor_char_boundary(LAST_LINE_BYTES_MAX);
        self.last_lines.push_back(text[..kept].to_owned());
    }

    /// Writes the batch; if that fails its lines are dropped and counted.
    fn write_batch(&mut self) {
        let lines = std::mem::take(&mut self.batch_lines);
        if lines == 0 {
            return;
        }
        if self.file.is_none() {
            self.open();
        }
        let is_written = self.file.as_mut().is_some_and(|file| {
            let start: &[u8] = if self.is_torn { b"\n" } else { b"" };
            file.write_all(start).and_then(|()| file.write_all(&self.batch)).is_ok()
        });
        if is_written {
            self.written += byte_count(self.batch.len());
        } else {
            self.dropped += lines;
        }
        self.is_torn = !is_written && self.file.is_some();
        self.batch.clear();
    }

    /// Moves the full file away. If that fails, truncates it instead: the limit holds either way.
    fn rotate(&mut self) {
        let mut old = self.path.clone().into_os_string();
        old.push(".1");
        let is_moved = std::fs::rename(&self.path, &old).is_ok();
        if let Some(file) = self.file.take().filter(|_| !is_moved) {
            let _ = file.set_len(0);
        }
        self.written = 0;
        self.is_torn = false;
        self.open();
    }

    fn open(&mut self) {
        self.file = OpenOptions::new().create(true).append(true).open(&self.path).ok();
        let length = self.file.as_ref().and_then(|file| file.metadata().ok()).map_or(0, |metadata| metadata.len());
        self.written = length;
    }
}

/// Returns how many bytes of a full line to write now, so that a character that may be incomplete isn't
/// split.
fn whole_characters(text: &[u8]) -> usize {
    let is_continuation = |byte: &u8| byte & 0b1100_0000 == 0b1000_0000;
    let tail = text.iter().rev().take(3).take_while(|byte| is_continuation(byte)).count();
    let lead = text.len() - tail - 1;
    if text[lead] >= 0b1100_0000 && lead > 0 { lead } else { text.len() }
}

fn byte_count(length: usize) -> u64 {
    u64::try_from(length).expect("a length fits in 64 bits")
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Timestamp = Timestamp::from_unix_nanos(1_000);

    struct Folder(tempfile::TempDir);

    impl Folder {
        fn new() -> Self {
            Folder(tempfile::tempdir().expect("a temporary folder"))
        }

        fn path(&self, name: &str) -> PathBuf {
            self.0.path().join(name)
        }

        fn log(&self) -> PathBuf {
            self.path("rank-0.log")
        }

        fn text(&self, name: &str) -> String {
            std::fs::read_to_string(self.path(name)).unwrap_or_default()
        }
    }

    fn texts(log: &str) -> Vec<&str> {
        log.lines().map(|line| &line["1970-01-01T00:00:00.000001Z ".len()..]).collect()
    }

    #[test]
    fn lines_of_both_streams_are_kept_whole_with_their_time() {
        let folder = Folder::new();
        let mut log = RankLog::new(&folder.log(), 1 << 20);
        log.feed(Stream::Out, b"hel", NOW);
        log.feed(Stream::Err, b"oops\n", NOW);
        log.feed(Stream::Out, b"lo\r\n10%\r20%\r\r30%\r\n\nbad \xff byte", NOW);
        log.finish(NOW);
        let text = folder.text("rank-0.log");
        assert!(text.starts_with("1970-01-01T00:00:00.000001Z E oops\n"), "{text}");
        assert_eq!(texts(&text), ["E oops", "O hello", "O 10%", "O 30%", "O ", "O bad \u{fffd} byte"]);
        assert_eq!(log.last_lines(), ["oops", "hello", "10%", "30%", "", "bad \u{fffd} byte"]);
        assert_eq!(log.dropped(), 0);
    }

    #[test]
    fn a_long_line_is_split_between_characters() {
        let folder = Folder::new();
        let mut log = RankLog::new(&folder.log(), 1 << 20);
        let long = format!("x{}", "é".repeat(LINE_BYTES_MAX));
        for part in long.as_bytes().chunks(1_000) {
            log.feed(Stream::Out, part, NOW);
        }
        log.finish(NOW);
        let text = folder.text("rank-0.log");
        assert!(!text.contains('\u{fffd}'));
        assert_eq!(texts(&text).iter().map(|line| &line[2..]).collect::<String>(), long);
        assert!(texts(&text).iter().all(|line| line.len() <= LINE_BYTES_MAX + 2));
    }

    /// Proves A-10 for logs: whatever a rank prints, at most twice the limit is kept, and it is the newest
    /// output.
    #[test]
    fn the_log_is_rotated_once_and_stays_below_twice_its_limit() {
        let folder = Folder::new();
        let mut log = RankLog::new(&folder.log(), 10_000);
        for number in 0..5_000 {
            log.feed(Stream::Out, format!("line {number}\n").as_bytes(), NOW);
        }
        let (old, new) = (folder.text("rank-0.log.1"), folder.text("rank-0.log"));
        assert!(old.len() <= 10_000 && new.len() <= 10_000, "{} and {}", old.len(), new.len());
        assert!(old.len() > 9_000);
        assert!(new.ends_with("O line 4999\n"));
        assert_eq!(std::fs::read_dir(folder.0.path()).expect("a folder").count(), 2);
        assert_eq!(log.last_lines().len(), LAST_LINES_MAX);
    }

    #[test]
    fn a_full_disk_drops_lines_and_counts_them() {
        let folder = Folder::new();
        std::os::unix::fs::symlink("/dev/full", folder.log()).expect("a link");
        let mut log = RankLog::new(&folder.log(), 1 << 20);
        log.feed(Stream::Out, b"one\ntwo\n", NOW);
        log.feed(Stream::Err, b"three\n", NOW);
        assert_eq!(log.dropped(), 3);
        assert_eq!(log.last_lines(), ["one", "two", "three"]);
    }

    #[test]
    fn a_log_that_cannot_be_opened_is_opened_as_soon_as_it_can() {
        let folder = Folder::new();
        let path = folder.path("not-yet/rank-0.log");
        let mut log = RankLog::new(&path, 1 << 20);
        log.feed(Stream::Out, b"one\n", NOW);
        std::fs::create_dir(folder.path("not-yet")).expect("a folder");
        log.feed(Stream::Out, b"two\n", NOW);
        assert_eq!(log.dropped(), 1);
        assert!(folder.text("not-yet/rank-0.log").ends_with("O two\n"));
    }
}
