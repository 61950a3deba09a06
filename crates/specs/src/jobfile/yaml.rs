//! Parses text into a tree in which every key and value has its place. Scalars stay as written, so that
//! `LR: 3e-4` reaches the job as `3e-4` rather than as another float.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry as Slot;

use serde_saphyr::granit_parser::{self as granit, Event, Parser, ScalarStyle, Span};

use super::FILE_MAX;
use super::problem::{Code, Place, Problems, Refusal, shown};

/// The most keys and values in a file.
const NODES_MAX: usize = 10_000;
/// The deepest nesting of lists and mappings; job files need three levels.
const DEPTH_MAX: usize = 8;

/// A value and its place.
#[derive(Clone, Debug)]
pub(super) struct Node {
    pub(super) place: Place,
    pub(super) value: Value,
}

#[derive(Clone, Debug)]
pub(super) enum Value {
    Scalar(Scalar),
    List(Vec<Node>),
    Mapping(Vec<Entry>),
}

/// A scalar as written.
#[derive(Clone, Debug)]
pub(super) struct Scalar {
    pub(super) text: String,
    /// Whether the scalar is neither quoted nor a block.
    pub(super) is_plain: bool,
}

impl Scalar {
    /// Reports whether this is YAML's null: `key:`, `key: ~` or `key: null`.
    pub(super) fn is_null(&self) -> bool {
        self.is_plain && ["", "~", "null", "Null", "NULL"].contains(&self.text.as_str())
    }
}

/// A key of a mapping, its place, and its value.
#[derive(Clone, Debug)]
pub(super) struct Entry {
    pub(super) key: String,
    pub(super) place: Place,
    pub(super) value: Node,
}

/// Parses the file's only document. Of duplicate keys the first counts and the rest are recorded as problems;
/// any other error ends the parse.
pub(super) fn read(text: &str, problems: &mut Problems) -> Option<Node> {
    if u64::try_from(text.len()).is_ok_and(|size| size > FILE_MAX.0) {
        let message = format!("the file is larger than the limit of {FILE_MAX}");
        problems.add(&Place::START, Refusal::new(Code::Restricted, message));
        return None;
    }
    let root = build(text, problems).map_err(|(place, refusal)| problems.add(&place, refusal)).ok()?;
    let Some(root) = root.filter(|root| !matches!(&root.value, Value::Scalar(scalar) if scalar.is_null())) else {
        problems.add(&Place::START, Refusal::new(Code::Syntax, "the file is empty").hint(LEAST));
        return None;
    };
    if matches!(root.value, Value::Mapping(_)) {
        return Some(root);
    }
    problems.add(&root.place, Refusal::new(Code::Syntax, "a job file is a mapping of keys to values").hint(LEAST));
    None
}

const LEAST: &str = "the least there can be is: run: echo hello";

type Failure = (Place, Refusal);

fn build(text: &str, problems: &mut Problems) -> Result<Option<Node>, Failure> {
    let options = granit::options! { emit_comments: false, disallow_directives: true, emit_unresolved_aliases: true };
    let mut builder = Builder { problems, open: Vec::new(), root: None, nodes: 0 };
    for next in Parser::new_from_str_with_options(text, options) {
        let (event, span) = next.map_err(|error| {
            let place = place_of(error.marker());
            (place, Refusal::new(Code::Syntax, format!("not valid YAML: {}", error.kind())))
        })?;
        builder.take(event, &span)?;
    }
    Ok(builder.root)
}

fn place_of(marker: &granit::Marker) -> Place {
    Place::File { line: marker.line().max(1), column: marker.col() + 1 }
}

/// A collection whose end hasn't been read.
enum Open {
    List(Place, Vec<Node>),
    Mapping(Place, Vec<Entry>, Option<(String, Place)>),
}

struct Builder<'p> {
    problems: &'p mut Problems,
    open: Vec<Open>,
    root: Option<Node>,
    nodes: usize,
}

