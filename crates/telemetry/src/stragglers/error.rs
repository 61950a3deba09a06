//! Why a trace can't be analysed, with the row, column or operation at fault.

use thiserror::Error;

/// Why a trace or its layout can't be read or analysed.
#[derive(Debug, Error, PartialEq)]
pub enum TraceError {
    /// The file isn't what its beginning or its name says.
    #[error("the trace can't be read as {format}: {problem}")]
    Unreadable {
        /// What it was taken for.
        format: &'static str,
        /// What the reader says.
        problem: String,
    },
    /// There are no operations.
    #[error("the trace has no operations")]
    Empty,
    /// A limit is exceeded.
    #[error("the trace has {found} {what}, and at most {most} are analysed")]
    TooLarge {
        /// What there is too much of.
        what: &'static str,
        /// How much there is.
        found: u64,
        /// How much there may be.
        most: u64,
    },
    /// A column is missing, or of a type that it can't have.
    #[error("column {column}: {problem}")]
    Column {
        /// Which one.
        column: String,
        /// What is wrong with it.
        problem: String,
    },
    /// A value that an operation can't have.
    #[error("row {row}, column {column}: {problem}")]
    Value {
        /// The row, counted from 1, without a heading.
        row: usize,
        /// The column.
        column: &'static str,
        /// What is wrong with it.
        problem: String,
    },
    /// The layout contradicts itself or the trace.
    #[error("layout: {0}")]
    Layout(String),
    /// An operation that has no place among the others, or lacks one that it needs.
    #[error("step {step}, dp rank {dp_rank}, {operation}: {problem}")]
    Operation {
        /// The step.
        step: i64,
        /// The data-parallel rank.
        dp_rank: u32,
        /// Which operation: its kind, number and stage.
        operation: String,
        /// What is wrong with it.
        problem: String,
    },
}
