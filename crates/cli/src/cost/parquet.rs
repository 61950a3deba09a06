//! FOCUS rows as a parquet file (<https://parquet.apache.org/docs/file-format/>): decimals and times have their types, and what has no
//! value is null.

use std::fmt::Write as _;
use std::io::Write;
use std::sync::Arc;

use ::parquet::basic::Compression;
use ::parquet::data_type::{BoolType, ByteArray, ByteArrayType, DataType, FixedLenByteArrayType, Int64Type};
use ::parquet::errors::ParquetError;
use ::parquet::file::properties::WriterProperties;
use ::parquet::file::writer::{SerializedColumnWriter, SerializedFileWriter};
use ::parquet::schema::parser::parse_message_type;
use gangline_accounting::focus::{COLUMN_COUNT, DECIMALS_MAX, Kind, Version};
use gangline_base::Day;

use crate::failure::Failure;

/// Rows that are in memory at a time: some megabytes.
const ROWS_OF_GROUP: usize = 10_000;
/// Digits of a decimal number: what 16 bytes hold.
const DIGITS: u32 = 38;
const MICROS_PER_DAY: i64 = 86_400_000_000;

/// A file that is being written.
pub(super) struct Table {
    writer: SerializedFileWriter<Box<dyn Write + Send>>,
    kinds: Vec<Kind>,
    /// The values of the rows that aren't written yet, by column.
    columns: Vec<Vec<String>>,
}

impl Table {
    pub(super) fn begin(out: Box<dyn Write + Send>, version: Version) -> Result<Table, Failure> {
        let mut schema = String::from("message focus {");
        for (name, kind) in version.columns() {
            let written = match kind {
                Kind::Text => format!("OPTIONAL BYTE_ARRAY {name} (STRING);"),
                Kind::Decimal => {
                    format!("OPTIONAL FIXED_LEN_BYTE_ARRAY (16) {name} (DECIMAL({DIGITS},{DECIMALS_MAX}));")
                }
                Kind::Time => format!("OPTIONAL INT64 {name} (TIMESTAMP(MICROS,true));"),
                Kind::Flag => format!("OPTIONAL BOOLEAN {name};"),
            };
            // Writing to a String can't fail.
            let _ = write!(schema, "{written}");
        }
        let schema = parse_message_type(&(schema + "}")).map_err(failed)?;
        let properties = WriterProperties::builder().set_compression(Compression::SNAPPY).build();
        let writer = SerializedFileWriter::new(out, Arc::new(schema), Arc::new(properties)).map_err(failed)?;
        let kinds: Vec<Kind> = version.columns().map(|(_, kind)| kind).collect();
        let columns = vec![Vec::new(); kinds.len()];
        Ok(Table { writer, kinds, columns })
    }

    pub(super) fn add(&mut self, fields: [String; COLUMN_COUNT]) -> Result<(), Failure> {
        for (column, field) in self.columns.iter_mut().zip(fields) {
            column.push(field);
        }
        if self.columns[0].len() >= ROWS_OF_GROUP { self.write_group() } else { Ok(()) }
    }

    pub(super) fn close(mut self) -> Result<(), Failure> {
        if !self.columns[0].is_empty() {
            self.write_group()?;
        }
        self.writer.close().map(drop).map_err(failed)
    }

    fn write_group(&mut self) -> Result<(), Failure> {
        let mut group = self.writer.next_row_group().map_err(failed)?;
        for (values, kind) in self.columns.iter_mut().zip(&self.kinds) {
            let mut column = group.next_column().map_err(failed)?.expect("the schema has a column for each kind");
            write_column(&mut column, &std::mem::take(values), *kind)?;
            column.close().map_err(failed)?;
        }
        group.close().map(drop).map_err(failed)
    }
}

fn write_column(column: &mut SerializedColumnWriter<'_>, texts: &[String], kind: Kind) -> Result<(), Failure> {
    match kind {
        Kind::Text => write_values::<ByteArrayType>(column, texts, |text| Some(text.into())),
        Kind::Decimal => write_values::<FixedLenByteArrayType>(column, texts, |text| {
            scaled(text).map(|number| ByteArray::from(number.to_be_bytes().to_vec()).into())
        }),
        Kind::Time => write_values::<Int64Type>(column, texts, |text| {
            let day: Day = text.get(..10)?.parse().ok()?;
            day.days_since_epoch().checked_mul(MICROS_PER_DAY)
        }),
        Kind::Flag => write_values::<BoolType>(column, texts, |text| Some(text == "true")),
    }
}

/// Writes a column's values; empty texts are null.
fn write_values<T: DataType>(
    column: &mut SerializedColumnWriter<'_>,
    texts: &[String],
    value: impl Fn(&str) -> Option<T::T>,
) -> Result<(), Failure> {
    let is_there: Vec<i16> = texts.iter().map(|text| i16::from(!text.is_empty())).collect();
    let wrong = |text: &str| Failure::local(format!("\"{text}\" doesn't fit into parquet"), "export the period as CSV");
    let there = texts.iter().filter(|text| !text.is_empty());
    let values: Vec<T::T> = there.map(|text| value(text).ok_or_else(|| wrong(text))).collect::<Result<_, _>>()?;
    column.typed::<T>().write_batch(&values, Some(&is_there), None).map(drop).map_err(failed)
}

/// Returns a decimal number as a whole number of its last possible place.
fn scaled(text: &str) -> Option<i128> {
    let (sign, digits) = text.strip_prefix('-').map_or((1, text), |digits| (-1, digits));
    let (whole, fraction) = digits.split_once('.').unwrap_or((digits, ""));
    let places = usize::try_from(DECIMALS_MAX).ok()?;
    let number: i128 = format!("{whole}{fraction:0<places$}").parse().ok()?;
    (fraction.len() <= places && number < 10_i128.pow(DIGITS)).then_some(sign * number)
}

fn failed(error: ParquetError) -> Failure {
    Failure::local(
        format!("the parquet file can't be written: {error}"),
        "look at the disk, or export the period as CSV",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn decimals_keep_all_their_places() {
        assert_eq!(scaled("3.735"), Some(3_735_000_000_000_000));
        assert_eq!(scaled("-0.000000000000001"), Some(-1));
        assert_eq!(scaled("12"), Some(12_000_000_000_000_000));
        assert_eq!(scaled("0.0000000000000001"), None, "more places than the column has");
        assert_eq!(scaled("100000000000000000000000"), None, "more digits than 16 bytes hold");
    }
}
