//! Published tables: CSV files whose first line names the columns.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};

/// A table as read.
#[derive(Debug)]
pub(super) struct Table {
    /// Its file.
    pub(super) path: PathBuf,
    columns: Vec<String>,
    /// Its rows in order.
    pub(super) rows: Vec<Row>,
}

/// A row: what it says by column. A column that the file lacks reads as if it were empty.
#[derive(Clone, Debug, Default)]
pub(super) struct Row {
    fields: BTreeMap<String, String>,
}

impl Table {
    /// Whether there is such a column.
    pub(super) fn has(&self, column: &str) -> bool {
        self.columns.iter().any(|known| known == column)
    }
}

impl Row {
    /// The field's text without spaces around it; empty if there is none.
    pub(super) fn text(&self, column: &str) -> &str {
        self.fields.get(column).map_or("", |field| field.trim())
    }

    /// What its errors are summed with: its table, or without one its source.
    pub(super) fn source(&self) -> &str {
        let table = self.text("table");
        if table.is_empty() { self.text("source") } else { table }
    }

    /// The field's text in small letters.
    pub(super) fn lower(&self, column: &str) -> String {
        self.text(column).to_lowercase()
    }

    /// The field's number, if it has a positive, finite one.
    pub(super) fn number(&self, column: &str) -> Option<f64> {
        self.text(column).parse().ok().filter(|number: &f64| number.is_finite() && *number > 0.0)
    }

    /// The field's whole number, if it has a positive one; `4.0` is 4.
    pub(super) fn count(&self, column: &str) -> Option<u32> {
        let number = self.number(column).filter(|number| number.fract() == 0.0)?;
        format!("{number:.0}").parse().ok()
    }

    /// The same row with a field that says something else.
    pub(super) fn with(&self, column: &str, text: &str) -> Self {
        let mut changed = self.clone();
        changed.fields.insert(column.to_owned(), text.to_owned());
        changed
    }

    /// A row of these fields, for tests.
    #[cfg(test)]
    pub(super) fn of(fields: &[(&str, &str)]) -> Self {
        Row { fields: fields.iter().map(|(column, text)| ((*column).to_owned(), (*text).to_owned())).collect() }
    }
}

/// Reads a table.
///
/// # Errors
/// When the file can't be read or a row has another number of fields than the header.
pub(super) fn read(path: &Path) -> Result<Table> {
    let mut reader = csv::Reader::from_path(path).with_context(|| format!("read {}", path.display()))?;
    let header = reader.headers().with_context(|| format!("read the header of {}", path.display()))?;
    let columns: Vec<String> = header.iter().map(|name| name.trim().to_owned()).collect();
    let mut rows = Vec::new();
    for record in reader.records() {
        let record = record.with_context(|| format!("read {}", path.display()))?;
        let fields = columns.iter().cloned().zip(record.iter().map(str::to_owned)).collect();
        rows.push(Row { fields });
    }
    Ok(Table { path: path.to_owned(), columns, rows })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quoted_fields_keep_commas_and_numbers_are_positive() {
        let folder = std::env::temp_dir().join(format!("gangline-table-{}", std::process::id()));
        std::fs::write(&folder, "id,notes,seq,gbs\na,\"x, y\",2048,4.0\nb,,nan,-1\n").unwrap();
        let table = read(&folder).unwrap();
        std::fs::remove_file(&folder).unwrap();
        assert!(table.has("seq") && !table.has("tp"));
        assert_eq!(table.rows[0].text("notes"), "x, y");
        assert_eq!((table.rows[0].number("seq"), table.rows[0].count("gbs")), (Some(2048.0), Some(4)));
        assert_eq!((table.rows[1].number("seq"), table.rows[1].count("gbs")), (None, None));
        assert_eq!(table.rows[1].text("tp"), "");
    }

    #[test]
    fn a_file_that_is_absent_or_ragged_is_named() {
        assert!(read(Path::new("/nowhere/x.csv")).unwrap_err().to_string().contains("/nowhere/x.csv"));
        let path = std::env::temp_dir().join(format!("gangline-ragged-{}", std::process::id()));
        std::fs::write(&path, "id,seq\na,1,2\n").unwrap();
        let error = read(&path).unwrap_err().to_string();
        std::fs::remove_file(&path).unwrap();
        assert!(error.contains("gangline-ragged"), "{error}");
    }
}
