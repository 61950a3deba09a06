//! Output: data on stdout, everything else on stderr.

use std::io::{self, Write};
use std::time::Duration;

use comfy_table::{Cell, CellAlignment, Table, presets};
use gangline_api::Time;
use gangline_base::Timestamp;
use serde::Serialize;

use crate::failure::Failure;

/// Writes to stdout. A closed pipe (`gangline ps | head`) isn't an error.
pub(crate) fn print(text: &str) -> Result<(), Failure> {
    let mut stdout = io::stdout().lock();
    match stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(error.into()),
        _ => Ok(()),
    }
}

/// Writes a line to stdout.
pub(crate) fn say(line: &str) -> Result<(), Failure> {
    print(&format!("{line}\n"))
}

/// Writes a line to stderr. Ignores failures, which must not end a control plane.
pub(crate) fn tell(line: &str) {
    let _ = writeln!(io::stderr(), "{line}");
}

/// Writes JSON to stdout.
pub(crate) fn json(value: &impl Serialize) -> Result<(), Failure> {
    let text = serde_json::to_string_pretty(value).map_err(|error| Failure::local(error.to_string(), ""))?;
    say(&text)
}

/// Formats a plain table; columns whose heading starts with `>` are aligned to the right.
pub(crate) fn table(headings: &[&str], rows: Vec<Vec<String>>) -> String {
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    let aligned = |index: usize, text: &str| {
        let is_right = headings.get(index).is_some_and(|heading| heading.starts_with('>'));
        Cell::new(text).set_alignment(if is_right { CellAlignment::Right } else { CellAlignment::Left })
    };
    table.set_header(headings.iter().enumerate().map(|(index, text)| aligned(index, text.trim_start_matches('>'))));
    for row in rows {
        table.add_row(row.iter().enumerate().map(|(index, text)| aligned(index, text)));
    }
    for column in table.column_iter_mut() {
        column.set_padding((0, 2));
    }
    let lines: Vec<String> = table.lines().map(|line| line.trim_end().to_owned()).collect();
    lines.join("\n") + "\n"
}

/// Formats a duration for people: `850 ms`, `12.3 s`, `4m 05s`, `3h 20m`, `2d 4h`.
pub(crate) fn duration(duration: Duration) -> String {
    let seconds = duration.as_secs();
    match seconds {
        0 => format!("{} ms", duration.as_millis()),
        1..60 => format!("{:.1} s", duration.as_secs_f64()),
        60..3_600 => format!("{}m {:02}s", seconds / 60, seconds % 60),
        3_600..86_400 => format!("{}h {:02}m", seconds / 3_600, seconds / 60 % 60),
        _ => format!("{}d {}h", seconds / 86_400, seconds / 3_600 % 24),
    }
}

/// Formats seconds for people.
pub(crate) fn seconds(seconds: f64) -> String {
    duration(Duration::try_from_secs_f64(seconds).unwrap_or_default())
}

/// Formats a time in the user's time zone, with the zone's name.
pub(crate) fn time(time: Time) -> String {
    let nanos = i128::from(time.0.unix_nanos());
    match jiff::Timestamp::from_nanosecond(nanos) {
        Ok(time) => time.to_zoned(jiff::tz::TimeZone::system()).strftime("%Y-%m-%d %H:%M:%S %Z").to_string(),
        Err(_) => time.to_string(),
    }
}

/// Returns the current time, read at the edge.
pub(crate) fn now() -> Timestamp {
    let nanos = jiff::Timestamp::now().as_nanosecond();
    Timestamp::from_unix_nanos(u64::try_from(nanos).unwrap_or_default())
}

/// Shortens a text to `width` characters.
pub(crate) fn shorten(text: &str, width: usize) -> String {
    if text.chars().count() <= width {
        return text.to_owned();
    }
    let head: String = text.chars().take(width.saturating_sub(1)).collect();
    format!("{head}…")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_have_two_units_at_most() {
        let check = |millis: u64, text: &str| assert_eq!(duration(Duration::from_millis(millis)), text);
        check(850, "850 ms");
        check(12_340, "12.3 s");
        check(245_000, "4m 05s");
        check(12_000_000, "3h 20m");
        check(187_200_000, "2d 4h");
    }

    #[test]
    fn tables_align_numbers_to_the_right() {
        let text = table(&["NAME", ">N"], vec![vec!["a".into(), "1".into()], vec!["bb".into(), "100".into()]]);
        assert_eq!(text, "NAME    N\na       1\nbb    100\n");
    }
}
