//! The administrator's guide shows only what is so: every block of `docs/guides/scheduling.md` is checked here, and so are the sessions
//! of other guides. python/tests/test_tutorial.py plays the tutorial.
//!
//! - `toml` is a configuration, `yaml` a job file, `conf` a `topology_file`, `csv` a trace: the product's own readers take
//!   them. Commands find one that follows a comment `<!-- file: NAME -->` under that name.
//! - `text` follows a comment `<!-- scenario: FILE -->` and is an excerpt of that scenario, which another test plays.
//! - `console` is a session: after `$ gangline ...` follows an excerpt of what the command prints. `gangline up` starts
//!   a control plane that serves the commands after it, to the end of the guide.
//!
//! An excerpt is a run of neighbouring lines; a line `...` stands for any that are left out.

use std::fs;
use std::path::{Path, PathBuf};

use gangline_base::Submitter;
use gangline_execution::launcher::read_topology;
use gangline_simulator::{BadRows, TraceFormat, read_trace};
use gangline_specs::config::Config;
use gangline_specs::jobfile;

use crate::fixtures::product::Product;
use crate::fixtures::slurm::{self, OnSlurm};
use crate::fixtures::{gangline, try_for};

const GUIDE: &str = "docs/guides/scheduling.md";
/// A guide that has nothing but sessions.
const PLANNING: &str = "docs/guides/planning.md";
/// Its sessions are checked; the script of its own by the Python package's tests.
const DATA: &str = "docs/guides/data.md";
/// Another.
const FAULTS: &str = "docs/guides/faults.md";
/// Its sessions are checked.
const COST: &str = "docs/guides/cost.md";
/// A guide whose job runs the binary by its name.
const MODELS: &str = "docs/guides/models.md";
/// A guide whose sessions need a Slurm.
const SLURM: &str = "docs/guides/slurm.md";
/// Every control plane of the tests has this option.
const PRICE: [&str; 2] = ["--price", "0.04"];
/// What stands before a command.
const PROMPT: &str = "$ gangline ";

/// A fenced block.
#[derive(Debug, PartialEq)]
pub(crate) struct Block<'a> {
    /// The line of its first content, from 1.
    pub(crate) line: usize,
    pub(crate) language: &'a str,
    /// The line before its fence.
    before: &'a str,
    pub(crate) lines: Vec<&'a str>,
}

impl Block<'_> {
    pub(crate) fn text(&self) -> String {
        self.lines.iter().map(|line| format!("{line}\n")).collect()
    }

    /// What the comment before it says of this: `<!-- key: value -->`.
    pub(crate) fn said(&self, key: &str) -> Option<&str> {
        self.before.strip_prefix("<!-- ")?.strip_suffix(" -->")?.strip_prefix(key)?.strip_prefix(": ")
    }
}

pub(crate) fn blocks(guide: &str) -> Vec<Block<'_>> {
    let (mut found, mut before, mut open) = (Vec::new(), "", None::<Block<'_>>);
    for (index, line) in guide.lines().enumerate() {
        match (open.take(), line.strip_prefix("```")) {
            (None, None) => before = line,
            (None, Some(language)) => {
                open = Some(Block { line: index + 2, language, before, lines: Vec::new() });
            }
            (Some(block), Some(_)) => found.push(block),
            (Some(mut block), None) => {
                block.lines.push(line);
                open = Some(block);
            }
        }
    }
    assert!(open.is_none(), "{GUIDE}: the last block has no end");
    found
}

/// Where an excerpt's part differs from `whole`: the part's first line, counted from 0.
pub(crate) fn missing(excerpt: &[&str], whole: &str) -> Option<usize> {
    let whole: Vec<&str> = whole.lines().map(str::trim_end).collect();
    let (mut from, mut line) = (0, 0);
    for part in excerpt.split(|line| *line == "...") {
        let found = whole[from..].windows(part.len().max(1)).position(|window| part.is_empty() || window == part);
        match found {
            Some(at) => from += at + part.len(),
            None if part.is_empty() => {}
            None => return Some(line),
        }
        line += part.len() + 1;
    }
    None
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the tests are in the repository").to_owned()
}

fn guide() -> String {
    read(GUIDE)
}

