//! The book of hardware: what vendors state of accelerators, networks and storage, by the names that people use.
//!
//! Text in, values out. A file of the user's goes over the built-in one field by field; each error names file, entry and field.

use std::collections::BTreeMap;

use gangline_base::Day;
use toml::Table;

use super::entries::Entry;
use super::{Accelerator, Fabric, Storage};
use crate::names::{listed, nearest};

/// What comes with this program.
const BUILT_IN: &str = include_str!("book.toml");
const BUILT_IN_FILE: &str = "the built-in book";
/// Longest file that is read, in bytes.
const TEXT_BYTES_MAX: usize = 1 << 20;
/// Most entries of a kind, the built-in ones among them.
const ENTRIES_MAX: usize = 4096;

/// Something stated, with where and when.
#[derive(Clone, Debug, PartialEq)]
pub struct Fact<T> {
    /// What is stated.
    pub value: T,
    /// Other names that it has.
    pub names: Vec<String>,
    /// Who states it.
    pub source: String,
    /// The day it was entered or last compared with its source.
    pub as_of: Day,
}

/// Why a book can't be read.
#[derive(Debug, thiserror::Error)]
pub enum BookError {
    /// The file is far too long.
    #[error("{file} has {bytes} bytes, more than a book of hardware may have ({TEXT_BYTES_MAX})")]
    TooLong {
        /// The file.
        file: String,
        /// Its bytes.
        bytes: usize,
    },
    /// The file isn't TOML.
    #[error("{file} is not TOML")]
    Malformed {
        /// The file.
        file: String,
        /// What is wrong, and where.
        #[source]
        source: toml::de::Error,
    },
    /// A table that isn't of hardware.
    #[error("{file} has a table `{table}`: write [accelerator.NAME], [fabric.NAME] or [storage.NAME]")]
    UnknownTable {
        /// The file.
        file: String,
        /// The table.
        table: String,
    },
    /// There are too many entries.
    #[error("{file} brings the entries of `{kind}` above {ENTRIES_MAX}")]
    TooMany {
        /// The file.
        file: String,
        /// Of what kind.
        kind: String,
    },
    /// A field that no such entry has.
    #[error("`{field}` of {entry} in {file} is not known: the nearest are {}", listed(nearest))]
    UnknownField {
        /// The file.
        file: String,
        /// The entry.
        entry: String,
        /// The field.
        field: String,
        /// Fields that there are.
        nearest: Vec<String>,
    },
    /// A field is missing.
    #[error("{entry} in {file} lacks `{field}`")]
    Missing {
        /// The file.
        file: String,
        /// The entry.
        entry: String,
        /// The field.
        field: &'static str,
    },
    /// A field isn't what it should be; often its unit is missing.
    #[error("`{field}` of {entry} in {file} is {found}: write {expected}")]
    Unfit {
        /// The file.
        file: String,
        /// The entry.
        entry: String,
        /// The field.
        field: &'static str,
        /// What it is.
        found: String,
        /// What is expected.
        expected: &'static str,
    },
}

/// Nothing in the book has this name, or several have.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UnknownHardware {
    /// Nothing has.
    #[error("no {kind} is called `{name}`: the nearest are {}; or add it in a file of your own", listed(nearest))]
    NotThere {
        /// Of what kind.
        kind: &'static str,
        /// The name.
        name: String,
        /// Names that there are.
        nearest: Vec<String>,
    },
    /// Several have.
    #[error("`{name}` may be {}: write which {kind} you mean", listed(candidates))]
    Ambiguous {
        /// Of what kind.
        kind: &'static str,
        /// The name.
        name: String,
        /// What it may be.
        candidates: Vec<String>,
    },
}

/// Hardware by name.
#[derive(Clone, Debug)]
pub struct Book {
    /// Each entry's fields with the file that said something of it last, by kind and name.
    tables: BTreeMap<&'static str, BTreeMap<String, (String, Table)>>,
    accelerators: BTreeMap<String, Fact<Accelerator>>,
    fabrics: BTreeMap<String, Fact<Fabric>>,
    storages: BTreeMap<String, Fact<Storage>>,
}

