//! `bench planning`: are the predictions right? Every published measurement beside what planning says about it.
//!
//! It takes tables (CSV) as they are in [`PUBLISHED`], a folder beside the checkout; a file's header tells its kind, and a kind is one entry of
//! [`KINDS`] and one module. A row that can't be judged is counted with the reason. Errors are relative to the measurement:
//! |predicted - measured| / measured.

mod counts;
mod crossval;
mod fit;
mod machine;
mod measured;
mod memory;
mod plot;
mod rows;
mod searching;
mod statistics;
mod table;
mod throughput;

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use gangline_planning::time::constants::Constants;

use rows::Run;
use statistics::{Judgement, Statistics};
use table::{Row, Table};

/// Where the published tables are, seen from the repository's root.
const PUBLISHED: &str = "../shared/data/planning";

/// The kind of table whose rows are runs.
const THROUGHPUT: &str = "throughput";
/// The kind of table that has memory by rank, and times.
const RANKS: &str = "memory by rank";

/// A kind of table and what judges its rows.
struct Kind {
    name: &'static str,
    /// Columns that only this kind has.
    columns: &'static [&'static str],
    /// A judgement of each row, and whether the kind's own bar holds.
    judge: fn(&Table) -> (Vec<Judgement>, bool),
}

/// Every kind of table that can be judged.
const KINDS: &[Kind] = &[
    Kind { name: THROUGHPUT, columns: &["step_time_s", "tok_s_gpu"], judge: |table| (throughput::judge(table), true) },
    Kind { name: "memory", columns: &["peak_mem", "mem_kind"], judge: memory::judge },
    Kind { name: RANKS, columns: &["per_rank_alloc_mb"], judge: memory::judge_ranks },
    // Counts are exact or wrong, so they are in no statistics of errors.
    Kind { name: "parameters", columns: &["params_transformers_meta", "config"], judge: |_| (Vec::new(), true) },
];

/// What is asked for.
#[derive(Debug, Default, PartialEq)]
struct Options {
    /// Tables to judge; none: the published ones.
    rows: Vec<PathBuf>,
    /// Where a scatter plot of the throughput is written.
    plot: Option<PathBuf>,
    /// Whether each source of throughput is also predicted from all others. Done for the published tables by default.
    leaves_out: bool,
    /// Whether constants are fitted and printed.
    fits: bool,
    /// Whether each run is printed with its time by component.
    each: bool,
}

/// Judges the tables and prints what came out; whether every bar held.
pub(super) fn run(options: &[String]) -> Result<bool> {
    let options = parse(options)?;
    let tables = if options.rows.is_empty() { published()? } else { given(&options.rows)? };
    let mut all = Vec::new();
    let mut holds = true;
    for (kind, table) in &tables {
        println!("\n{} ({}): {} rows", table.path.display(), kind.name, table.rows.len());
        let (judgements, kind_holds) = (kind.judge)(table);
        statistics::print_sources(&judgements);
        all.extend(judgements);
        holds &= kind_holds;
    }
    let runs = runs(&tables);
    memory::print_runs(&runs);
    if let Some(path) = &options.plot {
        let judged: Vec<Judgement> = runs.iter().map(|run| throughput::judged(&Constants::shipped(), run)).collect();
        std::fs::write(path, plot::scatter(&judged)).with_context(|| format!("write {}", path.display()))?;
    }
    if options.each {
        runs.iter().for_each(throughput::print);
    }
    if options.fits {
        crossval::print_fit(&runs);
    }
    let leaves_out = options.leaves_out || options.rows.is_empty();
    holds &= !leaves_out || crossval::run(&runs);
    holds &= !options.rows.is_empty() || memory::is_what_plans_say(&all);
    let is_fast = throughput::speed(&runs) && searching::run()?;
    let is_exact = counts::judge(tables.iter().map(|(_, table)| table));
    println!("{}", Statistics::of(&all).line("overall"));
    Ok(holds && is_fast && is_exact)
}

