//! A checkpoint of a real training run, as `training_state.py` wrote it.

use std::ops::Range;
use std::path::Path;

use anyhow::{Context as _, Result};
use gangline_compression::Element;

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
