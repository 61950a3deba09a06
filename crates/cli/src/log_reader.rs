//! Reads one log of a job, piece by piece: what there is now, or as it grows, through later attempts. `logs`, `run`
//! and `doctor --pool` read by it.

use gangline_api as api;

use crate::client::{Client, path_segment};
use crate::failure::Failure;
use crate::follow;

/// The code of the answer that there is no such log, or not yet.
const NO_LOG: &str = "G0311";

/// Which of a job's logs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum LogKind {
    /// What the rank printed.
    #[default]
    Rank,
    /// What the setup command printed on the rank's node.
    Setup,
    /// The stacks of the ranks of its node when they hung.
    Stacks,
}

impl LogKind {
    /// Returns its part of the query.
    fn query(self) -> &'static str {
        match self {
            LogKind::Rank => "",
            LogKind::Setup => "&kind=setup",
            LogKind::Stacks => "&kind=stacks",
        }
    }
}

/// How far to read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reach {
    /// To what there is now.
    Now,
    /// To the end of the attempt.
    Attempt,
    /// Through later attempts, to the end of the job.
    Job,
}

/// What was read.
#[derive(Debug)]
pub(crate) enum Piece {
    /// Whole lines. The first piece of an attempt may be empty.
    Chunk(api::LogChunk),
    /// Nothing new; more may come.
    Quiet,
    /// The job hasn't written such a log yet: it waits, say.
    Missing(Box<api::Job>),
    /// A later attempt follows, from its beginning.
    Attempt(u32),
    /// There will be no more.
    End,
}

/// Which log, and how far to read it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wanted<'a> {
    /// The job's id.
    pub(crate) job: &'a str,
    /// The global rank.
    pub(crate) rank: u32,
    /// Which of its logs.
    pub(crate) kind: LogKind,
    /// The attempt; the last one if absent.
    pub(crate) attempt: Option<u32>,
    /// How far.
    pub(crate) reach: Reach,
}

/// A position in a log.
pub(crate) struct LogReader<'a> {
    client: &'a Client,
    wanted: Wanted<'a>,
    attempt: Option<u32>,
    cursor: Option<String>,
    /// Whether the attempt's last piece was read.
    is_at_end: bool,
}

impl<'a> LogReader<'a> {
    /// Returns a reader at the beginning of a log.
    pub(crate) fn new(client: &'a Client, wanted: Wanted<'a>) -> Self {
        LogReader { client, wanted, attempt: wanted.attempt, cursor: None, is_at_end: false }
    }

    /// Returns the global rank whose log it reads.
    pub(crate) fn rank(&self) -> u32 {
        self.wanted.rank
    }

    /// Reads the next piece, without waiting for one.
    pub(crate) fn next(&mut self) -> Result<Piece, Failure> {
        if self.is_at_end {
            return self.next_attempt();
        }
        let chunk = match self.read() {
            Err(Failure::Api { status: 404, detail, .. })
                if self.wanted.reach != Reach::Now && detail.code == NO_LOG =>
            {
                let job = self.job()?;
                return Ok(if job.state.is_final() { Piece::End } else { Piece::Missing(Box::new(job)) });
            }
            read => read?,
        };
        let has_news = self.cursor.is_none() || !chunk.text.is_empty();
        self.is_at_end = chunk.is_end;
        (self.attempt, self.cursor) = (Some(chunk.attempt), Some(chunk.next.clone()));
        match (has_news, chunk.is_end) {
            (true, _) => Ok(Piece::Chunk(chunk)),
            (false, true) => self.next_attempt(),
            (false, false) => Ok(Piece::Quiet),
        }
    }

    fn read(&self) -> Result<api::LogChunk, Failure> {
        let Wanted { job, rank, kind, reach, .. } = self.wanted;
        let mut path = format!("/jobs/{}/logs?rank={rank}{}", path_segment(job), kind.query());
        path.extend(self.attempt.map(|attempt| format!("&attempt={attempt}")));
        path.extend(self.cursor.as_ref().map(|cursor| format!("&cursor={}", path_segment(cursor))));
        match reach {
            Reach::Now => self.client.get(&path),
            Reach::Attempt | Reach::Job => follow::watch(|| self.client.get(&path), |_| true),
        }
    }

    fn job(&self) -> Result<api::Job, Failure> {
        follow::watch(|| self.client.job(self.wanted.job), |_| true)
    }

    /// Goes on to the attempt after the one that was read to its end, if that is wanted and there is one.
    fn next_attempt(&mut self) -> Result<Piece, Failure> {
        if self.wanted.reach != Reach::Job {
            return Ok(Piece::End);
        }
        let job = self.job()?;
        let later = job.attempts.iter().map(|attempt| attempt.number).find(|number| Some(*number) > self.attempt);
        match later {
            Some(number) => {
                (self.attempt, self.cursor, self.is_at_end) = (Some(number), None, false);
                Ok(Piece::Attempt(number))
            }
            None if job.state.is_final() => Ok(Piece::End),
            None => Ok(Piece::Quiet),
        }
    }
}

/// A line of a log: `2026-11-21T09:30:00.123456Z O text`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Line<'a> {
    /// When it was printed; absent in logs that have no times.
    pub(crate) time: Option<&'a str>,
    /// Whether it was printed on standard error.
    pub(crate) is_error: bool,
    /// What was printed.
    pub(crate) text: &'a str,
}

impl<'a> Line<'a> {
    /// Takes a line apart.
    pub(crate) fn parse(line: &'a str) -> Line<'a> {
        let mut parts = line.splitn(3, ' ');
        match (parts.next(), parts.next(), parts.next()) {
            (Some(time), Some(stream @ ("O" | "E")), text) => {
                Line { time: Some(time), is_error: stream == "E", text: text.unwrap_or_default() }
            }
            _ => Line { time: None, is_error: false, text: line },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_its_time_its_stream_and_its_text() {
        let line = Line::parse("2026-11-21T09:30:00.123456Z E out of  memory");
        let expected = Line { time: Some("2026-11-21T09:30:00.123456Z"), is_error: true, text: "out of  memory" };
        assert_eq!(line, expected);
        assert_eq!(Line::parse("2026-11-21T09:30:00.123456Z O").text, "", "an empty line");
        assert_eq!(Line::parse("  File \"a.py\", line 3").text, "  File \"a.py\", line 3", "stacks have no times");
    }
}
