//! Rules and readings: what is measured, of what, and when that is worth an alert.

use std::fmt;
use std::time::Duration;

use gangline_base::{InvalidName, JobId, NodeName};
use serde::{Deserialize, Serialize};

use crate::collectors::{self, metric_named};

/// What a reading is about. Alerts are told apart by rule and subject.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(into = "SubjectV1", try_from = "SubjectV1")]
pub enum Subject {
    /// The control plane.
    ControlPlane,
    /// A job.
    Job(JobId),
    /// A node.
    Node(NodeName),
    /// A queue, by its name.
    Queue(String),
    /// A budget, by its name.
    Budget(String),
}

/// A subject as it is saved.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum SubjectV1 {
    ControlPlane,
    Job(u64),
    Node(String),
    Queue(String),
    Budget(String),
}

impl From<Subject> for SubjectV1 {
    fn from(subject: Subject) -> Self {
        match subject {
            Subject::ControlPlane => SubjectV1::ControlPlane,
            Subject::Job(job) => SubjectV1::Job(job.0),
            Subject::Node(node) => SubjectV1::Node(node.to_string()),
            Subject::Queue(queue) => SubjectV1::Queue(queue),
            Subject::Budget(budget) => SubjectV1::Budget(budget),
        }
    }
}

impl TryFrom<SubjectV1> for Subject {
    type Error = InvalidName;

    fn try_from(written: SubjectV1) -> Result<Self, InvalidName> {
        Ok(match written {
            SubjectV1::ControlPlane => Subject::ControlPlane,
            SubjectV1::Job(job) => Subject::Job(JobId(job)),
            SubjectV1::Node(node) => Subject::Node(NodeName::new(&node)?),
            SubjectV1::Queue(queue) => Subject::Queue(queue),
            SubjectV1::Budget(budget) => Subject::Budget(budget),
        })
    }
}

impl fmt::Display for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Subject::ControlPlane => f.write_str("control plane"),
            Subject::Job(job) => write!(f, "{job}"),
            Subject::Node(node) => write!(f, "node {node}"),
            Subject::Queue(queue) => write!(f, "queue {queue}"),
            Subject::Budget(budget) => write!(f, "budget {budget}"),
        }
    }
}

/// How a value is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// A part of 1, shown in percent.
    Ratio,
    /// Seconds.
    Seconds,
    /// A bare number.
    Number,
    /// 1 if it is so, 0 if not; not shown.
    Flag,
}

impl Unit {
    /// Returns a value as users see it.
    #[must_use]
    pub fn show(self, value: f64) -> String {
        match self {
            Unit::Ratio => format!("{:.1} %", value * 100.0),
            Unit::Seconds if value >= 7_200.0 => format!("{:.1} h", value / 3_600.0),
            Unit::Seconds if value >= 120.0 => format!("{:.0} min", value / 60.0),
            Unit::Seconds => format!("{value:.1} s"),
            Unit::Number => format!("{value:.4}").trim_end_matches('0').trim_end_matches('.').to_owned(),
            Unit::Flag => if value == 0.0 { "no" } else { "yes" }.to_owned(),
        }
    }
}

/// What the control plane measures for rules.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Signal {
    /// A rank's last loss is NaN or infinite.
    LossNotFinite,
    /// A rank's last loss above the median of its recent past, in robust standard deviations.
    LossSpike,
    /// Checkpoint intervals since a job's last durable checkpoint.
    CheckpointOverdue,
    /// Part of its steps that a rank spends waiting for data.
    DataStall,
    /// Part of its steps that a rank is blocked by saves.
    CheckpointStall,
    /// A job's steps a second, as a part of its own past.
    Throughput,
    /// A job's tokens a second, as a part of what its plan says.
    PlanShare,
    /// Work of a rank for a step above its peers' median, as a part of that.
    Straggler,
    /// A rank makes no progress, and would be given up as hung if that goes on.
    Silence,
    /// Attempts of a job that ended by a fault within an hour.
    JobFaults,
    /// A job failed for good within an hour.
    JobFailed,
    /// Part of the time in which a GPU of a running job was busy.
    GpuUtilization,
    /// A node is lost, suspect or unwell.
    NodeUnavailable,
    /// Seconds for which the first job of a queue has waited.
    QueueWait,
    /// Part of a budget that is spent.
    BudgetSpent,
    /// Part of a budget that will be spent at the end of its period, if as much is spent as in the last day.
    BudgetForecast,
    /// Part of its limit that the journal takes.
    Journal,
    /// Used part of the disk of a folder of the control plane.
    Disk,
    /// The control plane is unwell, degraded or can't write its journal.
    Unwell,
    /// The series store can't write.
    SeriesFailing,
}

/// Each signal with its name in rules and its unit.
const SIGNALS: [(Signal, &str, Unit); 20] = [
    (Signal::LossNotFinite, "loss_not_finite", Unit::Flag),
    (Signal::LossSpike, "loss_spike", Unit::Number),
    (Signal::CheckpointOverdue, "checkpoint_overdue", Unit::Number),
    (Signal::DataStall, "data_stall", Unit::Ratio),
    (Signal::CheckpointStall, "checkpoint_stall", Unit::Ratio),
    (Signal::Throughput, "throughput", Unit::Ratio),
    (Signal::PlanShare, "plan_share", Unit::Ratio),
    (Signal::Straggler, "straggler", Unit::Ratio),
    (Signal::Silence, "silence", Unit::Flag),
    (Signal::JobFaults, "job_faults", Unit::Number),
    (Signal::JobFailed, "job_failed", Unit::Flag),
    (Signal::GpuUtilization, "gpu_utilization", Unit::Ratio),
    (Signal::NodeUnavailable, "node_unavailable", Unit::Flag),
    (Signal::QueueWait, "queue_wait", Unit::Seconds),
    (Signal::BudgetSpent, "budget_spent", Unit::Ratio),
    (Signal::BudgetForecast, "budget_forecast", Unit::Ratio),
    (Signal::Journal, "journal", Unit::Ratio),
    (Signal::Disk, "disk", Unit::Ratio),
    (Signal::Unwell, "unwell", Unit::Flag),
    (Signal::SeriesFailing, "series_failing", Unit::Flag),
];

