//! The file of alert rules and receivers: TOML, refused with line and column.
//!
//! ```toml
//! every = "15s"                 # time between two evaluations
//! off = ["queue_waits"]         # built-in rules that don't hold here
//!
//! [[receiver]]
//! name = "on-call"
//! alertmanager = "http://alertmanager:9093"
//!
//! [[receiver]]
//! name = "chat"
//! slack = "https://hooks.slack.com/services/..."
//! severity = "warning"          # this and worse ones
//!
//! [[rule]]
//! name = "grad_norm_high"
//! metric = "grad_norm"          # or "gpu.temperature_celsius", or signal = "data_stall", see docs/guides/alerts.md
//! above = 10
//! clear = 5
//! for = "2m"
//! summary = "gradient norm of {subject} is {value} ({parts})"
//! ```

use std::time::Duration;

use gangline_base::EmailAddress;
use serde::Deserialize;
use toml::Spanned;

use crate::collectors::metric_named;

use super::rule::{Bound, Measure, Rule, Severity, Signal, Unit};

/// What names of metrics begin with that agents read.
const AGENTS_GROUPS: [&str; 3] = ["host.", "gpu.", "agent."];
/// The built-in rules.
const BUILT_IN: &str = include_str!("builtin.toml");
/// The most rules, built-in ones included.
const RULES_MAX: usize = 500;
/// The most receivers.
const RECEIVERS_MAX: usize = 50;
/// Bytes of a file.
const FILE_BYTES_MAX: usize = 1 << 20;
/// Bytes of a name.
const NAME_BYTES_MAX: usize = 64;
/// Time between two evaluations, unless the file says another.
const EVERY: Duration = Duration::from_secs(15);
/// The shortest and the longest time between two evaluations.
const EVERY_RANGE: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(600));
/// Time after which receivers are told again of an alert that nobody has acknowledged.
const REPEAT: Duration = Duration::from_secs(4 * 3_600);

/// Where alerts go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Receiver {
    /// Its name, which is shown; the address isn't.
    pub name: String,
    /// How it is reached.
    pub way: Way,
    /// The least severity of which it is told.
    pub severity: Severity,
}

/// How a receiver is reached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Way {
    /// JSON is posted to this URL ([`super::message::webhook`]).
    Webhook(String),
    /// Slack's format is posted to this URL ([`super::message::slack`]).
    Slack(String),
    /// Alertmanager's API version 2 at this address.
    Alertmanager(String),
    /// A mail to this address, by the server that the control plane's configuration names.
    Email(EmailAddress),
    /// A command with its arguments; the webhook's JSON is its input.
    Command(Vec<String>),
}

/// What a file says.
#[derive(Clone, Debug, PartialEq)]
pub struct Rules {
    /// The rules: built-in ones, replaced and completed by the file's.
    pub rules: Vec<Rule>,
    /// Where alerts go.
    pub receivers: Vec<Receiver>,
    /// Time between two evaluations.
    pub every: Duration,
    /// Time after which receivers are told again.
    pub repeat: Duration,
}

