//! What a series is, and what is stored: points, in batches from one source.

use gangline_base::{AttemptNumber, JobId, NodeName, Step, Timestamp};

use super::bytes::{Reader, Writer};

/// What a source belongs to. Queries are about one scope.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Scope {
    /// A job, with all its attempts.
    Job(JobId),
    /// A node, whatever runs there.
    Node(NodeName),
}

/// Who measured. Rows of a source are numbered, so it is also what a repeated batch is recognised by.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Source {
    /// The job or node.
    pub scope: Scope,
    /// The job's attempt.
    pub attempt: Option<AttemptNumber>,
    /// The node on which it was measured.
    pub node: Option<NodeName>,
    /// The global rank.
    pub rank: Option<u32>,
    /// The device's index on its node.
    pub device: Option<u32>,
}

/// One curve: a metric of a source.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Series {
    /// Who measured it.
    pub source: Source,
    /// The metric's name.
    pub metric: String,
}

/// One value of a series.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Point {
    /// When it was measured; stored to the millisecond.
    pub at: Timestamp,
    /// The training step, if it belongs to one.
    pub step: Option<Step>,
    /// The value; NaN and infinities are kept, bit by bit.
    pub value: f64,
}

/// Values that a source measured at one time.
#[derive(Clone, Debug, PartialEq)]
pub struct Row {
    /// When.
    pub at: Timestamp,
    /// The training step, if they belong to one.
    pub step: Option<Step>,
    /// Values, each with the index of its name in [`Batch::names`].
    pub values: Vec<(u32, f64)>,
}

/// Consecutive rows of one source.
#[derive(Clone, Debug, PartialEq)]
pub struct Batch {
    /// Who measured.
    pub source: Source,
    /// The number of the first row. A source numbers its rows from 0 without gaps; rows that are already stored are
    /// skipped.
    pub first: u64,
    /// Names of metrics.
    pub names: Vec<String>,
    /// The rows, in order.
    pub rows: Vec<Row>,
}

impl Scope {
    /// Returns a source that is before all others of this scope.
    pub(super) fn lowest(&self) -> Source {
        Source { scope: self.clone(), attempt: None, node: None, rank: None, device: None }
    }

    pub(super) fn write(&self, to: &mut Writer) {
        match self {
            Scope::Job(job) => {
                to.unsigned(0);
                to.unsigned(job.0);
            }
            Scope::Node(node) => {
                to.unsigned(1);
                to.text(node.as_str());
            }
        }
    }

    pub(super) fn read(from: &mut Reader<'_>) -> Option<Scope> {
        match from.unsigned()? {
            0 => Some(Scope::Job(JobId(from.unsigned()?))),
            1 => Some(Scope::Node(NodeName::new(from.text()?).ok()?)),
            _ => None,
        }
    }
}

impl Source {
    pub(super) fn write(&self, to: &mut Writer) {
        self.scope.write(to);
        to.optional(self.attempt.map(|attempt| u64::from(attempt.0)));
        to.text(self.node.as_ref().map_or("", NodeName::as_str));
        to.optional(self.rank.map(u64::from));
        to.optional(self.device.map(u64::from));
    }

    pub(super) fn read(from: &mut Reader<'_>) -> Option<Source> {
        let scope = Scope::read(from)?;
        let attempt = from.optional_small()?.map(AttemptNumber);
        let node = match from.text()? {
            "" => None,
            name => Some(NodeName::new(name).ok()?),
        };
        Some(Source { scope, attempt, node, rank: from.optional_small()?, device: from.optional_small()? })
    }
}

impl Batch {
    /// Returns the batch as the log has it.
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut to = Writer::default();
        self.source.write(&mut to);
        to.unsigned(self.first);
        to.count(self.names.len());
        self.names.iter().for_each(|name| to.text(name));
        to.count(self.rows.len());
        for row in &self.rows {
            to.unsigned(row.at.unix_nanos());
            to.optional(row.step.map(|step| step.0));
            to.count(row.values.len());
            for (name, value) in &row.values {
                to.unsigned(u64::from(*name));
                to.float(*value);
            }
        }
        to.0
    }

    pub(super) fn decode(bytes: &[u8]) -> Option<Batch> {
        let from = &mut Reader(bytes);
        let source = Source::read(from)?;
        let first = from.unsigned()?;
        let names = (0..from.count()?).map(|_| from.text().map(str::to_owned)).collect::<Option<Vec<_>>>()?;
        let rows = (0..from.count()?).map(|_| Row::read(from)).collect::<Option<Vec<_>>>()?;
        from.0.is_empty().then_some(Batch { source, first, names, rows })
    }
}

impl Row {
    fn read(from: &mut Reader<'_>) -> Option<Row> {
        let at = Timestamp::from_unix_nanos(from.unsigned()?);
        let step = from.optional()?.map(Step);
        let values = (0..from.count()?).map(|_| Some((from.small()?, from.float()?))).collect::<Option<Vec<_>>>()?;
        Some(Row { at, step, values })
    }
}
