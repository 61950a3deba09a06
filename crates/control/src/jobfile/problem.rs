//! What is wrong with a job file, and where.

use std::fmt;

/// The kinds of problems; each has a page in `docs/errors/`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Code {
    /// The text is not YAML, or not a mapping.
    Syntax,
    /// The text uses what job files do not allow: size, depth, aliases, tags, several documents.
    Restricted,
    /// A key nobody knows.
    UnknownKey,
    /// A key that is there twice.
    DuplicateKey,
    /// A key that has to be there.
    MissingKey,
    /// A list where a number belongs, and the like.
    WrongType,
    /// A value of the right type that cannot be understood.
    BadValue,
    /// A number that is negative or over a limit.
    OutOfRange,
    /// A folder that does not exist.
    NoFolder,
    /// A `--set` that is not `key=value` or leads nowhere.
    BadOverride,
}

impl Code {
    /// All of them, in the order of their numbers.
    pub const ALL: [Code; 10] = [
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
    ];

    /// The stable code.
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
        }
    }
}

/// Where a value came from.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Place {
    /// The file: line and column from 1, in characters.
    File {
        /// The line.
        line: usize,
        /// The column.
        column: usize,
    },
    /// A `--set` option, as it was given.
    Override(String),
}

impl Place {
    /// The beginning of the file, for what is missing altogether.
    pub(super) const START: Place = Place::File { line: 1, column: 1 };
}

/// One thing that is wrong. Displayed as `G0103 job.yaml:7:3: unknown key "num_node" (did you mean "num_nodes"?)`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// Its kind.
    pub code: Code,
    /// The job file, as the caller named it.
    pub file: String,
    /// Where in it, or which `--set`.
    pub place: Place,
    /// What is wrong: a lowercase fragment.
    pub message: String,
    /// What to do about it.
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
            Place::Override(option) => write!(f, "--set {}", on_one_line(option))?,
        }
        write!(f, ": {}", self.message)?;
        self.hint.as_ref().map_or(Ok(()), |hint| write!(f, " ({hint})"))
    }
}

/// Why a value was refused, not yet knowing where it is.
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

    /// Keeps a value, or notes why there is none.
    pub(super) fn keep<T>(&mut self, place: &Place, outcome: Result<T, Refusal>) -> Option<T> {
        outcome.map_err(|refusal| self.add(place, refusal)).ok()
    }

    /// In the order of the file, then of the options.
    pub(super) fn into_sorted(mut self) -> Vec<Problem> {
        self.found.sort_by(|a, b| a.place.cmp(&b.place));
        self.found.truncate(Problem::COUNT_MAX);
        self.found
    }
}

fn on_one_line(option: &str) -> String {
    option.chars().take(SHOWN_CHARS_MAX).map(|c| if c.is_control() { ' ' } else { c }).collect()
}

/// How much of a user's text a message repeats.
const SHOWN_CHARS_MAX: usize = 60;

/// A user's text for a message: in quotes, on one line, and not too long.
pub(super) fn shown(text: &str) -> String {
    let short: String = text.chars().take(SHOWN_CHARS_MAX).collect();
    let dots = if short.len() < text.len() { "..." } else { "" };
    format!("\"{}{dots}\"", short.escape_debug())
}
