//! An alert with its state, and silences.

use std::collections::BTreeSet;

use gangline_base::Timestamp;
use serde::{Deserialize, Serialize};

use super::rule::{Severity, Subject};

/// Where an alert stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum State {
    /// Its rule is broken, but not for long enough yet.
    Pending,
    /// It fires.
    Firing,
    /// It has ended.
    Resolved,
}

impl State {
    /// Returns the name.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            State::Pending => "pending",
            State::Firing => "firing",
            State::Resolved => "resolved",
        }
    }
}

/// A rule that is broken by a subject, or was.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Alert {
    /// Its number, which is used once.
    pub id: u64,
    /// The rule's name.
    pub rule: String,
    /// What it is about.
    pub subject: Subject,
    /// How much it matters.
    pub severity: Severity,
    /// Where it stands.
    pub state: State,
    /// When its rule was broken first.
    pub since: Timestamp,
    /// When it began to fire.
    pub fired_at: Option<Timestamp>,
    /// Since when it has been clear, though it still fires.
    pub clear_since: Option<Timestamp>,
    /// When it ended.
    pub resolved_at: Option<Timestamp>,
    /// The worst value of the last evaluation at which the rule was broken, as users see it.
    pub value: String,
    /// The subject's parts that break the rule, the first 16.
    pub parts: Vec<String>,
    /// Number of further parts.
    pub more_parts: usize,
    /// What happened.
    pub summary: String,
    /// What to do about it.
    pub hint: String,
    /// Who takes care of it, and since when.
    pub acknowledged: Option<(String, Timestamp)>,
    /// When receivers were last told that it fires.
    pub told_at: Option<Timestamp>,
    /// The parts that receivers were told of.
    #[serde(default)]
    pub told_parts: BTreeSet<String>,
}

/// What a user wants not to be told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wish {
    /// Only alerts of this rule.
    pub rule: Option<String>,
    /// Only alerts about this subject, as it is shown (`job-3`, `node n1`).
    pub subject: Option<String>,
    /// Until when.
    pub until: Timestamp,
    /// Why.
    pub comment: String,
}

/// Alerts that nobody is told about for a time. They are still shown.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Silence {
    /// Its number, which is used once.
    pub id: u64,
    /// Only alerts of this rule.
    pub rule: Option<String>,
    /// Only alerts about this subject.
    pub subject: Option<String>,
    /// Since when.
    pub since: Timestamp,
    /// Until when.
    pub until: Timestamp,
    /// Who asked for it.
    pub by: String,
    /// Why.
    pub comment: String,
}

impl Silence {
    /// Reports whether it is about this alert.
    #[must_use]
    pub fn covers(&self, alert: &Alert) -> bool {
        self.rule.as_ref().is_none_or(|rule| *rule == alert.rule)
            && self.subject.as_ref().is_none_or(|subject| *subject == alert.subject.to_string())
    }
}
