//! Alerts: what is wrong now, who is told, and what nobody wants to be told.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::Time;

/// Everything about alerts.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct AlertList {
    /// Firing ones, then pending ones, then those that ended last.
    pub alerts: Vec<Alert>,
    /// Alerts beyond the most that there may be.
    pub left_out: u64,
    /// Silences, the newest first.
    pub silences: Vec<Silence>,
    /// Who is told.
    pub receivers: Vec<AlertReceiver>,
    /// Names of the rules that hold.
    pub rules: Vec<String>,
    /// Seconds between two evaluations.
    pub every_seconds: f64,
    /// When the rules were last evaluated; none before the first time since the start.
    pub evaluated_at: Option<Time>,
    /// Why rules aren't evaluated, not wholly, or not kept through a restart.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure: Option<String>,
}

/// A rule that a subject breaks, or broke.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Alert {
    /// Its number, used once.
    pub id: u64,
    /// The rule's name.
    #[schema(examples("data_stall"))]
    pub rule: String,
    /// What it is about: `job-3`, `node n1`, `queue research` or `control plane`.
    #[schema(examples("job-3"))]
    pub subject: String,
    /// `info`, `warning` or `critical`.
    pub severity: String,
    /// `pending`, `firing` or `resolved`.
    pub state: String,
    /// When the rule was broken first.
    pub since: Time,
    /// When it began to fire.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fired_at: Option<Time>,
    /// When it ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resolved_at: Option<Time>,
    /// The worst value (measured).
    pub value: String,
    /// Parts of the subject that break the rule, such as ranks; the first of them.
    pub parts: Vec<String>,
    /// Number of further parts.
    pub more_parts: u64,
    /// What happened.
    pub summary: String,
    /// What to do about it.
    pub hint: String,
    /// Whether a silence covers it, so that nobody is told.
    pub is_silenced: bool,
    /// Who takes care of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub acknowledged_by: Option<String>,
    /// Since when.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub acknowledged_at: Option<Time>,
}

/// Alerts that nobody is told of for a time.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Silence {
    /// Its number, used once.
    pub id: u64,
    /// Only alerts of this rule.
    pub rule: Option<String>,
    /// Only alerts about this subject.
    pub subject: Option<String>,
    /// Since when.
    pub since: Time,
    /// Until when.
    pub until: Time,
    /// Who asked for it.
    pub by: String,
    /// Why.
    pub comment: String,
}

/// What to silence.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct SilenceRequest {
    /// Only alerts of this rule.
    pub rule: Option<String>,
    /// Only alerts about this subject.
    pub subject: Option<String>,
    /// For how long; 90 days at most.
    pub for_seconds: u64,
    /// Why; 1 KiB at most.
    #[serde(default)]
    pub comment: String,
}

/// Somebody who is told of alerts. The address isn't shown: it may be a secret.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct AlertReceiver {
    /// Its name in the file of rules.
    pub name: String,
    /// `webhook`, `slack`, `alertmanager` or `command`.
    pub kind: String,
    /// The least severity of which it is told.
    pub severity: String,
    /// Messages that arrived since the start.
    pub delivered: u64,
    /// Messages that were given up.
    pub given_up: u64,
    /// Messages that wait.
    pub waiting: u64,
    /// When a message arrived last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub delivered_at: Option<Time>,
    /// Why the last message didn't arrive, unless a later one did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure: Option<String>,
}