/// Why a file was refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{line}:{column}: {message}")]
pub struct Invalid {
    /// The line, from 1.
    pub line: usize,
    /// The column in characters, from 1.
    pub column: usize,
    /// What is wrong, and what may stand there.
    pub message: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct FileV1 {
    every: Option<Spanned<String>>,
    repeat: Option<Spanned<String>>,
    #[serde(default)]
    off: Vec<Spanned<String>>,
    #[serde(default)]
    receiver: Vec<Spanned<ReceiverV1>>,
    #[serde(default)]
    rule: Vec<Spanned<RuleV1>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ReceiverV1 {
    name: Spanned<String>,
    webhook: Option<Spanned<String>>,
    slack: Option<Spanned<String>>,
    alertmanager: Option<Spanned<String>>,
    email: Option<Spanned<String>>,
    command: Option<Spanned<Vec<String>>>,
    severity: Option<Spanned<String>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RuleV1 {
    name: Spanned<String>,
    signal: Option<Spanned<String>>,
    metric: Option<Spanned<String>>,
    above: Option<Spanned<f64>>,
    below: Option<Spanned<f64>>,
    clear: Option<Spanned<f64>>,
    #[serde(rename = "for")]
    hold: Option<Spanned<String>>,
    clear_for: Option<Spanned<String>>,
    severity: Option<Spanned<String>>,
    summary: Option<Spanned<String>>,
    hint: Option<String>,
}

/// A defect at a byte of the text.
type Defect = (usize, String);

impl Rules {
    /// Returns the rules that hold where there is no file.
    #[must_use]
    pub fn built_in() -> Rules {
        Rules::read("").expect("an empty file is sound, and a test reads the built-in rules")
    }

    /// Reads a file.
    ///
    /// # Errors
    /// [`Invalid`], with line and column.
    pub fn read(text: &str) -> Result<Rules, Invalid> {
        if text.len() > FILE_BYTES_MAX {
            let message = format!("the file is larger than the {FILE_BYTES_MAX} bytes it may have");
            return Err(Invalid { line: 1, column: 1, message });
        }
        let base = rules_of(&parse(BUILT_IN)?).map_err(|defect| located(BUILT_IN, defect))?;
        let file = parse(text)?;
        complete(base, &file).map_err(|defect| located(text, defect))
    }
}

fn parse(text: &str) -> Result<FileV1, Invalid> {
    let defect = |error: toml::de::Error| (error.span().map_or(0, |span| span.start), error.message().to_owned());
    toml::from_str(text).map_err(|error| located(text, defect(error)))
}

fn located(text: &str, (at, message): Defect) -> Invalid {
    let before = text.get(..at).unwrap_or(text);
    let line = before.matches('\n').count() + 1;
    let column = before.rsplit('\n').next().map_or(0, |last| last.chars().count()) + 1;
    Invalid { line, column, message: message.trim().replace('\n', "; ") }
}

/// Adds what a file says to the built-in rules.
fn complete(mut rules: Vec<Rule>, file: &FileV1) -> Result<Rules, Defect> {
    for name in &file.off {
        let before = rules.len();
        rules.retain(|rule| rule.name != *name.get_ref());
        if rules.len() == before {
            return Err((name.span().start, format!("there is no built-in rule {:?} to turn off", name.get_ref())));
        }
    }
    let own = rules_of(file)?;
    rules.retain(|rule| !own.iter().any(|other| other.name == rule.name));
    rules.extend(own);
    if rules.len() > RULES_MAX {
        return Err((0, format!("there are more than {RULES_MAX} rules, the built-in ones included")));
    }
    if let Some(further) = file.receiver.get(RECEIVERS_MAX) {
        return Err((further.span().start, format!("there are more than {RECEIVERS_MAX} receivers")));
    }
    let mut receivers: Vec<Receiver> = Vec::new();
    for receiver in &file.receiver {
        let read = receiver_of(receiver)?;
        if receivers.iter().any(|other| other.name == read.name) {
            return Err((receiver.get_ref().name.span().start, format!("two receivers are named {:?}", read.name)));
        }
        receivers.push(read);
    }
    let every = duration(file.every.as_ref(), EVERY)?;
    if !(EVERY_RANGE.0..=EVERY_RANGE.1).contains(&every) {
        let at = file.every.as_ref().map_or(0, |every| every.span().start);
        return Err((at, "every has to be from 100ms to 10m".to_owned()));
    }
    Ok(Rules { rules, receivers, every, repeat: duration(file.repeat.as_ref(), REPEAT)? })
}

fn rules_of(file: &FileV1) -> Result<Vec<Rule>, Defect> {
    let mut rules: Vec<Rule> = Vec::new();
    for rule in &file.rule {
        let read = rule_of(rule)?;
        if rules.iter().any(|other| other.name == read.name) {
            return Err((rule.get_ref().name.span().start, format!("two rules are named {:?}", read.name)));
        }
        rules.push(read);
    }
    Ok(rules)
}

fn rule_of(spanned: &Spanned<RuleV1>) -> Result<Rule, Defect> {
    let (at, rule) = (spanned.span().start, spanned.get_ref());
    let name = name_of(&rule.name)?;
    let measure = match (&rule.signal, &rule.metric) {
        (Some(signal), None) => Measure::Signal(signal_of(signal)?),
        (None, Some(metric)) if !metric.get_ref().is_empty() => metric_of(metric)?,
        _ => return Err((at, format!("rule {name:?} needs either a signal or a metric"))),
    };
    let bound = match (&rule.above, &rule.below) {
        (Some(above), None) => Bound::Above(finite(above)?),
        (None, Some(below)) => Bound::Below(finite(below)?),
        _ => return Err((at, format!("rule {name:?} needs either above or below"))),
    };
    let (Bound::Above(limit) | Bound::Below(limit)) = bound;
    let clear = rule.clear.as_ref().map_or(Ok(limit), finite)?;
    let is_beyond = match bound {
        Bound::Above(limit) => clear > limit,
        Bound::Below(limit) => clear < limit,
    };
    if let Some(written) = rule.clear.as_ref().filter(|_| is_beyond) {
        return Err((written.span().start, format!("{clear} breaks the rule itself, so nothing would be clear")));
    }
    let named = match &measure {
        Measure::Signal(signal) => signal.name(),
        Measure::Metric(metric) | Measure::NodeMetric(metric) => metric,
    };
    let plain = || match measure.unit() {
        Unit::Flag => format!("{named} of {{subject}}: {{parts}}"),
        _ => format!("{named} of {{subject}} is {{value}} ({{parts}})"),
    };
    Ok(Rule {
        clear,
        hold: duration(rule.hold.as_ref(), Duration::ZERO)?,
        clear_hold: duration(rule.clear_for.as_ref(), Duration::ZERO)?,
        severity: severity(rule.severity.as_ref(), Severity::Warning)?,
        summary: rule.summary.as_ref().map_or_else(|| Ok(plain()), template)?,
        hint: rule.hint.clone().unwrap_or_default(),
        name,
        measure,
        bound,
    })
}

fn receiver_of(spanned: &Spanned<ReceiverV1>) -> Result<Receiver, Defect> {
    let receiver = spanned.get_ref();
    let name = name_of(&receiver.name)?;
    let mut ways = Vec::new();
    ways.extend(receiver.webhook.as_ref().map(|text| url(text).map(Way::Webhook)));
    ways.extend(receiver.slack.as_ref().map(|text| url(text).map(Way::Slack)));
    ways.extend(receiver.alertmanager.as_ref().map(|text| url(text).map(Way::Alertmanager)));
    ways.extend(receiver.email.as_ref().map(|text| {
        let address = EmailAddress::new(text.get_ref()).map(Way::Email);
        address.map_err(|what| (text.span().start, format!("{:?} {what}", text.get_ref())))
    }));
    ways.extend(receiver.command.as_ref().map(|command| match command.get_ref().first() {
        Some(program) if !program.is_empty() => Ok(Way::Command(command.get_ref().clone())),
        _ => Err((command.span().start, "a command needs a program".to_owned())),
    }));
    let one = ways.pop().filter(|_| ways.is_empty());
    let one_of = "exactly one of webhook, slack, alertmanager, email and command";
    let way = one.ok_or_else(|| (spanned.span().start, format!("receiver {name:?} needs {one_of}")))??;
    Ok(Receiver { name, way, severity: severity(receiver.severity.as_ref(), Severity::Info)? })
}

fn name_of(name: &Spanned<String>) -> Result<String, Defect> {
    let text = name.get_ref();
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"_-".contains(&byte);
    if text.is_empty() || text.len() > NAME_BYTES_MAX || !text.bytes().all(is_plain) {
        let message = format!("{text:?} is no name: it has to be 1 to {NAME_BYTES_MAX} letters, digits, _ and -");
        return Err((name.span().start, message));
    }
    Ok(text.clone())
}

fn signal_of(signal: &Spanned<String>) -> Result<Signal, Defect> {
    let known = || Signal::names().collect::<Vec<_>>().join(", ");
    let none = || (signal.span().start, format!("there is no signal {:?}; there are {}", signal.get_ref(), known()));
    Signal::named(signal.get_ref()).ok_or_else(none)
}

/// Returns what a metric's name stands for: one that agents read, by its group, or else one that ranks report.
fn metric_of(metric: &Spanned<String>) -> Result<Measure, Defect> {
    let name = metric.get_ref();
    if !AGENTS_GROUPS.iter().any(|group| name.starts_with(group)) {
        return Ok(Measure::Metric(name.clone()));
    }
    let is_known = metric_named(name).is_some_and(|known| known.name == name);
    let none = || format!("agents read no metric {name:?}; docs/reference/metrics.md has what they read");
    if is_known { Ok(Measure::NodeMetric(name.clone())) } else { Err((metric.span().start, none())) }
}

fn finite(number: &Spanned<f64>) -> Result<f64, Defect> {
    let value = *number.get_ref();
    if value.is_finite() { Ok(value) } else { Err((number.span().start, format!("{value} is no limit"))) }
}

fn severity(written: Option<&Spanned<String>>, default: Severity) -> Result<Severity, Defect> {
    let Some(written) = written else { return Ok(default) };
    let message = || format!("{:?} is no severity: it is info, warning or critical", written.get_ref());
    Severity::named(written.get_ref()).ok_or_else(|| (written.span().start, message()))
}

/// Checks that a summary names only what there is.
fn template(summary: &Spanned<String>) -> Result<String, Defect> {
    let text = summary.get_ref();
    let known = ["{value}", "{subject}", "{parts}"];
    let rest = known.iter().fold(text.clone(), |rest, known| rest.replace(known, ""));
    if rest.contains(['{', '}']) {
        return Err((summary.span().start, format!("a summary may have {} and no other braces", known.join(", "))));
    }
    Ok(text.clone())
}

fn url(text: &Spanned<String>) -> Result<String, Defect> {
    let (at, text) = (text.span().start, text.get_ref());
    let has_host = ["http://", "https://"].iter().any(|scheme| text.len() > scheme.len() && text.starts_with(scheme));
    let is_plain = !text.contains(|letter: char| letter.is_whitespace() || letter.is_control());
    if has_host && is_plain { Ok(text.clone()) } else { Err((at, "it has to be an http or https URL".to_owned())) }
}

/// Units of durations, in milliseconds. The longer name of two that end alike comes first.
const UNITS: [(&str, u64); 5] = [("ms", 1), ("s", 1_000), ("m", 60_000), ("h", 3_600_000), ("d", 86_400_000)];

fn duration(written: Option<&Spanned<String>>, default: Duration) -> Result<Duration, Defect> {
    let Some(written) = written else { return Ok(default) };
    let text = written.get_ref();
    let read = UNITS.iter().find_map(|(unit, millis)| {
        let number: u64 = text.strip_suffix(unit)?.parse().ok()?;
        number.checked_mul(*millis).map(Duration::from_millis)
    });
    let message = || format!("{text:?} is no duration: a whole number with ms, s, m, h or d, such as \"10m\"");
    read.ok_or_else(|| (written.span().start, message()))
}
