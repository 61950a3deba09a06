//! The result of a check: a figure, the expected value, why it matters and what to do. A finding holds both
//! text and figures; it goes from the check's process to its caller, from node to node, and to scripts
//! (`--json`).

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};

/// The result of a check, from good to bad.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// As expected.
    Fine,
    /// This machine has no such thing.
    NotHere,
    /// The check couldn't be done; the finding says why.
    Unknown,
    /// A training run will be slowed down or disturbed.
    Warning,
    /// A fault of the node: nothing should start here until it is fixed.
    Failed,
    /// The check didn't end before its time-out, so the node is suspect.
    Hung,
}

impl Verdict {
    /// The word that tables print.
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

    /// Reports whether somebody should act on it.
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

/// The finding of a check on one subject. All texts are lowercase fragments.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Finding {
    /// The check's name.
    pub check: String,
    /// The subject, such as `gpu 3` or `/data`; empty if the check has only one.
    pub subject: String,
    /// The result.
    pub verdict: Verdict,
    /// The observation or measurement, with its unit; or why there is none.
    pub measured: String,
    /// The expected value; empty if there is none.
    pub expected: String,
    /// Why it matters; empty if all is fine.
    pub why: String,
    /// What to do; empty if nothing.
    pub todo: String,
    /// The estimated cost to a run.
    pub estimate: String,
    /// Figures for scripts and for comparing nodes; names end in their unit.
    pub figures: BTreeMap<String, f64>,
}

/// The expected value of a figure, and the consequence of missing it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reason<'a> {
    /// The expected value.
    pub(crate) expected: &'a str,
    /// Why it matters.
    pub(crate) why: &'a str,
    /// What to do.
    pub(crate) todo: &'a str,
}

impl Finding {
    /// Creates a finding without a problem.
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

    /// Creates a finding for a device or feature that this machine doesn't have.
    pub(crate) fn not_here(measured: impl Into<String>) -> Finding {
        Finding { verdict: Verdict::NotHere, ..Finding::fine("", measured) }
    }

    /// Creates a finding for a check that couldn't be done.
    pub(crate) fn unknown(subject: impl Into<String>, measured: impl Into<String>, todo: &str) -> Finding {
        Finding { verdict: Verdict::Unknown, todo: todo.to_owned(), ..Finding::fine(subject, measured) }
    }

    /// Adds a verdict and its reason.
    #[must_use]
    pub(crate) fn wrong(self, verdict: Verdict, reason: Reason<'_>) -> Finding {
        let Reason { expected, why, todo } = reason;
        Finding { verdict, expected: expected.to_owned(), why: why.to_owned(), todo: todo.to_owned(), ..self }
    }

    /// Adds the verdict and its reason if `is_wrong`, otherwise only the expected value.
    #[must_use]
    pub(crate) fn judged(self, is_wrong: bool, verdict: Verdict, reason: Reason<'_>) -> Finding {
        if is_wrong { self.wrong(verdict, reason) } else { Finding { expected: reason.expected.to_owned(), ..self } }
    }

    /// Adds a figure.
    #[must_use]
    pub(crate) fn figure(mut self, name: &str, value: f64) -> Finding {
        self.figures.insert(name.to_owned(), value);
        self
    }

    /// Adds the estimated cost to a run.
    #[must_use]
    pub(crate) fn estimate(self, estimate: impl Into<String>) -> Finding {
        Finding { estimate: estimate.into(), ..self }
    }

    /// Returns the check's name and its subject.
    #[must_use]
    pub fn place(&self) -> String {
        if self.subject.is_empty() { self.check.clone() } else { format!("{} {}", self.check, self.subject) }
    }
}
