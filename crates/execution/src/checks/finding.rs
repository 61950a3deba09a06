//! What a check found: a figure, what it was held against, why that matters and what to do. A value, as text and as figures, that goes
//! from the check's process to whoever asked, from node to node, and to scripts (`--json`).

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};

/// How a check came out, from good to bad.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// As it should be.
    Fine,
    /// This machine has no such thing.
    NotHere,
    /// It couldn't be looked at; the finding says why.
    Unknown,
    /// A training run will suffer from it.
    Warning,
    /// Nothing should be started here before it is put right: a fault of the node.
    Failed,
    /// The check didn't end in its time. Whatever it asked doesn't answer, so the node is suspect.
    Hung,
}

impl Verdict {
    /// Its word.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Verdict::Fine => "fine",
            Verdict::NotHere => "not here",
            Verdict::Unknown => "unknown",
            Verdict::Warning => "warning",
            Verdict::Failed => "failed",
            Verdict::Hung => "hung",
        }
    }

    /// Whether somebody should do something about it.
    #[must_use]
    pub fn is_problem(self) -> bool {
        self >= Verdict::Warning
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// What a check found of one thing. All texts are lowercase fragments.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Finding {
    /// The check's name.
    pub check: String,
    /// What was looked at, such as `gpu 3` or `/data`; empty if the check looks at one thing only.
    pub subject: String,
    /// How it came out.
    pub verdict: Verdict,
    /// What was seen or measured, with its unit; or why nothing was.
    pub measured: String,
    /// What it was held against; empty if against nothing.
    pub expected: String,
    /// Why it matters; empty if all is fine.
    pub why: String,
    /// What to do; empty if nothing.
    pub todo: String,
    /// What a run suffers from it. Estimated, always.
    pub estimate: String,
    /// Figures for scripts and to compare nodes by; names end in their unit.
    pub figures: BTreeMap<String, f64>,
}

/// Against what a figure was held, and what follows.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reason<'a> {
    /// What it was held against.
    pub(crate) expected: &'a str,
    /// Why it matters.
    pub(crate) why: &'a str,
    /// What to do.
    pub(crate) todo: &'a str,
}

impl Finding {
    /// Something that is fine.
    pub(crate) fn fine(subject: impl Into<String>, measured: impl Into<String>) -> Finding {
        Finding {
            check: String::new(),
            subject: subject.into(),
            verdict: Verdict::Fine,
            measured: measured.into(),
            expected: String::new(),
            why: String::new(),
            todo: String::new(),
            estimate: String::new(),
            figures: BTreeMap::new(),
        }
    }

    /// Something that this machine doesn't have.
    pub(crate) fn not_here(measured: impl Into<String>) -> Finding {
        Finding { verdict: Verdict::NotHere, ..Finding::fine("", measured) }
    }

    /// Something that couldn't be looked at.
    pub(crate) fn unknown(subject: impl Into<String>, measured: impl Into<String>, todo: &str) -> Finding {
        Finding { verdict: Verdict::Unknown, todo: todo.to_owned(), ..Finding::fine(subject, measured) }
    }

    /// The same, wrong.
    #[must_use]
    pub(crate) fn wrong(self, verdict: Verdict, reason: Reason<'_>) -> Finding {
        let Reason { expected, why, todo } = reason;
        Finding { verdict, expected: expected.to_owned(), why: why.to_owned(), todo: todo.to_owned(), ..self }
    }

    /// Wrong if `is_wrong`, else fine beside what was expected.
    #[must_use]
    pub(crate) fn judged(self, is_wrong: bool, verdict: Verdict, reason: Reason<'_>) -> Finding {
        if is_wrong { self.wrong(verdict, reason) } else { Finding { expected: reason.expected.to_owned(), ..self } }
    }

    /// With a figure.
    #[must_use]
    pub(crate) fn figure(mut self, name: &str, value: f64) -> Finding {
        self.figures.insert(name.to_owned(), value);
        self
    }

    /// With what a run suffers from it.
    #[must_use]
    pub(crate) fn estimate(self, estimate: impl Into<String>) -> Finding {
        Finding { estimate: estimate.into(), ..self }
    }

    /// The check and what it looked at.
    #[must_use]
    pub fn place(&self) -> String {
        if self.subject.is_empty() { self.check.clone() } else { format!("{} {}", self.check, self.subject) }
    }
}