pub(crate) fn read(guide: &str) -> String {
    fs::read_to_string(root().join(guide)).expect("the guide can be read")
}

/// What is wrong with a block that needs no command to be run.
fn check(block: &Block<'_>) -> Result<(), String> {
    let place = |line: usize, message: &str| format!("{GUIDE}:{line}: {message}");
    let text = block.text();
    let read = match block.language {
        "toml" => Config::parse(&text).map(drop).map_err(|error| error.to_string()),
        "conf" => read_topology(&text).map(drop).map_err(|error| error.to_string()),
        "csv" => read_trace("jobs.csv", &text, TraceFormat::Csv, BadRows::Refuse)
            .map(drop)
            .map_err(|error| error.to_string()),
        "yaml" => job(&text),
        "console" => Ok(()),
        "text" => return scenario(block),
        other => Err(format!("nothing checks a block of \"{other}\"")),
    };
    read.map_err(|message| place(block.line, &message))
}

fn job(text: &str) -> Result<(), String> {
    let submitter = Submitter("ada".to_owned());
    let base = Path::new("/");
    let copy_code: &jobfile::CopyCode<'_> = &|source, _| panic!("no guide asks for a copy: {source:?}");
    let context = jobfile::Context {
        file_name: "job.yaml",
        base,
        submitter,
        overrides: &[],
        is_folder: &|_| true,
        template: &|name| panic!("no guide's job file has a template: {name}"),
        copy_code,
    };
    jobfile::parse(text, &context).map(drop).map_err(|problems| format!("{problems:?}"))
}

fn scenario(block: &Block<'_>) -> Result<(), String> {
    let unnamed = || format!("{GUIDE}:{}: no <!-- scenario: FILE --> before it", block.line);
    let file = block.said("scenario").ok_or_else(unnamed)?;
    let golden = fs::read_to_string(root().join(file)).map_err(|error| format!("{GUIDE}: {file}: {error}"))?;
    match missing(&block.lines, &golden) {
        None => Ok(()),
        Some(at) => Err(format!("{GUIDE}:{}: what begins here is not in {file}", block.line + at)),
    }
}

/// A session's commands, each with its line and what is said of its output.
fn commands<'a>(block: &'a Block<'_>) -> Vec<(usize, &'a str, &'a [&'a str])> {
    let starts = (0..block.lines.len()).filter(|at| block.lines[*at].starts_with(PROMPT));
    let starts: Vec<usize> = starts.chain([block.lines.len()]).collect();
    let command = |pair: &[usize]| {
        let (at, next) = (pair[0], pair[1]);
        (block.line + at, block.lines[at].trim_start_matches(PROMPT), &block.lines[at + 1..next])
    };
    starts.windows(2).map(command).collect()
}

/// Runs a command until it prints what it should: what others do at the same time may take a moment.
fn run(product: &mut Product, command: &str, printed: &[&str]) -> Result<(), (usize, String)> {
    let arguments: Vec<&str> = command.split_whitespace().collect();
    if let ["up", options @ ..] = arguments.as_slice() {
        let pairs = options.chunks(2).filter(|pair| *pair != PRICE);
        pairs.for_each(|pair| product.option(pair[0], pair[1]));
        product.start();
        return Ok(());
    }
    let mut last = String::new();
    let mut is_done = || {
        let ran = product.run(&arguments);
        last = format!("{}{}", ran.stdout, ran.stderr);
        missing(printed, &last).is_none().then_some(())
    };
    // A job must not be submitted twice.
    let found = if arguments[0] == "submit" { is_done() } else { try_for(is_done) };
    found.ok_or_else(|| (missing(printed, &last).unwrap_or(0) + 1, format!("it printed\n{last}")))
}

