//! `logs`: prints what ranks wrote, to its end or as it grows; of several ranks in the order of time.

mod choice;
mod merge;

use clap::Args;
use gangline_api as api;
use gangline_base::Timestamp;

use crate::client::Client;
use crate::failure::Failure;
use crate::log_reader::{LogKind, LogReader, Piece, Reach, Wanted};
use crate::{moment, output};
use choice::{Pattern, Ranks};
use merge::{Merge, Read};

/// Which log, and which of its lines.
#[derive(Args, Debug)]
pub(crate) struct LogsArgs {
    /// The job's id, as job-3 or 3
    job: String,
    /// The global rank, several as 0,4-7, or all: each line then begins with its rank
    #[arg(long, default_value = "0", value_name = "RANKS")]
    rank: Ranks,
    /// Only the last N of the lines
    #[arg(short = 'n', long, value_name = "N")]
    tail: Option<usize>,
    /// Only lines since then: how long ago, as 10m or 2h, or when, as 2026-11-25T08:30
    #[arg(long, value_name = "TIME", value_parser = moment::since)]
    since: Option<Timestamp>,
    /// Only lines in which this regular expression is found; (?i) before it ignores case
    #[arg(long, value_name = "REGEX")]
    grep: Option<Pattern>,
    /// What the setup command wrote, on the rank's node
    #[arg(long, conflicts_with = "stacks")]
    setup: bool,
    /// The stacks of the ranks of its node, as they were seen when the ranks hung
    #[arg(long)]
    stacks: bool,
    /// The attempt [default: the last one]
    #[arg(long)]
    attempt: Option<u32>,
    /// Go on as it grows, through later attempts, until the job has ended
    #[arg(short, long)]
    follow: bool,
}

impl LogsArgs {
    fn wanted(&self, rank: u32) -> Wanted<'_> {
        let kind = match (self.setup, self.stacks) {
            (true, _) => LogKind::Setup,
            (_, true) => LogKind::Stacks,
            (false, false) => LogKind::Rank,
        };
        let reach = match (self.follow, self.attempt) {
            (false, _) => Reach::Now,
            (true, Some(_)) => Reach::Attempt,
            (true, None) => Reach::Job,
        };
        Wanted { job: &self.job, rank, kind, attempt: self.attempt, reach }
    }

    fn chooses_lines(&self) -> bool {
        self.tail.is_some() || self.since.is_some() || self.grep.is_some()
    }
}

pub(crate) fn run(client: &Client, args: &LogsArgs, is_json: bool) -> Result<(), Failure> {
    let ranks = args.rank.of(|| ranks_of(client, args))?;
    let [first, ..] = *ranks.as_slice() else { return Ok(()) };
    if is_json && (ranks.len() > 1 || args.chooses_lines()) {
        let hint = "leave --json out, or choose lines from what it prints";
        return Err(Failure::local("--json prints one rank's whole log, piece by piece", hint));
    }
    if is_json {
        return print_pieces(LogReader::new(client, args.wanted(first)), args.follow);
    }
    let readers = ranks.iter().map(|rank| LogReader::new(client, args.wanted(*rank)));
    let merge = Merge::new(readers.collect(), args.since, args.grep.as_ref());
    let read = merge.print(args.tail, args.follow)?;
    match read {
        Read { lines: 0, .. } if !args.follow => tell_nothing(args, &client.job(&args.job)?),
        Read { lines, printed: 0 } if !args.follow => output::tell(&format!("none of {lines} lines is chosen")),
        _ => {}
    }
    Ok(())
}

/// Returns the number of ranks of the attempt, or of the widest one if later attempts are followed too.
fn ranks_of(client: &Client, args: &LogsArgs) -> Result<u32, Failure> {
    let job = client.job(&args.job)?;
    let attempt = job.attempts.iter().rfind(|attempt| args.attempt.is_none_or(|number| number == attempt.number));
    let shares = attempt.map_or(job.gang.nodes, |attempt| u32::try_from(attempt.shares.len()).unwrap_or(u32::MAX));
    let widest = job.gang.nodes_max.unwrap_or(job.gang.nodes);
    let nodes = if args.follow { shares.max(widest) } else { shares };
    Ok(nodes.saturating_mul(job.gang.ranks_per_node))
}

/// Prints the pieces of a log as the API gives them.
fn print_pieces(mut reader: LogReader<'_>, follow: bool) -> Result<(), Failure> {
    loop {
        match reader.next()? {
            Piece::Chunk(chunk) => {
                let piece = serde_json::to_string(&chunk).map_err(|error| Failure::local(error.to_string(), ""))?;
                output::say(&piece)?;
            }
            Piece::Attempt(_) => {}
            Piece::Quiet | Piece::Missing(_) if follow => std::thread::sleep(merge::INTERVAL),
            Piece::Quiet | Piece::Missing(_) | Piece::End => return Ok(()),
        }
    }
}

/// Tells what an empty log may mean.
fn tell_nothing(args: &LogsArgs, job: &api::Job) {
    let last = job.attempts.iter().rfind(|attempt| args.attempt.is_none_or(|number| number == attempt.number));
    let Some(attempt) = last else { return };
    let id = &job.id;
    let why = attempt.fault.as_ref().map(|fault| fault.cause.as_str()).or(attempt.ended_because.as_deref());
    let hint = if why.is_some_and(|why| why.contains("setup")) {
        format!("; its output: gangline logs {id} --setup")
    } else {
        String::new()
    };
    let why = why.map(|why| format!(": {why}")).unwrap_or_default();
    output::tell(&format!("attempt {} of {id} has written nothing there{why}{hint}", attempt.number));
}