impl Builder<'_> {
    fn take(&mut self, event: Event<'_>, span: &Span) -> Result<(), Failure> {
        let place = place_of(&span.start);
        let refused = |what: &str, hint: &str| Err((place.clone(), Refusal::new(Code::Restricted, what).hint(hint)));
        if event.is_node() {
            self.nodes += 1;
        }
        if self.nodes > NODES_MAX {
            return refused("the file has too many values", &format!("the limit is {NODES_MAX}"));
        }
        match event {
            Event::Alias(_) | Event::UnresolvedAlias(_) => {
                refused("aliases are not used in job files", "repeat the value")
            }
            Event::Scalar(_, _, anchor, _) | Event::SequenceStart(_, anchor, _) | Event::MappingStart(_, anchor, _)
                if anchor != 0 =>
            {
                refused("anchors are not used in job files", "write the value without &name")
            }
            Event::Scalar(_, _, _, Some(_))
            | Event::SequenceStart(_, _, Some(_))
            | Event::MappingStart(_, _, Some(_)) => {
                refused("tags are not used in job files", "write the value without !tag")
            }
            Event::Scalar(text, style, _, _) => {
                let scalar = Scalar { text: text.into_owned(), is_plain: style == ScalarStyle::Plain };
                self.put(Node { place, value: Value::Scalar(scalar) })
            }
            Event::SequenceStart(..) | Event::MappingStart(..) if self.open.len() == DEPTH_MAX => {
                refused("lists and mappings are nested too deep", &format!("the limit is {DEPTH_MAX}"))
            }
            Event::SequenceStart(..) => {
                self.open.push(Open::List(place, Vec::new()));
                Ok(())
            }
            Event::MappingStart(..) => {
                self.open.push(Open::Mapping(place, Vec::new(), None));
                Ok(())
            }
            Event::SequenceEnd | Event::MappingEnd => self.close(),
            Event::DocumentStart(..) if self.root.is_some() => {
                refused("a job file is one document", "put each job into a file of its own")
            }
            _ => Ok(()),
        }
    }

    fn close(&mut self) -> Result<(), Failure> {
        match self.open.pop().expect("the parser ends only what it began") {
            Open::List(place, items) => self.put(Node { place, value: Value::List(items) }),
            Open::Mapping(place, entries, _) => {
                let entries = self.without_duplicates(entries);
                self.put(Node { place, value: Value::Mapping(entries) })
            }
        }
    }

    /// Puts a finished value into the innermost open collection, or makes it the document.
    fn put(&mut self, node: Node) -> Result<(), Failure> {
        match self.open.last_mut() {
            None => self.root = Some(node),
            Some(Open::List(_, items)) => items.push(node),
            Some(Open::Mapping(_, entries, key)) => match (key.take(), node) {
                (Some((key, place)), value) => entries.push(Entry { key, place, value }),
                (None, Node { place, value: Value::Scalar(scalar) }) => *key = Some((scalar.text, place)),
                (None, Node { place, .. }) => {
                    return Err((place, Refusal::new(Code::WrongType, "a key has to be a word")));
                }
            },
        }
        Ok(())
    }

    fn without_duplicates(&mut self, entries: Vec<Entry>) -> Vec<Entry> {
        let mut first = BTreeMap::new();
        let mut unique = Vec::with_capacity(entries.len());
        for entry in entries {
            match first.entry(entry.key.clone()) {
                Slot::Vacant(slot) => {
                    slot.insert(entry.place.clone());
                    unique.push(entry);
                }
                Slot::Occupied(slot) => {
                    let message = format!("key {} is there twice", shown(&entry.key));
                    let refusal = Refusal::new(Code::DuplicateKey, message);
                    let refusal = match slot.get() {
                        Place::File { line, .. } => refusal.hint(format!("the first is on line {line}")),
                        Place::Template { .. } | Place::Override(_) => refusal,
                    };
                    self.problems.add(&entry.place, refusal);
                }
            }
        }
        unique
    }
}
