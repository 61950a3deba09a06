//! How long each part of the gate took: one line of JSON a run in `target/ci-times.jsonl`, and the last runs side by side.

use std::fs;
use std::io::Write as _;
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::Context as _;
use serde_json::{Value, json};

use super::parts::PARTS;
use super::steps::Steps;
use crate::command::commit;
use crate::environment;

const FILE: &str = "ci-times.jsonl";
/// Runs that are printed side by side.
const RUNS_SHOWN_MAX: usize = 8;

/// Appends a run.
///
/// # Errors
/// When the file can't be written.
pub(super) fn keep(steps: &Steps) -> anyhow::Result<()> {
    append(&environment::target()?.join(FILE), &line(&commit(), steps))
}

/// Prints the last runs side by side.
///
/// # Errors
/// When there are none, or the file isn't as it was written.
pub(super) fn print() -> anyhow::Result<()> {
    let path = environment::target()?.join(FILE);
    let text = fs::read_to_string(&path).with_context(|| format!("read the kept times from {}", path.display()))?;
    println!("{}", table(&text)?);
    Ok(())
}

fn line(commit: &str, steps: &Steps) -> Value {
    let rounded = |value: f64, to: f64| (value * to).round() / to;
    let parts = steps.ran().map(|step| {
        let (seconds, busy) = (rounded(step.took.as_secs_f64(), 10.0), step.busy.map(|busy| rounded(busy, 100.0)));
        json!({ "part": step.name, "seconds": seconds, "busy": busy, "passed": step.has_passed() })
    });
    let at = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    let elapsed = steps.elapsed().as_secs_f64().round();
    json!({ "commit": commit, "at": at, "elapsed": elapsed, "parts": parts.collect::<Vec<Value>>() })
}

fn append(path: &Path, line: &Value) -> anyhow::Result<()> {
    let file = fs::OpenOptions::new().create(true).append(true).open(path);
    let written = file.and_then(|mut file| file.write_all(format!("{line}\n").as_bytes()));
    written.with_context(|| format!("append to {}", path.display()))
}

/// A row a part, a column a run, the latest last; a part that failed has an exclamation mark, one that didn't run a dash.
fn table(text: &str) -> anyhow::Result<String> {
    let runs = text.lines().map(serde_json::from_str::<Value>).collect::<Result<Vec<_>, _>>();
    let runs = runs.with_context(|| format!("read {FILE}"))?;
    let runs = &runs[runs.len().saturating_sub(RUNS_SHOWN_MAX)..];
    let mut rows = vec![row("commit", runs.iter().map(|run| run["commit"].as_str().unwrap_or("unknown").to_owned()))];
    rows.extend(PARTS.iter().map(|part| row(part.name, runs.iter().map(|run| cell(run, part.name)))));
    rows.push(row("total", runs.iter().map(|run| format!("{:.1}", total(run)))));
    Ok(rows.join("\n"))
}

fn row(name: &str, cells: impl Iterator<Item = String>) -> String {
    // A commit of ten digits and "-dirty" fits.
    let cells: String = cells.map(|cell| format!(" {cell:>16}")).collect();
    format!("{name:<16}{cells}")
}

fn cell(run: &Value, name: &str) -> String {
    let Some(part) = parts(run).find(|part| part["part"] == name) else { return "-".to_owned() };
    let mark = if part["passed"] == true { "" } else { "!" };
    format!("{mark}{:.1}", part["seconds"].as_f64().unwrap_or_default())
}

/// From start to end; runs that were kept before parts ran side by side have only the parts.
fn total(run: &Value) -> f64 {
    let sum = || parts(run).filter_map(|part| part["seconds"].as_f64()).sum();
    run["elapsed"].as_f64().unwrap_or_else(sum)
}

fn parts(run: &Value) -> impl Iterator<Item = &Value> {
    run["parts"].as_array().into_iter().flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_are_appended_and_printed_side_by_side() {
        let path = std::env::temp_dir().join(format!("gangline-{}-{FILE}", std::process::id()));
        for passes in [true, false] {
            let mut steps = Steps::begin();
            steps.run("format", || Ok(true));
            steps.run("tests", || Ok(passes));
            steps.skip("fuzz", "the build failed");
            append(&path, &line(if passes { "aaaa" } else { "bbbb" }, &steps)).unwrap();
        }
        let text = fs::read_to_string(&path).unwrap();
        fs::remove_file(&path).unwrap();
        assert_eq!(text.lines().count(), 2);
        let table = table(&text).unwrap();
        let words = |name: &str| {
            let row = table.lines().find(|line| line.starts_with(name)).unwrap();
            row.split_whitespace().skip(1).map(str::to_owned).collect::<Vec<_>>()
        };
        assert_eq!(words("commit"), ["aaaa", "bbbb"]);
        assert_eq!(words("tests"), ["0.0", "!0.0"]);
        assert_eq!(words("fuzz"), ["-", "-"]);
    }

    #[test]
    fn a_damaged_file_is_refused() {
        assert!(table("{\"commit\": \"aaaa\", \"par").is_err());
    }
}
