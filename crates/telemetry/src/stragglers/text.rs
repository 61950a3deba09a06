//! Traces as text: CSV with a heading, and JSON lines. Both have the same columns as Parquet, in any order; others are
//! left alone.

use serde_json::{Map, Value};

use super::error::TraceError;
use super::operation::Operation;
use super::read::{COLUMNS, INTEGERS, OPERATIONS_MAX, Row, within};

/// How long a line of text may be.
pub const LINE_BYTES_MAX: usize = 1 << 16;

/// Reads CSV. No value of a trace has a comma in it, so there are no quotes.
pub(super) fn csv(bytes: &[u8]) -> Result<Vec<Operation>, TraceError> {
    let mut lines = lines(bytes, "CSV")?;
    let heading = lines.next().ok_or(TraceError::Empty)??;
    let heading: Vec<&str> = heading.split(',').map(str::trim).collect();
    let place = |name: &&str| {
        let found = heading.iter().position(|column| column == name);
        let problem = || "the trace doesn't have it".to_owned();
        found.ok_or_else(|| TraceError::Column { column: (*name).to_owned(), problem: problem() })
    };
    let places = COLUMNS.iter().map(place).collect::<Result<Vec<usize>, TraceError>>()?;
    let mut operations = Vec::new();
    for line in lines {
        let fields: Vec<&str> = line?.split(',').map(str::trim).collect();
        let row = operations.len() + 1;
        let text = |index: usize| fields.get(places[index]).copied().filter(|field| !field.is_empty());
        let mut integers = [None; INTEGERS];
        for (index, integer) in integers.iter_mut().enumerate() {
            *integer = text(index).map(|field| parsed(row, COLUMNS[index], field)).transpose()?;
        }
        let number = |index: usize| text(index).map(|field| parsed(row, COLUMNS[index], field)).transpose();
        let found = Row { integers, start: number(8)?, duration: number(9)?, kind: text(10) };
        operations.push(found.operation(row)?);
        within("operations", operations.len(), OPERATIONS_MAX)?;
    }
    Ok(operations)
}

/// Reads one object to a line.
pub(super) fn json_lines(bytes: &[u8]) -> Result<Vec<Operation>, TraceError> {
    let mut operations = Vec::new();
    for line in lines(bytes, "JSON lines")? {
        let row = operations.len() + 1;
        let object: Map<String, Value> = serde_json::from_str(line?)
            .map_err(|error| TraceError::Unreadable { format: "JSON lines", problem: format!("row {row}: {error}") })?;
        if let Some(name) = COLUMNS.into_iter().find(|name| !object.contains_key(*name)) {
            return Err(TraceError::Value { row, column: name, problem: "the row doesn't have it".to_owned() });
        }
        let value = |index: usize| object.get(COLUMNS[index]).filter(|value| !value.is_null());
        let wrong = |index: usize, value: &Value| TraceError::Value {
            row,
            column: COLUMNS[index],
            problem: format!("{} isn't a number of this column", shown(&value.to_string())),
        };
        let mut integers = [None; INTEGERS];
        for (index, integer) in integers.iter_mut().enumerate() {
            *integer = value(index).map(|value| value.as_i64().ok_or_else(|| wrong(index, value))).transpose()?;
        }
        let number = |index: usize| value(index).map(|value| value.as_f64().ok_or_else(|| wrong(index, value)));
        let (start, duration) = (number(8).transpose()?, number(9).transpose()?);
        let found = Row { integers, start, duration, kind: value(10).and_then(Value::as_str) };
        operations.push(found.operation(row)?);
        within("operations", operations.len(), OPERATIONS_MAX)?;
    }
    Ok(operations)
}

/// The lines that have something, each no longer than [`LINE_BYTES_MAX`].
fn lines<'a>(
    bytes: &'a [u8],
    format: &'static str,
) -> Result<impl Iterator<Item = Result<&'a str, TraceError>>, TraceError> {
    let refuse = |error: std::str::Utf8Error| TraceError::Unreadable { format, problem: error.to_string() };
    let text = std::str::from_utf8(bytes).map_err(refuse)?;
    let lines = text.lines().filter(|line| !line.trim().is_empty());
    Ok(lines.map(|line| within("bytes in a line", line.len(), LINE_BYTES_MAX).map(|()| line)))
}

fn parsed<T: std::str::FromStr>(row: usize, column: &'static str, field: &str) -> Result<T, TraceError> {
    field.parse().map_err(|_| TraceError::Value {
        row,
        column,
        problem: format!("{} isn't a number of this column", shown(field)),
    })
}

fn shown(text: &str) -> String {
    format!("{:?}", text.chars().take(40).collect::<String>())
}
