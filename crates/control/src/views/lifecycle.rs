//! The life of a job as spans of time, from its submission to its end, for systems that show traces.

use gangline_base::{JobId, Timestamp};
use gangline_store::db;
use gangline_store::model::{AttemptRecord, JobRecord};
use gangline_store::ports::Queries as _;

use super::job::describe;
use super::recovery::{last_end, marks_of};
use super::{Views, parts};

/// A span of a job's life.
#[derive(Clone, Debug, PartialEq)]
pub struct LifeSpan {
    /// What it is: `job`, `queue`, `attempt`, `allocation`, `start`, `init`, `restore`, `first_step`, `train` or `release`.
    pub name: &'static str,
    /// The span that it is a part of, by its place in the list; none for the job itself.
    pub parent: Option<usize>,
    /// Its beginning.
    pub from: Timestamp,
    /// Its end.
    pub to: Timestamp,
    /// What is known of it.
    pub facts: Vec<(&'static str, Fact)>,
    /// Why it failed, if it did.
    pub failure: Option<String>,
    /// The first fault in it, when it was noticed.
    pub fault: Option<(Timestamp, Vec<(&'static str, Fact)>)>,
}

/// A fact about a span.
#[derive(Clone, Debug, PartialEq)]
pub enum Fact {
    /// A text.
    Text(String),
    /// A count.
    Count(u64),
}

impl Views {
    /// Returns the life of a job that has ended, its own span first; none if there is no record of it, or if it goes on.
    ///
    /// # Errors
    /// When the read models can't be read.
    pub fn life(&self, id: JobId) -> Result<Option<Vec<LifeSpan>>, db::Error> {
        Ok(self.reader.job(id)?.and_then(|(record, _)| life(&record)))
    }
}

/// Spans in the order of their beginnings, each behind the one that it is a part of.
fn life(record: &JobRecord) -> Option<Vec<LifeSpan>> {
    let ended = record.ended_at?;
    let mut spans = vec![of_job(record, ended)];
    let mut waits_since = record.submitted_at;
    for attempt in &record.attempts {
        let to = attempt.ended_at.unwrap_or(ended);
        spans.push(span("queue", Some(0), waits_since, attempt.placed_at));
        waits_since = to;
        let parent = spans.len();
        spans.push(of_attempt(attempt, to));
        spans.extend(phases(attempt, to).into_iter().map(|(name, from, to)| span(name, Some(parent), from, to)));
    }
    if record.attempts.is_empty() {
        spans.push(span("queue", Some(0), waits_since, ended));
    }
    Some(spans)
}

fn span(name: &'static str, parent: Option<usize>, from: Timestamp, to: Timestamp) -> LifeSpan {
    LifeSpan { name, parent, from, to: to.max(from), facts: Vec::new(), failure: None, fault: None }
}

fn text(value: impl ToString) -> Fact {
    Fact::Text(value.to_string())
}

fn of_job(record: &JobRecord, ended: Timestamp) -> LifeSpan {
    let gang = parts::gang(&record.gang);
    let state = parts::state(record.state);
    let is_failure = state == gangline_api::JobState::Failed;
    let facts = vec![
        ("job_id", text(record.id)),
        ("job_name", text(&record.name)),
        ("queue", text(&record.queue)),
        ("user", text(&record.submitter)),
        ("state", text(state.name())),
        ("nodes", Fact::Count(gang.nodes.into())),
        ("accelerator", text(&gang.accelerator)),
        ("accelerators_per_node", Fact::Count(gang.accelerators_per_node.into())),
        ("attempts", Fact::Count(record.attempts.last().map_or(0, |attempt| attempt.number.into()))),
        ("faults", Fact::Count(record.faults.into())),
        ("steps", Fact::Count(record.high_water_step)),
        ("checkpoints", Fact::Count(record.checkpoints.count.into())),
    ];
    let failure = is_failure.then(|| record.because.clone());
    LifeSpan { facts, failure, ..span("job", None, record.submitted_at, ended) }
}

fn of_attempt(attempt: &AttemptRecord, to: Timestamp) -> LifeSpan {
    let nodes: Vec<&str> = attempt.shares.iter().map(|share| share.node.as_str()).collect();
    let facts = vec![
        ("attempt", Fact::Count(attempt.number.into())),
        ("nodes", text(nodes.join(","))),
        ("placed_because", text(&attempt.placed_because)),
        ("ended_because", text(attempt.ended_because.as_deref().unwrap_or_default())),
    ];
    let fault = attempt.fault.as_ref().map(|(node, fault)| {
        let mut facts = vec![("node", text(node)), ("cause", text(describe(&fault.cause)))];
        facts.extend(fault.rank.map(|rank| ("rank", Fact::Count(rank.into()))));
        facts.extend(fault.diagnosis.as_ref().map(|diagnosis| ("category", text(&diagnosis.category))));
        (Timestamp::from_unix_nanos(fault.noticed_at), facts)
    });
    let failure = fault.as_ref().and(attempt.ended_because.clone());
    LifeSpan { facts, failure, fault, ..span("attempt", Some(0), attempt.placed_at, to) }
}

/// The phases of an attempt that it came to.
fn phases(attempt: &AttemptRecord, to: Timestamp) -> Vec<(&'static str, Timestamp, Timestamp)> {
    let at = Timestamp::from_unix_nanos;
    let marks = marks_of(attempt);
    let [started, restoring, restored, stepped] =
        [marks.ranks_started, marks.restore_began, marks.restore_ended, marks.first_step].map(|mark| mark.map(at));
    let held = attempt.held_from();
    let gone = last_end(attempt).unwrap_or(to);
    let waited = attempt.allocation.as_ref().map(|_| held.unwrap_or(gone));
    let points = [
        ("allocation", waited.map(|_| attempt.placed_at), waited),
        ("start", held, started.or(Some(gone))),
        ("init", started, restoring.or(stepped).or(Some(gone))),
        ("restore", restoring, restored.or(stepped).or(Some(gone))),
        ("first_step", restoring.and(restored), stepped.or(Some(gone))),
        ("train", stepped, Some(gone)),
        ("release", Some(gone), Some(to)),
    ];
    points.into_iter().filter_map(|(name, from, to)| Some((name, from?, to?))).collect()
}
