//! Traces in Parquet, column by column, without Arrow.

use ::parquet::basic::Type;
use ::parquet::column::reader::{ColumnReader, ColumnReaderImpl, get_typed_column_reader};
use ::parquet::data_type::{ByteArrayType, DataType, DoubleType, FloatType, Int32Type, Int64Type};
use ::parquet::errors::ParquetError;
use ::parquet::file::reader::{FileReader, RowGroupReader, SerializedFileReader};
use bytes::Bytes;

use super::error::TraceError;
use super::operation::Operation;
use super::read::{COLUMNS, INTEGERS, OPERATIONS_MAX, Row, within};

/// How a Parquet file begins.
pub(super) const MAGIC: &[u8] = b"PAR1";
/// Rows decoded at once: what a damaged page says of itself never makes a buffer larger than this.
const BATCH: usize = 1 << 16;

/// Values of a column; what is null is `None`.
enum Column {
    Integers(Vec<Option<i64>>),
    Numbers(Vec<Option<f64>>),
    Texts(Vec<Option<::parquet::data_type::ByteArray>>),
}

/// Reads all rows.
pub(super) fn operations(bytes: Vec<u8>) -> Result<Vec<Operation>, TraceError> {
    let file = SerializedFileReader::new(Bytes::from(bytes)).map_err(unreadable)?;
    let rows = usize::try_from(file.metadata().file_metadata().num_rows()).unwrap_or(usize::MAX);
    within("operations", rows, OPERATIONS_MAX)?;
    let places = places(&file)?;
    let mut operations = Vec::new();
    for index in 0..file.num_row_groups() {
        let group = file.get_row_group(index).map_err(unreadable)?;
        let columns = places.iter().zip(COLUMNS).map(|(place, name)| column(&*group, *place, name));
        let columns = columns.collect::<Result<Vec<Column>, TraceError>>()?;
        append(&columns, &mut operations)?;
        within("operations", operations.len(), OPERATIONS_MAX)?;
    }
    Ok(operations)
}

fn unreadable(error: ParquetError) -> TraceError {
    TraceError::Unreadable { format: "Parquet", problem: error.to_string() }
}

/// Where each of [`COLUMNS`] is in the file.
fn places(file: &SerializedFileReader<Bytes>) -> Result<Vec<usize>, TraceError> {
    let schema = file.metadata().file_metadata().schema_descr();
    let place = |name: &str| {
        let found = schema.columns().iter().position(|column| column.path().string() == name);
        let refuse = |problem: &str| TraceError::Column { column: name.to_owned(), problem: problem.to_owned() };
        let index = found.ok_or_else(|| refuse("the trace doesn't have it"))?;
        let column = schema.column(index);
        match column.max_rep_level() > 0 || column.max_def_level() > 1 {
            true => Err(refuse("it is nested")),
            false => Ok(index),
        }
    };
    COLUMNS.into_iter().map(place).collect()
}

fn column(group: &dyn RowGroupReader, place: usize, name: &str) -> Result<Column, TraceError> {
    let rows = usize::try_from(group.metadata().num_rows()).unwrap_or(usize::MAX);
    within("operations", rows, OPERATIONS_MAX)?;
    let physical = group.metadata().column(place).column_descr().physical_type();
    let reader = group.get_column_reader(place).map_err(unreadable)?;
    let index = COLUMNS.iter().position(|known| *known == name).unwrap_or(COLUMNS.len());
    let column = match (physical, index) {
        (Type::INT32, 0..INTEGERS) => Column::Integers(widened(values::<Int32Type>(reader, rows).map_err(unreadable)?)),
        (Type::INT64, 0..INTEGERS) => Column::Integers(values::<Int64Type>(reader, rows).map_err(unreadable)?),
        (Type::FLOAT, 8 | 9) => Column::Numbers(widened(values::<FloatType>(reader, rows).map_err(unreadable)?)),
        (Type::DOUBLE, 8 | 9) => Column::Numbers(values::<DoubleType>(reader, rows).map_err(unreadable)?),
        (Type::BYTE_ARRAY, 10) => Column::Texts(values::<ByteArrayType>(reader, rows).map_err(unreadable)?),
        (other, _) => {
            let problem = format!("it can't be of type {other}");
            return Err(TraceError::Column { column: name.to_owned(), problem });
        }
    };
    let length = match &column {
        Column::Integers(values) => values.len(),
        Column::Numbers(values) => values.len(),
        Column::Texts(values) => values.len(),
    };
    match length == rows {
        true => Ok(column),
        false => {
            let problem = format!("it has {length} values for {rows} rows");
            Err(TraceError::Column { column: name.to_owned(), problem })
        }
    }
}

fn widened<T, U: From<T>>(values: Vec<Option<T>>) -> Vec<Option<U>> {
    values.into_iter().map(|value| value.map(U::from)).collect()
}

/// Decodes a flat column in batches; fewer values than rows is for the caller to see.
fn values<T: DataType>(reader: ColumnReader, rows: usize) -> Result<Vec<Option<T::T>>, ParquetError> {
    // The caller has matched the physical type, so this can't panic.
    let mut reader: ColumnReaderImpl<T> = get_typed_column_reader(reader);
    let mut all = Vec::new();
    while all.len() < rows {
        let (mut levels, mut values) = (Vec::new(), Vec::new());
        let (records, ..) = reader.read_records(BATCH.min(rows - all.len()), Some(&mut levels), None, &mut values)?;
        if records == 0 {
            break;
        }
        if levels.is_empty() {
            all.extend(values.into_iter().map(Some));
            continue;
        }
        let mut values = values.into_iter();
        all.extend(levels.iter().map(|level| if *level == 0 { None } else { values.next() }));
    }
    Ok(all)
}

fn append(columns: &[Column], operations: &mut Vec<Operation>) -> Result<(), TraceError> {
    let rows = columns.first().map_or(0, |column| match column {
        Column::Integers(values) => values.len(),
        Column::Numbers(_) | Column::Texts(_) => 0,
    });
    let integer = |index: usize, row: usize| match columns.get(index) {
        Some(Column::Integers(values)) => values[row],
        _ => None,
    };
    let number = |index: usize, row: usize| match columns.get(index) {
        Some(Column::Numbers(values)) => values[row],
        _ => None,
    };
    operations.reserve(rows);
    for row in 0..rows {
        let kind = match columns.get(10) {
            Some(Column::Texts(values)) => values[row].as_ref().and_then(|text| std::str::from_utf8(text.data()).ok()),
            _ => None,
        };
        let integers = std::array::from_fn(|index| integer(index, row));
        let found = Row { integers, start: number(8, row), duration: number(9, row), kind };
        operations.push(found.operation(operations.len() + 1)?);
    }
    Ok(())
}
