//! Problems of a job file, and their places.

use std::fmt;

/// The kinds of problems; each has a page in `docs/errors/`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Code {
    /// The text is not YAML, or not a mapping.
    Syntax,
    /// The text exceeds a limit or uses a forbidden feature: size, depth, aliases, tags, several documents.
    Restricted,
    /// An unknown key.
    UnknownKey,
    /// A key that occurs twice.
    DuplicateKey,
    /// A required key is missing.
    MissingKey,
    /// A value of the wrong type, such as a list in place of a number.
    WrongType,
    /// A value of the right type that can't be parsed.
    BadValue,
    /// A number that is negative or above a limit.
    OutOfRange,
    /// A folder that doesn't exist.
    NoFolder,
    /// Code that can't be copied: too large, unreadable, or a repository that doesn't give it.
    NoCopy,
    /// A `--set` that isn't `key=value` or names no valid key.
    BadOverride,
}

impl Code {
    /// All codes, in the order of their numbers.
    pub const ALL: [Code; 11] = [
        Code::Syntax,
        Code::Restricted,
        Code::UnknownKey,
        Code::DuplicateKey,
        Code::MissingKey,
        Code::WrongType,
        Code::BadValue,
        Code::OutOfRange,
        Code::NoFolder,
        Code::BadOverride,
        Code::NoCopy,
    ];

    /// Returns the stable code.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Code::Syntax => "G0101",
            Code::Restricted => "G0102",
            Code::UnknownKey => "G0103",
            Code::DuplicateKey => "G0104",
            Code::MissingKey => "G0105",
            Code::WrongType => "G0106",
            Code::BadValue => "G0107",
            Code::OutOfRange => "G0108",
            Code::NoFolder => "G0109",
            Code::BadOverride => "G0110",
            Code::NoCopy => "G0111",
        }
    }
}

/// The source of a value.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Place {
    /// A position in the file: line and column from 1, in characters.
    File {
        /// The line.
        line: usize,
        /// The column.
        column: usize,
    },
    /// A position in a template that the file names: line and column from 1, in characters.
    Template {
        /// The template's name.
        name: String,
        /// The line.
        line: usize,
        /// The column.
        column: usize,
    },
    /// A `--set` option, as given.
    Override(String),
}

impl Place {
    /// The beginning of the file, for missing keys.
    pub(super) const START: Place = Place::File { line: 1, column: 1 };
}

/// A problem of a job file. Displayed as
/// `G0103 job.yaml:7:3: unknown key "num_node" (did you mean "num_nodes"?)`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// The kind of problem.
    pub code: Code,
    /// The job file, as the caller named it.
    pub file: String,
    /// The place in the file, or the `--set`.
    pub place: Place,
    /// The message: a lowercase fragment.
    pub message: String,
    /// Advice for the user.
    pub hint: Option<String>,
}

impl Problem {
    /// The most problems reported at once.
    pub const COUNT_MAX: usize = 20;
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ", self.code.as_str())?;
        match &self.place {
            Place::File { line, column } => write!(f, "{}:{line}:{column}", self.file)?,
            Place::Template { name, line, column } => write!(f, "template {name}:{line}:{column}")?,
            Place::Override(option) => write!(f, "--set {}", on_one_line(option))?,
        }
        write!(f, ": {}", self.message)?;
        self.hint.as_ref().map_or(Ok(()), |hint| write!(f, " ({hint})"))
    }
}

/// The reason why a value was refused, without its place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Refusal {
    pub(super) code: Code,
    pub(super) message: String,
    pub(super) hint: Option<String>,
}

impl Refusal {
    pub(super) fn new(code: Code, message: impl Into<String>) -> Self {
        Refusal { code, message: message.into(), hint: None }
    }

    pub(super) fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }
}

/// The problems found so far.
pub(super) struct Problems {
    file: String,
    found: Vec<Problem>,
}

impl Problems {
    pub(super) fn new(file: &str) -> Self {
        Problems { file: file.to_owned(), found: Vec::new() }
    }

    pub(super) fn add(&mut self, place: &Place, refusal: Refusal) {
        let Refusal { code, message, hint } = refusal;
        self.found.push(Problem { code, file: self.file.clone(), place: place.clone(), message, hint });
    }

    pub(super) fn is_empty(&self) -> bool {
        self.found.is_empty()
    }

    /// Returns a value, or records why there is none.
    pub(super) fn keep<T>(&mut self, place: &Place, outcome: Result<T, Refusal>) -> Option<T> {
        outcome.map_err(|refusal| self.add(place, refusal)).ok()
    }

    /// Returns the problems in the order of the file, then of templates, then of the options.
    pub(super) fn into_sorted(mut self) -> Vec<Problem> {
        self.found.sort_by(|a, b| a.place.cmp(&b.place));
        self.found.truncate(Problem::COUNT_MAX);
        self.found
    }
}

fn on_one_line(option: &str) -> String {
    option.chars().take(SHOWN_CHARS_MAX).map(|c| if c.is_control() { ' ' } else { c }).collect()
}

/// The most characters of a user's text that a message repeats.
const SHOWN_CHARS_MAX: usize = 60;

/// Quotes a user's text for a message, on one line and cut to a limit.
pub(super) fn shown(text: &str) -> String {
    let short: String = text.chars().take(SHOWN_CHARS_MAX).collect();
    let dots = if short.len() < text.len() { "..." } else { "" };
    format!("\"{}{dots}\"", short.escape_debug())
}
