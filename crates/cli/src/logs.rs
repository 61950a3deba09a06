//! `logs`: prints a rank's log, to its end or as it grows.

use std::time::Duration;

use clap::Args;
use gangline_api as api;

use crate::client::{Client, path_segment};
use crate::failure::Failure;
use crate::output;

/// Interval between two checks for more.
const FOLLOW_INTERVAL: Duration = Duration::from_millis(300);

/// Which log.
#[derive(Args, Debug)]
pub(crate) struct LogsArgs {
    /// The job's id, as job-3 or 3
    job: String,
    /// The global rank
    #[arg(long, default_value_t = 0)]
    rank: u32,
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
    /// Returns the query's part that names another log than the rank's own.
    fn kind(&self) -> &'static str {
        match (self.setup, self.stacks) {
            (true, _) => "&kind=setup",
            (_, true) => "&kind=stacks",
            (false, false) => "",
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

pub(crate) fn run(client: &Client, args: &LogsArgs, is_json: bool) -> Result<(), Failure> {
    let mut attempt = args.attempt;
    let mut cursor: Option<String> = None;
    loop {
        let mut query = format!("?rank={}{}", args.rank, args.kind());
        query.extend(attempt.map(|attempt| format!("&attempt={attempt}")));
        query.extend(cursor.as_ref().map(|cursor| format!("&cursor={}", path_segment(cursor))));
        let path = format!("/jobs/{}/logs{query}", path_segment(&args.job));
        let chunk = match client.get::<api::LogChunk>(&path) {
            // The log is followed before the rank has started.
            Err(Failure::Api { status: 404, detail, .. }) if args.follow && detail.code == "G0311" => {
                if client.job(&args.job)?.state.is_final() {
                    return Ok(());
                }
                std::thread::sleep(FOLLOW_INTERVAL);
                continue;
            }
            other => other?,
        };
        let has_more = !chunk.text.is_empty();
        if !has_more && cursor.is_none() && !args.follow && !is_json {
            tell_nothing(args, &client.job(&args.job)?);
        }
        if is_json {
            output::say(&serde_json::to_string(&chunk).map_err(|e| Failure::local(e.to_string(), ""))?)?;
        } else {
            output::print(&chunk.text)?;
        }
        attempt = Some(chunk.attempt);
        cursor = Some(chunk.next.clone());
        if chunk.is_end {
            match next_attempt(client, args, chunk.attempt)? {
                Some(next) => (attempt, cursor) = (Some(next), None),
                None => return Ok(()),
            }
        } else if !has_more {
            if !args.follow {
                return Ok(());
            }
            std::thread::sleep(FOLLOW_INTERVAL);
        }
    }
}

/// Returns the attempt to follow after one has ended; none if there is no other.
fn next_attempt(client: &Client, args: &LogsArgs, after: u32) -> Result<Option<u32>, Failure> {
    if !args.follow || args.attempt.is_some() {
        return Ok(None);
    }
    loop {
        let job = client.job(&args.job)?;
        if let Some(next) = job.attempts.iter().find(|attempt| attempt.number > after) {
            output::tell(&format!("--- attempt {} ---", next.number));
            return Ok(Some(next.number));
        }
        if job.state.is_final() {
            return Ok(None);
        }
        std::thread::sleep(FOLLOW_INTERVAL);
    }
}