#[test]
fn configurations_and_job_files_are_read_and_scenarios_are_as_shown() {
    let guide = guide();
    let blocks = blocks(&guide);
    let of = |language: &str| blocks.iter().filter(|block| block.language == language).count();
    assert!(of("toml") >= 5 && of("yaml") >= 4 && of("text") >= 10, "only {} blocks were found", blocks.len());
    let failures: Vec<String> = blocks.iter().filter_map(|block| check(block).err()).collect();
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

#[test]
fn commands_print_what_the_guide_shows() {
    play(GUIDE);
}

#[test]
fn plans_are_as_the_guide_shows_them() {
    let guide = read(PLANNING);
    let sessions = blocks(&guide).into_iter().filter(|block| block.language == "console").count();
    assert!(sessions >= 5, "there are five worked examples, and {sessions} sessions");
    play(PLANNING);
}

#[test]
fn datasets_are_as_the_guide_shows_them() {
    play(DATA);
}

#[test]
fn costs_are_as_the_guide_shows_them() {
    play(COST);
}

#[test]
fn models_are_as_the_guide_shows_them() {
    let binary = gangline();
    let programs = [binary.parent().expect("it is in a folder").to_owned()];
    let path = std::env::var_os("PATH").unwrap_or_default();
    let path = std::env::join_paths(programs.into_iter().chain(std::env::split_paths(&path))).expect("no colon");
    let mut product = Product::down(&[]);
    product.variable("PATH", path.to_str().expect("text"));
    play_on(&mut product, MODELS);
}

#[test]
fn faults_are_as_the_guide_shows_them() {
    play(FAULTS);
}

#[test]
fn slurm_is_as_the_guide_shows_it() {
    let guide = read(SLURM);
    let checked = blocks(&guide).into_iter().filter(|block| ["toml", "yaml"].contains(&block.language));
    let failures: Vec<String> = checked.filter_map(|block| check(&block).err()).collect();
    assert!(failures.is_empty(), "{}", failures.join("\n"));
    if !slurm::is_possible() {
        return;
    }
    let mut on_slurm = OnSlurm::set_up(4);
    play_on(&mut on_slurm.product, SLURM);
}

/// Runs the commands of a guide.
fn play(path: &str) {
    play_on(&mut Product::down(&[]), path);
}

fn play_on(product: &mut Product, path: &str) {
    let guide = read(path);
    let blocks = blocks(&guide);
    for block in &blocks {
        if let Some(name) = block.said("file") {
            product.job_file(name, &block.text());
        }
    }
    let mut failures = Vec::new();
    for (line, command, printed) in blocks.iter().filter(|block| block.language == "console").flat_map(commands) {
        if let Err((at, message)) = run(product, command, printed) {
            failures.push(format!("{path}:{}: {command}: {message}", line + at));
        }
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

#[test]
fn a_block_that_matches_nothing_is_reported_with_its_line() {
    let check = |text: &str, part: &str| {
        let found = blocks(text);
        let message = found.iter().find_map(|block| check(block).err()).expect("it is refused");
        assert!(message.contains(part), "{message:?} does not name {part:?}");
    };
    let file = "<!-- scenario: tests/scenarios/cancel.txt -->";
    check(&format!("{file}\n```text\nsubmit nobody gang=1\n```\n"), "scheduling.md:3: what begins here is not in");
    check(&format!("{file}\n```text\n...\nsubmit nobody gang=1\n```\n"), "scheduling.md:4: what begins");
    check("a\n```text\nx\n```\n", "scheduling.md:3: no <!-- scenario");
    check("<!-- scenario: tests/none.txt -->\n```text\nx\n```\n", "tests/none.txt");
    check("```toml\nlisten = 3\n```\n", "scheduling.md:2: the configuration is not readable");
    check("```yaml\nrun: x\nspares: -1\n```\n", "spares");
    check("```conf\nSwitchName=s\n```\n", "scheduling.md:2");
    check("```python\npass\n```\n", "nothing checks");
}

#[test]
fn an_excerpt_is_neighbouring_lines_with_gaps_where_it_says_so() {
    let whole = "a\nb\nc  \nd\n";
    assert_eq!(missing(&["b", "c"], whole), None);
    assert_eq!(missing(&["a", "...", "d"], whole), None);
    assert_eq!(missing(&["...", "c"], whole), None);
    assert_eq!(missing(&[], whole), None);
    assert_eq!(missing(&["a", "c"], whole), Some(0));
    assert_eq!(missing(&["c", "...", "b"], whole), Some(2));
    assert_eq!(missing(&["d", "e"], whole), Some(0));
    assert_eq!(missing(&["a"], ""), Some(0));
}