const KINDS: [&str; 3] = ["accelerator", "fabric", "storage"];

impl Book {
    /// What comes with this program.
    ///
    /// # Panics
    /// If it is malformed; a test reads it.
    #[must_use]
    pub fn built_in() -> Self {
        let (tables, accelerators, fabrics, storages) = Default::default();
        let empty = Book { tables, accelerators, fabrics, storages };
        empty.with(BUILT_IN_FILE, BUILT_IN).expect("the built-in book is read by a test")
    }

    /// This book with a file's text over it: new entries, and single fields of those that are there.
    ///
    /// # Errors
    /// [`BookError`] names file, entry and field.
    pub fn with(mut self, file: &str, text: &str) -> Result<Self, BookError> {
        if text.len() > TEXT_BYTES_MAX {
            return Err(BookError::TooLong { file: file.to_owned(), bytes: text.len() });
        }
        let malformed = |source| BookError::Malformed { file: file.to_owned(), source };
        let kinds: Table = text.parse().map_err(malformed)?;
        for (kind, entries) in &kinds {
            let unknown = || BookError::UnknownTable { file: file.to_owned(), table: kind.clone() };
            let kind = KINDS.into_iter().find(|known| *known == kind.as_str()).ok_or_else(unknown)?;
            self.merge(file, kind, entries.as_table().ok_or_else(unknown)?)?;
        }
        self.read()
    }

    fn merge(&mut self, file: &str, kind: &'static str, entries: &Table) -> Result<(), BookError> {
        let known = self.tables.entry(kind).or_default();
        for (name, fields) in entries {
            let unknown = || BookError::UnknownTable { file: file.to_owned(), table: format!("{kind}.{name}") };
            let fields = fields.as_table().ok_or_else(unknown)?;
            let (by, merged) = known.entry(name.clone()).or_default();
            file.clone_into(by);
            if fields.contains_key("memory") && !fields.contains_key("visible") {
                // What the driver shows of other memory says nothing of this one.
                merged.remove("visible");
            }
            merged.extend(fields.iter().map(|(field, value)| (field.clone(), value.clone())));
        }
        if known.len() > ENTRIES_MAX {
            return Err(BookError::TooMany { file: file.to_owned(), kind: kind.to_owned() });
        }
        Ok(())
    }

    fn read(mut self) -> Result<Self, BookError> {
        for (kind, entries) in &self.tables {
            for (name, (file, table)) in entries {
                let entry = Entry { file, kind, name, table };
                match *kind {
                    "accelerator" => drop(self.accelerators.insert(name.clone(), entry.accelerator()?)),
                    "fabric" => drop(self.fabrics.insert(name.clone(), entry.fabric()?)),
                    _ => drop(self.storages.insert(name.clone(), entry.storage()?)),
                }
            }
        }
        Ok(self)
    }

    /// The accelerator of this name: `H100`, `h100-sxm-80g`, `NVIDIA A100 80GB PCIe`.
    ///
    /// # Errors
    /// [`UnknownHardware`] with the nearest names, or with all that it may mean.
    pub fn accelerator(&self, name: &str) -> Result<&Fact<Accelerator>, UnknownHardware> {
        find("accelerator", name, &self.accelerators)
    }

    /// The network of this name: `infiniband-ndr`, `roce-400`, `efa`.
    ///
    /// # Errors
    /// [`UnknownHardware`] with the nearest names, or with all that it may mean.
    pub fn fabric(&self, name: &str) -> Result<&Fact<Fabric>, UnknownHardware> {
        find("fabric", name, &self.fabrics)
    }

    /// The storage of this name: `lustre-1000`, `nvme`, `s3`.
    ///
    /// # Errors
    /// [`UnknownHardware`] with the nearest names, or with all that it may mean.
    pub fn storage(&self, name: &str) -> Result<&Fact<Storage>, UnknownHardware> {
        find("storage", name, &self.storages)
    }

