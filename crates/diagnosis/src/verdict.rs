//! What is said of a failed run.

use gangline_base::FaultCategory as Category;
use serde::Serialize;

/// Why a run failed, with the lines that say so.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Verdict {
    /// The kind of cause.
    pub category: Category,
    /// The cause itself, as `ecc` or `import_error`; docs/diagnosis.md lists them.
    pub subcategory: String,
    /// How likely the category is right, from 0 to 1; below 0.5 the category is `unknown`.
    pub confidence: f64,
    /// The same in a word.
    pub certainty: Certainty,
    /// What happened, in a sentence.
    pub summary: String,
    /// The lines that say so, the decisive one first.
    pub evidence: Vec<Quote>,
    /// The rank where it began.
    pub rank: Option<u32>,
    /// The node where it began.
    pub node: Option<String>,
    /// What to do about it.
    pub advice: String,
    /// The rule that decided, as rules/*.toml names it; none if none did.
    pub rule: Option<String>,
    /// The decisive line is one that often follows from something else, as a lost connection does: what another node says may be the cause.
    pub is_consequence: bool,
    /// Where the form of the decisive line is documented.
    pub source: Option<String>,
    /// Other kinds of cause that lines speak for, likeliest first.
    pub alternatives: Vec<Alternative>,
}

/// What else it could have been.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Alternative {
    /// The kind of cause.
    pub category: Category,
    /// The cause itself.
    pub subcategory: String,
    /// How much its best line would weigh alone, from 0 to 1.
    pub confidence: f64,
}

/// A line that speaks for a verdict.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Quote {
    /// The log it stands in.
    pub log: String,
    /// Its number there, from 1; 0 for what isn't a line, as an exit code.
    pub line: usize,
    /// Who wrote it.
    pub rank: Option<u32>,
    /// Where.
    pub node: Option<String>,
    /// The line without colours, shortened.
    pub text: String,
}

/// A confidence in a word.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Certainty {
    /// At least 0.8: act on it.
    High,
    /// At least 0.5: likely, look at the lines.
    Medium,
    /// Below: a guess.
    Low,
}

impl Certainty {
    /// The word for a confidence.
    #[must_use]
    pub fn of(confidence: f64) -> Certainty {
        match confidence {
            c if c >= 0.8 => Certainty::High,
            c if c >= 0.5 => Certainty::Medium,
            _ => Certainty::Low,
        }
    }

    /// Its stable name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Certainty::High => "high",
            Certainty::Medium => "medium",
            Certainty::Low => "low",
        }
    }
}