impl Signal {
    /// Returns the signal of this name.
    #[must_use]
    pub fn named(name: &str) -> Option<Signal> {
        SIGNALS.iter().find(|(_, its, _)| *its == name).map(|(signal, ..)| *signal)
    }

    /// Returns the names of all signals.
    pub fn names() -> impl Iterator<Item = &'static str> {
        SIGNALS.iter().map(|(_, name, _)| *name)
    }

    fn entry(self) -> &'static (Signal, &'static str, Unit) {
        SIGNALS.iter().find(|(signal, ..)| *signal == self).expect("the table has every signal")
    }

    /// Returns the name, as rules have it.
    #[must_use]
    pub fn name(self) -> &'static str {
        self.entry().1
    }

    /// Returns the unit of its values.
    #[must_use]
    pub fn unit(self) -> Unit {
        self.entry().2
    }
}

/// What a rule looks at.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Measure {
    /// What the control plane measures.
    Signal(Signal),
    /// The newest value of a metric that ranks report, by its name.
    Metric(String),
    /// What a node's agent reads, by a name of the table of [`collectors`]: the mean of the last minute; of a counter how much it
    /// grew in the last five.
    NodeMetric(String),
}

impl Measure {
    /// Reports whether each part of a subject breaks a rule for a cause of its own, as disks and GPUs of a node do. The ranks of a job
    /// mostly share one.
    #[must_use]
    pub(super) fn has_independent_parts(&self) -> bool {
        matches!(self, Measure::NodeMetric(_) | Measure::Signal(Signal::Disk))
    }

    /// Returns the unit of its values.
    #[must_use]
    pub fn unit(&self) -> Unit {
        match self {
            Measure::Signal(signal) => signal.unit(),
            Measure::Metric(_) => Unit::Number,
            // The mean of a flag is the part of the time in which it was set.
            Measure::NodeMetric(name) => match metric_named(name).map(|metric| metric.unit) {
                Some(collectors::Unit::Ratio | collectors::Unit::Flag) => Unit::Ratio,
                Some(collectors::Unit::Seconds) => Unit::Seconds,
                _ => Unit::Number,
            },
        }
    }
}

/// One value, at the time of an evaluation.
#[derive(Clone, Debug, PartialEq)]
pub struct Reading {
    /// What was measured.
    pub measure: Measure,
    /// Of what.
    pub subject: Subject,
    /// Which part of the subject, such as `rank 5 on n3` or `GPU 3`; none if it is of the whole.
    pub part: Option<String>,
    /// The value; NaN breaks no rule.
    pub value: f64,
}

/// Which values break a rule.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Bound {
    /// Values above this.
    Above(f64),
    /// Values below this.
    Below(f64),
}

impl Bound {
    /// Reports whether the value is beyond `limit` on this bound's side.
    fn is_beyond(self, value: f64, limit: f64) -> bool {
        match self {
            Bound::Above(_) => value > limit,
            Bound::Below(_) => value < limit,
        }
    }

    fn limit(self) -> f64 {
        match self {
            Bound::Above(limit) | Bound::Below(limit) => limit,
        }
    }

    /// Returns the one that is farther beyond.
    pub(super) fn worse(self, one: f64, other: f64) -> f64 {
        if self.is_beyond(other, one) { other } else { one }
    }
}

/// How much an alert matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Severity {
    /// Worth knowing.
    Info,
    /// Costs money or time, or soon will.
    Warning,
    /// Somebody has to act now.
    Critical,
}

impl Severity {
    /// Returns the severity of this name.
    #[must_use]
    pub fn named(name: &str) -> Option<Severity> {
        [Severity::Info, Severity::Warning, Severity::Critical].into_iter().find(|severity| severity.name() == name)
    }

    /// Returns the name, as rules and messages have it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Severity::Info => "info",
            Severity::Warning => "warning",
            Severity::Critical => "critical",
        }
    }
}

/// A rule.
#[derive(Clone, Debug, PartialEq)]
pub struct Rule {
    /// Its name, which alerts, silences and messages use.
    pub name: String,
    /// What it looks at.
    pub measure: Measure,
    /// Which values break it.
    pub bound: Bound,
    /// The value at which an alert that fires is clear again: never beyond the bound, so that values near the bound don't
    /// make it flap.
    pub clear: f64,
    /// How long it has to be broken before it fires.
    pub hold: Duration,
    /// How long it has to be clear before the alert ends.
    pub clear_hold: Duration,
    /// How much it matters.
    pub severity: Severity,
    /// What happened, with `{value}`, `{subject}` and `{parts}` in it.
    pub summary: String,
    /// What to do about it.
    pub hint: String,
}

impl Rule {
    /// Reports whether a value breaks the rule; of an alert that fires, whether it isn't clear again.
    #[must_use]
    pub fn is_broken_by(&self, value: f64, is_firing: bool) -> bool {
        self.bound.is_beyond(value, if is_firing { self.clear } else { self.bound.limit() })
    }
}
