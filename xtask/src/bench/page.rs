//! `bench NAME --write`: what a benchmark printed, as a page of the documents, with when, where and at which commit it ran.
//!
//! The pages are `docs/benchmarks/*.md`. Nobody edits them, so that no figure is one that the command didn't print.

use std::io::{BufRead as _, BufReader};
use std::path::PathBuf;
use std::process::{Command, Stdio};

use anyhow::{Context as _, bail};

use crate::command::{commit, line, load_averages, output, root};

/// What asks for the page.
pub(super) const WRITE: &str = "--write";

/// When and where a benchmark ran.
struct Run {
    command: String,
    date: String,
    commit: String,
    machine: String,
    load: String,
}

/// Runs the command, shows what it prints and writes that as the page of the benchmark `name`; whether the benchmark met its bars.
///
/// # Errors
/// When the command can't be started or breaks off, or the page can't be written.
pub(super) fn write(name: &str, options: &[String], command: &mut Command) -> anyhow::Result<bool> {
    let run = Run::now(name, options)?;
    eprintln!("$ {}", line(command));
    let mut child = command.stdout(Stdio::piped()).spawn().with_context(|| format!("start `{}`", line(command)))?;
    let printed = child.stdout.take().context("the benchmark's output is a pipe")?;
    let mut text = String::new();
    for printed in BufReader::new(printed).lines() {
        let printed = printed.context("read what the benchmark prints")?;
        println!("{printed}");
        text.push_str(printed.trim_end());
        text.push('\n');
    }
    let status = child.wait().context("wait for the benchmark")?;
    // A benchmark that missed a bar ends with 1, one that broke off with another code.
    if !matches!(status.code(), Some(0 | 1)) || text.trim().is_empty() {
        bail!("`{}` broke off ({status}), so its page stays as it is", line(command));
    }
    let page = root()?.join("docs/benchmarks").join(format!("{name}.md"));
    std::fs::create_dir_all(page.parent().unwrap_or(&PathBuf::from("."))).context("make the folder of the pages")?;
    std::fs::write(&page, render(name, &run, &text)).with_context(|| format!("write {}", page.display()))?;
    eprintln!("written: {}", page.display());
    Ok(status.success())
}

impl Run {
    fn now(name: &str, options: &[String]) -> anyhow::Result<Run> {
        let processors = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let model =
            processors.lines().find_map(|line| line.strip_prefix("model name")).unwrap_or(": unknown processor");
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let options: Vec<&str> = options.iter().map(String::as_str).filter(|option| *option != WRITE).collect();
        Ok(Run {
            command: format!("cargo xtask bench {name} {}", options.join(" ")).trim_end().to_owned(),
            date: output(Command::new("date").args(["-u", "+%F %H:%M UTC"]))?.trim().to_owned(),
            commit: commit(),
            machine: format!("{cores} cores, {}", model.trim_start_matches([':', '\t', ' '])),
            load: load_averages(),
        })
    }
}

fn render(name: &str, run: &Run, text: &str) -> String {
    let Run { command, date, commit, machine, load } = run;
    format!(
        "# Figures of `bench {name}`\n\nWritten by `cargo xtask bench {name} --write`, not by hand; [Benchmarks](../benchmarks.md) says \
         what they mean.\n\n| | |\n|---|---|\n| command | `{command}` |\n| begun | {date} |\n| commit | {commit} |\n\
         | machine | {machine} |\n| load averages before (1, 5, 15 minutes) | {load} |\n\n```text\n{}\n```\n",
        text.trim_matches('\n').replace("```", "'''")
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_has_all_that_was_printed_and_where() {
        let word = |text: &str| text.to_owned();
        let run = Run {
            command: word("cargo xtask bench fast --quick"),
            date: word("2026-11-24 19:00 UTC"),
            commit: word("abc1234"),
            machine: word("2 cores, Xeon"),
            load: word("0.1, 0.2, 0.3"),
        };
        let page = render("fast", &run, "\nsection\n  holds  speed  2.0\n");
        assert!(
            page.contains("| command | `cargo xtask bench fast --quick` |\n| begun | 2026-11-24 19:00 UTC |"),
            "{page}"
        );
        assert!(page.ends_with("```text\nsection\n  holds  speed  2.0\n```\n"), "{page}");
    }

    #[test]
    fn what_breaks_off_or_prints_nothing_writes_no_page() {
        for script in ["true", "echo half; exit 2", "echo half; kill -9 $$"] {
            let error = write("nothing", &[], Command::new("sh").args(["-c", script])).unwrap_err().to_string();
            assert!(error.contains("broke off"), "{script}: {error}");
        }
        assert!(!root().unwrap().join("docs/benchmarks/nothing.md").exists());
    }
}