/// Every run of every table that has times.
fn runs(tables: &[(&'static Kind, Table)]) -> Vec<Run> {
    let of = |(kind, table): &(&'static Kind, Table)| match kind.name {
        THROUGHPUT => throughput::runs(&table.rows).0,
        RANKS => throughput::runs(&table.rows.iter().map(throughput::of_ranks).collect::<Vec<Row>>()).0,
        _ => Vec::new(),
    };
    tables.iter().flat_map(of).collect()
}

fn parse(options: &[String]) -> Result<Options> {
    let mut parsed = Options::default();
    let mut words = options.iter().map(String::as_str).peekable();
    while let Some(word) = words.next() {
        match word {
            "--rows" => {
                let from = parsed.rows.len();
                while let Some(path) = words.next_if(|word| !word.starts_with("--")) {
                    parsed.rows.push(path.into());
                }
                anyhow::ensure!(parsed.rows.len() > from, "--rows takes one or more CSV files");
            }
            "--plot" => parsed.plot = Some(words.next().context("--plot takes the SVG file to write")?.into()),
            "--leave-one-out" => parsed.leaves_out = true,
            "--fit" => parsed.fits = true,
            "--each" => parsed.each = true,
            _ => anyhow::bail!(
                "bench planning takes --rows FILE..., --plot FILE, --leave-one-out, --fit and --each, not {word}"
            ),
        }
    }
    Ok(parsed)
}

/// The published tables of a kind that can be judged; others in the folder are left alone.
fn published() -> Result<Vec<(&'static Kind, Table)>> {
    let folder = Path::new(PUBLISHED);
    let entries = std::fs::read_dir(folder).with_context(|| {
        format!(
            "read the folder {} of published tables, seen from the repository; pass others with --rows FILE",
            folder.display()
        )
    })?;
    let mut paths = entries.map(|entry| Ok(entry?.path())).collect::<Result<Vec<PathBuf>>>()?;
    paths.retain(|path| path.extension().is_some_and(|extension| extension == "csv"));
    paths.sort();
    let tables = paths.iter().map(|path| table::read(path)).collect::<Result<Vec<Table>>>()?;
    Ok(tables.into_iter().filter_map(|table| Some((kind_of(&table)?, table))).collect())
}

/// Tables that someone named: each must be of a kind that can be judged.
fn given(paths: &[PathBuf]) -> Result<Vec<(&'static Kind, Table)>> {
    let judged = |path: &PathBuf| {
        let table = table::read(path)?;
        let kind = kind_of(&table).with_context(|| {
            let known: Vec<&str> = KINDS.iter().map(|kind| kind.name).collect();
            format!("the header of {} is of no kind that can be judged: there are {}", path.display(), known.join(", "))
        })?;
        Ok((kind, table))
    };
    paths.iter().map(judged).collect()
}

fn kind_of(table: &Table) -> Option<&'static Kind> {
    KINDS.iter().find(|kind| kind.columns.iter().all(|column| table.has(column)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(line: &str) -> Result<Options> {
        parse(&line.split_whitespace().map(str::to_owned).collect::<Vec<String>>())
    }

    #[test]
    fn options_name_tables_and_a_plot() {
        let expected =
            Options { rows: vec!["a.csv".into(), "b.csv".into()], plot: Some("p.svg".into()), ..Options::default() };
        assert_eq!(parsed("--rows a.csv b.csv --plot p.svg").unwrap(), expected);
        assert_eq!(parsed("--rows a.csv --plot p.svg --rows b.csv").unwrap(), expected);
        assert_eq!(parsed("").unwrap(), Options::default());
    }

    #[test]
    fn an_option_that_is_unknown_or_lacks_its_file_is_refused() {
        assert_eq!(parsed("--rows").unwrap_err().to_string(), "--rows takes one or more CSV files");
        assert_eq!(parsed("--plot").unwrap_err().to_string(), "--plot takes the SVG file to write");
        assert_eq!(
            parsed("a.csv").unwrap_err().to_string(),
            "bench planning takes --rows FILE..., --plot FILE, --leave-one-out, --fit and --each, not a.csv"
        );
    }
}