    /// Every accelerator, by name.
    pub fn accelerators(&self) -> impl Iterator<Item = (&str, &Fact<Accelerator>)> {
        self.accelerators.iter().map(|(name, fact)| (name.as_str(), fact))
    }

    /// Every network, by name.
    pub fn fabrics(&self) -> impl Iterator<Item = (&str, &Fact<Fabric>)> {
        self.fabrics.iter().map(|(name, fact)| (name.as_str(), fact))
    }

    /// Every storage, by name.
    pub fn storages(&self) -> impl Iterator<Item = (&str, &Fact<Storage>)> {
        self.storages.iter().map(|(name, fact)| (name.as_str(), fact))
    }
}

/// By its own or another name; and if it is none, the only entry that has all its words.
fn find<'a, T>(
    kind: &'static str,
    name: &str,
    facts: &'a BTreeMap<String, Fact<T>>,
) -> Result<&'a Fact<T>, UnknownHardware> {
    let wanted = words(name);
    let called = || facts.iter().flat_map(|(name, fact)| all_names(name, fact).map(move |name| (name, fact)));
    let as_written = called().find(|(known, _)| plain_words(known).concat() == plain_words(name).concat());
    let as_meant = || called().find(|(known, _)| words(known).concat() == wanted.concat());
    if let Some((_, fact)) = as_written.or_else(as_meant) {
        return Ok(fact);
    }
    let has_all = |(name, fact): &(&String, &Fact<T>)| {
        let own: Vec<String> = all_names(name, fact).flat_map(words).collect();
        !wanted.is_empty() && wanted.iter().all(|word| own.contains(word))
    };
    let candidates: Vec<_> = facts.iter().filter(has_all).collect();
    match candidates.as_slice() {
        [(_, fact)] => Ok(fact),
        [] => {
            let nearest = nearest(&wanted.concat(), called().map(|(name, _)| name));
            Err(UnknownHardware::NotThere { kind, name: shown(name), nearest })
        }
        several => {
            let candidates = several.iter().map(|(name, _)| (*name).clone()).collect();
            Err(UnknownHardware::Ambiguous { kind, name: shown(name), candidates })
        }
    }
}

fn all_names<'a, T>(name: &'a str, fact: &'a Fact<T>) -> impl Iterator<Item = &'a str> {
    std::iter::once(name).chain(fact.names.iter().map(String::as_str))
}

/// Longest name that is looked up, in characters.
const NAME_MAX: usize = 128;

fn shown(name: &str) -> String {
    name.chars().take(NAME_MAX).collect()
}

/// Vendors and other words that tell nothing apart.
const DROPPED: [&str; 11] =
    ["nvidia", "amd", "google", "intel", "aws", "tesla", "geforce", "instinct", "gpu", "cloud", "tensor"];

/// The words of a name: `80g` is `80gb`, and any `sxm5` is `sxm`.
fn words(name: &str) -> Vec<String> {
    plain_words(name).iter().map(|word| usual(word)).collect()
}

/// The words of a name in small letters, without vendors and what is in parentheses.
fn plain_words(name: &str) -> Vec<String> {
    let short = shown(name).to_lowercase();
    let plain = short.split('(').next().unwrap_or_default();
    let words = plain.split(|c: char| !c.is_alphanumeric()).filter(|word| !word.is_empty() && !DROPPED.contains(word));
    words.map(str::to_owned).collect()
}

fn usual(word: &str) -> String {
    if word.starts_with("sxm") {
        return "sxm".to_owned();
    }
    match word.strip_suffix('g') {
        Some(digits) if !digits.is_empty() && digits.chars().all(|c| c.is_ascii_digit()) => format!("{digits}gb"),
        _ => word.to_owned(),
    }
}

#[cfg(test)]
#[path = "tests.rs"]
mod tests;
