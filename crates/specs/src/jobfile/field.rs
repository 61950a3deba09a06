//! Values with their places: checks a mapping's keys against the known ones, and parses single values,
//! recording problems.

use std::ops::RangeInclusive;
use std::time::Duration;

use super::keys;
use super::problem::{Code, Place, Problems, Refusal, shown};
use super::values;
use super::yaml::{Entry, Node, Value};

/// A value and its full key, such as `resources.memory`.
#[derive(Clone, Copy)]
pub(super) struct Field<'t> {
    pub(super) node: &'t Node,
    pub(super) outer: &'static str,
    pub(super) key: &'t str,
}

impl<'t> Field<'t> {
    pub(super) fn place(&self) -> &'t Place {
        &self.node.place
    }

    /// Returns the full key.
    pub(super) fn path(&self) -> String {
        let dot = if self.outer.is_empty() { "" } else { "." };
        format!("{}{dot}{}", self.outer, self.key)
    }

    /// Records a refusal whose message continues after the key.
    pub(super) fn refuse(&self, problems: &mut Problems, refusal: Refusal) {
        let message = format!("{} {}", shown(&self.path()), refusal.message);
        problems.add(self.place(), Refusal { message, ..refusal });
    }

    pub(super) fn keep<T>(&self, problems: &mut Problems, outcome: Result<T, Refusal>) -> Option<T> {
        outcome.map_err(|refusal| self.refuse(problems, refusal)).ok()
    }

    /// Returns the text of a scalar, as written.
    pub(super) fn text(&self, problems: &mut Problems) -> Option<&'t str> {
        self.keep(problems, scalar(self.node))
    }

    /// Parses a scalar with `parse`.
    pub(super) fn parsed<T>(
        &self,
        problems: &mut Problems,
        parse: impl FnOnce(&'t str) -> Result<T, Refusal>,
    ) -> Option<T> {
        self.keep(problems, scalar(self.node).and_then(parse))
    }

    pub(super) fn count(&self, problems: &mut Problems, range: RangeInclusive<u32>) -> Option<u32> {
        self.parsed(problems, |text| values::count(text, &range))
    }

    pub(super) fn duration(&self, problems: &mut Problems, max: Duration) -> Option<Duration> {
        self.parsed(problems, |text| values::duration(text, max))
    }

    /// Returns the mapping's entries, whatever their keys.
    pub(super) fn entries(&self, problems: &mut Problems) -> Option<&'t [Entry]> {
        match &self.node.value {
            Value::Mapping(entries) => Some(entries),
            other => {
                let message = format!("expects a mapping of keys to values, not {}", described(other));
                self.refuse(problems, Refusal::new(Code::WrongType, message));
                None
            }
        }
    }

    /// Opens the value as a mapping with known keys. Only for keys of the top level.
    pub(super) fn section(&self, problems: &mut Problems, path: &'static str) -> Option<Section<'t>> {
        self.entries(problems).map(|entries| Section::open(path, entries, problems))
    }
}

/// A mapping with known keys.
pub(super) struct Section<'t> {
    path: &'static str,
    entries: &'t [Entry],
}

impl<'t> Section<'t> {
    /// Records the unknown keys.
    pub(super) fn open(path: &'static str, entries: &'t [Entry], problems: &mut Problems) -> Self {
        let known = keys::known(path);
        for entry in entries.iter().filter(|entry| !known.contains(&entry.key.as_str())) {
            let inside = if path.is_empty() { String::new() } else { format!(" in \"{path}\"") };
            let refusal = Refusal::new(Code::UnknownKey, format!("unknown key {}{inside}", shown(&entry.key)));
            problems.add(&entry.place, refusal.hint(keys::hint(path, &entry.key)));
        }
        Section { path, entries }
    }

    pub(super) fn get(&self, key: &str) -> Option<Field<'t>> {
        let entry = self.entries.iter().find(|entry| entry.key == key)?;
        Some(Field { node: &entry.value, outer: self.path, key: &entry.key })
    }

    /// Returns the value of a key, or the default if the key is missing. Returns `None` if the value is
    /// wrong.
    pub(super) fn get_or<T>(&self, key: &str, default: T, read: impl FnOnce(Field<'t>) -> Option<T>) -> Option<T> {
        self.get(key).map_or(Some(default), read)
    }
}

/// Returns a scalar's text. Refuses null, and NUL characters, which no program argument can hold.
pub(super) fn scalar(node: &Node) -> Result<&str, Refusal> {
    match &node.value {
        Value::Scalar(scalar) if scalar.is_null() => {
            Err(Refusal::new(Code::WrongType, "has no value")
                .hint("leave the key out, or write \"\" for an empty text"))
        }
        Value::Scalar(scalar) if scalar.text.contains('\0') => {
            Err(Refusal::new(Code::BadValue, "contains a NUL character"))
        }
        Value::Scalar(scalar) => Ok(&scalar.text),
        other => Err(Refusal::new(Code::WrongType, format!("expects a single value, not {}", described(other)))),
    }
}

fn described(value: &Value) -> String {
    match value {
        Value::Scalar(scalar) if scalar.is_null() => "nothing".to_owned(),
        Value::Scalar(scalar) => shown(&scalar.text),
        Value::List(_) => "a list".to_owned(),
        Value::Mapping(_) => "a mapping".to_owned(),
    }
}
