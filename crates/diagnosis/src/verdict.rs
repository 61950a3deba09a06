//! The verdict on a failed run.

use gangline_base::FaultCategory as Category;
use serde::Serialize;

/// Why a run failed, with the lines that support it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Verdict {
    /// Category of the cause.
    pub category: Category,
    /// The cause within its category, such as `ecc` or `import_error`; docs/reference/diagnosis.md lists
    /// them.
    pub subcategory: String,
    /// Probability that the category is right, from 0 to 1; below 0.5 the category is `unknown`.
    pub confidence: f64,
    /// The confidence as a word.
    pub certainty: Certainty,
    /// One sentence on what happened.
    pub summary: String,
    /// The lines that support it, the decisive one first.
    pub evidence: Vec<Quote>,
    /// The rank in which the failure began.
    pub rank: Option<u32>,
    /// The node on which the failure began.
    pub node: Option<String>,
    /// What to do about it.
    pub advice: String,
    /// The rule that decided, by its id in rules/*.toml; none if none did.
    pub rule: Option<String>,
    /// Whether the decisive line is often a consequence of something else, as a lost connection is: another
    /// node's log may name the cause.
    pub is_consequence: bool,
    /// Where the form of the decisive line is documented.
    pub source: Option<String>,
    /// Other causes that lines support, likeliest first.
    pub alternatives: Vec<Alternative>,
}

/// Another possible cause.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Alternative {
    /// Category of the cause.
    pub category: Category,
    /// The cause within its category.
    pub subcategory: String,
    /// Confidence that its best line would have alone, from 0 to 1.
    pub confidence: f64,
}

/// A line that supports a verdict.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Quote {
    /// Name of its log.
    pub log: String,
    /// Its number in the log, from 1; 0 for evidence that isn't a line, such as an exit code.
    pub line: usize,
    /// The rank that wrote it.
    pub rank: Option<u32>,
    /// The node of that rank.
    pub node: Option<String>,
    /// The line without colours, shortened.
    pub text: String,
}

/// A confidence as a word.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Certainty {
    /// At least 0.8: act on it.
    High,
    /// At least 0.5: likely, look at the lines.
    Medium,
    /// Below 0.5: a guess.
    Low,
}

impl Certainty {
    /// Returns the word for a confidence.
    #[must_use]
    pub fn of(confidence: f64) -> Certainty {
        match confidence {
            c if c >= 0.8 => Certainty::High,
            c if c >= 0.5 => Certainty::Medium,
            _ => Certainty::Low,
        }
    }

    /// Returns its stable name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Certainty::High => "high",
            Certainty::Medium => "medium",
            Certainty::Low => "low",
        }
    }
}
