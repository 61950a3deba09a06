//! A trace: checked operations, from rows of columns.

use super::error::TraceError;
use super::operation::{Kind, Operation};
use super::{parquet, text};

/// How many operations a trace may have.
pub const OPERATIONS_MAX: usize = 1 << 23;
/// How large a file may be.
pub const FILE_BYTES_MAX: u64 = 1 << 30;
/// How many ranks of any sort a layout may have.
pub const RANKS_MAX: u32 = 1 << 20;

/// The columns that a trace has to have, in the order of [`Row`]'s fields.
pub(super) const COLUMNS: [&str; 11] =
    ["dp_rank", "stage", "rank", "step", "seq_id", "mc", "gmc", "mb_id", "start_ts", "duration", "optype"];
/// How many of them, at the beginning, are integers; two numbers and the kind follow.
pub(super) const INTEGERS: usize = 8;
/// Which of the integers may be empty: what has no model chunk or microbatch.
const OPTIONAL: [&str; 3] = ["mc", "gmc", "mb_id"];

/// Timed operations of a gang, each with values that an operation can have. Nothing is known yet of how they fit together.
#[derive(Clone, Debug)]
pub struct Trace {
    operations: Vec<Operation>,
}

/// A row as it was found; integers are in the order of [`COLUMNS`].
pub(super) struct Row<'a> {
    pub(super) integers: [Option<i64>; INTEGERS],
    pub(super) start: Option<f64>,
    pub(super) duration: Option<f64>,
    pub(super) kind: Option<&'a str>,
}

impl Trace {
    /// Takes operations.
    ///
    /// # Errors
    /// [`TraceError::Empty`] and [`TraceError::TooLarge`]; [`TraceError::Value`] for a time that isn't finite, a negative
    /// duration, and a rank beyond [`RANKS_MAX`].
    pub fn new(operations: Vec<Operation>) -> Result<Trace, TraceError> {
        if operations.is_empty() {
            return Err(TraceError::Empty);
        }
        within("operations", operations.len(), OPERATIONS_MAX)?;
        for (row, operation) in operations.iter().enumerate() {
            check(row + 1, operation)?;
        }
        Ok(Trace { operations })
    }

    /// The operations, as they came.
    pub fn operations(&self) -> &[Operation] {
        &self.operations
    }
}

/// Reads a trace: Parquet (with Snappy or without compression), JSON lines, or CSV with a heading, by how the bytes begin.
///
/// # Errors
/// [`TraceError`], with the row and the column at fault.
pub fn read(bytes: Vec<u8>) -> Result<Trace, TraceError> {
    let most = usize::try_from(FILE_BYTES_MAX).unwrap_or(usize::MAX);
    within("bytes", bytes.len(), most)?;
    let operations = match bytes.trim_ascii_start().first() {
        None => return Err(TraceError::Empty),
        Some(_) if bytes.starts_with(parquet::MAGIC) => parquet::operations(bytes)?,
        Some(b'{') => text::json_lines(&bytes)?,
        Some(_) => text::csv(&bytes)?,
    };
    Trace::new(operations)
}

pub(super) fn within(what: &'static str, found: usize, most: usize) -> Result<(), TraceError> {
    let wide = |count: usize| u64::try_from(count).unwrap_or(u64::MAX);
    if found > most { Err(TraceError::TooLarge { what, found: wide(found), most: wide(most) }) } else { Ok(()) }
}

fn check(row: usize, operation: &Operation) -> Result<(), TraceError> {
    let wrong = |column, problem: String| Err(TraceError::Value { row, column, problem });
    if !operation.start.is_finite() {
        return wrong("start_ts", format!("{} isn't a time", operation.start));
    }
    if !operation.duration.is_finite() || operation.duration < 0.0 {
        return wrong("duration", format!("{} isn't a duration", operation.duration));
    }
    let ranks = [("dp_rank", operation.dp_rank), ("stage", operation.stage), ("rank", operation.rank)];
    match ranks.into_iter().find(|(_, rank)| *rank >= RANKS_MAX) {
        Some((column, rank)) => wrong(column, format!("{rank} isn't below {RANKS_MAX}")),
        None => Ok(()),
    }
}

impl Row<'_> {
    /// The operation of this row, which is the `row`th, counted from 1.
    pub(super) fn operation(&self, row: usize) -> Result<Operation, TraceError> {
        let kind = self.kind.ok_or_else(|| missing(row, "optype"))?;
        let kind = Kind::from_name(kind).ok_or_else(|| {
            let known: Vec<&str> = Kind::ALL.iter().map(|kind| kind.name()).collect();
            let shown: String = kind.chars().take(40).collect();
            let problem = format!("no operation {shown:?}: there are {}", known.join(", "));
            TraceError::Value { row, column: "optype", problem }
        })?;
        Ok(Operation {
            dp_rank: self.natural(row, 0)?,
            stage: self.natural(row, 1)?,
            rank: self.natural(row, 2)?,
            step: self.integers[3].ok_or_else(|| missing(row, COLUMNS[3]))?,
            kind,
            start: self.start.ok_or_else(|| missing(row, "start_ts"))?,
            duration: self.duration.ok_or_else(|| missing(row, "duration"))?,
            sequence: self.natural(row, 4)?,
            chunk: self.small(row, 5)?,
            global_chunk: self.small(row, 6)?,
            microbatch: self.small(row, 7)?,
        })
    }

    fn natural(&self, row: usize, index: usize) -> Result<u32, TraceError> {
        let value = self.integers[index].ok_or_else(|| missing(row, COLUMNS[index]))?;
        u32::try_from(value).map_err(|_| out_of_range(row, COLUMNS[index], value))
    }

    /// A number that may be absent, which is -1.
    fn small(&self, row: usize, index: usize) -> Result<i32, TraceError> {
        let value = match self.integers[index] {
            None if OPTIONAL.contains(&COLUMNS[index]) => -1,
            None => return Err(missing(row, COLUMNS[index])),
            Some(value) => value,
        };
        i32::try_from(value).map_err(|_| out_of_range(row, COLUMNS[index], value))
    }
}

fn missing(row: usize, column: &'static str) -> TraceError {
    TraceError::Value { row, column, problem: "there is no value".to_owned() }
}

fn out_of_range(row: usize, column: &'static str, value: i64) -> TraceError {
    TraceError::Value { row, column, problem: format!("{value} is out of range") }
}
